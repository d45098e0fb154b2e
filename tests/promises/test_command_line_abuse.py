"""Whatever stands on the command line: one message, exit code 2, nothing done."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from workspace import ASSAY, Finished, Workspace

PLAN = '[nodes.a]\nrun = "echo hello > out"\nwrites = ["out"]\n'

LONG = "9" * 100_000
"""Close to the most that Linux passes in one argument."""


@pytest.fixture
def hello(workspace: Workspace) -> Workspace:
    workspace.write("plan.toml", PLAN)
    return workspace


def refuse(workspace: Workspace, *words: str | bytes) -> str:
    """What is said to a command line that is wrong: one error, and nothing is made."""
    done = subprocess.run([str(ASSAY), *words], cwd=workspace.root, capture_output=True)
    err = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b""), err[:2000]
    assert err.startswith("error: ")
    assert err.count("error: ") == 1
    assert os.listdir(workspace.root) == ["plan.toml"]
    return err


@pytest.mark.parametrize("value", ["", "-1", "1.5", " 4", "٣", LONG, "4294967296", "\n"])
@pytest.mark.parametrize("flag", ["-j", "--agents"])
def test_no_number_is_too_odd_to_be_refused(hello: Workspace, flag: str, value: str) -> None:
    """C111: an amount is a positive integer that Python, SQLite and the machine can bear."""
    message = refuse(hello, "run", flag, value)

    assert "must be " in message or "requires an argument" in message or "No such" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs", "-n", LONG[:30]], f"`--limit` must be at most 1,000,000,000, not `{LONG[:30]}`"),
        (["cache", "gc", "--max-size", LONG], "`--max-size` needs a size such as 500M or 10G"),
        (["cache", "gc", "--max-size", "10EB"], "`--max-size` needs a size such as 500M or 10G"),
        (["cache", "gc", "--max-age", LONG + "d"], "`--max-age` must be a duration"),
        (["cache", "gc", "--max-age", "-1d"], "`--max-age` must be a duration"),
    ],
)
def test_limits_beyond_reason_are_refused(hello: Workspace, words: list[str], message: str) -> None:
    """Sizes, ages and counts that no machine has are told, not computed with."""
    assert refuse(hello, *words).startswith(f"error: {message}")


@pytest.mark.parametrize(
    "words",
    [
        ["cache", "gc", "--max-size", ""],
        ["cache", "gc", "--max-age="],
        ["log", "a", "--run", ""],
        ["journal", "--node="],
        ["run", "--boundary", ""],
        ["run", "--color="],
    ],
)
def test_an_option_with_an_empty_text_is_not_taken_for_absent(
    hello: Workspace, words: list[str]
) -> None:
    """`--max-size "$UNSET"` in a script would otherwise do something else than was meant."""
    option = words[-2] if words[-1] == "" else words[-1].rstrip("=")
    assert f"`{option}` " in refuse(hello, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", ""], "There is no node ``"),
        (["run", "a", "b\nc"], "There is no node `b\\nc`"),
        (["run", b"\xff"], "There is no node `\\xff`"),
        (["run", "\x1b[31mred"], "There is no node `\\x1b[31mred`"),
        (["run", "--", "--help"], "There is no node `--help`"),
        (["run", "[!"], "There is no node `[!`"),
        (["run", "--tag", b"\xfe"], "No node has the tag `\\xfe`"),
        (["run", "plan.toml", "plan.toml"], "There is no node `plan.toml`"),
        (["run", "/dev/null.toml"], "`/dev/null.toml` does not exist"),
        (["run", "-p", "=x"], "`-p` needs NAME=VALUE, not `=x`"),
        (["run", "-p", "no=x"], "The plan has no param `no`"),
        (["run", "-"], "Standard input is empty"),
        (["check", b"\xff.toml"], "`\\xff.toml` does not exist"),
        (["check", "."], "`.` is no plan file: its name ends in .toml or .json"),
        (["why", "nobody"], "There is no node `nobody`"),
        (["runn"], "No such command 'runn'. Did you mean 'run', 'runs'?"),
        ([""], "No such command ''"),
        (["cache", "--json"], "No such option: --json"),
        (["schema", "extra"], "Got unexpected extra argument(s) (extra)"),
        (["show", "'; drop table runs; --"], "No runs are recorded in"),
    ],
)
def test_words_that_name_nothing(hello: Workspace, words: list[str | bytes], message: str) -> None:
    """C121, C123: whatever a word is made of, it is shown on one line and as it was given."""
    assert refuse(hello, *words).startswith(f"error: {message}")


@pytest.mark.parametrize("words", [["show"], ["journal"], ["log", "a", "--run"], ["log"]])
def test_questions_about_what_was_never_recorded(hello: Workspace, words: list[str]) -> None:
    """No wildcard, quote or path means a run: it is named by the letters of its id."""
    assert hello.assay("run", "-q").code == 0

    for word in ("%", "*", "'", "..", b"\xff", LONG):
        done = subprocess.run([str(ASSAY), *words, word], cwd=hello.root, capture_output=True)

        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith((b"error: There is no run `", b"error: No attempt of `"))


def test_a_node_named_like_an_option_is_refused_in_the_plan(workspace: Workspace) -> None:
    """C123: so no command line can be read in two ways."""
    workspace.write("plan.toml", '[nodes."--help"]\nrun = "true"\n[nodes."-j4"]\nrun = "true"\n')

    done = workspace.assay("run", "--", "--help")

    assert done.code == 2
    assert done.err.count("cannot be the name of a node: it starts with `-`") == 2


def test_words_after_two_dashes_are_no_options(workspace: Workspace) -> None:
    """C123: plan and nodes may stand behind `--`, and a file called `-x.toml` only there."""
    workspace.write("-x.toml", PLAN)

    assert workspace.assay("run", "-x.toml").code == 2
    assert workspace.assay("run", "--", "-x.toml", "a").code == 0
    assert workspace.read("out") == "hello\n"


def test_options_given_twice_and_nodes_given_often(hello: Workspace) -> None:
    """The last value of an option counts; a node named many times runs once."""
    done = hello.assay("run", "-j1", "--log", "none", "--json", "--json", "-j", "2", *["a"] * 1000)

    assert done.code == 0, done.err
    assert done.counts == {"built": 1}
    assert done.events[0]["jobs"] == 2


def test_very_many_words(hello: Workspace) -> None:
    """As many words as the system passes: each unknown one is told, in reasonable time."""
    words = [f"node-{number:06}" for number in range(20_000)]

    done = hello.assay("run", "a", *words)

    assert done.code == 2
    assert done.err.count("error: There is no node") == len(words)


def test_standard_input_that_is_no_plan(hello: Workspace, tmp_path: Path) -> None:
    """Bytes, an endless bracket and a closed descriptor are each one message."""
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(1 << 16))
    nested = tmp_path / "nested"
    nested.write_text("[" * 200_000)
    for redirect, said in (
        (f"<{noise}", "Standard input is not UTF-8"),
        (f"<{nested}", "is nested too deeply"),
        ("<&-", "Standard input is empty"),
    ):
        done = _shell(hello, f'"$0" run - {redirect}')
        assert done.code == 2, done.err
        assert said in done.err
        assert os.listdir(hello.root) == ["plan.toml"]


def _shell(workspace: Workspace, script: str) -> Finished:
    done = subprocess.run(
        ["sh", "-c", script, str(ASSAY)], cwd=workspace.root, capture_output=True, text=True
    )
    return Finished(done.returncode, done.stdout, done.stderr)
