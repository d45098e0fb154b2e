"""A workspace folder with the engine's file modules at work in it, for the tests of these.

The real store, the real stat cache and real files; only the clock of the stat cache can
be moved on, so that what was just written counts as settled.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from assay.engine.blobs import Blobs
from assay.engine.materialize import Restored, restore
from assay.engine.measuring import Measurer
from assay.engine.outputs import capture_outputs
from assay.engine.states import State
from assay.engine.store import Store
from assay.plans.entries import literal_entry, parse_entry
from assay.plans.model import Entry, Node, NodeName, Origin, RelPath

Outputs = tuple[tuple[RelPath, State], ...]


class Ground:
    """`root` is the workspace; paths given are relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store.open_for_run(str(root), now=time.time)
        self.clock_offset_ns = 0
        self.measurer = Measurer(
            str(root), self.store.stats, lambda: time.time_ns() + self.clock_offset_ns
        )
        self.blobs = Blobs(self.store.cas, self.store.tmp)
        self.known: set[tuple[RelPath, State]] = set()
        """What `knows` goes by: everything captured so far."""
        self._restores = 0

    def settle(self) -> None:
        """Moves the stat cache's clock on: stamps made so far are no longer too young."""
        self.clock_offset_ns += 60_000_000_000

    def write(self, path: str, content: str | bytes, mode: int | None = None) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
        if mode is not None:
            place.chmod(mode)
        return place

    def link(self, path: str, target: str) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
        return place

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def state(self, path: str) -> State:
        return self.measurer.state_of(RelPath(path))

    def capture(self, node: Node) -> Outputs:
        outputs = capture_outputs(node, str(self.root), self.measurer, self.blobs).outputs
        self.known.update(outputs)
        return outputs

    def restore(
        self, outputs: Outputs, writes: Sequence[Entry], keep: Collection[RelPath] = ()
    ) -> Restored:
        self._restores += 1
        return restore(
            str(self.root),
            outputs,
            writes,
            measurer=self.measurer,
            source=self.blobs,
            staging=f"{self.store.tmp}/test-{self._restores}.stage",
            trash=f"{self.store.trash}/test-{self._restores}",
            knows=self.knows,
            keep=keep,
        )

    def knows(self, path: RelPath, state: State) -> bool:
        return (path, state) in self.known

    def tree(self) -> dict[str, str]:
        """Everything outside `.assay/`: path to content, `-> TARGET` or `folder`; an
        executable's content has ` (executable)` behind it."""
        return describe_tree(self.root)

    def waste(self) -> dict[str, str]:
        """The files in the trash by their path there."""
        trash = Path(self.store.trash)
        return describe_tree(trash) if trash.exists() else {}

    def temporary_files(self) -> list[str]:
        """What is left below the store's `tmp`, its lock files apart."""
        tmp = Path(self.store.tmp)
        found = tmp.rglob("*") if tmp.exists() else ()
        return [str(path) for path in found if path.suffix not in {".lock", ".lease"}]

    def blob_paths(self) -> list[Path]:
        cas = Path(self.store.cas)
        return sorted(path for path in cas.rglob("*") if path.is_file())


@contextmanager
def open_ground(root: Path) -> Iterator[Ground]:
    root.mkdir(exist_ok=True)
    ground = Ground(root)
    try:
        yield ground
    finally:
        ground.store.close()


def entries(*texts: str, optional: Collection[str] = ()) -> tuple[Entry, ...]:
    """Entries as in a plan file; those in `optional` in their `{ path, optional }` form."""
    here = RelPath(".")
    return tuple(
        literal_entry(text, here, True) if text in optional else parse_entry(text, here)
        for text in texts
    )


def node(
    *,
    writes: Sequence[str | Entry] = (),
    reads: Sequence[str] = (),
    removes: Sequence[str] = (),
    optional: Collection[str] = (),
) -> Node:
    """A node named `n` with this boundary."""
    written = tuple(
        item if isinstance(item, Entry) else entries(item, optional=optional)[0] for item in writes
    )
    return Node(
        name=NodeName("n"),
        origin=Origin("plan.toml"),
        writes=written,
        reads=entries(*reads),
        removes=tuple(RelPath(path) for path in removes),
    )


def describe_tree(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder, folders, files in os.walk(root):
        for name in sorted([*folders, *files]):
            place = Path(folder, name)
            path = str(place.relative_to(root))
            info = place.lstat()
            if path == ".assay":
                folders.remove(name)
            elif stat.S_ISLNK(info.st_mode):
                found[path] = f"-> {place.readlink()}"
            elif stat.S_ISDIR(info.st_mode):
                found[path] = "folder"
            elif stat.S_ISREG(info.st_mode):
                mark = " (executable)" if info.st_mode & 0o111 else ""
                found[path] = place.read_text("utf-8", "surrogateescape") + mark
            else:
                found[path] = "special"
    return found


def run_python(
    code: str, *words: str, before: Sequence[str] = (), obeys_modes: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs `code` with `words` as `sys.argv[1:]` in a Python that can import this module,
    started through the command `before`. `obeys_modes`: without root's power to ignore
    file modes."""
    command = [*before, sys.executable, "-c", code, *words]
    if obeys_modes and os.geteuid() == 0:
        powers = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}", *command]
    return subprocess.run(
        command,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
