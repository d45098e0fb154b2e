"""The documentation is true: its examples are executed and its tables are complete.

In README.md and docs/*.md a fenced block

- with `title=NAME` after the language is written to the file NAME;
- of language `console` is executed: a line `$ COMMAND` by bash, which must exit with 0, and
  the lines up to the next command are everything it prints. A line `...` stands for any
  lines, `...` within a line for any text;
- of language `toml` without a title must at least be TOML.

All blocks of a page share one folder, in order; `<!-- new folder -->` starts another, and
`<!-- new folder, needs PROGRAM -->` one whose examples are left out where PROGRAM is missing.
"""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from workspace import ASSAY, Workspace

from assay.cli.options import COMMANDS, Command
from assay.plans.schema import json_schema

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    text: str
    line: int


@dataclass(frozen=True)
class Scene:
    """The blocks of a page that share a folder; `needs` is a program they cannot do without."""

    blocks: list[Block]
    needs: str | None = None


def scenes_of(page: Path) -> Iterator[Scene]:
    scene = Scene([])
    opened: tuple[str, int] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fresh = re.fullmatch(r"<!-- new folder(?:, needs (\w+))? -->", line)
        if opened is None and fresh:
            yield scene
            scene = Scene([], fresh[1])
        elif line.startswith("```"):
            if opened is None:
                opened, body = (line[3:], number), []
            else:
                language, _, rest = opened[0].partition(" ")
                title = rest.strip().removeprefix("title=") or None
                text = "".join(f"{line}\n" for line in body)
                scene.blocks.append(Block(language, title, text, opened[1]))
                opened = None
        elif opened is not None:
            body.append(line)
    assert opened is None, f"{page.name}:{opened[1]}: the block is not closed"
    yield scene


def examples() -> Iterator[object]:
    for page in PAGES:
        for scene in scenes_of(page):
            if any(block.language == "console" for block in scene.blocks):
                missing = scene.needs is not None and shutil.which(scene.needs) is None
                skip = pytest.mark.skipif(missing, reason=f"needs {scene.needs}")
                name = f"{page.name}:{scene.blocks[0].line}"
                yield pytest.param(page, scene, id=name, marks=skip)


def commands(block: Block) -> Iterator[tuple[int, str, str]]:
    """(line, command, expected output) of a console block."""
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    assert starts[:1] == [0], f"line {block.line}: a console block begins with `$ `"
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        expected = "".join(f"{line}\n" for line in lines[start + 1 : end])
        yield block.line + 1 + start, lines[start][2:], expected


def pattern(expected: str) -> str:
    """A regular expression for expected output with its wildcards."""
    wild = re.escape("...")
    return "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(wild, ".*?") + r"\n"
        for line in expected.splitlines()
    )


@pytest.mark.parametrize(("page", "scene"), list(examples()))
def test_examples_do_what_the_page_says(page: Path, scene: Scene, tmp_path: Path) -> None:
    """Each command of a page prints what the page shows, in the order of the page."""
    folder = tmp_path / "project"
    folder.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for block in scene.blocks:
        if block.title is not None:
            target = folder / block.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text)
        elif block.language == "console":
            for line, command, expected in commands(block):
                done = subprocess.run(
                    ["/bin/bash", "-c", command],
                    cwd=folder,
                    env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                where = f"{page.name}:{line}: $ {command}\n{done.stdout}"
                assert done.returncode == 0, where
                assert re.fullmatch(pattern(expected), done.stdout), (
                    f"{where}--- expected\n{expected}"
                )


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    """The plan that the first command of the README runs builds its site once, and says how
    many pages it has."""
    made = shutil.ignore_patterns(".assay", "public")
    source, copy = ROOT / "docs" / "example", tmp_path / "example"
    example = Workspace(shutil.copytree(source, copy, ignore=made))
    first = example.run()
    assert first.counts == {"built": 4}
    assert first.events[-1]["outputs"] == {"pages": 2}
    assert example.run().counts == {"clean": 4}
    example.write("posts/third.txt", "Third\n\nOne more.\n")
    assert example.run().named("built") == {"page[posts/third.txt]", "index", "check"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_toml_of_the_pages_parses(page: Path) -> None:
    """Every TOML block, fragments included, is TOML."""
    for scene in scenes_of(page):
        for block in scene.blocks:
            if block.language == "toml":
                tomllib.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Links between the pages and into the code name files and headings that exist."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The names under which the headings of a page can be linked to."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_reference_of_the_command_line_is_fresh() -> None:
    """docs/reference-cli.md lists every command, argument and option there is."""
    page = ROOT / "docs" / "reference-cli.md"
    program = runpy.run_path(str(ROOT / "docs" / "reference_cli.py"))
    assert program["with_commands"](page.read_text()) == page.read_text(), (
        "stale: python docs/reference_cli.py docs/reference-cli.md"
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.group} {command.name}")
def test_help_and_reference_name_the_same_options(command: Command) -> None:
    """What `--help` of a command offers is what its table, and so the reference, lists."""
    words = [*filter(None, [command.group]), command.name]
    done = subprocess.run([ASSAY, *words, "--help"], text=True, capture_output=True, check=True)
    options = done.stdout.partition("ptions:\n")[2]
    offered = set(re.findall(r"^  (?:(-\w), )?(--?[\w-]+)", options, flags=re.MULTILINE))
    listed = {flag for option in command.options for flag in option.flags}
    assert {flag for pair in offered for flag in pair if flag} == listed | {"--help"}


def test_the_reference_names_every_event() -> None:
    """The table of `--json` events lists each event with its own fields, in order."""
    source = ast.parse((ROOT / "cli/render/json_events.py").read_text())
    events = {}
    for node in ast.walk(source):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            name, fields = node.value.elts
            assert isinstance(fields, ast.Dict)
            keys = [key.value for key in fields.keys if isinstance(key, ast.Constant)]
            events[ast.literal_eval(name)] = keys
    table = section(ROOT / "docs/reference-cli.md", "Events of `--json`")
    rows = [row.split("|")[1:3] for row in table.splitlines() if row.startswith("| `")]
    listed = {first(name): re.findall(r"`([\w-]+)`", fields) for name, fields in rows}
    assert listed == events


def test_the_reference_names_every_key_of_the_plan() -> None:
    """The tables of docs/reference-plan.md list exactly the keys the schema knows."""
    schema = json_schema()
    page = ROOT / "docs/reference-plan.md"
    assert keys_listed(section(page, "Top-level keys")) == set(schema["properties"])
    nodes = schema["$defs"]["NodeDecl"]["properties"]
    assert keys_listed(section(page, "Node keys")) == set(nodes)
    text = page.read_text()
    inner = {key for part in schema["$defs"].values() for key in part.get("properties", {})}
    unnamed = {key for key in inner if not re.search(rf"\b{key}\b", text)}
    assert not unnamed


def section(page: Path, heading: str) -> str:
    """The text below a heading of the second level, up to the next one."""
    return page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first(cell: str) -> str:
    """What stands first between backquotes."""
    return str(re.findall(r"`([^`]+)`", cell)[0])


def keys_listed(table: str) -> set[str]:
    return {first(row) for row in table.splitlines() if row.startswith("| `")}
