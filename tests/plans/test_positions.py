"""Where keys stand in TOML and JSON texts."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.plans.diagnostics import Mark
from assay.plans.positions import Span, find_duplicates, find_span, locate

TOML = '''\
name = "x" # a comment
"quoted \\u0041" = 1
a.b.c = [1, "]", # ]
  { x = """q"q""""", "y z" = 'v' }, 1979-05-27 07:32:00,
]

[nodes.cc]
run = """
two
lines"""
reads = ["a", 'b']
  [ nodes . "d e" ]
env = { A = { from = "cc" } }
[[list]]
k = 1
[[list]]
k = 2
[list.sub]
k = 3
'''


def cut(text: str, span: Span) -> str:
    line = text.split("\n")[span.line - 1]
    return line[span.column - 1 : span.column - 1 + span.length]


@pytest.mark.parametrize(
    ("keys", "key", "value"),
    [
        (("name",), "name", '"x"'),
        (("quoted A",), '"quoted \\u0041"', "1"),
        (("a", "b", "c", 1), '"]"', '"]"'),
        (("a", "b"), "b", '[1, "]", # ]'),
        (("a", "b", "c", 2, "x"), "x", '"""q"q"""""'),
        (("a", "b", "c", 2, "y z"), '"y z"', "'v'"),
        (("a", "b", "c", 3), "1979-05-27 07:32:00", "1979-05-27 07:32:00"),
        (("nodes", "cc"), "cc", "[nodes.cc]"),
        (("nodes", "cc", "run"), "run", '"""'),
        (("nodes", "cc", "reads", 1), "'b'", "'b'"),
        (("nodes", "d e"), '"d e"', '[ nodes . "d e" ]'),
        (("nodes", "d e", "env", "A", "from"), "from", '"cc"'),
        (("list", 1, "k"), "k", "2"),
        (("list", 1, "sub", "k"), "k", "3"),
    ],
)
def test_keys_and_values_are_found_in_toml(
    keys: tuple[str | int, ...], key: str, value: str
) -> None:
    """Tables, dotted keys, arrays of tables, inline tables and all kinds of strings."""
    for mark, expected in ((Mark.KEY, key), (Mark.VALUE, value)):
        span = find_span(TOML, keys, mark)
        assert span is not None
        assert cut(TOML, span) == expected


def test_keys_and_values_are_found_in_json() -> None:
    """A text that starts with a brace is JSON."""
    text = '{\n  "nodes": {"a\\"b": {"reads": ["x", {"path": 1}]}}\n}'
    span = find_span(text, ("nodes", 'a"b', "reads", 1, "path"), Mark.VALUE)
    assert span == Span(2, 46, 1)
    span = find_span(text, ("nodes", 'a"b'), Mark.KEY)
    assert span is not None
    assert cut(text, span) == '"a\\"b"'


def test_the_nearest_enclosing_key_stands_in() -> None:
    """A key that comes from elsewhere points at what it is part of."""
    assert find_span(TOML, ("nodes", "cc", "timeout"), Mark.VALUE) == Span(7, 1, 10)
    assert find_span(TOML, ("nodes", "cc", "reads", 7), Mark.VALUE) == Span(11, 9, 10)
    assert find_span(TOML, ("elsewhere",), Mark.VALUE) is None
    assert find_span("", (), Mark.KEY) is None


def test_duplicates_are_found() -> None:
    """Pairs and tables given twice, in the order of their second mention."""
    text = "[a]\nx = 1\nx = 2\n[b.c]\n[b]\n[a]\ny = 1\n[d]\n"
    found = [(each.keys, text[each.start : each.end]) for each in find_duplicates(text)]
    assert found == [(("a", "x"), "x = 2"), (("a",), "[a]\ny = 1\n")]


def test_duplicates_are_found_in_json() -> None:
    """JSON has them too, at any depth."""
    text = '{"a": {"b": 1, "b": 2}, "a": 3}'
    assert [each.keys for each in find_duplicates(text)] == [("a", "b"), ("a",)]


def test_offsets_become_lines_and_columns() -> None:
    """Both count from one."""
    assert locate("ab\ncd", 0) == (1, 1)
    assert locate("ab\ncd", 4) == (2, 2)


def paths_of(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths_of(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from paths_of(item, (*path, number))


def write_toml(value: object) -> str:
    """A value inline, with strings in the basic form, which JSON's escapes fit."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(k)} = {write_toml(v)}" for k, v in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list):
        return "[\n" + ",\n".join(map(write_toml, value)) + "\n]"
    return json.dumps(value).replace("\x7f", "\\u007f")


words = st.text(
    st.characters(codec="utf-8", exclude_characters="\x7f", max_codepoint=0xFFFF), max_size=5
)
trees = st.recursive(
    st.booleans() | st.integers(-99, 99) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=12,
)
documents = st.dictionaries(words, trees, max_size=4)


@given(documents)
def test_every_key_of_any_document_is_found(document: dict[str, object]) -> None:
    """What the parsers read, the walk finds, in TOML and in JSON."""
    toml = "".join(f"{json.dumps(k)} = {write_toml(v)}\n" for k, v in document.items())
    assert tomllib.loads(toml) == document
    for text in (toml, json.dumps(document), json.dumps(document, indent=1)):
        for keys in paths_of(document):
            span = find_span(text, keys, Mark.KEY)
            assert span is not None
            if isinstance(keys[-1], str):
                assert json.loads(cut(text, span)) == keys[-1]
        assert find_duplicates(text) == ()


@given(
    st.text(alphabet="[]{}=,.\"'\\#: \n\tab1{", max_size=60),
    st.lists(st.sampled_from("ab"), max_size=3),
)
def test_no_text_is_too_broken(text: str, keys: list[str]) -> None:
    """Broken texts give an answer too."""
    find_span(text, tuple(keys), Mark.VALUE)
    find_duplicates(text)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "a = " + "[" * 100_000, "{" + '"a":[' * 50_000, "a." * 50_000]
)
def test_depth_costs_neither_time_nor_stack(text: str) -> None:
    """Texts that nest without end are given up early."""
    find_span(text, ("a",), Mark.VALUE)
