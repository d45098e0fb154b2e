"""Which executables a node uses, and what of them is in its key."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from assay.engine.database import open_in_memory
from assay.engine.environment import CallerEnvironment
from assay.engine.measuring import Measurer
from assay.engine.stat_cache import StatCache
from assay.engine.toolchain import MISSING, Toolchain
from assay.plans.model import Argv, Node, NodeName, Origin, RelPath, Tool, ValueRef

VER = dataclasses.replace(
    Node(NodeName("n"), Origin("p"), command=Argv(("/bin/true",))),
    tools=(Tool("ver", ("./ver", "-v")),),
)


class Bench:
    """`asked` are the version commands that ran."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[tuple[str, ...]] = []
        measurer = Measurer(str(root), StatCache(open_in_memory(), time.time), time.time_ns)
        self.toolchain = Toolchain(
            str(root), measurer, CallerEnvironment({"PATH": "/nowhere"}), self._answer
        )

    def program(self, name: str) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n# {name}\n")
        path.chmod(0o755)

    def _answer(self, command: tuple[str, ...], environ: Mapping[str, str]) -> str:
        self.asked.append(command)
        return command[0]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_each_folder_asks_the_program_it_has(bench: Bench) -> None:
    """A relative version command is asked of the program in the node's own folder, and of each
    program once."""
    bench.program("a/ver")
    bench.program("b/ver")
    answers = [
        bench.toolchain.identify(dataclasses.replace(VER, workdir=RelPath(folder)), {}).keyed["ver"]
        for folder in ("a", "b", "a", "c")
    ]
    a, b = str(bench.root / "a/ver"), str(bench.root / "b/ver")
    assert answers == [f"version: {a}", f"version: {b}", f"version: {a}", MISSING]
    assert bench.asked == [(a, "-v"), (b, "-v")]


@pytest.mark.parametrize(("value", "reads"), [("bin:/bin", ("bin/t",)), (None, ())])
def test_a_path_that_another_node_gives_counts(
    bench: Bench, value: str | None, reads: tuple[str, ...]
) -> None:
    """A command is looked up where it will be: in the PATH its environment takes from a value;
    `null` unsets it."""
    bench.program("bin/t")
    node = dataclasses.replace(
        VER, command=Argv(("t",)), tools=(), env=(("PATH", ValueRef(NodeName("giver"), ())),)
    )
    assert bench.toolchain.identify(node, {"PATH": value}).reads == reads
