"""Reads an ordinary command line straight from the table of options.

A start through typer costs more than a run with nothing to do, so the plain cases are
read here. Whatever is not plain (help, mistakes, completion) is left to `parser`, which
gives the same values for what both can read.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.cli.errors import UsageError
from assay.cli.options import COMMANDS, GROUPS, Command, Option, Values, match_words


def read(argv: Sequence[str]) -> Values | None:
    """The values of a plain and correct command line, otherwise None."""
    group = argv[0] if argv and argv[0] in GROUPS else ""
    rest = argv[1:] if group else argv
    command = next((c for c in COMMANDS if rest and (c.group, c.name) == (group, rest[0])), None)
    if command is None:
        return None
    split = _split(command, rest[1:])
    if split is None or not match_words(command.argument, len(split[0])):
        return None
    try:
        return Values(command, *split)
    except UsageError:
        return None


def _split(
    command: Command, argv: Sequence[str]
) -> tuple[list[str], dict[str, bool | str | list[str]]] | None:
    """Words and options, each option by its last value or, where it may be given several
    times, by all of them."""
    flags = {flag: option for option in command.options for flag in option.flags}
    words: list[str] = []
    given: dict[str, bool | str | list[str]] = {}
    rest = iter(argv)
    for word in rest:
        if word == "--":
            words.extend(rest)
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        flag, equals, value = _cut(word)
        option = flags.get(flag)
        if option is None or (bool(equals) and not option.metavar):
            return None
        if option.metavar and not equals:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        _put(given, option, value)
    return words, given


def _cut(word: str) -> tuple[str, str, str]:
    """`--jobs=4` and `-j4` as flag, what joins it to the value, and the value."""
    if word.startswith("--"):
        return word.partition("=")
    return word[:2], word[2:], word[2:]


def _put(given: dict[str, bool | str | list[str]], option: Option, value: str) -> None:
    if not option.metavar:
        given[option.name] = True
    elif option.many:
        earlier = given.setdefault(option.name, [])
        assert isinstance(earlier, list)
        earlier.append(value)
    else:
        given[option.name] = value
