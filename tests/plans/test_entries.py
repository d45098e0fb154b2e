"""Entries from text, the paths they name, and whether two can name one."""

from __future__ import annotations

import pytest
from handmade import ROOT, entries, entry
from hypothesis import given
from hypothesis import strategies as st

from assay.plans.entries import (
    EntryError,
    escape_entry,
    extents_of,
    fixed_folder,
    fixed_prefix,
    literal_entry,
    matches,
    overlap,
    overlap_extents,
    parse_entry,
)
from assay.plans.model import Entry, EntryKind, RelPath

FILE, TREE, GLOB = EntryKind.FILE, EntryKind.TREE, EntryKind.GLOB


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("a/b.txt", FILE, "a/b.txt"),
        ("dist/", TREE, "dist"),
        ("./", TREE, "."),
        ("./a//b/../c", FILE, "a/c"),
        ("src/**/*.c", GLOB, "src/**/*.c"),
        ("./src/../lib/*", GLOB, "lib/*"),
        ("src/*/", GLOB, "src/*/**"),
        ("a**b", GLOB, "a*b"),
        ("x/***", GLOB, "x/*"),
        ("[[]id].ts", FILE, "[id].ts"),
        ("[.][.]b", FILE, "..b"),
        ("-rf.txt", FILE, "-rf.txt"),
        ("a\nb", FILE, "a\nb"),
        ("e\u0301", FILE, "e\u0301"),
        ("back\\slash", FILE, "back\\slash"),
        ("$HOME", FILE, "$HOME"),
        ("~", FILE, "~"),
        ("#x", FILE, "#x"),
    ],
)
def test_text_becomes_an_entry(text: str, kind: EntryKind, path: str) -> None:
    """C121, C124: names are taken as they are; only `*?[`, `!` and a last `/` mean anything."""
    assert parse_entry(text, ROOT) == Entry(kind, RelPath(path))


def test_an_exclamation_mark_excludes() -> None:
    """`!pattern` excludes, and only in front."""
    assert entry("!a/*") == Entry(GLOB, RelPath("a/*"), exclude=True)
    assert entry("a!b") == Entry(FILE, RelPath("a!b"))


def test_paths_are_relative_to_the_base() -> None:
    """An included file's entries start at its folder, may leave it, and a folder's brackets
    stay literal in its globs."""
    assert parse_entry("../x", RelPath("web")).path == "x"
    assert parse_entry("a/b", RelPath("web")).path == "web/a/b"
    assert parse_entry("*.ts", RelPath("web/[id]")).path == "web/[[]id]/*.ts"
    assert matches([parse_entry("*.ts", RelPath("web/[id]"))], RelPath("web/[id]/a.ts"))
    assert parse_entry("./", RelPath("web")) == Entry(TREE, RelPath("web"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "An entry is empty.", None),
        ("!", "`!` names no path.", None),
        (
            "/etc/passwd",
            "`/etc/passwd` is absolute; entries are relative to the workspace.",
            "Only paths inside the workspace can be read or written.",
        ),
        ("../x", "`../x` leads outside the workspace.", None),
        ("a/../../x", "`a/../../x` leads outside the workspace.", None),
        ("[.][.]/x", "`[.][.]/x` leads outside the workspace.", None),
        ("*/../../x", "`*/../../x` goes up from a wildcard, so it names no one folder.", None),
        ("a\0b", "`a\\0b` holds a NUL, which no path can.", None),
        (".", "`.` is the workspace itself, not a file.", "Write `./` for everything in it."),
        (
            "src/{a,b}/**",
            "`src/{a,b}/**` has braces, which are no pattern syntax.",
            'Write one entry for each: "src/a/**", "src/b/**".',
        ),
        (
            "{x}.ts",
            "`{x}.ts` has braces, which are no pattern syntax.",
            'For a path of exactly that name write { path = "{x}.ts" }.',
        ),
        (
            "a[b",
            "`a[b` is no pattern: the `[` in `a[b` is never closed.",
            'For a path of exactly that name write { path = "a[b" }.',
        ),
    ],
)
def test_what_is_no_entry_is_refused_with_a_sentence(
    text: str, message: str, hint: str | None
) -> None:
    """C38, C118: paths out of the workspace and braces are errors that say how to mend them."""
    with pytest.raises(EntryError) as caught:
        parse_entry(text, ROOT)
    assert (str(caught.value), caught.value.hint) == (message, hint)


@pytest.mark.parametrize("path", ["*", "?", "[slug].ts", "{a,b}", "!x", "a b", 'q"q', "it's"])
def test_the_path_form_is_always_literal(path: str) -> None:
    """C121: `{ path = … }` takes any name as it is."""
    found = literal_entry(path, ROOT, optional=False)
    assert found == Entry(FILE, RelPath(path))
    assert matches([found], RelPath(path))
    assert literal_entry(path + "/", ROOT, optional=True) == Entry(
        TREE, RelPath(path), optional=True
    )


def test_the_path_form_refuses_what_leads_outside() -> None:
    """C38: the literal form is held to the workspace too."""
    for path in ("../x", "/x", "", "a\0"):
        with pytest.raises(EntryError):
            literal_entry(path, ROOT, optional=False)


@given(st.text("a*?[]{}-! .é\n", min_size=1).filter(lambda t: t.strip(".") and "/" not in t))
def test_an_escaped_path_comes_back_as_the_literal(path: str) -> None:
    """C121: a substituted path is never read as a pattern."""
    assert parse_entry("./" + escape_entry(path), ROOT) == Entry(FILE, RelPath(path))


# Which paths entries name


@pytest.mark.parametrize(
    ("texts", "path", "named"),
    [
        (["src/**/*.t"], "src/a.t", True),
        (["src/**/*.t"], "src/d/e/a.t", True),
        (["src/**/*.t"], "other/a.t", False),
        (["src/**"], "src/a", True),
        (["src/**"], "src", False),
        (["conf/*"], "conf/.hidden", True),
        (["**"], ".env", True),
        (["d/"], "d/x/y", True),
        (["d/"], "d", True),
        (["d/"], "dx", False),
        (["d"], "d/x", False),
        (["./"], "any/thing", True),
    ],
)
def test_matches(texts: list[str], path: str, named: bool) -> None:
    """C11, C13: `**` matches no folder too, and dotfiles are names like others."""
    assert matches(entries(*texts), RelPath(path)) is named


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("src/a/x", True),
        ("src/b/d/x", True),
        ("src/a/x.snap", False),
        ("src/a/tmp/x", False),
        ("src/a/tmp/keep", True),
        ("src/c/x", False),
    ],
)
def test_every_exclusion_counts_and_later_entries_win(path: str, named: bool) -> None:
    """C118: several negations all have effect, and what comes after one is in again."""
    texts = ["src/a/**", "src/b/**", "!**/*.snap", "!src/a/tmp/**", "src/a/tmp/keep"]
    assert matches(entries(*texts), RelPath(path)) is named


def test_an_excluded_literal_goes_with_everything_below_it() -> None:
    """`!build` keeps out the folder's content, not just a file of that name."""
    listed = entries("**", "!build")
    assert not matches(listed, RelPath("build/x/y"))
    assert not matches(listed, RelPath("build"))
    assert matches(listed, RelPath("builder"))
    assert not matches(entries("src/*/x", "!src/tmp"), RelPath("src/tmp/x"))


def test_unicode_forms_are_different_names() -> None:
    """C124: composed and decomposed spellings are two files."""
    assert not matches(entries("\u00e9"), RelPath("e\u0301"))
    assert overlap(entry("\u00e9"), entry("e\u0301")) is None


# Whether two can name one


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        ("o", "o", "o"),
        ("d", "d/x", "d/x"),
        ("d/", "d/x", "d/x"),
        ("d/", "d", "d"),
        ("d/", "d/e/", "d/e/"),
        ("./", "a", "a"),
        ("d/*", "d/x", "d/x"),
        ("d/**", "d/e/*", "d/e/x"),
        ("./o", "o", "o"),
        ("a/../o", "o", "o"),
        ("out/*.o", "out/*.o", "out/*.o"),
        ("d", "d/*", "d"),
        ("a/**/z", "**/b/*", "a/b/z"),
        ("a*b", "*c*", "acb"),
        ("[a-m]*", "[l-z]*", "l"),
    ],
)
def test_entries_that_overlap(a: str, b: str, common: str) -> None:
    """C43: the pairs that own one path, spelled in whatever way."""
    assert overlap(entry(a), entry(b)) == common
    assert overlap(entry(b), entry(a)) == common


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("O", "o"),
        ("d/x", "d/y"),
        ("d/", "dx"),
        ("*.c", "*.h"),
        ("a/*", "a/b/*"),
        ("out/*", "out/lib/"),
        ("d/*", "d/x/y"),
        ("[ab]", "[!ab]"),
        ("?", "??"),
    ],
)
def test_entries_that_do_not_overlap(a: str, b: str) -> None:
    """C43: what merely looks alike is not refused; case makes different names."""
    assert overlap(entry(a), entry(b)) is None
    assert overlap(entry(b), entry(a)) is None


SMALL = ["a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/b/a", "b/b/b", "ab", "ab/a"]
small_entries = st.sampled_from(
    ["a", "b/", "a/", "./", "*", "**", "a/*", "*/a", "**/a", "a/**", "a*", "?", "[!a]", "*/**/b"]
)


@given(small_entries, small_entries)
def test_overlap_holds_for_every_path_that_both_match(a: str, b: str) -> None:
    """If a path is named by both entries, they overlap (a tree's own path set aside)."""
    shared = [
        path
        for path in SMALL
        if all(matches([e], RelPath(path)) for e in entries(a, b))
        and not any(e.kind is TREE and e.path == path for e in entries(a, b))
    ]
    if shared:
        assert overlap(entry(a), entry(b)) is not None


@given(
    st.lists(small_entries, min_size=1, max_size=2),
    st.lists(small_entries.map(lambda t: "!" + t), max_size=2),
    small_entries,
)
def test_a_list_is_the_union_of_its_extents(
    brought: list[str], excluded: list[str], other: str
) -> None:
    """Exclusions are applied to each entry exactly, in matching and in overlapping alike."""
    listed = entries(*brought, *excluded)
    for path in map(RelPath, SMALL):
        by_extents = any(
            matches([extent.entry, *extent.excludes], path) for extent in extents_of(listed)
        )
        assert by_extents is matches(listed, path)
        found = any(
            overlap_extents(extent, o) is not None
            for extent in extents_of(listed)
            for o in extents_of(entries(other))
        )
        own_path = any(e.kind is TREE and e.path == path for e in (*listed, entry(other)))
        if matches(listed, path) and matches(entries(other), path) and not own_path:
            assert found


def test_what_is_excluded_does_not_overlap() -> None:
    """Leaving a folder out of a read leaves its writer out too."""
    read = extents_of(entries("src/**", "!src/gen/**"))
    for text in ("src/gen/", "src/gen/a.c", "src/gen/*.c"):
        assert [overlap_extents(read[0], e) for e in extents_of(entries(text))] == [None]
    assert overlap_extents(read[0], extents_of(entries("src/*/a.c"))[0]) is not None


def test_the_fixed_part_of_a_pattern() -> None:
    """What all matches of a pattern start with: whole folders, and text."""
    assert fixed_folder(RelPath("a/b/*.c")) == "a/b"
    assert fixed_folder(RelPath("[[]a]/b/**")) == "[a]/b"
    assert fixed_folder(RelPath("*")) == "."
    assert fixed_prefix(RelPath("a/b-*.c")) == "a/b-"
    assert fixed_prefix(RelPath("**/x")) == ""
