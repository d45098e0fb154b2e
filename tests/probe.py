"""A command that does what the test says when the test says it, and the test's end of it.

As a program, a stand-in for whatever a node runs:

    python -S -E tests/probe.py SOCKET NAME [ARG...]

It connects to the Unix socket SOCKET, announces NAME, its pid and its arguments, and
obeys until told to exit. When the test goes away it exits with 99, so that nothing
outlives a test. It starts in about the time of a bare interpreter: nothing is imported
but modules built into it (so `-S -E`, and no `json`, `signal`, `socket` above).

In a test, nothing sleeps and nothing is guessed from files:

    def test_something(probes, workspace):
        workspace.plan({"nodes": {"a": {"run": probes.argv("a")}}})
        run = workspace.start("run")          # whatever makes the node run
        a = probes.arrive("a")                # waits until it has started
        assert a.environ()["ASSAY_NODE"] == "a"
        child = a.fork("child", setsid=True)  # a probe of its own
        a.say("hello\\n")                      # on the node's stdout; .complain for stderr
        a.exit(3)
        child.gone()                          # waits until that process has ended
        assert probes.arrivals == ["a", "child"]

`probes.argv(NAME, *ARGS)` is the command; a node with a shell runs
`shlex.join(probes.argv(NAME))`. A name that arrives twice (a retry) is handed out in
order of arrival. `probe.ignore(SIGTERM)`, `probe.trap(SIGTERM)` and `probe.heard()`,
`probe.detach()` (closes every descriptor) and the rest: see `Probe`.

Each waiting call gives up with an AssertionError after `PATIENCE_SECONDS`. Messages are
Python literals, one a line, in both directions.
"""

from __future__ import annotations

import sys

try:
    import _signal  # type: ignore[import-not-found]
    import _socket
    import posix
except ImportError as error:  # pragma: no cover
    raise SystemExit(f"probes need Linux and CPython: {error}") from error

ABANDONED = 99
"""The exit status of a probe whose test has gone away."""


class _Program:
    """The probe's side of one connection. Each verb is a method; what it returns is the
    answer."""

    def __init__(self, path: str, name: str, args: list[str]) -> None:
        self._path = path
        self._connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._connection.connect(path)
        self._send("hello", name, posix.getpid(), args)

    def serve(self) -> None:
        data = b""
        while True:
            line, found, rest = data.partition(b"\n")
            if not found:
                more = self._connection.recv(1 << 16)
                if not more:
                    posix._exit(ABANDONED)
                data += more
                continue
            data = rest
            verb, *values = eval(line, {})  # Written by the test.
            self._send("done", getattr(self, verb)(*values))

    def _send(self, *message: object) -> None:
        self._connection.sendall(repr(message).encode() + b"\n")

    def write(self, descriptor: int, data: bytes) -> None:
        while data:
            data = data[posix.write(descriptor, data) :]

    def flood(self, descriptor: int, block: bytes, times: int) -> None:
        for _ in range(times):
            self.write(descriptor, block)

    def read(self, descriptor: int) -> bytes:
        data = b""
        while more := posix.read(descriptor, 1 << 16):
            data += more
        return data

    def exit(self, code: int) -> None:
        posix._exit(code)

    def die(self, number: int) -> None:
        _signal.signal(number, _signal.SIG_DFL)
        posix.kill(posix.getpid(), number)

    def ignore(self, *numbers: int) -> None:
        for number in numbers:
            _signal.signal(number, _signal.SIG_IGN)

    def trap(self, *numbers: int) -> None:
        for number in numbers:
            _signal.signal(number, lambda caught, _: self._send("signal", caught))

    def environ(self) -> dict[bytes, bytes]:
        # Not posix.environ: Python itself may have added LC_CTYPE to that.
        file = posix.open("/proc/self/environ", posix.O_RDONLY)
        data = self.read(file)
        posix.close(file)
        pairs = [entry.partition(b"=") for entry in data.split(b"\0") if entry]
        return {name: value for name, _, value in pairs}

    def cwd(self) -> str:
        return posix.getcwd()

    def ids(self) -> tuple[int, int, int, int]:
        return posix.getpid(), posix.getppid(), posix.getpgid(0), posix.getsid(0)

    def descriptors(self) -> list[tuple[int, str]]:
        own = self._connection.fileno()
        found = []
        for number in map(int, posix.listdir("/proc/self/fd")):
            try:
                found.append((number, posix.readlink(f"/proc/self/fd/{number}")))
            except FileNotFoundError:
                continue  # The one the listing itself was read through.
        return sorted(entry for entry in found if entry[0] != own)

    def detach(self) -> None:
        # No answer: the test sees the connection end.
        posix.closerange(0, 4096)
        while True:
            _signal.pause()

    def fork(self, name: str, setsid: bool, double: bool, environ: object, keep: bool) -> None:
        child = posix.fork()
        if child:
            if double:
                posix.waitpid(child, 0)
            return
        if setsid:
            posix.setsid()
        if double and posix.fork():
            posix._exit(0)
        self._connection.close()
        if not keep:
            posix.closerange(0, 4096)
            for _ in range(3):
                posix.open("/dev/null", posix.O_RDWR)
        if environ is None:
            _Program(self._path, name, []).serve()
        argv = [sys.executable, "-S", "-E", __file__, self._path, name]
        posix.execve(sys.executable, argv, environ)  # type: ignore[arg-type]


if __name__ == "__main__":
    _Program(sys.argv[1], sys.argv[2], sys.argv[3:]).serve()


# From here on it is the test's end: a program never gets this far.
import ast  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import struct  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Iterator, Mapping  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402

PATIENCE_SECONDS = 60.0


class Probe:
    """One process that runs the probe, from its arrival on."""

    def __init__(self, probes: Probes, connection: socket.socket) -> None:
        self._probes = probes
        self._connection = connection
        self._data = b""
        self._signals: list[int] = []
        connection.settimeout(PATIENCE_SECONDS)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid: int = struct.unpack("3i", credentials)[0]
        self._handle = os.pidfd_open(self.pid)
        _, name, _, args = self._receive()
        self.name: str = name
        self.args: list[str] = args

    def say(self, text: str | bytes) -> None:
        """Write to its stdout; returns when that is done."""
        self._ask("write", 1, text.encode() if isinstance(text, str) else text)

    def complain(self, text: str | bytes) -> None:
        """Write to its stderr; returns when that is done."""
        self._ask("write", 2, text.encode() if isinstance(text, str) else text)

    def flood(self, descriptor: int, block: bytes, times: int) -> None:
        """Write `block` `times` times; returns when that is done."""
        self._ask("flood", descriptor, block, times)

    def read_stdin(self) -> bytes:
        """Its standard input up to the end."""
        data = self._ask("read", 0)
        assert isinstance(data, bytes)
        return data

    def exit(self, code: int = 0) -> None:
        """Exit with a status; see `gone`."""
        self._tell("exit", code)

    def die(self, number: int) -> None:
        """End by a signal."""
        self._tell("die", int(number))

    def ignore(self, *numbers: int) -> None:
        """Ignore these signals from now on."""
        self._ask("ignore", *(int(number) for number in numbers))

    def trap(self, *numbers: int) -> None:
        """Report these signals to `heard` from now on, and live on."""
        self._ask("trap", *(int(number) for number in numbers))

    def heard(self) -> signal.Signals:
        """The next trapped signal; waits for it."""
        while not self._signals:
            self._signals.append(self._receive("signal")[1])
        return signal.Signals(self._signals.pop(0))

    def heard_nothing(self) -> bool:
        """No trapped signal is left over that `heard` did not return."""
        self._ask("cwd")
        return not self._signals

    def environ(self) -> dict[str, str]:
        found = self._ask("environ")
        assert isinstance(found, dict)
        return {os.fsdecode(name): os.fsdecode(value) for name, value in found.items()}

    def cwd(self) -> str:
        found = self._ask("cwd")
        assert isinstance(found, str)
        return found

    def ids(self) -> tuple[int, int, int, int]:
        """(pid, parent, group, session) as it sees them itself."""
        found = self._ask("ids")
        assert isinstance(found, tuple)
        return found

    def descriptors(self) -> dict[int, str]:
        """Its open descriptors and what they lead to, without its connection to the test."""
        found = self._ask("descriptors")
        assert isinstance(found, list)
        return dict(found)

    def fork(
        self,
        name: str,
        *,
        setsid: bool = False,
        double: bool = False,
        environ: Mapping[str, str] | None = None,
        keep_files: bool = True,
    ) -> Probe:
        """A child, once it has arrived as a probe of its own.

        `double`: by way of a child that exits, as daemons do, so that it is an orphan.
        `environ`: executes anew with that environment, which /proc then shows.
        `keep_files` False: without any descriptor of its parent, /dev/null as 0, 1, 2.
        """
        encoded = None if environ is None else dict(environ)
        self._ask("fork", name, setsid, double, encoded, keep_files)
        return self._probes.arrive(name)

    def detach(self) -> None:
        """Close every descriptor and wait for ever. It obeys nothing but signals any more."""
        self._tell("detach")
        assert self._connection.recv(1) == b"", "still connected"

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended (a zombie has)."""
        return not select.select([self._handle], [], [], 0)[0]

    def gone(self) -> None:
        """Wait until the process has ended."""
        ready = select.select([self._handle], [], [], PATIENCE_SECONDS)[0]
        assert ready, f"probe {self.name} ({self.pid}) is still alive"

    def close(self) -> None:
        """End the process, whatever it does, and forget it."""
        if self.is_alive:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        os.close(self._handle)
        self._connection.close()

    def _tell(self, verb: str, *values: object) -> None:
        self._connection.sendall(repr((verb, *values)).encode() + b"\n")

    def _ask(self, verb: str, *values: object) -> object:
        self._tell(verb, *values)
        return self._receive("done")[1]

    def _receive(self, kind: str | None = None) -> tuple[Any, ...]:
        while True:
            while b"\n" not in self._data:
                more = self._connection.recv(1 << 16)
                assert more, f"probe {getattr(self, 'name', '?')} ({self.pid}) has ended"
                self._data += more
            line, _, self._data = self._data.partition(b"\n")
            message = ast.literal_eval(line.decode())
            if kind == "done" and message[0] == "signal":
                self._signals.append(message[1])
            elif kind is None or message[0] == kind:
                return tuple(message)


class Probes:
    """The place probes connect to. One for each test: the fixture `probes`."""

    def __init__(self) -> None:
        # Below /tmp whatever TMPDIR says: a socket's path must stay short.
        self._folder = tempfile.mkdtemp(prefix="probes-", dir="/tmp")
        self.path = os.path.join(self._folder, "s")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(1024)
        self._waiting: list[Probe] = []
        self._all: list[Probe] = []

    def argv(self, name: str, *args: str) -> list[str]:
        """The command that makes a node a probe called `name`."""
        return [sys.executable, "-S", "-E", __file__, self.path, name, *args]

    def arrive(self, name: str) -> Probe:
        """The next probe of this name; waits for it."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            for probe in self._waiting:
                if probe.name == name:
                    self._waiting.remove(probe)
                    return probe
            left = deadline - time.monotonic()
            if left <= 0 or not self._accept(left):
                raise AssertionError(f"probe {name} did not arrive; came: {self.arrivals}")

    @property
    def arrivals(self) -> list[str]:
        """The names of all probes that have arrived so far, in order."""
        while self._accept(0):
            pass
        return [probe.name for probe in self._all]

    @property
    def living(self) -> list[str]:
        """The names of probes whose process has not ended."""
        while self._accept(0):
            pass
        return [probe.name for probe in self._all if probe.is_alive]

    def close(self) -> None:
        while self._accept(0):
            pass
        for probe in self._all:
            probe.close()
        self._listener.close()
        shutil.rmtree(self._folder)

    def _accept(self, seconds: float) -> bool:
        if not select.select([self._listener], [], [], seconds)[0]:
            return False
        connection, _ = self._listener.accept()
        try:
            probe = Probe(self, connection)
        except ProcessLookupError:
            # Ended and reaped before it was looked at: there is nothing to wait for.
            connection.close()
            return True
        self._all.append(probe)
        self._waiting.append(probe)
        return True


@pytest.fixture
def probes() -> Iterator[Probes]:
    """Where this test's probes arrive; all of them are ended after it."""
    place = Probes()
    yield place
    place.close()
