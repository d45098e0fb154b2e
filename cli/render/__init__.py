"""How things look: text, colours, tables, JSON. Nothing here decides or changes anything."""
