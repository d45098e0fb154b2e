"""Locks between processes: taken, waited for, probed, removed."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import pytest
from store_rows import finish, start_python

from assay.engine import lock_files
from assay.engine.lock_files import HeldElsewhere

HOLD = """
import sys
from assay.engine import lock_files
lock = lock_files.take(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
lock.release(remove=len(sys.argv) > 2)
"""

WAIT = """
import sys
from assay.engine import lock_files
try:
    print("waits", flush=True)
    with lock_files.wait_for(sys.argv[1]) as lock:
        print("has", __import__("os").path.exists(sys.argv[1]), flush=True)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    """Probing never takes it away, and needs no file to be there."""
    path = str(tmp_path / "lock")
    assert not lock_files.is_held(path)
    lock = lock_files.take(path)
    assert lock_files.is_held(path)
    with pytest.raises(HeldElsewhere):
        lock_files.take(path)
    assert lock_files.is_held(path)
    lock.release()
    assert not lock_files.is_held(path)
    assert os.path.exists(path)


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    """Killed, it holds nothing any more; children that are executed inherit nothing."""
    path = str(tmp_path / "lock")
    holder = start_python(HOLD, path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert lock_files.is_held(path)
    holder.kill()
    holder.communicate()
    with lock_files.take(path) as lock:
        assert not os.get_inheritable(lock.descriptor)


@pytest.mark.parametrize("removes", [False, True])
def test_whoever_waits_gets_a_lock_that_has_a_name(tmp_path: Path, removes: bool) -> None:
    """A file its holder removes is no lock any more: the waiter makes a new one."""
    path = str(tmp_path / "lock")
    holder = start_python(HOLD, path, *(["remove"] if removes else []))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    waiters = [start_python(WAIT, path) for _ in range(3)]
    for waiter in waiters:
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == "waits\n"
    finish(holder, "go\n")
    for waiter in waiters:
        assert finish(waiter) == "has True\n"


def test_waiting_can_be_interrupted(tmp_path: Path) -> None:
    """C74: Ctrl-C ends the waiter, not the holder."""
    path = str(tmp_path / "lock")
    with lock_files.take(path):
        waiter = start_python(WAIT, path)
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == "waits\n"
        waiter.send_signal(signal.SIGINT)
        assert finish(waiter) == "interrupted\n"
        assert lock_files.is_held(path)


def test_a_link_is_never_followed(tmp_path: Path) -> None:
    """A lock file that someone replaced by a link leads nowhere."""
    (tmp_path / "lock").symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        lock_files.take(str(tmp_path / "lock"))
    assert not lock_files.is_held(str(tmp_path / "lock"))
    assert not (tmp_path / "elsewhere").exists()


def test_asking_holds_nobody_up(tmp_path: Path) -> None:
    """Two who ask at the same time do not take each other for the holder."""
    path = tmp_path / "lease"
    assert not lock_files.is_held(str(path))
    path.touch()
    with path.open() as asker:
        fcntl.flock(asker, fcntl.LOCK_SH)
        assert not lock_files.is_held(str(path))
