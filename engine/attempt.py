"""One try of one node: decide, record intent, act, record outcome.

    plan_attempt     coordinator   everything the try needs, nothing touched yet
    (run loop)       coordinator   records the intent, committed before the command starts
    prepare_attempt  coordinator   old outputs out of the way, inputs it rewrites kept
    carry_out        worker        the command itself, then what it left is measured
    (endings)        coordinator   records the outcome

After a crash between begin and settle the next run finds the attempt `running` with a
dead owner: `before` tells how its writes stood, the lease and `ASSAY_ATTEMPT` which of
its processes live on (see recovery).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, assert_never

from assay.engine import preimages, temporary
from assay.engine.attempts import AttemptRow, AttemptState
from assay.engine.blobs import BlobCorrupt, BlobMissing, Blobs, Moved, StorageFull
from assay.engine.claims import claims_of
from assay.engine.compensation import Compensated, compensate
from assay.engine.confinement import Outside
from assay.engine.decision import Gathered, changed_since
from assay.engine.effects import EffectRow
from assay.engine.environment import CallerEnvironment
from assay.engine.filesystem import FilesystemError, Obstacles, explain_error, make_folders
from assay.engine.known_outputs import KnownOutputs
from assay.engine.landing import Bundle, CannotLand, find_conflict, land, make_bundle
from assay.engine.materialize import CannotRestore, Restored, restore
from assay.engine.measuring import TRIES, Measurer, Unmeasurable
from assay.engine.outputs import BrokenBoundary, capture_outputs, clear_outputs, states_before
from assay.engine.private_tree import Strays
from assay.engine.process import NOT_EXECUTABLE, CannotStart, Ended, Processes, Spawn
from assay.engine.secrets import find_secret, find_secret_in
from assay.engine.spares import Spares
from assay.engine.states import ABSENT, AttemptEnd, AttemptId, RunId, State
from assay.engine.store import Store
from assay.engine.workplace import Workplace
from assay.plans.canonical import canonical_json
from assay.plans.entries import escape_entry, fixed_folder, matches
from assay.plans.model import (
    Argv,
    Background,
    Boundary,
    EntryKind,
    Node,
    RelPath,
    ResultKind,
    Script,
    Tier,
)

_MOST_STRAYS: Final = 10
"""As many are named: a command can leave any number."""


@dataclass(slots=True)
class Assignment:
    """One try, as the coordinator hands it to a worker.

    `interrupted` is set by the coordinator before it signals the processes and read by
    the worker once they have ended: whatever the exit status, an interrupted try is no
    success.
    """

    row: AttemptRow
    index: int
    node: Node
    gathered: Gathered
    spawn: Spawn
    unfinished: AttemptRow | None
    """The node's try before this one, in whichever run, when that did not succeed: what it
    left counts for nothing."""
    folder: str
    """The attempt's private folder; TMPDIR is `t` in it, the result file `result`."""
    kept: tuple[tuple[RelPath, State], ...] = ()
    """Files the node both reads and writes or removes, stored as they stood."""
    moved: tuple[RelPath, ...] = ()
    """Those of them that did not stand as the key says: edited since the run looked."""
    effect: EffectRow | None = None
    """Of a node that is not sealed: what is recorded of it before it starts."""
    workplace: Workplace | None = None
    """Where its boundary is held; None: it is only declared."""
    started_at: float | None = None
    """When its process started, on the monotonic clock."""
    interrupted: AttemptEnd | None = None
    interrupted_detail: str = ""


@dataclass(slots=True)
class Executed:
    """What a worker reports of one try."""

    assignment: Assignment
    end: AttemptEnd
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    duration_seconds: float = 0.0
    outputs: tuple[tuple[RelPath, State], ...] = ()
    value: str | None = None
    """Canonical JSON of the node's result."""
    moved: tuple[RelPath, ...] = ()
    """Reads that changed while it ran: the result stands but is not cached."""
    not_stored: str | None = None
    """Why outputs are not in the store although the node is cacheable."""
    left_behind: tuple[int, ...] = ()
    put_back: tuple[RelPath, ...] = ()
    """Inputs that the failed try may have rewritten, as they stood before it again."""
    not_put_back: str | None = None
    has_started: bool = True
    """False: the command did not run at all."""
    trashed: Mapping[RelPath, str] = field(default_factory=dict)
    """What `prepare_attempt` returned, where the worker called it."""
    bundle: Bundle | None = None
    """What an isolated node wrote in its private tree and is yet to be put in place, once that is
    recorded: `land_attempt`."""
    landed: Restored | None = None
    """How that was put in place."""
    set_aside: Mapping[RelPath, str] = field(default_factory=dict)
    """Files it left in its folders and does not declare, with where they are now."""
    compensated: Compensated | None = None
    """What came of taking back a compensable attempt that failed."""
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """What every try of a run works with. `blobs` None: nothing is stored."""

    root: str
    plan_file: str
    store: Store
    measurer: Measurer
    blobs: Blobs | None
    processes: Processes
    spares: Spares
    caller: CallerEnvironment
    outside: Outside
    """What a held node may reach beside the workspace."""
    is_hurried: Callable[[], bool]
    """Whether the run was asked, more than once, to end."""


def attempt_id(run: RunId, ordinal: int) -> AttemptId:
    return AttemptId(f"{run}-{ordinal}")


def plan_attempt(
    bench: Bench,
    run: RunId,
    ordinal: int,
    number: int,
    index: int,
    node: Node,
    gathered: Gathered,
    unfinished: AttemptRow | None,
    began_at: float,
    effect: EffectRow | None = None,
    workplace: Workplace | None = None,
) -> Assignment:
    """`ordinal` counts the attempts of the run, `number` those of the node; `unfinished`,
    `effect` and `workplace` are as in `Assignment`."""
    attempt = attempt_id(run, ordinal)
    folder = temporary.plan_temp(attempt, bench.caller.variables)
    log = f"{bench.store.logs}/{attempt}.log"
    lease = f"{bench.store.tmp}/{attempt}.lease"
    match node.command:
        case Argv():
            argv = node.command.argv
        case Script():
            argv = (*node.command.shell, node.command.script)
        case None:
            raise AssertionError(f"{node.name} has no command to try")
        case _:
            assert_never(node.command)
    environ = bench.caller.for_child(node, gathered.values, gathered.secrets)
    environ["TMPDIR"] = temporary.tmpdir_of(folder)
    environ["ASSAY_RUN"] = run
    environ["ASSAY_NODE"] = node.name
    environ["ASSAY_ATTEMPT"] = attempt
    environ["ASSAY_RESULT"] = temporary.result_of(folder)
    if node.idempotency_key is not None:
        environ["ASSAY_IDEMPOTENCY_KEY"] = node.idempotency_key
    root, program = bench.root, gathered.program
    if workplace is not None and workplace.tree is not None:
        root, program = workplace.root, workplace.translate(bench.root, program)
        environ["PATH"] = workplace.translate_search(bench.root, environ.get("PATH"))
    masks = tuple(secret.encode("utf-8", "surrogateescape") for secret in gathered.secrets.values())
    return Assignment(
        row=AttemptRow(
            id=attempt,
            run=run,
            node=node.name,
            action_key=gathered.key,
            number=number,
            state=AttemptState.RUNNING,
            end=None,
            exit_code=None,
            signal=None,
            began_at=began_at,
            settled_at=None,
            log=log,
            temp=folder,
            pid=None,
            claims=claims_of(node, bench.plan_file),
            before=_states_before(bench, node, unfinished),
            detail="",
        ),
        index=index,
        node=node,
        gathered=gathered,
        unfinished=unfinished,
        effect=effect,
        workplace=workplace,
        spawn=Spawn(
            attempt=attempt,
            argv=argv,
            cwd=root if node.workdir == "." else f"{root}/{node.workdir}",
            env=environ,
            log=log,
            lease=lease,
            program=program,
            masks=masks,
            background=node.background,
            leaves_lease=node.background is Background.END,
        ),
        folder=folder,
    )


def prepare_attempt(
    bench: Bench, assignment: Assignment, knows: Callable[[RelPath, State], bool]
) -> dict[RelPath, str]:
    """Puts what the command must not find out of the way. Called once the intent is
    committed; returns what an earlier try had left unfinished and where in the trash it
    is now. `knows` tells whether any result recorded a state. Raises FilesystemError.

    A crash in here loses nothing: what is removed is recorded, what is not goes to the
    trash by rename.
    """
    node = assignment.node
    if assignment.workplace is not None and assignment.workplace.tree is not None:
        return {}  # the workspace is as it was until what the command made is put in place
    rewritten = {
        path: state
        for path, state in assignment.gathered.reads.states.items()
        if path in node.removes or matches(node.writes, path)
    }
    if rewritten and bench.blobs is not None:
        masks = assignment.spawn.masks
        found = [
            (path, *_keep_input(bench.root, path, bench.measurer, bench.blobs, masks))
            for path in rewritten
        ]
        assignment.kept = tuple((path, state) for path, state, is_stored in found if is_stored)
        assignment.moved = tuple(path for path, state, _ in found if state != rewritten[path])
    trashed = _clear(bench, assignment, knows) if node.clean else {}
    _make_folders(bench.root, node)
    return trashed


def _keep_input(
    root: str, path: RelPath, measurer: Measurer, blobs: Blobs, masks: tuple[bytes, ...]
) -> tuple[State, bool]:
    """Stores what stands at `path` now, which may be an edit made since the run looked at
    it: the command will go over it. Its state, and whether it can be put back: nothing, and
    what holds a secret, is not stored. Raises FilesystemError."""
    for _ in range(TRIES):
        try:
            state = measurer.state_of(path)
            if state == ABSENT or (masks and _holds_secret(root, path, state, masks)):
                return state, False
            blobs.put_state(root, path, state)
        except (Moved, FileNotFoundError):
            continue
        except Unmeasurable as error:
            raise FilesystemError(os.path.join(root, path), error.reason) from error
        return state, True
    raise FilesystemError(os.path.join(root, path), "changes while it is stored")


def _make_folders(root: str, node: Node) -> None:
    """The folders that hold the declared writes, as ninja and Bazel make them; a written
    tree itself is for the command to make."""
    folders: set[str] = set()
    for entry in node.writes:
        if not entry.exclude:
            is_glob = entry.kind is EntryKind.GLOB
            folders.add(fixed_folder(entry.path) if is_glob else os.path.dirname(entry.path))
    obstacles = Obstacles(root)
    for folder in sorted(folders - {"", "."}):
        path = os.path.join(root, folder)
        if not os.path.lexists(path) and obstacles.find(folder) is None:
            make_folders(path)


def _clear(
    bench: Bench, assignment: Assignment, knows: Callable[[RelPath, State], bool]
) -> dict[RelPath, str]:
    node = assignment.node
    unfinished = assignment.unfinished
    # By content, not by the last result: an older one may have been put back since.
    return clear_outputs(
        node,
        {path: state for path, state in assignment.row.before.items() if knows(path, state)},
        None if unfinished is None else unfinished.before,
        bench.measurer,
        os.path.join(bench.store.trash, assignment.row.id),
    ).trashed


def carry_out(bench: Bench, assignment: Assignment, started: Callable[[int], None]) -> Executed:
    """Runs the command and measures what it left. Worker thread; blocks until nothing of
    the attempt lives. Never raises for anything a command or a disk can do."""
    spawn, workplace = assignment.spawn, assignment.workplace
    try:
        bench.spares.prepare(spawn.lease, spawn.log, assignment.folder)
    except OSError as error:
        why = explain_error(error)
        return _not_started(
            assignment,
            f"Its temporary folder `{assignment.folder}` cannot be made: {why}. Set TMPDIR to a"
            " folder that can be written",
        )
    trashed: Mapping[RelPath, str] = {}
    lands = False
    is_compensable = assignment.node.tier is Tier.COMPENSABLE
    is_alone = True
    try:
        if is_compensable:
            try:
                trashed = _secure(bench, assignment)
            except FilesystemError as error:
                executed = _not_started(
                    assignment, f"what it may change cannot be kept, so it was not started: {error}"
                )
                executed.compensated = _compensate(bench, assignment, has_started=False)
                return executed
        try:
            if assignment.interrupted is not None:
                raise CannotStart("It was ended before it had begun.")
            if workplace is not None:
                spawn = assignment.spawn = _confine(bench, assignment, workplace)
            ended = _execute(bench.processes, spawn, started)
        except CannotStart as error:
            executed = _not_started(assignment, str(error), error.code)
            executed.trashed = trashed
            if is_compensable:
                executed.compensated = _compensate(bench, assignment, has_started=False)
            return executed
        executed = _judge(bench, assignment, ended)
        if executed.bundle is not None and assignment.node.boundary is not Boundary.ISOLATED:
            # Killed in between it is what a node that works in place leaves.
            executed = land_attempt(bench, executed)
        executed.trashed = trashed
        lands = executed.bundle is not None
        if executed.end is not AttemptEnd.SUCCEEDED:
            if is_compensable:
                executed.compensated = _compensate(bench, assignment, has_started=True)
            elif assignment.kept and assignment.node.tier is Tier.SEALED:
                _put_back(bench, assignment, executed)
        is_alone = not ended.left_behind and spawn.background is Background.END
        if is_alone:
            bench.spares.give_lease(spawn.lease)
        elif spawn.leaves_lease:
            with suppress(FileNotFoundError):
                os.unlink(spawn.lease)
        executed.log = _keep_log(spawn.log, bench.spares if is_alone else None)
        return executed
    finally:
        if workplace is not None and workplace.tree is not None and not lands:
            workplace.tree.mend_shared()
            workplace.tree.remove()
        if is_alone:
            bench.spares.give_folder(assignment.folder)
        else:
            # Whoever lives on may have it open still: it is never another attempt's.
            temporary.remove(assignment.folder)


def _confine(bench: Bench, assignment: Assignment, workplace: Workplace) -> Spawn:
    """Lays out where the command works; the same command with what it may reach there. Raises
    CannotStart."""
    spawn, reads = assignment.spawn, assignment.gathered.reads.states
    try:
        workplace.prepare(assignment.node, bench.measurer, reads)
    except FilesystemError as error:
        raise CannotStart(f"Its private tree cannot be made: {error}") from error
    log = None if spawn.masks else spawn.log
    domain = workplace.find_domain(
        assignment.node, bench.root, bench.outside, reads, assignment.folder, log
    )
    return replace(spawn, domain=domain)


def _not_started(assignment: Assignment, why: str, code: int = NOT_EXECUTABLE) -> Executed:
    """The command did not run at all; a cancel that came first is why, if there was one."""
    if assignment.interrupted is not None:
        end, why, exit_code = assignment.interrupted, assignment.interrupted_detail, None
    else:
        end, exit_code = AttemptEnd.NOT_STARTED, code
    return Executed(assignment, end, why, exit_code=exit_code, has_started=False)


def _secure(bench: Bench, assignment: Assignment) -> Mapping[RelPath, str]:
    """Keeps what a compensable attempt may change, then clears the way for it. Raises
    FilesystemError."""
    assert bench.blobs is not None, "an effect is begun only where it can be recorded"
    path = preimages.path_of(bench.store.preimages, assignment.row.id)
    preimages.take(assignment.node, bench.measurer, bench.blobs, path)
    with KnownOutputs(bench.store) as known:
        return prepare_attempt(bench, assignment, known.knows)


def _compensate(bench: Bench, assignment: Assignment, *, has_started: bool) -> Compensated:
    assert bench.blobs is not None
    assert assignment.effect is not None
    effect = assignment.effect if has_started else replace(assignment.effect, undo=None)
    return compensate(
        effect,
        store=bench.store,
        measurer=bench.measurer,
        blobs=bench.blobs,
        processes=bench.processes,
        caller=bench.caller,
        is_hurried=bench.is_hurried,
    )


def _execute(processes: Processes, spawn: Spawn, started: Callable[[int], None]) -> Ended:
    """As `Processes.execute`. The folders of log and lease are made again where a node has
    removed them (`git clean -fdx`)."""
    try:
        return processes.execute(spawn, started)
    except FileNotFoundError:
        for path in (spawn.log, spawn.lease):
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        return processes.execute(spawn, started)


def _keep_log(path: str, spares: Spares | None) -> str | None:
    """The log's path, or None for one that nothing was written to, which goes."""
    try:
        if os.path.getsize(path):
            return path
        if spares is None:
            os.unlink(path)
        else:
            spares.give_log(path)
    except FileNotFoundError:
        pass
    return None


def _judge(bench: Bench, assignment: Assignment, ended: Ended) -> Executed:
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
        if node.boundary is Boundary.ISOLATED:
            path = find_conflict(bundle, bench.measurer)
            if path is not None:
                raise CannotLand(
                    f"`{path}` was changed while it ran, so what it made of it was not put in place"
                )
        executed.landed = land(
            bundle,
            node.writes,
            assignment.gathered.reads.states,
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
            if blobs is not None and _holds_secret(root, path, state, masks):
                executed.not_stored = f"`{path}` holds a secret"
                blobs = None
    try:
        captured = capture_outputs(node, root, measurer, blobs)
    except StorageFull as error:
        executed.not_stored = str(error)
        captured = capture_outputs(node, root, measurer, None)
    executed.outputs = captured.outputs
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


def _holds_secret(root: str, path: RelPath, state: State, masks: tuple[bytes, ...]) -> bool:
    """Whether what the store would keep of an output holds a secret: a file's bytes or the
    text of a link."""
    absolute = os.path.join(root, path)
    if state.startswith("link:"):
        return find_secret(os.fsencode(os.readlink(absolute)), masks) is not None
    if not state.startswith(("file:", "exec:")):
        return False
    with open(absolute, "rb") as file:
        return find_secret_in(file, masks) is not None


def _states_before(bench: Bench, node: Node, unfinished: AttemptRow | None) -> dict[RelPath, State]:
    """The declared writes, and what it will remove, as the command is to find them.

    What the try before left unfinished is not among them although it stands there until
    `prepare_attempt`: a crash in between must not make it look as if it belonged there.
    """
    states = states_before(node, bench.measurer)
    if unfinished is not None:
        knows = bench.store.results.knows
        for path, state in list(states.items()):
            is_left_over = state != unfinished.before.get(path, ABSENT) and not knows(path, state)
            if is_left_over and not matches(node.reads, path):
                del states[path]
    for path in node.removes:
        states[path] = bench.measurer.state_of(path)
    return states


def _put_back(bench: Bench, assignment: Assignment, executed: Executed) -> None:
    """Restores the inputs a failed try may have rewritten. What stands there now, right
    after its processes ended, is its own work and no edit of the user."""
    assert bench.blobs is not None
    try:
        executed.put_back = restore(
            bench.root,
            assignment.kept,
            (),
            measurer=bench.measurer,
            source=bench.blobs,
            staging=os.path.join(bench.store.tmp, f"{assignment.row.id}.stage"),
            trash=os.path.join(bench.store.trash, assignment.row.id),
            knows=lambda path, state: True,
        ).put_back
    except (BlobMissing, BlobCorrupt, CannotRestore, FilesystemError) as error:
        executed.not_put_back = str(error)
