"""What runs when: caps, named resources, locks, priorities, and demands nobody can meet."""

from __future__ import annotations

from pathlib import Path

import pytest
from counted import Counted
from probe import Probe, Probes
from running import Begin


@pytest.mark.parametrize(
    ("keys", "head", "words", "told"),
    [
        ("resources = { gpu = 2 }", "[resources]\ngpu = 1", [], ["`a`", "`gpu`", "2", "1"]),
        ("resources = { gpuu = 1 }", "[resources]\ngpu = 1", [], ["gpuu", "gpu"]),
        ("resources = { gpu = 0 }", "[resources]\ngpu = 1", [], ["gpu"]),
        ("resources = { gpu = -1 }", "[resources]\ngpu = 1", [], ["gpu"]),
        ("resources = { gpu = 1.5 }", "[resources]\ngpu = 2", [], ["gpu"]),
        ("resources = { gpu = true }", "[resources]\ngpu = 2", [], ["gpu"]),
        ("", "[resources]\ngpu = 0", [], ["gpu"]),
        ("", "[concurrency]\nsteps = 0", [], ["steps"]),
        ("", "", ["-j", "0"], ["--jobs"]),
        ("", "", ["--agents", "-1"], ["--agents"]),
    ],
)
def test_demands_that_can_never_be_met_are_refused(
    counted: Counted, keys: str, head: str, words: list[str], told: list[str]
) -> None:
    """C111: a demand beyond the supply, for something unknown, or not a positive whole number
    is an error before anything is executed or created."""
    counted.write("plan.toml", f'{head}\n[nodes.a]\nrun = "true"\n{keys}\n')
    done = counted.assay("run", *words)
    assert done.code == 2
    assert [word for word in told if word not in done.err] == []
    assert not counted.path(".assay").exists()


def test_crosswise_demands_do_not_lock_up(counted: Counted) -> None:
    """C111: two kinds of resource are taken all or none, so nodes that want both, whichever
    they name first, never wait for each other."""
    nodes: dict[str, dict[str, object]] = {}
    for i in range(10):
        wants = ("p", "q") if i % 2 else ("q", "p")
        nodes[f"n{i}"] = {"run": "true", "resources": dict.fromkeys(wants, 1)}
    counted.plan(nodes, "[resources]\np = 1\nq = 1")
    assert len(counted.ran("-j8")) == 10


def test_resource_accounts_return_to_their_start(counted: Counted, tmp_path: Path) -> None:
    """C112: whatever nodes do, succeed, fail, time out, are tried again or served, no more
    than there is is ever taken, all of it is used, and in the end all of it is free."""
    use = tmp_path / "use"
    use.mkdir()

    def book(units: int, then: str) -> str:
        change = f"echo $(($(cat {use}/now)$1)) > {use}/now; cat {use}/now >> {use}/seen"
        return (
            f"book() {{ (flock 9; {change}) 9> {use}/lock; }}\n"
            f"book +{units}; trap 'book -{units}' EXIT; trap 'exit 1' TERM\n{then}"
        )

    (use / "now").write_text("0\n")
    retry = {"attempts": 2, "backoff": "1ms"}
    nodes: dict[str, dict[str, object]] = {
        "whole": {"run": book(3, "true"), "resources": {"r": 3}, "priority": 100},
    }
    for i in range(40):
        units = 1 + i % 3
        fate = ("true", "exit 1", "true", "sleep 600 & wait", "true", "true", "true")[i % 7]
        nodes[f"n{i}"] = {"run": book(units, fate), "resources": {"r": units}}
        if fate == "exit 1":
            nodes[f"n{i}"]["retry"] = retry
        if "sleep" in fate:
            nodes[f"n{i}"]["timeout"] = "50ms"
    names = list(nodes)
    nodes["last"] = {"run": book(3, "true"), "resources": {"r": 3}, "after": names,
                     "when": "always"}  # fmt: skip
    counted.plan(nodes, "[resources]\nr = 3")
    for words in ([], ["--fresh"]):
        _, done = counted.tried("-j8", *words)
        assert done.code == 1
        assert done.outcomes["last"] == "built"
        assert len(done.named("failed")) == 12
        assert (use / "now").read_text() == "0\n"
    assert max(map(int, (use / "seen").read_text().split())) == 3


def test_large_request_is_not_starved(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C114: what a node of higher priority lacks is kept for it: it starts once those have
    ended that ran when it became ready, before any other that wants the same."""
    nodes: dict[str, dict[str, object]] = {
        f"small{i}": {"run": probes.argv(f"small{i}"), "resources": {"r": 1}} for i in range(6)
    }
    nodes["gate"] = {"run": probes.argv("gate")}
    nodes["big"] = {
        "run": probes.argv("big"), "resources": {"r": 2}, "priority": 10, "after": ["gate"]
    }  # fmt: skip
    counted.plan(nodes, "[resources]\nr = 2")
    run = begin("-j4")
    small = [probes.arrive("small0"), probes.arrive("small1")]
    probes.arrive("gate").exit(0)
    run.told("node-settled", "gate")
    small[0].exit(0)
    run.told("node-settled", "small0")
    small[1].exit(0)
    probes.arrive("big").exit(0)
    assert set(probes.arrivals) == {"small0", "small1", "gate", "big"}
    for i in range(2, 6):
        probes.arrive(f"small{i}").exit(0)
    assert run.finish().code == 0


def test_blocked_front_holds_nobody_else_up(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C115: however many nodes of higher priority wait for one resource, those that want
    another start."""
    nodes: dict[str, dict[str, object]] = {
        f"p{i}": {"run": ["true"], "resources": {"p": 1}, "priority": 2} for i in range(300)
    }
    nodes["p0"]["run"] = probes.argv("p0")
    nodes |= {f"q{i}": {"run": probes.argv(f"q{i}"), "resources": {"q": 1}} for i in range(5)}
    counted.plan(nodes, "[resources]\np = 1\nq = 5")
    run = begin("-j8")
    first = probes.arrive("p0")
    for i in range(5):
        probes.arrive(f"q{i}").exit(0)
    first.exit(0)
    done = run.finish()
    assert (done.code, done.counts) == (0, {"built": 305})


def test_priority_then_plan_order(counted: Counted) -> None:
    """With one slot nodes run by priority, then as they stand in the plan."""
    order = [("a", 0), ("b", 5), ("c", -1), ("d", 5), ("e", 0)]
    counted.plan({name: {"run": "true", "priority": number} for name, number in order})
    counted.ran("-j1")
    assert counted.executions == ["b", "d", "a", "e", "c"]


def _watch(probes: Probes, names: list[str], most: int) -> None:
    """Ends one probe after the other; fails when more than `most` live at once, or fewer
    although others wait."""
    living: list[Probe] = []
    for name in names:
        living.append(probes.arrive(name))
        assert len(probes.living) <= most, probes.living
        if len(living) == most:
            living.pop(0).exit(0)
    for each in living:
        each.exit(0)


@pytest.mark.parametrize(
    ("head", "keys", "words", "most"),
    [
        ("", {}, ["-j2"], 2),
        ("[concurrency]\nsteps = 2", {}, [], 2),
        ("[concurrency]\nsteps = 1", {}, ["-j3"], 3),
        ("[concurrency]\nagents = 2", {"kind": "agent"}, ["-j5"], 2),
        ("[concurrency]\nagents = 1", {"kind": "agent"}, ["-j5", "--agents", "3"], 3),
        ("[resources]\nr = 5", {"resources": {"r": 2}}, ["-j5"], 2),
        ("", {"locks": ["l"]}, ["-j5"], 1),
    ],
)
def test_caps_are_reached_and_kept(
    counted: Counted,
    probes: Probes,
    begin: Begin,
    head: str,
    keys: dict[str, object],
    words: list[str],
    most: int,
) -> None:
    """As many nodes run at once as cap, resource or lock allows, and no more."""
    names = [f"n{i}" for i in range(6)]
    counted.plan({name: {"run": probes.argv(name), **keys} for name in names}, head)
    run = begin(*words)
    _watch(probes, names, most)
    assert run.finish().code == 0


def test_agents_leave_slots_for_steps(counted: Counted, probes: Probes, begin: Begin) -> None:
    """Agents that wait for their own cap do not hold up other nodes."""
    nodes = {f"agent{i}": {"run": probes.argv(f"agent{i}"), "kind": "agent"} for i in range(3)}
    counted.plan({**nodes, "step": {"run": probes.argv("step")}})
    run = begin("-j4", "--agents", "1")
    first = probes.arrive("agent0")
    probes.arrive("step").exit(0)
    run.told("node-settled", "step")
    assert set(probes.arrivals) == {"agent0", "step"}
    first.exit(0)
    for name in ("agent1", "agent2"):
        probes.arrive(name).exit(0)
    assert run.finish().code == 0


def test_resource_of_the_machine(
    counted: Counted, probes: Probes, begin: Begin, tmp_path: Path
) -> None:
    """A resource of scope `host` is shared with runs of other workspaces; who waits for it
    holds up nobody, and the death of a holder frees it."""
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    head = '[resources]\nlicence = { amount = 1, scope = "host" }'
    other = Counted(tmp_path / "other", counted.marks)
    other.root.mkdir()
    for place, name in ((counted, "a"), (other, "b")):
        place.plan(
            {
                name: {"run": probes.argv(name), "resources": {"licence": 1}},
                f"free-{name}": {"run": probes.argv(f"free-{name}"), "priority": -1},
            },
            head,
        )
    first = begin(env=env)
    probes.arrive("free-a").exit(0)
    a = probes.arrive("a")
    second = begin(root=other.root, env=env)
    probes.arrive("free-b").exit(0)
    second.told("node-settled", "free-b")
    assert "b" not in probes.arrivals
    first.kill()
    probes.arrive("b").exit(0)
    assert second.finish().code == 0
    assert a.is_alive, "what the killed assay ran is not this one's to end"
