"""Every start of `assay`: versions, help, mistakes, outputs that go away, folders that are gone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from workspace import ASSAY, Workspace

HELLO = '[nodes.hello]\nrun = "echo hello > out"\nwrites = ["out"]\n'


def _shell(workspace: Workspace, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A bash line in the workspace, with `assay` on the path and failures of pipes kept."""
    path = f"{ASSAY.parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", script],
        cwd=workspace.root,
        env={**os.environ, "PATH": path, **env},
        text=True,
        capture_output=True,
    )


def test_version_is_printed_without_more(workspace: Workspace) -> None:
    """`assay --version` prints one line."""
    done = workspace.assay("--version")

    assert done.code == 0
    assert re.fullmatch(r"assay \d+\.\d+\.\d+\S*\n", done.out)
    assert done.err == ""


@pytest.mark.parametrize(
    ("words", "forbidden"),
    [
        (["--version"], ("typer", "rich", "pydantic")),
        (["run", "--dry-run"], ("typer", "rich")),
        (["runs"], ("typer", "rich.console", "pydantic")),
        (["check", "--help"], ("rich",)),
    ],
)
def test_start_imports_what_it_needs(
    workspace: Workspace, words: list[str], forbidden: tuple[str, ...]
) -> None:
    """No start pays for libraries it does not use."""
    workspace.write("plan.toml", HELLO)
    program = (
        "import sys\n"
        f"sys.argv = ['assay', *{words!r}]\n"
        "from assay.cli.main import main\n"
        "code = main()\n"
        "print(*sorted(sys.modules), sep='\\n', file=open('modules', 'w'))\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=workspace.root, capture_output=True)

    modules = set(workspace.read("modules").split())
    assert not modules & set(forbidden)


def test_no_arguments_print_the_help(workspace: Workspace) -> None:
    """`assay` alone shows the commands, and is a mistake to a script."""
    done = workspace.assay()

    assert done.code == 2
    assert "Usage: assay" in done.out
    assert "run " in done.out


@pytest.mark.parametrize(
    ("words", "err"),
    [
        (
            ["run", "--jbos", "3"],
            (
                "error: No such option: --jbos (Possible options: --jobs, --json)\n\n"
                "hint: `assay run --help` shows what it takes\n"
            ),
        ),
        (["run", "-j", "0"], "error: `--jobs` must be a positive integer, not `0`\n"),
        (["run", "-p", "mode"], "error: `-p` needs NAME=VALUE, not `mode`\n"),
        (["cache", "gc", "--max-size", "x"], None),
    ],
)
def test_mistakes_on_the_command_line_are_exit_2(
    workspace: Workspace, words: list[str], err: str | None
) -> None:
    """C111, C131 A wrong command line says what is wrong, runs nothing and creates nothing."""
    workspace.write("plan.toml", HELLO)

    done = workspace.assay(*words)

    assert (done.code, done.out) == (2, "")
    assert done.err == err or err is None
    assert sorted(os.listdir(workspace.root)) == ["plan.toml"]


@pytest.mark.parametrize(
    "words", [["run"], ["run", "plan.toml"], ["check"], ["plan"], ["why", "a"], ["runs"], ["show"]]
)
def test_nothing_is_created_in_the_wrong_folder(workspace: Workspace, words: list[str]) -> None:
    """C134 Without a plan every command fails and leaves the folder as it was."""
    done = workspace.assay(*words)

    assert done.code == 2
    assert done.err.startswith("error: ")
    assert os.listdir(workspace.root) == []


def test_missing_plan_says_where_it_looked(workspace: Workspace) -> None:
    """C134 The message names the file, the folder and `assay init`."""
    assert workspace.assay("run").err == (
        f"error: No plan: there is no `plan.toml` in `{workspace.root}` or any folder above it\n"
        "\n"
        "hint: `assay init` writes one here\n"
    )


def test_deleted_folder_is_a_clear_error(workspace: Workspace) -> None:
    """C125 Started in a folder that is gone, assay says so."""
    done = _shell(workspace, "mkdir gone && cd gone && rmdir ../gone && assay run")

    assert done.returncode == 5
    assert done.stderr == (
        "environment: The current folder no longer exists\n\nhint: `cd` to a folder that exists\n"
    )


def test_reader_that_goes_away_ends_a_question_quietly(workspace: Workspace) -> None:
    """C77 `assay schema | head -1` is no error."""
    done = _shell(workspace, "assay schema | head -1")

    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


@pytest.mark.parametrize("words", ["schema", "--help", "--version"])
def test_output_that_cannot_be_written_is_an_error(workspace: Workspace, words: str) -> None:
    """C77 /dev/full is told, once and without a traceback."""
    done = _shell(workspace, f"assay {words} > /dev/full")

    assert done.returncode == 5
    assert done.stderr == (
        "environment: Standard output cannot be written: No space left on device\n"
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_do_no_harm(workspace: Workspace, closed: str) -> None:
    """C67 Whatever descriptor the caller closed, messages end up in no file of assay's."""
    workspace.write("plan.toml", HELLO)

    done = _shell(workspace, f"assay run {closed}")

    assert done.returncode == 0, done.stderr
    assert workspace.read("out") == "hello\n"
    assert workspace.assay("doctor").code == 0


@pytest.mark.parametrize(
    "words", [["run"], ["--help"], ["run", "--help"], ["plan"], ["why", "é"], ["check"], ["show"]]
)
def test_ascii_locale_never_crashes(workspace: Workspace, words: list[str]) -> None:
    """C76 In a strict ASCII locale the exit code is the same and nothing breaks."""
    workspace.write("plan.toml", '[nodes."é"]\nrun = "echo ✓"\n')
    workspace.assay("run")
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}

    done = workspace.assay(*words, env=ascii_only)

    assert done.code == workspace.assay(*words).code == 0, done.err
    assert (done.out + done.err).isascii()
    assert "Traceback" not in done.err


def test_internal_error_says_how_to_report_it(workspace: Workspace, tmp_path: Path) -> None:
    """A broken invariant ends with the traceback, versions and what to do, never silently."""
    program = (
        "import sys\n"
        "from assay.cli import location, main\n"
        "def broken(*words): raise AssertionError('two\\nlines')\n"
        "import assay.cli.commands.schema as schema\n"
        "schema.json_schema = broken\n"
        "sys.argv = ['assay', 'schema']\n"
        "sys.exit(main.main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )

    assert done.returncode == 5
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "\ninternal error: AssertionError: two\\nlines (assay " in done.stderr
    assert "\nhint: This is a fault of assay, not of your plan. Report it" in done.stderr


def test_completion_scripts_are_printed(workspace: Workspace) -> None:
    """`--show-completion` gives a script that completes commands and choices."""
    shown = workspace.assay("--show-completion", "bash")
    assert shown.code == 0

    completed = workspace.assay(
        env={
            "_ASSAY_COMPLETE": "complete_bash",
            "COMP_WORDS": "assay run --log ",
            "COMP_CWORD": "3",
        }
    )
    assert completed.out.split() == ["failed", "all", "none"]
