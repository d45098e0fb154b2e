"""Writes the certificate of a run in which every node was built or clean.

Knows what decisions rest on; `certificate` knows how that is checked. Gives none where a
stat could not tell: secrets, version commands, results that must not serve again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from stat import S_ISLNK, S_ISREG

from assay.engine.certificate import (
    Basis,
    Certificate,
    content_digest,
    is_racy,
    list_digest,
    sign,
    sign_folder,
)
from assay.engine.clock import Clock
from assay.engine.environment import CallerEnvironment
from assay.engine.keys import is_cacheable
from assay.engine.measuring import Measurer, Unmeasurable
from assay.engine.observations import Observations
from assay.engine.stat_cache import StatCache
from assay.engine.states import ABSENT, FOLDER, RunId, State
from assay.engine.toolchain import Toolchain
from assay.plans.folders import Folders, UnreadableFolder
from assay.plans.model import (
    CacheScope,
    Entry,
    EntryKind,
    Kind,
    Node,
    Plan,
    RelPath,
    Secret,
    When,
)


def may_certify(node: Node) -> bool:
    """Whether a stat of files can tell that `node` need not run."""
    if node.kind is Kind.TEMPLATE or node.when is not When.SUCCESS:
        return False
    if node.command is None:
        return True
    return (
        is_cacheable(node)
        and node.cache.scope is not CacheScope.RUN
        and not any(isinstance(value, Secret) for _, value in node.env)
    )


def write_certificate(
    *,
    basis: Basis,
    run: RunId,
    plan: Plan,
    selected: list[int],
    counts: dict[str, int],
    outputs: dict[str, str],
    expires_at: float | None,
    root: str,
    observations: Observations,
    toolchain: Toolchain,
    caller: CallerEnvironment,
    measurer: Measurer,
    stats: StatCache,
    clock: Clock,
) -> Certificate | None:
    """None when something stands otherwise than the next run would need it."""
    if toolchain.ran_version_commands:
        return None
    nodes = [plan.nodes[index] for index in selected]
    if not all(map(may_certify, nodes)):
        return None
    states = observations.final_states()
    if states is None:
        return None
    certificate = Certificate(
        run=run,
        plan_name=plan.name,
        plan_file=plan.file,
        plan_digest=plan.digest,
        nodes=[node.name for node in nodes],
        counts=counts,
        outputs=outputs,
        expires_at=expires_at,
        environ=[(patterns, found) for patterns, found in caller.matched.items()],
        search_path=caller.variables.get("PATH"),
        lookups=[(*key, found) for key, found in toolchain.lookups.items()],
        outside=[],
        files=[],
        signatures=[],
        links=[],
        folders=[],
        absent=[],
        racy=[],
        racy_folders=[],
    )
    now_ns = clock.now_ns()
    for path, digest in (*basis.plan_files, *toolchain.digests.items()):
        _add_outside(certificate, path, digest, now_ns)
    _add_paths(certificate, root, states, measurer, stats, now_ns)
    removed = {path for node in nodes for path in node.removes} - states.keys()
    certificate.absent.extend(sorted(removed))
    # Listed, stamped, and listed again: a file that came before its folder was stamped is
    # seen by the second listing, one that comes later changes the stamp.
    first = _list(root, nodes, basis)
    if first is None:
        return None
    for path in first.visited:
        _add_folder(certificate, root, path, now_ns)
    second = _list(root, nodes, basis)
    if second is None or second.visited.keys() != first.visited.keys():
        return None
    if not second.members <= states.keys():
        return None
    return certificate


@dataclass(slots=True)
class _Listing:
    visited: dict[RelPath, object]
    members: set[RelPath]


def _list(root: str, nodes: list[Node], basis: Basis) -> _Listing | None:
    """Every folder that reads, writes and `foreach` walk, and every member of the reads;
    None when something cannot be listed or a `foreach` would expand otherwise."""
    folders = Folders(root)
    members: set[RelPath] = set()
    try:
        for reads, ignore in {(n.reads, n.ignore): None for n in nodes if _walks(n.reads)}:
            members.update(folders.members(reads, ignore))
        for writes in {n.writes: None for n in nodes if _walks(n.writes)}:
            folders.members(writes, (), in_writes=True)
        for entries, ignore, matches in basis.foreach:
            if folders.members(entries, ignore) != matches:
                return None
    except UnreadableFolder:
        return None
    return _Listing(dict(folders.visited), members)


def _walks(entries: tuple[Entry, ...]) -> bool:
    return any(entry.kind is not EntryKind.FILE for entry in entries)


def _add_outside(certificate: Certificate, path: str, digest: str, now_ns: int) -> None:
    """Signs before it reads: a change in between shows in the digest, a later one in the
    signature."""
    try:
        found = os.stat(path)
    except OSError:
        certificate.outside.append((path, None, digest))
        return
    trusted = not is_racy(found, now_ns) and content_digest(path) == digest
    certificate.outside.append((path, sign(found) if trusted else None, digest))


def _add_paths(
    certificate: Certificate,
    root: str,
    states: Mapping[RelPath, State],
    measurer: Measurer,
    stats: StatCache,
    now_ns: int,
) -> None:
    for path, state in states.items():
        if state == ABSENT:
            certificate.absent.append(path)
            continue
        if state == FOLDER:
            _add_folder(certificate, root, path, now_ns)
            continue
        found = measurer.look(path)
        if found is not None and S_ISREG(found.st_mode) and stats.lookup(path, found) == state:
            certificate.files.append(path)
            certificate.signatures.append(sign(found))
            continue
        if found is not None and S_ISLNK(found.st_mode) and not is_racy(found, now_ns):
            behind = _behind(os.path.join(root, path))
            if behind is None and ">" not in state:
                certificate.links.append((path, sign(found), None))
                continue
            if behind is not None and stats.lookup(path, behind) is not None:
                certificate.links.append((path, sign(found), sign(behind)))
                continue
        certificate.racy.append((path, state))


def _behind(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _add_folder(certificate: Certificate, root: str, path: str, now_ns: int) -> None:
    absolute = os.path.join(root, path)
    try:
        found = os.stat(absolute)
    except OSError:
        certificate.absent.append(path)
        return
    if is_racy(found, now_ns):
        certificate.racy_folders.append((path, list_digest(absolute)))
    else:
        certificate.folders.append((path, sign_folder(found)))


def state_or_none(measurer: Measurer, path: str) -> State | None:
    """The state of `path`, None when it cannot be measured."""
    try:
        return measurer.state_of(RelPath(path))
    except Unmeasurable:
        return None
