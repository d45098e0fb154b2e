"""The action key: what is in it, what is not, and that its explanation cannot disagree."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping

import pytest

from assay.engine.keys import (
    FIELDS,
    Inputs,
    Recipe,
    Role,
    action_key,
    address_of,
    content_key_over,
    effect_key,
    encode_recipe,
    find_changes,
    is_cacheable,
    summarize,
    write_recipe,
)
from assay.engine.states import ABSENT, ActionKey, RunId, State
from assay.plans.model import (
    Argv,
    Background,
    CachePolicy,
    CacheScope,
    Entry,
    EntryKind,
    Kind,
    Node,
    NodeName,
    Origin,
    Plain,
    RelPath,
    ResultKind,
    Retry,
    Script,
    Secret,
    Tier,
    Tool,
    ValueRef,
    When,
)

BASE = Node(
    NodeName("n"),
    Origin("plan.toml"),
    command=Argv(("cc", "-c", "a.c")),
    writes=(Entry(EntryKind.FILE, RelPath("a.o")),),
)
FACTS = Inputs(
    reads={RelPath("a.c"): State("file:11")},
    platform="linux-x86_64",
    tools={"cc": "22"},
    passed={"LANG": "C"},
    values={},
    secrets={},
)


def key_of(node: Node = BASE, **facts: object) -> ActionKey:
    return action_key(encode_recipe(recipe_of(node, **facts)))


def recipe_of(node: Node = BASE, **facts: object) -> Recipe:
    return write_recipe(node, dataclasses.replace(FACTS, **facts))  # type: ignore[arg-type]


def test_every_field_of_a_node_is_classified() -> None:
    """A field added to the node model without a decision about the key fails here."""
    assert FIELDS.keys() == {field.name for field in dataclasses.fields(Node)}


CHANGED: Mapping[str, object] = {
    "name": NodeName("m"),
    "origin": Origin("other.toml"),
    "kind": Kind.AGENT,
    "description": "text",
    "tags": ("t",),
    "command": Argv(("cc", "-c", "b.c")),
    "workdir": RelPath("sub"),
    "reads": (Entry(EntryKind.GLOB, RelPath("*.c")),),
    "writes": (Entry(EntryKind.FILE, RelPath("b.o")),),
    "removes": (RelPath("old"),),
    "ignore": ("*.swp",),
    "tools": (Tool("ld"),),
    "after": (NodeName("before"),),
    "when": When.ALWAYS,
    "env": (("V", Plain("1")),),
    "pass_env": ("HOME",),
    "tier": Tier.IRREVERSIBLE,
    "idempotency_key": "k",
    "undo": Argv(("undo",)),
    "clean": False,
    "background": Background.KEEP,
    "priority": 3,
    "timeout_seconds": 1.0,
    "grace_seconds": 1.0,
    "cancellable": False,
    "retry": Retry(3),
    "resources": (("gpu", 1),),
    "locks": ("l",),
    "cache": CachePolicy(False),
    "nondeterministic": True,
    "result": ResultKind.TEXT,
    "max_result_bytes": 5,
}
"""One other value for each field that a plan of today can change."""


@pytest.mark.parametrize("field", sorted(CHANGED))
def test_a_field_changes_the_key_exactly_when_it_is_declared_to(field: str) -> None:
    """Timeouts, priorities and the like keep results; what decides bytes does not (C01, C22)."""
    changed = dataclasses.replace(BASE, **{field: CHANGED[field]})
    assert (key_of(changed) != key_of()) == (FIELDS[field] is Role.DECLARATION)


def test_what_a_node_consumes_is_in_the_key() -> None:
    """Reads, tools, variables, values, keyed secrets and the platform change it (C04, C07)."""
    others = [
        {"reads": {RelPath("a.c"): State("file:12")}},
        {"reads": {RelPath("a.c"): State("exec:11")}},
        {"reads": {}},
        {"tools": {"cc": "23"}},
        {"passed": {"LANG": ""}},
        {"passed": {}},
        {"values": {"V": "x"}},
        {"secrets": {"S": "mac"}},
        {"platform": "linux-aarch64"},
    ]
    keys = {key_of()} | {key_of(**other) for other in others}
    assert len(keys) == len(others) + 1


def test_lists_and_maps_that_have_no_order_give_one_key() -> None:
    """Order of reads, environment and write entries does not matter; that of argv does (C23)."""
    a, b = (Entry(EntryKind.FILE, RelPath(name)) for name in "ab")
    one = dataclasses.replace(BASE, writes=(a, b))
    two = dataclasses.replace(BASE, writes=(b, a))
    assert key_of(one) == key_of(two)
    reads = {RelPath("x"): State("file:1"), RelPath("y"): State("file:2")}
    assert key_of(reads=reads) == key_of(reads=dict(reversed(reads.items())))
    swapped = dataclasses.replace(BASE, command=Argv(("cc", "a.c", "-c")))
    assert key_of(swapped) != key_of()


def test_fields_are_framed_so_that_different_plans_cannot_collide() -> None:
    """Parts that concatenate to the same text give different keys (C08)."""

    def argv(*words: str) -> Node:
        return dataclasses.replace(BASE, command=Argv(words))

    def env(**values: str) -> Node:
        pairs = tuple((name, Plain(value)) for name, value in sorted(values.items()))
        return dataclasses.replace(BASE, env=pairs)

    def reads(**states: str) -> dict[RelPath, State]:
        return {RelPath(name): State(state) for name, state in states.items()}

    keys = [
        key_of(argv("ab", "c")),
        key_of(argv("a", "bc")),
        key_of(dataclasses.replace(BASE, command=Script("ab c", ("/bin/sh", "-ec")))),
        key_of(dataclasses.replace(BASE, command=Script("c", ("/bin/sh", "-ec", "ab")))),
        key_of(env(A="1B=2")),
        key_of(env(A="1", B="2")),
        key_of(dataclasses.replace(BASE, env=(("A", ValueRef(NodeName("x"))),))),
        key_of(dataclasses.replace(BASE, env=(("A", Secret("x")),))),
        key_of(reads=reads(ab="")),
        key_of(reads=reads(a="b")),
        key_of(reads={RelPath("a\nb"): State("file:1")}),
        key_of(reads=reads(a="file:1", b="file:1")),
        key_of(reads=reads(a="file:1")),
        key_of(reads=reads(a="link:1")),
        key_of(reads=reads(a="folder")),
        key_of(reads=reads(a="absent")),
        key_of(dataclasses.replace(BASE, writes=()), reads=reads(a="file:1")),
        key_of(dataclasses.replace(BASE, writes=(Entry(EntryKind.FILE, RelPath("a")),)), reads={}),
        key_of(dataclasses.replace(BASE, writes=(Entry(EntryKind.TREE, RelPath("a")),)), reads={}),
        key_of(dataclasses.replace(BASE, writes=(), removes=(RelPath("a"),)), reads={}),
    ]
    for first, second in itertools.combinations(range(len(keys)), 2):
        assert keys[first] != keys[second], (first, second)


def test_a_name_that_is_no_utf_8_has_a_key_of_its_own() -> None:
    """Bytes that are no text are keyed as they are (C121)."""
    names = ["a\udcff", "a\udcfe", "a?"]
    keys = {key_of(reads={RelPath(name): State("file:1")}) for name in names}
    assert len(keys) == 3


def test_a_scope_narrows_the_address_and_not_the_key() -> None:
    """Results of scope `plan` and `run` are kept apart although the key is equal."""
    key, run = key_of(), RunId("0" * 8)
    found = {
        address_of(key, dataclasses.replace(BASE, cache=CachePolicy(scope=scope)), "p", run)
        for scope in CacheScope
    }
    assert found == {key, f"{key}@plan:p", f"{key}@run:{run}"}


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (dataclasses.replace(BASE, writes=()), False),
        (dataclasses.replace(BASE, writes=(), cache=CachePolicy(True)), True),
        (dataclasses.replace(BASE, writes=(), reads=BASE.writes), True),
        (dataclasses.replace(BASE, writes=(), env=(("V", ValueRef(NodeName("x"))),)), True),
        (dataclasses.replace(BASE, writes=(), env=(("V", Plain("x")),)), False),
        (BASE, True),
        (dataclasses.replace(BASE, cache=CachePolicy(False)), False),
    ],
)
def test_a_node_that_nothing_can_tell_about_runs_every_time(node: Node, expected: bool) -> None:
    """No reads, no writes, no references: never up to date, unless it says so (C19)."""
    assert is_cacheable(node) is expected


@pytest.mark.parametrize("tier", [Tier.COMPENSABLE, Tier.IRREVERSIBLE])
@pytest.mark.parametrize("enabled", [None, True])
def test_an_effect_is_never_served_from_the_cache(tier: Tier, enabled: bool | None) -> None:
    """C98: nothing in a cache says that something happened in the world."""
    policy = CachePolicy(enabled)
    assert not is_cacheable(dataclasses.replace(BASE, tier=tier, cache=policy))


def test_an_effect_has_a_key_of_its_own_in_each_run() -> None:
    """C96: run, plan, node and what it declares: nothing that another run did is found by it."""
    run = RunId("aaaaaaaa")
    keys = {
        effect_key(run, "p", BASE, "k"),
        effect_key(RunId("bbbbbbbb"), "p", BASE, "k"),
        effect_key(run, "q", BASE, "k"),
        effect_key(run, "p", dataclasses.replace(BASE, name=NodeName("m")), "k"),
        effect_key(run, "p", BASE, "l"),
        effect_key(run, "pk", BASE, ""),
        key_of(),
    }
    assert len(keys) == 7
    assert effect_key(run, "p", BASE, "k") == effect_key(
        run, "p", dataclasses.replace(BASE, description="x", timeout_seconds=1.0), "k"
    )


def reads(**states: str) -> dict[RelPath, State]:
    return {RelPath(path): State(state) for path, state in states.items()}


def content_over(now: Recipe, before: Recipe, left: Mapping[RelPath, State]) -> ActionKey:
    """The key of `now` to an effect that has read what `before` says and left `left`."""
    return content_key_over(
        now, before, lambda path, to: left.get(path) == to, lambda path: left.get(path) == ABSENT
    )


BEFORE = reads(f="file:1", g="file:2")
"""What the effect read."""


@pytest.mark.parametrize(
    ("now", "left"),
    [
        # Nothing of what it left is read.
        (BEFORE, {}),
        (BEFORE, reads(o="file:9")),
        # It rewrote what it reads, or only touched it.
        (reads(f="file:9", g="file:2"), reads(f="file:9")),
        (reads(f="exec:1", g="file:2"), reads(f="exec:1")),
        (reads(f="file:9", g="file:8"), reads(f="file:9", g="file:8")),
        (BEFORE, reads(f="file:1")),
        # It removed what it reads, by name or by a pattern.
        (reads(f=ABSENT, g="file:2"), reads(f=ABSENT)),
        (reads(g="file:2"), reads(f=ABSENT)),
        # It added to what a pattern of its own matches.
        (reads(f="file:1", g="file:2", h="file:9"), reads(h="file:9")),
        # All of it is as before again.
        (BEFORE, reads(f="file:9", h="file:9")),
    ],
)
def test_what_an_effect_left_is_no_other_content(
    now: Mapping[RelPath, State], left: Mapping[RelPath, State]
) -> None:
    """C104: a node that rewrites, removes or adds to what it reads has no other inputs by it:
    it is done, not to be done again."""
    found = content_over(recipe_of(reads=now), stored(recipe_of(reads=BEFORE)), left)
    assert found == key_of(reads=BEFORE)


@pytest.mark.parametrize(
    ("now", "left"),
    [
        (reads(f="file:7", g="file:2"), {}),
        (reads(f="file:7", g="file:2"), reads(f="file:9")),
        (reads(f="file:9", g="file:7"), reads(f="file:9")),
        (reads(f="file:1"), {}),
        (reads(f="file:1"), reads(f="file:1")),
        (reads(f="file:1"), reads(g="file:9")),
        (reads(f="file:1", g="file:2", h="file:7"), {}),
        (reads(f="file:1", g="file:2", h="file:7"), reads(h="file:9")),
        (reads(f=ABSENT, g="file:2"), {}),
        (reads(f=ABSENT, g="file:2"), reads(f="file:9")),
    ],
)
def test_what_somebody_else_left_is_other_content(
    now: Mapping[RelPath, State], left: Mapping[RelPath, State]
) -> None:
    """An edit, a new file or one that is gone since counts, whatever else the effect wrote."""
    found = content_over(recipe_of(reads=now), stored(recipe_of(reads=BEFORE)), left)
    assert found != key_of(reads=BEFORE)


def test_all_else_of_the_content_counts_too() -> None:
    """What the effect left hides no other command, tool or value."""
    left = reads(f="file:9")
    now = reads(f="file:9", g="file:2")
    before = stored(recipe_of(reads=BEFORE))
    others: list[dict[str, object]] = [
        {"tools": {"cc": "23"}},
        {"values": {"V": 1}},
        {"passed": {}},
    ]
    for changed in others:
        after = recipe_of(reads=now, **changed)
        assert content_over(after, before, left) == key_of(reads=BEFORE, **changed)
        assert content_over(after, before, left) != key_of(reads=BEFORE)


def test_a_record_without_a_recipe_gives_the_content_of_now() -> None:
    """As that of a damaged row."""
    assert content_over(recipe_of(), {}, {}) == key_of()


def stored(recipe: Recipe) -> Recipe:
    """As it comes back from the store."""
    found: Recipe = json.loads(encode_recipe(recipe))
    return found


def test_the_explanation_is_empty_exactly_when_the_keys_agree() -> None:
    """Whatever changes the key is named, whatever does not is not."""
    variants = [
        recipe_of(),
        recipe_of(dataclasses.replace(BASE, command=Script("x", ("/bin/sh",)))),
        recipe_of(dataclasses.replace(BASE, env=(("V", Plain("1")),))),
        recipe_of(dataclasses.replace(BASE, workdir=RelPath("s"))),
        recipe_of(dataclasses.replace(BASE, clean=False)),
        recipe_of(reads={RelPath("a.c"): State("file:12"), RelPath("b.c"): State("file:1")}),
        recipe_of(tools={"cc": "23"}),
        recipe_of(passed={}),
        recipe_of(values={"V": [1, {"a": None}]}),
        recipe_of(secrets={"S": "mac"}),
        recipe_of(platform="p"),
    ]
    for one, two in itertools.product(variants, repeat=2):
        stored: Recipe = json.loads(encode_recipe(one))
        same_key = encode_recipe(one) == encode_recipe(two)
        assert (find_changes(stored, two) == ()) is same_key


def test_changes_are_named_path_by_path_and_field_by_field() -> None:
    """A person reads which file, which variable and which tool changed."""
    before = recipe_of()
    after = recipe_of(
        dataclasses.replace(BASE, env=(("V", Plain("1")),)),
        reads={RelPath("b.c"): State("file:1")},
        tools={"cc": "23"},
    )
    found = [(c.field, c.path, c.before, c.after) for c in find_changes(before, after)]
    assert found == [
        ("env V", None, None, "1"),
        ("tool cc", None, "22", "23"),
        ("reads", "a.c", "file:11", None),
        ("reads", "b.c", None, "file:1"),
    ]
    assert summarize(find_changes(before, after)) == "env V changed and 3 more"
    moved = recipe_of(reads={RelPath("a.c"): State("file:12")})
    assert summarize(find_changes(before, moved)) == "read changed: a.c"
