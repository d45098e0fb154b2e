"""What taking back an effect has changed, for the journal and for people. Pure words."""

from __future__ import annotations

from typing import cast

from assay.engine.compensation import Compensated
from assay.engine.effects import EffectRow
from assay.plans.canonical import JsonValue


def describe_fact(row: EffectRow, done: Compensated, why: str) -> JsonValue:
    """The data of the journal record."""
    files = done.files
    return cast(
        "JsonValue",
        {
            "attempt": row.attempt,
            "why": why,
            "put_back": list(files.put_back),
            "removed": list(files.removed),
            "trashed": [list(pair) for pair in files.trashed],
            "left": list(files.left),
            "undo": done.undo,
            "state": done.state.value,
            "problem": done.problem,
        },
    )


def describe_changes(row: EffectRow, done: Compensated) -> list[str]:
    """Clauses about the node, for people."""
    told: list[str] = []
    files = done.files
    changed = [*files.put_back, *files.removed]
    if changed:
        shown = ", ".join(f"`{path}`" for path in changed[:3])
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        told.append(f"rolled back, as before attempt {row.attempt}: {shown}{more}")
    if files.trashed:
        paths = ", ".join(f"`{path}` is now {to}" for path, to in files.trashed[:3])
        more = f"; {len(files.trashed) - 3} more beside it" if len(files.trashed) > 3 else ""
        told.append(f"kept what stood there instead: {paths}{more}")
    if files.left:
        shown = ", ".join(f"`{path}`" for path in files.left[:3])
        more = f" and {len(files.left) - 3} more" if len(files.left) > 3 else ""
        told.append(f"left where it is what came since: {shown}{more}")
    if done.undo is not None and done.problem is None:
        told.append("its `undo` has run")
    if done.problem is not None:
        told.append(f"is not rolled back wholly: {done.problem}")
    return told
