"""The plain reading of a command line agrees with typer's, and leaves the rest to it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli import argv, parser
from assay.cli.errors import UsageError
from assay.cli.options import COMMANDS, GROUPS, Command, Option, Values

PLAIN = [
    "run",
    "run plan.toml",
    "run - a b",
    "run -j 4 --agents=2 x.json test[py=3.11]",
    "run a --tag x --tag=y -p mode=prod -p k= b",
    "run -j4 -q --log all --color=never",
    "run -- --help -x",
    "run --fail-fast --fresh --strict --dry-run --json --boundary declared",
    "check --json -p a=b other.toml",
    "plan --format dot a*",
    "why a",
    "runs -n 3",
    "show last --json",
    "log 1a2b3c4d-1",
    "log a --run last",
    "journal --node a",
    "cache stats",
    "cache gc --max-size 10G --max-age=30d",
    "cache clear --json",
    "init",
    "schema",
    "doctor --color always",
]

NOT_PLAIN = [
    "",
    "--help",
    "--version",
    "run --help",
    "cache",
    "cache --help",
    "runn",
    "run --jobs",
    "run --jobs -1",
    "run -j 0",
    "run -j=4",
    "run --log loud",
    "run --json=1",
    "run --unknown",
    "run -qq x -j",
    "why",
    "show a b",
    "runs x",
    "log",
]


@pytest.mark.parametrize("line", PLAIN)
def test_plain_lines_are_read_alike(line: str) -> None:
    """What is read without typer is exactly what typer reads."""
    words = line.split()

    read = argv.read(words)

    assert isinstance(read, Values)
    assert read == parser.parse(words)


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_other_lines_are_left_to_typer(line: str) -> None:
    """Help, mistakes and anything unusual are not decided by the plain reading."""
    assert argv.read(line.split()) is None


def _given(option: Option) -> st.SearchStrategy[list[str]]:
    if not option.metavar:
        return st.sampled_from(option.flags).map(lambda flag: [flag])
    if option.choices:
        values = st.sampled_from(option.choices)
    elif option.positive:
        values = st.integers(1, 999).map(str)
    else:
        values = st.text("abz=.*[]/ é-", min_size=0, max_size=5)
    flags = st.sampled_from(option.flags)
    joined = st.tuples(flags, values).map(
        lambda pair: [f"{pair[0]}={pair[1]}" if pair[0].startswith("--") else f"{pair[0]}{pair[1]}"]
    )
    apart = st.tuples(flags, values).map(list)
    return joined | apart


def _line(command: Command) -> st.SearchStrategy[list[str]]:
    pieces = [_given(option) for option in command.options]
    word = st.text("abz=.*[]-é", min_size=0, max_size=4).map(lambda text: [text])
    body = st.lists(st.one_of(*pieces, word), max_size=6)
    head = [command.group, command.name] if command.group else [command.name]
    return body.map(lambda parts: head + [piece for part in parts for piece in part])


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(COMMANDS).flatmap(_line))
def test_both_readings_agree_on_any_line(words: list[str]) -> None:
    """Whenever the plain reading gives values, typer gives the same ones."""
    read = argv.read(words)
    if read is None:
        return
    assert read == parser.parse(words)


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("run -j 0", "`--jobs` must be a positive integer, not `0`", None),
        ("run -j two", "`--jobs` must be a positive integer, not `two`", None),
        ("run --log loud", "`--log` is one of failed, all, none, not `loud`", None),
        ("cache", "Missing command", "`assay cache --help` shows what it takes"),
    ],
)
def test_mistakes_are_named(line: str, message: str, hint: str | None) -> None:
    """C111 A wrong value is refused with the option and what it may be."""
    with pytest.raises(UsageError) as caught:
        parser.parse(line.split())

    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_misspelt_option_is_answered_with_the_nearest() -> None:
    """C131 An unknown option or command names what was probably meant."""
    with pytest.raises(UsageError, match="--jobs"):
        parser.parse(["run", "--jbos", "3"])
    with pytest.raises(UsageError, match="'run'"):
        parser.parse(["rnu"])


def test_every_command_has_its_file() -> None:
    """The table names modules that exist and options that are told apart."""
    for command in COMMANDS:
        assert find_spec(f"assay.cli.commands.{command.module}") is not None, command
        flags = [flag for option in command.options for flag in option.flags]
        assert len(flags) == len(set(flags)), command
        assert not command.group or command.group in GROUPS
    names = [(command.group, command.name) for command in COMMANDS]
    assert len(names) == len(set(names))
