"""One node: defaults, commands, entries and the rules between keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_files import command_of, entries_of, load_text, node_named, refuse_text, write_file

from assay.plans.model import (
    Argv,
    Background,
    CachePolicy,
    CacheScope,
    Kind,
    ResultKind,
    Retry,
    Script,
    Tier,
    Tool,
    When,
)


def test_every_key_becomes_its_field(tmp_path: Path) -> None:
    """Nothing that was written is lost."""
    text = """\
[resources]
gpu = 1
cpu = 4
[nodes.first]
run = "x"
[nodes.n]
run = ["tool", "--x"]
description = "d"
tags = ["t", "u"]
kind = "agent"
workdir = "sub/../w"
reads = ["a"]
writes = ["o/"]
removes = ["gone", { path = "*" }]
tools = ["cc", { name = "node", version = ["node", "--version"] }]
after = ["first"]
when = "always"
pass_env = ["CI", "A_*", "CI"]
clean = false
background = "keep"
priority = -3
timeout = "90s"
grace = "0s"
cancellable = false
retry = { attempts = 3, backoff = "2s", factor = 1, max_backoff = "1m", exit_codes = [75, 7] }
resources = { gpu = 1, cpu = 2 }
locks = ["z", "a"]
cache = { ttl = "7d", scope = "plan" }
nondeterministic = true
result = "text"
max_result_bytes = 10
"""
    write_file(tmp_path, "a")
    node = node_named(load_text(tmp_path, text), "n")
    assert node.command == Argv(("tool", "--x"))
    assert (node.description, node.tags, node.kind) == ("d", ("t", "u"), Kind.AGENT)
    assert (node.workdir, node.removes) == ("w", ("gone", "*"))
    assert (entries_of(node.reads), entries_of(node.writes)) == (["a"], ["o/"])
    assert node.tools == (Tool("cc"), Tool("node", ("node", "--version")))
    assert (node.after, node.when, node.pass_env) == (("first",), When.ALWAYS, ("A_*", "CI"))
    assert (node.clean, node.background, node.priority) == (False, Background.KEEP, -3)
    assert (node.timeout_seconds, node.grace_seconds, node.cancellable) == (90.0, 0.0, False)
    assert node.retry == Retry(3, 2.0, 1.0, 60.0, (7, 75))
    assert (node.resources, node.locks) == ((("cpu", 2), ("gpu", 1)), ("a", "z"))
    assert node.cache == CachePolicy(None, 604_800.0, CacheScope.PLAN)
    assert (node.nondeterministic, node.result) == (True, ResultKind.TEXT)
    assert node.max_result_bytes == 10


def test_defaults_reach_every_node_and_lose_to_it(tmp_path: Path) -> None:
    """Any node key; a node's own value replaces the default."""
    text = """\
[defaults]
timeout = "1m"
tags = ["d"]
reads = ["common"]
[nodes.a]
run = "a"
[nodes.b]
run = "b"
timeout = "2m"
reads = []
[nodes.group]
after = ["a"]
"""
    write_file(tmp_path, "common")
    loaded = load_text(tmp_path, text)
    a, b, group = loaded.plan.nodes
    assert (a.timeout_seconds, a.tags, entries_of(a.reads)) == (60.0, ("d",), ["common"])
    assert (b.timeout_seconds, b.tags, b.reads) == (120.0, ("d",), ())
    assert (group.kind, group.timeout_seconds, group.tags) == (Kind.GROUP, None, ("d",))
    assert group.command is None


def test_a_default_command_is_a_command(tmp_path: Path) -> None:
    """A node without one of its own has it."""
    loaded = load_text(tmp_path, '[defaults]\nrun = "d"\n[nodes.a]\n[nodes.b]\nrun = ["x"]\n')
    assert [command_of(node) for node in loaded.plan.nodes] == ["d", ("x",)]


def test_a_fault_in_the_defaults_is_told_once(tmp_path: Path) -> None:
    """And where it stands, however many nodes it reaches."""
    text = '[defaults]\nreads = ["{{params.x}}", "/a"]\n'
    text += "".join(f'[nodes.n{i}]\nrun = "x"\n' for i in range(5))
    assert refuse_text(tmp_path, text) == [
        "plan.toml:2:10: `reads[0]` in `[defaults]` uses `{{params.x}}`, but `params` has no `x`",
        "plan.toml:2:26: `reads[1]` in `[defaults]`: `/a` is absolute; entries are relative to the "
        "workspace (Only paths inside the workspace can be read or written.)",
    ]


def test_strings_are_scripts_and_lists_programs(tmp_path: Path) -> None:
    """A list never meets a shell."""
    text = (
        'shell = ["bash", "-c"]\n[nodes.a]\nrun = "x | y"\n[nodes.b]\nrun = ["x", "|", "$HOME"]\n'
    )
    a, b = load_text(tmp_path, text).plan.nodes
    assert a.command == Script("x | y", ("bash", "-c"))
    assert b.command == Argv(("x", "|", "$HOME"))


@pytest.mark.parametrize(
    ("run", "reads"),
    [
        ('["./tool"]', ["tool"]),
        ('["bin/x/../tool"]', ["bin/tool"]),
        ('["tool"]', []),
        ('["/usr/bin/env"]', []),
        ('["../outside"]', []),
        ('"./tool"', []),
    ],
)
def test_a_program_in_the_workspace_is_a_read(tmp_path: Path, run: str, reads: list[str]) -> None:
    """What argv[0] names by its path is part of the boundary (C07)."""
    for name in ("tool", "bin/tool"):
        write_file(tmp_path, name)
    node = load_text(tmp_path, f"[nodes.a]\nrun = {run}\n").plan.nodes[0]
    assert entries_of(node.reads) == reads


def test_a_program_is_found_from_the_workdir_and_by_absolute_path(tmp_path: Path) -> None:
    """As the process would find it; once, even when it is declared too."""
    for name in ("w/tool", "tool"):
        write_file(tmp_path, name)
    text = f"""\
[nodes.a]
run = ["./tool"]
workdir = "w"
[nodes.b]
run = ["{tmp_path}/tool"]
reads = ["tool"]
"""
    a, b = load_text(tmp_path, text).plan.nodes
    assert (entries_of(a.reads), entries_of(b.reads)) == (["w/tool"], ["tool"])


def test_names_of_any_language_are_names(tmp_path: Path) -> None:
    """Unicode is not normalised: look-alikes are two nodes (C124)."""
    text = (
        '[nodes."e\\u0301"]\nrun = "x"\n[nodes."\\u00e9"]\nrun = "y"\n[nodes."a b/c"]\nrun = "z"\n'
    )
    loaded = load_text(tmp_path, text)
    assert [node.name for node in loaded.plan.nodes] == ["e\u0301", "\u00e9", "a b/c"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "A name cannot be empty"),
        ("--help", "`--help` cannot be the name of a node: it starts with `-`, like an option"),
        ("a\\nb", "`a\\nb` cannot be the name of a node: it contains a control character"),
        (" a", "` a` cannot be the name of a node: it starts or ends with a blank"),
        ("a[b]", "`a[b]` cannot be the name of a node: it contains `[`"),
        ("a]", "`a]` cannot be the name of a node: it contains `]`"),
        ("a:b", "`a:b` cannot be the name of a node: it contains `:`"),
        ("a*", "`a*` cannot be the name of a node: it contains `*`"),
        ("a?", "`a?` cannot be the name of a node: it contains `?`"),
    ],
)
def test_names_with_a_meaning_are_refused(tmp_path: Path, name: str, why: str) -> None:
    """Options, instances, includes and patterns keep their characters (C123)."""
    [found] = refuse_text(tmp_path, f'[nodes."{name}"]\nrun = "x"\n')
    assert found.removeprefix("plan.toml:1:8: ").split(" (")[0] == why


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("", "plan.toml:1:1: Node `a` has neither `run` nor `after`"),
        (
            'reads = ["x"]\nwrites = ["y"]',
            "plan.toml:1:1: Node `a` has `reads` and `writes`, but nothing to `run` "
            "(A node without a command is a group, which has only `after`.)",
        ),
        ('run = " "', "plan.toml:2:7: `run` of node `a` is empty"),
        (
            'run = ["", "x"]',
            "plan.toml:2:7: `run` of node `a` names no program: its first element is empty",
        ),
        (
            'run = "x"\nremoves = ["*.o"]',
            "plan.toml:3:12: `removes[0]` of node `a` is `*.o`, but only paths can be removed, no "
            'patterns (For a path of exactly that name write `{ path = "*.o" }`.)',
        ),
        (
            'run = "x"\nworkdir = "../.."',
            "plan.toml:3:11: `workdir` of node `a`: `../..` leads outside the workspace",
        ),
        (
            'run = "x"\nreads = ["src/{a,b}.c"]',
            "plan.toml:3:10: `reads[0]` of node `a`: `src/{a,b}.c` has braces, which are no "
            'pattern syntax (Write one entry for each: "src/a.c", "src/b.c".)',
        ),
        (
            'run = "x"\ntimeout = "{{params.t}}"\n[params]\nt = "soon"',
            'plan.toml:3:11: `timeout` of node `a` must be a duration such as "90s", "5m" or '
            '"1h30m", not "soon"',
        ),
        (
            'run = "x {{each}} {{matrix.y}}"',
            "plan.toml:2:7: `run` of node `a` uses `{{each}}`, but there is no `foreach` around it",
        ),
    ],
)
def test_rules_between_keys_are_explained(tmp_path: Path, lines: str, complaint: str) -> None:
    """Whole sentences with the place (C118, C131)."""
    assert refuse_text(tmp_path, f"[nodes.a]\n{lines}\n")[0] == complaint


def test_two_commands_are_one_too_many(tmp_path: Path) -> None:
    """A node does one thing."""
    assert refuse_text(tmp_path, '[nodes.a]\nrun = "x"\nwait = "1m"\n') == [
        "plan.toml:3:1: Node `a` has both `run` and `wait` "
        "(A node has one of `run`, `wait` and `plan`.)",
        "plan.toml:3:8: `wait` of node `a` is not available yet",
    ]


# Tiers


def test_a_compensable_node_has_its_undo(tmp_path: Path) -> None:
    """A command like `run`: a string is a script for the file's shell, templates work in both."""
    text = """\
shell = ["bash", "-c"]
[params]
db = "shop"
[nodes.a]
run = "up"
undo = "down {{params.db}}"
tier = "compensable"
[nodes.b]
run = "up"
undo = ["./down", "{{matrix.n}} $HOME"]
tier = "compensable"
idempotency_key = "k"
matrix = { n = [1] }
"""
    a, b = load_text(tmp_path, text).plan.nodes
    assert (a.tier, a.undo) == (Tier.COMPENSABLE, Script("down shop", ("bash", "-c")))
    assert (b.tier, b.undo) == (Tier.COMPENSABLE, Argv(("./down", "1 $HOME")))
    assert (a.idempotency_key, b.idempotency_key) == (None, "k")


def test_an_idempotency_key_is_rendered(tmp_path: Path) -> None:
    """Each instance of a `foreach` has its own."""
    for name in "xy":
        write_file(tmp_path, f"in/{name}.pdf")
    text = """\
[params]
month = "May"
[nodes.send]
foreach = "in/*"
run = ["send", "{{each}}"]
tier = "irreversible"
idempotency_key = "{{params.month}}-{{each.stem}}"
"""
    nodes = load_text(tmp_path, text).plan.nodes
    assert [node.tier for node in nodes] == [Tier.IRREVERSIBLE] * 2
    assert [node.idempotency_key for node in nodes] == ["May-x", "May-y"]


TIERS = '[nodes.a]\nrun = "x"\ntier = "{}"\n{}\n'
NO_RETRY = (
    "plan.toml:4:1: Node `a` has `retry`, but is irreversible (Name the `exit_codes` after which "
    "nothing has happened, or give the node an `idempotency_key` that makes a repeat safe.)"
)


@pytest.mark.parametrize(
    ("tier", "line", "complaint"),
    [
        ("irreversible", "retry = { attempts = 2 }", NO_RETRY),
        ("irreversible", "retry = { attempts = 3, exit_codes = [] }", NO_RETRY),
        (
            "sealed",
            'undo = "y"',
            "plan.toml:4:1: Node `a` has `undo`, but is sealed "
            '(Only what can be rolled back is undone: tier = "compensable".)',
        ),
        (
            "irreversible",
            'undo = "y"',
            "plan.toml:4:1: Node `a` has `undo`, but is irreversible "
            '(Only what can be rolled back is undone: tier = "compensable".)',
        ),
        (
            "sealed",
            'idempotency_key = "k"',
            "plan.toml:4:1: Node `a` has an `idempotency_key`, but is sealed (A sealed node may "
            'always be repeated; the key is for tier = "irreversible".)',
        ),
        (
            "compensable",
            "cache = true",
            "plan.toml:4:1: Node `a` has `cache`, but is compensable "
            "(Only results of sealed nodes are kept; take `cache` away.)",
        ),
        (
            "irreversible",
            'cache = { ttl = "1d" }',
            "plan.toml:4:1: Node `a` has `cache`, but is irreversible "
            "(Only results of sealed nodes are kept; take `cache` away.)",
        ),
        (
            "irreversible",
            'idempotency_key = " \\t"',
            "plan.toml:4:19: `idempotency_key` of node `a` is empty",
        ),
        (
            "irreversible",
            'idempotency_key = "{{params.none}}"\n[params]\nnone = ""',
            "plan.toml:4:19: `idempotency_key` of node `a` is empty",
        ),
        (
            "irreversible",
            'idempotency_key = "a\\nb"',
            "plan.toml:4:19: `idempotency_key` of node `a` contains a control character",
        ),
        ("compensable", 'undo = " "', "plan.toml:4:8: `undo` of node `a` is empty"),
        (
            "compensable",
            'undo = ["", "y"]',
            "plan.toml:4:8: `undo` of node `a` names no program: its first element is empty",
        ),
        (
            "compensable",
            'undo = ["{{params.y}}"]',
            "plan.toml:4:9: `undo[0]` of node `a` uses `{{params.y}}`, but `params` has no `y`",
        ),
    ],
)
def test_keys_at_odds_with_the_tier_are_errors(
    tmp_path: Path, tier: str, line: str, complaint: str
) -> None:
    """What could repeat an effect by accident, or would never count, is told before a run."""
    assert refuse_text(tmp_path, TIERS.format(tier, line)) == [complaint]


@pytest.mark.parametrize(
    ("tier", "line"),
    [
        ("irreversible", "retry = { attempts = 1 }"),
        ("irreversible", 'retry = { backoff = "1s" }'),
        ("irreversible", "retry = { attempts = 3, exit_codes = [75] }"),
        ("irreversible", 'retry = { attempts = 3 }\nidempotency_key = "k"'),
        ("compensable", "retry = { attempts = 3 }"),
        ("sealed", "retry = { attempts = 3 }"),
        ("sealed", "cache = false"),
    ],
)
def test_a_retry_that_repeats_no_effect_by_accident_is_fine(
    tmp_path: Path, tier: str, line: str
) -> None:
    """With a key, after exit codes that declare that nothing happened, or without an effect."""
    load_text(tmp_path, TIERS.format(tier, line))


def test_defaults_reach_the_tiers_they_are_for(tmp_path: Path) -> None:
    """`retry`, `cache`, `undo` and `idempotency_key` pass by the nodes they mean nothing to."""
    text = """\
[defaults]
retry = { attempts = 3 }
cache = false
undo = "u"
idempotency_key = "k"
timeout = "1m"
[nodes.s]
run = "x"
[nodes.c]
run = "x"
tier = "compensable"
idempotency_key = "c"
[nodes.i]
run = "x"
tier = "irreversible"
[nodes.j]
run = "x"
tier = "irreversible"
idempotency_key = "j"
retry = { attempts = 2 }
"""
    s, c, i, j = load_text(tmp_path, text).plan.nodes
    assert [node.retry.attempts for node in (s, c, i, j)] == [3, 3, 1, 2]
    assert [node.cache.enabled for node in (s, c, i)] == [False, None, None]
    assert [node.undo is None for node in (s, c, i)] == [True, False, True]
    assert [node.idempotency_key for node in (s, c, i)] == [None, "c", "k"]
    assert {node.timeout_seconds for node in (s, c, i)} == {60.0}


def test_a_default_tier_is_a_tier(tmp_path: Path) -> None:
    """What stands beside it counts for the nodes that have it, and not for groups."""
    text = """\
[defaults]
tier = "irreversible"
retry = { attempts = 3 }
[nodes.a]
run = "x"
[nodes.b]
run = "x"
tier = "sealed"
[nodes.g]
after = ["a"]
"""
    a, b, g = load_text(tmp_path, text).plan.nodes
    assert (a.tier, a.retry.attempts) == (Tier.IRREVERSIBLE, 1)
    assert (b.tier, b.retry.attempts) == (Tier.SEALED, 3)
    assert g.tier is Tier.SEALED


@pytest.mark.parametrize("place", ["a", "defaults"])
def test_a_misspelt_tier_explains_what_is_at_odds_with_it(tmp_path: Path, place: str) -> None:
    """What was meant for another tier is not told as well."""
    text = '[nodes.a]\nrun = "x"\nundo = "y"\n'
    text += ("" if place == "a" else "[defaults]\n") + 'tier = "compensible"\n'
    [found] = refuse_text(tmp_path, text)
    assert "`tier`" in found


def test_durations_may_come_from_params(tmp_path: Path) -> None:
    """Templates work in every text of a node."""
    text = '[params]\nt = "5m"\n[nodes.a]\nrun = "x"\n'
    text += 'timeout = "{{params.t}}"\ntags = ["{{params.t}}"]\n'
    node = load_text(tmp_path, text).plan.nodes[0]
    assert (node.timeout_seconds, node.tags) == (300.0, ("5m",))


def test_declarations_do_not_run_together(tmp_path: Path) -> None:
    """Differently divided arguments and variables are different plans (C08)."""
    one, two, three, four = (
        load_text(tmp_path, f"[nodes.a]\n{lines}\n").plan.digest
        for lines in (
            'run = ["x", "ab", "c"]',
            'run = ["x", "a", "bc"]',
            'run = ["x"]\nenv = { A = "1B=2" }',
            'run = ["x"]\nenv = { A = "1", B = "2" }',
        )
    )
    assert len({one, two, three, four}) == 4
