"""Taking back what a compensable attempt did: its files, then its `undo`, again where need be."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ground import Ground, node, open_ground, run_python
from probe import Probes
from store_rows import an_effect

from assay.engine import preimages
from assay.engine.compensation import (
    UNDO_SUFFIX,
    Compensated,
    compensate,
    describe_undo,
    roll_back_files,
)
from assay.engine.effects import EffectRow
from assay.engine.environment import CallerEnvironment
from assay.engine.outputs import states_before
from assay.engine.preimages import RolledBack
from assay.engine.process import Processes
from assay.engine.rolling_back import describe_changes, describe_fact
from assay.engine.states import EffectState
from assay.plans.model import (
    Argv,
    Command,
    EnvValue,
    Node,
    NodeName,
    Plain,
    RelPath,
    Script,
    Secret,
    Tier,
    ValueRef,
)

INTENDED, SUCCEEDED = EffectState.INTENDED, EffectState.SUCCEEDED
ROLLING_BACK, COMPENSATING = EffectState.ROLLING_BACK, EffectState.COMPENSATING
ROLLED_BACK, NOTHING, UNKNOWN = (
    EffectState.ROLLED_BACK,
    EffectState.NOTHING,
    EffectState.UNKNOWN,
)
PATIENCE_SECONDS = 60.0

RUN = os.urandom(4).hex()
"""Undos are found by their attempts in the environments of all processes: those of tests that run
at the same time have others."""


class Bench:
    """A workspace in which attempt RUN-1 of node `pub` has written `f` and `d/`."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.root = ground.root
        self.environ = {"PATH": os.environ["PATH"], "HOME": "/h", "LANG": "C", "MODE": "dev"}
        self.processes = Processes()

    @property
    def log(self) -> str:
        return Path(self.ground.store.logs, f"{RUN}-1.log").read_text()

    def declare(self, undo: Command | None = None, **more: Any) -> Node:
        boundary = node(writes=["f", "d/"])
        return dataclasses.replace(
            boundary, name=NodeName("pub"), tier=Tier.COMPENSABLE, undo=undo, **more
        )

    def describe(self, declared: Node, **values: Any) -> str | None:
        return describe_undo(declared, CallerEnvironment(self.environ), values)

    def perform(
        self, undo: Command | None = None, state: EffectState = SUCCEEDED, **more: Any
    ) -> EffectRow:
        """What the attempt did, with all that was kept before it and recorded after it."""
        declared = self.declare(undo, **more)
        self.ground.write("f", "before", 0o600)
        preimages.take(declared, self.ground.measurer, self.ground.blobs, self.preimage)
        self.ground.write("f", "after")
        self.ground.write("d/x", "after")
        made = states_before(declared, self.ground.measurer) if state is SUCCEEDED else {}
        return dataclasses.replace(
            an_effect(
                RUN,
                1,
                tier=Tier.COMPENSABLE,
                state=state,
                outputs=made,
                undo=self.describe(declared),
            )
        )

    @property
    def preimage(self) -> str:
        return preimages.path_of(self.ground.store.preimages, f"{RUN}-1")

    def compensate(self, row: EffectRow, environ: dict[str, str] | None = None) -> Compensated:
        return compensate(
            row,
            store=self.ground.store,
            measurer=self.ground.measurer,
            blobs=self.ground.blobs,
            processes=self.processes,
            caller=CallerEnvironment(self.environ if environ is None else environ),
            is_hurried=lambda: False,
        )

    def is_as_before(self) -> bool:
        mode = (self.root / "f").stat().st_mode & 0o777
        return self.ground.tree() == {"f": "before"} and mode == 0o600

    def left_overs(self) -> list[str]:
        """What compensating leaves in `tmp/`."""
        return sorted(name for name in os.listdir(self.ground.store.tmp) if RUN in name)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with open_ground(tmp_path / "w") as ground:
        bench = Bench(ground)
        yield bench
        bench.processes.close()


def shell(script: str) -> Script:
    return Script(script, ("/bin/sh", "-ec"))


# Files.


@pytest.mark.parametrize(
    ("ended_as", "state"),
    [
        (INTENDED, INTENDED),
        (SUCCEEDED, SUCCEEDED),
        (SUCCEEDED, ROLLING_BACK),
        (INTENDED, ROLLING_BACK),
    ],
)
def test_files_alone_are_rolled_back(
    bench: Bench, ended_as: EffectState, state: EffectState
) -> None:
    """C100: without an `undo` that is all; the pre-image stays until that is recorded. What is
    being rolled back already may have failed, so that nobody knows what it had made."""
    row = bench.perform(state=ended_as)
    done = bench.compensate(dataclasses.replace(row, state=state))
    assert (done.state, done.undo, done.problem) == (ROLLED_BACK, None, None)
    assert done.files.put_back == ("f",)
    assert bench.is_as_before()
    assert os.path.exists(bench.preimage)


def test_what_is_recorded_as_done_goes_without_a_trace(bench: Bench) -> None:
    """And what nobody recorded, as of an attempt that failed, is kept."""
    done = bench.compensate(bench.perform(state=SUCCEEDED))
    assert (done.files.removed, done.files.trashed) == (("d/x",), ())
    done = bench.compensate(bench.perform(state=INTENDED))
    assert [path for path, _ in done.files.trashed] == ["d/x", "f"]
    assert done.files.removed == ()


def test_an_attempt_that_never_started_did_nothing(bench: Bench) -> None:
    """C95: nothing is kept before it, so its command has not run."""
    row = bench.perform(shell("echo undone >> undone"), state=INTENDED)
    preimages.drop(bench.preimage)
    done = bench.compensate(row)
    assert done == Compensated(NOTHING, RolledBack())
    assert bench.ground.read("f") == "after"
    assert not (bench.root / "undone").exists()


@pytest.mark.parametrize("state", [SUCCEEDED, ROLLING_BACK])
def test_what_was_done_is_unknown_where_nothing_is_kept(bench: Bench, state: EffectState) -> None:
    """It cannot be taken back, and nobody says that it was; the `undo` does not run."""
    row = bench.perform(shell("echo undone >> undone"), state=state)
    preimages.drop(bench.preimage)
    done = bench.compensate(row)
    assert (done.state, done.problem) == (
        UNKNOWN,
        f"how its files were before is lost: `{bench.preimage}` is gone",
    )
    assert bench.ground.read("f") == "after"
    assert not (bench.root / "undone").exists()


@pytest.mark.parametrize("damage", ["preimage", "blob gone", "blob flipped"])
def test_files_that_cannot_be_put_back_are_told_of(bench: Bench, damage: str) -> None:
    """C87: nothing is touched, the `undo` does not run, and an operator must decide."""
    row = bench.perform(shell("echo undone >> undone"))
    if damage == "preimage":
        Path(bench.preimage).write_text("x")
    else:
        for path in bench.ground.blob_paths():
            path.chmod(0o644)
            if damage == "blob gone":
                path.unlink()
            else:
                path.write_bytes(b"X" * path.stat().st_size)
    before = bench.ground.tree()
    done = bench.compensate(row)
    assert done.state is UNKNOWN
    assert done.problem is not None
    assert done.problem.startswith("its files cannot be put back: ")
    assert bench.ground.tree() == before


REFUSED = """
import os, sys
from pathlib import Path
from assay.engine.states import EffectState
import importlib.util
spec = importlib.util.spec_from_file_location("itself", sys.argv[1])
itself = importlib.util.module_from_spec(spec)
spec.loader.exec_module(itself)
with itself.open_ground(Path(sys.argv[2])) as ground:
    bench = itself.Bench(ground)
    row = bench.perform(itself.shell("echo undone >> undone"), state=EffectState(sys.argv[3]))
    (ground.root / "d/in").mkdir()
    (ground.root / "d/in/x").write_text("x")
    (ground.root / "d/in").chmod(0)
    for _ in range(2):
        done = bench.compensate(row)
        print(done.state, (done.problem or "").replace(sys.argv[2], ""))
        row = itself.dataclasses.replace(row, state=done.state)
    print((ground.root / "undone").exists())
    (ground.root / "d/in").chmod(0o700)
    print(bench.compensate(row).state, ground.read("undone"), end="")
    print(ground.read("f"), (ground.root / "d/x").exists())
    bench.processes.close()
"""


@pytest.mark.parametrize("state", [INTENDED, SUCCEEDED, ROLLING_BACK])
def test_where_the_host_refuses_it_is_done_once_that_allows_it(
    tmp_path: Path, state: EffectState
) -> None:
    """C101: the effect stays one that is being rolled back, and its `undo` waits for that."""
    done = run_python(REFUSED, __file__, str(tmp_path / "w"), state.value, obeys_modes=True)
    assert (done.returncode, done.stderr) == (0, "")
    refused = "its files cannot be put back yet: `/d/in` cannot be listed: permission denied"
    assert done.stdout.splitlines() == [
        f"rolling-back {refused}",
        f"rolling-back {refused}",
        "False",
        "rolled-back undone",
        "before False",
    ]


SHUT = """
import sys
from pathlib import Path
import importlib.util
spec = importlib.util.spec_from_file_location("itself", sys.argv[1])
itself = importlib.util.module_from_spec(spec)
spec.loader.exec_module(itself)
with itself.open_ground(Path(sys.argv[2])) as ground:
    bench = itself.Bench(ground)
    declared = itself.node(writes=["in/f"])
    ground.write("in/f", "before")
    itself.preimages.take(declared, ground.measurer, ground.blobs, bench.preimage)
    ground.write("in/f", "after")
    (ground.root / "in").chmod(0)
    done = bench.compensate(itself.an_effect(itself.RUN, 1, state=itself.INTENDED))
    print(done.state, done.problem is None)
    (ground.root / "in").chmod(0o700)
    bench.processes.close()
"""


def test_a_folder_that_may_not_be_searched_is_told_of(tmp_path: Path) -> None:
    """C87: whatever a command does to modes, taking it back raises nothing: it would end every
    run that comes across it."""
    done = run_python(SHUT, __file__, str(tmp_path / "w"), obeys_modes=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("rolling-back False\n", "rolled-back True\n")


def test_the_first_half_leaves_the_undo_to_follow(bench: Bench) -> None:
    """Whoever finds a dead attempt puts its files back and does not run commands."""
    row = bench.perform(shell("echo undone >> undone"), state=INTENDED)
    done = roll_back_files(
        row, store=bench.ground.store, measurer=bench.ground.measurer, blobs=bench.ground.blobs
    )
    assert (done.state, done.undo, done.problem) == (COMPENSATING, None, None)
    assert bench.is_as_before()
    again = bench.compensate(dataclasses.replace(row, state=COMPENSATING))
    assert (again.state, again.undo, again.files) == (ROLLED_BACK, "ended well", RolledBack())
    assert bench.ground.read("undone") == "undone\n"


# The `undo`.


def test_the_undo_runs_once_the_files_are_back(bench: Bench) -> None:
    """In the node's folder, with what it prints in the attempt's log."""
    (bench.root / "sub").mkdir()
    row = bench.perform(shell("cat ../f; pwd; echo oops >&2"), workdir=RelPath("sub"))
    Path(bench.ground.store.logs, f"{RUN}-1.log").write_text("of the attempt\n")
    done = bench.compensate(row)
    assert (done.state, done.undo, done.problem) == (ROLLED_BACK, "ended well", None)
    assert bench.log == f"of the attempt\nbefore{bench.root}/sub\noops\n"
    assert bench.left_overs() == []


def test_the_undo_sees_what_the_node_saw(bench: Bench) -> None:
    """Its own values, those of other nodes and what was passed then, whatever the caller of
    today has; paths and the terminal are the caller's, and TMPDIR is a folder of its own."""
    env: tuple[tuple[str, EnvValue], ...] = (
        ("JSON", ValueRef(NodeName("a"))),
        ("PLAIN", Plain("é \udcff\n'")),
        ("TEXT", ValueRef(NodeName("b"), ("x",))),
    )
    undo = shell("env -0 > got; test -d $TMPDIR; test -w $TMPDIR")
    declared = bench.declare(undo, env=env, pass_env=("MODE",))
    row = dataclasses.replace(
        bench.perform(undo), undo=bench.describe(declared, JSON={"b": [1], "a": None}, TEXT="t")
    )
    today = {"PATH": os.environ["PATH"], "HOME": "/new", "LANG": "de", "MODE": "x", "MORE": "1"}
    done = bench.compensate(row, today)
    assert done.problem is None
    text = os.fsdecode((bench.root / "got").read_bytes())
    got = dict(pair.split("=", 1) for pair in text.rstrip("\0").split("\0"))
    temp = Path(got.pop("TMPDIR"))
    for name in ("PWD", "OLDPWD", "SHLVL", "_"):
        got.pop(name, None)
    assert got == {
        "ASSAY_ATTEMPT": f"{RUN}-1.undo",
        "ASSAY_NODE": "pub",
        "ASSAY_RUN": RUN,
        "HOME": "/new",
        "JSON": '{"a":null,"b":[1]}',
        "LANG": "C",
        "MODE": "dev",
        "PATH": os.environ["PATH"],
        "PLAIN": "é \udcff\n'",
        "TEXT": "t",
    }
    assert not temp.exists()


def test_a_value_of_null_unsets_for_the_undo_too(bench: Bench) -> None:
    """Also what the caller of today has and every node gets."""
    undo = shell("echo ${HOME-unset} ${LANG-unset} > got")
    declared = bench.declare(
        undo, env=(("HOME", ValueRef(NodeName("a"))), ("LANG", ValueRef(NodeName("a"))))
    )
    row = dataclasses.replace(
        bench.perform(undo), undo=bench.describe(declared, HOME=None, LANG=None)
    )
    assert bench.compensate(row).problem is None
    assert bench.ground.read("got") == "unset unset\n"


def test_a_secret_is_kept_by_name_and_masked(bench: Bench) -> None:
    """It is taken from whoever runs the undo, and stays out of record and log."""
    bench.environ["TOKEN"] = "of then, secret"
    undo = shell("echo $KEY; echo $KEY > got")
    row = bench.perform(undo, env=(("KEY", Secret("TOKEN")),))
    assert row.undo is not None
    assert "secret" not in row.undo.replace('"secrets"', "")
    assert json.loads(row.undo)["secrets"] == {"KEY": "TOKEN"}
    bench.environ["TOKEN"] = "of today, secret"
    assert bench.compensate(row).problem is None
    assert bench.ground.read("got") == "of today, secret\n"
    assert "secret" not in bench.log
    assert bench.log


def test_without_its_secret_the_undo_waits(bench: Bench) -> None:
    """The files are back, nothing was started, and with the secret it goes on."""
    bench.environ["TOKEN"] = "secret enough"
    row = bench.perform(shell("echo $KEY > got"), env=(("KEY", Secret("TOKEN")),))
    del bench.environ["TOKEN"]
    done = bench.compensate(row)
    assert (done.state, done.problem) == (
        COMPENSATING,
        "its `undo` needs the secret `TOKEN`, which is not set in the environment",
    )
    assert bench.is_as_before()
    bench.environ["TOKEN"] = "secret enough"
    assert bench.compensate(dataclasses.replace(row, state=COMPENSATING)).state is ROLLED_BACK
    assert bench.ground.read("got") == "secret enough\n"


@pytest.mark.parametrize(
    ("undo", "problem"),
    [
        (shell("exit 3"), "ended with exit code 3"),
        (shell("kill -KILL $$"), "was ended by SIGKILL"),
        (shell("kill -TERM $$"), "was ended by SIGTERM"),
        (Argv(("no-such-program",)), "could not be started: "),
        (Argv(("./f",)), "could not be started: "),
    ],
)
def test_an_undo_that_does_not_end_well_is_run_again(
    bench: Bench, undo: Command, problem: str
) -> None:
    """C101: the files stay as before; nothing of it is left but the log."""
    row = bench.perform(undo)
    done = bench.compensate(row)
    assert done.state is COMPENSATING
    assert done.problem is not None
    assert done.problem.startswith(f"its `undo` {problem}")
    assert done.undo is not None
    assert done.undo.startswith(problem)
    assert done.files.put_back == ("f",)
    assert bench.is_as_before()
    again = bench.compensate(dataclasses.replace(row, state=COMPENSATING))
    assert (again.state, again.files) == (COMPENSATING, RolledBack())
    assert bench.left_overs() == []


def test_a_folder_that_cannot_be_used_is_a_problem_of_the_undo(bench: Bench) -> None:
    """The one it should run in, and the one its output goes to."""
    bench.ground.write("taken", "by a file")
    row = bench.perform(shell("true"), workdir=RelPath("taken"))
    done = bench.compensate(row)
    assert (done.state, done.problem) == (
        COMPENSATING,
        f"its `undo` could not be started: The working directory `{bench.root}/taken` is a file,"
        " not a folder",
    )
    shutil.rmtree(bench.ground.store.logs)
    done = bench.compensate(bench.perform(shell("true")))
    assert (done.state, done.problem) == (
        COMPENSATING,
        "its `undo` cannot be started: No such file or directory",
    )


def test_an_edit_made_after_the_files_are_back_is_left_alone(bench: Bench) -> None:
    """Only the `undo` is still to run: the files are not looked at again."""
    row = bench.perform(shell("true"))
    bench.compensate(row)
    bench.ground.write("f", "mine")
    done = bench.compensate(dataclasses.replace(row, state=COMPENSATING))
    assert done.state is ROLLED_BACK
    assert bench.ground.read("f") == "mine"


def test_an_undo_that_still_runs_is_not_started_again(bench: Bench) -> None:
    """C97: an assay that died while it ran does not know how it ends; its lease tells."""
    row = dataclasses.replace(bench.perform(shell("echo undone >> undone")), state=COMPENSATING)
    lease = Path(bench.ground.store.tmp, f"{RUN}-1{UNDO_SUFFIX}.lease")
    descriptor = os.open(lease, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    done = bench.compensate(row)
    assert (done.state, done.problem) == (
        COMPENSATING,
        "its `undo` still runs, though the assay that started it is gone",
    )
    assert not (bench.root / "undone").exists()
    os.close(descriptor)
    assert bench.compensate(row).state is ROLLED_BACK
    assert bench.ground.read("undone") == "undone\n"


def test_the_private_folder_of_an_undo(bench: Bench) -> None:
    """Its TMPDIR is below the system's temporary folder, under 60 bytes long, its own, and gone
    afterwards."""
    row = bench.perform(
        shell('test -z "$(ls -A $TMPDIR)"; test ${#TMPDIR} -lt 60; echo > $TMPDIR/x')
    )
    assert bench.compensate(row).state is ROLLED_BACK
    assert bench.left_overs() == []


@pytest.mark.parametrize("obeys", [True, False])
def test_the_timeout_of_the_node_holds_for_its_undo(
    bench: Bench, probes: Probes, obeys: bool
) -> None:
    """It is asked to end, and made to end after the node's grace."""
    row = bench.perform(Argv(tuple(probes.argv("undo"))), timeout_seconds=0.5, grace_seconds=0.5)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(bench.compensate, row)
        undo = probes.arrive("undo")
        if not obeys:
            undo.ignore(signal.SIGTERM)
        done = future.result(PATIENCE_SECONDS)
    undo.gone()
    assert (done.state, done.problem) == (COMPENSATING, "its `undo` timed out after 0.5s")


def test_an_undo_can_be_found_by_its_attempt(bench: Bench, probes: Probes) -> None:
    """C97: while it runs it holds a lease of its own and carries an id of its own, by which
    the processes of a dead assay are found; what it leaves behind is ended."""
    row = bench.perform(Argv(tuple(probes.argv("undo"))))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(bench.compensate, row)
        undo = probes.arrive("undo")
        assert undo.environ()["ASSAY_ATTEMPT"] == f"{RUN}-1.undo"
        assert f"{bench.ground.store.tmp}/{RUN}-1.undo.lease" in undo.descriptors().values()
        child = undo.fork("child", setsid=True)
        undo.exit(0)
        assert future.result(PATIENCE_SECONDS).state is ROLLED_BACK
    child.gone()


# What is kept of an `undo`.


def test_a_node_without_an_undo_has_none(bench: Bench) -> None:
    """Nothing is kept then."""
    assert bench.describe(bench.declare()) is None


def test_an_undo_is_kept_with_all_it_needs(bench: Bench) -> None:
    """Command, folder, environment and limits; not what the caller's terminal is like."""
    declared = bench.declare(
        Argv(("undo", "a b")),
        workdir=RelPath("w"),
        env=(("A", Plain("1")), ("HOME", Plain("/own"))),
        pass_env=("MODE",),
        timeout_seconds=2.5,
        grace_seconds=1.0,
    )
    kept = bench.describe(declared)
    assert kept is not None
    found = json.loads(kept)
    assert {
        "argv": ["undo", "a b"],
        "workdir": "w",
        "env": {"A": "1", "HOME": "/own", "LANG": "C", "MODE": "dev"},
        "secrets": {},
        "timeout": 2.5,
        "grace": 1.0,
    }.items() <= found.items()
    script = bench.describe(bench.declare(Script("echo", ("/bin/bash", "-c"))))
    assert script is not None
    assert json.loads(script)["argv"] == ["/bin/bash", "-c", "echo"]


# How it is told.


def many(*names: str) -> tuple[RelPath, ...]:
    return tuple(map(RelPath, names))


def test_a_record_tells_what_was_changed() -> None:
    """All paths, where things are now, and what the effect is from now on."""
    row = an_effect(RUN, 1)
    done = Compensated(
        COMPENSATING,
        RolledBack(many("a", "b"), many("c"), ((RelPath("d"), "/t/d"),), many("e")),
        "ended with exit code 1",
        "its `undo` ended with exit code 1",
    )
    assert describe_fact(row, done, "it failed") == {
        "attempt": f"{RUN}-1",
        "why": "it failed",
        "put_back": ["a", "b"],
        "removed": ["c"],
        "trashed": [["d", "/t/d"]],
        "left": ["e"],
        "undo": "ended with exit code 1",
        "state": "compensating",
        "problem": "its `undo` ended with exit code 1",
    }


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (Compensated(ROLLED_BACK, RolledBack()), []),
        (
            Compensated(ROLLED_BACK, RolledBack(many("a"), many("b"))),
            [f"rolled back, as before attempt {RUN}-1: `a`, `b`"],
        ),
        (
            Compensated(ROLLED_BACK, RolledBack(many("a", "b"), many("c", "d", "e"))),
            [f"rolled back, as before attempt {RUN}-1: `a`, `b`, `c` and 2 more"],
        ),
        (
            Compensated(ROLLED_BACK, RolledBack((), (), ((RelPath("a"), "/t/a"),))),
            ["kept what stood there instead: `a` is now /t/a"],
        ),
        (
            Compensated(
                ROLLED_BACK,
                RolledBack((), (), tuple((RelPath(name), f"/t/{name}") for name in "abcde")),
            ),
            [
                "kept what stood there instead: `a` is now /t/a, `b` is now /t/b, `c` is now"
                " /t/c; 2 more beside it"
            ],
        ),
        (
            Compensated(ROLLED_BACK, RolledBack(left=many("a"))),
            ["left where it is what came since: `a`"],
        ),
        (
            Compensated(ROLLED_BACK, RolledBack(left=many("a", "b", "c", "d"))),
            ["left where it is what came since: `a`, `b`, `c` and 1 more"],
        ),
        (
            Compensated(UNKNOWN, RolledBack(), None, "its files cannot be put back"),
            ["is not rolled back wholly: its files cannot be put back"],
        ),
    ],
)
def test_people_read_what_was_changed(done: Compensated, expected: list[str]) -> None:
    """Clauses about the node, a few paths of many."""
    assert describe_changes(an_effect(RUN, 1), done) == expected
