"""Output descriptors that fail in every way they can."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from assay.cli.render.stream import Stream, wants_colour


def _stream(descriptor: int, encoding: str = "utf-8", *, buffered: bool = False) -> Stream:
    return Stream(descriptor, encoding, buffered=buffered, colour=False)


def test_reader_that_went_away_is_noted_once() -> None:
    """C77 Writing to a closed pipe raises nothing, and what follows is dropped."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = _stream(writer)

    stream.write("one\n")
    stream.write("two\n")

    assert stream.reader_gone
    os.close(writer)


def test_full_device_is_a_failure_not_a_reader_gone() -> None:
    """C77 /dev/full keeps its reason, to be told at the end."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    stream = _stream(descriptor)

    stream.write("one\n")

    assert not stream.reader_gone
    assert stream.failure is not None
    assert stream.failure.errno == errno.ENOSPC
    os.close(descriptor)


def test_closed_terminal_counts_as_a_reader_gone() -> None:
    """C60 After the terminal is closed writes give EIO, and nothing crashes or loops."""
    master, terminal = os.openpty()
    stream = _stream(terminal)
    assert stream.is_terminal
    os.close(master)

    stream.write("one\n")

    assert stream.failure is not None
    assert stream.failure.errno == errno.EIO
    assert stream.reader_gone
    os.close(terminal)


def test_letters_an_encoding_lacks_are_escaped() -> None:
    """C76 An ASCII stream takes any text."""
    reader, writer = os.pipe()
    stream = _stream(writer, "ascii")

    stream.write("é ✓ \udcff\n")

    assert os.read(reader, 100) == b"\\xe9 \\u2713 \\udcff\n"
    assert not stream.has_unicode
    os.close(reader)
    os.close(writer)


def test_non_blocking_pipe_loses_nothing() -> None:
    """A full pipe that someone made non-blocking is waited for."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    text = "x" * 1_000_000
    received: list[bytes] = []

    def read_all() -> None:
        while piece := os.read(reader, 65536):
            received.append(piece)

    thread = threading.Thread(target=read_all)
    thread.start()
    _stream(writer).write(text)
    os.close(writer)
    thread.join()

    assert b"".join(received) == text.encode()
    os.close(reader)


def test_buffered_stream_writes_when_flushed() -> None:
    """Data is written in large pieces, and all of it once flushed."""
    reader, writer = os.pipe()
    stream = _stream(writer, buffered=True)
    os.set_blocking(reader, False)

    stream.write("one\n")
    with pytest.raises(BlockingIOError):
        os.read(reader, 100)
    stream.flush()

    assert os.read(reader, 100) == b"one\n"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("when", "environ", "is_terminal", "wanted"),
    [
        ("auto", {"TERM": "xterm"}, True, True),
        ("auto", {"TERM": "xterm"}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {}, True, False),
        ("auto", {"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, False, True),
        ("never", {"FORCE_COLOR": "1", "TERM": "xterm"}, True, False),
    ],
)
def test_colours_obey_option_then_environment_then_terminal(
    when: str, environ: dict[str, str], is_terminal: bool, wanted: bool
) -> None:
    """C80 `--color` wins over NO_COLOR, NO_COLOR over FORCE_COLOR, both over the terminal."""
    assert wants_colour(when, environ, is_terminal) is wanted
