"""Reads the command line with typer commands declared from the table in `options`.

Does not perform anything: `parse` gives the values and the caller acts. Help and
completion are typer's; plain text, so that neither needs rich.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO

import typer

from assay.cli.errors import Answered, ExitCode, UsageError
from assay.cli.options import COMMANDS, GROUPS, Command, Option, Values
from assay.cli.version import version_text

HELP = "Run a plan of commands: only what changed is executed, nothing twice by accident."


def parse(argv: Sequence[str]) -> Values:
    """The values of the command that `argv` names. Raises UsageError, and Answered where
    help, the version or a completion script was all that was asked for."""
    if not argv:
        raise Answered(_run_typer(["--help"])[1], ExitCode.USAGE)
    result, text = _run_typer(argv)
    if isinstance(result, int):
        raise Answered(text, result)
    return result


def _run_typer(argv: Sequence[str]) -> tuple[Values | int, str]:
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            result: Values | int | None = _make_app()(
                args=list(argv), prog_name="assay", standalone_mode=False
            )
    except usage_error as error:
        raise _as_usage_error(error) from None
    except SystemExit as ended:
        # Completion ends the process by itself.
        result = ended.code if isinstance(ended.code, int) else 0
    return 0 if result is None else result, printed.getvalue()


def _as_usage_error(error: Exception) -> UsageError:
    message: str = getattr(error, "format_message", error.__str__)()
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "assay"
    return UsageError(
        message.strip().removesuffix("."), hint=f"`{command} --help` shows what it takes"
    )


def _make_app() -> typer.Typer:
    app = _make_group(HELP, completion=True)
    app.callback()(_root)
    groups = {name: _make_group(text, completion=False) for name, text in GROUPS.items()}
    for name, group in groups.items():
        app.add_typer(group, name=name)
    for command in COMMANDS:
        target = groups[command.group] if command.group else app
        target.command(command.name, help=command.help)(_make_reader(command))
    return app


def _make_group(text: str, *, completion: bool) -> typer.Typer:
    return typer.Typer(
        help=text,
        add_completion=completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def _version(asked: bool) -> None:
    if asked:
        print(version_text())
        raise typer.Exit(0)


def _root(
    version: bool = typer.Option(
        False,
        "--version",
        help="Print the version.",
        callback=_version,
        is_eager=True,
    ),
) -> None:
    """The options before any command."""


def _make_reader(command: Command) -> Callable[..., Values]:
    """A function with the signature typer needs to read the command's arguments."""

    def read(**given: bool | str | list[str] | None) -> Values:
        words = given.pop("words", None)
        words = [] if words is None else words
        assert not isinstance(words, bool)
        return Values(
            command,
            [words] if isinstance(words, str) else words,
            {name: value for name, value in given.items() if value is not None},
        )

    parameters = [_parameter(option) for option in command.options]
    if command.argument is not None:
        argument = command.argument
        declared = typer.Argument(
            ... if argument.required else None, metavar=argument.metavar, help=argument.help
        )
        parameters.insert(0, _keyword("words", list[str] if argument.many else str, declared))
    read.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    read.__annotations__ = {}
    return read


def _parameter(option: Option) -> inspect.Parameter:
    if not option.metavar:
        return _keyword(option.name, bool, typer.Option(False, *option.flags, help=option.help))
    complete = (lambda: list(option.choices)) if option.choices else None
    text = option.help
    if option.choices:
        text += f" One of {', '.join(option.choices)}."
    if option.default:
        text += f" Default: {option.default}."
    declared = typer.Option(
        None, *option.flags, help=text, metavar=option.metavar, autocompletion=complete
    )
    return _keyword(option.name, list[str] if option.many else str, declared)


def _keyword(name: str, annotation: object, declared: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=annotation
    )
