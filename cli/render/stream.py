"""Standard output and error as they really are: encodings that lack letters, readers that
go away, terminals that were closed, disks that are full.

Does not know what is written. Writes go to the descriptor itself, so that nothing is left
for the interpreter to flush, and fail on, at its end.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Mapping

READER_GONE = (errno.EPIPE, errno.EIO, errno.ECONNRESET)
"""EIO: the terminal behind the descriptor was closed."""

_BUFFER_BYTES = 64 * 1024


class Stream:
    """One output descriptor.

    A write never raises: when the descriptor fails, `failure` keeps the reason and what
    follows is dropped, since a run goes on when nobody listens any more.
    """

    def __init__(self, descriptor: int, encoding: str, *, buffered: bool, colour: bool) -> None:
        self.descriptor = descriptor
        self.encoding = encoding
        self.colour = colour
        self.failure: OSError | None = None
        self._buffered = buffered
        self._pending: list[bytes] = []
        self._size = 0

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self.descriptor)

    @property
    def has_unicode(self) -> bool:
        """Whether box-drawing letters and the like can be written."""
        return self.encoding.lower().replace("-", "").replace("_", "") == "utf8"

    @property
    def reader_gone(self) -> bool:
        return self.failure is not None and self.failure.errno in READER_GONE

    def write(self, text: str) -> None:
        """Letters the encoding lacks are written as escapes."""
        self.write_bytes(text.encode(self.encoding, "backslashreplace"))

    def write_bytes(self, data: bytes) -> None:
        self._pending.append(data)
        self._size += len(data)
        if not self._buffered or self._size >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        self._size = 0
        view = memoryview(data)
        while view and self.failure is None:
            try:
                view = view[os.write(self.descriptor, view) :]
            except BlockingIOError:
                # Someone sharing the descriptor made it non-blocking.
                poll = select.poll()
                poll.register(self.descriptor, select.POLLOUT)
                poll.poll()
            except OSError as error:
                self.failure = error


def open_missing_descriptors() -> None:
    """Opens 0, 1 and 2 on /dev/null where the caller closed them: the next file opened
    would otherwise take their number, and messages would be written into it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)


def open_streams(environ: Mapping[str, str]) -> tuple[Stream, Stream]:
    """Standard output and standard error; colours as for `--color auto`."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            # For what others print, such as help texts.
            stream.reconfigure(errors="backslashreplace")
    return _open(1, sys.stdout, environ), _open(2, sys.stderr, environ)


def wants_colour(when: str, environ: Mapping[str, str], is_terminal: bool) -> bool:
    """`when` is what `--color` says; it wins over the environment, NO_COLOR over
    FORCE_COLOR, and both over what the descriptor is."""
    if when != "auto":
        return when == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM", "dumb") != "dumb"


def _open(descriptor: int, text: object, environ: Mapping[str, str]) -> Stream:
    encoding = getattr(text, "encoding", None) or "utf-8"
    colour = wants_colour("auto", environ, os.isatty(descriptor))
    return Stream(descriptor, encoding, buffered=descriptor == 1, colour=colour)
