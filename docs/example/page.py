"""Turns a text file into a page: the first line is its title, the rest its paragraphs."""

import html
import sys
from pathlib import Path

source, target = map(Path, sys.argv[1:])
title, _, body = source.read_text().partition("\n")
paragraphs = [f"<p>{html.escape(part.strip())}</p>" for part in body.split("\n\n") if part.strip()]
target.parent.mkdir(exist_ok=True)
target.write_text("\n".join([f"<h1>{html.escape(title)}</h1>", *paragraphs, ""]))
