"""The shape of a plan file, and what is said when it is not met."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from plan_files import refuse_text

from assay.plans.schema import NODE_KEYS, PLAN_KEYS, json_schema, validate

EVERYTHING: dict[str, Any] = {
    "name": "site",
    "default": ["test"],
    "root": ".",
    "shell": ["/bin/sh", "-ec"],
    "ignore": ["*.swp"],
    "params": {"mode": "dev", "n": 1, "f": 1.5, "b": True},
    "env": {"SOURCE_DATE_EPOCH": "0", "N": 3, "F": 2.5, "B": False},
    "concurrency": {"steps": 8, "agents": 2},
    "resources": {"gpu": 1, "licence": {"amount": 2, "scope": "host"}},
    "defaults": {"timeout": "10m"},
    "include": {"web": "web/plan.toml"},
    "nodes": {
        "one": {
            "run": ["python3", "tools/gen.py"],
            "description": "d",
            "tags": ["t"],
            "kind": "agent",
            "workdir": "w",
            "reads": ["a", "b/", "**/*.c", "!x", {"path": "[id].ts", "optional": True}],
            "writes": ["gen/", {"path": "x"}],
            "removes": ["y", {"path": "*"}],
            "tools": ["cc", {"name": "node", "version": ["node", "--version"]}],
            "after": ["test*"],
            "when": "always",
            "env": {
                "A": {"from": "link", "path": "a.b.0"},
                "T": {"secret": "TOKEN", "keyed": True},
                "X": 1,
            },
            "pass_env": ["CI", "GITHUB_*"],
            "tier": "irreversible",
            "idempotency_key": "{{params.mode}}",
            "undo": "undo",
            "approval": True,
            "boundary": "isolated",
            "clean": False,
            "background": "keep",
            "priority": -3,
            "timeout": "90s",
            "grace": "0s",
            "cancellable": False,
            "retry": {
                "attempts": 3,
                "backoff": "1s",
                "factor": 2,
                "max_backoff": "1m",
                "exit_codes": [75],
            },
            "resources": {"gpu": 1},
            "locks": ["db"],
            "cache": {"ttl": "7d", "scope": "plan"},
            "nondeterministic": True,
            "result": "json",
            "max_result_bytes": 10,
            "on_conflict": "merge",
            "merge": ["merge"],
            "requires": ["network"],
            "foreach": ["src/*.c"],
            "matrix": {"py": ["3.11", 3, 3.5, True]},
        },
        "two": {"wait": "10m"},
        "three": {"wait": {"event": "qa", "timeout": "2d"}},
        "four": {"plan": "sub/plan.toml", "params": {"x": 1}, "detach": True},
        "five": {"run": "script", "cache": True, "foreach": "x/*"},
    },
    "outputs": {"version": {"from": "link"}},
    "remote": {"cache": "https://x", "execute": "grpcs://x", "upload": "all"},
}


def accepts(schema: dict[str, Any], value: Any, whole: dict[str, Any]) -> bool:
    """As much of JSON Schema as the plan's schema uses; an unknown keyword fails."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return accepts(whole["$defs"][name], value, whole)
    kinds = {
        "string": str,
        "boolean": bool,
        "array": list,
        "object": dict,
        "integer": int,
        "number": (int, float),
    }
    for keyword, wanted in schema.items():
        match keyword:
            case "description" | "title" | "$defs" | "$schema":
                met = True
            case "type":
                met = isinstance(value, kinds[wanted])  # type: ignore[arg-type]
                met = met and (wanted == "boolean" or not isinstance(value, bool))
            case "anyOf":
                met = any(accepts(each, value, whole) for each in wanted)
            case "enum":
                met = value in wanted
            case "items":
                met = all(accepts(wanted, item, whole) for item in value)
            case "properties":
                met = all(k not in value or accepts(s, value[k], whole) for k, s in wanted.items())
            case "additionalProperties":
                others = value.keys() - schema.get("properties", {}).keys()
                met = all(
                    accepts(wanted, value[key], whole) if isinstance(wanted, dict) else wanted
                    for key in others
                )
            case "required":
                met = all(key in value for key in wanted)
            case "minItems" | "minLength" | "minProperties":
                met = not isinstance(value, (str, list, dict)) or len(value) >= wanted
            case "minimum":
                met = not isinstance(value, (int, float)) or value >= wanted
            case "maximum":
                met = not isinstance(value, (int, float)) or value <= wanted
            case _:
                raise AssertionError(keyword)
        if not met:
            return False
    return True


def test_every_key_is_accepted() -> None:
    """Each key of the plan language with each of its forms."""
    declared, errors = validate(EVERYTHING)
    assert errors == ()
    assert declared == EVERYTHING
    written = {key for node in EVERYTHING["nodes"].values() for key in node}
    assert written == NODE_KEYS
    assert set(EVERYTHING) == PLAN_KEYS


def test_the_json_schema_accepts_every_key() -> None:
    """Editors that check a plan against the schema agree with assay."""
    schema = json_schema()
    assert accepts(schema, EVERYTHING, schema)


@pytest.mark.parametrize(
    "plan",
    [
        {"nmae": "x"},
        {"nodes": {"a": {"timout": "1s"}}},
        {"nodes": {"a": {"tier": "irreversable"}}},
        {"nodes": {"a": {"resources": {"gpu": 0}}}},
        {"nodes": {"a": {"reads": [{"optional": True}]}}},
    ],
)
def test_the_json_schema_refuses_what_assay_refuses(plan: dict[str, Any]) -> None:
    """Unknown keys, unknown values and wrong amounts."""
    schema = json_schema()
    assert not accepts(schema, plan, schema)
    assert validate(plan)[0] is None


def test_the_json_schema_describes_every_key() -> None:
    """Each key carries a sentence that an editor can show."""
    schema = json_schema()
    for table in (schema, *schema["$defs"].values()):
        for key, described in table.get("properties", {}).items():
            assert described.get("description"), key


def value_complaints(tmp_path: Path, line: str) -> list[str]:
    """What is said about one line of a node, without the place."""
    found = refuse_text(tmp_path, f'[nodes.a]\nrun = "true"\n{line}\n')
    return [re.sub(r"^plan.toml:\d+:\d+: ", "", each) for each in found]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('dep = ["x"]', "Unknown key `dep` in node `a` (Did you mean `after`?)"),
        ('timout = "5s"', "Unknown key `timout` in node `a` (Did you mean `timeout`?)"),
        ('zzz = "5s"', "Unknown key `zzz` in node `a`"),
        ('"" = 1', "Unknown key `` in node `a`"),
        ("steps = 3", "Unknown key `steps` in node `a` (`steps` belongs in `[concurrency]`.)"),
        (
            'default = ["a"]',
            "Unknown key `default` in node `a` "
            "(`default` is a key of the plan: write it above the first `[table]`.)",
        ),
        (
            'tier = "irreversable"',
            '`tier` of node `a` must be "sealed", "compensable" or "irreversible", not '
            '"irreversable" (Did you mean `"irreversible"`?)',
        ),
        (
            'when = "never"',
            '`when` of node `a` must be "success", "failure" or "always", not "never"',
        ),
        ('retries = "3"', "Unknown key `retries` in node `a` (Did you mean `retry`?)"),
        (
            "retry = 3",
            "`retry` of node `a` must be a table, not 3 (Write `retry = { attempts = 3 }`.)",
        ),
        (
            'retry = { attempts = "3" }',
            '`retry.attempts` of node `a` must be an integer, not "3" (Write `attempts = 3`.)',
        ),
        (
            "retry = { atempts = 3 }",
            "Unknown key `atempts` in `retry` of node `a` (Did you mean `attempts`?)",
        ),
        (
            "retry = { exit_codes = [0, 300] }",
            "`retry.exit_codes[0]` of node `a` must be a positive integer, not 0",
        ),
        (
            "timeout = -1",
            '`timeout` of node `a` must be a duration such as "90s", "5m" or "1h30m", not -1',
        ),
        (
            "timeout = 90",
            '`timeout` of node `a` must be a duration such as "90s", "5m" or "1h30m", not 90 '
            '(Write `timeout = "90s"`.)',
        ),
        ('timeout = "0s"', '`timeout` of node `a` must be a duration longer than zero, not "0s"'),
        (
            'grace = "999999999d"',
            '`grace` of node `a` must be a duration of at most 100 years, not "999999999d"',
        ),
        (
            'clean = "true"',
            '`clean` of node `a` must be true or false, not "true" (Write `clean = true`.)',
        ),
        (
            'reads = "src/*.c"',
            '`reads` of node `a` must be a list, not "src/*.c" (Write `reads = ["src/*.c"]`.)',
        ),
        (
            "reads = [3]",
            "`reads[0]` of node `a` must be a string or a table such as "
            '{ path = "x", optional = true }, not 3',
        ),
        (
            'reads = [{ pth = "x" }]',
            "Unknown key `pth` in `reads[0]` of node `a` (Did you mean `path`?)",
        ),
        ("reads = [{}]", "`reads[0]` of node `a` needs `path`"),
        ("resources = { gpu = 1.5 }", "`resources.gpu` of node `a` must be an integer, not 1.5"),
        (
            "resources = { gpu = 0 }",
            "`resources.gpu` of node `a` must be a positive integer, not 0",
        ),
        (
            "priority = 0x" + "f" * 9000,
            "`priority` of node `a` must be at most 9007199254740991, not a huge integer",
        ),
        ("priority = 1.0", "`priority` of node `a` must be an integer, not 1.0"),
        ("priority = true", "`priority` of node `a` must be an integer, not true"),
        ("priority = 2024-01-01", "`priority` of node `a` must be an integer, not a date or time"),
        (
            "description = 12:00:00",
            "`description` of node `a` must be a string, not a date or time",
        ),
        (
            "description = 3",
            '`description` of node `a` must be a string, not 3 (Write `description = "3"`.)',
        ),
        (
            "env = { A = [1] }",
            "`env.A` of node `a` must be a string, a number, true or false, "
            '{ from = "NODE" } or { secret = "NAME" }, not a list',
        ),
        ("env = { A = inf }", "`env.A` of node `a` must be a finite number, not inf"),
        ("env = { A = {} }", "`env.A` of node `a` needs `from` or `secret`"),
        (
            'env = { A = { form = "b" } }',
            "Unknown key `form` in `env.A` of node `a` (Did you mean `from`?)",
        ),
        (
            'cache = { scope = "global" }',
            '`cache.scope` of node `a` must be "shared", "plan" or "run", not "global"',
        ),
        (
            "cache = 3",
            '`cache` of node `a` must be true, false or a table such as { ttl = "7d" }, not 3',
        ),
        ("matrix = {}", "`matrix` of node `a` must not be empty"),
        ("matrix = { x = [] }", "`matrix.x` of node `a` must not be empty"),
        ('tags = [""]', "`tags[0]` of node `a` must not be empty"),
        (
            '[nodes.a.env]\nwrites = ["o"]',
            "`env.writes` of node `a` must be a string, a number, true or false, "
            '{ from = "NODE" } or { secret = "NAME" }, not a list '
            "(`writes` is a key of the node itself: write it above `[nodes.a.env]`.)",
        ),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(tmp_path: Path, line: str, complaint: str) -> None:
    """The key, what it must be, what it is, and how to write it (C131)."""
    assert value_complaints(tmp_path, line)[0] == complaint


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        ('nmae = "x"', ["plan.toml:1:1: Unknown key `nmae` (Did you mean `name`?)"]),
        (
            'timeout = "3m"',
            [
                "plan.toml:1:1: Unknown key `timeout` "
                "(`timeout` is a key of a node: write it below `[nodes.NAME]` or `[defaults]`.)"
            ],
        ),
        ("[tasks.a]\nrun='x'", ["plan.toml:1:2: Unknown key `tasks` (Did you mean `nodes`?)"]),
        ("nodes = 3", ["plan.toml:1:9: `nodes` must be a table, not 3"]),
        (
            '[nodes]\na = "make"',
            ['plan.toml:2:5: Node `a` must be a table, not "make" (Write `a = { run = "make" }`.)'],
        ),
        (
            "[concurrency]\nsteps = 0\nagnets = 1",
            [
                "plan.toml:2:9: `concurrency.steps` must be a positive integer, not 0",
                "plan.toml:3:1: Unknown key `agnets` in `concurrency` (Did you mean `agents`?)",
            ],
        ),
        (
            "[resources]\ngpu = -1\ncpu = {}\nram = 'x'",
            [
                "plan.toml:2:7: `resources.gpu` must be a positive integer, not -1",
                "plan.toml:3:7: `resources.cpu` needs `amount`",
                "plan.toml:4:7: `resources.ram` must be a positive integer or a table such as "
                '{ amount = 2, scope = "host" }, not "x"',
            ],
        ),
        (
            "[params]\ndefault = ['x']",
            [
                "plan.toml:2:11: `params.default` must be a string, a number or true or false, "
                "not a list (`default` is a key of the plan: write it above the first `[table]`.)"
            ],
        ),
        (
            '[defaults]\ntimout = "3"\ngrace = 1',
            [
                "plan.toml:2:1: Unknown key `timout` in `[defaults]` (Did you mean `timeout`?)",
                '`grace` in `[defaults]` must be a duration such as "90s", "5m" or "1h30m", not 1',
            ],
        ),
        (
            '{"nodes": {"a": {"run": "x", "retry": 3}}}',
            [
                "plan.json:1:39: `retry` of node `a` must be a table, not 3 "
                '(Write `"retry": { "attempts": 3 }`.)'
            ],
        ),
        ('{"name": null}', ["plan.json:1:10: `name` must be a string, not null"]),
    ],
)
def test_the_plan_itself_is_told_likewise(tmp_path: Path, text: str, complaints: list[str]) -> None:
    """Every table of the file, in TOML and in JSON."""
    name = "plan.json" if text.startswith("{") else "plan.toml"
    found = refuse_text(tmp_path, text, name)
    assert len(found) == len(complaints)
    for line, complaint in zip(found, complaints, strict=True):
        assert complaint in line
