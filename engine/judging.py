"""What an ended command left: whether it did what its node declares, measured and stored, and put
in place out of a private tree.

Worker threads. Does not know how the command was started, nor what the run makes of it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Sequence
from typing import Final

from assay.engine import temporary
from assay.engine.bench import Assignment, Bench, Executed
from assay.engine.blobs import StorageFull
from assay.engine.decision import changed_since
from assay.engine.filesystem import FilesystemError
from assay.engine.landing import CannotLand, find_conflict, land, make_bundle
from assay.engine.measuring import Unmeasurable
from assay.engine.outputs import BrokenBoundary, capture_outputs
from assay.engine.private_tree import Strays
from assay.engine.process import Ended
from assay.engine.secrets import find_secret, find_secret_in
from assay.engine.states import AttemptEnd, State
from assay.plans.canonical import canonical_json
from assay.plans.entries import escape_entry, matches
from assay.plans.model import (
    Boundary,
    EntryKind,
    Node,
    RelPath,
    ResultKind,
)

_MOST_STRAYS: Final = 10
"""As many are named: a command can leave any number."""


def judge(bench: Bench, assignment: Assignment, ended: Ended) -> Executed:
    executed = Executed(
        assignment,
        AttemptEnd.SUCCEEDED,
        exit_code=ended.exit_code,
        signal=ended.signal,
        duration_seconds=ended.duration_seconds,
        left_behind=ended.left_behind,
    )
    if assignment.interrupted is not None:
        executed.end = assignment.interrupted
        executed.detail = assignment.interrupted_detail
    elif ended.signal is not None:
        executed.end = AttemptEnd.SIGNALLED
    elif ended.exit_code:
        executed.end = AttemptEnd.EXITED
    else:
        try:
            _capture(bench, assignment, executed)
        except BrokenBoundary as error:
            executed.end = AttemptEnd.BROKE_BOUNDARY
            executed.detail = "; ".join(error.sentences)
            executed.bundle = None
    return executed


def land_attempt(bench: Bench, executed: Executed) -> Executed:
    """Puts the bundle of an attempt in place once it is recorded. Worker thread. What is in the
    way, or cannot be written, fails the attempt."""
    assignment, bundle = executed.assignment, executed.bundle
    workplace, node = assignment.workplace, assignment.node
    assert bundle is not None
    assert workplace is not None
    assert workplace.tree is not None
    executed.bundle = None
    try:
        reads = assignment.gathered.reads.states
        held = bundle
        if node.boundary is not Boundary.ISOLATED:
            held = tuple(change for change in bundle if change.path in reads)
        if held:
            path = find_conflict(held, bench.measurer)
            if path is not None:
                raise CannotLand(
                    f"`{path}` was changed while it ran, so what it made of it was not put in place"
                )
        executed.is_landing = True
        executed.landed = land(
            bundle,
            node.writes,
            reads.keys() | assignment.others,
            store=bench.store,
            measurer=bench.measurer,
            source=workplace.tree,
            attempt=assignment.row.id,
        )
    except CannotLand as error:
        executed.end = AttemptEnd.BROKE_BOUNDARY
        executed.detail = str(error)
    finally:
        workplace.tree.mend_shared()
        workplace.tree.remove()
    return executed


def _capture(bench: Bench, assignment: Assignment, executed: Executed) -> None:
    """Fills in outputs, value and moved reads. Raises BrokenBoundary."""
    node = assignment.node
    masks = assignment.spawn.masks
    root, measurer, workplace = bench.root, bench.measurer, assignment.workplace
    if workplace is not None:
        root, measurer = workplace.root, workplace.measurer
        try:
            strays = workplace.find_strays(node)
            trash = os.path.join(bench.store.trash, assignment.row.id)
            executed.set_aside = workplace.set_aside(strays, trash)
            _refuse_strays(strays)
        except FilesystemError as error:
            # What cannot be looked through, paths longer than the system takes for one, is not
            # known to be declared.
            raise BrokenBoundary((f"what it wrote cannot be looked through: {error}",)) from error
    executed.value = _read_result(node, temporary.result_of(assignment.folder), masks)
    blobs = bench.blobs if assignment.node.cache.enabled is not False else None
    if masks:
        captured = capture_outputs(node, root, measurer, None)
        for path, state in captured.outputs:
            if find_secret(os.fsencode(path), masks) is not None:
                raise BrokenBoundary(("the name of a file it wrote holds a secret",))
            if blobs is not None and holds_secret(root, path, state, masks):
                executed.not_stored = f"`{path}` holds a secret"
                blobs = None
    try:
        captured = capture_outputs(node, root, measurer, blobs)
    except StorageFull as error:
        executed.not_stored = str(error)
        captured = capture_outputs(node, root, measurer, None)
    executed.outputs = tuple(
        (path, state)
        for path, state in captured.outputs
        if not _is_of_another(assignment, path, state)
    )
    if workplace is not None and workplace.tree is not None:
        gone = (*node.removes, *workplace.find_removed(node))
        executed.bundle = make_bundle(captured.outputs, gone, workplace.base) or None
        made = [(change.path, change.made) for change in executed.bundle or ()]
        try:
            _refuse_misleading(workplace.tree.find_misleading(made, bench.measurer))
        except Unmeasurable as error:
            raise BrokenBoundary((f"what it wrote cannot be put in place: {error}",)) from error
    reads = assignment.gathered.reads.states
    if workplace is not None and workplace.tree is not None:
        # Of a copy nothing that happens to the original is seen.
        tree = workplace.tree
        assignment.moved += tuple(tree.moved)
        reads = {path: state for path, state in reads.items() if path in tree.shared}
    executed.moved = assignment.moved + changed_since(
        reads,
        node,
        bench.measurer,
        lambda path: matches(node.writes, RelPath(path)),
        _began_ns(assignment),
    )


def _is_of_another(assignment: Assignment, path: RelPath, state: State) -> bool:
    """Whether another node of the run has made it where this one may write as well, and this one
    has left it as it was."""
    node, before = assignment.node, assignment.row.before
    return (
        path in assignment.others
        and before[path] == state
        and path not in assignment.gathered.reads.states
        and not any(e.kind is EntryKind.FILE and e.path == path for e in node.writes)
    )


def _refuse_strays(strays: Strays) -> None:
    """Raises BrokenBoundary for what is not declared, with the line that declares it."""
    problems = [
        f'it wrote `{path}`, which it does not declare: add "{escape_entry(path)}" to its `writes`'
        for path in strays.created
    ]
    problems += [
        f'it changed `{path}`, which it only reads: add "{escape_entry(path)}" to its `writes`'
        for path in strays.changed
    ]
    problems += [
        f'it removed `{path}`, which it only reads: add "{escape_entry(path)}" to its `removes`'
        for path in strays.removed
    ]
    if len(problems) > _MOST_STRAYS:
        more = len(problems) - _MOST_STRAYS
        problems = [*problems[:_MOST_STRAYS], f"and {more} more like these"]
    if problems:
        raise BrokenBoundary(problems)


def _refuse_misleading(links: Sequence[tuple[RelPath, str]]) -> None:
    """Raises BrokenBoundary for links among the outputs that lead to something else once they are
    in place: nothing would be as it was measured."""
    if links:
        raise BrokenBoundary(
            [
                f"`{path}` leads to `{text}`, which is not there what it was for the command:"
                " declare what it leads to, and make it relative"
                for path, text in links
            ]
        )


def _began_ns(assignment: Assignment) -> int:
    """When the attempt began, by the clock that stamps files, which may be another machine's or
    set meanwhile: its lease was made or renamed right before the start, and not changed since."""
    try:
        return os.stat(assignment.spawn.lease).st_ctime_ns
    except OSError:  # a process that may outlive the node has none
        return int(assignment.row.began_at * 1e9)


def _read_result(node: Node, path: str, masks: tuple[bytes, ...]) -> str | None:
    if node.result is None:
        return None
    try:
        # Without blocking: the command may have made a named pipe of it. Nor through a link: what
        # holds the command does not hold assay.
        how_else = os.O_NONBLOCK | os.O_NOFOLLOW
        with open(path, "rb", opener=lambda name, how: os.open(name, how | how_else)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BrokenBoundary(("its result is not a plain file",))
            if status.st_size > node.max_result_bytes:
                raise BrokenBoundary(
                    (
                        f"its result has {status.st_size} bytes; `max_result_bytes` is"
                        f" {node.max_result_bytes}",
                    )
                )
            data = file.read(node.max_result_bytes + 1)
    except FileNotFoundError:
        raise BrokenBoundary(
            (f'it declares `result = "{node.result.value}"` but wrote nothing to $ASSAY_RESULT',)
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BrokenBoundary(("its result is not a plain file",)) from error
        raise BrokenBoundary((f"its result cannot be read: {error.strerror}",)) from error
    if find_secret(data, masks) is not None:
        raise BrokenBoundary(("its result holds a secret",))
    try:
        text = data.decode()
        if node.result is ResultKind.TEXT:
            return canonical_json(text.rstrip("\n")).decode()
        return canonical_json(json.loads(text)).decode()
    except UnicodeDecodeError:
        raise BrokenBoundary(("its result is not UTF-8",)) from None
    except (ValueError, RecursionError) as error:
        raise BrokenBoundary((f"its result is not JSON: {error}",)) from None


def holds_secret(root: str, path: RelPath, state: State, masks: tuple[bytes, ...]) -> bool:
    """Whether what the store would keep of an output holds a secret: a file's bytes or the
    text of a link."""
    absolute = os.path.join(root, path)
    if state.startswith("link:"):
        return find_secret(os.fsencode(os.readlink(absolute)), masks) is not None
    if not state.startswith(("file:", "exec:")):
        return False
    with open(absolute, "rb") as file:
        return find_secret_in(file, masks) is not None
