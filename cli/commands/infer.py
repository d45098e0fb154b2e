"""`assay infer`: runs a node once under a tracer and says what it should declare."""

from __future__ import annotations

import json
import os
import shlex

from assay.cli.call import Call
from assay.cli.errors import ExitCode, HostError, Interrupted, UsageError
from assay.cli.execution import listen_to_signals
from assay.cli.loading import LoadedPlan, load
from assay.cli.location import find_target
from assay.cli.render.text import duration, one_line, signal_name
from assay.engine.environment import CallerEnvironment, Refused
from assay.engine.filesystem import FilesystemError, replace, temporary_name, write_new_file
from assay.engine.inference import Inferred, infer
from assay.engine.process import CannotStart
from assay.engine.run_request import Cancellation
from assay.engine.store import Store
from assay.engine.trial import NoTracer, Tried, find_values, try_node
from assay.plans.editing import CannotEdit, set_lists
from assay.plans.entries import matches, rebase
from assay.plans.model import EntryKind, Node, RelPath, Tier, argv_of


def perform(call: Call) -> int:
    values, out, err = call
    target = find_target(values.words)
    if len(target.nodes) != 1:
        raise UsageError("`assay infer` needs the name of one node", hint="`assay plan` shows them")
    plan = load(target, values)
    node = _find_node(plan, target.nodes[0])
    tried = _try(plan, node)
    found = infer(
        tried.trace,
        plan.loaded.root,
        tried.search,
        tried.existed,
        _own_tools(node, tried),
        lambda path: matches(node.writes, RelPath(path)) and not matches(node.reads, RelPath(path)),
    )
    out.write("".join(f"{key} = {_written(entries)}\n" for key, entries in _told(found)))
    err.write(f"`{one_line(node.name)}` ran for {duration(tried.ended.duration_seconds)}\n")
    _tell_failure(tried, call)
    if values.flag("write"):
        if tried.ended.exit_code != 0:
            raise UsageError(f"`{node.origin.file}` is left as it is: the command did not end well")
        _write(plan, node, found, call)
        err.write(f"`{node.origin.file}` says so now\n")
    return ExitCode.DONE


def _find_node(plan: LoadedPlan, name: str) -> Node:
    node = next((each for each in plan.loaded.plan.nodes if each.name == name), None)
    if node is None:
        raise UsageError(
            f"The plan has no node `{name}`",
            hint="`assay plan` shows them; of many made from one, name one: `cc[src/a.c]`",
        )
    if node.command is None:
        raise UsageError(f"Node `{name}` has no command to run")
    if node.tier is not Tier.SEALED:
        raise UsageError(
            f"Node `{name}` is {node.tier.value}: to run it just to look would have its effect"
        )
    return node


def _try(plan: LoadedPlan, node: Node) -> Tried:
    store = Store.open_for_reading(plan.loaded.root)
    caller = CallerEnvironment(dict(os.environ))
    try:
        taken = find_values(plan.loaded.plan, node, store)
        received = listen_to_signals(Cancellation())
        tried = try_node(node, plan.loaded.root, taken, caller, lambda: bool(received))
        if received:
            what = f"while `{node.name}` ran: what it had done by then stays, nothing is declared"
            raise Interrupted(received[0], what)
        return tried
    except Refused as error:
        raise UsageError(f"Node `{node.name}` {error}", hint="`assay run` it first") from None
    except CannotStart as error:
        raise UsageError(f"Node `{node.name}` cannot be run: {error}") from None
    except NoTracer as error:
        hint = "Debian and Ubuntu: `apt install strace`; Fedora: `dnf install strace`"
        raise HostError(str(error), hint=hint) from None
    finally:
        if store is not None:
            store.close()


def _own_tools(node: Node, tried: Tried) -> frozenset[str]:
    """What counts anyway: what the command's first word, or its shell, is, and what is declared."""
    assert node.command is not None
    first = argv_of(node.command)[0]
    names = {os.path.basename(first), os.path.basename(os.path.realpath(first))}
    names |= {tool.name for tool in node.tools}
    main = next((path for path in tried.trace.executed if path.endswith(f"/{first}")), None)
    if main is not None:
        names |= {os.path.basename(main), os.path.basename(os.path.realpath(main))}
    return frozenset(names)


def _told(found: Inferred) -> list[tuple[str, tuple[str, ...]]]:
    told = [("reads", found.reads), ("writes", found.writes)]
    told += [
        (key, each) for key, each in (("removes", found.removes), ("tools", found.tools)) if each
    ]
    return told


def _written(entries: tuple[str, ...]) -> str:
    return "[" + ", ".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "]"


def _tell_failure(tried: Tried, call: Call) -> None:
    ended = tried.ended
    if ended.signal is None and not ended.exit_code:
        return
    how = f"exit code {ended.exit_code}" if ended.signal is None else signal_name(ended.signal)
    call.err.write(
        f"warning: it ended with {how}: what it would have done after that is not known\n"
    )
    for line in tried.said.splitlines()[-10:]:
        call.err.write(f"   | {one_line(line)}\n")


def _write(plan: LoadedPlan, node: Node, found: Inferred, call: Call) -> None:
    """Changes the plan file, which keeps everything else."""
    file = node.origin.file
    name = str(node.origin.keys[-1])
    if len(node.origin.keys) != 2 or "[" in node.name or node.name.rpartition(":")[2] != name:
        raise UsageError(
            f"`--write` cannot say of all that `{shlex.quote(node.name.partition('[')[0])}` stands"
            " for what one of them did",
            hint="Take over what is printed, with {{each}} or {{matrix.NAME}} in place of names",
        )
    path = os.path.realpath(os.path.join(plan.loaded.root, file))
    if path not in plan.loaded.files:
        raise UsageError("`--write` needs a plan file: this plan came from standard input")
    folder = os.path.dirname(file)
    lists = {key: [rebase(each, folder) for each in entries] for key, entries in _told(found)}
    if "tools" in lists:
        lists["tools"] = list(found.tools)
    for key, entries in (("reads", node.reads), ("writes", node.writes)):
        if any(
            entry.exclude or entry.optional or entry.kind is EntryKind.GLOB for entry in entries
        ):
            # What a person has written with more in mind than what happened this time.
            del lists[key]
            call.err.write(f"`{key}` stays as it is: it has patterns or options of its own\n")
    try:
        with open(path, encoding="utf-8", newline="") as text:
            before = text.read()
        mode = os.stat(path).st_mode & 0o7777
        edited = set_lists(before, name, lists)
        place = temporary_name(os.path.dirname(path), f".{os.path.basename(path)}")
        write_new_file(place, edited.encode(), mode)
        os.chmod(place, mode)
        replace(place, path)
    except CannotEdit as error:
        raise UsageError(
            f"`{file}` is left as it is: {error}", hint="Take over what is printed"
        ) from None
    except (OSError, FilesystemError) as error:
        raise HostError(f"`{file}` cannot be written: {error}") from None
