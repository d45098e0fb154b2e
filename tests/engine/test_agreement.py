"""The quick answer "nothing to do" never contradicts the plain way.

A workspace is run to completion, changed at random, and asked both ways: whenever the
certificate still holds, every node must be clean by the plain way too.
"""

from __future__ import annotations

import os
import random
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from assay.engine.agreement import Agreed, agree
from assay.engine.certificate import Basis, Question
from assay.engine.events import RunSettled
from assay.engine.prediction import Forecast, predict
from assay.engine.run_loop import run_plan
from assay.engine.run_request import Cancellation, RunRequest
from assay.engine.states import RunStatus
from assay.engine.store import Store
from assay.plans.load import Loaded, LoadRequest, load_plan
from assay.plans.selection import select

PLAN = """
name = "quick"
[nodes.gen]
run = "mkdir -p gen/empty; cp src/a gen/a; ln -sf a gen/link"
reads = ["src/a"]
writes = ["gen/"]
[nodes.each]
foreach = "src/*.t"
run = "mytool < {{each}} > out/{{each.stem}}"
reads = ["{{each}}", "inc/**/*.h", "!inc/skip/**", { path = "maybe", optional = true }]
writes = ["out/{{each.stem}}"]
pass_env = ["MODE", "X_*"]
tools = ["mytool"]
[nodes.join]
run = "cat out/* linked > all; rm -f gone"
reads = ["out/*", "gen/", "linked"]
writes = ["all", { path = "extra", optional = true }]
removes = ["gone"]
[nodes.value]
run = "wc -c < all > $ASSAY_RESULT"
reads = ["all"]
result = "text"
[nodes.use]
run = "echo $N > use"
env = { N = { from = "value" } }
writes = ["use"]
"""


class Ground:
    """A workspace with the plan above, and both ways of asking."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {"PATH": f"{root.parent}/bin:/usr/bin:/bin", "MODE": "a", "LANG": "C"}
        self.write("plan.toml", PLAN)
        for name in ("src/a", "src/x.t", "src/y.t", "inc/a.h", "inc/d/b.h", "inc/skip/c.h"):
            self.write(name, name)
        self.write("target", "target")
        (root / "linked").symlink_to("target")
        self.write("../bin/mytool", "#!/bin/sh\nls inc inc/d\ncat\n").chmod(0o755)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self) -> Loaded:
        return load_plan(LoadRequest("plan.toml", cwd=str(self.root)))

    @property
    def question(self) -> Question:
        return Question(str(self.root / "plan.toml"), (), (), ())

    def run(self) -> RunSettled:
        loaded = self.load()
        digest = blake3((self.root / "plan.toml").read_bytes()).hexdigest()
        basis = Basis(self.question, ((str(self.root / "plan.toml"), digest),), loaded.foreach)
        request = RunRequest(environ=self.environ, jobs=2, basis=basis)
        store = Store.open_for_run(str(self.root), now=time.time)
        try:
            return run_plan(
                store,
                loaded.plan,
                select(loaded.plan, (), ()),
                request,
                lambda event: None,
                Cancellation(),
            )
        finally:
            store.close()

    def agree(self) -> Agreed | None:
        return agree(str(self.root), self.question, self.environ, time.time, time.monotonic)

    def is_clean(self) -> bool:
        """The plain way's answer."""
        loaded = self.load()
        store = Store.open_for_reading(str(self.root))
        assert store is not None
        try:
            found = predict(
                store,
                loaded.plan,
                select(loaded.plan, (), ()),
                RunRequest(environ=self.environ),
                str(self.root),
            )
        finally:
            store.close()
        return all(each.verdict is Forecast.CLEAN for each in found)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    root = tmp_path / "w"
    root.mkdir()
    made = Ground(root)
    assert made.run().status is RunStatus.COMPLETED
    return made


def keep_stamp(path: Path, change: Callable[[], object]) -> None:
    """Makes a change that leaves the modification time as it was."""
    before = path.stat()
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Ground], object]] = {
    "a source": lambda g: g.write("src/x.t", "changed"),
    "a source, same size and mtime": lambda g: keep_stamp(
        g.root / "src/x.t", lambda: g.write("src/x.t", "SRC/X.T")
    ),
    "a header in a folder": lambda g: g.write("inc/d/b.h", "new"),
    "a new header": lambda g: g.write("inc/d/new.h", "new"),
    "a new folder of headers": lambda g: g.write("inc/e/f/new.h", "new"),
    "a header gone": lambda g: (g.root / "inc/a.h").unlink(),
    "a new source": lambda g: g.write("src/z.t", "z"),
    "an executable bit": lambda g: (g.root / "src/a").chmod(0o755),
    "an optional read": lambda g: g.write("maybe", "there"),
    "a link's target": lambda g: g.write("target", "else"),
    "a link retargeted": lambda g: (
        (g.root / "linked").unlink(),
        (g.root / "linked").symlink_to("src/a"),
    ),
    "an output": lambda g: g.write("all", "edited"),
    "an output, same size and mtime": lambda g: keep_stamp(
        g.root / "use", lambda: g.write("use", "9" * len((g.root / "use").read_text()))
    ),
    "an output gone": lambda g: (g.root / "out/x").unlink(),
    "a file in a written tree replaced": lambda g: g.write("gen/a", "edited"),
    "a link in a written tree": lambda g: (
        (g.root / "gen/link").unlink(),
        (g.root / "gen/link").symlink_to("nowhere"),
    ),
    "an empty folder gone": lambda g: (g.root / "gen/empty").rmdir(),
    "a removed path is back": lambda g: g.write("gone", "back"),
    "the tool": lambda g: g.write("../bin/mytool", "#!/bin/sh\ntac\n"),
    "a tool in front of it": lambda g: (
        g.write("../bin2/mytool", "#!/bin/sh\ntac\n").chmod(0o755),
        g.environ.update(PATH=f"{g.root.parent}/bin2:{g.environ['PATH']}"),
    ),
    "a passed variable": lambda g: g.environ.update(MODE="b"),
    "a variable that a pattern passes": lambda g: g.environ.update(X_NEW="1"),
    "the locale": lambda g: g.environ.update(LC_ALL="C.UTF-8"),
    "the plan": lambda g: g.write("plan.toml", PLAN.replace("cat out/*", "cat  out/*")),
}
"""Every change after which at least one node must run or be restored."""

HARMLESS: dict[str, Callable[[Ground], object]] = {
    "nothing": lambda g: None,
    "a stamp": lambda g: os.utime(g.root / "src/x.t"),
    "a file nobody reads": lambda g: g.write("other/file", "x"),
    "an excluded header": lambda g: g.write("inc/skip/c.h", "else"),
    "a variable nobody is passed": lambda g: g.environ.update(OTHER="1"),
    "a comment in the plan": lambda g: g.write("plan.toml", PLAN + "# comment\n"),
}


def test_a_completed_run_agrees_with_itself(ground: Ground) -> None:
    """The next run with nothing changed is answered from the certificate, again and again."""
    first = ground.agree()
    assert first is not None
    assert first.nodes == ["gen", "each[src/x.t]", "each[src/y.t]", "join", "value", "use"]
    assert first.settled.counts == {"clean": 6}
    second = ground.agree()
    assert second is not None
    assert second.settled.agreed_with == first.settled.agreed_with
    assert ground.is_clean()


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_what_the_plain_way_notices_the_quick_way_notices(ground: Ground, change: str) -> None:
    """No change that makes a node run or be restored goes unnoticed (C10, C16)."""
    assert ground.agree() is not None
    CHANGES[change](ground)
    assert ground.agree() is None
    assert not ground.is_clean()
    ground.run()
    assert ground.is_clean()


@pytest.mark.parametrize("change", sorted(HARMLESS))
def test_what_changes_nothing_is_clean_either_way(ground: Ground, change: str) -> None:
    """The quick way may not know, and then asks the plain way, which says clean (C20, C22)."""
    HARMLESS[change](ground)
    assert ground.is_clean()


@pytest.mark.parametrize("seed", range(12))
def test_random_sequences_of_changes_never_fool_the_quick_way(tmp_path: Path, seed: int) -> None:
    """Changes pile up, some are run, some undone: whenever the quick way says "nothing to do",
    so does the plain way."""
    chance = random.Random(seed)
    root = tmp_path / "w"
    root.mkdir()
    ground = Ground(root)
    ground.run()
    assert ground.agree() is not None
    everything = {**CHANGES, **HARMLESS}
    for _ in range(15):
        name = chance.choice(sorted(everything))
        try:
            everything[name](ground)
        except FileNotFoundError:
            continue  # gone already
        if chance.random() < 0.5 and ground.run().status is RunStatus.COMPLETED:
            assert ground.is_clean(), name
        if ground.agree() is not None:
            assert ground.is_clean(), name


def test_a_run_that_must_run_every_time_is_not_certified(tmp_path: Path) -> None:
    """A node without reads and writes runs each time; no certificate hides it (C19)."""
    root = tmp_path / "w"
    root.mkdir()
    ground = Ground(root)
    ground.write("plan.toml", PLAN + '\n[nodes.always]\nrun = "true"\n')
    ground.run()
    assert ground.agree() is None


def test_the_certificate_is_as_private_as_the_store(ground: Ground) -> None:
    """It lies in the database, which only its owner reads."""
    mode = (ground.root / ".assay").stat().st_mode
    assert stat.S_IMODE(mode) == 0o700
