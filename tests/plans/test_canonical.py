"""Canonical JSON: the same bytes as another implementation of RFC 8785 gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from assay.plans.canonical import canonical_json, digest_of

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_values_have_the_form_the_standard_gives_them(value: Any) -> None:
    """Numbers, escapes and the order of keys are those of RFC 8785."""
    assert canonical_json(value) == rfc8785.dumps(value)


@given(st.recursive(st.text(), lambda inner: st.dictionaries(TEXTS, inner, max_size=4)))
def test_the_short_way_for_values_without_floats_gives_the_same(value: Any) -> None:
    """Whoever knows there is no float saves time, not correctness."""
    try:
        expected = canonical_json(value)
    except UnicodeEncodeError:
        return  # a surrogate that stands for no byte
    assert canonical_json(value, has_floats=False) == expected


def test_keys_beyond_the_basic_plane_sort_by_utf_16() -> None:
    """The one place where Python's order and the standard's differ."""
    value = {"\ufb33": 1, "\U0001f600": 2}
    assert canonical_json(value) == rfc8785.dumps(value)
    assert canonical_json(value, has_floats=False) == rfc8785.dumps(value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused(number: float) -> None:
    """Neither NaN nor the infinities get a form of our own."""
    with pytest.raises(ValueError, match="JSON"):
        canonical_json([number, "text"])


def test_nesting_beyond_any_use_is_refused() -> None:
    """A clear error in place of a broken interpreter."""
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical_json(value)


def test_equal_bytes_of_two_kinds_have_two_digests() -> None:
    """A digest says what kind of thing it is of."""
    assert digest_of("one", {"a": 1}) != digest_of("two", {"a": 1})
