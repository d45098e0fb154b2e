"""Random plans, edits, crashes and collections against a model of a page: the files are always
right, and nothing is executed that was recorded or served that was not."""

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

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sweep import SWEEP_ALL
from workspace import ASSAY, Finished, Workspace, explain

pytestmark = pytest.mark.proof

SOURCES = ("s0", "s1", "s2")
EXAMPLES = int(os.environ.get("ASSAY_EXAMPLES", "500" if SWEEP_ALL else "12"))
NODES = 4
NO_CACHE_YET = 2
WORDS = st.sampled_from(["", "a", "b", "longer than before"])

Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""What decides a result: where it goes, the word its command adds, what it reads."""


class Model:
    """What a workspace should hold, and which results may be known."""

    def __init__(self, reads: list[list[str]]) -> None:
        self.sources = dict.fromkeys(SOURCES, "")
        self.words = ["x"] * len(reads)
        self.reads = reads
        self.recorded: set[Key] = set()
        self.perhaps: set[Key] = set()
        """What a run that was killed may have recorded, or not."""

    def keys(self) -> dict[str, Key]:
        """Node to key, in order; `content` of a key is what its node writes."""
        files = dict(self.sources)
        keys: dict[str, Key] = {}
        for number, reads in enumerate(self.reads):
            read = tuple((name, files[name]) for name in reads)
            keys[f"n{number}"] = key = (f"o{number}", self.words[number], read)
            files[f"o{number}"] = content(key)
        return keys


def content(key: Key) -> str:
    _, word, reads = key
    return f"{word}|" + "".join(text for _, text in reads)


class Machine(RuleBasedStateMachine):
    """One workspace from its first run on."""

    def __init__(self) -> None:
        super().__init__()
        self.workspace = Workspace(Path(tempfile.mkdtemp(prefix="model-")))
        self.settled = False

    def teardown(self) -> None:
        shutil.rmtree(self.workspace.root)

    @initialize(data=st.data())
    def lay_out(self, data: st.DataObject) -> None:
        reads = [
            data.draw(
                st.lists(
                    st.sampled_from([*SOURCES, *(f"o{earlier}" for earlier in range(number))]),
                    min_size=1,
                    max_size=3,
                    unique=True,
                )
            )
            for number in range(NODES)
        ]
        self.model = Model(reads)
        for name, text in self.model.sources.items():
            self.workspace.write(name, text)
        self.write_plan()

    def write_plan(self) -> None:
        lines = []
        for number, reads in enumerate(self.model.reads):
            script = f"printf '%s|' '{self.model.words[number]}' > o{number}"
            script += f"; cat {' '.join(reads)} >> o{number}"
            lines += [
                f"[nodes.n{number}]",
                f"run = {json.dumps(script)}",
                f"reads = {json.dumps(reads)}",
                f'writes = ["o{number}"]',
            ]
        self.workspace.write("plan.toml", "\n".join(lines) + "\n")
        self.settled = False

    @rule(name=st.sampled_from(SOURCES), text=WORDS)
    def edit(self, name: str, text: str) -> None:
        self.model.sources[name] = text
        self.workspace.write(name, text)
        self.settled = False

    @rule(number=st.integers(0, NODES - 1), word=WORDS)
    def change_command(self, number: int, word: str) -> None:
        self.model.words[number] = word
        self.write_plan()

    @rule(number=st.integers(0, NODES - 1), text=st.sampled_from([None, "", "by hand"]))
    def spoil(self, number: int, text: str | None) -> None:
        path = self.workspace.path(f"o{number}")
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(text)
        self.settled = False

    @rule()
    def clear(self) -> None:
        assert self.workspace.assay("cache", "clear").code in (0, NO_CACHE_YET)
        self.model.recorded.clear()
        self.model.perhaps.clear()

    @rule()
    def collect(self) -> None:
        assert self.workspace.assay("cache", "gc").code in (0, NO_CACHE_YET)

    @rule(milliseconds=st.integers(0, 250), how=st.sampled_from([signal.SIGKILL, signal.SIGTERM]))
    def disturb(self, milliseconds: int, how: signal.Signals) -> None:
        """A run that is killed, or cancelled, wherever it is."""
        with subprocess.Popen(
            [str(ASSAY), "run"],
            cwd=self.workspace.root,
            env=os.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as started:
            # Nothing is waited for: any moment is as good to be killed at as another.
            time.sleep(milliseconds / 1000)
            started.send_signal(how)
        self.model.perhaps |= set(self.model.keys().values())
        self.settled = False

    @rule()
    def run(self) -> None:
        done = self.workspace.assay("run", "--json")
        assert done.code == 0, explain(done)
        self.check_outcomes(done)
        self.settled = True

    def check_outcomes(self, done: Finished) -> None:
        keys = self.model.keys()
        known = self.model.recorded
        for node, key in keys.items():
            if done.outcomes[node] == "built":
                assert key not in known, f"{node} was executed needlessly: {done.out}"
            else:
                assert key in known | self.model.perhaps, f"{node} was never made: {done.out}"
            known.add(key)

    @rule()
    def predict(self) -> None:
        """A dry run says what the run then does, and does nothing."""
        before = sorted(os.listdir(self.workspace.root))
        told = self.workspace.assay("run", "--dry-run", "--json")
        assert told.code == 0, told.err
        assert sorted(os.listdir(self.workspace.root)) == before

    @invariant()
    def files_are_right(self) -> None:
        if self.settled:
            for key in self.model.keys().values():
                assert self.workspace.read(key[0]) == content(key)


@pytest.mark.slow
@pytest.mark.timeout(120 + 30 * EXAMPLES)
def test_whatever_happens_the_files_are_right() -> None:
    """C25, C83, C84: results follow from what they are made of, whichever way a workspace took."""
    chosen: Callable[[], RuleBasedStateMachine] = Machine
    run_state_machine_as_test(
        chosen,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=14,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
