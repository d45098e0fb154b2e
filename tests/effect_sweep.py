"""Plans with nodes of every tier, disturbed at one system call of assay's, and what must hold
once they were gone on with.

Whatever a node does outside the workspace it writes into a *ledger*, a folder that assay knows
nothing of: the tests believe the ledger, not what assay says. Where assay asks whether an effect
happened, they answer with what the ledger says.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sweep import SWEEP_ALL, can_fail, describe, find_processes, run_traced, start_traced
from workspace import Finished, Workspace, finish

POINTS = int(os.environ.get("ASSAY_POINTS", "1"))
"""Of each call, in a sample."""

PLAN = """\
name = "effects"

[defaults]
pass_env = ["LEDGER"]

[nodes.prepare]
run = "tr a-z A-Z < in > made"
reads = ["in"]
writes = ["made"]

[nodes.change]
tier = "compensable"
run = \"\"\"
echo $ASSAY_ATTEMPT >> $LEDGER/changed
cat made >> site/one; cat made >> site/sub/two
rm -f old; rm -f site/gone
echo new > site/new
\"\"\"
undo = "echo $ASSAY_ATTEMPT >> $LEDGER/undone"
reads = ["made", "site/"]
writes = ["site/"]
removes = ["old"]

[nodes.keyed]
tier = "irreversible"
idempotency_key = "order-17"
after = ["change"]
run = \"\"\"
echo $ASSAY_ATTEMPT $ASSAY_IDEMPOTENCY_KEY >> $LEDGER/keyed
echo accepted > receipt; printf accepted > $ASSAY_RESULT
\"\"\"
writes = ["receipt"]
result = "text"

[nodes.keyless]
tier = "irreversible"
after = ["keyed"]
run = "cat made; echo $ASSAY_ATTEMPT >> $LEDGER/keyless; printf sent > $ASSAY_RESULT"
reads = ["made"]
result = "text"

[nodes.amend]
tier = "compensable"
after = ["keyless"]
run = "echo $ASSAY_ATTEMPT >> $LEDGER/amended; cat made >> notes; echo amended > amended"
reads = ["made", "notes"]
writes = ["notes", "amended"]

[nodes.tree]
after = ["amend"]
run = \"\"\"
mkdir -p tree/empty tree/sub; cp site/one tree/sub; chmod +x tree/sub/one; ln -sfn sub tree/l
\"\"\"
reads = ["site/"]
writes = ["tree/"]

[nodes.drop]
after = ["tree"]
run = "rm -f junk"
removes = ["junk"]

[nodes.last]
after = ["drop"]
run = \"\"\"
cat site/one site/sub/two site/new tree/sub/one notes amended receipt > all
echo $ACCEPTED $SENT > $ASSAY_RESULT; cat $ASSAY_RESULT >> all
\"\"\"
env = { ACCEPTED = { from = "keyed" }, SENT = { from = "keyless" } }
reads = ["site/", "tree/", "notes", "amended", "receipt"]
writes = ["all"]
result = "text"

[outputs]
told = { from = "last" }
"""

TROUBLED_PLAN = """\
name = "troubled"

[defaults]
pass_env = ["LEDGER"]

[nodes.held]
boundary = "isolated"
run = "wc -c < data/large > sums/size"
reads = ["data/large"]
writes = ["sums/size"]

[nodes.change]
tier = "compensable"
timeout = "1s"
grace = "100ms"
retry = { attempts = 6, backoff = "1ms" }
run = \"\"\"
trap '' TERM
echo $ASSAY_ATTEMPT >> $LEDGER/changed
cat sums/size >> site/one; cat sums/size >> site/sub/two
rm -f old; rm -f site/gone
echo new > site/new
if mkdir $LEDGER/late; then tail -s 0.1 --pid=$PPID -f /dev/null; fi
\"\"\"
undo = "echo $ASSAY_ATTEMPT >> $LEDGER/undone"
reads = ["sums/size", "site/"]
writes = ["site/"]
removes = ["old"]

[nodes.keyed]
tier = "irreversible"
idempotency_key = "order-17"
after = ["change"]
run = \"\"\"
echo $ASSAY_ATTEMPT $ASSAY_IDEMPOTENCY_KEY >> $LEDGER/keyed
echo accepted > receipt; printf accepted > $ASSAY_RESULT
\"\"\"
writes = ["receipt"]
result = "text"

[nodes.keyless]
tier = "irreversible"
after = ["keyed"]
run = ["./keyless"]
reads = ["sums/size"]
result = "text"

[nodes.parent]
after = ["keyless"]
run = "tail -s 0.1 --pid=$PPID -f /dev/null & cat site/one > left"
reads = ["site/"]
writes = ["left"]

[outputs]
told = { from = "keyless" }
"""
"""What goes wrong here by itself makes assay do what it does not else: `held` gets a file that is
too large to be copied, `change` is ended the first time, taken back and tried again, `parent`
leaves a process behind. Their processes end by themselves once assay, `$PPID`, is gone."""

KEYLESS = """\
#!/bin/sh -e
echo $ASSAY_ATTEMPT >> $LEDGER/keyless; printf sent > $ASSAY_RESULT
"""

Item = TypeVar("Item")

VERBS = ("resume", "run")
"""How to go on."""

SENT = json.dumps("sent")
"""The value of `keyless`, for `assay settle`."""

EFFECTS = ("changed", "keyed", "keyless", "amended")
"""Names in the ledger of what nodes did, each after the one it follows."""

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)

MOST_STEPS = 8
"""How often a run is gone on with before that counts as going in circles."""

CALLS = (
    "pwrite64",
    "write",
    "fsync",
    "fdatasync",
    "rename",
    "unlink",
    "rmdir",
    "mkdir",
    "openat",
    "openat site/one",
    "openat notes",
    "ftruncate",
    "flock",
    "vfork,clone,clone3",
    "execve",
    "wait4,waitid",
)
"""The calls that are disturbed: any of these names. With a path only those that are about it: a
thread of assay's has made many others before it comes to such a one."""

TROUBLED_CALLS = (
    "kill,pidfd_send_signal",
    "link,linkat",
    "execve keyless",
    *(kind for kind in CALLS if kind != "openat notes"),
)
"""Those of the troubled plan; only it makes the first three."""

TRACED = ("pidfd_open", "pipe2")
"""Further calls that a test lets fail."""

ALONE = ("-bexecve",)
"""Options of strace to disturb assay's own threads and leave alone what they start."""


@dataclass(frozen=True, order=True)
class Point:
    """The `number`-th `call` of any thread, counting only those about `path` if there is one."""

    call: str
    number: int
    path: str = ""


@dataclass(frozen=True)
class Undisturbed:
    """What a run of `plan` leaves that nothing disturbs, and the calls its threads make."""

    plan: str
    tree: dict[str, str]
    outputs: dict[str, Any]
    calls: str
    """What strace says of assay's own threads."""
    all_calls: str
    """The same with all that they start."""


@dataclass(frozen=True)
class Scene:
    """One workspace with its ledger."""

    workspace: Workspace
    ledger: Path
    system_tmp: Path

    @property
    def env(self) -> dict[str, str]:
        return {"LEDGER": str(self.ledger), "TMPDIR": str(self.system_tmp)}

    @property
    def store(self) -> Path:
        return self.workspace.path(".assay")

    def assay(self, *words: str) -> Finished:
        done = self.workspace.assay(*words, env=self.env)
        assert "Traceback" not in done.err, done.err
        assert "internal error" not in done.err, done.err
        return done

    def trace(self, options: list[str], *words: str) -> Finished:
        return run_traced(
            self.workspace, options, self.system_tmp, words or ("run", "-j2"), self.env
        )

    def kill_at(self, point: Point, mode: str, *words: str) -> Finished:
        """Ends assay at this point. `mode` says what becomes of what it has started: `alone`
        (that lives on to its end), `together` (it dies with it) or `each` (each process dies
        where it comes to such a point)."""
        if point.call == "execve" and not point.path and mode != "each":
            done = self._kill_at_start(point.number, *words)
        else:
            how = f"signal=KILL:when={point.number}"
            done = self._disturb(point, how, mode != "each", *words)
        while mode == "together" and (living := self.living):
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return done

    def _kill_at_start(self, number: int, *words: str) -> Finished:
        """Ends assay while the `number`-th process that it starts is about to become a command,
        and lets that one go on. That call is the child's, not assay's: strace tells of it and
        delays it, the test kills."""
        log = self.ledger.parent / "starts"
        os.mkfifo(log)
        options = [*ALONE, "-o", str(log), "-e", "trace=execve"]
        options += ["-e", "inject=execve:delay_enter=100ms"]
        traced = start_traced(
            self.workspace, options, self.system_tmp, words or ("run", "-j2"), self.env
        )
        told = b""
        is_killed = False
        with log.open("rb", buffering=0) as calls:
            while piece := calls.read(1 << 16):
                told += piece
                # The first is how assay itself was started.
                if not is_killed and told.count(b" execve(") > number:
                    is_killed = True
                    with suppress(ProcessLookupError):
                        os.kill(int(told.split(maxsplit=1)[0]), signal.SIGKILL)
        log.unlink()
        return finish(traced)

    def fail_at(
        self, point: Point, error: str, *words: str, for_good: bool, alone: bool
    ) -> Finished:
        """The call fails with `error`, once or all that follow too, in assay `alone` or in what
        it starts as well."""
        when = f"{point.number}{'+' if for_good else ''}"
        return self._disturb(point, f"error={error}:when={when}", alone, *words)

    def _disturb(self, point: Point, how: str, alone: bool, *words: str) -> Finished:
        options = [*(ALONE if alone else ()), "-o", os.devnull]
        if point.path:
            # strace resolves it and takes both forms for the same.
            options += ["-P", f"./{point.path}"]
        options += ["-e", f"trace={point.call}", "-e", f"inject={point.call}:{how}"]
        return self.trace(options, *words)

    def lines(self, name: str) -> list[str]:
        """What nodes have written into the ledger under this name."""
        path = self.ledger / name
        return path.read_text().splitlines() if path.exists() else []

    def effects(self) -> list[str]:
        """All that nodes have done to the world; each line begins with its attempt."""
        return [line for name in EFFECTS for line in self.lines(name)]

    def certain_effects(self) -> dict[str, list[str]]:
        """The lines of each effect whose follower has begun: that one starts only once what it
        follows is recorded as done."""
        followers = dict(pairwise(EFFECTS))
        return {name: self.lines(name) for name in followers if self.lines(followers[name])}

    def runs(self) -> list[dict[str, Any]]:
        """The latest first."""
        done = self.assay("runs", "--json")
        if "No runs are recorded" in done.err:
            return []
        assert done.code == 0, done.err
        found: list[dict[str, Any]] = json.loads(done.out)
        return found

    @property
    def living(self) -> list[int]:
        """Pids of assay and of what it has started."""
        return find_processes(f"LEDGER={self.ledger}")


def lay_out(root: Path, system_tmp: Path, plan: str = PLAN) -> Scene:
    """A workspace where the plan has not run yet."""
    root.mkdir()
    (root / "ledger").mkdir()
    (root / "w").mkdir()
    workspace = Workspace(root / "w")
    workspace.write("plan.toml", plan)
    workspace.write("in", "input\n")
    workspace.write("keyless", KEYLESS).chmod(0o755)
    workspace.write("data/large", "large\n" * 50_000)
    for name in ("site/one", "site/sub/two", "site/gone", "notes", "old", "junk"):
        workspace.write(name, f"{name} from before\n")
    workspace.path("site/sub/two").chmod(0o755)
    workspace.write("mine/notes", "nobody declared this\n")
    return Scene(workspace, root / "ledger", system_tmp)


@pytest.fixture(scope="session")
def undisturbed_effects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """Of the plan in which nothing goes wrong by itself."""
    yield from _run_undisturbed(tmp_path_factory.mktemp("effects"), PLAN)


@pytest.fixture(scope="session")
def undisturbed_trouble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """Of the troubled plan."""
    yield from _run_undisturbed(tmp_path_factory.mktemp("trouble"), TROUBLED_PLAN)


@pytest.fixture
def undisturbed_run(request: pytest.FixtureRequest) -> Undisturbed:
    """Of the plan that the test's parameter names."""
    found: Undisturbed = request.getfixturevalue(f"undisturbed_{request.param}")
    return found


def _run_undisturbed(folder: Path, plan: str) -> Iterator[Undisturbed]:
    """One run under strace that nothing disturbs, and one with all it starts."""
    system_tmp = Path(tempfile.mkdtemp(prefix="kill-", dir="/tmp"))
    kinds = (*CALLS, *TROUBLED_CALLS, *TRACED)
    names = ",".join(sorted({name for kind in kinds for name in kind.split(" ")[0].split(",")}))
    told: list[str] = []
    for name, scope in (("own", ALONE), ("all", ())):
        scene = lay_out(folder / name, system_tmp, plan)
        log = folder / f"{name}.calls"
        done = scene.trace([*scope, "-o", str(log), "-e", f"trace={names}"])
        assert done.code == 0, done.err
        told.append(log.read_text(errors="replace"))
    check_end(scene, None)
    yield Undisturbed(plan, describe(scene.workspace.root), _outputs(scene), told[0], told[1])
    shutil.rmtree(system_tmp, ignore_errors=True)


def find_points(calls: str, kind: str, error: str = "") -> list[Point]:
    """Every point of `kind` (one of `CALLS`), from what strace said of an undisturbed run; with
    an `error` those that it can befall. What a thread does before the plan is looked at is Python
    finding its modules."""
    wanted, _, path = kind.partition(" ")
    names = wanted.split(",")
    counts: Counter[tuple[str, str]] = Counter()
    points: dict[Point, bool] = {}
    has_begun = False
    lines = calls.splitlines()
    if wanted == "execve":
        del lines[0]  # assay's own, made by strace, which neither counts nor disturbs it
    for line in lines:
        found = re.match(r"(\d+) +(\w+)\(", line)
        has_begun = has_begun or "/plan.toml" in line
        if found is None or found[2] not in names or (path and not is_about(line, path)):
            continue
        counts[found[1], found[2]] += 1
        # Whichever thread comes there first is disturbed.
        point = Point(found[2], counts[found[1], found[2]], path)
        points.setdefault(point, has_begun and can_fail(line, error))
    return sorted(point for point, is_wanted in points.items() if is_wanted)


def is_about(line: str, path: str) -> bool:
    return f'/w/{path}"' in line or f'"./{path}"' in line


def find_starts(calls: str) -> list[Point]:
    """Every process that assay starts, by what strace said of assay's own threads: each makes this
    call once, so that they are counted together."""
    lines = [line for line in calls.splitlines() if re.match(r"\d+ +execve\(", line)]
    return [Point("execve", number) for number in range(1, len(lines))]


def choose(seed: str, items: list[Item]) -> list[Item]:
    """A sample in a fixed order, the same one every time; all in a complete sweep."""
    if SWEEP_ALL or len(items) <= POINTS:
        return items
    return random.Random(seed).sample(items, POINTS)


def go_on(scene: Scene, verb: str, *, may_fail: bool = False) -> int:
    """Goes on with what was disturbed until it is complete, as an operator would who can look
    into the ledger; how often one was asked. `verb` is how: `resume` or `run`. `may_fail`: nodes
    may have failed by the disturbance, which `resume` does not try again by itself."""
    retries: tuple[str, ...] = ()
    told: list[str] = []
    questions = 0
    certain = scene.certain_effects()
    for _ in range(MOST_STEPS):
        runs = scene.runs()
        if runs and runs[0]["status"] == "completed":
            # What others were built upon had settled: it is neither repeated nor asked about.
            for name, lines in certain.items():
                assert scene.lines(name) == lines, "\n".join(told)
            assert "keyless" not in certain or not questions, "\n".join(told)
            return questions
        words = ("resume", "last", *retries) if runs and verb == "resume" else ("run", "-j2")
        done = scene.assay(*words)
        told.append(f"{' '.join(words)}: exit {done.code}\n{done.err}")
        where = "\n".join(told)
        if done.code == 4:
            settle_truthfully(scene, done, where)
            questions += 1
        elif done.code == 1:
            assert may_fail, where
            retries = ("--retry-failed",)
        else:
            assert done.code == 0, where
    raise AssertionError("\n".join(told))


def settle_truthfully(scene: Scene, done: Finished, where: str) -> None:
    """Answers what assay asks, by the commands it prints, with what the ledger says."""
    asked = re.findall(r"assay settle (\S+) (\S+) --done", done.err)
    assert asked, where
    for run, node in asked:
        # Everything else can be taken back, or repeated under its key.
        assert node == "keyless", where
        assert "its effect may or may not have happened" in done.err, where
        happened = bool(scene.lines("keyless"))
        answer = ("--done", "--value", SENT) if happened else ("--not-done",)
        settled = scene.assay("settle", run, node, *answer)
        assert settled.code == 0, f"{where}\n{settled.err}"


def check_end(scene: Scene, undisturbed: Undisturbed | None) -> None:
    """Everything is as after a run that nothing disturbed, and is explained."""
    workspace = scene.workspace
    if undisturbed is not None:
        assert describe(workspace.root) == undisturbed.tree
        assert _outputs(scene) == undisturbed.outputs
    assert workspace.read("mine/notes") == "nobody declared this\n"

    assert len(scene.lines("keyless")) == 1
    assert {line.split()[1] for line in scene.lines("keyed")} == {"order-17"}
    undone = {line.removesuffix(".undo") for line in scene.lines("undone")}
    # A change that was begun and does not stand was taken back outside the workspace too.
    assert len(set(scene.lines("changed")) - undone) == 1

    assert scene.living == []
    for path in scene.system_tmp.glob("assay-unrecorded*"):
        shutil.rmtree(path)  # logs of a run that could not be recorded stay for the user
    assert [str(path) for path in scene.system_tmp.rglob("*")] == []
    check_store(scene)
    check_explained(scene)

    # Collection leaves alone what is younger than a minute.
    for path in (scene.store / "tmp").iterdir():
        os.utime(path, (0, 0))
    assert scene.assay("cache", "gc").code == 0
    assert [path.name for path in (scene.store / "tmp").iterdir() if path.suffix != ".lock"] == []


def check_store(scene: Scene) -> None:
    """The database is sound and no attempt is open."""
    with sqlite3.connect(f"file:{scene.store}/assay.db?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        open_attempts = "SELECT count(*) FROM attempts WHERE state = 'running'"
        assert database.execute(open_attempts).fetchone() == (0,)
    database.close()
    assert not (scene.store / "damaged").exists()


def check_explained(scene: Scene) -> None:
    """Every run can be shown, its journal tells how it ended, and tells of the begin of every
    attempt that has done something."""
    begun: set[str] = set()
    for run in scene.runs():
        shown = scene.assay("show", run["run"])
        assert shown.code == 0, shown.err
        assert run["status"] in shown.out
        told = scene.assay("journal", run["run"], "--json")
        assert told.code == 0, told.err
        records = [json.loads(line) for line in told.out.splitlines()]
        ends = [each["data"]["status"] for each in records if each["kind"] == "run-settled"]
        assert ends[-1:] == [run["status"]], told.out
        begun |= {each["data"]["attempt"] for each in records if each["kind"] == "attempt-begun"}
    assert {line.split()[0] for line in scene.effects()} <= begun


def _outputs(scene: Scene) -> dict[str, Any]:
    """The values of the latest run."""
    told = scene.assay("journal", "last", "--json")
    records = [json.loads(line) for line in told.out.splitlines()]
    ends = [record["data"] for record in records if record["kind"] == "run-settled"]
    found: dict[str, Any] = ends[-1]["outputs"]
    return found
