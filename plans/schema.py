"""The shape of a plan file: every key, its type, and what it means.

The only place where pydantic describes plan files; what it finds is put into words by
`assay.plans.wording`. Values keep the form they have in the file: a validated table is
the same table, with only the keys that were written, which makes merging defaults cheap
and leaves templates for later. Does not know what keys have to do with each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, Required

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import TypedDict

from assay.plans.canonical import MAX_EXACT_INTEGER
from assay.plans.durations import FORM, POSITIVE_FORM, DurationError, parse_duration

CLOSED: Final = ConfigDict(extra="forbid", strict=True)

WRONG_SHAPE: Final = "wrong_shape"
"""Type of the errors whose message completes "must be …"."""

TAGS: Final = {
    str: "<string>",
    list: "<list>",
    dict: "<table>",
    bool: "<boolean>",
    int: "<integer>",
    float: "<float>",
}
"""Which form of a key a value has; these names appear in error locations and nowhere else."""


def _tag_of(value: object) -> str | None:
    return TAGS.get(type(value))


def _one_of(words: str) -> Discriminator:
    """Chooses among forms by the value's type, so that faults are told for one form only."""
    return Discriminator(_tag_of, custom_error_type=WRONG_SHAPE, custom_error_message=words)


def _check_duration(value: object) -> object:
    """Durations keep their text: one with a template in it is read once it is rendered."""
    if not isinstance(value, str):
        raise PydanticCustomError(WRONG_SHAPE, FORM)
    if "{{" not in value:
        try:
            parse_duration(value)
        except DurationError as error:
            raise PydanticCustomError(WRONG_SHAPE, "{words}", {"words": str(error)}) from None
    return value


def _check_positive_duration(value: object) -> object:
    _check_duration(value)
    if isinstance(value, str) and "{{" not in value and parse_duration(value) <= 0:
        raise PydanticCustomError(WRONG_SHAPE, POSITIVE_FORM)
    return value


def _about(text: str) -> Any:
    return Field(description=text)


Text = Annotated[str, Field(min_length=1)]
Duration = Annotated[str, BeforeValidator(_check_duration)]
PositiveDuration = Annotated[str, BeforeValidator(_check_positive_duration)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MAX_EXACT_INTEGER)]

Command = Annotated[
    Annotated[Text, Tag("<string>")] | Annotated[list[str], Field(min_length=1), Tag("<list>")],
    _one_of("a string (a script) or a list of strings (a program and its arguments)"),
]

Scalar = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[bool, Tag("<boolean>")]
    | Annotated[int, Tag("<integer>")]
    | Annotated[Number, Tag("<float>")],
    _one_of("a string, a number or true or false"),
]


@with_config(CLOSED)
class PathDecl(TypedDict, total=False):
    path: Required[Annotated[Text, _about("Always literal; a trailing `/` makes a tree.")]]
    optional: Annotated[bool, _about("Whether the path may be absent.")]


@with_config(CLOSED)
class LiteralPathDecl(TypedDict):
    path: Annotated[Text, _about("Always literal.")]


EntryDecl = Annotated[
    Annotated[Text, Tag("<string>")] | Annotated[PathDecl, Tag("<table>")],
    _one_of('a string or a table such as { path = "x", optional = true }'),
]

RemovedDecl = Annotated[
    Annotated[Text, Tag("<string>")] | Annotated[LiteralPathDecl, Tag("<table>")],
    _one_of('a string or a table such as { path = "x" }'),
]

ForeachDecl = Annotated[
    Annotated[Text, Tag("<string>")]
    | Annotated[list[EntryDecl], Field(min_length=1), Tag("<list>")],
    _one_of("a string or a list of strings"),
]


@with_config(CLOSED)
class ToolTable(TypedDict, total=False):
    name: Required[Annotated[Text, _about("The executable, looked up on PATH.")]]
    version: Annotated[
        list[str],
        Field(min_length=1),
        _about("Command whose printed output stands for the tool's content."),
    ]


ToolDecl = Annotated[
    Annotated[Text, Tag("<string>")] | Annotated[ToolTable, Tag("<table>")],
    _one_of('a string or a table such as { name = "node", version = ["node", "--version"] }'),
]

# `from` is a keyword, so this one cannot be written as a class.
ValueRefDecl = TypedDict(
    "ValueRefDecl",
    {
        "from": Required[Annotated[Text, _about("The node whose result is meant.")]],
        "path": NotRequired[
            Annotated[str, _about("Which part of it: keys and indices with dots between.")]
        ],
    },
)
with_config(CLOSED)(ValueRefDecl)


@with_config(CLOSED)
class SecretDecl(TypedDict, total=False):
    secret: Required[Annotated[Text, _about("Variable of the caller's environment.")]]
    keyed: Annotated[bool, _about("Whether its value is part of the key.")]


def _env_tag_of(value: object) -> str | None:
    if type(value) is dict:
        return "<secret>" if "secret" in value or "keyed" in value else "<table>"
    return TAGS.get(type(value))


EnvDecl = Annotated[
    Annotated[str, Tag("<string>")]
    | Annotated[bool, Tag("<boolean>")]
    | Annotated[int, Tag("<integer>")]
    | Annotated[Number, Tag("<float>")]
    | Annotated[ValueRefDecl, Tag("<table>")]
    | Annotated[SecretDecl, Tag("<secret>")],
    Discriminator(
        _env_tag_of,
        custom_error_type=WRONG_SHAPE,
        custom_error_message='a string, a number, true or false, { from = "NODE" } or '
        '{ secret = "NAME" }',
    ),
]

LOCATION_TAGS: Final = frozenset(TAGS.values()) | {"<secret>"}


@with_config(CLOSED)
class WaitTable(TypedDict, total=False):
    event: Required[Annotated[Text, _about("Name of the event.")]]
    timeout: Annotated[PositiveDuration, _about("How long to wait for it.")]


WaitDecl = Annotated[
    Annotated[PositiveDuration, Tag("<string>")] | Annotated[WaitTable, Tag("<table>")],
    _one_of(f'{FORM} or a table such as {{ event = "NAME" }}'),
]


@with_config(CLOSED)
class RetryDecl(TypedDict, total=False):
    attempts: Annotated[Count, _about("Tries in all, the first one included; 1.")]
    backoff: Annotated[Duration, _about('Pause before the second try; "1s".')]
    factor: Annotated[Number, Field(ge=1), _about("By which each pause grows; 2.0.")]
    max_backoff: Annotated[Duration, _about('The longest pause; "1m".')]
    exit_codes: Annotated[
        list[Annotated[int, Field(ge=1, le=255)]],
        _about("Exit codes that are worth another try; any failure when empty."),
    ]


@with_config(CLOSED)
class CacheTable(TypedDict, total=False):
    ttl: Annotated[PositiveDuration, _about("How long a recorded result may serve.")]
    scope: Annotated[
        Literal["shared", "plan", "run"], _about("Who may be served; `shared` is everyone.")
    ]


CacheDecl = Annotated[
    Annotated[bool, Tag("<boolean>")] | Annotated[CacheTable, Tag("<table>")],
    _one_of('true, false or a table such as { ttl = "7d" }'),
]

Matrix = Annotated[dict[str, Annotated[list[Scalar], Field(min_length=1)]], Field(min_length=1)]


@with_config(CLOSED)
class NodeDecl(TypedDict, total=False):
    """One node as written."""

    run: Annotated[
        Command, _about("A list is a program with arguments, a string a script for `shell`.")
    ]
    description: Annotated[str, _about("For people.")]
    tags: Annotated[list[Text], _about("Names that `--tag` selects by.")]
    kind: Annotated[
        Literal["step", "agent"], _about("`agent` also counts against `concurrency.agents`.")
    ]
    workdir: Annotated[Text, _about("Where the command runs, relative to the root; `.`.")]
    reads: Annotated[
        list[EntryDecl], _about("Files, `trees/`, globs and `!exclusions` the command reads.")
    ]
    writes: Annotated[list[EntryDecl], _about("What the command writes, in the same form.")]
    removes: Annotated[
        list[RemovedDecl], _about("Paths that must be gone after the command succeeded.")
    ]
    tools: Annotated[
        list[ToolDecl], _about("Executables whose content, or printed version, is in the key.")
    ]
    after: Annotated[list[Text], _about("Nodes to follow, for order only; globs over names.")]
    when: Annotated[
        Literal["success", "failure", "always"],
        _about("On which outcomes of what it follows the node runs; `success`."),
    ]
    env: Annotated[
        dict[str, EnvDecl],
        _about("Environment: values, `{ from = NODE }` results, `{ secret = NAME }`."),
    ]
    pass_env: Annotated[
        list[Text], _about("Variables, or globs over them, passed from the caller and keyed.")
    ]
    tier: Annotated[
        Literal["sealed", "compensable", "irreversible"],
        _about(
            "`sealed`: pure and cacheable; `compensable`: rolled back when it fails; "
            "`irreversible`: crosses into the world, never repeated by accident; `sealed`."
        ),
    ]
    idempotency_key: Annotated[Text, _about("Makes a repeat of an irreversible node safe.")]
    undo: Annotated[Command, _about("Command that compensates a compensable node.")]
    approval: Annotated[bool, _about("Whether the run pauses until this action is approved.")]
    boundary: Annotated[
        Literal["declared", "enforced", "isolated"],
        _about("How reads and writes are held; `declared`."),
    ]
    clean: Annotated[bool, _about("Whether left-overs of earlier attempts go first; true.")]
    background: Annotated[
        Literal["end", "keep"], _about("What becomes of processes left behind; `end`.")
    ]
    priority: Annotated[
        int,
        Field(ge=-MAX_EXACT_INTEGER, le=MAX_EXACT_INTEGER),
        _about("Larger goes first; 0."),
    ]
    timeout: Annotated[PositiveDuration, _about('How long an attempt may take: "90s", "1h30m".')]
    grace: Annotated[Duration, _about('Time from SIGTERM to SIGKILL; "10s".')]
    cancellable: Annotated[bool, _about("false: a cancel waits for the node; true.")]
    retry: Annotated[RetryDecl, _about("When and how often a failed attempt is repeated.")]
    resources: Annotated[dict[str, Count], _about("How much of which `[resources]` it needs.")]
    locks: Annotated[list[Text], _about("Names no two running nodes of the workspace share.")]
    cache: Annotated[CacheDecl, _about("Whether, how long and for whom a result is kept.")]
    nondeterministic: Annotated[
        bool, _about("Many results are legitimate; the first recorded one wins.")
    ]
    result: Annotated[Literal["json", "text"], _about("The node's value, read from $ASSAY_RESULT.")]
    max_result_bytes: Annotated[Count, _about("Largest value accepted; 1 MiB.")]
    on_conflict: Annotated[
        Literal["fail", "rebase", "merge"],
        _about("What to do when an isolated node's paths moved under it."),
    ]
    merge: Annotated[Command, _about("Command that merges base, ours and theirs.")]
    requires: Annotated[list[Text], _about("Capabilities the run must have been given.")]
    wait: Annotated[WaitDecl, _about("A pause, or an event to wait for, in place of `run`.")]
    plan: Annotated[Text, _about("Plan file of a child run, in place of `run`.")]
    params: Annotated[dict[str, Scalar], _about("Params of the child run.")]
    detach: Annotated[bool, _about("Whether the child run outlives its parent.")]
    foreach: Annotated[ForeachDecl, _about("One node per matching path: {{each}}.")]
    matrix: Annotated[Matrix, _about("One node per combination of values: {{matrix.NAME}}.")]


@with_config(CLOSED)
class ConcurrencyDecl(TypedDict, total=False):
    steps: Annotated[Count, _about("Cap on nodes running at a time; the CPU count.")]
    agents: Annotated[Count, _about("Cap on running nodes of kind `agent`.")]


@with_config(CLOSED)
class ResourceTable(TypedDict, total=False):
    amount: Required[Annotated[Count, _about("How much there is.")]]
    scope: Annotated[
        Literal["run", "host"],
        _about("`host`: shared by every assay run of this user on this machine."),
    ]


ResourceDecl = Annotated[
    Annotated[Count, Tag("<integer>")] | Annotated[ResourceTable, Tag("<table>")],
    _one_of('a positive integer or a table such as { amount = 2, scope = "host" }'),
]


@with_config(CLOSED)
class RemoteDecl(TypedDict, total=False):
    cache: Annotated[Text, _about("Address of a shared cache.")]
    execute: Annotated[Text, _about("Address of an executing cluster.")]
    upload: Annotated[Literal["evident", "all"], _about("Which results are uploaded; `evident`.")]


@with_config(CLOSED)
class PlanDecl(TypedDict, total=False):
    """A plan file as written."""

    name: Annotated[Text, _about("Name of the plan; the folder's name.")]
    default: Annotated[list[Text], _about("Nodes selected when none is named; all.")]
    root: Annotated[Text, _about("Workspace root, relative to the plan file; `.`.")]
    shell: Annotated[list[Text], Field(min_length=1), _about("How a string `run` is executed.")]
    ignore: Annotated[list[str], _about("gitignore patterns for globs and source trees.")]
    params: Annotated[dict[str, Scalar], _about("{{params.NAME}}; `-p NAME=VALUE` overrides.")]
    env: Annotated[dict[str, EnvDecl], _about("Environment of every node, part of every key.")]
    concurrency: Annotated[ConcurrencyDecl, _about("Caps on what runs at a time.")]
    resources: Annotated[dict[str, ResourceDecl], _about("Named amounts that nodes share.")]
    defaults: Annotated[NodeDecl, _about("Node keys for every node of this file.")]
    include: Annotated[dict[str, Text], _about("Plan files whose nodes become NAME:NODE, by NAME.")]
    nodes: Annotated[dict[str, NodeDecl], _about("The nodes by name.")]
    outputs: Annotated[dict[str, ValueRefDecl], _about("Values of the run itself.")]
    remote: Annotated[RemoteDecl, _about("Shared cache and remote execution.")]


NODE_KEYS: Final = frozenset(NodeDecl.__annotations__)
PLAN_KEYS: Final = frozenset(PlanDecl.__annotations__)

_PLAN_FILE: Final[TypeAdapter[PlanDecl]] = TypeAdapter(PlanDecl)


def validate(data: object) -> tuple[PlanDecl | None, Sequence[ErrorDetails]]:
    """What `data` declares, or None and everything that is wrong with its shape."""
    try:
        return _PLAN_FILE.validate_python(data), ()
    except ValidationError as error:
        return None, error.errors(include_url=False)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a plan file, TOML and JSON alike."""
    schema = _PLAN_FILE.json_schema()
    unvisited: list[Any] = [schema]
    while unvisited:
        part = unvisited.pop()
        if isinstance(part, dict):
            # pydantic derives titles from key names, which adds nothing to the key.
            if isinstance(part.get("title"), str):
                del part["title"]
            # An integer is a number too, so of two forms more than one may fit.
            if "oneOf" in part:
                part["anyOf"] = part.pop("oneOf")
        unvisited.extend(part.values() if isinstance(part, dict) else part)
        unvisited = [each for each in unvisited if isinstance(each, (dict, list))]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "assay plan",
        **schema,
    }
