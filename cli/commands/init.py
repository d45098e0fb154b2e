"""`assay init`: writes a first plan.toml, with nodes that fit what lies in the folder.

Does not overwrite anything, and runs nothing.
"""

from __future__ import annotations

import json
import os

from assay.cli.call import Call
from assay.cli.errors import ExitCode, UsageError
from assay.cli.location import PLAN_FILE, current_folder

_HEAD = """\
# What assay runs here. `assay run` executes the nodes whose inputs changed and serves
# the others from the cache; `assay why NODE` says why; `assay check` checks this file.
"""

_HELLO = """
[nodes.hello]
run = "echo hello > hello.txt"
writes = ["hello.txt"]
# reads = ["src/**"]         # what it depends on: files, folders/, globs
# after = ["other"]          # what must come first; what it reads is waited for anyway
"""

_MAKE = """
[nodes.make]
run = ["make"]
cache = false                # make decides itself what is out of date
"""

_PYTHON_TEST = """
[nodes.test]
run = ["python3", "-m", "pytest", "-q"]
reads = [{reads}]
cache = true                 # run again only when what it reads has changed
"""

_NODE = """
[nodes.{name}]
run = ["npm", "run", "{script}"]
reads = ["package.json", "{sources}"]
cache = true                 # run again only when what it reads has changed
"""

_CARGO = """
[nodes.test]
run = ["cargo", "test", "--quiet"]
reads = ["Cargo.toml", "src/**"]
cache = true                 # run again only when what it reads has changed
pass_env = ["CARGO_*", "RUSTUP_*"]
"""

_GO = """
[nodes.test]
run = ["go", "test", "./..."]
reads = ["go.mod", "**/*.go"]
cache = true                 # run again only when what it reads has changed
pass_env = ["GO*"]
"""


def perform(call: Call) -> int:
    folder = current_folder()
    nodes = propose_nodes(folder)
    path = os.path.join(folder, PLAN_FILE)
    try:
        # "x": whoever writes one at the same moment keeps theirs.
        with open(path, "x", encoding="utf-8") as file:
            file.write(_HEAD + (nodes or _HELLO))
    except FileExistsError:
        raise UsageError(
            f"`{PLAN_FILE}` exists already", hint="`assay check` says whether it is in order"
        ) from None
    call.out.write(f"wrote {PLAN_FILE}; `assay run` runs it\n")
    return ExitCode.DONE


def propose_nodes(folder: str) -> str:
    """Nodes in plan-file form for the kinds of project that are recognised, at most one
    per name; empty when none is."""
    there = {entry.name for entry in os.scandir(folder)}
    nodes: dict[str, str] = {}
    if "pyproject.toml" in there or "setup.py" in there:
        nodes.setdefault("test", _python_test(there))
    if "package.json" in there:
        for name, text in _package_scripts(folder, there).items():
            nodes.setdefault(name, text)
    if "Cargo.toml" in there:
        nodes.setdefault("test", _CARGO)
    if "go.mod" in there:
        nodes.setdefault("test", _GO)
    if there & {"Makefile", "makefile", "GNUmakefile"}:
        nodes.setdefault("make", _MAKE)
    return "".join(nodes.values())


def _python_test(there: set[str]) -> str:
    named = [name for name in ("pyproject.toml", "setup.py") if name in there]
    folders = [f"{name}/**/*.py" for name in ("src", "tests", "test") if name in there]
    reads = named + (folders or ["**/*.py"])
    return _PYTHON_TEST.format(reads=", ".join(f'"{each}"' for each in reads))


def _package_scripts(folder: str, there: set[str]) -> dict[str, str]:
    try:
        with open(os.path.join(folder, "package.json"), encoding="utf-8") as file:
            package = json.load(file)
    except (OSError, ValueError):
        return {}
    scripts = package.get("scripts") if isinstance(package, dict) else None
    sources = "src/**" if "src" in there else "*.js"
    return {
        name: _NODE.format(name=name, script=name, sources=sources)
        for name in ("build", "test", "lint")
        if isinstance(scripts, dict) and name in scripts
    }
