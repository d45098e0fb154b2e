"""Keeping secrets out of what is kept: masking bytes, and the relay that masks a log.

A node with secrets does not write to its log. Its output goes to an anonymous memory file,
from which the relay copies masked bytes to the log while the node runs; what was copied is
given back to the system, so memory holds only what is not copied yet. When assay dies, the
uncopied rest dies with it and nothing unmasked was ever on disk.

Does not know where secrets come from or which nodes have any.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Iterable
from functools import cache
from typing import BinaryIO, Final

MASK: Final = b"***"

_CHUNK_BYTES: Final = 1 << 20
_SHORTEST_PAUSE_SECONDS: Final = 0.005
_LONGEST_PAUSE_SECONDS: Final = 0.1
_PUNCH_HOLE_KEEP_SIZE: Final = 0x03


class Masker:
    """Replaces secrets in a stream of bytes, however it is cut into pieces.

    Every byte of every occurrence goes, overlapping ones included; occurrences that
    overlap become one mask.
    """

    def __init__(self, secrets: Iterable[bytes]) -> None:
        self._secrets = sorted({secret for secret in secrets if secret})
        self._pending = b""
        self._covered = 0
        """How many of the pending bytes belong to a mask that was already written."""

    def feed(self, data: bytes) -> bytes:
        """What can be told of the stream so far. The end of `data` is held back as long as
        a secret may have begun there."""
        return self._advance(self._pending + data, final=False)

    def finish(self) -> bytes:
        """The rest of the stream."""
        return self._advance(self._pending, final=True)

    def _advance(self, data: bytes, *, final: bool) -> bytes:
        end = len(data) if final else len(data) - self._undecided(data)
        parts: list[bytes] = []
        at = 0
        # A mask that was begun earlier goes on over the bytes it covers.
        open_until = self._covered
        for start, stop in sorted(self._occurrences(data)):
            if start < open_until:
                open_until = max(open_until, stop)
                continue
            if start >= end:
                break
            at = max(at, open_until)
            parts += (data[at:start], MASK)
            at, open_until = start, stop
        parts.append(data[max(at, open_until) : end])
        self._pending = data[end:]
        self._covered = max(0, open_until - end)
        return b"".join(parts)

    def _occurrences(self, data: bytes) -> Iterable[tuple[int, int]]:
        for secret in self._secrets:
            at = data.find(secret)
            while at >= 0:
                yield at, at + len(secret)
                at = data.find(secret, at + 1)

    def _undecided(self, data: bytes) -> int:
        """Length of the longest end of `data` that a secret could begin with."""
        longest = 0
        for secret in self._secrets:
            at = data.find(secret[:1], max(0, len(data) - len(secret) + 1))
            while at >= 0 and not secret.startswith(data[at:]):
                at = data.find(secret[:1], at + 1)
            if at >= 0:
                longest = max(longest, len(data) - at)
        return longest


def find_secret(data: bytes, secrets: Iterable[bytes]) -> bytes | None:
    """The first secret that occurs in `data`."""
    return next((secret for secret in secrets if secret and secret in data), None)


def find_secret_in(file: BinaryIO, secrets: Iterable[bytes]) -> bytes | None:
    """The first secret that occurs in a file, read to its end piece by piece."""
    wanted = [secret for secret in secrets if secret]
    overlap = max(map(len, wanted), default=1) - 1
    window = b""
    while chunk := file.read(_CHUNK_BYTES):
        window += chunk
        found = find_secret(window, wanted)
        if found is not None:
            return found
        window = window[-overlap:] if overlap else b""
    return None


class Stream:
    """The output of one attempt on its way to its log. Made by `Relay.open`."""

    def __init__(self, log: int, secrets: Iterable[bytes]) -> None:
        """`log` is a descriptor this stream owns from now on."""
        self._log = log
        self._masker = Masker(secrets)
        self._lock = threading.Lock()
        self._copied = 0
        self._failure: OSError | None = None
        self.output = os.memfd_create("assay-output", os.MFD_CLOEXEC)
        """The descriptor for the command's stdout and stderr."""
        # A command that opens /dev/stdout anew would otherwise write from the start.
        fcntl.fcntl(self.output, fcntl.F_SETFL, os.O_APPEND)

    def copy(self) -> bool:
        """Copy what was written since; whether there was anything. Does nothing once closed."""
        with self._lock:
            return self._log >= 0 and self._copy()

    def finish(self) -> None:
        """Copy the rest and close. Raises the OSError that kept the log from being written."""
        with self._lock:
            try:
                self._copy()
                self._write(self._masker.finish())
            finally:
                self._close()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Close without copying."""
        with self._lock:
            self._close()

    def _copy(self) -> bool:
        size = os.fstat(self.output).st_size
        if size < self._copied:
            # Truncated by the command (`> /dev/stdout`): what it writes now is new.
            self._copied = 0
        start = self._copied
        while self._copied < size:
            data = os.pread(self.output, min(_CHUNK_BYTES, size - self._copied), self._copied)
            if not data:
                break
            self._write(self._masker.feed(data))
            self._copied += len(data)
            _give_back(self.output, self._copied)
        return self._copied > start

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        # After a failure the output is still drained: it must not fill the memory.
        while view and self._failure is None:
            try:
                view = view[os.write(self._log, view) :]
            except OSError as error:
                self._failure = error

    def _close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            os.close(self.output)
            self._log = -1


class Relay:
    """Copies the output of every attempt with secrets, on one thread made when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self._thread: threading.Thread | None = None
        self._has_streams = threading.Event()
        self._closing = threading.Event()

    def open(self, log: int, secrets: Iterable[bytes]) -> Stream:
        """A stream to the log descriptor `log`, copied from now on until `finish`.

        The caller keeps `log` when this raises OSError (no descriptor or no thread left).
        """
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._copy_all, name="assay-relay", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise OSError(errno.EAGAIN, str(error)) from error
                self._thread = thread
        stream = Stream(log, secrets)
        with self._lock:
            self._streams.append(stream)
            self._has_streams.set()
        return stream

    def finish(self, stream: Stream) -> None:
        """Everything written to the stream is in its log, masked. Raises OSError."""
        self._forget(stream)
        stream.finish()

    def discard(self, stream: Stream) -> None:
        """Close a stream nothing was written to."""
        self._forget(stream)
        stream.close()

    def close(self) -> None:
        """Copy what is there and stop; what is written later is lost. Raises OSError."""
        self._closing.set()
        self._has_streams.set()
        if self._thread is not None:
            self._thread.join()
        while self._streams:
            self._streams.pop().finish()

    def _forget(self, stream: Stream) -> None:
        with self._lock:
            self._streams.remove(stream)
            if not self._streams:
                self._has_streams.clear()

    def _copy_all(self) -> None:
        pause_seconds = _SHORTEST_PAUSE_SECONDS
        # A memory file tells nobody that it has grown, so it is asked: often while it
        # grows, seldom while the command is silent.
        while not self._closing.wait(pause_seconds):
            self._has_streams.wait()
            with self._lock:
                streams = list(self._streams)
            busy = False
            for stream in streams:
                busy = stream.copy() or busy
            if busy:
                pause_seconds = _SHORTEST_PAUSE_SECONDS
            else:
                pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)


def _give_back(file: int, length: int) -> None:
    """Free the whole pages among the first `length` bytes; the file keeps its size.

    Where the kernel refuses, memory holds the output until the attempt ends.
    """
    _libc().fallocate(file, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(length))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
