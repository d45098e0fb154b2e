"""Random crashes, cancels, edits and operators against what must hold of effects whatever happens:
one without a key once for each run that completed, a compensable one whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from sweep import SWEEP_ALL
from workspace import ASSAY, Finished, Workspace, explain

pytestmark = pytest.mark.proof

EXAMPLES = int(os.environ.get("ASSAY_EXAMPLES", "500" if SWEEP_ALL else "8"))
OPERATOR = 4
STEPS = 12

PLAN = """\
[nodes.first]
run = "cat conf > made"
reads = ["conf"]
writes = ["made"]

[nodes.mod]
run = "{pause}; echo $ASSAY_ATTEMPT >> text; {pause}; cp made copied"
reads = ["made", "text"]
writes = ["text", "copied"]
tier = "compensable"
undo = "echo $ASSAY_ATTEMPT >> undone"

[nodes.keyed]
run = "echo $ASSAY_RUN $ASSAY_IDEMPOTENCY_KEY >> keyed; {pause}"
after = ["mod"]
tier = "irreversible"
idempotency_key = "same"

[nodes.sent]
run = "{pause}; echo $ASSAY_RUN >> sent; {pause}; echo 1 > $ASSAY_RESULT"
reads = ["conf"]
after = ["keyed"]
tier = "irreversible"
result = "json"

[nodes.last]
run = "cat copied > all; echo $SENT >> all"
reads = ["copied"]
writes = ["all"]
env = {{ SENT = {{ from = "sent" }} }}
"""


class Machine(RuleBasedStateMachine):
    """One workspace from its first run on. The test itself is the operator, and truthful."""

    def __init__(self) -> None:
        super().__init__()
        self.workspace = Workspace(Path(tempfile.mkdtemp(prefix="effects-")))
        self.conf = "a\n"

    def teardown(self) -> None:
        shutil.rmtree(self.workspace.root)

    @initialize(pause=st.sampled_from(["true", "sleep 0.05"]))
    def lay_out(self, pause: str) -> None:
        self.workspace.write("plan.toml", PLAN.format(pause=pause))
        self.workspace.write("conf", self.conf)
        self.workspace.write("text", "base\n")

    def lines(self, name: str) -> list[str]:
        path = self.workspace.path(name)
        return path.read_text().splitlines() if path.exists() else []

    def told(self, *words: str) -> list[dict[str, Any]]:
        done = self.workspace.assay(*words)
        if done.code == 2:
            return []  # nothing is recorded yet
        assert done.code == 0, done.err
        text = done.out if words[0] == "journal" else json.dumps(json.loads(done.out))
        if words[0] == "journal":
            return [json.loads(line) for line in text.splitlines()]
        found: list[dict[str, Any]] = json.loads(text)
        return found

    @rule(text=st.sampled_from(["a\n", "b\n"]))
    def edit(self, text: str) -> None:
        self.conf = text
        self.workspace.write("conf", text)

    @rule(
        milliseconds=st.integers(60, 500),
        how=st.sampled_from([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]),
        words=st.sampled_from([("run", "-j1"), ("run",), ("resume", "last"), ("run", "--resume")]),
        spares=st.booleans(),
    )
    def disturb(
        self, milliseconds: int, how: signal.Signals, words: tuple[str, ...], spares: bool
    ) -> None:
        """Assay killed or cancelled wherever it is; a killed one alone (`spares`), or with all it
        has started."""
        with subprocess.Popen(
            ["env", "--default-signal=INT", str(ASSAY), *words],
            cwd=self.workspace.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as started:
            # Nothing is waited for: any moment is as good to be killed at as another.
            time.sleep(milliseconds / 1000)
            below = [] if spares or how is not signal.SIGKILL else descendants(started.pid)
            started.send_signal(how)
            for pid in below:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self.check_effects()

    @rule(
        words=st.sampled_from([("run", "--json"), ("resume", "last", "--json", "--retry-failed")])
    )
    def go_on(self, words: tuple[str, ...]) -> None:
        """To the end, with an operator where one is needed."""
        for _ in range(6):
            done = self.workspace.assay(*words)
            assert "Traceback" not in done.err, done.err
            self.check_effects()
            if done.code != OPERATOR:
                break
            if not self.settle(done):
                words = ("run", "--json")  # it saw an older state of its sources
        if words[0] == "resume" and done.code == 2:
            return  # there was nothing to go on with
        if words[0] == "resume" and done.code in (1, OPERATOR):
            return  # sources have changed since it began
        assert done.code == 0, explain(done)
        assert self.lines("all")[-1:] == ["1"], self.lines("all")
        if words[0] == "run":
            assert self.workspace.read("copied") == self.conf
        self.check_rewritten()

    def settle(self, done: Finished) -> bool:
        """Says truly what is the case with every effect that is asked about; False: none was."""
        is_asked = False
        for event in done.events:
            if event["event"] == "node-settled" and event["asks"] is not None:
                is_asked = True
                run, node = event["asks"], event["node"]
                assert node in ("sent", "mod"), event
                words = ["--not-done"]
                if node == "sent" and run in self.lines("sent"):
                    words = ["--done", "--value", "1"]
                said = self.workspace.assay("settle", run, node, *words)
                assert said.code == 0, said.err
        return is_asked

    def check_effects(self) -> None:
        completed = [
            each["run"] for each in self.told("runs", "--json") if each["status"] == "completed"
        ]
        sent = self.lines("sent")
        assert len(sent) <= len(completed) + 1, (sent, completed)
        assert len(set(sent)) == len(sent), sent
        assert {line.split()[1] for line in self.lines("keyed")} <= {"same"}

    def check_rewritten(self) -> None:
        """Every line of `text` is that of an attempt that stands, and none is missing."""
        standing: list[str] = []
        for record in self.told("journal", "--json"):
            data = record["data"]
            if record["node"] != "mod":
                continue
            if record["kind"] == "attempt-settled" and data.get("effect") == "succeeded":
                standing.append(data["attempt"])
            if record["kind"] == "rolled-back" and data["attempt"] in standing:
                standing.remove(data["attempt"])
        assert self.lines("text") == ["base", *standing]


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    pending = [pid]
    while pending:
        each = pending.pop()
        try:
            text = Path(f"/proc/{each}/task/{each}/children").read_text()
            for thread in os.listdir(f"/proc/{each}/task"):
                text += " " + Path(f"/proc/{each}/task/{thread}/children").read_text()
        except OSError:
            continue
        below = [int(word) for word in text.split()]
        found += below
        pending += below
    return list(dict.fromkeys(found))


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * EXAMPLES)
def test_whatever_happens_effects_are_accounted_for() -> None:
    """C95, C97, C100, C101, C103: random schedules of kills, cancels, edits, runs, resumes and
    truthful operators."""
    chosen: Callable[[], RuleBasedStateMachine] = Machine
    run_state_machine_as_test(
        chosen,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
