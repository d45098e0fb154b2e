"""Large graphs end, with the right answers and without a process too many.

How long they take is nobody's business here: a machine is slow or quick.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
from workspace import ASSAY, Finished, Workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def write_plan(workspace: Workspace, nodes: dict[str, Any]) -> None:
    """A plan of many nodes as JSON, which is read faster than TOML is."""
    workspace.write("plan.json", json.dumps({"name": "large", "nodes": nodes}))


def run(workspace: Workspace, *words: str) -> dict[str, int]:
    """Runs the large plan and returns its counts."""
    return workspace.run("plan.json", *words).counts


def run_traced(workspace: Workspace, *words: str) -> dict[str, int]:
    """The same under strace; fails the test when anything but threads was started."""
    if shutil.which("strace") is None:
        return run(workspace, *words)
    trace = workspace.root.parent / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=execve,fork,vfork,clone,clone3"]
    command += [str(ASSAY), "run", "--json", "plan.json", *words]
    done = subprocess.run(command, cwd=workspace.root, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    starts = [
        line
        for line in trace.read_text().splitlines()
        if re.search(r"\b(execve|v?fork|clone3?)\(", line) and "CLONE_THREAD" not in line
    ]
    assert len(starts) == 1, starts  # assay itself
    return Finished(done.returncode, done.stdout, done.stderr).counts


def test_ten_thousand_nodes_then_nothing_to_do(workspace: Workspace) -> None:
    """10,000 nodes that copy a file are built once; afterwards no command is started."""
    workspace.write("src/seed", "seed\n")
    started = workspace.root.parent / "started"
    # Layers of 100: every node of a layer reads the one in its column of the layer before.
    nodes: dict[str, Any] = {}
    for layer in range(100):
        workspace.path(f"out/{layer}").mkdir(parents=True)
        for column in range(100):
            source = f"out/{layer - 1}/{column}" if layer else "src/seed"
            target = f"out/{layer}/{column}"
            nodes[f"n{layer}-{column}"] = {
                "run": ["/bin/cp", source, target],
                "reads": [source],
                "writes": [target],
            }
    # One of them tells when it is run.
    nodes["n50-50"]["run"] = f"echo x >> {started}; cp out/49/50 out/50/50"
    write_plan(workspace, nodes)

    assert run(workspace) == {"built": 10_000}
    assert run(workspace) == {"clean": 10_000}
    assert run_traced(workspace) == {"clean": 10_000}
    assert started.read_text() == "x\n"
    assert workspace.read("out/99/99") == "seed\n"

    # One column is rebuilt when its head changes, and one deleted file comes back.
    workspace.path("out/10/10").unlink()
    assert run(workspace) == {"clean": 10_000}
    assert workspace.read("out/10/10") == "seed\n"


def test_hundred_thousand_nodes_compile(workspace: Workspace) -> None:
    """A chain of 50,000 nodes beside 50,000 independent ones is checked without recursion."""
    nodes = {f"c{n}": {"run": ["true"], "after": [f"c{n - 1}"]} for n in range(1, 50_000)}
    nodes["c0"] = {"run": ["true"], "after": []}
    nodes |= {f"i{n}": {"run": ["true"]} for n in range(50_000)}
    write_plan(workspace, nodes)
    done = workspace.assay("check", "plan.json")
    assert done.code == 0, done.err
    assert not workspace.path(".assay").exists()


def test_hundred_thousand_nodes_in_a_circle_are_refused(workspace: Workspace) -> None:
    """C50: a cycle 100,000 nodes long is an error of the plan, not a crash."""
    nodes = {f"c{n}": {"run": ["true"], "after": [f"c{n - 1}"]} for n in range(1, 100_000)}
    nodes["c0"] = {"run": ["true"], "after": ["c99999"]}
    write_plan(workspace, nodes)
    done = workspace.assay("check", "plan.json")
    assert done.code == 2
    assert "c0" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(("jobs", "width"), [(1, 5_000), (4, 20_000), (200, 20_000)])
def test_wide_join(workspace: Workspace, jobs: int, width: int) -> None:
    """C52: up to 20,000 independent nodes and one that follows them all settle; when all are up
    to date no process is started, however many may run at once."""
    workspace.write("in", "1\n")
    started = workspace.root.parent / "started"
    nodes: dict[str, Any] = {
        f"n{n}": {"run": ["/bin/true"], "reads": ["in"], "env": {"N": n}} for n in range(width)
    }
    nodes["join"] = {"run": f"echo x >> {started}", "reads": ["in"], "after": ["n*"]}
    write_plan(workspace, nodes)
    assert run(workspace, "-j", str(jobs)) == {"built": width + 1}
    assert run_traced(workspace, "-j", str(jobs)) == {"clean": width + 1}
    assert started.read_text() == "x\n"
