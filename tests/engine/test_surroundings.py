"""What of this machine a run is bound to, and what of it is another one now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from handmade import node
from store_rows import open_store

from assay.engine.environment import CallerEnvironment
from assay.engine.filesystem import digest_bytes
from assay.engine.measuring import Measurer
from assay.engine.store import Store
from assay.engine.surroundings import Surroundings, describe_surroundings, find_differences
from assay.engine.toolchain import Toolchain, platform_name
from assay.plans.model import (
    Argv,
    Kind,
    Node,
    NodeName,
    Plain,
    RelPath,
    Script,
    Secret,
    Tool,
    ValueRef,
)


class Machine:
    """A workspace, programs in a folder of PATH, and a caller's environment."""

    def __init__(self, root: Path, store: Store) -> None:
        self.root = root
        self.bin = root.parent / "bin"
        self.environ: dict[str, str] = {"PATH": str(self.bin), "HOME": "/h", "LANG": "C"}
        self.version = "1.0"
        self._store = store

    def install(self, name: str, content: str = "1", folder: Path | None = None) -> None:
        place = (folder or self.bin) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_text(content)
        place.chmod(0o755)

    def describe(self, *nodes: Node) -> Surroundings:
        """As a process that has just started sees it."""
        caller = CallerEnvironment(self.environ)
        measurer = Measurer(self._store.root, self._store.stats, time.time_ns)

        def run(command: tuple[str, ...], environ: Mapping[str, str]) -> str:
            program = Path(command[0])
            return f"{program.parent.name}/{program.name} {self.version}"

        toolchain = Toolchain(self._store.root, measurer, caller, run)
        return describe_surroundings(nodes, toolchain, caller)

    def differences(self, before: Surroundings, *nodes: Node) -> list[str]:
        """What is another one now for these nodes, as `WHAT: BEFORE -> NOW`."""
        found = find_differences(before, self.describe(*nodes), nodes)
        return [f"{what}: {was} -> {now}" for what, was, now in found]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    root = tmp_path / "w"
    root.mkdir()
    store = open_store(root)
    machine = Machine(root, store)
    for name in ("cc", "ld", "sh", "git"):
        machine.install(name)
    yield machine
    store.close()


def cc(**more: Any) -> Node:
    return node("cc", command=Argv(("cc", "-c")), **more)


ONE = digest_bytes(b"1")
TWO = digest_bytes(b"2")


def test_a_run_is_bound_to_platform_tools_and_keyed_variables(machine: Machine) -> None:
    """Those of its nodes together, and nothing that is in no key."""
    machine.environ.update(MODE="dev", LC_ALL="de", TZ="UTC", MORE="x")
    found = machine.describe(
        cc(pass_env=("MODE",)),
        node("s", command=Script("x", ("sh", "-c")), tools=(Tool("git"), Tool("gone"))),
        node("v", command=Argv(("ld",)), tools=(Tool("node", ("git", "--version")),)),
    )
    # How a tool that is known by its version is called is nobody's business but the reader's.
    assert [found.pop(what) for what in sorted(found) if what.startswith("tool node")] == [
        "version: bin/git 1.0"
    ]
    assert found == {
        "platform": platform_name(),
        "tool cc": ONE,
        "tool sh": ONE,
        "tool git": ONE,
        "tool gone": "missing",
        "tool ld": ONE,
        "env LANG": "C",
        "env LC_ALL": "de",
        "env TZ": "UTC",
        "env MODE": "dev",
    }


def test_without_nodes_only_the_platform_counts(machine: Machine) -> None:
    """Groups and templates execute nothing."""
    group = node("g", kind=Kind.GROUP, command=None)
    assert machine.describe() == machine.describe(group) == {"platform": platform_name()}


def test_tools_in_the_workspace_are_reads_like_any_other(machine: Machine) -> None:
    """They are pinned or produced, and no part of the machine."""
    machine.install("gen", folder=machine.root)
    tool = node("n", command=Argv(("./gen",)), tools=(Tool("./gen"),))
    assert "tool ./gen" not in machine.describe(tool)


def test_a_path_that_another_node_gives_tells_no_tools(machine: Machine) -> None:
    """Where they are found is not known before that node has run."""
    tool = cc(env=(("PATH", ValueRef(NodeName("other"))),))
    assert machine.describe(tool) == {"platform": platform_name()}


def test_what_a_node_sets_itself_is_not_the_machines(machine: Machine) -> None:
    """But another node, that does not, is bound to the caller's."""
    own = cc(env=(("LANG", Plain("de")), ("TZ", Secret("X"))))
    assert "env LANG" not in machine.describe(own)
    assert machine.describe(own, cc())["env LANG"] == "C"
    assert machine.describe(cc(), own)["env LANG"] == "C"


def test_a_search_path_of_a_nodes_own_is_looked_up_apart(machine: Machine) -> None:
    """Two programs of one name are two tools."""
    other = machine.root.parent / "other"
    machine.install("cc", "2", other)
    found = machine.describe(cc(), cc(env=(("PATH", Plain(str(other))),)))
    assert found["tool cc"] == ONE
    assert found[f"tool cc in {other}"] == TWO


def test_nothing_changed_is_nothing(machine: Machine) -> None:
    """Also when the programs were installed again and PATH is another one that leads to the
    same."""
    before = machine.describe(cc(), node("l", command=Argv(("ld",))))
    machine.install("cc")
    machine.bin.rename(machine.root.parent / "moved")
    machine.environ["PATH"] = f"/nonexistent:{machine.root.parent}/moved"
    machine.environ["HOME"] = "/other"
    assert machine.differences(before, cc(), node("l", command=Argv(("ld",)))) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("tool", [f"tool cc: {ONE} -> {TWO}"]),
        ("gone", [f"tool cc: {ONE} -> missing"]),
        ("variable", ["env LANG: C -> de"]),
        ("passed", ["env MODE: dev -> prod"]),
        ("unset", ["env LANG: C -> unset", "env MODE: dev -> unset"]),
        ("empty", ["env LANG: C -> "]),
        ("new", ["env LC_TIME: unset -> de", "env MODE_2: unset -> 1"]),
    ],
)
def test_what_changed_is_named(machine: Machine, change: str, expected: list[str]) -> None:
    """Sorted, with both values; a variable that was or is not set is one that changed."""
    machine.environ["MODE"] = "dev"
    nodes = [cc(pass_env=("MODE*",))]
    before = machine.describe(*nodes)
    match change:
        case "tool":
            machine.install("cc", "2")
        case "gone":
            (machine.bin / "cc").unlink()
        case "variable":
            machine.environ["LANG"] = "de"
        case "passed":
            machine.environ["MODE"] = "prod"
        case "unset":
            del machine.environ["LANG"], machine.environ["MODE"]
        case "empty":
            machine.environ["LANG"] = ""
        case _:
            machine.environ.update(LC_TIME="de", MODE_2="1")
    assert machine.differences(before, *nodes) == expected


def test_another_platform_is_a_change(machine: Machine) -> None:
    """A store on a shared disk may be gone on with elsewhere."""
    before = {**machine.describe(cc()), "platform": "plan9-vax"}
    assert machine.differences(before, cc()) == [f"platform: plan9-vax -> {platform_name()}"]


def test_a_tool_that_prints_another_version_is_a_change(machine: Machine) -> None:
    """And one whose bytes differ but which prints the same is none."""
    tool = cc(tools=(Tool("git", ("git", "--version")),))
    before = machine.describe(tool)
    machine.install("git", "2")
    assert machine.differences(before, tool) == []
    machine.version = "2.0"
    (changed,) = machine.differences(before, tool)
    assert changed.startswith("tool git")
    assert changed.endswith(": version: bin/git 1.0 -> version: bin/git 2.0")


def test_what_settled_nodes_were_bound_to_plays_no_part(machine: Machine) -> None:
    """Only the nodes that are still to come are asked about."""
    done = node("done", command=Argv(("ld",)), pass_env=("DONE",))
    machine.environ.update(DONE="1", LANG="C")
    before = machine.describe(done, cc())
    machine.install("ld", "2")
    machine.environ["DONE"] = "2"
    assert machine.differences(before, cc()) == []
    assert machine.differences(before, cc(env=(("LANG", Plain("x")),))) == []


@pytest.mark.parametrize("asked", [0, 1])
def test_a_tool_by_content_and_one_by_version_are_told_apart(machine: Machine, asked: int) -> None:
    """Two nodes may key the same program in both ways: neither is a change of the other."""
    nodes = [
        node("content", command=Argv(("git",))),
        cc(tools=(Tool("git", ("git", "--version")),)),
    ]
    before = machine.describe(*nodes)
    assert machine.differences(before, *nodes) == []
    assert machine.differences(before, nodes[asked]) == []


@pytest.mark.parametrize("asked", [0, 1])
def test_tools_of_one_name_in_two_folders_are_told_apart(machine: Machine, asked: int) -> None:
    """A program with a slash is relative to the node's own folder."""
    tools = (Tool("ver", ("./ver", "--version")),)
    for folder in ("a", "b"):
        machine.install("ver", folder=machine.root / folder)
    nodes = [cc(tools=tools, workdir=RelPath(folder)) for folder in ("a", "b")]
    before = machine.describe(*nodes)
    assert machine.differences(before, *nodes) == []
    assert machine.differences(before, nodes[asked]) == []
    machine.version = "2.0"
    assert machine.differences(before, nodes[asked]) != []


def test_what_nobody_looked_at_then_cannot_have_changed(machine: Machine) -> None:
    """As in the records of older assays, or for nodes that came later; but a variable that was
    not recorded was unset."""
    assert machine.differences({}, cc()) == ["env LANG: unset -> C"]
    assert machine.differences({"platform": platform_name(), "env LANG": "C"}, cc()) == []


def several() -> Iterable[Node]:
    return (cc(), node("l", command=Argv(("ld",))), node("s", command=Script("x", ("sh", "-c"))))


def test_a_tool_that_cannot_be_read_is_told_of_as_it_is(machine: Machine) -> None:
    """It is no reason to fail here: the node itself will say so."""
    (machine.bin / "cc").unlink()
    (machine.bin / "cc").mkdir()
    before = machine.describe(*several())
    assert machine.differences(before, *several()) == []
    (machine.bin / "cc").rmdir()
    machine.install("cc")
    [changed] = machine.differences(before, *several())
    assert changed.endswith(f" -> {ONE}")
