"""Whether what two attempts of different runs claim can meet.

Pure. An executing node claims its writes and removes exclusively, its reads shared, and
its locks; the store keeps the claims with the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from assay.engine.attempts import Claims
from assay.engine.effects import EffectRow
from assay.engine.keys import is_cacheable
from assay.engine.states import AttemptId
from assay.plans.entries import overlap
from assay.plans.model import Entry, EntryKind, Node, Tier

_EFFECT: Final = "effect "


def claims_of(node: Node, plan_file: str) -> Claims:
    """Of two runs that want the result of one node, or its effect, the second waits for the
    first even where nothing is written: then it finds it there."""
    is_shared = is_cacheable(node) or node.tier is not Tier.SEALED
    itself = (lock_of_node(node.name, plan_file),) if is_shared else ()
    removes = tuple(Entry(EntryKind.FILE, path) for path in node.removes)
    locks = (*(f"lock {name}" for name in node.locks), *itself)
    # Exclusions free nothing, but tell what a path among the writes was to the node.
    return Claims(writes=_present(node.writes) + removes, reads=node.reads, locks=locks)


def claims_of_undoing(undone: Iterable[tuple[EffectRow, Claims]], plan_file: str) -> Claims:
    """What holds while these effects are taken back: all that their attempts could change, which
    stands with each; their nodes, so that no other run performs one meanwhile; and the effects
    themselves, by which `find_undone` tells who takes back what."""
    rows = list(undone)
    return Claims(
        writes=tuple(e for _, claims in rows for e in claims.writes),
        locks=(
            *(lock_of_node(effect.node, plan_file) for effect, _ in rows),
            *(f"{_EFFECT}{effect.attempt}" for effect, _ in rows),
        ),
    )


def find_undone(claims: Claims) -> tuple[AttemptId, ...]:
    """The attempts whose effects are taken back by whoever holds these claims."""
    found = (name.removeprefix(_EFFECT) for name in claims.locks if name.startswith(_EFFECT))
    return tuple(map(AttemptId, found))


def lock_of_node(name: str, plan_file: str) -> str:
    """What stands for the node itself among the locks of a claim."""
    return f"node {name} of {plan_file}"


def find_conflict(mine: Claims, theirs: Claims) -> str | None:
    """The path or lock that both want and one of them alone may have, or None."""
    for name in mine.locks:
        if name in theirs.locks:
            return name
    for ours, others in (
        (mine.writes, theirs.writes),
        (mine.writes, _present(theirs.reads)),
        (_present(mine.reads), theirs.writes),
    ):
        for a in ours:
            for b in others:
                path = overlap(a, b)
                if path is not None:
                    return path
    return None


def closes_cycle(
    target: AttemptId,
    ancestors: Iterable[AttemptId],
    waits: Mapping[AttemptId, Iterable[AttemptId]],
) -> bool:
    """Whether waiting for `target` would wait for oneself.

    `ancestors` are the attempts this run is nested in; `waits` says which attempts each
    attempt waits for, a nested run's waits counting as those of every attempt around it.
    """
    mine = frozenset(ancestors)
    seen: set[AttemptId] = set()
    open_ends = [target]
    while open_ends:
        attempt = open_ends.pop()
        if attempt in mine:
            return True
        if attempt not in seen:
            seen.add(attempt)
            open_ends.extend(waits.get(attempt, ()))
    return False


def _present(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if not entry.exclude)
