"""Writes the index of a folder of pages."""

import sys
from pathlib import Path

folder = Path(sys.argv[1])
pages = sorted(path.name for path in folder.glob("*.html") if path.name != "index.html")
items = [f'<li><a href="{name}">{name.removesuffix(".html")}</a></li>' for name in pages]
(folder / "index.html").write_text("\n".join(["<ul>", *items, "</ul>", ""]))
