"""Measuring: one state for what stands at a path, read once, never in the way of anyone."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from ground import Ground, open_ground, run_python

from assay.engine.measuring import Unmeasurable
from assay.engine.states import ABSENT, FOLDER
from assay.plans.model import RelPath


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with open_ground(tmp_path / "w") as ground:
        yield ground


def digest(content: bytes | str) -> str:
    return blake3(content if isinstance(content, bytes) else content.encode()).hexdigest()


def test_each_kind_of_path_has_its_own_state(ground: Ground) -> None:
    """C08: a file, an executable, a link, an empty file and a folder never look alike."""
    ground.write("plain", "x")
    ground.write("program", "x", 0o755)
    ground.write("empty", "")
    (ground.root / "folder").mkdir()
    ground.link("link", "plain")
    ground.link("dangling", "x")
    ground.link("to-folder", "folder")
    assert ground.state("plain") == f"file:{digest('x')}"
    assert ground.state("program") == f"exec:{digest('x')}"
    assert ground.state("empty") == f"file:{digest('')}"
    assert ground.state("folder") == FOLDER
    assert ground.state("link") == f"link:{digest('plain')}>file:{digest('x')}"
    assert ground.state("dangling") == f"link:{digest('x')}"
    assert ground.state("to-folder") == f"link:{digest('folder')}"
    assert ground.state("nothing") == ABSENT
    assert ground.state("plain/below") == ABSENT


def test_a_link_follows_its_target(ground: Ground) -> None:
    """C14: editing the target, its executable bit or the link itself changes the state."""
    ground.write("real", "1")
    ground.link("link", "real")
    seen = [ground.state("link")]
    ground.write("real", "2")
    seen.append(ground.state("link"))
    (ground.root / "real").chmod(0o755)
    seen.append(ground.state("link"))
    ground.write("copy", "2", 0o755)
    (ground.root / "link").unlink()
    ground.link("link", "copy")
    seen.append(ground.state("link"))
    assert len(set(seen)) == 4


def test_a_link_follows_its_target_through_the_stat_cache(ground: Ground) -> None:
    """C14: a remembered target is noticed when it changes, and a file put in the link's place."""
    ground.write("real", "1")
    ground.link("link", "real")
    ground.settle()
    before = ground.state("link")
    assert ground.state("link") == before
    ground.write("real", "2")
    assert ground.state("link") == f"link:{digest('real')}>file:{digest('2')}"
    (ground.root / "link").unlink()
    os.rename(ground.root / "real", ground.root / "link")
    assert ground.state("link") == f"file:{digest('2')}"


def test_links_in_circles_are_links_that_lead_nowhere(ground: Ground) -> None:
    """C120: loops and links to parents have a state at once and are never followed round."""
    ground.link("a", "b")
    ground.link("b", "a")
    ground.link("self", ".")
    ground.link("d/up", "..")
    assert ground.state("a") == f"link:{digest('b')}"
    assert ground.state("self") == f"link:{digest('.')}"
    assert ground.state("d/up") == f"link:{digest('..')}"
    assert ground.state("a/b/c") == ABSENT


def test_a_change_that_keeps_size_and_mtime_is_noticed(ground: Ground) -> None:
    """C10: rewritten in place with the old mtime put back."""
    place = ground.write("src", "aaa")
    ground.settle()
    first = ground.state("src")
    before = place.stat()
    place.write_text("bbb")
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = place.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert ground.state("src") == f"file:{digest('bbb')}" != first


def test_a_replacement_of_equal_size_and_mtime_is_noticed(ground: Ground) -> None:
    """C10: another file moved over it with equal size and mtime."""
    place = ground.write("src", "aaa")
    ground.settle()
    ground.state("src")
    before = place.stat()
    other = ground.write("other", "bbb")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.rename(other, place)
    assert ground.state("src") == f"file:{digest('bbb')}"


def test_a_young_stat_is_not_trusted(ground: Ground) -> None:
    """C10: what was written within the clock's tick of measuring is read again next time."""
    place = ground.write("src", "aaa")
    ground.state("src")
    assert ground.store.stats.lookup(RelPath("src"), place.stat()) is None
    ground.settle()
    ground.state("src")
    assert ground.store.stats.lookup(RelPath("src"), place.stat()) == f"file:{digest('aaa')}"


def test_names_are_taken_as_they_are(ground: Ground) -> None:
    """C121, C124: every name a file can have is measured, and look-alikes stay apart."""
    names = [
        *("a b", 'q"q', "it's", "$HOME", "[slug].ts", "*", "?", "a\nb", "tab\t", "back\\slash"),
        *("é", "e\u0301", "#x", "~", "-rf", "x" * 255, "\udcff"),
    ]
    for number, name in enumerate(names):
        ground.write(name, str(number))
    states = [ground.state(name) for name in names]
    assert states == [f"file:{digest(str(number))}" for number in range(len(names))]


@pytest.mark.parametrize("name", ["x" * 256, "x/" * 3000 + "x", "a\0b", "\ud800"])
def test_names_no_file_can_have_are_absent(ground: Ground, name: str) -> None:
    """A name the system refuses stands for nothing, without a traceback."""
    assert ground.state(name) == ABSENT


def test_special_files_are_refused_at_once(ground: Ground) -> None:
    """A pipe, a socket and a device are named as what they are; nobody waits for a writer."""
    os.mkfifo(ground.root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(ground.root)  # Paths of sockets are short.
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        reasons = ground.measurer.states_of([RelPath("pipe"), RelPath("socket")])[1]
    assert reasons == {"pipe": "is a named pipe", "socket": "is a socket"}
    ground.link("to-pipe", "pipe")
    ground.link("null", "/dev/null")
    assert ground.state("to-pipe") == f"link:{digest('pipe')}"
    assert ground.state("null") == f"link:{digest('/dev/null')}"


def test_what_may_not_be_read_has_a_reason(ground: Ground) -> None:
    """An unreadable file, one in a closed folder and a link to one are each explained."""
    ground.write("secret", "x", 0o000)
    ground.write("closed/file", "x")
    ground.link("link", "secret")
    (ground.root / "closed").chmod(0o000)
    code = """if True:
        import sys
        from pathlib import Path
        from ground import open_ground
        with open_ground(Path(sys.argv[1])) as ground:
            states, reasons = ground.measurer.states_of(["secret", "closed/file", "link"])
        print(states, *reasons.items(), sep="\\n")
    """
    done = run_python(code, str(ground.root), obeys_modes=True)
    (ground.root / "closed").chmod(0o755)
    assert done.stdout.splitlines() == [
        "{}",
        "('secret', 'cannot be read: permission denied')",
        "('closed/file', 'cannot be reached: permission denied')",
        "('link', 'cannot be read: permission denied')",
    ], done.stderr


def test_a_file_that_never_holds_still_is_refused(ground: Ground) -> None:
    """Written to and cut short while it is read: a reason, no made-up digest, no crash."""
    place = ground.write("log", b"x" * (16 << 20))
    stop = threading.Event()

    def disturb() -> None:
        with open(place, "r+b", buffering=0) as file:
            size = 16 << 20
            while not stop.is_set():
                size -= 4096
                file.truncate(size)
                file.truncate(16 << 20)

    writer = threading.Thread(target=disturb)
    writer.start()
    try:
        with pytest.raises(Unmeasurable, match="`log` changes while it is read"):
            ground.state("log")
    finally:
        stop.set()
        writer.join()
    assert ground.state("log").startswith("file:")


@pytest.mark.parametrize(
    "size", [0, 1, 2048, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 8 << 20, (8 << 20) + 3]
)
def test_files_of_every_size_are_digested_whole(ground: Ground, size: int) -> None:
    """The digest is that of all bytes, whichever way a file of that size is read."""
    content = os.urandom(size)
    ground.write("file", content)
    assert ground.state("file") == f"file:{digest(content)}"


def test_many_paths_are_measured_as_each_would_be(ground: Ground) -> None:
    """Large files side by side, and what cannot be measured does not hold up the rest."""
    paths = []
    for number in range(5):
        ground.write(f"large{number}", os.urandom(5 << 20))
        ground.write(f"small{number}", str(number))
        paths += [RelPath(f"large{number}"), RelPath(f"small{number}")]
    os.mkfifo(ground.root / "pipe")
    states, reasons = ground.measurer.states_of([*paths, RelPath("pipe"), RelPath("none")])
    assert [states[path] for path in paths] == [ground.state(path) for path in paths]
    assert states[RelPath("none")] == ABSENT
    assert reasons == {"pipe": "is a named pipe"}


def test_a_tool_is_known_by_its_content(ground: Ground, tmp_path: Path) -> None:
    """Through links, wherever it lies; remembered by its stat; a missing one has a reason."""
    tool = tmp_path / "cc-12"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path / "cc").symlink_to(tool)
    ground.settle()
    cc = str(tmp_path / "cc")
    assert ground.measurer.tool_digest(cc) == digest("#!/bin/sh\n")
    known = ground.store.stats.lookup(RelPath(cc), tool.stat())
    assert known == f"exec:{digest('#!/bin/sh' + chr(10))}"
    tool.write_text("#!/bin/bash\n")
    assert ground.measurer.tool_digest(cc) == digest("#!/bin/bash\n")
    with pytest.raises(Unmeasurable, match="does not exist"):
        ground.measurer.tool_digest(str(tmp_path / "ld"))
    with pytest.raises(Unmeasurable, match="is a folder"):
        ground.measurer.tool_digest(str(tmp_path))
