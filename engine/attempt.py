"""One try of one node: decide, record intent, act, record outcome.

    plan_attempt     coordinator   everything the try needs, nothing touched yet
    (run loop)       coordinator   records the intent, committed before the command starts
    prepare_attempt  coordinator   old outputs out of the way, inputs it rewrites kept
    carry_out        worker        the command itself, then what it left is judged (see judging)
    (endings)        coordinator   records the outcome; of an isolated node first what it made
    land_isolated    worker        puts that in place (see landing)

After a crash between begin and settle the next run finds the attempt `running` with a
dead owner: `before` tells how its writes stood, the lease and `ASSAY_ATTEMPT` which of
its processes live on (see recovery).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from assay.engine import effect_marks, preimages, temporary
from assay.engine.attempts import AttemptRow, AttemptState, Claims
from assay.engine.bench import Assignment, Bench, Executed, attempt_id
from assay.engine.blobs import BlobCorrupt, BlobMissing, Blobs, Moved
from assay.engine.claims import claims_of
from assay.engine.compensation import Compensated, compensate
from assay.engine.decision import Gathered
from assay.engine.effects import EffectRow, node_digest
from assay.engine.filesystem import FilesystemError, Obstacles, explain_error, make_folders
from assay.engine.judging import holds_secret, judge, land_attempt
from assay.engine.known_outputs import KnownOutputs
from assay.engine.materialize import CannotRestore, restore
from assay.engine.measuring import TRIES, Measurer, Unmeasurable
from assay.engine.outputs import clear_outputs, states_before
from assay.engine.preimages import RolledBack
from assay.engine.process import NOT_EXECUTABLE, CannotStart, Ended, Processes, Spawn
from assay.engine.spares import Spares
from assay.engine.states import ABSENT, AttemptEnd, EffectState, RunId, State
from assay.engine.workplace import Workplace
from assay.plans.entries import fixed_folder, matches
from assay.plans.model import (
    Background,
    Boundary,
    Entry,
    EntryKind,
    Node,
    RelPath,
    Tier,
    argv_of,
)


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
    is_of_another: Callable[[RelPath, State], bool],
    effect: EffectRow | None = None,
    workplace: Workplace | None = None,
) -> Assignment:
    """`ordinal` counts the attempts of the run, `number` those of the node; `unfinished`,
    `effect` and `workplace` are as in `Assignment`. `is_of_another` tells what other nodes of
    the run have left."""
    attempt = attempt_id(run, ordinal)
    before = _states_before(bench, node, unfinished, is_of_another)
    folder = temporary.plan_temp(attempt, bench.caller.variables)
    log = f"{bench.store.logs}/{attempt}.log"
    lease = f"{bench.store.tmp}/{attempt}.lease"
    assert node.command is not None
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
        if "PATH" in environ:
            environ["PATH"] = workplace.translate_search(bench.root, environ["PATH"])
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
            claims=_claims_of(node, workplace, bench.plan_file),
            before=before,
            detail="",
        ),
        index=index,
        node=node,
        gathered=gathered,
        unfinished=unfinished,
        others=frozenset(path for path, state in before.items() if is_of_another(path, state)),
        effect=effect,
        workplace=workplace,
        spawn=Spawn(
            attempt=attempt,
            argv=argv_of(node.command),
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


def _claims_of(node: Node, workplace: Workplace | None, plan_file: str) -> Claims:
    """With the folders that are opened for it: what comes to lie there is taken for its work."""
    claims = claims_of(node, plan_file)
    if workplace is None or workplace.tree is not None:
        return claims
    opened = tuple(Entry(EntryKind.TREE, RelPath(folder)) for folder in workplace.opened)
    return replace(claims, writes=claims.writes + opened)


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
            if state == ABSENT or (masks and holds_secret(root, path, state, masks)):
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
    before = assignment.row.before
    # By content, not by the last result: an older one may have been put back since.
    return clear_outputs(
        assignment.node,
        {
            path: state
            for path, state in before.items()
            if path not in assignment.others and knows(path, state)
        },
        None if assignment.unfinished is None else before,
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
                executed.compensated = _compensate(bench, executed)
                return executed
        try:
            if assignment.interrupted is not None:
                raise CannotStart("It was ended before it had begun.")
            if workplace is not None:
                spawn = assignment.spawn = _confine(bench, assignment, workplace)
            if assignment.effect is not None:
                _mark(bench, assignment.effect)
            ended = _execute(bench.processes, spawn, started)
        except CannotStart as error:
            executed = _not_started(assignment, str(error), error.code)
            executed.trashed = trashed
            if is_compensable:
                executed.compensated = _compensate(bench, executed)
            return executed
        executed = judge(bench, assignment, ended)
        if executed.bundle is not None and assignment.node.boundary is not Boundary.ISOLATED:
            # Killed in between it is what a node that works in place leaves.
            executed = land_attempt(bench, executed)
        executed.trashed = trashed
        lands = executed.bundle is not None
        if executed.end is not AttemptEnd.SUCCEEDED:
            if is_compensable:
                executed.compensated = _compensate(bench, executed)
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


def _mark(bench: Bench, effect: EffectRow) -> None:
    """From here on the command may have started, whatever becomes of the record of that. Raises
    CannotStart."""
    node = node_digest(effect.plan_file, effect.node)
    try:
        effect_marks.put(bench.store.marks, effect.attempt, effect.begun_seq, node)
    except OSError as error:
        why = f"`{bench.store.marks}` cannot be written: {explain_error(error)}"
        raise CannotStart(f"Its begin cannot be marked: {why}") from error


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


def land_isolated(bench: Bench, executed: Executed) -> Executed:
    """Puts in place what an isolated node has made, once that is recorded; where it cannot be,
    the attempt has failed as any other. Worker thread."""
    executed = land_attempt(bench, executed)
    if (
        executed.end is not AttemptEnd.SUCCEEDED
        and executed.assignment.node.tier is Tier.COMPENSABLE
    ):
        executed.compensated = _compensate(bench, executed)
    return executed


def _compensate(bench: Bench, executed: Executed) -> Compensated:
    """Of a command that did not start there is no undo, and of one in a private tree no file to be
    put back before it was begun to put any in place: what has changed since is somebody else's."""
    assert bench.blobs is not None
    workplace, effect = executed.assignment.workplace, executed.assignment.effect
    assert effect is not None
    if not executed.has_started:
        effect = replace(effect, undo=None)
    if workplace is not None and workplace.tree is not None and not executed.is_landing:
        if effect.undo is None:
            return Compensated(EffectState.ROLLED_BACK, RolledBack())
        effect = replace(effect, state=EffectState.COMPENSATING)
    return compensate(
        effect,
        store=bench.store,
        measurer=bench.measurer,
        blobs=bench.blobs,
        processes=bench.processes,
        caller=bench.caller,
        is_hurried=bench.is_hurried,
        has_started=executed.has_started,
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


def _states_before(
    bench: Bench,
    node: Node,
    unfinished: AttemptRow | None,
    is_of_another: Callable[[RelPath, State], bool],
) -> dict[RelPath, State]:
    """The declared writes, and what it will remove, as the command is to find them.

    What the try before left unfinished is not among them although it stands there until
    `prepare_attempt`: a crash in between must not make it look as if it belonged there.
    """
    states = states_before(node, bench.measurer)
    if unfinished is not None:
        knows = bench.store.results.knows
        for path, state in list(states.items()):
            stood = state == unfinished.before.get(path, ABSENT) or is_of_another(path, state)
            if not stood and not knows(path, state) and not matches(node.reads, path):
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
