"""`assay run` as a user meets it: output, exit codes, signals, readers and terminals that go."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workspace import ASSAY, Workspace

Start = Callable[..., Any]


def _shape(text: str) -> str:
    """Output with times, run ids and log folders replaced."""
    text = re.sub(r"\b\d+\.\d\ds\b", "TIME", text)
    text = re.sub(r"\b[0-9a-f]{8}\b", "RUN", text)
    return re.sub(r"/\S*/\.assay/logs/", "LOGS/", text)


def _popen(workspace: Workspace, *words: str, **more: Any) -> subprocess.Popen[bytes]:
    """A running `assay` that heeds SIGINT even where the test's own process ignores it."""
    heeding = ["env", "--default-signal=INT"]
    return subprocess.Popen([*heeding, str(ASSAY), *words], cwd=workspace.root, **more)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A named pipe: a node that reads it is held until the test writes, one that writes it
    has begun once the test reads."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def test_output_of_a_good_run(workspace: Workspace) -> None:
    """Piped, a run is one line a node and a summary on standard error, outputs on standard
    output; run again it is one line."""
    workspace.write(
        "plan.toml",
        '[nodes.gen]\nrun = "echo 1 > mid"\nwrites = ["mid"]\n'
        "[nodes.link]\nrun = 'cp mid out; echo 1.2 > \"$ASSAY_RESULT\"'\n"
        'reads = ["mid"]\nwrites = ["out"]\nresult = "text"\n'
        '[outputs]\nversion = { from = "link" }\n',
    )

    first = workspace.assay("run")
    assert first.code == 0, first.err
    assert first.out == 'version = "1.2"\n'
    lines = _shape(first.err).splitlines()
    assert [line.split()[:3] for line in lines[:2]] == [
        ["built", "gen", "TIME"],
        ["built", "link", "TIME"],
    ]
    assert lines[2:] == ["2 built in TIME (run RUN)"]

    second = workspace.assay("run")
    assert (second.code, second.out) == (0, 'version = "1.2"\n')
    assert _shape(second.err).splitlines()[-1] == "nothing to do: 2 clean in TIME (as in run RUN)"


def test_failed_node_shows_everything_needed(workspace: Workspace) -> None:
    """C41 Last lines, exit code, time, command and log; exit 1; dependents are skipped."""
    workspace.write(
        "plan.toml",
        '[nodes.bad]\nrun = "echo out; echo why >&2; exit 3"\nwrites = ["o"]\n'
        '[nodes.user]\nrun = "true"\nreads = ["o"]\n',
    )

    done = workspace.assay("run", "-j", "1")

    block = (
        "failed: Node `bad` exited with code 3 after TIME\n"
        "   | out\n"
        "   | why\n"
        "   = run it alone: assay run bad\n"
        "   = log: LOGS/RUN-1.log\n"
    )
    assert done.code == 1
    assert done.out == ""
    shown = _shape(done.err)
    assert shown.startswith(block + "skipped   user  ")
    assert shown.endswith("\n\n" + block + "1 failed, 1 skipped in TIME (run RUN, failed)\n")


def test_signal_is_named(workspace: Workspace) -> None:
    """A node killed by a signal is told by the signal's name."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "kill -SEGV $$"\n')

    assert "Node `a` was killed by SIGSEGV after " in workspace.assay("run").err


def test_json_is_all_there_is_on_stdout(workspace: Workspace) -> None:
    """`--json` writes events only, also for failures, and nothing on standard error."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "echo noise; exit 1"\n')

    done = workspace.assay("run", "--json")

    assert done.code == 1
    assert done.err == ""
    assert [event["seq"] for event in done.events] == list(range(1, len(done.events) + 1))
    assert done.events[-1]["event"] == "run-settled"
    assert done.events[-1]["status"] == "failed"
    assert done.outcomes == {"a": "failed"}


def test_no_node_selected_is_exit_2(workspace: Workspace) -> None:
    """C125 Selecting nothing is no silent success."""
    workspace.write("plan.toml", 'default = []\n[nodes.build]\nrun = "true"\n')
    done = workspace.assay("run")
    assert (done.code, done.out) == (2, "")
    assert workspace.assay("run", "--tag", "nosuch").code == 2

    done = workspace.assay("run", "biuld")
    assert done.code == 2
    assert "`build`" in done.err
    assert not workspace.path(".assay").exists()


def test_plan_error_creates_nothing(workspace: Workspace) -> None:
    """C134 A plan error is exit 2 with file and line, and leaves no `.assay/`."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\ntimout = "1s"\n')

    done = workspace.assay("run")

    assert done.code == 2
    assert "--> plan.toml:3:1\n" in done.err
    assert ' 3 | timout = "1s"\n   | ^^^^^^\n' in done.err
    assert os.listdir(workspace.root) == ["plan.toml"]


def test_plan_is_found_in_a_parent_folder(workspace: Workspace) -> None:
    """C125 From a folder below, the same plan and the same workspace are used, also through a
    link; messages give paths that can be opened from there."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "echo 1 > out"\nwrites = ["out"]\n')
    workspace.write("sub/deep/file", "")
    workspace.path("link").symlink_to("sub/deep")
    assert workspace.assay("run").code == 0

    for folder in ("sub/deep", "link"):
        inner = Workspace(workspace.path(folder))
        assert inner.run().outcomes == {} or inner.run().counts == {"clean": 1}
        assert inner.assay("runs").code == 0
    assert not workspace.path("sub/deep/.assay").exists()

    workspace.write("plan.toml", "[nodes.a]\nrum = 1\n")
    assert "--> ../../plan.toml:" in Workspace(workspace.path("sub/deep")).assay("check").err


def test_plan_from_standard_input(workspace: Workspace) -> None:
    """`-` reads JSON from standard input; its errors show its own lines."""
    good = json.dumps({"name": "piped", "nodes": {"a": {"run": "echo 1 > o", "writes": ["o"]}}})
    done = workspace.assay("run", "-", "a", stdin=good)
    assert done.code == 0, done.err
    assert workspace.read("o") == "1\n"

    bad = workspace.assay("check", "-", stdin='{"nodes": {"a": {"rum": "x"}}}')
    assert bad.code == 2
    assert "--> <standard input>:1:" in bad.err
    assert ' 1 | {"nodes": {"a": {"rum": "x"}}}\n' in bad.err


def test_rerun_command_works_for_any_name(workspace: Workspace) -> None:
    """C121, C123 The command shown for a failed node can be pasted and runs that node."""
    name = 'it\'s a "b" $HOME'
    plan = {"nodes": {name: {"run": "exit 7"}, "a.json": {"run": "exit 7"}}}
    workspace.write("my plan.json", json.dumps(plan))

    done = workspace.assay("run", "my plan.json")

    assert done.code == 1
    commands = set(re.findall(r"= run it alone: (.*)", done.err))
    assert len(commands) == 2
    for command in commands:
        again = subprocess.run(
            ["/bin/bash", "-c", command],
            cwd=workspace.root,
            env={**os.environ, "PATH": f"{ASSAY.parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        assert again.returncode == 1
        assert "1 failed in " in again.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_cancels_and_tells_by_exit_code(
    workspace: Workspace, gate: Path, number: signal.Signals, code: int
) -> None:
    """C57 Each signal ends the run, its nodes and the process with 128 + its number."""
    workspace.write("plan.toml", f'[nodes.a]\nrun = "echo $$ > {gate}; exec sleep 300"\n')
    process = _popen(workspace, "run", stderr=subprocess.PIPE)
    pid = int(gate.read_text())

    process.send_signal(number)
    _, err = process.communicate(timeout=60)

    assert process.returncode == code
    shown = err.decode()
    assert f"{number.name} received: ending 1 running node (once more kills them at once)" in shown
    assert "1 cancelled in " in shown
    assert "Traceback" not in shown
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_many_interrupts_end_at_once_without_a_traceback(workspace: Workspace, gate: Path) -> None:
    """C58 A node that ignores signals is killed by the second Ctrl-C; twenty do no harm."""
    workspace.write(
        "plan.toml", f"[nodes.a]\nrun = \"trap '' INT TERM; echo x > {gate}; sleep 300\"\n"
    )
    process = _popen(workspace, "run", stderr=subprocess.PIPE)
    gate.read_text()

    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert b"SIGINT received: ending 1 running node" in process.stderr.readline()
    for _ in range(20):
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "SIGINT received: killing 1 running node" in err.decode()
    assert "Traceback" not in err.decode()
    assert workspace.assay("runs").code == 0


def test_nodes_finish_when_the_reader_goes_away(workspace: Workspace, gate: Path) -> None:
    """C77 `assay run | head -1`: the rest of the nodes still run, and the exit code is theirs."""
    workspace.write(
        "plan.toml",
        '[nodes.first]\nrun = "true"\n'
        f'[nodes.second]\nrun = "cat {gate} > got; echo 1 > done"\nafter = ["first"]\n'
        'writes = ["done", "got"]\n',
    )
    process = _popen(workspace, "run", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()

    gate.write_text("go")
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()

    assert process.wait(60) == 0
    assert err == b""
    assert workspace.read("done") == "1\n"


def test_full_output_is_told_after_the_nodes_finished(workspace: Workspace) -> None:
    """C77 With standard output on /dev/full the nodes run, and the end says what is wrong."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "echo 1 > o"\nwrites = ["o"]\n')
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [str(ASSAY), "run", "--json"], cwd=workspace.root, stdout=full, stderr=subprocess.PIPE
        )

    assert done.returncode == 5
    assert done.stderr.decode() == (
        "environment: Standard output cannot be written: No space left on device\n"
    )
    assert workspace.read("o") == "1\n"


def test_closed_terminal_ends_the_run(workspace: Workspace, gate: Path, terminal: Start) -> None:
    """C60 When the terminal is closed the run is cancelled and nothing crashes or loops."""
    workspace.write("plan.toml", f'[nodes.a]\nrun = "echo $$ > {gate}; exec sleep 300"\n')
    running = terminal("run")
    pid = int(gate.read_text())

    os.close(running.master)
    running.process.send_signal(signal.SIGHUP)
    code = running.process.wait(60)
    running.master = os.open(os.devnull, os.O_RDONLY)

    assert code == 129
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("words", "env", "coloured"),
    [
        (["run"], {}, True),
        (["run", "--color", "never"], {}, False),
        (["run"], {"NO_COLOR": "1"}, False),
        (["run"], {"TERM": "dumb"}, False),
        (["run", "--color=always"], {"NO_COLOR": "1"}, True),
    ],
)
def test_colours_on_a_terminal(
    workspace: Workspace, terminal: Start, words: list[str], env: dict[str, str], coloured: bool
) -> None:
    """C80 On a terminal there are colours unless option or environment say otherwise."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\n')

    code, shown = terminal(*words, env=env).finish()

    assert code == 0
    assert ("\x1b[" in shown) is coloured
    assert "start" in shown
    assert "a" in shown


def test_no_colours_in_a_pipe(workspace: Workspace) -> None:
    """C80 A pipe gets no escape codes."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "exit 1"\n')

    assert "\x1b" not in workspace.assay("run").err
    assert "\x1b[" in workspace.assay("run", "--color", "always").err


def test_github_actions(workspace: Workspace, tmp_path: Path) -> None:
    """C81 Groups are balanced, failures are annotated with file and line, a node's commands
    are neutralised, and the job summary is written."""
    workspace.write(
        "plan.toml",
        '[nodes.good]\nrun = "true"\n\n'
        '[nodes.bad]\nrun = "echo ::error::fake; echo ::endgroup::; exit 1"\n',
    )
    summary = tmp_path / "summary.md"
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}

    done = workspace.assay("run", "-j", "1", env=env)

    assert done.code == 1
    lines = done.err.splitlines()
    assert sum(line.startswith("::group::") for line in lines) == 1
    assert lines.count("::endgroup::") == 1
    errors = [line for line in lines if line.startswith("::error")]
    assert errors == [
        re.sub(r"TIME", re.search(r"after (\S+)", errors[0])[1], text)  # type: ignore[index]
        for text in [
            "::error file=plan.toml,line=4,title=Node bad failed::exited with code 1 after TIME"
        ]
    ]
    stopped = [line for line in lines if line.startswith("::stop-commands::")]
    token = stopped[0].removeprefix("::stop-commands::")
    assert len(token) >= 32
    assert lines.count(f"::{token}::") == len(stopped)
    assert "**failed** `bad` exited with code 1" in summary.read_text()


def test_dry_run_runs_and_writes_nothing(workspace: Workspace) -> None:
    """C133 `--dry-run` says what would run and why, and the run then does just that."""
    workspace.write(
        "plan.toml",
        '[nodes.a]\nrun = "cp src mid"\nreads = ["src"]\nwrites = ["mid"]\n'
        '[nodes.b]\nrun = "cp mid out"\nreads = ["mid"]\nwrites = ["out"]\n',
    )
    workspace.write("src", "1")

    dry = workspace.assay("run", "--dry-run")
    assert dry.code == 0, dry.err
    assert sorted(os.listdir(workspace.root)) == ["plan.toml", "src"]
    assert dry.out.startswith("run        a  ")
    assert dry.out.endswith("(nothing was run)\n")

    workspace.run()
    clean = workspace.assay("run", "--dry-run")
    assert clean.out.splitlines()[-1] == "2 clean (nothing was run)"
    workspace.write("src", "2")
    changed = workspace.assay("run", "--dry-run", "--json")
    assert [event["event"] for event in changed.events] == ["predicted"] * 2
    assert changed.events[0]["verdict"] == "run"
    assert workspace.run().named("built") == {"a", "b"}


def test_quiet_run_is_silent_unless_something_fails(workspace: Workspace) -> None:
    """`-q` leaves only failures and warnings."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\n[nodes.b]\nrun = "exit 1"\n')

    assert workspace.assay("run", "-q", "a").err == ""
    assert "Node `b` exited with code 1" in workspace.assay("run", "-q").err


def test_huge_output_costs_no_memory(workspace: Workspace) -> None:
    """C78 A node that prints 300 MB on one line, shown whole, leaves assay small."""
    workspace.write(
        "plan.toml", "[nodes.a]\nrun = \"head -c 300000000 /dev/zero | tr '\\\\0' a\"\n"
    )
    # From a small process of its own: a child's peak counts what it was before its exec.
    small = (
        "import resource, subprocess, sys; n = subprocess.DEVNULL;"
        "subprocess.run(sys.argv[1:], stdout=n, stderr=n, check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    words = [sys.executable, "-S", "-c", small, str(ASSAY), "run", "--log", "all"]
    done = subprocess.run(words, cwd=workspace.root, capture_output=True, text=True, check=True)

    assert int(done.stdout) < 200_000


def test_jobs_default_and_overrides(workspace: Workspace) -> None:
    """`-j` wins over the plan's `steps`, which wins over the CPUs there are."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\n')
    assert workspace.run().events[0]["jobs"] == len(os.sched_getaffinity(0))

    workspace.write("plan.toml", '[concurrency]\nsteps = 3\n[nodes.a]\nrun = "true"\n')
    assert workspace.run().events[0]["jobs"] == 3
    assert workspace.run("-j", "5").events[0]["jobs"] == 5
