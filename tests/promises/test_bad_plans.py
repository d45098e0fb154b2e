"""Plan files as bad luck and bad habits make them, through the installed `assay`."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator

from probe import Probes
from running import Begin
from workspace import Finished, Workspace

from assay.plans.diagnostics import Diagnostic, PlanError
from assay.plans.load import LoadRequest, load_plan

ODD: tuple[object, ...] = (
    *(
        None,
        True,
        0,
        -1,
        10**30,
        1e308,
        "",
        " ",
        "\n",
        "x" * 50_000,
        "{{",
        "{{each}}",
        "{{matrix.}}",
    ),
    *("..", "/", "//", "a/../..", "~", "*", "**", "[", "[]", "[!]", "{a,b}", "!", "!*", "-", "--"),
    *(
        "\ufeff",
        "e\u0301",
        "\U0001f600",
        "\x7f",
        "\x1b[31m",
        "a\\b",
        "x/" * 2000,
        "**/" * 100 + "x",
    ),
    *([], [[]], [{}], {}, [None], [0], [""], ["a"] * 1000, {"": ""}, {"path": ""}, {"path": 1}),
    *({"from": ""}, {"from": "zz"}, {"from": "a", "path": "..."}, {"secret": ""}, {"A=B": "x"}),
    *({"attempts": 0}, {"attempts": 10**20}, {"exit_codes": [256]}, {"ttl": "-7d"}, {"py": []}),
    *({"a": [*range(9)], "b": [*range(9)]}, {"name": "sh", "version": []}, "9" * 400 + "s"),
)

NODE_KEYS = (
    *("run", "description", "tags", "kind", "workdir", "reads", "writes", "removes", "tools"),
    *("after", "when", "env", "pass_env", "tier", "boundary", "clean", "background", "priority"),
    *("timeout", "grace", "cancellable", "retry", "resources", "locks", "cache", "foreach"),
    *("nondeterministic", "result", "max_result_bytes", "matrix", "ignore", "shell", "nonsense"),
)

TOP_KEYS = (
    *("name", "default", "root", "shell", "ignore", "params", "env", "concurrency", "resources"),
    *("defaults", "include", "nodes", "outputs"),
)


def make_odd_plans(seed: int, count: int) -> Iterator[dict[str, object]]:
    """Plans that are right but for one to four values."""
    chance = random.Random(seed)
    for _ in range(count):
        nodes: dict[str, dict[str, object]] = {
            "a": {"run": "true"},
            "b": {"run": ["echo", "{{params.x}}"], "after": ["a"]},
        }
        plan: dict[str, object] = {"name": "p", "params": {"x": "1"}, "nodes": nodes}
        for _ in range(chance.randint(1, 4)):
            if chance.random() < 0.3:
                plan[chance.choice(TOP_KEYS)] = chance.choice(ODD)
            else:
                nodes[chance.choice("ab")][chance.choice(NODE_KEYS)] = chance.choice(ODD)
        yield plan


def complaints(workspace: Workspace, plan: object) -> tuple[Diagnostic, ...]:
    """What is wrong with the plan, without the cost of a process."""
    workspace.write("plan.json", json.dumps(plan))
    try:
        load_plan(LoadRequest("plan.json", cwd=str(workspace.root)))
    except PlanError as error:
        return error.diagnostics
    return ()


def test_values_of_the_wrong_kind_are_told_never_raised(workspace: Workspace) -> None:
    """C131: whatever stands where, a plan is refused with sentences, or is in order; then a
    run of it ends with the exit code of its nodes."""
    right = []
    for plan in make_odd_plans(1, 1000):
        found = complaints(workspace, plan)
        assert all(each.message and "\n" not in each.message for each in found)
        if not found:
            right.append(plan)
    assert right
    for plan in right[::5]:
        workspace.write("plan.json", json.dumps(plan))
        done = workspace.assay("run", "plan.json")
        assert done.code in (0, 1), f"{plan}\n{done.err}"
        assert "Traceback" not in done.err


def refuse(done: Finished, message: str) -> None:
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.startswith(f"error: {message}"), done.err


def test_a_plan_file_that_is_no_file(workspace: Workspace) -> None:
    """A pipe, a device, a folder and a loop of links as plan.toml: nobody waits for them."""
    place = workspace.path("plan.toml")
    os.mkfifo(place)
    refuse(workspace.assay("run"), "`plan.toml` is not a regular file")
    assert workspace.assay("runs").code == 2
    assert workspace.assay("doctor").code == 0
    place.unlink()
    for target, message in (
        ("/dev/zero", "`plan.toml` is not a regular file"),
        ("/dev/null", "`plan.toml` is not a regular file"),
        ("plan.toml", "`plan.toml` cannot be read: too many levels of symbolic links"),
        ("nowhere", "`plan.toml` does not exist"),
        (".", "`plan.toml` is a folder"),
    ):
        place.symlink_to(target)
        refuse(workspace.assay("run"), message)
        place.unlink()
    assert os.listdir(workspace.root) == []


def test_an_included_file_that_is_no_file(workspace: Workspace) -> None:
    """The including line is shown, and a pipe is not waited for."""
    workspace.write("plan.toml", '[include]\nx = "x.toml"\n[nodes.a]\nrun = "true"\n')
    place = workspace.path("x.toml")
    os.mkfifo(place)
    done = workspace.assay("run")
    refuse(done, '`include.x` is "x.toml", which is not a regular file')
    assert "plan.toml:2:5" in done.err


def test_a_plan_that_is_edited_and_removed_while_it_runs(
    workspace: Workspace, probes: Probes, begin: Begin
) -> None:
    """The plan value runs, not the file: a run in progress is not changed by anything that
    happens to its files, and the next run sees what is there then."""
    nodes = {
        "a": {"run": probes.argv("a")},
        "b": {"run": "echo one > out", "writes": ["out"], "after": ["a"]},
    }
    workspace.write("x.json", json.dumps({"nodes": nodes}))
    workspace.write("plan.toml", '[include]\nx = "x.json"\n')
    run = begin()
    a = probes.arrive("a")
    workspace.path("x.json").unlink()
    workspace.write("plan.toml", "this is [ no plan")
    a.exit()

    done = run.finish()
    assert done.code == 0, done.err
    assert done.outcomes == {"x:a": "built", "x:b": "built"}
    assert workspace.read("out") == "one\n"

    refuse(workspace.assay("run"), "`plan.toml` is not valid TOML")
    workspace.write("plan.toml", '[include]\nx = "x.json"\n')
    refuse(workspace.assay("run"), '`include.x` is "x.json", which does not exist')


def test_an_included_file_that_vanishes_is_noticed_at_once(workspace: Workspace) -> None:
    """Also where there would be nothing to do: the quick answer rests on every file."""
    workspace.write("plan.toml", '[include]\nx = "x.toml"\n')
    workspace.write("x.toml", '[nodes.a]\nrun = "echo > out"\nwrites = ["out"]\n')
    for _ in range(2):
        assert workspace.assay("run").code == 0
    workspace.path("x.toml").unlink()
    refuse(workspace.assay("run"), '`include.x` is "x.toml", which does not exist')


def test_names_with_escape_sequences_are_shown_as_text(workspace: Workspace) -> None:
    """C121: a hundred errors are told in one go, and nothing of them reaches the terminal raw."""
    bad = "".join(f'[nodes."\\u001b[3{i % 8}m{i}"]\nrun = 1\n' for i in range(100))
    workspace.write("plan.toml", bad)
    done = workspace.assay("run")
    assert done.code == 2
    assert done.err.count("error: ") >= 100
    assert "\x1b" not in done.err
