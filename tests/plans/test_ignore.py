"""gitignore patterns as plan files declare them."""

from __future__ import annotations

import itertools
import warnings

import pytest

from assay.plans.folders import _compile_ignore
from assay.plans.ignore import is_ignore_pattern, rebase_ignore_pattern
from assay.plans.model import RelPath


def test_accepted_patterns_can_be_matched() -> None:
    """No pattern that is accepted makes matching fail later, and no common one is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for length in range(5):
            for letters in itertools.product("a!/\\[] #", repeat=length):
                pattern = "".join(letters)
                if is_ignore_pattern(pattern):
                    _compile_ignore((pattern,))
    for pattern in ("*.swp", "/build/", "!keep", "a\\ ", "\\#x", "\\!x", "**/x/**", "[ab]"):
        assert is_ignore_pattern(pattern)


@pytest.mark.parametrize("pattern", ["", " ", "!", "# comment", "a\\", "\\/"])
def test_patterns_that_say_nothing_are_refused(pattern: str) -> None:
    """A blank, a comment, a backslash with nothing to escape."""
    assert not is_ignore_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "rebased"),
    [
        ("*.swp", "*.swp"),
        ("build/", "build/"),
        ("/build", "/w b/build"),
        ("a/b", "/w b/a/b"),
        ("!/a/", "!/w b/a/"),
    ],
)
def test_anchored_patterns_move_with_their_file(pattern: str, rebased: str) -> None:
    """A pattern with a slash before its end means its own folder."""
    assert rebase_ignore_pattern(pattern, RelPath("w b")) == rebased.replace("w b", "w\\ b")
    assert rebase_ignore_pattern(pattern, RelPath(".")) == pattern
