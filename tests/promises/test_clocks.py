"""A clock that is wrong, or set meanwhile: nothing is served, missed or warned of by it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from counted import Counted
from workspace import ASSAY, Finished

DAY_SECONDS = 86_400

PLAN = {
    "first": {"run": "cp in mid", "reads": ["in"], "writes": ["mid"]},
    "second": {"run": "cp mid out", "reads": ["mid"], "writes": ["out"]},
}


def run_at(counted: Counted, offset_seconds: int, *words: str) -> Finished:
    """`assay run` by a clock that differs from the one file systems stamp by."""
    command = [str(ASSAY), "run", "--json", *words]
    done = subprocess.run(
        ["faketime", "-f", f"{offset_seconds:+d}s", *command] if offset_seconds else command,
        cwd=counted.root,
        env={**os.environ, "NO_FAKE_STAT": "1"},
        capture_output=True,
        text=True,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def needs_faketime() -> None:
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not there")


@pytest.mark.parametrize("offset_seconds", [-2 * DAY_SECONDS, -3, 3, 2 * DAY_SECONDS])
def test_results_count_whatever_the_clock_says(counted: Counted, offset_seconds: int) -> None:
    """Behind or ahead of the file system's clock: a result is made once, and again when what it
    is made of changes; nothing is said to have changed while it was read."""
    counted.plan(PLAN)
    counted.write("in", "1")
    for text in ("1", "2", "3"):
        counted.write("in", text)
        done = run_at(counted, offset_seconds)
        assert done.outcomes == {"first": "built", "second": "built"}, done.err
        assert "warned" not in done.out
        assert counted.read("out") == text
        again = run_at(counted, offset_seconds)
        assert again.counts == {"clean": 2}, again.out


def test_a_clock_that_jumps_between_runs(counted: Counted) -> None:
    """Set back and forth: what is unchanged stays clean, what is changed is made, the newest
    run is the last one."""
    counted.plan(PLAN)
    counted.write("in", "0")
    offsets = [0, -DAY_SECONDS, DAY_SECONDS, 0, -3600]
    for number, offset_seconds in enumerate(offsets):
        counted.write("in", str(number))
        assert run_at(counted, offset_seconds).counts == {"built": 2}
        assert counted.read("out") == str(number)
        assert run_at(counted, -offset_seconds).counts == {"clean": 2}
    last = run_at(counted, -DAY_SECONDS).events[0]["run"]
    assert counted.assay("show", "last").out.startswith(f"run {last} ")


def test_a_failed_try_is_over_once_a_later_one_succeeded(counted: Counted) -> None:
    """C83: which try of a node was the last is not asked of the clock. Files the user adds to a
    written tree after a good try are not taken for what a bad one left."""
    counted.plan(
        {"a": {"run": "mkdir -p t; cp in t/x; test -e ok", "reads": ["in"], "writes": ["t/"]}}
    )
    counted.write("in", "1")
    assert run_at(counted, DAY_SECONDS).code == 1
    counted.write("ok", "")
    assert run_at(counted, 0).counts == {"built": 1}
    counted.write("t/mine", "by hand")
    counted.write("in", "2")
    assert run_at(counted, 0).counts == {"built": 1}
    assert counted.read("t/mine") == "by hand"
