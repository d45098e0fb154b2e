"""Durations as people write them."""

from __future__ import annotations

import pytest

from assay.plans.durations import FORM, DurationError, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("2d", 172_800.0),
        ("1d2h3m4s5ms", 93_784.005),
        ("0s", 0.0),
    ],
)
def test_units_add_up(text: str, seconds: float) -> None:
    """Units from large to small make one number of seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "90", "s", "-1s", "1 s", "1m1h", "1s1s", "1S", "1e3s", "٣s", "1s\n", ".5s", "inf"]
)
def test_other_forms_are_refused(text: str) -> None:
    """What is no duration is told with the form of one."""
    with pytest.raises(DurationError) as raised:
        parse_duration(text)
    assert str(raised.value) == FORM


def test_a_duration_has_an_end() -> None:
    """What no clock can wait for is refused."""
    with pytest.raises(DurationError) as raised:
        parse_duration("999999999999999d")
    assert str(raised.value) == "a duration of at most 100 years"
