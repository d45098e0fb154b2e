"""No byte of a secret gets through, however it was written (C82)."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.engine.secrets import (
    MASK,
    Masker,
    Relay,
    Stream,
    find_secret,
    find_secret_in,
)


def reference(data: bytes, secrets: list[bytes]) -> bytes:
    """What masking means, byte by byte."""
    covered = [
        (start, start + len(secret))
        for start in range(len(data))
        for secret in secrets
        if secret and data.startswith(secret, start)
    ]
    result, at = b"", 0
    for start, stop in sorted(covered):
        if start >= at:
            result += data[at:start] + MASK
        at = max(at, stop)
    return result + data[at:]


SECRETS = st.lists(st.text("ab", max_size=5).map(str.encode), max_size=4)


@given(pieces=st.lists(st.text("abc", max_size=8).map(str.encode)), secrets=SECRETS)
def test_masking_does_not_depend_on_how_output_is_cut(
    pieces: list[bytes], secrets: list[bytes]
) -> None:
    """Any secrets, overlapping or one within another, in any pieces, give the same text."""
    masker = Masker(secrets)
    masked = b"".join(map(masker.feed, pieces)) + masker.finish()
    assert masked == reference(b"".join(pieces), secrets)


def mask_bytes(data: bytes, secrets: list[bytes]) -> bytes:
    masker = Masker(secrets)
    return masker.feed(data) + masker.finish()


@pytest.mark.parametrize(
    ("data", "secrets", "expected"),
    [
        (b"token=hunter2!", [b"hunter2"], b"token=***!"),
        (b"hunter2hunter2", [b"hunter2"], b"******"),
        (b"<abcdefgh>", [b"abcdef", b"abcdefgh"], b"<***>"),
        (b"<abcdef->", [b"abcdef", b"abcdefgh"], b"<***->"),
        (b"<abcdefghi>", [b"abcdef", b"defghi"], b"<***>"),
        (b"<xabcdefy>", [b"abcdef", b"xabcdefz"], b"<x***y>"),
        (b"\0\xff\xfe\xff\n", [b"\xff\xfe"], b"\0***\xff\n"),
        (b"no secret", [b""], b"no secret"),
        (b"", [b"abcdef"], b""),
    ],
    ids=["one", "twice", "longest", "shorter", "overlap", "inner", "binary", "empty", "nothing"],
)
def test_masks(data: bytes, secrets: list[bytes], expected: bytes) -> None:
    """The longest match wins, overlapping secrets go whole, bytes are bytes (C82)."""
    assert mask_bytes(data, secrets) == expected
    masker = Masker(secrets)
    parts = [masker.feed(data[at : at + 1]) for at in range(len(data))]
    assert b"".join(parts) + masker.finish() == expected


def test_only_a_possible_beginning_is_held_back() -> None:
    """Text that cannot be part of a secret any more is let through at once."""
    masker = Masker([b"hunter2"])
    assert masker.feed(b"password: hunt") == b"password: "
    assert masker.feed(b"ing") == b"hunting"
    assert masker.feed(b"hunter2") == MASK
    assert masker.finish() == b""


def test_finding_secrets() -> None:
    """A secret in a value or a file is found, also across the pieces a file is read in."""
    assert find_secret(b"a secret value", [b"", b"nope", b"secret"]) == b"secret"
    assert find_secret(b"nothing", [b"", b"secret"]) is None
    edge = b"x" * ((1 << 20) - 3) + b"secret" + b"x" * 10
    assert find_secret_in(io.BytesIO(edge), [b"other!", b"secret"]) == b"secret"
    assert find_secret_in(io.BytesIO(edge), [b"other!", b""]) is None
    assert find_secret_in(io.BytesIO(b""), []) is None


def open_log(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def test_copied_output_is_given_back(tmp_path: Path) -> None:
    """Memory holds what is not copied yet, not all that was ever written (C78)."""
    stream = Stream(open_log(tmp_path / "log"), [b"secret"])
    for _ in range(8):
        os.write(stream.output, b"x" * (4 << 20))
        assert stream.copy()
        assert os.fstat(stream.output).st_blocks == 0
    assert not stream.copy()
    stream.finish()
    assert not stream.copy()
    assert (tmp_path / "log").stat().st_size == 32 << 20


def test_output_that_is_truncated_goes_on(tmp_path: Path) -> None:
    """A command that opens /dev/stdout anew starts over; what it writes then is not lost."""
    stream = Stream(open_log(tmp_path / "log"), [b"secret"])
    os.write(stream.output, b"before secret\n")
    stream.copy()
    anew = os.open(f"/proc/self/fd/{stream.output}", os.O_WRONLY | os.O_TRUNC)
    os.write(anew, b"after\n")
    os.close(anew)
    stream.copy()
    os.write(stream.output, b"more\n")
    stream.finish()
    assert (tmp_path / "log").read_bytes() == b"before ***\nafter\nmore\n"


def test_relay_serves_several_streams(tmp_path: Path) -> None:
    """Streams come and go; each log gets its own masked text, and no descriptor stays."""
    before = sorted(os.listdir("/proc/self/fd"))
    relay = Relay()
    streams = [relay.open(open_log(tmp_path / str(number)), [b"secret"]) for number in range(5)]
    for number, stream in enumerate(streams):
        os.write(stream.output, b"secret %d" % number)
    relay.discard(streams[0])
    for stream in streams[1:4]:
        relay.finish(stream)
    relay.close()
    assert (tmp_path / "0").read_bytes() in {b"", b"*** 0"}
    for number in range(1, 5):
        assert (tmp_path / str(number)).read_bytes() == b"*** %d" % number
    assert sorted(os.listdir("/proc/self/fd")) == before
