"""Twenty processes on one `.assay/`: running, cancelling, killing, reading and collecting."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sweep import SWEEP_ALL, check_recovery, lay_out
from workspace import ASSAY, Workspace

pytestmark = pytest.mark.proof

ASKING = (
    ("runs",),
    ("show",),
    ("journal",),
    ("why", "all"),
    ("check",),
    ("run", "--dry-run"),
    ("cache", "stats"),
    ("log", "list"),
)
CHANGING = (
    ("run",),
    ("run", "--json", "-j1"),
    ("run", "--fresh"),
    ("run", "tree"),
    ("cancel", "last"),
    ("cache", "gc", "--max-age", "0s"),
    ("cache", "verify"),
)

NOTHING_YET = 2
"""What a question answers when nothing has been recorded."""


def perform(workspace: Workspace, words: tuple[str, ...], system_tmp: Path) -> tuple[int, str]:
    """Exit code and what was said."""
    done = subprocess.run(
        [str(ASSAY), *words],
        cwd=workspace.root,
        env={**os.environ, "TMPDIR": str(system_tmp)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


def disturb(workspace: Workspace, chance: random.Random, system_tmp: Path) -> tuple[int, str]:
    """A run that is stopped for a while, and goes on or is killed."""
    with subprocess.Popen(
        [str(ASSAY), "run"],
        cwd=workspace.root,
        env={**os.environ, "TMPDIR": str(system_tmp)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as started:
        # Nothing is waited for: wherever the run is by then, it is to be disturbed there.
        time.sleep(chance.uniform(0.1, 0.5))
        started.send_signal(signal.SIGSTOP)
        time.sleep(chance.uniform(0, 0.3))
        started.send_signal(signal.SIGKILL if chance.random() < 0.5 else signal.SIGCONT)
        _, err = started.communicate()
        return started.returncode, err


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30 if SWEEP_ALL else 3))
def test_twenty_processes_do_each_other_no_harm(
    tmp_path: Path, system_tmp: Path, undisturbed: dict[str, str], seed: int
) -> None:
    """C85, C93, C96: whatever runs beside what, each either does its work, is cancelled, or says
    whom it gives way to; afterwards the store is sound and the tree that of one quiet run."""
    workspace = lay_out(tmp_path / "w")

    def act(number: int) -> list[tuple[tuple[str, ...], int, str]]:
        chance = random.Random(f"{seed} {number}")
        told = []
        for _ in range(3):
            if number % 7 == 6:
                told.append((("disturbed",), *disturb(workspace, chance, system_tmp)))
            else:
                words = chance.choice(CHANGING if number % 2 else ASKING)
                told.append((words, *perform(workspace, words, system_tmp)))
        return told

    with ThreadPoolExecutor(20) as pool:
        told = [each for acts in pool.map(act, range(20)) for each in acts]

    for words, code, err in told:
        assert "Traceback" not in err, (words, err)
        allowed = {0, NOTHING_YET} if words[0] not in ("run", "disturbed") else {0, 143}
        if words[0] == "disturbed":
            allowed.add(-signal.SIGKILL)
        assert code in allowed, (words, code, err)
    check_recovery(workspace, undisturbed, system_tmp)
    database = sqlite3.connect(f"file:{workspace.path('.assay')}/assay.db?mode=ro", uri=True)
    open_runs = database.execute("SELECT id FROM runs WHERE settled_at IS NULL").fetchall()
    database.close()
    assert open_runs == []
