"""check, plan, init, schema and doctor."""

from __future__ import annotations

import json
import os
import tomllib

import pytest
from workspace import Workspace

from assay.cli.commands.cache import parse_size
from assay.cli.commands.doctor import find_file_system
from assay.cli.commands.init import propose_nodes


def test_check_of_a_good_plan(workspace: Workspace) -> None:
    """A plan without faults is one line, exit 0."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\n[nodes.b]\nrun = "true"\n')

    done = workspace.assay("check")

    assert (done.code, done.out, done.err) == (0, "plan.toml: 2 nodes, no errors\n", "")
    assert json.loads(workspace.assay("check", "--json").out) == {"ok": True, "diagnostics": []}


def test_check_lists_all_errors_in_file_order(workspace: Workspace) -> None:
    """C131 Every error of the file is reported in one go, with its line."""
    workspace.write(
        "plan.toml",
        '[nodes.a]\nrun = "true"\ntimout = "1s"\n\n[nodes.b]\nrun = "true"\npriority = "high"\n',
    )

    done = workspace.assay("check")
    assert done.code == 2
    assert done.err.count("error: ") == 2
    assert done.err.index("plan.toml:3:1") < done.err.index("plan.toml:7:12")

    told = json.loads(workspace.assay("check", "--json").out)
    assert told["ok"] is False
    assert [(each["file"], each["line"]) for each in told["diagnostics"]] == [
        ("plan.toml", 3),
        ("plan.toml", 7),
    ]


def test_check_warns_and_passes(workspace: Workspace) -> None:
    """C49 A glob that matches nothing is a warning, not an error."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\nreads = ["src/*.c"]\n')

    done = workspace.assay("check")

    assert done.code == 0
    assert done.out == "plan.toml: 1 node, 1 warning\n"
    assert done.err.startswith("warning: ")
    assert "plan.toml:3:10" in done.err


def test_check_of_a_file_that_is_no_plan(workspace: Workspace) -> None:
    """A word that names no plan file is refused with how a plan is named."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\n')
    done = workspace.assay("check", "plan.yaml")
    assert done.code == 2
    assert "`plan.yaml` is no plan file" in done.err

    missing = workspace.assay("check", "other.toml")
    assert missing.code == 2
    assert "other.toml" in missing.err


def test_errors_are_annotated_on_github(workspace: Workspace) -> None:
    """C81 In GitHub Actions a plan error is an annotation at its line."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\ntimout = "1s"\n')

    done = workspace.assay("check", env={"GITHUB_ACTIONS": "true"})

    assert "\n::error file=plan.toml,line=3,col=1::" in done.err


def test_plan_is_shown_in_every_format(workspace: Workspace) -> None:
    """Tree, JSON, DOT and Mermaid show the same plan."""
    workspace.write(
        "plan.toml",
        'name = "site"\n'
        '[nodes.gen]\nrun = "true"\nwrites = ["mid"]\n'
        '[nodes.use]\nrun = "true"\nreads = ["mid"]\n',
    )

    assert workspace.assay("plan").out == "site  plan.toml  2 nodes\nuse\n└── gen\n"
    assert workspace.assay("plan", "gen").out == "site  plan.toml  1 node\ngen\n"
    told = json.loads(workspace.assay("plan", "--format", "json").out)
    assert [each["name"] for each in told["nodes"]] == ["gen", "use"]
    assert workspace.assay("plan", "--format", "dot").out.startswith('digraph "site" {\n')
    assert workspace.assay("plan", "--format", "mermaid").out == (
        'flowchart LR\n  n0["gen"]\n  n1["use"]\n  n0 --> n1\n'
    )


def test_init_writes_a_plan_that_runs(workspace: Workspace) -> None:
    """`init` in an empty folder gives a plan that works as it is, and never overwrites."""
    done = workspace.assay("init")
    assert (done.code, done.err) == (0, "")
    assert workspace.assay("run").code == 0
    assert workspace.read("hello.txt") == "hello\n"

    before = workspace.read("plan.toml")
    again = workspace.assay("init")
    assert again.code == 2
    assert again.err.startswith("error: `plan.toml` exists already\n")
    assert workspace.read("plan.toml") == before


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        ({"pyproject.toml": "", "src/a.py": "", "tests/test_a.py": ""}, {"test"}),
        ({"package.json": '{"scripts": {"build": "x", "test": "y"}}'}, {"build", "test"}),
        ({"package.json": "broken"}, set()),
        ({"Makefile": "all:\n"}, {"make"}),
        ({"Cargo.toml": "", "src/main.rs": ""}, {"test"}),
        ({"go.mod": "", "main.go": ""}, {"test"}),
        ({"pyproject.toml": "", "Makefile": ""}, {"test", "make"}),
    ],
)
def test_init_proposes_what_fits(
    workspace: Workspace, files: dict[str, str], nodes: set[str]
) -> None:
    """Known kinds of projects get nodes of their own, and the plan is in order."""
    for name, text in files.items():
        workspace.write(name, text)

    proposed = tomllib.loads(propose_nodes(str(workspace.root))).get("nodes", {})

    assert set(proposed) == nodes
    workspace.assay("init")
    done = workspace.assay("check")
    assert done.code == 0, done.err


def test_schema_is_json(workspace: Workspace) -> None:
    """`schema` prints the JSON Schema of the plan file."""
    schema = json.loads(workspace.assay("schema").out)

    assert "nodes" in schema["properties"]


def test_doctor_says_what_is_there(workspace: Workspace) -> None:
    """Each line is ok, warn or fail; nothing is created."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\n')

    done = workspace.assay("doctor")

    assert done.code == 0, done.out
    verdicts = [line.split()[0] for line in done.out.splitlines() if not line.startswith(" ")]
    assert set(verdicts) <= {"ok", "warn"}
    assert len(verdicts) >= 10
    assert os.listdir(workspace.root) == ["plan.toml"]
    names = [each["name"] for each in json.loads(workspace.assay("doctor", "--json").out)]
    assert "store" in names


def test_doctor_finds_a_damaged_store(workspace: Workspace) -> None:
    """C87 A database that is damaged is a failure with the way on, never to delete `.assay/`."""
    workspace.write("plan.toml", '[nodes.a]\nrun = "true"\n')
    workspace.run()
    workspace.path(".assay/assay.db").write_bytes(b"no database at all" * 1000)

    done = workspace.assay("doctor")

    assert done.code == 5
    assert "\nfail  store " in done.out
    assert "assay cache verify" in done.out
    assert "Traceback" not in done.err


def test_file_system_is_named() -> None:
    """The mount table tells the type of the file system below a path."""
    assert find_file_system("/proc/self") == "proc"


def test_sizes_are_powers_of_1024() -> None:
    """`10G` is 10 GiB, however it is written."""
    assert [parse_size(text) for text in ("4096", "1k", "1.5MiB", "10G", "2TB")] == [
        4096,
        1024,
        3 << 19,
        10 << 30,
        2 << 40,
    ]
