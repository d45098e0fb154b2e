"""Restoring: the tree equals the recorded one, or nothing changed; no work is ever lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from ground import Ground, Outputs, describe_tree, entries, node, open_ground, run_python

from assay.engine.blobs import BlobCorrupt, BlobMissing
from assay.engine.filesystem import make_private_folder
from assay.engine.materialize import (
    CannotRestore,
    Restored,
    find_differences,
    find_left_over,
    restore,
)
from assay.engine.states import ABSENT, FOLDER, State
from assay.plans.model import Entry, RelPath


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with open_ground(tmp_path / "w") as ground:
        yield ground


def stats_of(root: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns, path.lstat().st_ctime_ns)
        for path in root.rglob("*")
        if ".assay" not in path.parts
    }


def differs(ground: Ground, outputs: Outputs) -> tuple[str, ...]:
    return find_differences(outputs, ground.measurer)


D_SLASH = entries("d/")


@pytest.mark.parametrize("declared", [["d/*"], ["d/"], ["d/x", "d/y"]])
def test_removed_and_edited_outputs_are_restored(ground: Ground, declared: list[str]) -> None:
    """C16: one file gone, one edited, all gone, one with mode 0: the tree is as recorded."""
    ground.write("d/x", "1")
    ground.write("d/y", "2")
    writes = node(writes=declared).writes
    outputs = ground.capture(node(writes=declared))
    expected = ground.tree()

    (ground.root / "d/y").unlink()
    assert differs(ground, outputs) == ("d/y",)
    assert ground.restore(outputs, writes).put_back == ("d/y",)
    assert ground.tree() == expected

    ground.write("d/x", "bad")
    assert differs(ground, outputs) == ("d/x",)
    assert [path for path, _ in ground.restore(outputs, writes).trashed] == ["d/x"]
    assert ground.tree() == expected

    shutil.rmtree(ground.root / "d")
    assert differs(ground, outputs) == ("d/x", "d/y")
    assert ground.restore(outputs, writes).put_back == ("d/x", "d/y")
    assert ground.tree() == expected

    (ground.root / "d/x").chmod(0)
    assert differs(ground, outputs) == ("d/x",)
    assert ground.restore(outputs, writes) == Restored(put_back=(RelPath("d/x"),))
    assert (ground.root / "d/x").stat().st_mode & 0o777 == 0o644
    assert ground.tree() == expected
    assert differs(ground, outputs) == ()


def test_a_lost_executable_bit_is_restored(ground: Ground) -> None:
    """C29: with the content known, nothing goes to the trash."""
    ground.write("bin/t", "1", 0o755)
    outputs = ground.capture(node(writes=["bin/t"]))
    (ground.root / "bin/t").chmod(0o644)
    assert differs(ground, outputs) == ("bin/t",)
    ground.restore(outputs, entries("bin/t"))
    assert ground.tree()["bin/t"] == "1 (executable)"


def test_modes_come_back_by_the_umask(ground: Ground) -> None:
    """C29: the executable bit as recorded, setuid never, and a 0444 file can be restored over."""
    modes = {"bin/t": 0o755, "o": 0o644, "ro": 0o444, "su": 0o4755}
    for path, mode in modes.items():
        ground.write(path, path, mode)
    declared = node(writes=list(modes))
    outputs = ground.capture(declared)
    for path in modes:
        (ground.root / path).unlink()
    ground.restore(outputs, declared.writes)
    found = {path: (ground.root / path).stat().st_mode & 0o7777 for path in modes}
    assert found == {"bin/t": 0o755, "o": 0o644, "ro": 0o644, "su": 0o755}
    ground.write("ro", "edited")
    (ground.root / "ro").chmod(0o444)
    ground.restore(outputs, declared.writes)
    assert ground.read("ro") == "ro"


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_bad_blob_changes_nothing(ground: Ground, damage: str, which: int) -> None:
    """C17: missing, cut short or with a flipped byte, be it the second of two: the workspace
    stays as it was and nothing is left staged."""
    contents = (b"first", b"second")
    ground.write("d/x", contents[0])
    ground.write("d/y", contents[1])
    outputs = ground.capture(node(writes=["d/"]))
    name = blake3(contents[which]).hexdigest()
    blob = Path(ground.store.cas, name[:2], name[2:])
    blob.chmod(0o644)
    if damage == "gone":
        blob.unlink()
    elif damage == "short":
        blob.write_bytes(contents[which][:-1])
    else:
        blob.write_bytes(b"X" + contents[which][1:])
    shutil.rmtree(ground.root / "d")
    ground.write("d/y", "by hand")
    before, stats = ground.tree(), stats_of(ground.root)
    with pytest.raises(BlobMissing if damage == "gone" else BlobCorrupt, match=name):
        ground.restore(outputs, D_SLASH)
    assert ground.tree() == before
    assert stats_of(ground.root) == stats
    assert ground.temporary_files() == []
    assert ground.waste() == {}


def test_restored_states_equal_recorded_ones(ground: Ground) -> None:
    """C25: files, executables, links and empty folders measure the same after a restore, so
    that keys downstream are the same."""
    ground.write("d/f", "1")
    ground.write("d/p", "2", 0o755)
    ground.link("d/l", "f")
    ground.link("d/dang", "nowhere")
    (ground.root / "d/e/e").mkdir(parents=True)
    ground.write("top", "3")
    declared = node(writes=["d/", "top"])
    outputs = ground.capture(declared)
    shutil.rmtree(ground.root / "d")
    (ground.root / "top").unlink()
    ground.restore(outputs, declared.writes)
    assert ground.capture(declared) == outputs


def test_what_is_right_is_not_touched(ground: Ground) -> None:
    """C27: inode, mtime and ctime of outputs stay, in a read-only tree too, and next to one
    that is restored."""
    ground.write("d/x", "1")
    ground.write("d/sub/y", "2")
    ground.link("d/l", "x")
    (ground.root / "d/e").mkdir()
    outputs = ground.capture(node(writes=["d/"]))
    for path in ("d/x", "d/sub/y", "d/sub", "d"):
        (ground.root / path).chmod(0o555 if (ground.root / path).is_dir() else 0o444)
    before = stats_of(ground.root)
    assert differs(ground, outputs) == ()
    assert ground.restore(outputs, D_SLASH) == Restored()
    assert stats_of(ground.root) == before
    (ground.root / "d").chmod(0o755)
    (ground.root / "d/x").unlink()
    ground.restore(outputs, D_SLASH)
    after = stats_of(ground.root)
    for path in ("d/sub/y", "d/l", "d/e"):
        assert after[str(ground.root / path)] == before[str(ground.root / path)]
    (ground.root / "d/sub").chmod(0o755)


def test_a_restored_tree_equals_the_recorded_one(ground: Ground) -> None:
    """C28: what an earlier result left goes, also when the recorded files are all in place;
    a file made by hand stays and is named."""
    ground.write("d/p", "1")
    ground.write("d/sub/q", "2")
    both = ground.capture(node(writes=["d/"]))
    shutil.rmtree(ground.root / "d/sub")
    one = ground.capture(node(writes=["d/"]))
    ground.write("d/stray", "by hand")

    assert ground.restore(both, D_SLASH) == Restored(
        put_back=(RelPath("d/sub/q"),), unknown=(RelPath("d/stray"),)
    )
    assert differs(ground, one) == ()
    assert find_left_over(one, D_SLASH, ground.measurer, ground.knows) == ("d/sub/q",)
    assert ground.restore(one, D_SLASH) == Restored(
        removed=(RelPath("d/sub/q"),), unknown=(RelPath("d/stray"),)
    )
    assert ground.tree() == {"d": "folder", "d/p": "1", "d/stray": "by hand"}
    assert find_left_over(one, D_SLASH, ground.measurer, ground.knows) == ()


def test_paths_to_keep_are_no_left_overs(ground: Ground) -> None:
    """What a later node rewrites is not in the outputs and stays all the same."""
    ground.write("d/p", "1")
    ground.write("d/q", "2")
    outputs = ground.capture(node(writes=["d/"]))
    done = ground.restore(outputs[:1], D_SLASH, keep=[RelPath("d/q")])
    assert done == Restored()
    assert ground.read("d/q") == "2"


def test_left_overs_of_files_become_absent_again(ground: Ground) -> None:
    """An optional output that the recorded result does not have: one from another result
    goes, one made by hand goes to the trash."""
    writes = node(writes=["o"], optional=["o"])
    absent = ground.capture(writes)
    ground.write("o", "1")
    ground.capture(writes)
    assert differs(ground, absent) == ("o",)
    assert ground.restore(absent, writes.writes) == Restored(removed=(RelPath("o"),))
    ground.write("o", "by hand")
    done = ground.restore(absent, writes.writes)
    assert [Path(place).read_text() for _, place in done.trashed] == ["by hand"]
    assert ground.tree() == {}


def test_links_come_back_as_links(ground: Ground) -> None:
    """C30: each with its text, whatever it leads to, and none is followed."""
    ground.write("d/f", "1")
    (ground.root / "d/k").mkdir()
    for name, target in {"l": "f", "dang": "nowhere", "self": ".", "dl": "k", "o": "/"}.items():
        ground.link(f"d/{name}", target)
    outputs = ground.capture(node(writes=["d/"]))
    expected = ground.tree()
    shutil.rmtree(ground.root / "d")
    ground.restore(outputs, D_SLASH)
    assert ground.tree() == expected
    assert differs(ground, outputs) == ()


def test_a_link_whose_target_is_no_longer_the_same_is_no_restore(ground: Ground) -> None:
    """A recorded link that leads to another content by now is no recorded result."""
    ground.write("src", "1")
    ground.link("d/l", "../src")
    outputs = ground.capture(node(writes=["d/"]))
    ground.write("src", "2")
    assert differs(ground, outputs) == ("d/l",)
    with pytest.raises(CannotRestore, match="`d/l` leads to a file that is not as recorded"):
        ground.restore(outputs, D_SLASH)
    shutil.rmtree(ground.root / "d")
    with pytest.raises(CannotRestore):
        ground.restore(outputs, D_SLASH)
    ground.write("src", "1")
    ground.restore(outputs, D_SLASH)
    assert differs(ground, outputs) == ()


def test_editing_a_restored_file_leaves_the_store_alone(ground: Ground) -> None:
    """C34: appended to, removed, restored: the recorded content, twice."""
    ground.write("o", "1")
    outputs = ground.capture(node(writes=["o"]))
    for _ in range(2):
        (ground.root / "o").unlink()
        ground.restore(outputs, entries("o"))
        with open(ground.root / "o", "a") as file:
            file.write("x")
    for path in ground.blob_paths():
        assert path.parent.name + path.name == blake3(path.read_bytes()).hexdigest()


def test_excluded_files_survive_a_restore(ground: Ground) -> None:
    """C35: what the user keeps inside a written folder is neither moved nor named."""
    writes = entries("d/**", "!d/keep/**")
    ground.write("d/x", "1")
    outputs = ground.capture(node(writes=writes))
    ground.write("d/keep/k", "mine")
    (ground.root / "d/x").unlink()
    assert ground.restore(outputs, writes) == Restored(put_back=(RelPath("d/x"),))
    assert ground.read("d/keep/k") == "mine"


def test_every_name_is_restored(ground: Ground) -> None:
    """C36, C121, C124: no name is left out, whatever it looks like."""
    names = [
        *("node_modules/m", ".git/c", ".DS_Store", "__pycache__/p", "a b", 'q"q', "[s].ts", "*"),
        *("a\nb", "back\\slash", "é", "e\u0301", "~", "-rf", "x" * 255, "\udcff"),
    ]
    for name in names:
        ground.write(f"d/{name}", name.encode("utf-8", "surrogateescape"))
    outputs = ground.capture(node(writes=["d/"]))
    expected = ground.tree()
    shutil.rmtree(ground.root / "d")
    assert len(ground.restore(outputs, D_SLASH).put_back) == len(names)
    assert ground.tree() == expected


def test_a_hand_edit_goes_to_the_trash_first(ground: Ground) -> None:
    """What no result recorded is kept, once for each edit, under its own path."""
    ground.write("d/x", "1")
    outputs = ground.capture(node(writes=["d/"]))
    for edit in ("edit one", "edit two"):
        ground.write("d/x", edit)
        done = ground.restore(outputs, D_SLASH)
        ((path, place),) = done.trashed
        assert path == "d/x"
        assert place.endswith("/d/x")
        assert Path(place).read_text() == edit
    assert ground.read("d/x") == "1"


def test_recorded_content_is_no_hand_edit(ground: Ground) -> None:
    """An earlier version of the output is simply replaced."""
    ground.write("o", "1")
    first = ground.capture(node(writes=["o"]))
    ground.write("o", "2")
    ground.capture(node(writes=["o"]))
    assert ground.restore(first, entries("o")) == Restored(put_back=(RelPath("o"),))
    assert ground.waste() == {}


def test_a_folder_makes_way_for_a_file(ground: Ground) -> None:
    """Recorded files in it are removed, and what the user has there goes to the trash whole."""
    ground.write("d/x/old", "1")
    ground.capture(node(writes=["d/"]))
    shutil.rmtree(ground.root / "d")
    ground.write("d/x", "now a file")
    ground.link("d/y", "x")
    outputs = ground.capture(node(writes=["d/"]))
    for folder in ("x", "y"):
        (ground.root / "d" / folder).unlink()
    ground.write("d/x/old", "1")
    ground.write("d/y/mine", "by hand")
    done = ground.restore(outputs, D_SLASH)
    assert done.removed == ("d/x/old",)
    assert [path for path, _ in done.trashed] == ["d/y"]
    assert done.unknown == ()
    assert describe_tree(Path(done.trashed[0][1])) == {"mine": "by hand"}
    assert ground.tree() == {"d": "folder", "d/x": "now a file", "d/y": "-> x"}


def test_a_file_makes_way_for_a_folder(ground: Ground) -> None:
    """A recorded one is removed, another goes to the trash; empty folders likewise."""
    ground.write("d/a", "was a file")
    ground.capture(node(writes=["d/"]))
    (ground.root / "d/a").unlink()
    ground.write("d/a/x", "1")
    ground.write("d/b/x", "2")
    (ground.root / "d/e").mkdir()
    outputs = ground.capture(node(writes=["d/"]))
    expected = ground.tree()
    shutil.rmtree(ground.root / "d")
    ground.write("d/a", "was a file")
    ground.write("d/b", "by hand")
    ground.write("d/e", "by hand")
    done = ground.restore(outputs, D_SLASH)
    assert [path for path, _ in done.trashed] == ["d/b", "d/e"]
    assert ground.tree() == expected


@pytest.mark.parametrize("writes", [D_SLASH, entries("d/x")])
def test_nothing_is_written_through_a_link(ground: Ground, writes: tuple[Entry, ...]) -> None:
    """A link where the record has a folder: what it leads to stays, the link is trashed."""
    ground.write("d/x", "1")
    outputs = ground.capture(node(writes=writes))
    shutil.rmtree(ground.root / "d")
    ground.write("victim/x", "precious")
    ground.link("d", "victim")
    assert differs(ground, outputs) == ("d/x",)
    done = ground.restore(outputs, writes)
    assert [path for path, _ in done.trashed] == ["d"]
    assert Path(done.trashed[0][1]).readlink() == Path("victim")
    assert ground.tree() == {
        "d": "folder",
        "d/x": "1",
        "victim": "folder",
        "victim/x": "precious",
    }


def test_equal_files_behind_a_link_are_not_the_recorded_ones(ground: Ground) -> None:
    """C30: a link to a folder with the same content is not the recorded folder."""
    ground.write("d/x", "1")
    outputs = ground.capture(node(writes=["d/"]))
    os.rename(ground.root / "d", ground.root / "moved")
    ground.link("d", "moved")
    assert differs(ground, outputs) == ("d/x",)


@pytest.mark.parametrize("target", ["..", "/tmp", "../elsewhere"])
def test_a_link_out_of_the_workspace_is_refused(ground: Ground, target: str) -> None:
    """C38: the user moved the folder away; neither the link nor the place is touched."""
    ground.write("d/x", "1")
    outputs = ground.capture(node(writes=["d/x"]))
    shutil.rmtree(ground.root / "d")
    ground.link("d", target)
    with pytest.raises(CannotRestore) as caught:
        ground.restore(outputs, entries("d/x"))
    assert str(caught.value) == "`d/x` leads outside the workspace through the link `d`"
    assert ground.tree() == {"d": f"-> {target}"}


@pytest.mark.parametrize(
    "path", ["../evil", "/tmp/evil", "a/../../evil", "a//b", "a/.", "", "nul\0", ".assay/assay.db"]
)
def test_records_that_lead_astray_are_refused(ground: Ground, path: str) -> None:
    """C32: whoever wrote them; nothing is staged or changed."""
    name = ground.blobs.put_bytes(b"evil")
    outputs = ((RelPath("ok"), State(f"file:{name}")), (RelPath(path), State(f"file:{name}")))
    with pytest.raises(CannotRestore):
        ground.restore(outputs, ())
    assert ground.tree() == {}


@pytest.mark.parametrize("state", ["file:../../x", "file:" + "A" * 64, "fifo", "", "link:x"])
def test_records_with_no_state_are_refused(ground: Ground, state: str) -> None:
    """C32: a digest is a digest before it names a file in the store."""
    with pytest.raises(CannotRestore):
        ground.restore(((RelPath("o"), State(state)),), ())


def test_a_record_with_a_file_below_its_own_link_is_refused(ground: Ground) -> None:
    """C32: link first, then a file through it."""
    link = ground.blobs.put_bytes(b"../../..")
    file = ground.blobs.put_bytes(b"evil")
    outputs = (
        (RelPath("d/l"), State(f"link:{link}")),
        (RelPath("d/l/evil"), State(f"file:{file}")),
    )
    with pytest.raises(CannotRestore, match="`d/l` is recorded as a file with others below it"):
        ground.restore(outputs, D_SLASH)
    assert ground.tree() == {}


def test_a_restore_without_writes_takes_paths_as_they_come(ground: Ground) -> None:
    """What a failed try did to its inputs is put right, and nothing else is looked at."""
    ground.write("src", "before")
    ground.write("other", "x")
    outputs = ground.capture(node(writes=["src"]))
    ground.write("src", "half rewritten")
    done = restore(
        str(ground.root),
        outputs,
        (),
        measurer=ground.measurer,
        source=ground.blobs,
        staging=f"{ground.store.tmp}/x",
        trash=ground.store.trash,
        knows=lambda path, state: True,
    )
    assert done == Restored(put_back=(RelPath("src"),))
    assert ground.tree() == {"src": "before", "other": "x"}


def test_empty_folders_nobody_recorded_go(ground: Ground) -> None:
    """They hold no work, and a crash between a file's removal and its folder's leaves some."""
    ground.write("d/x", "1")
    outputs = ground.capture(node(writes=["d/"]))
    (ground.root / "d/gone").mkdir()
    assert find_left_over(outputs, D_SLASH, ground.measurer, ground.knows) == ("d/gone",)
    assert ground.restore(outputs, D_SLASH) == Restored(removed=(RelPath("d/gone"),))
    assert ground.tree() == {"d": "folder", "d/x": "1"}


def test_an_empty_folder_in_the_place_of_a_file_just_goes(ground: Ground) -> None:
    """Nothing is in it that could be lost."""
    ground.write("o", "1")
    outputs = ground.capture(node(writes=["o"]))
    (ground.root / "o").unlink()
    (ground.root / "o").mkdir()
    assert ground.restore(outputs, entries("o")) == Restored(put_back=(RelPath("o"),))


def test_special_files_in_the_way_go_to_the_trash(ground: Ground) -> None:
    """A pipe where an output belongs is moved, never opened."""
    ground.write("o", "1")
    outputs = ground.capture(node(writes=["o"]))
    (ground.root / "o").unlink()
    os.mkfifo(ground.root / "o")
    assert differs(ground, outputs) == ("o",)
    assert [path for path, _ in ground.restore(outputs, entries("o")).trashed] == ["o"]
    assert ground.read("o") == "1"


def test_read_only_folders_are_restored_into(ground: Ground) -> None:
    """A tree whose folders the command made read-only comes back, and they stay read-only."""
    ground.write("d/sub/x", "1")
    ground.write("d/sub/y", "2")
    outputs = ground.capture(node(writes=["d/"]))
    ground.write("d/sub/x", "edit")
    (ground.root / "d/sub/y").unlink()
    ground.write("d/sub/z", "left over")
    ground.known.add((RelPath("d/sub/z"), ground.state("d/sub/z")))
    (ground.root / "d/sub").chmod(0o555)
    done = run_python(RESTORE, str(ground.root), json.dumps(job(outputs, ground)), obeys_modes=True)
    assert done.stdout.split() == ["['d/sub/x',", "'d/sub/y']", "['d/sub/z']"], done.stderr
    assert (ground.root / "d/sub").stat().st_mode & 0o777 == 0o555
    (ground.root / "d/sub").chmod(0o755)
    assert ground.tree() == {"d": "folder", "d/sub": "folder", "d/sub/x": "1", "d/sub/y": "2"}
    assert "edit" in ground.waste().values()


def test_folders_of_others_are_refused_before_anything_changes(ground: Ground) -> None:
    """A folder that may not be written and is not ours: an error, and nothing was touched."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of somebody else")
    ground.write("a/x", "1")
    ground.write("b/x", "2")
    outputs = ground.capture(node(writes=["a/x", "b/x"]))
    ground.write("a/x", "edit")
    ground.write("b/x", "edit")
    (ground.root / "b").chmod(0o755)
    os.chown(ground.root / "b", 12345, 12345)
    before = stats_of(ground.root)
    done = run_python(RESTORE, str(ground.root), json.dumps(job(outputs, ground)), obeys_modes=True)
    assert done.stderr.endswith("b` is a folder in which you may not write\n")
    assert stats_of(ground.root) == before
    assert ground.temporary_files() == []


def test_outputs_on_another_disk_are_restored(ground: Ground, tmp_path: Path) -> None:
    """EXDEV: staged on another file system than the outputs."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system here")
    ground.write("d/x", "1", 0o755)
    ground.link("d/l", "x")
    outputs = ground.capture(node(writes=["d/"]))
    expected = ground.tree()
    ground.write("d/x", "edit")
    (ground.root / "d/l").unlink()
    disk = make_private_folder(str(shared), "assay-test")
    try:
        restore(
            str(ground.root),
            outputs,
            D_SLASH,
            measurer=ground.measurer,
            source=ground.blobs,
            staging=f"{disk}/tmp/x",
            trash=f"{disk}/trash",
            knows=ground.knows,
        )
        assert describe_tree(Path(disk, "trash")) == {"d": "folder", "d/x": "edit (executable)"}
        assert os.listdir(f"{disk}/tmp") == []
    finally:
        shutil.rmtree(disk)
    assert ground.tree() == expected


def test_a_full_disk_while_staging_changes_nothing(tmp_path: Path) -> None:
    """C89: a workspace without room for the outputs stays as it was."""
    code = """if True:
        import sys
        from pathlib import Path
        from ground import entries, node, open_ground
        from assay.engine.filesystem import DiskFull
        from assay.engine.blobs import Blobs
        disk, elsewhere = map(Path, sys.argv[1:])
        with open_ground(disk / "w") as ground:
            ground.blobs = Blobs(str(elsewhere / "cas"), str(elsewhere / "tmp"))
            ground.write("d/a", b"a" * 300_000)
            ground.write("d/b", b"b" * 900_000)
            outputs = ground.capture(node(writes=["d/"]))
            (ground.root / "d/b").unlink()
            ground.write("d/a", "edit")
            ground.write("filler", b"f" * 900_000)
            try:
                ground.restore(outputs, entries("d/"))
            except DiskFull as error:
                print(error.reason)
            print(ground.read("d/a"), (ground.root / "d/b").exists(), ground.temporary_files())
            (ground.root / "filler").unlink()
            print(ground.restore(outputs, entries("d/")).put_back)
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=2M none "$0" && exec "$@"'
    probe = ["unshare", "-rm", "sh", "-c", script, str(disk)]
    if run_python("", before=probe).returncode:
        pytest.skip("no file system may be mounted here")
    done = run_python(code, str(disk), str(tmp_path), before=probe)
    assert done.stdout.splitlines() == [
        "cannot be written: no space left on device",
        "edit False []",
        "('d/a', 'd/b')",
    ], done.stderr


RESTORE = """if True:
    import json, sys
    from pathlib import Path
    from ground import entries, open_ground
    job = json.loads(sys.argv[2])
    with open_ground(Path(sys.argv[1])) as ground:
        ground.known = {(path, state) for path, state in job["known"]}
        outputs = tuple((path, state) for path, state in job["outputs"])
        done = ground.restore(outputs, entries(*job["writes"]))
        print(list(done.put_back), list(done.removed))
"""
"""Restores in a process of its own: the workspace and `job` are its arguments."""


def job(outputs: Outputs, ground: Ground, writes: tuple[str, ...] = ("d/",)) -> dict[str, object]:
    return {"outputs": outputs, "known": sorted(ground.known), "writes": writes}


FAULTY_CALLS = ("rename", "link,linkat", "unlink", "mkdir", "rmdir", "symlink", "write", "openat")
"""The system calls of a restore that are tried. `openat` stands for whatever is between the
others; only some are."""

FAULTS = [("signal=KILL", call) for call in FAULTY_CALLS] + [
    # A failing `openat` mostly fails Python's own start.
    ("error=EIO", call)
    for call in FAULTY_CALLS
    if call != "openat"
]


@pytest.mark.parametrize(("fault", "call"), FAULTS)
def test_a_restore_broken_anywhere_is_completed_by_the_next(
    tmp_path: Path, fault: str, call: str
) -> None:
    """Killed or refused at every rename and the like: each path is old or as recorded, a hand
    edit is in place or in the trash, and repeating completes it."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    template = tmp_path / "template"
    with open_ground(template) as ground:
        ground.write("d/gone/old", "left over")
        ground.write("d/turned", "was a file")
        ground.write("d/kept", "kept")
        ground.capture(node(writes=["d/"]))
        shutil.rmtree(ground.root / "d")
        ground.write("d/a", "new a", 0o755)
        ground.write("d/b", "new b")
        ground.write("d/kept", "kept")
        ground.write("d/turned/x", "new x")
        ground.write("d/deep/er/y", "new y")
        ground.link("d/l", "a")
        (ground.root / "d/e").mkdir()
        outputs = ground.capture(node(writes=["d/"]))
        wanted = ground.tree()
        shutil.rmtree(ground.root / "d")
        ground.write("d/gone/old", "left over")
        ground.write("d/turned", "was a file")
        ground.write("d/kept", "kept")
        ground.write("d/b", "edited by hand")
        ground.write("d/stray", "mine")
        ground.link("d/deep", "victim")
        ground.write("d/victim/er/y", "precious")
        old = ground.tree()
        words = json.dumps(job(outputs, ground))
    wanted |= {"d/stray": "mine", "d/victim": "folder", "d/victim/er": "folder"}
    wanted |= {"d/victim/er/y": "precious"}
    precious = {"edited by hand", "mine", "precious", "-> victim"}
    allowed = {path: {old.get(path), wanted.get(path)} for path in {*old, *wanted}}
    # Here a link or a file makes way for a folder.
    for path in ("d/deep", "d/turned"):
        allowed[path].add(None)
    if call == "link,linkat" and fault == "error=EIO":
        # Without hard links what is replaced is moved to the trash first.
        allowed["d/b"].add(None)
    step = 40 if call == "openat" else 1
    number, hits = step, 0
    while True:
        root = tmp_path / f"at-{number}"
        shutil.copytree(template, root, symlinks=True)
        seen = tmp_path / "trace"
        options = ["-qq", "-f", "-o", str(seen), "-e", f"trace={call}"]
        inject = ["-e", f"inject={call}:{fault}:when={number}"]
        done = run_python(RESTORE, str(root), words, before=["strace", *options, *inject])
        # A killed process writes no end to its last call.
        if "(INJECTED)" not in seen.read_text() and done.returncode == 0:
            break
        hits += 1
        found = describe_tree(root)
        for path in {*found, *allowed}:
            assert found.get(path) in allowed.get(path, ()), (path, found.get(path), number)
        waste = describe_tree(root / ".assay/trash")
        assert precious <= {*found.values(), *waste.values()}
        again = run_python(RESTORE, str(root), words)
        assert again.returncode == 0, again.stderr
        assert describe_tree(root) == wanted
        waste = describe_tree(root / ".assay/trash")
        assert precious <= {*wanted.values(), *waste.values()}
        shutil.rmtree(root)
        number += step
    assert describe_tree(root) == wanted
    assert hits > 0


def test_a_tree_that_cannot_be_listed_is_no_restore(ground: Ground) -> None:
    """Nobody can say what is left over in it: named, and nothing is changed."""
    ground.write("d/x", "1")
    outputs = ground.capture(node(writes=["d/"]))
    ground.write("d/closed/y", "2")
    (ground.root / "d/x").unlink()
    (ground.root / "d/closed").chmod(0)
    code = """if True:
        import json, sys
        from pathlib import Path
        from ground import entries, open_ground
        from assay.engine.materialize import CannotRestore, find_left_over
        outputs = tuple(map(tuple, json.loads(sys.argv[2])))
        with open_ground(Path(sys.argv[1])) as ground:
            print(find_left_over(outputs, entries("d/"), ground.measurer, ground.knows))
            try:
                ground.restore(outputs, entries("d/"))
            except CannotRestore as error:
                print(error)
    """
    done = run_python(code, str(ground.root), json.dumps(outputs), obeys_modes=True)
    (ground.root / "d/closed").chmod(0o755)
    assert done.stdout.splitlines() == [
        "('d/closed',)",
        "`d/closed` cannot be listed: permission denied",
    ], done.stderr
    assert not (ground.root / "d/x").exists()


def test_knowing_nothing_loses_nothing(ground: Ground) -> None:
    """With a store that forgot its rows every file in the way is kept in the trash."""
    ground.write("d/x", "1")
    outputs = ground.capture(node(writes=["d/"]))
    ground.known.clear()
    ground.write("d/x", "other")
    done = ground.restore(outputs, D_SLASH)
    assert [Path(place).read_text() for _, place in done.trashed] == ["other"]


def test_folder_and_absent_states_need_no_blob(ground: Ground) -> None:
    """A record of empty folders is restored from an empty store."""
    outputs = ((RelPath("d/e/f"), FOLDER), (RelPath("o"), ABSENT))
    assert ground.restore(outputs, D_SLASH).put_back == ("d/e/f",)
    assert ground.tree() == {"d": "folder", "d/e": "folder", "d/e/f": "folder"}
    assert ground.blob_paths() == []


def test_a_name_too_long_for_the_disk_is_an_error_of_the_host(ground: Ground) -> None:
    """Typed, before anything else changed."""
    name = ground.blobs.put_bytes(b"x")
    outputs = ((RelPath("y" * 256), State(f"file:{name}")),)
    with pytest.raises(Exception, match=os.strerror(errno.ENAMETOOLONG).lower()):
        ground.restore(outputs, ())
    assert ground.temporary_files() == []
