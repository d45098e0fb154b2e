"""What names and patterns over names refer to."""

from __future__ import annotations

from handmade import node, template

from assay.plans.names import NodeNames, base_of, scope_of

NODES = [
    node("test[py=3.11]"),
    node("test[py=3.12]"),
    node("tests"),
    node("cc[src/main.c]"),
    node("cc[src/a:b.c]"),
    node("web:gen"),
    node("web:test"),
    node("web:sub:gen"),
    node("gen"),
    template("lint", ["gen/*"]),
    template("fmt[m=1]", ["gen/*"]),
    node("fmt[src/a,m=2]"),
    node("*odd*"),
    # Appended:
    node("lint[gen/a]"),
    node("fmt[gen/a,m=1]"),
]

NAMES = NodeNames(NODES, len(NODES) - 2)


def found(text: str, scope: str = "") -> list[str]:
    return [NODES[i].name for i in NAMES.find(text, scope)]


def test_an_exact_name_wins() -> None:
    """A name that looks like a pattern is first of all a name."""
    assert found("*odd*") == ["*odd*"]
    assert found("gen") == ["gen"]
    assert found("cc[src/main.c]") == ["cc[src/main.c]"]


def test_a_name_means_all_its_instances() -> None:
    """`test` is every `test[…]`, and not `tests`."""
    assert found("test") == ["test[py=3.11]", "test[py=3.12]"]


def test_a_name_is_told_from_a_pattern() -> None:
    """What `find_exact` does not find was not named, whatever a pattern matches."""
    exact = ["*odd*", "test", "cc[src/main.c]", "lint[gen/a]"]
    assert all(NAMES.find_exact(text) == NAMES.find(text) != () for text in exact)
    assert [NAMES.find_exact(text) for text in ("test*", "cc[*]", "nope")] == [(), (), ()]


def test_brackets_in_patterns_are_themselves() -> None:
    """`*` and `?` are the wildcards; brackets belong to the names of instances."""
    assert found("cc[*]") == ["cc[src/main.c]", "cc[src/a:b.c]"]
    assert found("test[py=3.1?]") == ["test[py=3.11]", "test[py=3.12]"]
    assert found("web:*") == ["web:gen", "web:test", "web:sub:gen"]


def test_names_in_an_include_are_looked_for_inside_first() -> None:
    """An included file means its own nodes, then those of the files around it."""
    assert found("gen", "web:sub:") == ["web:sub:gen"]
    assert found("test", "web:sub:") == ["web:test"]
    assert found("tests", "web:sub:") == ["tests"]
    assert found("*gen", "web:") == ["web:gen", "web:sub:gen"]


def test_a_template_stands_for_its_instances() -> None:
    """Who follows a template does not depend on how far it has expanded."""
    assert found("lint") == ["lint"]
    assert found("lint*") == ["lint"]
    assert found("lint[gen/a]") == ["lint[gen/a]"]
    assert found("fmt") == found("fmt[*]") == ["fmt[m=1]", "fmt[src/a,m=2]"]


def test_a_templates_instances_are_known_by_their_names() -> None:
    """Those of its own combination of a matrix only."""
    by_name = {n.name: n for n in NODES}
    assert NAMES.find_grown(by_name["lint"]) == (NAMES.indices["lint[gen/a]"],)
    assert NAMES.find_grown(by_name["fmt[m=1]"]) == (NAMES.indices["fmt[gen/a,m=1]"],)
    assert NAMES.find_grown(template("fmt[m=2]", ["x"])) == ()


def test_what_is_unknown_gets_the_nearest_name() -> None:
    """C49: a misspelt name is answered with the one that was meant."""
    names = NodeNames(NODES)
    assert names.find("tset") == ()
    assert names.suggest("tset") == "test"
    assert names.suggest("gne", "web:") == "web:gen"
    assert names.suggest("completely different") is None


def test_scopes_and_bases() -> None:
    """A colon inside brackets is no include."""
    assert scope_of("cc[src/a:b.c]") == ""
    assert scope_of("web:sub:gen[x]") == "web:sub:"
    assert base_of("web:cc[a]") == "web:cc"
