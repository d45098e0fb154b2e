"""Plain tables: columns two spaces apart, nothing cut off, so that they can be searched.

Does not know what the rows mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from assay.cli.render.text import one_line, paint


def render_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, colour: bool = False
) -> str:
    """Heads and rows aligned by what the letters take on a terminal; the last column is
    as wide as it is. Ends with a line end."""
    from rich.cells import cell_len

    table = [tuple(heads), *(tuple(map(one_line, row)) for row in rows)]
    widths = [max(cell_len(row[i]) for row in table) for i in range(len(heads) - 1)]
    lines = []
    for row in table:
        cells = [
            cell + " " * (width - cell_len(cell))
            for cell, width in zip(row[:-1], widths, strict=True)
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    lines[0] = paint(lines[0], "bold", colour)
    return "\n".join(lines) + "\n"
