"""assay killed while it takes back what a node did: whoever comes next completes it, byte for byte.

A sample with fixed seeds; all points with `ASSAY_SWEEP=all`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
from pathlib import Path

import pytest
from effect_sweep import KILLED, find_points
from sweep import SWEEP_ALL, SWEPT, run_traced
from workspace import Finished, Workspace

pytestmark = pytest.mark.proof

POINTS = int(os.environ.get("ASSAY_POINTS", "1"))

PLAN = """\
[defaults]
pass_env = ["LEDGER"]

[nodes.keep]
run = "cat in > made"
reads = ["in"]
writes = ["made"]

[nodes.mod]
tier = "compensable"
run = \"\"\"
echo $ASSAY_ATTEMPT >> $LEDGER/done
rm -f d/gone; mv d/here d/there; echo more >> d/file; chmod 600 d/mode
rm -rf d/tree old; echo now a file > d/tree; rm d/plain; mkdir d/plain; echo x > d/plain/x
ln -sfn elsewhere d/link; rmdir d/empty; mkdir -p d/new/deep; echo n > d/new/deep/n
test -e $LEDGER/good
\"\"\"
undo = "echo $ASSAY_ATTEMPT >> $LEDGER/undone"
reads = ["made"]
writes = ["d/"]
removes = ["old"]
"""

CALLS = (
    "rename",
    "link,linkat",
    "unlink",
    "rmdir",
    "mkdir",
    "symlink",
    "chmod,fchmod",
    "fsync",
    "pwrite64",
    "fdatasync",
)


class Place:
    """One workspace with its ledger, where `mod` fails until the ledger says that it is good."""

    def __init__(self, root: Path, system_tmp: Path) -> None:
        root.mkdir()
        self.ledger = root / "ledger"
        self.ledger.mkdir()
        self.workspace = Workspace(root / "w")
        self.workspace.root.mkdir()
        self.system_tmp = system_tmp
        self.workspace.write("plan.toml", PLAN)
        self.workspace.write("in", "input\n")
        for name in ("gone", "here", "mode", "file", "tree/a", "tree/b", "plain", "sub/kept"):
            self.workspace.write(f"d/{name}", f"{name}\n")
        self.workspace.write("old/a/b", "b\n")
        self.workspace.path("d/mode").chmod(0o640)
        self.workspace.path("d/file").chmod(0o755)
        self.workspace.path("d/empty").mkdir()
        self.workspace.path("d/sub").chmod(0o750)
        self.workspace.path("d/link").symlink_to("file")
        self.before = self.describe()

    @property
    def env(self) -> dict[str, str]:
        return {"LEDGER": str(self.ledger), "TMPDIR": str(self.system_tmp)}

    def describe(self) -> dict[str, tuple[str, int]]:
        """What `mod` may change, with its permission bits."""
        found: dict[str, tuple[str, int]] = {}
        for top in ("d", "old"):
            for path in [self.workspace.path(top), *self.workspace.path(top).rglob("*")]:
                if not path.exists() and not path.is_symlink():
                    continue
                info = path.lstat()
                text = "folder" if stat.S_ISDIR(info.st_mode) else ""
                if stat.S_ISLNK(info.st_mode):
                    text = f"-> {path.readlink()}"
                elif not text:
                    text = path.read_text()
                key = str(path.relative_to(self.workspace.root))
                found[key] = (text, stat.S_IMODE(info.st_mode))
        return found

    def lines(self, name: str) -> list[str]:
        path = self.ledger / name
        return path.read_text().splitlines() if path.exists() else []

    def trace(self, options: list[str], *words: str) -> Finished:
        return run_traced(
            self.workspace, ["-bexecve", *options], self.system_tmp, words or ("run",), self.env
        )

    def check(self) -> None:
        """Going on fails as it should, everything is as before; then it succeeds, once."""
        failed = self.workspace.assay("run", env=self.env)
        assert "Traceback" not in failed.err, failed.err
        assert failed.code == 1, failed.err
        assert self.describe() == self.before
        attempts = self.lines("done")
        undone = {line.removesuffix(".undo") for line in self.lines("undone")}
        # A command that was about to start when assay died may be undone as well.
        assert undone >= set(attempts)
        (self.ledger / "good").touch()
        done = self.workspace.assay("run", env=self.env)
        assert done.code == 0, done.err
        assert self.workspace.read("d/there") == "here\n"
        assert not self.workspace.path("old").exists()
        assert len(self.lines("done")) == len(attempts) + 1
        store = self.workspace.path(".assay")
        for path in (store / "tmp").iterdir():
            os.utime(path, (0, 0))
        assert self.workspace.assay("cache", "gc").code == 0
        assert [each.name for each in (store / "tmp").iterdir() if each.suffix != ".lock"] == []
        assert len(list((store / "preimages").iterdir())) == 1


def choose(seed: str, numbers: range) -> list[int]:
    if SWEEP_ALL or len(numbers) <= POINTS:
        return list(numbers)
    return sorted(random.Random(seed).sample(numbers, POINTS))


@SWEPT
@pytest.mark.parametrize("call", CALLS)
def test_a_rollback_survives_a_kill(tmp_path: Path, system_tmp: Path, call: str) -> None:
    """C100, C101: killed at any call of a failing node's rollback, and again while the next run
    completes it: every file, mode, link and folder is as before, `undo` has run for each try,
    nothing is left over."""
    counted = Place(tmp_path / "counted", system_tmp)
    log = tmp_path / "calls"
    done = counted.trace(["-o", str(log), "-e", f"trace={call},openat"])
    assert done.code == 1, done.err
    points = find_points(log.read_text(errors="replace"), call)
    assert points, f"a rollback makes no {call}"
    numbers = range(len(points))
    for number in choose(call, numbers):
        point = points[number]
        inject = f"inject={point.call}:signal=KILL:when={point.number}"
        for rounds in (1, 2):
            place = Place(tmp_path / f"{number}-{rounds}", system_tmp)
            options = ["-o", os.devnull, "-e", f"trace={point.call}", "-e", inject]
            codes = [place.trace(options).code for _ in range(rounds)]
            assert codes[0] in KILLED
            place.check()
            shutil.rmtree(place.workspace.root.parent)


@SWEPT
@pytest.mark.parametrize("call", ["rename", "unlink", "pwrite64", "fsync"])
def test_a_rewind_survives_a_kill(tmp_path: Path, system_tmp: Path, call: str) -> None:
    """A rewind that is killed anywhere is completed by the next one."""

    def lay_out(name: str) -> Place:
        place = Place(tmp_path / name, system_tmp)
        (place.ledger / "good").touch()
        assert place.workspace.assay("run", env=place.env).code == 0
        return place

    words = ("rewind", "last", "--to", "keep")
    counted = lay_out("counted")
    log = tmp_path / "calls"
    assert counted.trace(["-o", str(log), "-e", f"trace={call},openat"], *words).code == 0
    assert counted.describe() == counted.before
    text = log.read_text(errors="replace").replace("assay.db", "plan.toml assay.db")
    points = find_points(text, call)
    for number in choose(f"rewind {call}", range(len(points))):
        point = points[number]
        place = lay_out(f"{number}")
        options = ["-o", os.devnull, "-e", f"trace={point.call}"]
        options += ["-e", f"inject={point.call}:signal=KILL:when={point.number}"]
        assert place.trace(options, *words).code in (-signal.SIGKILL, *KILLED)
        again = place.workspace.assay(*words, env=place.env)
        assert again.code == 0, again.err
        assert place.describe() == place.before
        resumed = place.workspace.assay("resume", "last", env=place.env)
        assert resumed.code == 0, resumed.err
        assert place.workspace.read("d/there") == "here\n"
        assert len(place.lines("done")) == 2
        shutil.rmtree(place.workspace.root.parent)
