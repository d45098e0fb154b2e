"""References of the form `{{ns.name}}`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.plans.templates import (
    TemplateError,
    each_values,
    find_faults,
    find_references,
    render,
)

KNOWN = {
    "params": {"mode": "dev", "a-b": "1"},
    "matrix": {"py": "3.11"},
    "each": each_values("src/x/main.test.c"),
}


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("{{params.mode}}", "dev"),
        ("a{{params.mode}}b{{matrix.py}}c", "adevb3.11c"),
        ("{{params.a-b}}", "1"),
        ("{{each}}", "src/x/main.test.c"),
        ("{{each.name}} {{each.stem}} {{each.dir}}", "main.test.c main.test src/x"),
    ],
)
def test_references_are_replaced(text: str, rendered: str) -> None:
    """The three namespaces are substituted wherever they stand."""
    assert render(text, KNOWN) == rendered


@pytest.mark.parametrize(
    "text",
    [
        "{{ params.mode }}",
        "{{env.X}}",
        "${{ matrix.py }}",
        "{params.mode}",
        "{{.Name}}",
        "{{}}",
        "{{params.mode",
        "{% raw %}",
        "{{eachother}}",
    ],
)
def test_other_braces_are_left_alone(text: str) -> None:
    """Braces of other tools come through as they are; so does the form with blanks."""
    assert render(text, KNOWN) == text


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "{{params.moed}}",
            "`{{params.moed}}`: `params` has no `moed`",
            "Did you mean `{{params.mode}}`?",
        ),
        ("{{matrix}}", "`{{matrix}}`: it names no value", "Write one of `{{matrix.py}}`."),
        ("{{each.path}}", "`{{each.path}}`: `each` has no `path`", None),
    ],
)
def test_unknown_names_in_known_namespaces_are_errors(
    text: str, message: str, hint: str | None
) -> None:
    """A misspelt reference never ends up in a command."""
    with pytest.raises(TemplateError) as raised:
        render(text, KNOWN)
    assert str(raised.value) == message
    assert raised.value.hint == hint


def test_all_faults_of_a_text_are_found() -> None:
    """Two wrong references are two complaints."""
    faults = [fault.reference for fault in find_faults("{{each}} {{params.mode}} {{matrix.x}}", {})]
    assert faults == ["{{each}}", "{{params.mode}}", "{{matrix.x}}"]


def test_values_are_not_rendered_again() -> None:
    """What a value contains is text, whatever it looks like."""
    assert render("{{params.x}}", {"params": {"x": "{{params.x}}"}}) == "{{params.x}}"


def test_a_path_is_never_an_option() -> None:
    """A match that starts with a dash gets `./` in front (C123)."""
    assert each_values("-rf.txt") == {
        "": "./-rf.txt",
        "name": "-rf.txt",
        "stem": "-rf",
        "dir": ".",
    }
    assert each_values("-d/x")["dir"] == "./-d"


def test_references_are_found() -> None:
    """What a text refers to is known without values."""
    assert find_references("{{each}} {{params.a}} {{x}}") == {("each", ""), ("params", "a")}


@given(st.text())
def test_any_text_renders_or_is_explained(text: str) -> None:
    """No text makes rendering fail in another way."""
    try:
        rendered = render(text, KNOWN)
    except TemplateError:
        assert find_references(text)
    else:
        assert rendered == text or find_references(text)
