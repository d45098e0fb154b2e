"""What the kernel lets a thread reach: real rules on real files."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from held import needs_landlock

from assay.engine.landlock import (
    READ,
    WRITE,
    Access,
    Domain,
    Rule,
    Support,
    call_within,
    enter,
    find_fault,
    find_support,
)

pytestmark = needs_landlock


def allowed(rules: list[Rule], action: Callable[[], object], *, network: bool = False) -> bool:
    """Whether the kernel lets a thread with these rules do it."""
    try:
        call_within(Domain(tuple(rules), network), lambda: action() and None)
    except PermissionError:
        return False
    except OSError as error:
        if error.errno == errno.EXDEV:  # what it says of a move that widens rights
            return False
        raise
    return True


def test_nothing_is_allowed_without_a_rule(tmp_path: Path) -> None:
    """No file is read, listed, written or made; to look at it is not restricted."""
    (tmp_path / "f").write_text("f")
    assert not allowed([], (tmp_path / "f").read_text)
    assert not allowed([], lambda: os.listdir(tmp_path))
    assert not allowed([], lambda: (tmp_path / "f").write_text("g"))
    assert not allowed([], (tmp_path / "new").touch)
    assert not allowed([], lambda: os.truncate(tmp_path / "f", 0))
    assert allowed([], lambda: os.stat(tmp_path / "f"))
    assert (tmp_path / "f").read_text() == "f"


def test_rule_on_a_folder_covers_all_below(tmp_path: Path) -> None:
    """Reading and writing, at any depth, and what is made later."""
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/f").write_text("f")
    rules = [Rule(f"{tmp_path}/a", READ)]
    assert allowed(rules, (tmp_path / "a/b/f").read_text)
    assert allowed(rules, lambda: os.listdir(tmp_path / "a/b"))
    assert not allowed(rules, lambda: (tmp_path / "a/b/f").write_text("g"))
    assert not allowed(rules, lambda: os.listdir(tmp_path))
    rules = [Rule(f"{tmp_path}/a", READ | WRITE)]

    def work() -> None:
        (tmp_path / "a/new").mkdir()
        (tmp_path / "a/new/f").write_text("new")
        os.rename(tmp_path / "a/new/f", tmp_path / "a/b/g")
        os.symlink("g", tmp_path / "a/b/link")
        os.unlink(tmp_path / "a/b/f")
        os.rmdir(tmp_path / "a/new")
        assert (tmp_path / "a/b/link").read_text() == "new"

    assert allowed(rules, work)
    assert sorted(os.listdir(tmp_path / "a/b")) == ["g", "link"]


def test_rule_on_a_file_is_of_that_file(tmp_path: Path) -> None:
    """Its neighbours are not covered, and what folders alone can have is left out."""
    for name in ("f", "g"):
        (tmp_path / name).write_text(name)
    rules = [Rule(f"{tmp_path}/f", READ | WRITE)]
    assert allowed(rules, lambda: (tmp_path / "f").write_text("new"))
    assert not allowed(rules, (tmp_path / "g").read_text)
    assert not allowed(rules, lambda: os.unlink(tmp_path / "f"))
    # Of which nothing is left for a file.
    assert not allowed([Rule(f"{tmp_path}/f", Access.LIST)], (tmp_path / "f").read_text)


def test_moving_does_not_widen(tmp_path: Path) -> None:
    """What may only be read is not moved to, nor given a second name, where it may be written."""
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in/f").write_text("f")
    rules = [Rule(f"{tmp_path}/in", READ), Rule(f"{tmp_path}/out", READ | WRITE)]
    assert not allowed(rules, lambda: os.link(tmp_path / "in/f", tmp_path / "out/f"))
    assert not allowed(rules, lambda: os.rename(tmp_path / "in/f", tmp_path / "out/f"))
    assert os.listdir(tmp_path / "out") == []


def test_links_and_what_is_not_there_allow_nothing(tmp_path: Path) -> None:
    """A rule is of what stands at its path itself."""
    (tmp_path / "f").write_text("f")
    (tmp_path / "link").symlink_to("f")
    rules = [Rule(f"{tmp_path}/link", READ), Rule(f"{tmp_path}/none/f", READ)]
    rules.append(Rule(f"{tmp_path}/f/below", READ))
    assert not allowed(rules, (tmp_path / "link").read_text)
    assert allowed([Rule(f"{tmp_path}/f", READ)], (tmp_path / "link").read_text)


def test_other_threads_are_free(tmp_path: Path) -> None:
    """A domain is of the thread and of what that starts, for good; nobody else notices."""
    (tmp_path / "f").write_text("f")
    seen: list[object] = []

    def start() -> None:
        argv = ["/bin/sh", "-c", 'if cat "$0"; then exit 1; else exit 9; fi', f"{tmp_path}/f"]
        done = subprocess.run(argv, capture_output=True)
        seen.append(done.returncode)
        with pytest.raises(PermissionError):
            (tmp_path / "f").read_text()

    everything = [Rule(f"/{name}", READ) for name in os.listdir("/") if name != "tmp"]
    devices = [Rule("/dev", READ | Access.WRITE_FILE)]
    call_within(Domain((*everything, *devices), network=False), start)
    assert seen == [9]
    assert (tmp_path / "f").read_text() == "f"


def test_entering_twice_only_narrows(tmp_path: Path) -> None:
    """Nobody gets out of a domain by entering another one."""
    (tmp_path / "f").write_text("f")

    def again() -> None:
        enter(Domain((Rule("/", READ | WRITE),), network=True))
        (tmp_path / "f").read_text()

    assert not allowed([], again)


def test_what_the_action_raises_comes_back() -> None:
    """Whatever it is, on the caller's thread, which is as free as before."""

    def fail() -> None:
        raise LookupError(threading.current_thread().name)

    with pytest.raises(LookupError, match="assay-confined"):
        call_within(Domain((), network=True), fail)
    os.listdir("/")


@pytest.mark.skipif(not find_support().holds_tcp, reason="this kernel does not hold TCP")
def test_tcp() -> None:
    """Connecting and binding are refused without `network`; sockets of files are not."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def connect() -> None:
            with socket.socket() as made:
                made.connect(server.getsockname())

        def bind() -> None:
            with socket.socket() as made:
                made.bind(("127.0.0.1", 0))

        for action in (connect, bind):
            assert not allowed([], action)
            assert allowed([], action, network=True)
    assert allowed([], lambda: [each.close() for each in socket.socketpair()])


@pytest.mark.skipif(not find_support().holds_processes, reason="this kernel holds no signals")
@pytest.mark.parametrize("network", [False, True])
def test_signals(network: bool) -> None:
    """Processes outside are not signalled, its own are."""
    with subprocess.Popen(["sleep", "1000"]) as other:
        assert not allowed([], lambda: os.kill(other.pid, 0), network=network)
        assert not allowed([], lambda: os.kill(os.getppid(), 0), network=network)
        other.kill()


@pytest.mark.parametrize(
    ("abi", "files", "tcp", "processes"),
    [
        (0, False, False, False),
        (2, False, False, False),
        (3, True, False, False),
        (4, True, True, False),
        (5, True, True, False),
        (6, True, True, True),
    ],
)
def test_support_by_version(abi: int, files: bool, tcp: bool, processes: bool) -> None:
    """What each version of the kernel's interface can hold."""
    support = Support(abi)
    assert (support.holds_files, support.holds_tcp, support.holds_processes) == (
        files,
        tcp,
        processes,
    )


def test_fault_is_looked_for_where_it_counts(tmp_path: Path) -> None:
    """None on a disk that is held, where nothing is left of the trial."""
    assert find_fault(str(tmp_path)) is None
    assert os.listdir(tmp_path) == []
    none = f"{tmp_path}/none"
    assert find_fault(none) == f"`{none}` cannot be listed: no such file or directory"


def test_many_rules(tmp_path: Path) -> None:
    """Thousands of rules are no trouble, and leave no descriptor open."""
    rules = []
    for number in range(2000):
        (tmp_path / str(number)).touch()
        rules.append(Rule(f"{tmp_path}/{number}", READ))
    before = len(os.listdir("/proc/self/fd"))
    assert allowed(rules, (tmp_path / "1999").read_text)
    assert len(os.listdir("/proc/self/fd")) == before
