"""Every file below `.assay/` cut, zeroed, replaced or removed while effects are open: none is
repeated by that, none is forgotten without a word.

A sample of blobs and logs; every file, at each of its blocks, with `ASSAY_SWEEP=all`.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest
from damages import DAMAGES, Damage, cut, pick, spread
from effect_sweep import ALONE, choose, find_points
from sweep import MENDING, SWEEP_ALL, SWEPT, run_traced
from workspace import Workspace, explain

pytestmark = pytest.mark.proof

PLAN = """\
[nodes.mod]
run = "echo x >> text"
reads = ["text"]
writes = ["text"]
tier = "compensable"

[nodes.sent]
run = "echo out >> sent"
after = ["mod"]
tier = "irreversible"

[nodes.failed]
run = "echo perhaps >> perhaps; exit 7"
after = ["mod"]
tier = "irreversible"
"""


def run_once(root: Path) -> Workspace:
    """A workspace with an unfinished run."""
    root.mkdir()
    workspace = Workspace(root)
    workspace.write("plan.toml", PLAN)
    workspace.write("text", "base\n" * 2000)  # several blocks
    assert workspace.assay("run").code == 1
    return workspace


@pytest.mark.slow
@SWEPT
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_repeats_no_effect(tmp_path: Path, damage: Damage) -> None:
    """C87: whatever file is damaged, the next runs perform no effect of an unfinished run again:
    they know, or they ask, or they say what the host does not give."""
    quiet = run_once(tmp_path / "quiet")
    store = quiet.path(".assay")
    names = sorted(str(path.relative_to(store)) for path in store.rglob("*") if not path.is_dir())
    assert {"assay.db", "has-effects"} <= set(names)
    assert any(name.startswith("preimages/") for name in names)
    chosen = [name for name in names if not name.startswith(("cas/", "logs/"))]
    chosen += pick([name for name in names if name not in chosen], 2, damage.__name__)
    harms = [
        (name, *harm) for name in chosen for harm in spread(damage, (store / name).stat().st_size)
    ]
    for name, how, harm in harms:
        shutil.copytree(quiet.root, tmp_path / "w", symlinks=True)
        workspace = Workspace(tmp_path / "w")
        harm(workspace.path(".assay") / name)
        for words in (("run", "--json"), ("run", "--json"), ("run", "--fresh", "--json")):
            done = workspace.assay(*words)
            where = f"{how} {name} {words}: {explain(done)}"
            assert "Traceback" not in done.err, where
            assert done.code in (4, 5), where
            if name != "has-effects":
                assert workspace.read("sent") == "out\n", where
                assert workspace.read("perhaps") == "perhaps\n", where
        for words in (("runs",), ("show",), ("journal",), ("cache", "verify"), ("cache", "gc")):
            asked = workspace.assay(*words)
            assert "Traceback" not in asked.err, (name, words, asked.err)
        shutil.rmtree(workspace.root)


KILLED = """\
[nodes.again]
run = "echo x >> again"
writes = ["again"]
tier = "compensable"

[nodes.mod]
run = "echo x >> text"
reads = ["text"]
writes = ["text"]
tier = "compensable"
after = ["again"]

[nodes.sent]
run = "echo out >> sent"
after = ["mod"]
tier = "irreversible"

[nodes.last]
run = "test -e over || kill -9 $PPID"
after = ["sent"]
cache = false
"""
"""The first run is killed by its own last node."""

PAGE = 4096
FRAME = 24 + PAGE


def lay_out_killed(root: Path) -> Workspace:
    """A workspace whose assay was killed before what it knows was moved into the database."""
    workspace = Workspace(root)
    root.mkdir()
    workspace.write("plan.toml", KILLED)
    workspace.write("text", "base\n")
    assert workspace.assay("run").code == -9
    assert workspace.read("sent") == "out\n"
    return workspace


def find_log_damages(log: Path) -> list[tuple[str, Damage]]:
    """The log gone, or cut behind each of its frames, or a page of it zeroed."""

    def cut_at(size: int) -> Damage:
        return lambda path: os.truncate(path, size)

    def zero_at(start: int) -> Damage:
        def damage(path: Path) -> None:
            with path.open("r+b") as file:
                file.seek(start)
                file.write(bytes(PAGE))

        return damage

    size = log.stat().st_size
    found: list[tuple[str, Damage]] = [("removed", Path.unlink)]
    found += [(f"cut at {at}", cut_at(at)) for at in (0, 32, *range(32 + FRAME, size, FRAME))]
    found += [(f"zeroed at {at}", zero_at(at)) for at in range(32, size, FRAME)]
    return found if SWEEP_ALL else random.Random("log").sample(found, 6) + found[:1]


@pytest.mark.slow
@SWEPT
def test_a_database_that_forgot_repeats_no_effect(tmp_path: Path) -> None:
    """C87: a killed run's records are in the log of the database alone. However much of that is
    lost, what had begun is not done again: it is known, taken back, or asked about; the answer
    counts."""
    quiet = lay_out_killed(tmp_path / "quiet")
    for name, damage in find_log_damages(quiet.path(".assay/assay.db-wal")):
        shutil.copytree(quiet.root, tmp_path / "w", symlinks=True)
        workspace = Workspace(tmp_path / "w")
        damage(workspace.path(".assay/assay.db-wal"))
        workspace.write("over", "")
        done = workspace.assay("run", "--json")
        where = f"{name}: {explain(done)}"
        assert "Traceback" not in done.err, where
        assert done.code in (0, 4), where
        for _ in range(3):
            asked = [node for node, outcome in done.outcomes.items() if outcome == "ambiguous"]
            assert (done.code == 4) == bool(asked), where
            if not asked:
                break
            for node in asked:
                answer = workspace.assay("settle", done.events[-1]["run"], node, "--done")
                assert answer.code == 0, f"{where}\n{explain(answer)}"
            done = workspace.assay("run", "--json")
        assert done.code == 0, where
        assert workspace.read("sent") == "out\n", where
        assert workspace.read("text") == "base\nx\n", where
        assert workspace.read("again") == "x\n", where
        shutil.rmtree(workspace.root)


def test_an_older_database_put_back_is_told(tmp_path: Path) -> None:
    """C87: a copy made before an effect does not know of it; `run` says so once and asks, `doctor`
    says so too, and `--new` starts over."""
    workspace = lay_out_killed(tmp_path / "w")
    workspace.write("over", "")
    assert workspace.assay("run").code == 0
    shutil.copy(workspace.path(".assay/assay.db"), tmp_path / "kept")
    assert workspace.assay("run").code == 0
    assert workspace.read("sent") == "out\nout\n"
    shutil.copy(tmp_path / "kept", workspace.path(".assay/assay.db"))
    for name in ("-wal", "-shm"):
        workspace.path(f".assay/assay.db{name}").unlink(missing_ok=True)
    doctor = workspace.assay("doctor")
    assert "does not know of 3 effects that began here" in doctor.out, explain(doctor)
    first, second = workspace.assay("run", "--json"), workspace.assay("run", "--json")
    told = "is older than what was done here: 3 of the effects that began here are not on record"
    assert (told in first.out + first.err, told in second.out + second.err) == (True, False)
    assert (first.code, second.code) == (4, 4)
    assert first.outcomes["again"] == "ambiguous"
    assert workspace.read("sent") == "out\nout\n"
    assert workspace.assay("run", "--new").code == 0
    assert workspace.read("sent") == "out\nout\nout\n"


def test_an_older_question_does_not_answer_for_what_came_since(workspace: Workspace) -> None:
    """C87: an older database put back knows of an effect of unknown outcome; to settle that says
    nothing of the one that was done after it."""
    workspace.write(
        "plan.toml",
        '[nodes.pub]\nrun = "echo sent >> shop; test -e ok || kill -9 $PPID $$"\n'
        'tier = "irreversible"\n',
    )
    assert workspace.assay("run").code == -9
    kept = workspace.root.parent / "kept"
    shutil.copytree(workspace.path(".assay"), kept)
    workspace.write("ok", "")
    (asked,) = [e["asks"] for e in workspace.assay("run", "--json").events if e.get("asks")]
    assert workspace.assay("settle", asked, "pub", "--not-done").code == 0
    assert workspace.assay("run").code == 0
    assert workspace.read("shop") == "sent\nsent\n"
    for name in ("assay.db", "assay.db-wal"):
        shutil.copy(kept / name, workspace.path(".assay") / name)
    workspace.path(".assay/assay.db-shm").unlink(missing_ok=True)
    assert workspace.assay("run").code == 4
    assert workspace.assay("settle", asked, "pub", "--not-done").code == 0
    assert workspace.assay("run").code == 4
    assert workspace.read("shop") == "sent\nsent\n"


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_was_kept_of_an_interrupted_attempt_is_missed(tmp_path: Path, damage: Damage) -> None:
    """C87, C100: a half-done compensable attempt whose files cannot be put back, because how they
    were is damaged or gone, is asked about; nothing is built on what it left."""
    workspace = Workspace(tmp_path / "w")
    workspace.root.mkdir()
    workspace.write("plan.toml", HALF)
    workspace.write("text", "base\n")
    workspace.write("other", "mine\n")
    assert workspace.assay("run").code == -9
    assert workspace.read("text") == "base\nhalf\n"
    (kept,) = workspace.path(".assay/preimages").iterdir()
    damage(kept)
    for _ in range(2):
        done = workspace.assay("run", "--json")
        assert (done.code, done.outcomes["mod"]) == (4, "ambiguous"), explain(done)
        assert workspace.read("text") == "base\nhalf\n"


HALF = """\
[nodes.mod]
run = "echo half >> text; rm other; kill -9 $PPID $$; echo rest >> text"
writes = ["text"]
removes = ["other"]
tier = "compensable"
undo = "echo undone >> undone"
"""


@pytest.mark.parametrize("gone", [".assay/preimages", ".assay"])
def test_a_command_that_cleans_the_store_away_is_not_forgotten(
    workspace: Workspace, gone: str
) -> None:
    """C87, C100: an attempt that failed after it has removed what was kept for it did something
    all the same."""
    workspace.write("text", "base\n")
    workspace.write(
        "plan.toml",
        f"""\
[nodes.mod]
run = "rm -rf {gone}; echo x >> text; exit 1"
writes = ["text"]
tier = "compensable"
undo = "echo undone >> undone"
""",
    )
    done = workspace.assay("run", "--json")
    assert done.code in (1, 4, 5), explain(done)
    assert "is lost" in done.out, explain(done)


@SWEPT
@pytest.mark.parametrize("call", MENDING if SWEEP_ALL else MENDING[:1])
def test_a_killed_mending_forgets_no_effect(tmp_path: Path, system_tmp: Path, call: str) -> None:
    """C83, C87: a run that finds the store damaged and is killed while it keeps that aside and puts
    a new one in its place leaves the next ones as careful as it would have been."""
    quiet = run_once(tmp_path / "quiet")
    cut(quiet.path(".assay/assay.db"))

    def copy(name: str) -> Workspace:
        return Workspace(shutil.copytree(quiet.root, tmp_path / name, symlinks=True))

    log = tmp_path / "calls"
    options = [*ALONE, "-o", str(log), "-e", f"trace={call},openat"]
    assert run_traced(copy("counted"), options, system_tmp).code in (4, 5)
    points = find_points(log.read_text(errors="replace"), call)
    assert points
    for point in choose(f"mending {call}", points):
        workspace = copy(f"{point.number}")
        options = [*ALONE, "-o", os.devnull, "-e", f"trace={point.call}"]
        options += ["-e", f"inject={point.call}:signal=KILL:when={point.number}"]
        killed = run_traced(workspace, options, system_tmp)
        for _ in range(2):
            done = workspace.assay("run", "--json")
            where = f"{point}: exit {killed.code}, then {explain(done)}"
            assert "Traceback" not in done.err, where
            assert done.code in (4, 5), where
            assert workspace.read("sent") == "out\n", where
            assert workspace.read("perhaps") == "perhaps\n", where
        shutil.rmtree(workspace.root)
