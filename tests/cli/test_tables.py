"""Tables that can be read and searched."""

from __future__ import annotations

from assay.cli.render.tables import render_table


def test_columns_are_aligned_and_nothing_is_cut() -> None:
    """Columns stand two spaces apart by what letters take on a terminal."""
    rows = [("1a2b", "漢字", "x" * 200), ("99", "a\nb", "")]

    assert render_table(("run", "name", "what"), rows) == (
        "run   name  what\n" + "1a2b  漢字  " + "x" * 200 + "\n" + "99    a\\nb\n"
    )


def test_table_without_rows_has_its_heads() -> None:
    """An empty answer is visible as one."""
    assert render_table(("run", "status"), []) == "run  status\n"
    assert render_table(("run", "status"), [], colour=True) == "\x1b[1mrun  status\x1b[0m\n"
