"""Where nothing can be recorded, nodes run all the same, under one warning."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from signal import SIGKILL

import pytest
from counted import Counted, warnings
from workspace import ASSAY, Finished


def in_namespace(counted: Counted, script: str) -> Finished:
    """Runs a script in the workspace where it may mount; `assay` is `$0`."""
    unshare = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this machine has no namespaces for users")
    done = subprocess.run(
        [*unshare, "sh", "-ec", script, str(ASSAY)],
        cwd=counted.root,
        text=True,
        capture_output=True,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def in_full_store(counted: Counted, size: str, script: str) -> Finished:
    """As `in_namespace`, with a file system of this size as `.assay`."""
    counted.path(".assay").mkdir(mode=0o700)
    mount = f"mount -t tmpfs -o size={size},mode=700 none .assay; "
    return in_namespace(counted, mount + script)


def test_read_only_workspace(counted: Counted) -> None:
    """C90: in a workspace that cannot be written, checks run, unrecorded, with one warning;
    commands that ask work."""
    counted.write("src", "fine\n")
    counted.plan({"check": {"run": "grep fine src", "reads": ["src"]}, "more": {"run": "true"}})
    here = shlex.quote(str(counted.root))
    done = in_namespace(
        counted,
        f"mount --bind {here} {here}; mount -o remount,ro,bind {here}; cd {here};"
        ' "$0" run --json; "$0" check >&2; "$0" plan >&2',
    )
    assert done.code == 0, done.err
    assert done.counts == {"built": 2}
    assert len(warnings(done).splitlines()) == 1
    assert "Traceback" not in done.err
    assert not counted.path(".assay").exists()


def test_store_that_was_made_by_another_user(counted: Counted) -> None:
    """C90: a recorded store that cannot be written any more can still be read, and runs go on
    without it."""
    counted.plan({"a": {"run": "echo 1 > o", "writes": ["o"]}})
    counted.ran()
    done = in_namespace(
        counted,
        "mount --bind .assay .assay; mount -o remount,ro,bind .assay;"
        ' "$0" run --json --fresh; "$0" show >&2; "$0" why a >&2; "$0" runs >&2',
    )
    assert done.code == 0, done.err
    assert done.counts == {"built": 1}
    assert len(warnings(done).splitlines()) == 1
    assert counted.ran() == []


def test_disk_too_full_for_an_output(counted: Counted) -> None:
    """C89: what does not fit into the store is not stored, and nothing else is amiss: the node
    and its readers succeed, and later runs execute it again until there is room."""
    counted.plan(
        {
            "a": {"run": "head -c 5000000 /dev/zero > o", "writes": ["o"]},
            "b": {"run": "wc -c < o > p", "reads": ["o"], "writes": ["p"]},
        }
    )
    done = in_full_store(
        counted,
        "4m",
        '"$0" run --json; find .assay/cas .assay/tmp -type f >&2; rm o; "$0" run -q;'
        ' mount -o remount,size=40m .assay; "$0" run -q; rm o; "$0" run -q;',
    )
    assert done.code == 0, done.err
    assert done.counts == {"built": 2}
    assert "its result is not cached" in warnings(done)
    left = [line for line in done.err.splitlines() if line.startswith(".assay/tmp")]
    assert [line for line in left if not line.endswith((".lock", ".lease"))] == []
    assert counted.executions == ["a", "b", "a", "a"]
    assert counted.read("p").strip() == "5000000"


@pytest.mark.parametrize("size", ["200k", "64k", "4k"])
def test_disk_too_full_to_record_anything(counted: Counted, size: str) -> None:
    """C89: when the journal finds no room the run goes on unrecorded, with one warning that
    says so, and its exit status is that of the nodes."""
    nodes = {f"n{i}": {"run": f"echo {i} > o{i}", "writes": [f"o{i}"]} for i in range(40)}
    counted.plan(nodes)
    done = in_full_store(counted, size, '"$0" run --json -j4')
    assert done.code == 0, done.out + done.err
    assert done.counts == {"built": 40}
    assert "Traceback" not in done.err
    unrecorded = [line for line in warnings(done).splitlines() if "not recorded" in line]
    assert len(unrecorded) == 1, warnings(done)


def test_disk_that_fills_up_under_a_formatter(counted: Counted) -> None:
    """C89: a node that rewrites its input runs although the store has no room for a copy."""
    counted.plan({"fmt": {"run": "echo 1 >> f", "reads": ["f"], "writes": ["f"]}})
    counted.write("f", "x" * 3_000_000)
    done = in_full_store(counted, "2m", '"$0" run --json')
    assert done.code == 0, done.out + done.err
    assert done.counts == {"built": 1}
    assert counted.read("f").endswith("x1\n")


def test_unrecorded_run_keeps_what_it_was_told(counted: Counted, tmp_path: Path) -> None:
    """An unrecorded run that fails says where its logs are, in the system's temporary folder."""
    counted.plan({"a": {"run": "echo why; exit 3"}})
    here = shlex.quote(str(counted.root))
    done = in_namespace(
        counted,
        f"mount --bind {here} {here}; mount -o remount,ro,bind {here}; cd {here};"
        f' export TMPDIR={shlex.quote(str(tmp_path))}; "$0" run --json || echo "exit $?" >&2',
    )
    assert done.err == "exit 1\n"
    [event] = [e for e in map(json.loads, done.out.splitlines()) if e["event"] == "node-settled"]
    assert Path(event["log"]).read_text() == "why\n"
    assert Path(event["log"]).is_relative_to(tmp_path)


def test_cancel_where_the_store_cannot_be_written(counted: Counted) -> None:
    """C90: what cannot be asked of a run is said, with another way, and the exit status is that
    of the host."""
    counted.plan({"a": {"run": "kill -9 $PPID"}})
    assert counted.assay("run").code == -SIGKILL
    here = shlex.quote(str(counted.root))
    done = in_namespace(
        counted,
        f'mount --bind {here} {here}; mount -o remount,ro,bind {here}; cd {here}; "$0" cancel last',
    )
    assert done.code == 5
    assert "cannot be written, so run" in done.err
    assert "hint: `kill " in done.err
