"""Workspaces whose nodes are held to what they declare, and hostile programs run in them.

Such a node writes nothing outside of its boundary, so it counts its executions in a folder of
/dev/shm, which is nobody's and goes with the test.

    def test_something(held, hostile):
        report = hostile(place, 'attempt("reads", lambda: open(PATH).read())')

`hostile` runs a Python program as the node `evil`; what `attempt` managed to do is in the report.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from counted import Counted
from workspace import Finished, Workspace

from assay.engine.landlock import find_support

_PRELUDE = """\
import ctypes, errno, os, signal, socket, stat, sys

ROOT, REPORT = sys.argv[1], sys.argv[2]
ASSAY = os.getppid()
said = []

def attempt(what, action):
    try:
        found = action()
    except (OSError, EOFError) as error:
        return
    said.append(f"{what}: {found!r}")

def read(path):
    with open(path, "rb") as file:
        return file.read(64)

def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("evil")

def call(name, *arguments):
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_int
    found = function(*arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), name)
    return found

"""

_POSTLUDE = """
with open(REPORT, "w") as file:
    file.write("".join(f"{line}\\n" for line in said))
"""


@dataclass(frozen=True)
class Place:
    """A way in which a node is held: in the workspace itself or in a private tree, of which it
    may write in one folder or all over."""

    boundary: str
    report: str
    """Its output."""

    def __str__(self) -> str:
        where = "everywhere" if "/" not in self.report else "out"
        return f"{self.boundary}-{where}"


UNHELD = Place("declared", "out/report")
"""Nothing is refused here: what shows that an attack is one."""
IN_PLACE = Place("enforced", "out/report")
PLACES = (IN_PLACE, Place("enforced", "report"), Place("isolated", "out/report"))
BOUNDARIES = ("enforced", "isolated")

needs_landlock = pytest.mark.skipif(
    not find_support().holds_files, reason="this kernel holds no boundaries"
)


class Hostile(Protocol):
    """`hostile(place, BODY, **KEYS)` runs the program as `evil`, with these keys of a node; what it
    managed to do, one a line. The run must succeed unless `fails`, then the report is empty."""

    def __call__(
        self, place: Place, body: str, *, fails: bool = False, **keys: object
    ) -> list[str]: ...

    @property
    def done(self) -> Finished:
        """How the last run ended."""
        ...


class _Hostile:
    def __init__(self, held: Counted, program: Path) -> None:
        self._held = held
        self._program = program
        self._done: Finished | None = None

    @property
    def done(self) -> Finished:
        assert self._done is not None
        return self._done

    def __call__(
        self, place: Place, body: str, *, fails: bool = False, **keys: object
    ) -> list[str]:
        self._program.write_text(_PRELUDE + body + _POSTLUDE)
        run = [sys.executable, "-S", "-E", str(self._program), str(self._held.root), place.report]
        also = keys.pop("also", {})
        assert isinstance(also, dict)
        node = {"run": run, "writes": [place.report], "boundary": place.boundary, "cache": False}
        self._held.plan({**also, "evil": {**node, **keys}})
        done = self._done = self._held.assay("run", "--json")
        assert "internal error" not in done.err, done.err
        said = "".join(
            Path(event["log"]).read_text()
            for event in done.events
            if event["event"] == "node-settled" and event.get("log")
        )
        assert "Traceback" not in said, said
        assert done.code == (1 if fails else 0), f"{done.out}\n{done.err}\n{said}"
        return [] if fails else self._held.read(place.report).splitlines()


@pytest.fixture
def held(workspace: Workspace) -> Iterator[Counted]:
    """An empty workspace whose nodes are counted where those that are held can write."""
    if not find_support().holds_files:
        pytest.skip("this kernel holds no boundaries")
    with tempfile.TemporaryDirectory(prefix="held-", dir="/dev/shm") as folder:
        yield Counted(workspace.root, Path(folder, "marks"))


@pytest.fixture
def hostile(held: Counted, tmp_path: Path) -> Hostile:
    """Runs hostile programs; the workspace is that of `held`."""
    return _Hostile(held, tmp_path / "evil.py")
