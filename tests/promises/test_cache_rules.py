"""What may serve, for how long and for whom: `cache`, `nondeterministic`, `--fresh`,
`--strict`, handlers."""

from __future__ import annotations

import shlex

import pytest
from counted import Counted, warnings
from probe import Probes
from workspace import finish


def test_result_expires(counted: Counted) -> None:
    """A result is not served beyond its `ttl`; changing the `ttl` alone costs nothing."""
    node = {"run": "cat src > o", "reads": ["src"], "writes": ["o"]}
    counted.write("src", "1")
    counted.plan({"a": {**node, "cache": {"ttl": "1ms"}}})
    assert counted.ran() == ["a"]
    assert counted.ran() == ["a"]
    assert "expired" in counted.run().out
    counted.plan({"a": {**node, "cache": {"ttl": "1h"}}})
    assert counted.ran() == ["a"]
    counted.rests()


def test_expired_node_that_makes_the_same_leaves_its_readers_alone(counted: Counted) -> None:
    """Expiry is no change of content."""
    counted.plan(
        {
            "a": {"run": "echo 1 > o", "writes": ["o"], "cache": {"ttl": "1ms"}},
            "b": {"run": "cat o > p", "reads": ["o"], "writes": ["p"]},
        }
    )
    assert counted.ran() == ["a", "b"]
    assert counted.ran() == ["a"]
    assert counted.ran() == ["a"]


def test_scope_narrows_who_may_use_a_result(counted: Counted) -> None:
    """A result of scope `run` serves its run only, one of scope `plan` its plan's name."""
    nodes = {
        scope: {"run": f"echo > {scope}", "writes": [scope], "cache": {"scope": scope}}
        for scope in ("shared", "plan", "run")
    }
    for name in ("one", "two"):
        counted.plan(nodes, f'name = "{name}"', file=f"{name}.toml")
    assert counted.ran("one.toml") == ["plan", "run", "shared"]
    assert counted.ran("one.toml") == ["run"]
    assert counted.ran("two.toml") == ["plan", "run"]
    assert counted.ran("two.toml") == ["run"]
    assert counted.ran("one.toml") == ["run"]


def counter(**more: object) -> dict[str, object]:
    """A node whose every execution has another result, from a file nobody declares."""
    run = "n=$(cat ../n || echo 0); echo $((n + 1)) > ../n; cat ../n > o"
    return {"run": run, "writes": ["o"], **more}


def test_fresh_executes_and_replaces(counted: Counted) -> None:
    """`--fresh` executes everything selected; another result under the same key stands from
    then on, with one warning that names what differs."""
    counted.plan({"a": counter(), "b": {"run": "cat o > p", "reads": ["o"], "writes": ["p"]}})
    assert counted.ran() == ["a", "b"]
    executed, done = counted.tried("--fresh")
    assert (executed, done.code) == (["a", "b"], 0)
    assert warnings(done).count("`o` differs") == 1
    assert counted.read("p") == "2\n"
    counted.rests()
    counted.remove("o")
    assert counted.ran() == []
    assert counted.read("o") == "2\n"
    # Going back and forth over what was recorded is no edit by hand.
    assert counted.trash() == {}


def test_strict_fails_a_node_that_gave_two_results(counted: Counted) -> None:
    """`--strict` fails the run over two results under one key; the recorded one stays."""
    counted.plan({"a": counter()})
    counted.ran()
    executed, done = counted.tried("--strict", "--fresh")
    assert (executed, done.code) == (["a"], 1)
    assert "`o` differs" in done.out
    assert counted.ran() == []
    assert counted.read("o") == "1\n"
    counted.rests()


def test_strict_run_without_differences_succeeds(counted: Counted) -> None:
    """`--strict` alone changes nothing for what is reproducible."""
    counted.plan({"a": {"run": "echo 1 > o", "writes": ["o"]}})
    assert counted.ran("--strict") == ["a"]
    assert counted.ran("--strict", "--fresh") == ["a"]
    assert counted.ran("--strict") == []


def test_first_result_of_a_nondeterministic_node_stands(counted: Counted) -> None:
    """Where many results are right the first recorded one is the result, also after
    `--fresh`, and who reads it is not disturbed."""
    counted.plan(
        {
            "a": counter(nondeterministic=True),
            "b": {"run": "cat o > p", "reads": ["o"], "writes": ["p"]},
        }
    )
    assert counted.ran() == ["a", "b"]
    executed, done = counted.tried("--fresh")
    assert (executed, done.code, warnings(done)) == (["a", "b"], 0, "")
    assert counted.read("o") == counted.read("p") == "1\n"
    assert counted.ran("--strict", "--fresh") == ["a", "b"]
    counted.rests()
    assert counted.trash() == {}


def test_failure_is_not_cached(counted: Counted) -> None:
    """A failed node executes again in the next run; so does who waited for it."""
    counted.plan(
        {
            "a": {"run": "test -e ../go; echo 1 > o", "writes": ["o"]},
            "b": {"run": "cat o > p", "reads": ["o"], "writes": ["p"]},
        }
    )
    for _ in range(2):
        executed, done = counted.tried()
        assert (executed, done.code) == (["a"], 1)
    counted.path("../go").write_text("")
    assert counted.ran() == ["a", "b"]
    counted.rests()


def test_finished_work_beside_a_failure_is_kept(counted: Counted, probes: Probes) -> None:
    """C42: what succeeded while something else failed is recorded, also under `--fail-fast`."""
    slow = f"{shlex.join(probes.argv('slow'))}; echo 1 > o"
    bad = f"{shlex.join(probes.argv('bad'))}; false"
    counted.plan({"bad": {"run": bad}, "slow": {"run": slow, "writes": ["o"]}})
    run = counted.start("run", "--json", "--fail-fast", "-j2")
    working = probes.arrive("slow")
    probes.arrive("bad").exit()
    working.exit()
    assert finish(run).code == 1
    counted.plan({"slow": {"run": slow, "writes": ["o"]}})
    assert counted.ran() == []
    assert counted.read("o") == "1\n"


@pytest.mark.parametrize("fails", [False, True])
def test_handlers_and_the_cache(counted: Counted, fails: bool) -> None:
    """An `always` handler executes in every run, a `failure` handler when there is one, and
    what succeeded rests in both cases."""
    work = "cat src > o" + ("; false" if fails else "")
    counted.plan(
        {
            "work": {"run": work, "reads": ["src"], "writes": ["o"]},
            "mend": {
                "run": "cat src > m",
                "reads": ["src"],
                "writes": ["m"],
                "after": ["work"],
                "when": "failure",
            },
            "tidy": {
                "run": "cat src > t",
                "reads": ["src"],
                "writes": ["t"],
                "after": ["work"],
                "when": "always",
            },
            "after": {"run": "cat t > u", "reads": ["t"], "writes": ["u"]},
        }
    )
    counted.write("src", "1")
    first, done = counted.tried()
    again, _ = counted.tried()
    if fails:
        assert done.code == 1
        assert first == ["after", "mend", "tidy", "work"]
        # The handler's own result serves: nothing it reads has changed.
        assert again == ["tidy", "work"]
        assert counted.read("m") == "1"
    else:
        assert done.code == 0
        assert first == ["after", "tidy", "work"]
        assert again == ["tidy"]
        assert not counted.path("m").exists()


def test_handler_reads_what_its_failed_producer_left_as_absent(counted: Counted) -> None:
    """A handler's reads of a producer that failed count as absent, whatever stands there, and
    its result then does not serve when they are there."""
    counted.plan(
        {
            "work": {"run": "cat src > o; test -s src", "reads": ["src"], "writes": ["o"]},
            "tell": {
                "run": "cat o > t || echo none > t",
                "reads": ["o"],
                "writes": ["t"],
                "when": "always",
            },
        }
    )
    for text, told in (("", None), ("1", "1"), ("", None), ("1", "1")):
        counted.write("src", text)
        _, done = counted.tried()
        assert done.code == (0 if text else 1)
        if told:
            assert counted.read("t") == told


def test_two_plans_that_write_the_same_path(counted: Counted) -> None:
    """Two plans of one workspace that make one path take turns from the cache; neither takes
    the other's output for a hand edit or for its own."""
    for name in ("one", "two"):
        counted.plan(
            {
                "a": {"run": f"echo {name} > o", "writes": ["o"]},
                "b": {"run": f"cat o > {name}.out", "reads": ["o"], "writes": [f"{name}.out"]},
            },
            file=f"{name}.toml",
        )
    assert counted.ran("one.toml") == ["a", "b"]
    counted.rests("one.toml")
    assert counted.ran("two.toml") == ["a", "b"]
    counted.rests("two.toml")
    for name in ("one", "two", "one"):
        assert counted.ran(f"{name}.toml") == []
        assert counted.read("o") == f"{name}\n"
        assert counted.read(f"{name}.out") == f"{name}\n"
        counted.rests(f"{name}.toml")
    assert counted.trash() == {}


def test_one_plan_writes_what_another_reads_as_its_source(counted: Counted) -> None:
    """What another plan generates is a source like any other."""
    counted.plan(
        {"g": {"run": "cat src > gen", "reads": ["src"], "writes": ["gen"]}}, file="g.toml"
    )
    counted.plan({"u": {"run": "cat gen > o", "reads": ["gen"], "writes": ["o"]}}, file="u.toml")
    for text, executed in (("1", True), ("2", True), ("1", False)):
        counted.write("src", text)
        assert counted.ran("g.toml") == ["g"] * executed
        assert counted.ran("u.toml") == ["u"] * executed
        assert counted.read("o") == text
    counted.write("gen", "by hand")
    assert counted.ran("u.toml") == ["u"]
    assert counted.read("o") == "by hand"
