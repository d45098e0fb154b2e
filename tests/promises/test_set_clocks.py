"""Somebody sets the clock: effects, who owns a run, timeouts and deadlines do not go by it."""

from __future__ import annotations

import json
import os
import shlex
import signal
from pathlib import Path

import pytest
from counted import Counted
from probe import Probe, Probes
from running import Begin
from skewed import DAY_SECONDS, SkewedClock

FAR = 3 * DAY_SECONDS
JUMPS = [(0, FAR), (FAR, -FAR)]
"""What the clock says when a run is killed, and when it is gone on with."""


@pytest.fixture
def clock(tmp_path: Path) -> SkewedClock:
    return SkewedClock(tmp_path / "clock")


def only_run(counted: Counted) -> str:
    [run] = json.loads(counted.assay("runs", "--json").out)
    return str(run["run"])


def end(probe: Probe) -> None:
    os.kill(probe.pid, signal.SIGKILL)
    probe.gone()


@pytest.mark.parametrize("words", [("run",), ("resume", "last")])
@pytest.mark.parametrize("jump", JUMPS)
def test_an_effect_of_a_killed_run_is_asked_about_whatever_the_time(
    counted: Counted,
    probes: Probes,
    begin: Begin,
    clock: SkewedClock,
    jump: tuple[int, int],
    words: tuple[str, ...],
) -> None:
    """C95: neither too old to be remembered nor too new to be believed; the answer is taken, and
    then it happens once."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    clock.set(jump[0])
    run = begin(env=clock.env)
    pub = probes.arrive("pub")
    run.kill()
    end(pub)
    clock.set(jump[1])
    dead = only_run(counted)
    asked = counted.assay(*words, "--json", env=clock.env)
    assert (asked.code, asked.outcomes) == (4, {"pub": "ambiguous"})
    assert counted.assay("settle", dead, "pub", "--done", env=clock.env).code == 0
    done = counted.assay(*words, "--json", env=clock.env)
    assert (done.code, done.outcomes) == (0, {"pub": "clean"})
    assert probes.arrivals == ["pub"]


@pytest.mark.parametrize("jump", JUMPS)
def test_an_effect_with_a_key_is_repeated_whatever_the_time(
    counted: Counted, probes: Probes, begin: Begin, clock: SkewedClock, jump: tuple[int, int]
) -> None:
    """C95: the repeat of one that was killed has the same key and is the last."""
    node = {"run": probes.argv("pub"), "tier": "irreversible", "idempotency_key": "k"}
    counted.plan({"pub": node, "last": {"run": "test -e ok", "after": ["pub"], "cache": False}})
    clock.set(jump[0])
    run = begin(env=clock.env)
    pub = probes.arrive("pub")
    run.kill()
    end(pub)
    clock.set(jump[1])
    again = begin(env=clock.env)
    repeat = probes.arrive("pub")
    assert repeat.environ()["ASSAY_IDEMPOTENCY_KEY"] == "k"
    repeat.exit(0)
    assert again.finish().code == 1
    clock.set(jump[0])
    counted.write("ok", "")
    done = counted.assay("run", "--json", env=clock.env)
    assert (done.code, done.outcomes) == (0, {"pub": "clean", "last": "built"})
    assert probes.arrivals == ["pub", "pub"]


@pytest.mark.parametrize("jump", JUMPS)
def test_work_of_a_killed_run_is_taken_back_whatever_the_time(
    counted: Counted, probes: Probes, begin: Begin, clock: SkewedClock, jump: tuple[int, int]
) -> None:
    """C100, C103: what was half changed is put back once, and done again; then a rewind takes it
    back as well."""
    marks = shlex.quote(str(counted.marks))
    probe = shlex.join(probes.argv("m"))
    counted.write("f", "0\n")
    counted.plan(
        {
            "a": {"run": "true", "tier": "compensable"},
            "m": {
                "run": f"echo x >> f; {probe}",
                "reads": ["f"],
                "writes": ["f"],
                "after": ["a"],
                "tier": "compensable",
                "undo": f"echo undone >> {marks}",
            },
        }
    )
    clock.set(jump[0])
    run = begin(env=clock.env)
    node = probes.arrive("m")
    run.kill()
    end(node)
    clock.set(jump[1])
    again = begin(env=clock.env)
    probes.arrive("m").exit(0)
    done = again.finish()
    assert (done.code, done.outcomes) == (0, {"a": "clean", "m": "built"})
    assert counted.read("f") == "0\nx\n"
    assert counted.executions.count("undone") == 1
    clock.set(jump[0])
    rewound = counted.assay("rewind", "last", "--to", "a", env=clock.env)
    assert rewound.code == 0, rewound.err
    assert counted.read("f") == "0\n"
    assert counted.executions.count("undone") == 2


@pytest.mark.parametrize("ahead_seconds", [FAR, -FAR])
def test_a_living_owner_is_not_robbed_by_who_has_another_time(
    counted: Counted, probes: Probes, begin: Begin, clock: SkewedClock, ahead_seconds: int
) -> None:
    """C96: on one host a run is owned by who lives, however old its last sign of life seems: it
    is not gone on with, and what it does is waited for."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    clock.set(ahead_seconds)
    first = begin()
    pub = probes.arrive("pub")
    owned = only_run(counted)
    for words in (["resume", owned], ["rewind", owned, "--to", "pub"], ["settle", owned, "pub"]):
        answer = ["--not-done"] if words[0] == "settle" else []
        refused = counted.assay(*words, *answer, env=clock.env)
        assert refused.code == 2, refused.err
    second = begin(env=clock.env)
    assert second.told("waiting-for-run", "pub")["pid"] == first.pid
    assert pub.is_alive
    pub.exit(0)
    assert first.finish().outcomes == {"pub": "built"}
    done = second.finish()
    assert (done.code, done.outcomes) == (0, {"pub": "clean"})
    assert probes.arrivals == ["pub"]


@pytest.mark.parametrize("ahead_seconds", [FAR, -FAR])
def test_an_owner_whose_clock_is_set_keeps_its_run(
    counted: Counted, probes: Probes, begin: Begin, clock: SkewedClock, ahead_seconds: int
) -> None:
    """C96: while it runs: what it began before and what it begins after belong together."""
    counted.plan(
        {
            "one": {"run": probes.argv("one"), "tier": "irreversible"},
            "two": {"run": probes.argv("two"), "tier": "irreversible", "after": ["one"]},
        }
    )
    run = begin(env=clock.env)
    one = probes.arrive("one")
    clock.set(ahead_seconds)
    one.exit(0)
    two = probes.arrive("two")
    refused = counted.assay("resume", only_run(counted))
    assert refused.code == 2
    assert f"pid {run.pid}" in refused.err
    two.exit(0)
    done = run.finish()
    assert (done.code, done.outcomes) == (0, {"one": "built", "two": "built"})
    assert probes.arrivals == ["one", "two"]


@pytest.mark.parametrize("words", [(), ("--deadline", "1h")])
@pytest.mark.parametrize("ahead_seconds", [FAR, -FAR])
def test_a_clock_that_is_set_ends_nothing(
    counted: Counted,
    probes: Probes,
    begin: Begin,
    clock: SkewedClock,
    ahead_seconds: int,
    words: tuple[str, ...],
) -> None:
    """C65: a node and a run that have an hour have it, whatever the time of day comes to be."""
    effect = {"tier": "irreversible", "timeout": "1h"}
    counted.plan(
        {
            "long": {"run": probes.argv("long"), **effect},
            "one": {"run": probes.argv("one"), **effect},
            "two": {"run": probes.argv("two"), "after": ["one"], **effect},
        }
    )
    run = begin("-j2", *words, env=clock.env)
    long, one = probes.arrive("long"), probes.arrive("one")
    clock.set(ahead_seconds)
    one.exit(0)
    # Once this has begun, whatever was due by then has been done.
    two = probes.arrive("two")
    assert long.is_alive
    long.exit(0)
    two.exit(0)
    done = run.finish()
    assert (done.code, done.counts) == (0, {"built": 3})


def test_a_clock_that_is_set_back_prolongs_nothing(
    counted: Counted, probes: Probes, begin: Begin, clock: SkewedClock
) -> None:
    """C65: a timeout and a deadline come to pass all the same."""
    timed = {"run": probes.argv("a"), "tier": "compensable", "timeout": "2s", "grace": "0s"}
    counted.plan({"a": timed, "b": {"run": probes.argv("b")}})
    run = begin("a", env=clock.env)
    probes.arrive("a")
    clock.set(-FAR)
    done = run.finish()
    assert (done.code, done.outcomes) == (1, {"a": "failed"})
    assert "timed out after 2s" in done.out
    clock.set(0)
    due = begin("b", "--deadline", "2s", env=clock.env)
    probes.arrive("b")
    clock.set(-FAR)
    done = due.finish()
    assert (done.code, done.outcomes) == (143, {"b": "cancelled"})


@pytest.mark.parametrize("ahead_seconds", [FAR, -FAR])
def test_what_a_killed_run_left_has_its_time_whatever_the_clock(
    counted: Counted, probes: Probes, begin: Begin, clock: SkewedClock, ahead_seconds: int
) -> None:
    """C97: it is awaited up to its own timeout, which is over for who goes by another clock."""
    effect = {"tier": "irreversible", "timeout": "1h", "grace": "0s"}
    one = {"run": probes.argv("one"), "cache": False}
    counted.plan({"pub": {"run": probes.argv("pub"), **effect}, "one": one})
    first = begin("-j2")
    pub = probes.arrive("pub")
    probes.arrive("one").exit(1)
    # What is told later than that it began is on record by then.
    first.told("node-settled", "one")
    first.kill()
    clock.set(ahead_seconds)
    second = begin("pub", env=clock.env)
    assert "still runs" in second.told("warned")["text"]
    assert pub.is_alive
    pub.exit(0)
    done = second.finish()
    assert (done.code, done.outcomes) == (4, {"pub": "ambiguous"})
    assert "it was asked to end" not in done.out
    assert sorted(probes.arrivals) == ["one", "pub"]


@pytest.mark.parametrize("ahead_seconds", [FAR, -FAR])
def test_a_clock_that_is_set_while_it_runs_tells_nothing_of_files(
    counted: Counted, probes: Probes, begin: Begin, clock: SkewedClock, ahead_seconds: int
) -> None:
    """C83: what is read meanwhile has not changed by it, and what is made is clean afterwards,
    by either clock; an edit is seen."""
    hold = shlex.join(probes.argv("hold"))
    counted.plan(
        {
            "mid": {"run": f"{hold}; cp in mid", "reads": ["in"], "writes": ["mid"]},
            "out": {"run": "cp mid out", "reads": ["mid"], "writes": ["out"]},
        }
    )
    counted.write("in", "1")
    run = begin(env=clock.env)
    probe = probes.arrive("hold")
    clock.set(ahead_seconds)
    probe.exit(0)
    done = run.finish()
    assert (done.code, done.counts) == (0, {"built": 2})
    assert "warned" not in done.out
    for seconds in (ahead_seconds, 0, -ahead_seconds):
        clock.set(seconds)
        assert counted.assay("run", "--json", env=clock.env).counts == {"clean": 2}
    counted.write("in", "2")
    run = begin(env=clock.env)
    probes.arrive("hold").exit(0)
    assert run.finish().counts == {"built": 2}
    assert counted.read("out") == "2"
