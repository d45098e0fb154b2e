"""Outputs of this run that are gone when somebody's turn comes to read them: they are put back,
or made again by whoever made them, and nothing else happens twice."""

from __future__ import annotations

import signal

import pytest
from counted import Counted, Declarations
from probe import Probes
from running import Begin


def uncached(script: str, **keys: object) -> dict[str, object]:
    """A node whose outputs the store cannot give back."""
    return {"run": script, "cache": False, **keys}


CHAIN: Declarations = {
    "a": uncached("echo a > x", writes=["x"]),
    "b": uncached("cat x > y; echo b >> y", reads=["x"], writes=["y"]),
}


def test_what_cannot_be_put_back_is_made_again_from_the_bottom(counted: Counted) -> None:
    """Where a producer's own inputs are gone as well, whoever made those runs first."""
    counted.plan(
        {
            **CHAIN,
            "thief": {"run": "rm -f x y", "after": ["b"]},
            "c": {"run": "cat y > z", "reads": ["y"], "writes": ["z"], "after": ["thief"]},
        }
    )
    assert counted.ran() == ["a", "a", "b", "b", "c", "thief"]
    assert counted.read("z") == "a\nb\n"


def test_readers_of_one_repair_share_it(counted: Counted) -> None:
    """Two nodes that read what is gone have it made once more, not twice."""
    reader = {"run": "cat y > $ASSAY_NODE", "reads": ["y"], "after": ["thief"]}
    counted.plan(
        {
            **CHAIN,
            "thief": {"run": "rm -f y", "after": ["b"]},
            "c": {**reader, "writes": ["c"]},
            "d": {**reader, "writes": ["d"]},
        }
    )
    assert counted.ran() == ["a", "b", "b", "c", "d", "thief"]


def test_instances_make_again_what_their_template_gave(counted: Counted) -> None:
    """What a reader of a template misses is made again by the instance that made it."""
    counted.plan(
        {
            "gen": {
                "run": "mkdir -p in; echo 1 > in/a; echo 2 > in/b",
                "writes": ["in/"],
            },
            "cc": uncached(
                "sed s/^/x/ {{each}} > out/{{each.stem}}",
                foreach="in/*",
                reads=["{{each}}"],
                writes=["out/{{each.stem}}"],
            ),
            "thief": {"run": "rm -f out/a", "after": ["cc"]},
            "link": {
                "run": "cat out/* > app",
                "reads": ["out/*"],
                "writes": ["app"],
                "after": ["thief"],
            },
        }
    )
    assert counted.ran() == ["cc[in/a]", "cc[in/a]", "cc[in/b]", "gen", "link", "thief"]
    assert counted.read("app") == "x1\nx2\n"


@pytest.mark.parametrize("reads", ["out/x", "out/*"])
def test_what_is_made_again_otherwise_is_read_as_it_is_now(counted: Counted, reads: str) -> None:
    """A producer that gives other bytes the second time is read with those, however its
    reader names them."""
    counted.plan(
        {
            "a": uncached("wc -l < count > out/x; echo >> count", writes=["out/x"]),
            "thief": {"run": "rm -f out/x", "after": ["a"]},
            "c": {
                "run": "cat out/x > z",
                "reads": [reads],
                "writes": ["z"],
                "after": ["thief"],
            },
        }
    )
    counted.write("count", "")
    assert counted.ran() == ["a", "a", "c", "thief"]
    assert counted.read("z") == "1\n"


def test_a_producer_that_fails_the_second_time_fails_its_readers(counted: Counted) -> None:
    """Readers, and readers of what they would have made again, fail and say whose outputs are
    missing."""
    counted.plan(
        {
            "a": uncached("test ! -e ran && touch ran && echo a > x", writes=["x"]),
            "b": CHAIN["b"],
            "thief": {"run": "rm -f x y", "after": ["b"]},
            "c": {"run": "cat y > z", "reads": ["y"], "writes": ["z"], "after": ["thief"]},
        }
    )
    executed, done = counted.tried()
    assert (executed, done.code) == (["a", "a", "b", "thief"], 1)
    assert done.named("failed") == {"c"}
    (settled,) = (e for e in done.events if e.get("node") == "c" and e["event"] == "node-settled")
    assert settled["detail"].startswith("what `b` wrote is gone and cannot be made again")


def test_strict_fails_the_readers_of_what_is_made_again_otherwise(counted: Counted) -> None:
    """With --strict, a producer that gives other bytes the second time fails who waits for it."""
    counted.plan(
        {
            "a": {"run": "wc -l < count > x; echo >> count", "writes": ["x"]},
            "thief": {"run": "rm -rf x .assay/cas", "after": ["a"]},
            "c": {"run": "cat x > z", "reads": ["x"], "writes": ["z"], "after": ["thief"]},
        }
    )
    counted.write("count", "")
    executed, done = counted.tried("--strict")
    assert (executed, done.code) == (["a", "a", "thief"], 1)
    assert done.named("failed") == {"c"}
    assert "gave another result" in done.out


@pytest.mark.parametrize("ends_it", ["a cancel", "a failure"])
def test_a_run_that_stops_begins_no_repair(
    counted: Counted, probes: Probes, begin: Begin, ends_it: str
) -> None:
    """A producer that would run again for readers that have ended does not."""
    counted.plan(
        {
            **CHAIN,
            "thief": {"run": "rm -f y", "after": ["b"]},
            "c": {"run": "cat y > z", "reads": ["y"], "writes": ["z"], "after": ["thief"]},
            # Holds what `b` needs to run again.
            "gate": {"run": probes.argv("gate"), "locks": ["one"], "after": ["thief"]},
        }
        | {"b": {**CHAIN["b"], "locks": ["one"], "priority": -1}}
    )
    run = begin("--fail-fast")
    gate = probes.arrive("gate")
    run.told("node-settled", "thief")
    if ends_it == "a cancel":
        run.send(signal.SIGINT)
    else:
        gate.exit(1)
    done = run.finish()
    assert done.outcomes["c"] == ("cancelled" if ends_it == "a cancel" else "skipped")
    assert counted.executions == ["a", "b", "thief"]


def test_a_machine_wide_resource_is_awaited_by_a_producer_too(
    counted: Counted, probes: Probes, begin: Begin, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A producer that runs again waits for a resource another run of this user holds."""
    runtime = tmp_path_factory.mktemp("runtime")
    env = {"XDG_RUNTIME_DIR": str(runtime)}
    head = "[resources]\nthing = { amount = 1, scope = 'host' }"
    holder = {"run": probes.argv("holder"), "resources": {"thing": 1}}
    counted.plan({"hold": holder}, head, file="holder.toml")
    counted.plan(
        {
            "a": uncached("echo a > x", writes=["x"], resources={"thing": 1}),
            "thief": {"run": probes.argv("thief"), "after": ["a"]},
            "c": {"run": "cat x > z", "reads": ["x"], "writes": ["z"], "after": ["thief"]},
        },
        head,
    )
    run = begin(env=env)
    thief = probes.arrive("thief")
    other = begin("holder.toml", env=env)
    holding = probes.arrive("holder")
    counted.remove("x")
    thief.exit()
    run.told("node-settled", "thief")
    holding.exit()
    assert other.finish().code == 0
    done = run.finish()
    assert done.code == 0, done.err
    assert counted.executions == ["a", "a", "c"]
