"""The table of allowed arrows between modules, checked against the imports that are there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PARTS = ("plans", "engine", "cli")
"""Each part may import itself and the parts before it."""

STOREYS: dict[str, tuple[str, ...]] = {
    # Pure words and decisions: no clock, no disk.
    "words": (
        *("states", "events", "keys", "admission", "graph"),
        *("columns", "migrations", "store_errors"),
    ),
    # The only modules that touch the world, one per outside thing.
    "doors": (
        *("clock", "database", "filesystem", "host_resources", "identity", "landlock"),
        *("lock_files", "network_filter", "orphans", "process", "program_lookup", "secrets"),
        *("temporary", "version_probe", "workers"),
    ),
    # What is kept in `.assay/`.
    "records": (
        *("agreements", "attempts", "blobs", "effect_marks", "effects", "journal"),
        *("known_outputs", "ownership", "pins"),
        *("results", "runs", "salvage", "secret_seal", "stat_cache", "store"),
    ),
    # Measuring and changing the workspace, one attempt from begin to settle.
    "work": (
        *("attempt", "bench", "certificate", "certify", "claims", "comparing", "compensation"),
        *("confinement", "decision", "denials", "environment", "inference", "intentions"),
        *(
            "judging",
            "kept_plans",
            "landing",
            "materialize",
            "measuring",
            "observations",
            "outputs",
        ),
        *("preimages", "private_tree", "rolling_back", "spares", "surroundings", "toolchain"),
        *("tracing", "workplace"),
    ),
    # What drives the rest: the parts of the run loop, and what is done instead of a run.
    "conductors": (
        *("agreement", "cancelling", "collection", "dispatch", "endings", "expansion", "ledger"),
        *("neighbours", "opening", "performing", "prediction", "recovery", "restoring"),
        "resumption",
        *("rewinding", "run_loop", "run_request", "run_state", "settlement", "settling"),
        *("standing", "trial", "undo_order", "undoing"),
    ),
}
"""The storeys of `engine`, lowest first: a module imports from its own storey and lower ones."""

LIBRARIES: dict[str, tuple[str, ...]] = {
    "sqlite3": ("engine/database.py",),
    "pydantic": ("plans/schema.py",),
    # `wording` puts the errors of pydantic into the words of assay.
    "pydantic_core": ("plans/schema.py", "plans/wording.py"),
    "rich": ("cli/",),
    "typer": ("cli/",),
    "click": ("cli/",),
    "pathspec": ("plans/folders.py",),
    "subprocess": ("engine/process.py", "engine/version_probe.py"),
    "ctypes": (
        "engine/landlock.py",
        "engine/network_filter.py",
        "engine/process.py",
        "engine/secrets.py",
    ),
    "asyncio": (),
    "watchfiles": (),
}
"""Who may import what; a path ending in `/` stands for every module below it."""


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted module, line) of every import in a file, wherever it stands, save those made
    for the type checker only."""
    tree = ast.parse(path.read_text(), str(path))
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.update(inner for statement in node.body for inner in ast.walk(statement))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: imports are absolute"
            assert node.module is not None
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((n if is_module(n) else node.module, node.lineno) for n in names)


def file_of(module: str) -> Path:
    return ROOT.joinpath(*module.removeprefix("assay.").split("."))


def is_module(module: str) -> bool:
    path = file_of(module)
    return module.startswith("assay.") and (path.with_suffix(".py").is_file() or path.is_dir())


def storey_of(module: str) -> int | None:
    for number, members in enumerate(STOREYS.values()):
        if module in members:
            return number
    return None


def test_parts_import_downwards_only() -> None:
    """`cli` knows `engine`, `engine` knows `plans`, and none of them knows one above it."""
    wrong = []
    for number, part in enumerate(PARTS):
        allowed = {f"assay.{name}" for name in PARTS[: number + 1]}
        for path in python_files(part):
            wrong += [
                f"{relative(path)}:{line} imports {module}"
                for module, line in imports(path)
                if module.split(".")[0] == "assay"
                and ".".join(module.split(".")[:2]) not in allowed
            ]
    assert not wrong, "\n".join(wrong)


def test_every_engine_module_has_a_storey() -> None:
    """The table names each module of the engine once, and none that is not there."""
    placed = [module for members in STOREYS.values() for module in members]
    there = [path.stem for path in python_files("engine") if path.stem != "__init__"]
    assert sorted(placed) == sorted(there)


def test_storeys_import_downwards_only() -> None:
    """A module of the engine imports from its own storey and lower ones."""
    names = list(STOREYS)
    wrong = []
    for path in python_files("engine"):
        own = storey_of(path.stem)
        for module, line in imports(path):
            other = storey_of(module.removeprefix("assay.engine."))
            if own is not None and other is not None and other > own:
                wrong.append(
                    f"{relative(path)}:{line}: {names[own]} imports {module} ({names[other]})"
                )
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other() -> None:
    """No chain of imports leads back to where it began."""
    arrows = {
        "assay." + relative(path).removesuffix(".py").replace("/", "."): {
            module for module, _ in imports(path) if is_module(module)
        }
        for path in python_files(*PARTS)
        if path.stem != "__init__"
    }
    free: set[str] = set()
    while arrows:
        leaves = {module for module, targets in arrows.items() if not (targets & arrows.keys())}
        assert leaves, "in circles: " + ", ".join(sorted(arrows))
        free |= leaves
        arrows = {module: targets for module, targets in arrows.items() if module not in leaves}


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_stay_behind_their_door(library: str) -> None:
    """A library is imported by the modules the table names and by no other."""
    wrong = [
        f"{relative(path)}:{line}"
        for path in python_files(*PARTS)
        for module, line in imports(path)
        if module.split(".")[0] == library
        and not any(
            relative(path) == door or (door.endswith("/") and relative(path).startswith(door))
            for door in LIBRARIES[library]
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_says_its_job() -> None:
    """Every module, test file and program opens with a docstring."""
    silent = [
        relative(path)
        for path in python_files(*PARTS, "tests", "docs")
        if ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not silent, "\n".join(silent)


def test_every_test_states_its_promise() -> None:
    """Every test function has a docstring."""
    silent = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in python_files("tests")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and ast.get_docstring(node) is None
    ]
    assert not silent, "\n".join(silent)
