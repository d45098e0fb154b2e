"""The one table of commands, arguments and options, and the values read from them.

Both the typer commands and any quicker reading of the command line are made from
`COMMANDS`. Does not know how a command line is split, nor what a command does.
Nothing heavy is imported here: this module is on the path of every start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from assay.cli.errors import UsageError

LARGEST_NUMBER = 1_000_000_000
"""More nodes at once, or runs in a list, than anybody has."""


class Option(NamedTuple):
    """One option. `metavar` empty: a switch; otherwise it takes a text.

    `many`: may be given several times. `choices`: the only texts allowed.
    `positive`: the text must be a positive integer up to `LARGEST_NUMBER`.
    """

    name: str
    flags: tuple[str, ...]
    help: str
    metavar: str = ""
    many: bool = False
    choices: tuple[str, ...] = ()
    default: str = ""
    positive: bool = False


class Argument(NamedTuple):
    """The positional words of a command: at least one when `required`, one at most unless
    `many`."""

    metavar: str
    help: str
    required: bool = False
    many: bool = False


class Command(NamedTuple):
    """`module` is the file in `assay.cli.commands` that performs it; `group` the word in
    front of the name (`cache gc`), or empty."""

    name: str
    help: str
    module: str
    argument: Argument | None = None
    options: tuple[Option, ...] = ()
    group: str = ""


JSON = Option("json", ("--json",), "Write JSON to standard output.")
COLOR = Option(
    "color",
    ("--color",),
    "Colours: auto obeys NO_COLOR and the terminal.",
    metavar="WHEN",
    choices=("auto", "always", "never"),
    default="auto",
)
PARAM = Option("param", ("-p",), "Set a parameter of the plan.", metavar="NAME=VALUE", many=True)
TAG = Option("tag", ("--tag",), "Select the nodes with this tag.", metavar="TAG", many=True)
RUN = Option("run", ("--run",), "A run: a unique prefix of its id, or `last`.", metavar="RUN")
BOUNDARY = Option(
    "boundary",
    ("--boundary",),
    "How the boundaries of all nodes are held, whatever the plan says.",
    metavar="HOW",
    choices=("declared", "enforced", "isolated"),
)
JOBS = Option("jobs", ("-j", "--jobs"), "Nodes running at once.", "N", positive=True)
AGENTS = Option("agents", ("--agents",), "Agents running at once.", "N", positive=True)
DEADLINE = Option(
    "deadline", ("--deadline",), "Cancel the run when it takes longer, e.g. 30m.", "DURATION"
)
LOG = Option(
    "log",
    ("--log",),
    "Whose output is shown.",
    "WHOSE",
    choices=("failed", "all", "none"),
    default="failed",
)
EVENTS = Option("json", ("--json",), "Write one event a line to standard output.")
QUIET = Option("quiet", ("-q", "--quiet"), "Show only failures and warnings.")
PLAN = Argument("PLAN", "Plan file, or `-` for JSON on standard input. Default: plan.toml.")
PLAN_AND_NODES = Argument(
    "PLAN|NODE",
    "A first word that is `-` or ends in .toml or .json is the plan; the others are nodes, "
    "by name or glob.",
    many=True,
)
RUN_WORD = Argument("RUN", "A unique prefix of the run's id, or `last`.")

COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "Run a plan: execute what changed, serve the rest from the cache.",
        "run",
        PLAN_AND_NODES,
        (
            JOBS,
            AGENTS,
            PARAM,
            TAG,
            Option("fail_fast", ("--fail-fast",), "Start nothing new after a failure."),
            Option("fresh", ("--fresh",), "Ignore recorded results."),
            Option(
                "new",
                ("--new",),
                "Start over: ask for nothing that earlier runs left unfinished.",
            ),
            Option(
                "resume",
                ("--resume",),
                "Go on with the last such run that did not complete, if there is one.",
            ),
            Option("strict", ("--strict",), "Fail on a damaged or contradicting record."),
            Option("dry_run", ("--dry-run",), "Say what would run and why; run nothing."),
            BOUNDARY,
            DEADLINE,
            LOG,
            EVENTS,
            COLOR,
            QUIET,
        ),
    ),
    Command("check", "Check a plan and list all its errors.", "check", PLAN, (PARAM, JSON, COLOR)),
    Command(
        "plan",
        "Show the compiled plan.",
        "plan",
        PLAN_AND_NODES,
        (
            Option(
                "format",
                ("--format",),
                "How it is written.",
                "FORMAT",
                choices=("tree", "json", "dot", "mermaid"),
                default="tree",
            ),
            Option(
                "run",
                ("--run",),
                "The plan as this run kept it: a unique prefix of its id, or `last`.",
                metavar="RUN",
            ),
            PARAM,
            TAG,
            COLOR,
        ),
    ),
    Command(
        "why",
        "Say whether a node would run, and which part of its key changed.",
        "why",
        PLAN_AND_NODES._replace(required=True),
        (PARAM, JSON, COLOR),
    ),
    Command(
        "infer",
        "Run a node once under a tracer and say what it should declare.",
        "infer",
        PLAN_AND_NODES._replace(required=True),
        (
            PARAM,
            Option("write", ("--write",), "Write it into the plan file, which keeps the rest."),
        ),
    ),
    Command(
        "runs",
        "List the runs of this workspace, latest first.",
        "runs",
        None,
        (
            Option("limit", ("-n", "--limit"), "How many.", "N", default="20", positive=True),
            JSON,
            COLOR,
        ),
    ),
    Command(
        "show",
        "Show a run: whose it was, how its nodes settled, how its effects stand.",
        "show",
        RUN_WORD,
        (JSON, COLOR),
    ),
    Command(
        "resume",
        "Go on with a run that did not complete, with what it saw when it began.",
        "resume",
        RUN_WORD._replace(required=True),
        (
            Option("retry_failed", ("--retry-failed",), "Try again what failed."),
            Option(
                "accept_environment",
                ("--accept-environment",),
                "Go on although tools or variables of the nodes to come have changed.",
            ),
            JOBS,
            AGENTS,
            DEADLINE,
            LOG,
            EVENTS,
            COLOR,
            QUIET,
        ),
    ),
    Command(
        "settle",
        "Say whether an effect happened that nobody else can know of.",
        "settle",
        Argument("RUN NODE", "The run, and the exact name of its node.", required=True, many=True),
        (
            Option("done", ("--done",), "It happened: the node counts as done."),
            Option("not_done", ("--not-done",), "It did not happen: it may be performed."),
            Option("value", ("--value",), "With --done: the node's result, as JSON.", "JSON"),
        ),
    ),
    Command(
        "rewind",
        "Take back what compensable nodes of a run did after a node had settled.",
        "rewind",
        RUN_WORD._replace(required=True),
        (
            Option("to", ("--to",), "The node whose work is the last to stay.", "NODE"),
            Option(
                "leave_effects",
                ("--leave-effects",),
                "Rewind although irreversible effects stay as they are.",
            ),
        ),
    ),
    Command(
        "cancel",
        "Cancel a run of another process, and wait until it has ended.",
        "cancel",
        RUN_WORD._replace(required=True),
    ),
    Command(
        "log",
        "Print the output of a node's latest attempt, or of one attempt.",
        "log",
        Argument("NODE|ATTEMPT", "A node's name, or an attempt's id (RUN-N).", required=True),
        (RUN,),
    ),
    Command(
        "journal",
        "Print the journal: what happened, a sentence for each fact.",
        "journal",
        RUN_WORD,
        (Option("node", ("--node",), "Only records of this node.", "NODE"), JSON, COLOR),
    ),
    Command("stats", "Say what the cache holds.", "cache", None, (JSON,), group="cache"),
    Command(
        "verify",
        "Read every stored blob and set damaged ones aside.",
        "cache",
        None,
        (JSON,),
        group="cache",
    ),
    Command(
        "gc",
        "Remove what the cache need not keep.",
        "cache",
        None,
        (
            Option("max_size", ("--max-size",), "Keep at most this much, e.g. 10G.", "SIZE"),
            Option("max_age", ("--max-age",), "Keep what was recorded within, e.g. 30d.", "AGE"),
            JSON,
        ),
        group="cache",
    ),
    Command("clear", "Remove every recorded result.", "cache", None, (JSON,), group="cache"),
    Command("init", "Write a first plan.toml in this folder.", "init"),
    Command("schema", "Print the JSON Schema of the plan file.", "schema"),
    Command("doctor", "Check this machine and this workspace.", "doctor", None, (JSON, COLOR)),
)

GROUPS: dict[str, str] = {"cache": "Look after recorded results and stored blobs."}


class Values:
    """What the user gave to one command: words and options, each read by its table entry."""

    def __init__(
        self,
        command: Command,
        words: Sequence[str] = (),
        given: Mapping[str, bool | str | Sequence[str]] | None = None,
    ) -> None:
        """`given` maps option names to what stands on the command line. Raises UsageError."""
        self.command = command
        self.words = tuple(words)
        self._given = dict(given or {})
        for option in command.options:
            _check_option(option, self._given.get(option.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and (
            (self.command, self.words, self._all()) == (other.command, other.words, other._all())
        )

    __hash__ = None  # type: ignore[assignment]  # a value that is compared, never a key

    def __repr__(self) -> str:
        return f"Values({self.command.name}, {self.words}, {self._all()})"

    def _all(self) -> dict[str, bool | str | tuple[str, ...]]:
        return {
            option.name: self.flag(option.name)
            if not option.metavar
            else self.texts(option.name)
            if option.many
            else self.text(option.name)
            for option in self.command.options
        }

    @property
    def given(self) -> frozenset[str]:
        """Names of the options that stand on the command line."""
        return frozenset(name for name, value in self._given.items() if value)

    def flag(self, name: str) -> bool:
        return bool(self._given.get(name, False))

    def text(self, name: str) -> str:
        """The option's text, its default when absent (empty when it has none)."""
        value = self._given.get(name)
        return value if isinstance(value, str) else self._default(name)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._given.get(name)
        return () if value is None or isinstance(value, (bool, str)) else tuple(value)

    def number(self, name: str) -> int | None:
        text = self.text(name)
        return int(text) if text else None

    def has(self, name: str) -> bool:
        """Whether the command knows this option at all."""
        return any(option.name == name for option in self.command.options)

    def _default(self, name: str) -> str:
        """An option the command does not have is one that was not given."""
        return next((o.default for o in self.command.options if o.name == name), "")


def match_words(argument: Argument | None, count: int) -> bool:
    """Whether a command may be given this many words."""
    if argument is None:
        return count == 0
    return count >= argument.required and (argument.many or count <= 1)


def _check_option(option: Option, value: bool | str | Sequence[str] | None) -> None:
    if not isinstance(value, str):
        return
    flag = option.flags[-1]
    if option.choices and value not in option.choices:
        allowed = ", ".join(option.choices)
        raise UsageError(f"`{flag}` is one of {allowed}, not `{value}`")
    if option.positive:
        digits = value.lstrip("0") if value.isascii() and value.isdigit() else ""
        if not digits:
            raise UsageError(f"`{flag}` must be a positive integer, not `{value}`")
        # By its length first: Python refuses to read a number of thousands of digits.
        if len(digits) > len(str(LARGEST_NUMBER)) or int(digits) > LARGEST_NUMBER:
            raise UsageError(f"`{flag}` must be at most {LARGEST_NUMBER:,}, not `{value}`")
    if not value:
        # Most likely an unset variable of a script; to ignore it would do more than was meant.
        raise UsageError(f"`{flag}` needs a value, not an empty text")


def read_params(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`NAME=VALUE` texts as pairs. Raises UsageError."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"`-p` needs NAME=VALUE, not `{text}`")
        pairs.append((name, value))
    return tuple(pairs)
