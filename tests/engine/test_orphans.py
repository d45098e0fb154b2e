"""Finding and ending what is left of an attempt whose assay died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from probe import Probe, Probes

from assay.engine import lock_files, orphans
from assay.engine.states import AttemptId

ASSAY = """
    import os, sys
    from assay.engine.process import Processes, Spawn

    folder, attempt, *argv = sys.argv[1:]
    spawn = Spawn(attempt, tuple(argv), folder, {"ASSAY_ATTEMPT": attempt},
                  folder + "/log", folder + "/lease")
    Processes().execute(spawn, lambda pid: os.kill(os.getpid(), 9))
"""


def survivors_of(attempt: AttemptId, lease: str, session: int | None = None) -> set[int]:
    found = orphans.find_all_survivors([orphans.Trace(attempt, lease, session)])
    return set(found.get(attempt, ()))


@dataclass(frozen=True)
class Dead:
    """An attempt that lives on although its assay was killed."""

    attempt: AttemptId
    lease: str
    probe: Probe

    def found(self, *, session: bool = True) -> set[int]:
        pid = self.probe.pid if session else None
        return survivors_of(self.attempt, self.lease, pid)

    def end(self, ask_seconds: float = orphans.ASK_SECONDS) -> set[int]:
        return set(
            orphans.end_survivors(self.attempt, self.lease, self.probe.pid, ask_seconds=ask_seconds)
        )


@pytest.fixture
def dead(probes: Probes, tmp_path: Path) -> Dead:
    # /proc shows the whole machine, where other tests run: the name must be unique.
    attempt = AttemptId(f"dead-{os.getpid()}")
    script = textwrap.dedent(ASSAY)
    run = subprocess.run([sys.executable, "-c", script, tmp_path, attempt, *probes.argv("a")])
    assert run.returncode == -signal.SIGKILL
    return Dead(attempt, str(tmp_path / "lease"), probes.arrive("a"))


def test_each_sign_finds_a_process(dead: Dead) -> None:
    """A survivor is found by its environment, its session, its lease, or its parent."""
    probe = dead.probe
    pids = {probe.pid}
    assert dead.found() == pids
    pids.add(probe.fork("by environment", setsid=True, double=True, keep_files=False).pid)
    assert dead.found() == pids
    pids.add(probe.fork("by lease", setsid=True, double=True, environ={}).pid)
    assert dead.found() == pids
    by_session = probe.fork("by session", double=True, environ={}, keep_files=False)
    pids.add(by_session.pid)
    assert dead.found() == pids
    hidden = by_session.fork("by parent", setsid=True, environ={}, keep_files=False)
    hidden.detach()
    pids.add(hidden.pid)
    assert dead.found() == pids
    assert lock_files.is_held(dead.lease)


def test_session_outlives_its_leader(dead: Dead) -> None:
    """Members of the session count after the main process has ended, by that sign alone."""
    child = dead.probe.fork("child", environ={}, keep_files=False)
    dead.probe.exit()
    dead.probe.gone()
    assert not lock_files.is_held(dead.lease)
    assert dead.found(session=False) == set()
    assert dead.found() == {child.pid}


def test_a_pid_given_again_is_no_survivor(probes: Probes, tmp_path: Path) -> None:
    """A session led by a program without any sign of the attempt is someone else's."""
    with subprocess.Popen(probes.argv("other"), start_new_session=True) as other:
        probe = probes.arrive("other")
        attempt = AttemptId(f"dead-{os.getpid()}")
        lease = str(tmp_path / "lease")
        assert survivors_of(attempt, lease, other.pid) == set()
        assert orphans.end_survivors(attempt, lease, other.pid) == ()
        assert probe.is_alive
        probe.exit()


def test_survivors_are_ended(dead: Dead) -> None:
    """Every survivor is ended, the stopped, the stubborn and the hidden ones too (C64)."""
    stubborn = dead.probe.fork("stubborn", setsid=True, double=True)
    stubborn.ignore(signal.SIGTERM)
    hidden = stubborn.fork("hidden", setsid=True, environ={}, keep_files=False)
    hidden.detach()
    os.kill(dead.probe.pid, signal.SIGSTOP)
    assert dead.end() == {dead.probe.pid, stubborn.pid, hidden.pid}
    for probe in (dead.probe, stubborn, hidden):
        probe.gone()
    assert dead.found() == set()
    assert dead.end() == set()


def test_survivors_get_the_time_they_are_given(dead: Dead) -> None:
    """A survivor gets SIGTERM first, once, and may end by itself."""
    dead.probe.trap(signal.SIGTERM)
    child = os.fork()
    if child == 0:
        dead.end(ask_seconds=600)
        os._exit(0)
    assert dead.probe.heard() == signal.SIGTERM
    assert dead.probe.heard_nothing()
    dead.probe.exit()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_asker_inside_the_attempt_is_spared(tmp_path: Path) -> None:
    """An assay run by a node of the dead attempt finds itself, and does not end itself."""
    attempt = f"dead-{os.getpid()}"
    script = f"""
        import os
        from assay.engine import lock_files, orphans
        found = orphans.find_all_survivors([orphans.Trace({attempt!r}, "/nowhere")])
        assert os.getpid() in found[{attempt!r}]
        assert orphans.end_survivors({attempt!r}, "/nowhere") == ()
    """
    environ = {**os.environ, "ASSAY_ATTEMPT": attempt}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, env=environ)


def test_many_attempts_in_one_walk(dead: Dead, tmp_path: Path) -> None:
    """Several attempts are asked about at once; those without survivors are left out."""
    others = [
        orphans.Trace(AttemptId(f"none-{number}"), str(tmp_path / str(number)))
        for number in range(3)
    ]
    found = orphans.find_all_survivors([orphans.Trace(dead.attempt, dead.lease), *others])
    assert found == {dead.attempt: (dead.probe.pid,)}


def test_signals_go_to_the_process_meant(probes: Probes) -> None:
    """A signal for a process that had this pid earlier is not sent."""
    with subprocess.Popen(probes.argv("a")) as child:
        probe = probes.arrive("a")
        probe.trap(signal.SIGTERM)
        stat = orphans.read_stat(child.pid)
        assert stat is not None
        assert orphans.send(child.pid, stat.start + 1, signal.SIGTERM)
        assert probe.heard_nothing()
        assert orphans.send(child.pid, stat.start, signal.SIGTERM)
        assert probe.heard() == signal.SIGTERM
        probe.exit()
    assert orphans.send(child.pid, stat.start, signal.SIGTERM)


def test_stat_of_a_program_with_a_wild_name(tmp_path: Path) -> None:
    """A program's name may hold spaces and parentheses; a zombie is not alive."""
    program = tmp_path / "a) Z (b"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-S", "-E", "-c", "input()"], stdin=subprocess.PIPE) as child:
        stat = orphans.read_stat(child.pid)
        assert stat is not None
        assert stat.is_alive
        assert stat.parent == os.getpid()
        assert stat.session == os.getsid(0)
        assert stat.group == os.getpgid(0)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        stat = orphans.read_stat(child.pid)
        assert stat is not None
        assert not stat.is_alive
    assert orphans.read_stat(child.pid) is None
