"""Whole messages about wrong plans, as the reader sees them."""

from __future__ import annotations

from assay.cli.render.diagnostics import Sources, render_diagnostic, render_diagnostics
from assay.plans.diagnostics import Diagnostic, Mark, Note, Severity
from assay.plans.model import Origin

PLAN = """\
name = "site"

[nodes.bundle]
run = "cat dist/app.js style.css"
reads = ["dist/app.js", "style.css"]
writes = ["out/"]

[nodes.compile]
run = ["tsc"]
writes = ["build/app.js"]

[nodes.release]
run = "true"
after = ["bundle"]
"""


def _sources(text: str = PLAN, file: str = "plan.toml", cwd: str = "/w") -> Sources:
    return Sources({file: text}, "/w", cwd)


def test_error_says_what_where_and_how_to_mend_it() -> None:
    """The example of the conventions: sentence, place, line with a caret, note and hint."""
    diagnostic = Diagnostic(
        "Node `bundle` reads `dist/app.js`, but no node writes it and it does not exist",
        Origin("plan.toml", ("nodes", "bundle", "reads", 0)),
        hint="Did you mean `build/app.js`, written by `compile` (plan.toml:10:11)?",
        notes=(Note("wanted by `release`", Origin("plan.toml", ("nodes", "release", "after", 0))),),
    )

    shown = render_diagnostic(diagnostic, _sources(), colour=False)

    assert shown == (
        "error: Node `bundle` reads `dist/app.js`, but no node writes it and it does not exist\n"
        "  --> plan.toml:5:10\n"
        "   |\n"
        ' 5 | reads = ["dist/app.js", "style.css"]\n'
        "   |          ^^^^^^^^^^^^^\n"
        "   = wanted by `release`, plan.toml:14:10\n"
        "\n"
        "hint: Did you mean `build/app.js`, written by `compile` (plan.toml:10:11)?\n"
    )


def test_caret_may_point_at_the_key() -> None:
    """A misspelt key is marked itself, not its value."""
    diagnostic = Diagnostic(
        "Unknown key `writes` of a test",
        Origin("plan.toml", ("nodes", "compile", "writes")),
        mark=Mark.KEY,
        severity=Severity.WARNING,
    )

    assert render_diagnostic(diagnostic, _sources(), colour=False) == (
        "warning: Unknown key `writes` of a test\n"
        "  --> plan.toml:10:1\n"
        "   |\n"
        '10 | writes = ["build/app.js"]\n'
        "   | ^^^^^^\n"
    )


def test_position_of_the_parser_is_used_as_it_is() -> None:
    """A syntax error points where the parser stood, also at the end of the text."""
    diagnostic = Diagnostic("Expected `=`", Origin("plan.toml"), line=2, column=4)

    assert render_diagnostic(diagnostic, _sources("a = 1\nb c\n"), colour=False) == (
        "error: Expected `=`\n  --> plan.toml:2:4\n   |\n 2 | b c\n   |    ^\n"
    )


def test_places_are_paths_from_where_the_reader_stands() -> None:
    """From a folder below the root the plan's path leads upwards."""
    diagnostic = Diagnostic("Wrong", Origin("web/plan.toml", ("name",)))
    sources = _sources('name = "x"\n', "web/plan.toml", "/w/other/deep")

    assert "--> ../../web/plan.toml:1:8\n" in render_diagnostic(diagnostic, sources, colour=False)


def test_standard_input_has_a_name() -> None:
    """A plan on standard input is shown by its text too."""
    sources = _sources('{"name": 3}', "-")
    diagnostic = Diagnostic("`name` must be a string", Origin("-", ("name",)))

    assert render_diagnostic(diagnostic, sources, colour=False) == (
        "error: `name` must be a string\n"
        "  --> <standard input>:1:10\n"
        "   |\n"
        ' 1 | {"name": 3}\n'
        "   |          ^\n"
    )


def test_several_errors_are_apart_by_a_blank_line() -> None:
    """All errors are shown in one go; one without a place has only its sentence."""
    shown = render_diagnostics([Diagnostic("One"), Diagnostic("Two")], _sources(), colour=False)

    assert shown == "error: One\n\nerror: Two\n"
    assert render_diagnostics([], _sources(), colour=False) == ""


def test_tabs_and_wide_letters_keep_the_caret_in_place() -> None:
    """The caret stands below what it marks, whatever stands before it."""
    diagnostic = Diagnostic("Wrong", Origin("plan.toml"), line=1, column=8)

    shown = render_diagnostic(diagnostic, _sources("\t= '漢' x\n"), colour=False)

    assert shown.splitlines()[-2:] == [" 1 |     = '漢' x", "   |            ^"]


def test_a_long_line_is_cut_around_the_mark() -> None:
    """C121 Of a minified JSON plan only the part around the mark is shown."""
    text = '{"pad": "' + "x" * 5000 + '", "name": 3, "more": "' + "y" * 5000 + '"}'
    diagnostic = Diagnostic("Wrong", Origin("-", ("name",)))

    lines = render_diagnostic(diagnostic, _sources(text, "-"), colour=False).splitlines()

    assert all(len(line) < 200 for line in lines)
    assert lines[-2][lines[-1].index("^")] == "3"


def test_control_characters_cannot_leave_their_line() -> None:
    """C121 A name with a line end or an escape sequence is shown escaped."""
    diagnostic = Diagnostic("Node `a\nb` is\x1b[31m wrong", hint="rename `a\nb`")

    assert render_diagnostic(diagnostic, _sources(), colour=False) == (
        "error: Node `a\\nb` is\\x1b[31m wrong\n\nhint: rename `a\\nb`\n"
    )


def test_colours_add_nothing_but_colours() -> None:
    """C80 The text is the same with and without colours."""
    diagnostic = Diagnostic("Wrong", Origin("plan.toml", ("name",)), hint="mend it")

    plain = render_diagnostic(diagnostic, _sources(), colour=False)
    coloured = render_diagnostic(diagnostic, _sources(), colour=True)

    assert coloured != plain
    for code in ("\x1b[1;31m", "\x1b[34m", "\x1b[36m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == plain
