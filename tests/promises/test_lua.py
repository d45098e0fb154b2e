"""A real C project: the Lua interpreter is built, edited and rebuilt.

The sources come out of the source distribution of `lupa`, which pip fetches once into
`.cache/` of the checkout. tests/lua/plan.toml is the plan.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from workspace import Workspace

HERE = Path(__file__).resolve()
PLAN = HERE.parents[1] / "lua" / "plan.toml"
CACHE = HERE.parents[2] / ".cache"
ARCHIVE = CACHE / "lupa-2.8.tar.gz"
INSIDE = "lupa-2.8/third-party/lua54/"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler as `cc`"),
]


def fetch_archive() -> Path:
    """The source distribution, fetched by pip when it is not there yet.

    pip runs the package's setup script to learn its name: LUPA_NO_LUAJIT keeps that from
    compiling anything, and without isolation it needs nothing else from the network.
    """
    CACHE.mkdir(exist_ok=True)
    with open(CACHE / "lupa.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ARCHIVE.exists():
            fetched = CACHE / "lupa.partial"
            shutil.rmtree(fetched, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--no-binary", "lupa", "--no-build-isolation", "--dest", str(fetched)]
            environment = {**os.environ, "LUPA_NO_LUAJIT": "true"}
            subprocess.run([*command, "lupa==2.8"], env=environment, check=True)
            (fetched / ARCHIVE.name).replace(ARCHIVE)
            shutil.rmtree(fetched)
    return ARCHIVE


@pytest.fixture
def lua(workspace: Workspace) -> Workspace:
    """A workspace with the plan and Lua's sources in lua/, nothing built."""
    with tarfile.open(fetch_archive()) as archive:
        members = [member for member in archive if member.name.startswith(INSIDE)]
        for member in members:
            member.name = "lua/" + member.name.removeprefix(INSIDE)
        archive.extractall(workspace.root, members, filter="data")
    shutil.copy(PLAN, workspace.root)
    return workspace


def compiled(workspace: Workspace) -> set[str]:
    """The names of the nodes that compile, one per C file."""
    left_out = {"onelua", "ltests"}
    stems = {path.stem for path in workspace.path("lua").glob("*.c")} - left_out
    return {f"cc[lua/{stem}.c]" for stem in stems}


def edit(workspace: Workspace, name: str, old: str, new: str) -> None:
    text = workspace.read(name)
    assert old in text
    workspace.path(name).write_text(text.replace(old, new))


def test_lua_is_built_and_kept_up_to_date(lua: Workspace) -> None:
    """Lua is built, and after each kind of edit what is run again is what had to be."""
    objects = compiled(lua)
    assert len(objects) == 33

    first = lua.run()
    everything = set(first.outcomes)
    assert first.named("built") == everything > objects | {"link", "version"}
    assert json.loads(lua.run().out.splitlines()[-1])["counts"] == {"clean": len(everything)}

    # A comment in one C file: its object keeps its bytes, so nothing else is run.
    pristine = lua.read("lua/lmathlib.c")
    edit(lua, "lua/lmathlib.c", "#include <math.h>", "#include <math.h>  /* sin, cos */")
    assert lua.run().named("built") == {"cc[lua/lmathlib.c]"}

    # A comment in a header that any C file may include: every object is made again.
    edit(lua, "lua/lua.h", "#include <stdarg.h>", "#include <stdarg.h>  /* va_list */")
    assert lua.run().named("built") == objects

    # One C file.
    edit(lua, "lua/lmathlib.c", '{"abs",   math_abs}', '{"magnitude", math_abs}, {"abs", math_abs}')
    tests = {name for name in everything if name.startswith("try[")}
    users = {"link", "version"} | tests
    assert lua.run().named("built") == {"cc[lua/lmathlib.c]"} | users
    assert say(lua, "print(math.magnitude(-3))") == "3\n"

    # One header, this time with a meaning.
    before = lua.read("lua/lua.h")
    edit(lua, "lua/lua.h", '"Lua " LUA_VERSION_MAJOR', '"Moon " LUA_VERSION_MAJOR')
    changed = lua.run()
    assert changed.named("built") == objects | users
    assert say(lua, "print(_VERSION)") == "Moon 5.4\n"
    assert changed.events[-1]["outputs"] == {"version": "Moon 5.4"}

    # An object that is gone comes back from the cache.
    gone = lua.path("build/lvm.o")
    content = gone.read_bytes()
    gone.unlink()
    assert lua.run().counts == {"clean": len(everything)}
    assert gone.read_bytes() == content

    # Switched back: what was built then is put back.
    lua.path("lua/lua.h").write_text(before)
    assert lua.run().counts == {"clean": len(everything)}
    assert say(lua, "print(_VERSION)") == "Lua 5.4\n"
    lua.path("lua/lmathlib.c").write_text(pristine)
    assert lua.run("link").named("clean") >= {"link"}
    assert say(lua, "print(math.magnitude)") == "nil\n"


def test_lua_is_built_from_a_moved_copy_without_compiling(lua: Workspace, tmp_path: Path) -> None:
    """A copy of the folder, cache included, has nothing to build although every mtime differs."""
    lua.run("link")
    copy = tmp_path / "elsewhere"
    subprocess.run(["cp", "-r", lua.root, copy], check=True)
    assert set(Workspace(copy).run("link").outcomes.values()) == {"clean"}


def test_lua_is_built_alike_under_every_boundary(lua: Workspace) -> None:
    """C47: held to what it declares, each step makes the very files that it makes when it is
    believed; a header that is left out is named."""
    lua.run()
    made = {path.name: path.read_bytes() for path in lua.path("build").iterdir()}
    for boundary in ("enforced", "isolated"):
        shutil.rmtree(lua.path("build"))
        held = lua.run("--boundary", boundary)
        assert set(held.outcomes.values()) == {"built"}
        assert {path.name: path.read_bytes() for path in lua.path("build").iterdir()} == made
        assert set(lua.run("--boundary", boundary).outcomes.values()) <= {"clean"}
    edit(lua, "plan.toml", '"lua/*.h"]', '"lua/*.h", "!lua/lprefix.h"]')
    left_out = lua.assay("run", "--boundary", "enforced", "cc[lua/lvm.c]")
    assert left_out.code == 1
    assert "`lua/lprefix.h` is not among its `reads`" in left_out.err


def say(workspace: Workspace, chunk: str) -> str:
    """What the interpreter that was built prints for a chunk of Lua."""
    done = subprocess.run(
        [workspace.path("build/lua"), "-e", chunk], check=True, text=True, capture_output=True
    )
    return done.stdout
