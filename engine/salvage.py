"""What can still be read from a damaged database, row by row, into a new one.

Copies rows as they are, checks what can be checked and never makes one up. Knows nothing
of where damaged files go.
"""

# ruff: noqa: S608 - SQL is put together from constants of this module; values are bound.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from assay.engine.database import Database, Row

HISTORY: Final = ("effects", "selections", "runs", "attempts", "journal", "plans", "pins")
"""What explains and resumes runs."""

CACHE: Final = ("results", "recorded_outputs")
"""What saves executing again. Rows carry seals or are digests: a wrong one never serves."""

_KEYS: Final = {
    "effects": "attempt",
    "selections": "rowid",
    "runs": "ordinal",
    "attempts": "id",
    "journal": "seq",
    "plans": "rowid",
    "pins": "rowid",
    "results": "id",
    "recorded_outputs": "path, plan_file, node, state",
}


@dataclass(slots=True)
class Salvaged:
    """How many rows of each table were kept, and which tables were not read to their end."""

    kept: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    has_all_effects: bool = False
    """Whether every effect that was recorded is there."""


def salvage(damaged: Database, fresh: Database) -> Salvaged:
    """Copy what can be read from `damaged`, of the same schema version, into `fresh`.

    Each table is read from its beginning and, where that fails, from its end too, so one
    bad page costs the rows on it and below it.
    """
    found = Salvaged()
    with fresh.transaction():
        for table in HISTORY + CACHE:
            columns = [row[1] for row in fresh.query(f"PRAGMA table_info({table})")]
            names = ", ".join(f'"{name}"' for name in columns)
            insert = (
                f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})"
            )
            kept = 0
            for direction in ("ASC", "DESC"):
                order = ", ".join(f"{key} {direction}" for key in _KEYS[table].split(", "))
                rows, complete = damaged.query_until_damage(
                    f"SELECT {names} FROM {table} ORDER BY {order}"
                )
                for row in rows:
                    if is_sound(row):
                        kept += fresh.execute(insert, row)
                    else:
                        complete = False
                if complete:
                    break
            else:
                found.lost.append(table)
            found.kept[table] = kept
        facts, complete = damaged.query_until_damage(
            "SELECT name, value FROM facts WHERE name = 'effects-lost'"
            " OR name LIKE 'effect-unrecorded:%'"
        )
        for row in filter(is_sound, facts):
            fresh.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", row)
        found.has_all_effects = complete and not {"effects", "runs"} & set(found.lost)
        # Positions that will be given again say nothing about what came first.
        fresh.execute(
            "UPDATE attempts SET begun_seq = 0"
            " WHERE begun_seq > (SELECT coalesce(max(seq), 0) FROM journal)"
        )
    return found


def is_sound(row: Row) -> bool:
    """Whether a row can have been written: no text holds a NUL, which zeroed pages do."""
    return not any(isinstance(value, str) and "\0" in value for value in row)
