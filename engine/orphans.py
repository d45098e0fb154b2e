"""Which processes belong to an attempt, whoever is their parent by now: signs read from /proc.

A process belongs to an attempt when it carries the attempt's id as `ASSAY_ATTEMPT` in the
environment it was executed with, is in the session of the attempt's main process, holds
its lease open, or descends from one that does. Each sign can be lost (a cleared
environment, `setsid`, closed descriptors), rarely all of them.

Nothing here starts a process, and nothing knows of runs or records: a caller says which
attempts it asks about.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from assay.engine import lock_files
from assay.engine.states import AttemptId

ASK_SECONDS: Final = 0.5
"""From SIGTERM to SIGKILL for processes that were left behind."""

_NAME: Final = b"ASSAY_ATTEMPT="
_GONE: Final = (errno.ENOENT, errno.ESRCH, errno.EACCES, errno.EPERM)
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class Stat:
    """One process as the kernel tells it. `start` is in clock ticks since boot; with the
    pid it names one process for ever."""

    state: str
    parent: int
    group: int
    session: int
    threads: int
    start: int

    @property
    def is_alive(self) -> bool:
        """False for a zombie, unless only its first thread has ended."""
        return self.state not in "ZXx" or (self.state == "Z" and self.threads > 1)


@dataclass(frozen=True, slots=True)
class Trace:
    """What is known of an attempt whose assay died. `session` is its main process's pid."""

    attempt: AttemptId
    lease: str
    session: int | None = None


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process (any more)."""
    data = _read(f"/proc/{pid}/stat")
    if not data:
        return None
    # The program's name, in parentheses, may hold spaces and parentheses itself.
    fields = data[data.rindex(b")") + 2 :].split()
    return Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        threads=int(fields[17]),
        start=int(fields[19]),
    )


def find_process(pid: int, start: int) -> Stat | None:
    """The living process that has this pid and start; None when there is none any more, even
    where another one has its pid."""
    stat = read_stat(pid)
    return stat if stat is not None and stat.is_alive and stat.start == start else None


def age_seconds(pid: int) -> float:
    """Since the process started, whatever clocks were set to; 0 when there is none."""
    stat = read_stat(pid)
    if stat is None:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start / os.sysconf("SC_CLK_TCK")


def attempt_of(pid: int) -> AttemptId | None:
    """The `ASSAY_ATTEMPT` a process was executed with; None also when it may not be read."""
    data = _read(f"/proc/{pid}/environ")
    if not data:
        return None
    at = 0 if data.startswith(_NAME) else data.find(b"\0" + _NAME) + 1
    if at == 0 and not data.startswith(_NAME):
        return None
    end = data.find(b"\0", at)
    value = data[at + len(_NAME) : len(data) if end < 0 else end]
    return AttemptId(os.fsdecode(value))


def open_files(pid: int) -> frozenset[tuple[int, int]]:
    """(device, inode) of every file a process holds open, as far as that may be read."""
    found = set()
    for name in _list(f"/proc/{pid}/fd"):
        try:
            status = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue
        found.add((status.st_dev, status.st_ino))
    return frozenset(found)


def holds_removed(pid: int, name: str) -> bool:
    """Whether a process holds a file open that had this name, in whichever folder, and has it no
    more; also when that may not be read."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return True
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False
    for each in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{each}")
        except OSError as error:
            if error.errno not in _GONE:
                raise
            continue
        if target.endswith(f"/{name} (deleted)"):
            return True
    return False


def children_of(pid: int) -> list[int]:
    """Pids whose parent is `pid`, zombies included.

    A child that starts or ends meanwhile may be missing: whoever needs all of them asks
    until nothing is new.
    """
    if not _kernel_lists_children():
        return [child for child, stat in _everyone() if stat.parent == pid]
    found: list[int] = []
    for thread in _list(f"/proc/{pid}/task"):
        found += map(int, (_read(f"/proc/{pid}/task/{thread}/children") or b"").split())
    return found


def living_descendants(roots: Iterable[int]) -> dict[int, Stat]:
    """The living among `roots` and everything that descends from them."""
    found: dict[int, Stat] = {}
    pending = list(roots)
    while pending:
        pid = pending.pop()
        if pid in found:
            continue
        stat = read_stat(pid)
        if stat is not None and stat.is_alive:
            found[pid] = stat
            pending += children_of(pid)
    return found


def send(pid: int, start: int, *signals: int) -> bool:
    """Send signals to the process that has this pid and start, never to a later one with
    the same pid. False: it refuses our signals (it is another user's)."""
    handle: int | None = None
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError as error:
        # No descriptor left, or an old kernel. By its number it is, then: the pid would
        # have to be given again between the next two lines for this to go astray.
        if error.errno not in (*_EXHAUSTED, errno.ENOSYS):
            raise
    try:
        stat = read_stat(pid)
        if stat is None or stat.start != start:
            return True
        for number in signals:
            if handle is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        if handle is not None:
            os.close(handle)
    return True


def find_all_survivors(traces: Sequence[Trace]) -> dict[AttemptId, tuple[int, ...]]:
    """Living processes of each attempt that has any, from one walk over /proc.

    The asking process and its ancestors may be among them, when it runs inside a node.
    A held lease without a survivor means that its holder cannot be seen from here:
    `lock_files.is_held` decides.
    """
    return {attempt: tuple(sorted(found)) for attempt, found in _survivors(traces).items()}


def ask_survivors(trace: Trace) -> tuple[int, ...]:
    """SIGTERM to the living processes of an attempt of another, dead assay. Returns the pids,
    ascending, of those that took it. The asking process and its ancestors are left alone."""
    spared = ancestors(os.getpid())
    return tuple(
        sorted(
            pid
            for pid, stat in _survivors((trace,)).get(trace.attempt, {}).items()
            if pid not in spared and send(pid, stat.start, signal.SIGTERM, signal.SIGCONT)
        )
    )


def end_survivors(
    attempt: AttemptId,
    lease_path: str,
    session: int | None = None,
    *,
    ask_seconds: float = ASK_SECONDS,
) -> tuple[int, ...]:
    """End the living processes of an attempt of another, dead assay: SIGTERM once, SIGKILL
    after `ask_seconds`. `session` is the recorded pid of its main process.

    Returns the pids that were ended, ascending, once none is left. Processes that refuse
    our signals, and the asking process with its ancestors, are left alone.
    """
    traces = (Trace(attempt, lease_path, session),)
    spared = ancestors(os.getpid())
    asked: dict[int, int] = {}
    deadline = time.monotonic() + ask_seconds
    delay_seconds = 0.001
    while True:
        living = {
            pid: stat for pid, stat in _survivors(traces).get(attempt, {}).items()
            if pid not in spared
        }  # fmt: skip
        if not living:
            return tuple(sorted(asked))
        force = time.monotonic() >= deadline
        for pid, stat in living.items():
            if force:
                taken = send(pid, stat.start, signal.SIGKILL)
            elif asked.get(pid) != stat.start:
                taken = send(pid, stat.start, signal.SIGTERM, signal.SIGCONT)
            else:
                continue
            if taken:
                asked[pid] = stat.start
            else:
                spared.add(pid)
        time.sleep(delay_seconds)
        delay_seconds = min(delay_seconds * 2, 0.02)


def _survivors(traces: Sequence[Trace]) -> dict[AttemptId, dict[int, Stat]]:
    named = {trace.attempt for trace in traces}
    leases: dict[tuple[int, int], AttemptId] = {}
    for trace in traces:
        if lock_files.is_held(trace.lease):
            status = os.stat(trace.lease)
            leases[status.st_dev, status.st_ino] = trace.attempt
    stats = {pid: stat for pid, stat in _everyone() if stat.is_alive}
    owners: dict[int, AttemptId] = {}
    me = os.geteuid()
    for pid in stats:
        if _owner(pid) != me:
            continue
        attempt = attempt_of(pid)
        if attempt in named:
            owners[pid] = attempt
        elif leases:
            holds = [leases[file] for file in open_files(pid) if file in leases]
            if holds:
                owners[pid] = holds[0]
    sessions = {trace.session: trace.attempt for trace in traces if trace.session is not None}
    for pid, stat in stats.items():
        attempt = sessions.get(stat.session)
        if attempt is None or pid in owners or _owner(pid) != me:
            continue
        # A living leader without a sign of its own is another program that was given the
        # same pid since; the number of a session whose leader ended is not given again.
        if stat.session not in stats or owners.get(stat.session) == attempt:
            owners[pid] = attempt
    found: dict[AttemptId, dict[int, Stat]] = {}
    for pid, attempt in _with_descendants(owners, stats).items():
        found.setdefault(attempt, {})[pid] = stats[pid]
    return found


def _with_descendants(owners: dict[int, AttemptId], stats: dict[int, Stat]) -> dict[int, AttemptId]:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    result = dict(owners)
    pending = list(owners)
    while pending:
        parent = pending.pop()
        for child in children.get(parent, ()):
            if child not in result:
                result[child] = result[parent]
                pending.append(child)
    return result


def ancestors(pid: int) -> set[int]:
    """`pid` and the processes above it."""
    found: set[int] = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        stat = read_stat(pid)
        pid = 0 if stat is None else stat.parent
    return found


def _everyone() -> Iterator[tuple[int, Stat]]:
    for name in _list("/proc"):
        if name.isdecimal():
            stat = read_stat(int(name))
            if stat is not None:
                yield int(name), stat


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return None


@cache
def _kernel_lists_children() -> bool:
    """Kernels built without CONFIG_PROC_CHILDREN have no such file."""
    return os.path.exists("/proc/thread-self/children")


def _list(folder: str) -> Collection[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return ()


def _read(path: str) -> bytes | None:
    """A whole file of /proc; None when the process is gone or not ours to read."""
    for _ in range(1000):
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _GONE:
                return None
            if error.errno not in _EXHAUSTED:
                raise
            # Not looking would mean to leave processes behind: others close theirs soon.
            time.sleep(0.002)
            continue
        try:
            return _read_all(file)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return None
        finally:
            os.close(file)
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


def _read_all(file: int) -> bytes:
    parts = []
    while part := os.read(file, 1 << 16):
        parts.append(part)
    return b"".join(parts)
