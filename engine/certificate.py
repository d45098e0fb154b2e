"""What a run with nothing to do rests on, and the check that it still stands.

A certificate lists what the decisions of a completed run depended on: the plan files, the
caller's variables, where each tool was found, and the stat of every path read or written
and of every folder that was listed. When all of it is still so, every decision would come
out the same, and the run is one journal record. When anything differs, or cannot be told,
the answer is None and the plain way decides; it alone knows what a change means.

The stat of a file younger than the clock's tick proves nothing: such entries carry the
state instead, and the file is measured again.

Stored as marshal of a tuple, sealed by the store and bound to this assay's version and
Python's: see `_FORMAT`.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

if TYPE_CHECKING:
    from assay.plans.model import Entry, RelPath

_FORMAT: Final = 1

RACY_NS: Final = 20_000_000
"""A stamp must be this much older than the look at it to vouch for content; the kernel's
tick is at most 10 ms."""

COARSE_RACY_NS: Final = 2_000_000_000
"""The same on file systems that stamp whole seconds."""


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked: two equal questions have equal addresses."""

    plan_path: str
    """Absolute, links resolved."""
    targets: tuple[str, ...]
    tags: tuple[str, ...]
    params: tuple[tuple[str, str], ...]

    @property
    def address(self) -> str:
        parts = (
            _sign_code(),
            sys.version,
            self.plan_path,
            self.targets,
            self.tags,
            self.params,
            _FORMAT,
        )
        return blake3(repr(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _sign_code() -> tuple[object, ...]:
    """Changes with every installed version and every edit of the code that decides, without
    reading any metadata."""
    engine = os.path.dirname(__file__)
    folders = (engine, os.path.join(os.path.dirname(engine), "plans"))
    found: list[tuple[str, int, int]] = []
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    info = entry.stat()
                    found.append((entry.name, info.st_size, info.st_mtime_ns))
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Basis:
    """What the caller read before the run and the run cannot know: the plan's own files
    (absolute path, digest of the bytes that were read), and every `foreach` over sources
    with the ignore patterns of its file and what it matched."""

    question: Question
    plan_files: tuple[tuple[str, str], ...]
    foreach: tuple[tuple[tuple[Entry, ...], tuple[str, ...], tuple[RelPath, ...]], ...]


@dataclass(slots=True)
class Certificate:
    """See the module. Paths are relative to the root, but for plan files and tools."""

    run: str
    plan_name: str
    plan_file: str
    plan_digest: str
    nodes: list[str]
    """Names of the selected nodes, in plan order."""
    counts: dict[str, int]
    outputs: dict[str, str]
    expires_at: float | None
    environ: list[tuple[tuple[str, ...], dict[str, str]]]
    search_path: str | None
    lookups: list[tuple[str, str, str, str | None]]
    outside: list[tuple[str, tuple[int, ...] | None, str]]
    """Plan files and tools: path, signature (None while racy), BLAKE3 of the content."""
    files: list[str]
    signatures: list[tuple[int, ...]]
    """One for each of `files`."""
    links: list[tuple[str, tuple[int, ...], tuple[int, ...] | None]]
    folders: list[tuple[str, tuple[int, ...]]]
    absent: list[str]
    racy: list[tuple[str, str]]
    """Path and state, to be measured again."""
    racy_folders: list[tuple[str, str]]
    """Path and digest of the listing, to be listed again."""

    def pack(self) -> bytes:
        return marshal.dumps(tuple(getattr(self, name) for name in Certificate.__slots__))

    @property
    def has_racy(self) -> bool:
        """Whether something had to be looked at beyond its stat."""
        return bool(
            self.racy or self.racy_folders or any(sig is None for _, sig, _ in self.outside)
        )

    def aged(
        self, root: str, now_ns: int, vouch: Callable[[str, os.stat_result], str | None]
    ) -> Certificate:
        """The same, with stats in the place of what was too young for one and is no longer.

        `vouch` gives the state that the stat cache holds for a path with this stat.
        """
        files, signatures, racy = list(self.files), list(self.signatures), []
        for path, state in self.racy:
            found = _lstat(os.path.join(root, path))
            if found is not None and S_ISREG(found.st_mode) and vouch(path, found) == state:
                files.append(path)
                signatures.append(sign(found))
            else:
                racy.append((path, state))
        folders, racy_folders = list(self.folders), []
        for path, digest in self.racy_folders:
            absolute = os.path.join(root, path)
            found = _lstat(absolute)
            # Stamped before it is listed: what comes in between shows in the listing.
            if found is not None and not is_racy(found, now_ns) and list_digest(absolute) == digest:
                folders.append((path, sign_folder(found)))
            else:
                racy_folders.append((path, digest))
        outside: list[tuple[str, tuple[int, ...] | None, str]] = []
        for path, signature, digest in self.outside:
            found = _stat(path)
            if (
                signature is None
                and found is not None
                and not is_racy(found, now_ns)
                and content_digest(path) == digest
            ):
                signature = sign(found)
            outside.append((path, signature, digest))
        return replace(
            self,
            files=files,
            signatures=signatures,
            racy=racy,
            folders=folders,
            racy_folders=racy_folders,
            outside=outside,
        )

    @staticmethod
    def unpack(blob: bytes) -> Certificate:
        values: tuple[Any, ...] = marshal.loads(blob)  # noqa: S302 - sealed by the store
        return Certificate(*values)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def sign(found: os.stat_result) -> tuple[int, ...]:
    return (
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_ino,
        found.st_mode,
    )


def is_racy(found: os.stat_result, looked_at_ns: int) -> bool:
    """Whether a later change could have left this very stat."""
    newest = max(found.st_mtime_ns, found.st_ctime_ns)
    coarse = not newest % 1_000_000_000
    return newest > looked_at_ns - (COARSE_RACY_NS if coarse else RACY_NS)


def list_digest(path: str) -> str:
    """Digest of a folder's entries, names and kinds; `absent` when it cannot be listed."""
    try:
        with os.scandir(path) as entries:
            found = sorted(
                (entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink())
                for entry in entries
            )
    except OSError:
        return "absent"
    return blake3(repr(found).encode("utf-8", "surrogateescape")).hexdigest()


def content_digest(path: str) -> str:
    """Digest of a file outside the workspace's measuring: a plan file, a tool."""
    hasher = blake3(max_threads=blake3.AUTO)
    try:
        hasher.update_mmap(path)
    except OSError:
        return "absent"
    return hasher.hexdigest()


def still_holds(
    certificate: Certificate,
    root: str,
    environ: Mapping[str, str],
    now: float,
    find_tool: Callable[[str, str, str], str | None],
    match: Callable[[Mapping[str, str], tuple[str, ...]], dict[str, str]],
    state_of: Callable[[str], str | None],
) -> bool:
    """Whether everything the certificate rests on is as it was.

    `state_of` measures a path of the workspace (None: it cannot be measured) and is asked
    only for entries too young to be told by their stat.
    """
    if certificate.expires_at is not None and certificate.expires_at <= now:
        return False
    if certificate.search_path != environ.get("PATH"):
        return False
    if any(match(environ, patterns) != found for patterns, found in certificate.environ):
        return False
    for name, path, workdir, found in certificate.lookups:
        if find_tool(name, path, workdir) != found:
            return False
    for path, signature, digest in certificate.outside:
        try:
            found_stat = os.stat(path)
        except OSError:
            return False
        if sign(found_stat) != signature and content_digest(path) != digest:
            return False
    return _stands(certificate, root) and all(
        state_of(path) == state for path, state in certificate.racy
    )


def _stands(certificate: Certificate, root: str) -> bool:
    """The stats of the workspace's paths; the one loop whose cost grows with the plan."""
    lstat = os.lstat
    prefix = root.rstrip("/") + "/"
    try:
        for path, signature in zip(certificate.files, certificate.signatures, strict=True):
            found = lstat(prefix + path)
            if (
                found.st_size,
                found.st_mtime_ns,
                found.st_ctime_ns,
                found.st_ino,
                found.st_mode,
            ) != signature:
                return False
        for path, signature, behind in certificate.links:
            if sign(lstat(prefix + path)) != signature:
                return False
            if behind is not None and sign(os.stat(prefix + path)) != behind:
                return False
        for path, signature in certificate.folders:
            if sign_folder(os.stat(prefix + path)) != signature:
                return False
    except OSError:
        return False
    if any(os.path.lexists(prefix + path) for path in certificate.absent):
        return False
    return all(list_digest(prefix + path) == digest for path, digest in certificate.racy_folders)


def sign_folder(found: os.stat_result) -> tuple[int, ...]:
    """A folder's entries come and go with its mtime; its size and mode say nothing."""
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
