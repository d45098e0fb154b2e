"""Going on with a run: who may, what it had selected, and what it did so far."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from handmade import compiled, node
from plan_files import load_text
from store_rows import a_run, an_attempt, an_effect, digest, finish, open_store, start_python

from assay.engine import resumption
from assay.engine.clock import SystemClock
from assay.engine.identity import this_owner
from assay.engine.journal import Fact
from assay.engine.resumption import (
    History,
    IsComplete,
    OwnerLives,
    find_selection,
    find_unfinished,
    read_history,
)
from assay.engine.run_request import RunRequest
from assay.engine.runs import LEASE_SECONDS, LostFence, NoSuchRun, RunRow, Runs
from assay.engine.states import (
    ActionKey,
    AttemptEnd,
    Outcome,
    RunId,
    RunStatus,
    State,
)
from assay.engine.store import Store
from assay.plans.canonical import JsonValue
from assay.plans.diagnostics import PlanError
from assay.plans.generations import expand_template
from assay.plans.model import NodeName, Plan, RelPath

RUN = RunId("aaaaaaaa")
OPEN = (RunStatus.PENDING, RunStatus.RUNNING)
TO_GO_ON_WITH = [status for status in RunStatus if status not in (*OPEN, RunStatus.COMPLETED)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def no_pause(seconds: float) -> None:
    raise AssertionError("it waits")


def tell_nothing(text: str) -> None:
    raise AssertionError(f"it tells: {text}")


def refusals(store: Store) -> list[JsonValue]:
    return [
        record.data for record in store.journal.read(run=RUN) if record.kind == Fact.CLAIM_REFUSED
    ]


def claims(store: Store) -> list[tuple[str, int, int, str]]:
    """From which host, from and to which fence, and on what evidence it was claimed; always to
    this process."""
    found = []
    for record in store.journal.read(run=RUN):
        if record.kind == Fact.RUN_CLAIMED:
            told = cast("dict[str, Any]", record.data)
            former, to = told["from"], told["to"]
            assert (to["pid"], to["host"]) == (os.getpid(), os.uname().nodename)
            found.append((former["host"], former["fence"], to["fence"], told["evidence"]))
    return found


# Taking a run over.


@pytest.mark.parametrize("status", TO_GO_ON_WITH)
def test_a_run_that_did_not_complete_is_taken_over(store: Store, status: RunStatus) -> None:
    """C103: it is this process's, under a new fence, and as it was otherwise; its lease is held
    until it is let go."""
    before = dataclasses.replace(a_run(RUN, status=status), counts={"failed": 1})
    store.runs.create(before)
    row, lease = resumption.claim(store, RUN, None)
    assert row.fence == 2
    assert row.owner.pid == os.getpid()
    assert row.owner != before.owner
    # What it was is told to whoever goes on with it.
    assert row == dataclasses.replace(before, fence=2, owner=row.owner)
    now = store.runs.get(RUN)
    assert (now.status, now.settled_at, now.counts) == (RunStatus.RUNNING, None, {})
    assert (now.owner, now.fence) == (row.owner, 2)
    assert store.runs.is_alive(RUN)
    with pytest.raises(LostFence):
        store.runs.check_fence(RUN, 1)
    store.runs.check_fence(RUN, 2)
    lease.release()
    assert not store.runs.is_alive(RUN)
    assert refusals(store) == []


def test_a_run_that_completed_is_not_gone_on_with(store: Store) -> None:
    """It stays as it is, and no lease of it is left."""
    store.runs.create(a_run(RUN, status=RunStatus.COMPLETED))
    with pytest.raises(IsComplete, match="run aaaaaaaa has completed") as caught:
        resumption.claim(store, RUN, None)
    assert caught.value.row == store.runs.get(RUN)
    assert store.runs.get(RUN).fence == 1
    assert not os.path.exists(store.runs.lease_path(RUN))
    assert refusals(store) == []


def test_a_run_that_never_was_is_none(store: Store) -> None:
    """And no lease of that name is made."""
    with pytest.raises(NoSuchRun):
        resumption.claim(store, RUN, None)
    assert not os.path.exists(store.runs.lease_path(RUN))


OWNER = """
import sys, store_rows
store = store_rows.open_store(sys.argv[1])
lease = store.runs.take_lease("aaaaaaaa")
store.runs.create(store_rows.a_run("aaaaaaaa", owner=store_rows.this_owner()))
print("holds", flush=True)
sys.stdin.readline()
"""


def start_owner(root: Path) -> subprocess.Popen[str]:
    owner = start_python(OWNER, str(root))
    assert owner.stdout is not None
    assert owner.stdout.readline() == "holds\n"
    return owner


def test_a_living_owner_is_never_robbed(store: Store, tmp_path: Path) -> None:
    """C103: running or stopped; the refusal names it and is on record once, however often and
    by whomever it is asked."""
    owner = start_owner(tmp_path)
    before = store.runs.get(RUN)
    for number in range(4):
        if number == 2:
            owner.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, owner.pid, os.WSTOPPED | os.WNOWAIT)
        other = store if number % 2 else open_store(tmp_path)
        asked: Callable[[], object] = partial(resumption.claim, other, RUN, None)
        if number in (0, 3):
            asked = partial(resumption.refuse_living, other, RUN, tell_nothing, no_pause)
        with pytest.raises(OwnerLives) as caught:
            asked()
        stopped = f", stopped: `kill -CONT {owner.pid}` lets it go on" if number > 1 else ""
        assert str(caught.value) == (
            f"run aaaaaaaa is running: pid {owner.pid} on {os.uname().nodename}{stopped}"
        )
        assert caught.value.row == before
        if other is not store:
            other.close()
    assert store.runs.get(RUN) == before
    assert store.runs.is_alive(RUN)
    assert refusals(store) == [
        {"why": "its owner lives", "pid": owner.pid, "host": os.uname().nodename}
    ]
    owner.kill()
    owner.communicate()


def test_the_next_owner_is_refused_for_on_its_own_account(store: Store) -> None:
    """A record for each: the fence tells them apart."""
    store.runs.create(a_run(RUN, status=RunStatus.FAILED))
    for number in range(1, 4):
        _, lease = resumption.claim(store, RUN, None)
        other = open_store(store.root)
        for _ in range(2):
            with pytest.raises(OwnerLives):
                resumption.claim(other, RUN, None)
        other.close()
        assert len(refusals(store)) == number
        store.runs.settle(RUN, 1 + number, RunStatus.FAILED, {})
        lease.release(remove=True)


def test_what_a_dead_owner_left_is_dealt_with_first(store: Store, tmp_path: Path) -> None:
    """C103: a run nobody has settled yet is not gone on with, and stays for recovery."""
    owner = start_owner(tmp_path)
    owner.kill()
    owner.communicate()
    before = store.runs.get(RUN)
    with pytest.raises(OwnerLives):
        resumption.claim(store, RUN, None)
    assert store.runs.get(RUN) == before
    assert not store.runs.is_alive(RUN)
    told: list[str] = []
    resumption.wait_for_dead(store, RUN, SystemClock(), told.append, no_pause)
    assert told == [f"run aaaaaaaa was interrupted: its assay (pid {owner.pid}) is gone"]
    row, lease = resumption.claim(store, RUN, None)
    assert (row.status, row.fence) == (RunStatus.INTERRUPTED, 3)
    here = os.uname().nodename
    assert claims(store) == [(here, 1, 2, "pid gone"), (here, 2, 3, "settled")]
    lease.release(remove=True)


CLAIMER = """
import sys, store_rows
from assay.engine import resumption
from assay.engine.clock import SystemClock
from assay.engine.runs import LostFence
store = store_rows.open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    row, lease = resumption.claim(store, "aaaaaaaa", None)
    print("got", row.fence, flush=True)
except (resumption.OwnerLives, LostFence) as error:
    print("refused", flush=True)
sys.stdin.readline()
"""


def test_of_many_that_go_on_with_it_one_does(store: Store, tmp_path: Path) -> None:
    """C103: two `resume` at once, or six."""
    store.runs.create(a_run(RUN, status=RunStatus.INTERRUPTED))
    claimers = [start_python(CLAIMER, str(tmp_path)) for _ in range(6)]
    for claimer in claimers:
        assert claimer.stdout is not None
        assert claimer.stdout.readline() == "ready\n"
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    said = [claimer.stdout.readline() for claimer in claimers if claimer.stdout is not None]
    assert sorted(said) == ["got 2\n"] + ["refused\n"] * 5
    winner = claimers[said.index("got 2\n")]
    assert store.runs.get(RUN).owner.pid == winner.pid
    assert store.runs.get(RUN).fence == 2
    assert len(refusals(store)) <= 1
    for claimer in claimers:
        finish(claimer, "end\n")


class Elsewhere:
    """A store whose run is owned by another host; the clock moves by what is paused."""

    def __init__(self, root: Path) -> None:
        self.now = 1000.0
        self.store = Store.open_for_run(str(root), now=lambda: self.now)
        self.store.runs = Runs(
            self.store.database, lambda: self.now, lambda: self.store.tmp, lambda: self.now
        )
        self.told: list[str] = []
        owner = dataclasses.replace(this_owner(), boot="another", host="elsewhere", pid=77)
        self.store.runs.create(a_run(RUN, owner=owner, created_at=1000.0))
        self.paused = 0.0
        self.happens: Callable[[], None] = lambda: None

    def pause(self, seconds: float) -> None:
        assert 0 < seconds <= 1
        self.paused += seconds
        self.now += seconds
        self.happens()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    elsewhere = Elsewhere(tmp_path)
    yield elsewhere
    elsewhere.store.close()


def test_an_owner_on_another_host_lives_while_its_heart_beats(elsewhere: Elsewhere) -> None:
    """It is not robbed, and the refusal is on record once."""

    def beat() -> None:
        if elsewhere.paused > 5:
            elsewhere.store.runs.heartbeat(RUN, 1)

    elsewhere.happens = beat
    for _ in range(2):
        with pytest.raises(OwnerLives, match="pid 77 on elsewhere"):
            resumption.refuse_living(elsewhere.store, RUN, elsewhere.told.append, elsewhere.pause)
        assert elsewhere.paused < LEASE_SECONDS
    with pytest.raises(OwnerLives, match="pid 77 on elsewhere"):
        resumption.claim(elsewhere.store, RUN, None)
    assert len(refusals(elsewhere.store)) == 1
    assert elsewhere.store.runs.get(RUN).fence == 1
    assert not os.path.exists(elsewhere.store.runs.lease_path(RUN))


def test_an_owner_on_another_host_whose_heart_stands_still_is_dead(elsewhere: Elsewhere) -> None:
    """It is awaited for the time of its lease; then the run is settled and gone on with."""
    resumption.refuse_living(elsewhere.store, RUN, elsewhere.told.append, elsewhere.pause)
    assert LEASE_SECONDS - 1 <= elsewhere.paused <= LEASE_SECONDS + 2
    assert refusals(elsewhere.store) == []
    told: list[str] = []
    resumption.wait_for_dead(elsewhere.store, RUN, SystemClock(), told.append, no_pause)
    assert elsewhere.told == [
        "run aaaaaaaa is one of another host (pid 77 on elsewhere): waiting up to 30s for a sign of"
        " life"
    ]
    assert told == [
        "run aaaaaaaa was interrupted: its assay (pid 77 on elsewhere) has given no sign of life"
        " for 30s"
    ]
    assert claims(elsewhere.store) == [("elsewhere", 1, 2, "lease expired and heartbeat still")]
    row, lease = resumption.claim(elsewhere.store, RUN, None)
    assert claims(elsewhere.store)[1:] == [("elsewhere", 2, 3, "settled")]
    assert (row.status, row.fence) == (RunStatus.INTERRUPTED, 3)
    lease.release(remove=True)


@pytest.mark.parametrize("at", [0.01, 5.0])
def test_a_run_of_another_host_that_settles_meanwhile_has_no_owner(
    elsewhere: Elsewhere, at: float
) -> None:
    """It is taken as one of this host."""

    def settle() -> None:
        if elsewhere.paused > at:
            elsewhere.store.runs.settle(RUN, 1, RunStatus.FAILED, {})

    elsewhere.happens = settle
    resumption.refuse_living(elsewhere.store, RUN, elsewhere.told.append, elsewhere.pause)
    assert elsewhere.paused < at + 2
    row, lease = resumption.claim(elsewhere.store, RUN, None)
    assert row.fence == 2
    lease.release(remove=True)


@pytest.mark.parametrize("status", list(RunStatus))
def test_a_run_without_an_owner_is_refused_to_nobody(store: Store, status: RunStatus) -> None:
    """Settled, or one whose owner died."""
    store.runs.create(a_run(RUN, status=status))
    resumption.refuse_living(store, RUN, tell_nothing, no_pause)
    assert refusals(store) == []


def test_waiting_for_a_heartbeat_can_be_interrupted(elsewhere: Elsewhere) -> None:
    """What `pause` raises ends it."""

    def stop() -> None:
        raise KeyboardInterrupt

    elsewhere.happens = stop
    with pytest.raises(KeyboardInterrupt):
        resumption.refuse_living(elsewhere.store, RUN, elsewhere.told.append, elsewhere.pause)
    assert refusals(elsewhere.store) == []


# What it had selected.


def row_of(plan: Plan, *targets: str) -> RunRow:
    return dataclasses.replace(a_run(RUN), targets=targets, plan_digest=plan.digest)


def selected(plan: Plan, history: History, *targets: str) -> list[str]:
    found = find_selection(plan, row_of(plan, *targets), history)
    assert found.indices == tuple(sorted(set(found.indices)))
    assert set(found.targets) <= set(found.indices)
    return [plan.nodes[index].name for index in found.indices]


def test_the_selection_is_that_of_the_first_time(tmp_path: Path) -> None:
    """By targets or tags, with what they need and the handlers that join."""
    plan = compiled(
        tmp_path,
        [
            node("a", writes=["a.o"]),
            node("b", reads=["a.o"], writes=["b.o"], tags=("t",)),
            node("c"),
        ],
    )
    assert selected(plan, History()) == ["a", "b", "c"]
    assert selected(plan, History(), "a") == ["a"]
    assert selected(plan, History(), "b") == ["a", "b"]
    assert selected(plan, History(tags=("t",))) == ["a", "b"]
    with pytest.raises(PlanError):
        selected(plan, History(), "gone")


PLAN = """
name = "p"
[nodes.gen]
run = "mkdir -p g; echo 1 > g/a; echo 2 > g/b"
writes = ["g/"]
[nodes.t]
foreach = "g/*"
run = "cat {{each}} > o-{{each.name}}"
reads = ["{{each}}"]
writes = ["o-{{each.name}}"]
[nodes.m]
foreach = "g/*"
matrix = { os = ["l", "w"] }
run = "cat {{each}} > m-{{matrix.os}}-{{each.name}}"
reads = ["{{each}}"]
writes = ["m-{{matrix.os}}-{{each.name}}"]
[nodes.use]
run = "cat o-* > all"
reads = ["o-*"]
writes = ["all"]
[nodes.apart]
run = "true"
"""


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Plan, History]:
    """A plan all of whose templates have expanded, and what the journal tells of that."""
    plan = load_text(tmp_path, PLAN).plan
    history = History()
    for index in range(plan.base_size):
        name = plan.nodes[index].name
        if plan.nodes[index].template is not None:
            size = len(plan.nodes)
            plan = expand_template(plan, index, [RelPath("g/a"), RelPath("g/b")])
            history.expanded[name] = tuple(n.name for n in plan.nodes[size:])
    return plan, history


def test_the_selection_is_of_the_first_generation(grown: tuple[Plan, History]) -> None:
    """Instances join with their template, as they did the first time."""
    plan, history = grown
    names = [plan.nodes[index].name for index in range(plan.base_size)]
    assert len(plan.nodes) == plan.base_size + 6
    assert selected(plan, history) == names
    assert selected(plan, history, "apart") == ["apart"]
    assert selected(plan, history, "t") == ["gen", "t"]
    assert selected(plan, history, "use") == ["gen", "t", "use"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("t[g/a]", ["gen", "t"]),
        ("m[g/b,os=w]", ["gen", "m[os=w]"]),
        ("m", ["gen", "m[os=l]", "m[os=w]"]),
        ("m[os=l]", ["gen", "m[os=l]"]),
    ],
)
def test_an_instance_stands_for_its_template(
    grown: tuple[Plan, History], target: str, expected: list[str]
) -> None:
    """Which there were showed only later: all of the template were meant."""
    plan, history = grown
    assert selected(plan, history, target) == expected


# What it did.


class Journalled:
    """A run whose journal is written as the run loop does."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._sequence = 0

    def note(self, kind: Fact, data: JsonValue, name: str | None = None) -> int:
        self._sequence += 1
        return self.store.journal.append(
            f"run:{RUN}", self._sequence, kind, run=RUN, node=name, data=data
        )

    def create(self, **more: JsonValue) -> int:
        self.store.runs.create(a_run(RUN, status=RunStatus.FAILED))
        return self.note(Fact.RUN_CREATED, {"plan": "p", **more})

    def begin(self, number: int, name: str, tries: int = 1) -> None:
        self.note(
            Fact.ATTEMPT_BEGUN,
            {
                "attempt": f"{RUN}-{number}",
                "number": tries,
                "action_key": digest(number),
                "log": f"/l/{number}",
            },
            name,
        )

    def end(self, number: int, name: str, end: AttemptEnd, **more: JsonValue) -> int:
        return self.note(
            Fact.ATTEMPT_SETTLED,
            {"attempt": f"{RUN}-{number}", "number": 1, "end": end.value, **more},
            name,
        )

    def succeed(self, number: int, name: str, output: str, **more: JsonValue) -> int:
        recorded: JsonValue = {
            "address": digest(number),
            "outputs": [[output, f"file:{digest(number)}"]],
            "value": '"v"',
            "serves": True,
        }
        return self.end(
            number,
            name,
            AttemptEnd.SUCCEEDED,
            recorded=recorded,
            duration_seconds=0.5,
            **more,
        )

    def settle(self, *outcomes: tuple[str, Outcome, str, str | None]) -> None:
        self.note(
            Fact.NODES_SETTLED,
            {
                "outcomes": [
                    [name, outcome.value, why, key, None] for name, outcome, why, key in outcomes
                ]
            },
        )

    def read(self) -> tuple[int, History]:
        return read_history(self.store, self.store.runs.get(RUN))


@pytest.fixture
def journal(store: Store) -> Journalled:
    return Journalled(store)


def test_a_run_that_began_nothing_has_no_history(store: Store, journal: Journalled) -> None:
    """But for where it was created, and how."""
    for number in range(3):
        store.journal.append("other", number, "x", run=RunId("bbbbbbbb"))
    position = journal.create(tags=["a", "b"], flags=["fail_fast", "strict"], jobs=3)
    assert position == 4
    assert journal.read() == (
        position,
        History(tags=("a", "b"), flags=frozenset({"fail_fast", "strict"}), jobs=3),
    )


def test_results_of_the_run_are_found_again(journal: Journalled) -> None:
    """The latest of each node, with the place of its record; what failed, was cancelled or had
    nothing to record has none."""
    journal.create()
    for number, name in enumerate(("a", "a", "b", "c", "d"), 1):
        journal.begin(number, name)
    journal.succeed(1, "a", "old")
    position = journal.succeed(2, "a", "d/\udcff")
    journal.end(3, "b", AttemptEnd.EXITED, exit_code=1)
    journal.end(4, "c", AttemptEnd.SUCCEEDED)
    _, history = journal.read()
    assert list(history.done) == ["a"]
    found = history.done[NodeName("a")]
    assert (found.node, found.run, found.plan_file) == ("a", RUN, "plan.toml")
    assert (found.address, found.action_key) == (digest(2), digest(2))
    assert found.outputs == ((RelPath("d/\udcff"), State(f"file:{digest(2)}")),)
    assert (found.value, found.log, found.journal_seq) == ('"v"', "/l/2", position)
    assert found.duration_seconds == 0.5
    assert not found.serves


def test_an_effect_is_no_result(journal: Journalled) -> None:
    """Its own row speaks for it."""
    journal.create()
    journal.begin(1, "pub")
    journal.succeed(1, "pub", "o", effect="succeeded")
    assert journal.read()[1].done == {}


def test_how_nodes_settled_last_is_what_counts(journal: Journalled) -> None:
    """A run that went on and failed, or mended, what it had settled before."""
    journal.create()
    k, other = digest(1), digest(2)
    journal.settle(
        ("ok", Outcome.BUILT, "", k),
        ("served", Outcome.CLEAN, "", None),
        ("failed", Outcome.FAILED, "exited with code 1", k),
        ("never began", Outcome.FAILED, "reads `x`, which does not exist", None),
        ("skipped", Outcome.SKIPPED, "because of `failed`", None),
        ("cancelled", Outcome.CANCELLED, "", k),
        ("asks", Outcome.AMBIGUOUS, "", k),
        ("later", Outcome.DEFERRED, "", None),
        ("mended", Outcome.FAILED, "", k),
        ("broken", Outcome.BUILT, "", k),
        ("again", Outcome.FAILED, "first", k),
        ("dropped", Outcome.FAILED, "", k),
    )
    journal.settle(
        ("mended", Outcome.BUILT, "", k),
        ("broken", Outcome.FAILED, "now", other),
        ("again", Outcome.FAILED, "second", other),
        ("dropped", Outcome.CANCELLED, "", k),
    )
    _, history = journal.read()
    assert history.settled == {"ok": k, "served": None, "mended": k}
    assert history.failed == {
        "failed": (ActionKey(k), "exited with code 1"),
        "broken": (ActionKey(other), "now"),
        "again": (ActionKey(other), "second"),
    }


def test_tries_and_numbers_go_on_where_they_ended(store: Store, journal: Journalled) -> None:
    """The most tries of each node; the highest number that any record, attempt or effect of the
    run has, restores included."""
    journal.create()
    journal.begin(1, "a")
    journal.begin(2, "a", 2)
    journal.begin(3, "b")
    assert journal.read()[1].tries == {"a": 2, "b": 1}
    assert journal.read()[1].ordinal == 0
    store.attempts.begin(an_attempt(RUN, 9))
    store.attempts.begin(an_attempt(RUN, 10))
    store.attempts.begin(an_attempt("aaaaaaab", 99))
    assert journal.read()[1].ordinal == 10
    store.effects.put(an_effect(RUN, 12))
    assert journal.read()[1].ordinal == 12


def test_expansions_are_found_again(journal: Journalled) -> None:
    """In their order, those without instances too."""
    journal.create()
    for name, nodes in (("t", ["t[b]", "t[a]"]), ("none", [])):
        journal.note(
            Fact.GENERATION_APPENDED,
            {"generation": 1, "template": name, "nodes": list[JsonValue](nodes), "digest": "d"},
            name,
        )
    assert journal.read()[1].expanded == {"t": ("t[b]", "t[a]"), "none": ()}


def test_what_other_runs_did_is_not_this_ones(store: Store, journal: Journalled) -> None:
    """Nor what a record of no run tells."""
    journal.create()
    other = RunId("bbbbbbbb")
    store.runs.create(a_run(other))
    data: JsonValue = {"outcomes": [["x", "built", "", None, None]]}
    store.journal.append("o", 1, Fact.NODES_SETTLED, run=other, data=data)
    store.journal.append("o", 2, Fact.NODES_SETTLED, run=None, data=data)
    store.attempts.begin(an_attempt(other, 7))
    assert journal.read()[1] == History()


def test_an_end_without_its_begin_is_not_believed(journal: Journalled) -> None:
    """C87: where a damaged journal has lost records, what is left of it ends nothing: the node
    is executed again."""
    journal.create()
    journal.begin(2, "b")
    journal.succeed(1, "a", "o")
    position = journal.succeed(2, "b", "p")
    journal.settle(("b", Outcome.BUILT, "", digest(2)))
    _, history = journal.read()
    assert list(history.done) == ["b"]
    assert history.done[NodeName("b")].journal_seq == position
    assert history.settled == {"b": digest(2)}


# Which run `--resume` goes on with.


def request(*targets: str, tags: tuple[str, ...] = ()) -> RunRequest:
    return RunRequest(environ={}, targets=targets, tags=tags, params=(("mode", "dev"),))


def add_run(
    store: Store,
    run: str,
    status: RunStatus,
    *targets: str,
    tags: tuple[str, ...] = (),
    name: str = "site",
    mode: str = "dev",
    file: str = "plan.toml",
) -> None:
    row = a_run(run, status=status, plan_file=file)
    store.runs.create(
        dataclasses.replace(row, targets=targets, plan_name=name, params=(("mode", mode),))
    )
    store.journal.append(
        f"run:{run}", 1, Fact.RUN_CREATED, run=RunId(run), data={"tags": list(tags)}
    )


@pytest.fixture
def site(tmp_path: Path) -> Plan:
    return compiled(tmp_path, [node("a")], name="site")


@pytest.mark.parametrize("status", TO_GO_ON_WITH)
def test_the_newest_run_of_the_same_request_is_gone_on_with(
    store: Store, site: Plan, status: RunStatus
) -> None:
    """Runs of other plans, targets, tags or parameters are none."""
    assert find_unfinished(store, site, request()) is None
    add_run(store, "00000001", RunStatus.FAILED)
    add_run(store, "00000002", status)
    add_run(store, "00000003", RunStatus.FAILED, "a")
    add_run(store, "00000004", RunStatus.FAILED, tags=("t",))
    add_run(store, "00000005", RunStatus.FAILED, name="other")
    add_run(store, "00000006", RunStatus.FAILED, mode="prod")
    add_run(store, "00000007", RunStatus.COMPLETED, file="other.toml")
    assert find_unfinished(store, site, request()) == "00000002"
    assert find_unfinished(store, site, request("a")) == "00000003"
    assert find_unfinished(store, site, request(tags=("t",))) == "00000004"


def test_a_run_that_was_followed_by_a_complete_one_is_left(store: Store, site: Plan) -> None:
    """What it did not do has been done since."""
    add_run(store, "00000001", RunStatus.FAILED)
    add_run(store, "00000002", RunStatus.COMPLETED)
    assert find_unfinished(store, site, request()) is None


def test_a_run_whose_owner_lives_is_left(store: Store, site: Plan) -> None:
    """And one whose owner died is gone on with, though nobody has settled it yet."""
    add_run(store, "00000001", RunStatus.RUNNING)
    assert find_unfinished(store, site, request()) == "00000001"
    with store.runs.take_lease(RunId("00000001")):
        assert find_unfinished(store, site, request()) is None
