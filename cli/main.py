"""The entry point: the steps of every start, from top to bottom.

Does not know what a command does. Every expected error becomes words and an exit code
here and nowhere else; this is the one place that catches `Exception`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from assay.cli.call import Call
from assay.cli.errors import Answered, Complaint, ExitCode, RefusedPlan, find_complaint
from assay.cli.options import Values
from assay.cli.render.stream import (
    Stream,
    open_missing_descriptors,
    open_streams,
    wants_colour,
)

COERCED: Final = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})
"""What Python sets LC_CTYPE to (PEP 538)."""


def main() -> int:
    """Runs the command line of this process; returns its exit code."""
    restart_with_utf8()
    forget_coercion()
    keep_owners_rights()
    open_missing_descriptors()
    out, err = open_streams(os.environ)
    try:
        values = read_arguments(sys.argv[1:])
        choose_colours(values, out, err)
        call = Call(values, out, err)
        code = find_nothing_to_do(call)
        if code is None:
            code = perform(call)
    except Answered as answer:
        out.write(answer.text)
        code = answer.code
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the one place that may
        code = report(error, out, err)
    return finish(code, out, err)


def restart_with_utf8() -> None:
    """Plan files and names in them are UTF-8 whatever the locale says; under an ASCII locale
    Python could not open a file called `é`. How names are encoded is decided when an
    interpreter starts, so it starts once more, with the environment as it is."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        again = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execv(sys.executable, again)


def forget_coercion() -> None:
    """Nodes and their keys get the caller's variables: under the C locale Python has set
    LC_CTYPE for its own use by now, over the caller's where there was one."""
    if os.environ.get("LC_CTYPE") not in COERCED:
        return
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
    except OSError:
        return  # where that cannot be known it stays
    name = b"LC_CTYPE="
    value = next((each.removeprefix(name) for each in given if each.startswith(name)), None)
    if value is None:
        del os.environ["LC_CTYPE"]
    else:
        os.environ["LC_CTYPE"] = os.fsdecode(value)


def keep_owners_rights() -> None:
    """What assay and its nodes make, their owner can use: under a umask that takes that away
    (0777) neither the store nor any output could be opened again."""
    mask = os.umask(0o077)
    os.umask(mask & 0o077)


def read_arguments(argv: Sequence[str]) -> Values:
    """The command's values. Raises Answered where help or the version was all that was
    asked for, and UsageError."""
    from assay.cli import argv as plain

    values = plain.read(argv)
    if values is not None:
        return values
    if list(argv) == ["--version"]:
        from assay.cli.version import version_text

        raise Answered(version_text() + "\n", ExitCode.DONE)
    from assay.cli import parser

    return parser.parse(argv)


def choose_colours(values: Values, out: Stream, err: Stream) -> None:
    """What `--color` says, where the command has it."""
    if values.has("color"):
        for stream in (out, err):
            when = values.text("color")
            stream.colour = wants_colour(when, os.environ, stream.is_terminal)


def find_nothing_to_do(call: Call) -> int | None:
    """The quick answer to the most frequent question, None when there is none."""
    if call.values.command.module != "run":
        return None
    from assay.cli import agreement

    return agreement.find_nothing_to_do(call)


def perform(call: Call) -> int:
    """Loads the command's own file and runs it."""
    module = import_module(f"assay.cli.commands.{call.values.command.module}")
    code: int = module.perform(call)
    return code


def report(error: BaseException, out: Stream, err: Stream) -> int:
    """Says what went wrong on standard error; returns the exit code."""
    out.flush()
    if isinstance(error, RefusedPlan):
        from assay.cli.plan_errors import report_refused_plan

        return report_refused_plan(error.diagnostics, error.sources, err)
    try:
        complaint = find_complaint(error)
    except (OSError, ImportError) as another:
        # The words for it are in a file that cannot be read.
        complaint = find_complaint(another)
    if complaint is not None:
        write_complaint(complaint, err)
        return complaint.code
    return report_internal_error(error, err)


def write_complaint(complaint: Complaint, err: Stream) -> None:
    from assay.cli.render.text import one_line, paint

    label = paint(f"{complaint.label}:", "error", err.colour)
    err.write(f"{label} {one_line(complaint.message)}\n")
    if complaint.hint:
        err.write(f"\n{paint('hint:', 'cyan', err.colour)} {one_line(complaint.hint)}\n")


def report_internal_error(error: BaseException, err: Stream) -> int:
    """A broken invariant: everything a report needs."""
    import platform
    import traceback

    from assay.cli.render.text import one_line
    from assay.cli.version import version_text

    err.write("".join(traceback.format_exception(error)))
    what = one_line(f"{type(error).__name__}: {error}")
    write_complaint(
        Complaint(
            "internal error",
            f"{what} ({version_text()}, Python {platform.python_version()})",
            "This is a fault of assay, not of your plan. Report it to the maintainers with the "
            "lines above and what `assay doctor` prints",
            ExitCode.HOST,
        ),
        err,
    )
    return ExitCode.HOST


def finish(code: int, out: Stream, err: Stream) -> int:
    """Brings out what is still held back. A reader that went away is no error, an output
    that cannot be written is one."""
    out.flush()
    if out.failure is None or out.reader_gone:
        return int(code)
    what = f"Standard output cannot be written: {out.failure.strerror}"
    write_complaint(Complaint("environment", what, None, ExitCode.HOST), err)
    return int(code) if code >= 128 else ExitCode.HOST
