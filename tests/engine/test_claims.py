"""Claims of attempts in different runs: when two may not execute at the same time."""

from __future__ import annotations

import pytest
from store_rows import an_effect

from assay.engine.attempts import Claims
from assay.engine.claims import (
    claims_of,
    claims_of_undoing,
    closes_cycle,
    find_conflict,
    find_undone,
)
from assay.engine.states import AttemptId
from assay.plans.entries import parse_entry
from assay.plans.model import Argv, Node, NodeName, Origin, RelPath, Tier


def claims(writes: str = "", reads: str = "", locks: str = "") -> Claims:
    def entries(text: str) -> tuple[object, ...]:
        return tuple(parse_entry(word, RelPath(".")) for word in text.split())

    return Claims(entries(writes), entries(reads), tuple(f"lock {n}" for n in locks.split()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (claims("o"), claims("o"), "o"),
        (claims("d/"), claims("d/x"), "d/x"),
        (claims("o"), claims(reads="o"), "o"),
        (claims(reads="src/**"), claims("src/a"), "src/a"),
        (claims(reads="o"), claims(reads="o"), None),
        (claims(reads="d/* !d/o"), claims("d/o"), "d/o"),
        (claims(reads="o !d/o"), claims("d/o"), None),
        (claims("o"), claims("p", "q"), None),
        (claims(locks="db"), claims(locks="db x"), "lock db"),
        (claims(locks="db"), claims(locks="x"), None),
    ],
)
def test_writes_exclude_reads_and_writes_and_reads_are_shared(
    mine: Claims, theirs: Claims, expected: str | None
) -> None:
    """Overlap is by path, whoever asks."""
    assert find_conflict(mine, theirs) == expected
    assert find_conflict(theirs, mine) == expected


def test_what_a_node_removes_is_claimed_like_what_it_writes() -> None:
    """A removal excludes readers of the path."""
    node = Node(NodeName("n"), Origin("p"), command=Argv(("rm", "o")), removes=(RelPath("o"),))
    assert find_conflict(claims_of(node, "p"), claims(reads="o")) == "o"


def test_one_node_is_not_executed_by_two_runs_at_once() -> None:
    """Also one that only reads: the second run waits and finds the result (C96)."""
    check = Node(
        NodeName("check"), Origin("p"), command=Argv(("lint",)), reads=claims(reads="o").reads
    )
    assert find_conflict(claims_of(check, "p"), claims_of(check, "p")) == "node check of p"
    assert find_conflict(claims_of(check, "p"), claims_of(check, "q")) is None
    every_time = Node(NodeName("t"), Origin("p"), command=Argv(("date",)))
    assert find_conflict(claims_of(every_time, "p"), claims_of(every_time, "p")) is None


def test_taking_back_holds_what_was_done() -> None:
    """The paths of the attempt, its node, also where nothing is kept of the attempt any more, and
    the effect, by which whoever asks finds out."""
    effect = an_effect("aaaaaaaa", 1, node="pub")
    held = claims_of_undoing([(effect, claims("o", "i"))], "p")
    assert find_undone(held) == ("aaaaaaaa-1",)
    assert find_undone(claims("o", locks="effect")) == ()
    pub = Node(NodeName("pub"), Origin("p"), command=Argv(("x",)), tier=Tier.COMPENSABLE)
    assert find_conflict(claims_of(pub, "p"), held) == "node pub of p"
    assert find_conflict(claims_of(pub, "p"), claims_of_undoing([(effect, Claims())], "p"))
    assert find_conflict(claims_of(pub, "q"), held) is None
    assert find_conflict(claims(reads="o"), held) == "o"
    assert find_conflict(claims("i"), held) is None


def test_a_wait_that_closes_a_cycle_is_seen() -> None:
    """A run started by A may not wait for A, nor for B whose own child waits for A (C117)."""
    a, b, c = (AttemptId(name) for name in "abc")
    assert closes_cycle(a, [a], {})
    assert closes_cycle(b, [a], {b: [a]})
    assert closes_cycle(c, [a], {c: [b], b: [a]})
    assert not closes_cycle(b, [a], {})
    assert not closes_cycle(b, [a], {b: [c], c: [b]})
    assert not closes_cycle(a, [], {})
