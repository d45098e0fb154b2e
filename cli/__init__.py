"""What the user types and reads: commands, words, hints, colours and exit codes."""
