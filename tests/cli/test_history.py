"""Asking about runs: runs, show, log, journal, why, cache."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from workspace import Workspace

PLAN = """\
[nodes.gen]
run = "echo making; cp src mid"
reads = ["src"]
writes = ["mid"]

[nodes.bad]
run = "echo broken >&2; exit 3"
reads = ["mid"]
"""


@pytest.fixture
def ran(workspace: Workspace) -> Workspace:
    """A workspace in which one run failed."""
    workspace.write("plan.toml", PLAN)
    workspace.write("src", "1")
    assert workspace.assay("run").code == 1
    return workspace


def _digest(root: Path) -> dict[str, str]:
    """Every path below `root` with mode, time, inode and content, save what SQLite itself
    keeps beside the database."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        if path.name in ("assay.db-wal", "assay.db-shm", ".assay"):
            continue
        info = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = f"{info.st_mode} {info.st_mtime_ns} {info.st_ino} {content}"
    return found


QUESTIONS = [
    ["check"],
    ["plan"],
    ["why", "gen"],
    ["runs"],
    ["show"],
    ["log", "bad"],
    ["journal"],
    ["cache", "stats"],
    ["run", "--dry-run"],
    ["doctor"],
]


@pytest.mark.parametrize("words", QUESTIONS, ids=" ".join)
def test_questions_change_nothing(ran: Workspace, words: list[str]) -> None:
    """C133 No question writes to the workspace or to `.assay/`."""
    before = _digest(ran.root)

    done = ran.assay(*words)

    assert done.code == 0, done.err
    assert _digest(ran.root) == before


def test_runs_are_listed_latest_first(ran: Workspace) -> None:
    """`runs` names each run, how it ended and how its nodes did."""
    ran.write("plan.toml", PLAN.replace("exit 3", "exit 0"))
    ran.run()

    done = ran.assay("runs")
    lines = done.out.splitlines()
    assert lines[0].split() == ["run", "status", "began", "took", "plan", "nodes"]
    assert [line.split()[1] for line in lines[1:]] == ["completed", "failed"]
    assert lines[2].endswith("1 built, 1 failed")

    told = json.loads(ran.assay("runs", "--json").out)
    assert [each["status"] for each in told] == ["completed", "failed"]
    assert told[1]["counts"] == {"built": 1, "failed": 1}
    assert len(json.loads(ran.assay("runs", "-n", "1", "--json").out)) == 1


def test_run_is_shown_by_prefix_or_last(ran: Workspace) -> None:
    """`show` takes a unique prefix or `last`; nodes and attempts are listed."""
    run = json.loads(ran.assay("runs", "--json").out)[0]["run"]

    for words in ([], ["last"], [run], [run[:5]]):
        done = ran.assay("show", *words)
        assert done.code == 0, done.err
        assert done.out.startswith(f"run {run}  failed: 1 built, 1 failed\n")
        assert "exit code 3" in done.out
    told = json.loads(ran.assay("show", "--json").out)
    assert {each["node"]: each["outcome"] for each in told["nodes"]} == {
        "gen": "built",
        "bad": "failed",
    }
    assert [each["end"] for each in told["attempts"]] == ["succeeded", "exited"]


def test_unknown_run_is_exit_2(ran: Workspace) -> None:
    """A run that is not there is a mistake, with the way to find the right one."""
    done = ran.assay("show", "zzzz")

    assert (done.code, done.out) == (2, "")
    assert done.err == "error: There is no run `zzzz`\n\nhint: `assay runs` lists them\n"


def test_nothing_recorded_yet(workspace: Workspace) -> None:
    """C134 Asking before the first run says so and creates nothing."""
    workspace.write("plan.toml", PLAN)

    for words in (["runs"], ["show"], ["log", "gen"], ["journal"], ["cache", "stats"]):
        done = workspace.assay(*words)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("error: No runs are recorded in ")
    assert workspace.assay("cache", "clear").code == 2
    assert os.listdir(workspace.root) == ["plan.toml"]


def test_log_of_a_node_or_an_attempt(ran: Workspace) -> None:
    """C54 `log` prints what an attempt wrote, byte for byte."""
    assert ran.assay("log", "gen").out == "making\n"
    assert ran.assay("log", "bad").out == "broken\n"
    attempts = json.loads(ran.assay("show", "--json").out)["attempts"]
    assert ran.assay("log", attempts[1]["attempt"]).out == "broken\n"
    assert ran.assay("log", "gen", "--run", "last").out == "making\n"

    ran.write("quiet.toml", '[nodes.quiet]\nrun = "true"\n')
    ran.run("quiet.toml")
    silent = ran.assay("log", "quiet")
    assert (silent.code, silent.out) == (0, "")
    assert "printed nothing" in silent.err

    done = ran.assay("log", "gem", "--run", "prev")
    assert done.code == 2
    done = ran.assay("log", "gem", "--run", attempts[0]["attempt"][:8])
    assert done.code == 2
    assert done.err.endswith("hint: Did you mean `gen`?\n")
    assert ran.assay("log", "nosuch").code == 2


def test_log_is_found_although_the_plan_is_wrong(ran: Workspace) -> None:
    """C131 A broken plan file keeps nobody from asking what happened."""
    ran.write("plan.toml", "this is no TOML")

    assert ran.assay("log", "bad").out == "broken\n"
    assert ran.assay("show").code == 0
    assert ran.assay("runs").code == 0


def test_journal_tells_the_run_and_expands_an_agreement(ran: Workspace) -> None:
    """A run without work is one record that names what it agrees with; `show` and `journal`
    spell it out."""
    ran.write("plan.toml", PLAN.replace("exit 3", "exit 0") + "cache = true\n")
    ran.run()
    ran.run()

    shown = ran.assay("show").out
    assert "clean" in shown
    assert "gen" in shown
    told = json.loads(ran.assay("show", "--json").out)
    assert {each["node"]: each["outcome"] for each in told["nodes"]} == {
        "gen": "clean",
        "bad": "clean",
    }
    journal = ran.assay("journal", "last").out
    assert "gen" in journal
    records = [json.loads(line) for line in ran.assay("journal", "--json").out.splitlines()]
    assert [each["seq"] for each in records] == sorted(each["seq"] for each in records)
    node = ran.assay("journal", "--node", "bad", "--json").out.splitlines()
    assert {json.loads(line)["node"] for line in node} == {"bad"}
    unknown = ran.assay("journal", "--node", "bat")
    assert (unknown.code, unknown.out) == (0, "")
    assert "no record is of `bat`" in unknown.err


def test_why_names_what_changed(ran: Workspace) -> None:
    """`why` gives the verdict, each change with before and after, and since when."""
    clean = ran.assay("why", "gen")
    assert clean.code == 0, clean.err
    assert clean.out.startswith("gen is clean: ")

    ran.write("src", "2")
    ran.write("plan.toml", PLAN.replace("echo making", "echo remaking"))
    changed = ran.assay("why", "gen")
    run = json.loads(ran.assay("runs", "--json").out)[0]["run"]

    assert changed.out.startswith("gen would run: ")
    assert "\n  reads  src\n    before  " in changed.out
    assert "echo remaking" in changed.out
    assert f"compared with the result recorded by run {run} (" in changed.out
    told = json.loads(ran.assay("why", "gen", "--json").out)
    assert told[0]["verdict"] == "run"
    assert {each["path"] for each in told[0]["changes"] if each["field"] == "reads"} == {"src"}


def test_cache_is_looked_after(ran: Workspace) -> None:
    """`cache stats`, `verify`, `gc` and `clear` say what they found and did."""
    stats = json.loads(ran.assay("cache", "stats", "--json").out)
    assert stats["results"] >= 1
    assert "results   " in ran.assay("cache", "stats").out

    verified = ran.assay("cache", "verify")
    assert (verified.code, verified.out.splitlines()[-1]) == (0, "all is sound")
    assert ran.assay("cache", "gc", "--max-size", "1G", "--max-age", "30d").code == 0
    assert ran.assay("cache", "clear").out.startswith("removed ")
    assert json.loads(ran.assay("cache", "stats", "--json").out)["results"] == 0
    assert ran.assay("runs").code == 0
    assert ran.run("gen").named("built") == {"gen"}


def test_damaged_blob_is_found(ran: Workspace) -> None:
    """C17 `cache verify` sets a damaged blob aside and exits with 5."""
    blob = next(path for path in ran.path(".assay/cas").rglob("*") if path.is_file())
    blob.chmod(0o644)
    blob.write_bytes(b"wrong")

    done = ran.assay("cache", "verify")

    assert done.code == 5
    assert "is damaged; kept as " in done.out
    assert ran.assay("cache", "verify").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-size", "big"], "`--max-size` needs a size such as 500M or 10G, not `big`"),
        (["--max-age", "old"], "`--max-age` must be a duration"),
    ],
)
def test_limits_of_the_cache_are_checked(ran: Workspace, words: list[str], message: str) -> None:
    """A size or age that is none is refused."""
    done = ran.assay("cache", "gc", *words)

    assert done.code == 2
    assert done.err.startswith(f"error: {message}")
