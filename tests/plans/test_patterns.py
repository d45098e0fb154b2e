"""Pattern components, the product of two patterns, and its difference with others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.plans.patterns import (
    PatternError,
    common_name,
    component_matcher,
    escape,
    find_common_path,
    find_common_path_without,
    has_match,
    literal_of,
    parts_of,
)

NAMES = ["".join(n) for count in (1, 2, 3) for n in itertools.product("ab-", repeat=count)]
PATHS = [
    "/".join(p) for count in (1, 2, 3) for p in itertools.product(["a", "b", "ab"], repeat=count)
]

components = st.text("ab*?", min_size=1, max_size=4).map(lambda t: t.replace("**", "*"))
classes = st.sampled_from(["[ab]", "[!a]", "[a-b]", "a[!b]", "[b-]*", "*[a]?"])
patterns = st.lists(
    st.one_of(st.sampled_from(["a", "b", "*", "**", "a*", "*b", "?", "[!a]"]), components),
    min_size=1,
    max_size=4,
).map("/".join)


def match_by_recursion(pattern: list[str], path: list[str]) -> bool:
    """The meaning of a pattern, straight from its description."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        least = 1 if len(pattern) == 1 else 0
        return any(match_by_recursion(pattern[1:], path[n:]) for n in range(least, len(path) + 1))
    return (
        bool(path) and match_name(pattern[0], path[0]) and match_by_recursion(pattern[1:], path[1:])
    )


def match_name(component: str, name: str) -> bool:
    if not component:
        return not name
    if component[0] == "*":
        return any(match_name(component[1:], name[n:]) for n in range(len(name) + 1))
    if component[0] == "[":
        end = component.index("]", 2)
        body, negated = component[1:end].removeprefix("!"), component[1] == "!"
        chars = {"a-b": "ab"}.get(body, body)
        return (
            bool(name)
            and (name[0] in chars) is not negated
            and match_name(component[end + 1 :], name[1:])
        )
    return bool(name) and component[0] in ("?", name[0]) and match_name(component[1:], name[1:])


@given(st.one_of(components, classes))
def test_a_component_matches_the_names_it_describes(component: str) -> None:
    """Every kind of matcher (literal, prefix, suffix, class) agrees with the description."""
    matcher = component_matcher(component)
    for name in NAMES:
        assert bool(matcher(name)) is match_name(component, name), (component, name)


@given(patterns)
def test_a_pattern_matches_the_paths_it_describes(pattern: str) -> None:
    """C11: `**` is zero or more whole folders, at the end at least the file itself."""
    for path in PATHS:
        expected = match_by_recursion(pattern.split("/"), path.split("/"))
        assert has_match(parts_of(pattern), path.split("/")) is expected, (pattern, path)


@given(patterns, patterns)
def test_common_path_agrees_with_brute_force(a: str, b: str) -> None:
    """Two patterns have a common path exactly when some path matches both; it is one."""
    found = find_common_path(parts_of(a), parts_of(b))
    if found is None:
        assert not any(
            has_match(parts_of(a), p.split("/")) and has_match(parts_of(b), p.split("/"))
            for p in PATHS
        )
    else:
        assert match_by_recursion(a.split("/"), found.split("/"))
        assert match_by_recursion(b.split("/"), found.split("/"))


@given(patterns, patterns, st.lists(patterns, max_size=2))
def test_exclusions_leave_a_path_exactly_when_one_remains(
    a: str, b: str, excluded: list[str]
) -> None:
    """What is excluded is taken away exactly: neither too much nor too little."""
    found = find_common_path_without(parts_of(a), parts_of(b), [parts_of(x) for x in excluded])
    wanted = [parts_of(a), parts_of(b)]

    def remains(path: str) -> bool:
        names = path.split("/")
        return all(has_match(p, names) for p in wanted) and not any(
            has_match(parts_of(x), names) for x in excluded
        )

    if found is None:
        assert not any(map(remains, PATHS))
    else:
        assert remains(found)


@given(st.one_of(components, classes), st.one_of(components, classes))
def test_common_name_agrees_with_brute_force(a: str, b: str) -> None:
    """Two components have a common name exactly when some name matches both; it is one."""
    found = common_name(a, b)
    if found is None:
        assert not any(match_name(a, n) and match_name(b, n) for n in NAMES)
    else:
        assert component_matcher(a)(found)
        assert component_matcher(b)(found)


@given(st.text("ab*?[]!-", min_size=1, max_size=6))
def test_an_escaped_name_matches_itself_only(name: str) -> None:
    """C121: any name can be written as a pattern for exactly itself."""
    assert literal_of(escape(name)) == name


@pytest.mark.parametrize(("component", "name"), [("*", "a\nb"), ("a?b", "a\nb"), ("[!x]", "\n")])
def test_a_newline_is_a_character_like_any_other(component: str, name: str) -> None:
    """C121: wildcards match newlines in names."""
    assert component_matcher(component)(name)


@pytest.mark.parametrize("component", ["a[b", "[", "[]", "[!", "[z-a]"])
def test_a_broken_class_is_refused(component: str) -> None:
    """A class that is never closed or can match nothing is no pattern."""
    with pytest.raises(PatternError):
        literal_of(component)


def test_many_wildcards_are_decided_in_reasonable_time() -> None:
    """Patterns that make other matchers explode are decided at once."""
    a, b = "/".join(["**", "*a*a*a*a*a*"] * 12), "/".join(["**", "*b*b*b*b*b*"] * 12)
    assert find_common_path(parts_of(a), parts_of(b)) is not None
    assert find_common_path(parts_of(a + "/x"), parts_of(b + "/y")) is None


def test_an_undecided_difference_errs_on_the_side_of_a_common_path() -> None:
    """Where the search would take too long, the answer is a path both patterns share."""
    everything = parts_of("**")
    assert find_common_path_without(everything, everything, [everything]) is None
    assert find_common_path_without(everything, everything, [everything], 0) is not None
    wide = "*a" + "?" * 16
    found = find_common_path_without(parts_of("**"), parts_of(wide), [parts_of("*b" + "?" * 16)])
    assert found is not None
    assert has_match(parts_of(wide), found.split("/"))
