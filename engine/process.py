"""Starting, signalling and ending the processes of attempts: the one door to them.

Each attempt's command runs in a session of its own, with /dev/null as stdin, one descriptor
for stdout and stderr, and its locked lease; nothing else is inherited. Nothing waits for a
descriptor to be closed: an attempt has ended when its main process has and nothing else
of it lives.

How nothing escapes: this process is a sub-reaper, so whatever loses its parent below it
becomes its own child, on the child list of its first thread. Commands are started by other
threads and are on theirs. So after a command has ended, one read of an (as a rule) empty
list tells that it left nothing behind. What is on the list is attributed by session,
environment, open files or descent; what cannot be is ended when no attempt is left that it
could belong to.

How no signal goes astray: an ended process keeps its pid until it is reaped. A main process
is reaped last, when its attempt is over, and signals go out and reaping happens under one
lock. What is not our child is signalled through a descriptor that names the process.

Orphans come to the process, not to an object: at most one `Processes` may be executing at
a time. Does not know what a command is for, which signals a user sent, or how long a
grace is.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from assay.engine import landlock, orphans
from assay.engine.landlock import Domain
from assay.engine.program_lookup import find_program
from assay.engine.secrets import Relay, Stream
from assay.engine.states import AttemptId
from assay.plans.model import Background

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
"""What shells return for a command they found but could not execute, or did not find."""

_SET_CHILD_SUBREAPER: Final = 36
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
_IDLE_TRIES: Final = 40
_TRY_AGAIN_SECONDS: Final = 0.05
_HOUSEKEEPING_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Spawn:
    """A command to execute. `cwd`, `log` and `lease` are absolute; `env` is all it gets.

    `log` is appended to and made 0600 when absent. `lease` is made, locked, and inherited,
    except with `background` = keep; it is removed when the attempt is over. With `masks`
    the command writes to memory and the log gets the masked text.
    """

    attempt: AttemptId
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    log: str
    lease: str
    masks: tuple[bytes, ...] = ()
    background: Background = Background.END
    leaves_lease: bool = False
    """The lease stays, free, for the caller to use again."""
    program: str | None = None
    """Where argv[0] was found already, absolute; None: it is looked up."""
    domain: Domain | None = None
    """What the kernel lets it reach; None: all that its user may."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a main process ended: `exit_code` or `signal`, the other is None.

    `left_behind` are the pids of processes that outlived it and were ended then, or live
    on with `background` = keep.
    """

    exit_code: int | None
    signal: int | None
    duration_seconds: float
    left_behind: tuple[int, ...]


class CannotStart(Exception):
    """The command did not run at all. The text is one sentence naming the path at fault;
    `code` is 126 or 127, as a shell would return."""

    def __init__(self, message: str, code: int = NOT_EXECUTABLE) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True, eq=False)
class _Running:
    """An attempt from `execute` to its return. Changed under the lock of `Processes`."""

    attempt: AttemptId
    keep: bool
    process: subprocess.Popen[bytes] | None = None
    stream: Stream | None = None
    began: float = 0.0
    files: tuple[str, ...] = ()
    """Paths of its output and its lease."""
    members: dict[int, int] = field(default_factory=dict)
    """pid to start of processes below its orphans: they become orphans as those end."""
    cancelled: bool = False
    killed: bool = False
    kill_at: float = 0.0

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


@dataclass(slots=True)
class _Orphan:
    """A living process that was not started by us and has become our child."""

    attempt: AttemptId | None
    suspects: frozenset[AttemptId]
    """While `attempt` is unknown: the attempts it could belong to."""


class Processes:
    """The processes of all attempts of this assay. Any thread may call anything.

    Signal handlers may not: they could interrupt a thread that holds the lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._someone_ended = threading.Condition(self._lock)
        self._ended_count = 0
        self._running: dict[AttemptId, _Running] = {}
        self._mains: dict[int, _Running] = {}
        self._sessions: dict[int, AttemptId] = {}
        self._kept: dict[AttemptId, tuple[str, ...]] = {}
        self._orphans: dict[int, _Orphan] = {}
        self._relay = Relay()
        # One at a time: few descriptors are open, however many threads want to start.
        self._starting = threading.Lock()
        self._prepared = False
        self._null = -1
        self._children = -1
        self._foreign: dict[int, int] = {}
        self._own_session = -1
        self._busy = threading.Event()
        self._closing = threading.Event()

    def execute(self, spawn: Spawn, started: Callable[[int], None]) -> Ended:
        """Run a command to its end; blocks. Returns when nothing of the attempt lives (or
        with `background` = keep, when its main process has ended).

        `started` is called with the pid once the command runs, on this thread. What it
        raises ends the command and is raised here.

        Raises CannotStart; OSError when the log or the lease cannot be written.
        Processes that refuse our signals (another user's) are not waited for.
        """
        running = _Running(spawn.attempt, spawn.background is Background.KEEP)
        with self._lock:
            assert spawn.attempt not in self._running
            self._running[spawn.attempt] = running
        try:
            self._start(running, spawn)
        except BaseException:
            # Whatever it is, it is not handled here: no trace of the attempt may stay.
            with self._lock:
                self._forget(running)
            raise
        told = False
        try:
            started(running.pid)
            os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
            told = True
        finally:
            if not told:
                self.kill(spawn.attempt)
                os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.monotonic() - running.began
            code, left_behind = self._finish(running)
            if not running.keep and not spawn.leaves_lease:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(spawn.lease)
            if running.stream is not None and spawn.attempt not in self._kept:
                self._relay.finish(running.stream)
        return Ended(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            duration_seconds=seconds,
            left_behind=left_behind,
        )

    def terminate(self, attempt: AttemptId, *, ask_seconds: float = orphans.ASK_SECONDS) -> bool:
        """SIGTERM to the attempt's group, once, however often this is called. Stopped
        processes are continued so that they can act on it.

        The main process has until `kill`; what outlives it has `ask_seconds` from now.
        An attempt that has not started yet does not start. False: it is not running, or
        refuses our signals.
        """
        with self._lock:
            running = self._running.get(attempt)
            if running is None:
                return False
            if not running.cancelled:
                running.cancelled = True
                running.kill_at = time.monotonic() + ask_seconds
                if running.process is not None:
                    return _signal_group(running.pid, signal.SIGTERM, signal.SIGCONT)
                self._someone_ended.notify_all()
            return True

    def kill(self, attempt: AttemptId) -> bool:
        """SIGKILL to the attempt's group and to every process of it, wherever it went.

        An attempt that has not started yet does not start. False: it is not running, or
        refuses our signals.
        """
        with self._lock:
            running = self._running.get(attempt)
            if running is None:
                return False
            running.cancelled = running.killed = True
            if running.process is None:
                self._someone_ended.notify_all()
                return True
            taken = _signal_group(running.pid, signal.SIGKILL)
            self._observe()
            below = orphans.living_descendants([running.pid])
            below.pop(running.pid, None)
            for pid, found in (below | self._left_behind(running)).items():
                running.members[pid] = found.start
                taken = orphans.send(pid, found.start, signal.SIGKILL) and taken
            return taken

    def running(self) -> tuple[AttemptId, ...]:
        """The attempts whose `execute` has not returned."""
        with self._lock:
            return tuple(self._running)

    def close(self) -> None:
        """Give back descriptors and threads once nothing is running. Kept processes live
        on; what those with masks write from now on is lost."""
        assert not self._running
        self._closing.set()
        self._busy.set()
        self._relay.close()
        if self._prepared:
            os.close(self._null)
            if self._children >= 0:
                os.close(self._children)
            self._prepared = False

    def _start(self, running: _Running, spawn: Spawn) -> None:
        idle_tries = 0
        while True:
            with self._lock:
                count = self._ended_count
                self._check_wanted(running)
            try:
                with self._starting:
                    self._open_and_spawn(running, spawn)
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                problem = (error.strerror or "no resources").lower()
            with self._lock:
                others = len(self._mains)
                if not others:
                    idle_tries += 1
                    if idle_tries > _IDLE_TRIES:
                        raise CannotStart(f"The system refused another process: {problem}")
                # Looked at again: it may have happened since the lock was last held.
                if self._ended_count == count and not running.cancelled:
                    self._someone_ended.wait(None if others else _TRY_AGAIN_SECONDS)

    def _check_wanted(self, running: _Running) -> None:
        if running.cancelled:
            raise CannotStart("It was cancelled before it could start")

    def _open_and_spawn(self, running: _Running, spawn: Spawn) -> None:
        """Raises OSError of `_EXHAUSTED` when it can be tried again, with nothing changed."""
        if not self._prepared:
            self._prepare()
        opened: list[int] = []
        stream: Stream | None = None
        inherited: tuple[int, ...] = ()
        try:
            output = _open(spawn.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, opened)
            program = spawn.program or _find_program(spawn)
            if spawn.masks:
                stream = self._relay.open(output, spawn.masks)
                opened.remove(output)
                output = stream.output
            if not running.keep:
                # Locked before there is a process: dying in between leaves a free lease and
                # nothing alive, dying after it a held one.
                lease = _open(spawn.lease, os.O_RDWR | os.O_CREAT, opened)
                _lock_lease(lease, spawn.lease)
                inherited = (lease,)
            start = partial(self._spawn, running, spawn, program, output, inherited, stream)
            if spawn.domain is None:
                start()
            else:
                try:
                    landlock.call_within(spawn.domain, start)
                except landlock.Unavailable as error:
                    raise CannotStart(f"Its boundary cannot be held: {error}") from error
        finally:
            for descriptor in opened:
                os.close(descriptor)
            if running.process is None:
                if stream is not None:
                    self._relay.discard(stream)
                if inherited:
                    os.unlink(spawn.lease)

    def _spawn(
        self,
        running: _Running,
        spawn: Spawn,
        program: str,
        output: int,
        inherited: tuple[int, ...],
        stream: Stream | None,
    ) -> None:
        """On the thread whose domain the command is to have."""
        with self._lock:
            self._check_wanted(running)
            # Under the lock: nobody may meet a child that is not known yet.
            try:
                process = subprocess.Popen(
                    spawn.argv,
                    executable=program,
                    stdin=self._null,
                    stdout=output,
                    stderr=output,
                    cwd=spawn.cwd,
                    env=spawn.env,
                    pass_fds=inherited,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                    raise
                raise _explain(spawn, program, error) from error
            running.began = time.monotonic()
            running.process = process
            running.stream = stream
            written = spawn.log if stream is None else f"/proc/self/fd/{output}"
            running.files = (written, spawn.lease)
            self._mains[process.pid] = running
            self._sessions[process.pid] = running.attempt
            self._busy.set()

    def _prepare(self) -> None:
        """What every execution needs, made with the first; on failure the next one tries."""
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "prctl(PR_SET_CHILD_SUBREAPER)")
        pid = os.getpid()
        opened: list[int] = []
        try:
            null = _open(os.devnull, os.O_RDONLY, opened)
            # Orphans are given to the first thread, whose number is the process's.
            with contextlib.suppress(FileNotFoundError):
                self._children = _open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY, opened)
            # Children from before are none of ours (assay may have been exec'ed by a shell
            # that had some). In our own session nothing of an attempt can be.
            for child in orphans.children_of(pid):
                found = orphans.read_stat(child)
                if found is not None:
                    self._foreign[child] = found.start
            housekeeper = threading.Thread(
                target=self._keep_house, name="assay-orphans", daemon=True
            )
            try:
                housekeeper.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, str(error)) from error
            opened.clear()
        finally:
            for descriptor in opened:
                os.close(descriptor)
        self._null = null
        self._own_session = os.getsid(0)
        self._prepared = True

    def _keep_house(self) -> None:
        """Reaps orphans during long attempts, and meets new ones while their signs are fresh."""
        while True:
            self._busy.wait()
            if self._closing.wait(_HOUSEKEEPING_SECONDS):
                return
            with self._lock:
                if self._mains:
                    self._observe()
                else:
                    self._busy.clear()

    def _finish(self, running: _Running) -> tuple[int, tuple[int, ...]]:
        """End what the ended main process left behind, then reap it. Its exit status as
        `os.waitstatus_to_exitcode` has it, and the pids left behind."""
        seen: set[int] = set()
        asked: dict[int, int] = {}
        refused: set[int] = set()
        kill_at: float | None = None
        pause_seconds = 0.0005
        while True:
            with self._lock:
                self._observe()
                living = self._left_behind(running) if self._orphans else {}
                seen.update(living)
                is_kept = running.keep and not running.cancelled
                if is_kept or living.keys() <= refused:
                    return self._settle(running, is_kept=is_kept and bool(living)), tuple(
                        sorted(seen)
                    )
                now = time.monotonic()
                if kill_at is None:
                    kill_at = now + orphans.ASK_SECONDS
                must_end = running.killed or now >= max(kill_at, running.kill_at)
                for pid, found in living.items():
                    running.members[pid] = found.start
                    if pid in refused:
                        continue
                    signals: tuple[int, ...]
                    if must_end:
                        signals = (signal.SIGKILL,)
                    elif asked.get(pid) == found.start:
                        continue
                    elif running.cancelled and found.group == running.pid:
                        # It got its SIGTERM with the group.
                        signals = (signal.SIGCONT,)
                    else:
                        signals = (signal.SIGTERM, signal.SIGCONT)
                    asked[pid] = found.start
                    if not orphans.send(pid, found.start, *signals):
                        refused.add(pid)
            time.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, 0.01)

    def _settle(self, running: _Running, *, is_kept: bool) -> int:
        process = running.process
        assert process is not None
        _, status = os.waitpid(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        # Tells Popen that there is nothing left to wait for.
        process.returncode = code
        if is_kept:
            self._kept[running.attempt] = running.files
        self._forget(running)
        return code

    def _forget(self, running: _Running) -> None:
        del self._running[running.attempt]
        if running.process is not None:
            del self._mains[running.pid]
            if running.attempt not in self._kept:
                self._forget_sessions(running.attempt)
        self._ended_count += 1
        self._someone_ended.notify_all()

    def _forget_sessions(self, attempt: AttemptId) -> None:
        for session in [number for number, of in self._sessions.items() if of == attempt]:
            del self._sessions[session]

    def _observe(self) -> None:
        """Learn of new orphans, reap those that ended. Normally one read of an empty list."""
        listed = self._list_children()
        if not listed and not self._orphans:
            return
        here = set()
        for pid in listed:
            if pid in self._mains or (pid not in self._orphans and self._is_foreign(pid)):
                continue
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                here.add(pid)
        for pid in self._orphans.keys() - here:
            del self._orphans[pid]
        for pid in here - self._orphans.keys():
            found = orphans.read_stat(pid)
            if found is not None:
                self._orphans[pid] = self._attribute(pid, found)
        for attempt in self._kept.keys() - self._living_kept():
            del self._kept[attempt]
            self._forget_sessions(attempt)

    def _list_children(self) -> list[int]:
        """Our children on the list orphans come to. Nothing leaves that list but by being
        reaped under the lock, so reading it misses none."""
        if self._children < 0:
            return orphans.children_of(os.getpid())
        data = b""
        while part := os.pread(self._children, 1 << 16, len(data)):
            data += part
        return [int(pid) for pid in data.split()]

    def _is_foreign(self, pid: int) -> bool:
        """Whether a child is another part of assay's business: in our own session, or older
        than the first attempt."""
        found = orphans.read_stat(pid)
        if found is None or found.session == self._own_session:
            return True
        return self._foreign.get(pid) == found.start

    def _attribute(self, pid: int, found: orphans.Stat) -> _Orphan:
        attempt = self._read_signs(pid, found)
        if attempt is None:
            below = orphans.living_descendants([pid])
            below.pop(pid, None)
            signs = (self._read_signs(child, stat) for child, stat in below.items())
            attempt = next((sign for sign in signs if sign is not None), None)
        if attempt is not None:
            return _Orphan(attempt, frozenset())
        started = {running.attempt for running in self._mains.values()}
        return _Orphan(None, frozenset(started | self._living_kept()))

    def _read_signs(self, pid: int, found: orphans.Stat) -> AttemptId | None:
        for running in self._mains.values():
            if running.members.get(pid) == found.start:
                return running.attempt
        attempt = self._sessions.get(found.session)
        if attempt is None:
            named = orphans.attempt_of(pid)
            if named is not None and (named in self._running or named in self._kept):
                attempt = named
        if attempt is None:
            files = orphans.open_files(pid)
            owned = {running.attempt: running.files for running in self._mains.values()}
            for candidate, paths in (owned | self._kept).items():
                if files & _identities(paths):
                    attempt = candidate
                    break
        if attempt is not None:
            # What it starts later is in its session, whatever else it drops.
            self._sessions.setdefault(found.session, attempt)
        return attempt

    def _living_kept(self) -> set[AttemptId]:
        return {
            orphan.attempt
            for orphan in self._orphans.values()
            if orphan.attempt is not None and orphan.attempt in self._kept
        }

    def _left_behind(self, running: _Running) -> dict[int, orphans.Stat]:
        """Living processes that must end with this attempt: its orphans, those that can be
        of no other attempt any more, and all that descends from either."""
        others = (self._running.keys() - {running.attempt}) | self._living_kept()
        roots = [
            pid
            for pid, orphan in self._orphans.items()
            if orphan.attempt == running.attempt
            or (orphan.attempt is None and orphan.suspects.isdisjoint(others))
        ]
        return orphans.living_descendants(roots) if roots else {}


def _identities(paths: tuple[str, ...]) -> set[tuple[int, int]]:
    found = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)
            found.add((status.st_dev, status.st_ino))
    return found


def _signal_group(leader: int, *signals: int) -> bool:
    try:
        for number in signals:
            os.killpg(leader, number)
    except PermissionError:
        return False
    return True


def _open(path: str, flags: int, opened: list[int]) -> int:
    """Open a file, never as 0, 1 or 2: assay may have been started with those closed."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    if descriptor < 3:
        low = descriptor
        try:
            descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 3)
        finally:
            os.close(low)
    opened.append(descriptor)
    return descriptor


def _lock_lease(lease: int, path: str) -> None:
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Attempt ids are unique: only a damaged store leads here. Not to be tried again.
        raise OSError(errno.EBUSY, "held by another process", path) from None


def _find_program(spawn: Spawn) -> str:
    """What argv[0] names, found the way exec does it: with a slash relative to the command's
    working directory, else in the command's own PATH. Raises CannotStart.

    Looked up here, not by the child: each name a child tries in vain is an exec with every
    other thread held up.
    """
    name = spawn.argv[0]
    if "/" in name or "\0" in name:
        return name
    search = spawn.env.get("PATH", os.defpath)
    found = find_program(spawn.cwd, name, search, ".")
    if found is not None:
        return found
    _check_folder(spawn.cwd)
    for folder in search.split(os.pathsep):
        path = os.path.join(spawn.cwd, folder, name)
        explained = _explain_file(path, path) if os.path.lexists(path) else None
        if explained is not None:
            raise explained
    raise CannotStart(f"The program `{name}` is not in PATH ({search})", NOT_FOUND)


def _explain(spawn: Spawn, program: str, error: OSError | ValueError) -> CannotStart:
    """Why exec failed. The kernel says the same of a missing folder, a missing program and a
    missing interpreter, so each is looked at."""
    if isinstance(error, ValueError):
        return CannotStart(f"The command or its environment cannot be passed on: {error}")
    if error.errno == errno.E2BIG:
        return CannotStart("The command and its environment are longer than the system allows")
    try:
        _check_folder(spawn.cwd)
    except CannotStart as problem:
        return problem
    shown = spawn.argv[0] if "/" in spawn.argv[0] else program
    explained = _explain_file(shown, os.path.join(spawn.cwd, program))
    if explained is not None:
        return explained
    reason = (error.strerror or str(error)).lower()
    return CannotStart(f"The program `{shown}` could not be started: {reason}")


def _check_folder(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise CannotStart(f"The working directory `{path}` does not exist") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise CannotStart(f"The working directory `{path}` cannot be entered: {reason}") from None
    if not stat.S_ISDIR(mode):
        raise CannotStart(f"The working directory `{path}` is a file, not a folder")
    if not os.access(path, os.X_OK):
        raise CannotStart(f"The working directory `{path}` cannot be entered: permission denied")


def _explain_file(shown: str, path: str) -> CannotStart | None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if os.path.islink(path):
            return CannotStart(
                f"The program `{shown}` is a link to `{os.readlink(path)}`, which does not exist",
                NOT_FOUND,
            )
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return CannotStart(f"The program `{shown}` does not exist", NOT_FOUND)
        return None
    if stat.S_ISDIR(mode):
        return CannotStart(f"The program `{shown}` is a folder")
    if not stat.S_ISREG(mode):
        return CannotStart(f"The program `{shown}` is not a file")
    if not os.access(path, os.X_OK):
        return CannotStart(f"The program `{shown}` is not executable: `chmod +x` makes it so")
    try:
        with open(path, "rb") as file:
            head = file.read(256)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        if head.startswith(b"\x7fELF"):
            return CannotStart(f"The program `{shown}` was built for another system")
        return CannotStart(
            f"The program `{shown}` has no `#!` line and is no binary this system can run"
        )
    line = head[2:].split(b"\n", 1)[0]
    interpreter = os.fsdecode((line.split() or [b""])[0])
    if line.endswith(b"\r"):
        return CannotStart(
            f"The `#!` line of `{shown}` ends in a carriage return: save it with Unix line ends",
            NOT_FOUND,
        )
    if not os.path.exists(interpreter):
        return CannotStart(
            f"The interpreter `{interpreter}` named in the `#!` line of `{shown}` does not exist",
            NOT_FOUND,
        )
    if not os.access(interpreter, os.X_OK) or os.path.isdir(interpreter):
        return CannotStart(
            f"The interpreter `{interpreter}` named in the `#!` line of `{shown}` is not executable"
        )
    return None
