"""Pre-images: everything an attempt may change comes back byte for byte and mode for mode."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blake3 import blake3
from ground import Ground, node, open_ground, run_python

from assay.engine import preimages
from assay.engine.blobs import BlobCorrupt, BlobMissing
from assay.engine.filesystem import FilesystemError
from assay.engine.outputs import states_before
from assay.engine.preimages import DamagedPreimage, Preimage, RolledBack
from assay.engine.states import State
from assay.plans.model import Node, RelPath

ATTEMPT = "aaaaaaaa-1"


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with open_ground(tmp_path / "w") as ground:
        yield ground


def place(ground: Ground) -> str:
    return preimages.path_of(ground.store.preimages, ATTEMPT)


def take(ground: Ground, declared: Node) -> Preimage:
    return preimages.take(declared, ground.measurer, ground.blobs, place(ground))


def made_by(ground: Ground, declared: Node) -> dict[RelPath, State]:
    """What an attempt that ended well is known to have left."""
    return states_before(declared, ground.measurer)


def roll_back(ground: Ground, made: dict[RelPath, State] | None = None) -> RolledBack:
    """As whoever finds the attempt does it: by what is kept on disk. `made` None: nobody knows
    what the attempt has left."""
    found = preimages.load(place(ground))
    assert found is not None
    return preimages.roll_back(
        found,
        made,
        measurer=ground.measurer,
        blobs=ground.blobs,
        staging=f"{ground.store.tmp}/{ATTEMPT}.stage",
        trash=f"{ground.store.trash}/{ATTEMPT}",
        stays={},
    )


def everything(root: Path) -> dict[str, tuple[str, int, bytes]]:
    """Path to type, permission bits and content of all that stands below `root`."""
    found: dict[str, tuple[str, int, bytes]] = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            info = path.lstat()
            if name == ".assay":
                folders.remove(name)
            elif stat.S_ISLNK(info.st_mode):
                found[str(path.relative_to(root))] = ("link", 0, os.fsencode(path.readlink()))
            else:
                is_file = stat.S_ISREG(info.st_mode)
                content = path.read_bytes() if is_file else b""
                kind = "file" if is_file else str(stat.S_IFMT(info.st_mode))
                found[str(path.relative_to(root))] = (kind, stat.S_IMODE(info.st_mode), content)
    return found


# Every kind of change to every kind of file.


DECLARED = node(writes=["d/", "f", "new", "g/*.txt"], removes=["old", "folder"])


def build(ground: Ground) -> None:
    """What stands before: one of each."""
    for path, mode in {
        "d/plain": 0o644,
        "d/secret": 0o600,
        "d/tool": 0o755,
        "d/odd": 0o5641,
        "d/private/x": 0o640,
        "d/private/deep/y": 0o644,
        "d/locked/f": 0o444,
        "d/new\nline": 0o644,
        "d/\udcff": 0o644,
        "f": 0o664,
        "g/a.txt": 0o644,
        "g/b.txt": 0o600,
        "g/other": 0o644,
        "old": 0o604,
        "folder/in/z": 0o644,
        "mine": 0o644,
    }.items():
        ground.write(path, f"of {path}".encode("utf-8", "surrogateescape"), mode)
    (ground.root / "d/empty").mkdir()
    (ground.root / "d/empty").chmod(0o711)
    (ground.root / "d/private").chmod(0o700)
    (ground.root / "d/locked").chmod(0o555)
    ground.link("d/link", "plain")
    ground.link("d/dangling", "nowhere")
    ground.link("d/to-folder", "private")
    ground.link("d/outside", "/")


def change_mode(path: str, mode: int) -> Callable[[Path], None]:
    return lambda root: (root / path).chmod(mode)


@contextmanager
def opened(folder: Path) -> Iterator[None]:
    """A command that changes what is in a read-only folder has opened it first."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(0o755)
    yield
    folder.chmod(mode)


def replace_locked(root: Path) -> None:
    with opened(root / "d/locked"):
        (root / "d/locked/f").unlink()
        (root / "d/locked/g").write_text("new")
        (root / "d/locked/sub").mkdir()


def remove_all(root: Path) -> None:
    (root / "d/locked").chmod(0o755)
    shutil.rmtree(root / "d")


def instead_of(path: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """What stands at `path` goes, and `make` puts something else there."""

    def change(root: Path) -> None:
        there = root / path
        if there.is_dir() and not there.is_symlink():
            (root / "d/locked").chmod(0o755)
            shutil.rmtree(there)
        else:
            there.unlink()
        make(there)

    return change


def a_file(path: Path) -> None:
    path.write_text("instead")


def a_folder(path: Path) -> None:
    (path / "sub/sub").mkdir(parents=True)
    (path / "sub/sub/x").write_text("x")
    (path / "y").write_text("y")


def a_link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def write_new(root: Path) -> None:
    for path in ("d/new", "d/private/new", "d/n/e/w", "d/n/x", "new", "g/new.txt", "d/\udcfe"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("new")
    (root / "d/hollow/hollow").mkdir(parents=True)
    (root / "d/new-link").symlink_to("plain")


CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda root: None,
    "edited": lambda root: (root / "d/plain").write_text("edited"),
    "cut to nothing": lambda root: (root / "d/plain").write_bytes(b""),
    "written in place by another name": lambda root: (root / "d/link").write_text("edited"),
    "secret opened": change_mode("d/secret", 0o644),
    "plain closed": change_mode("d/plain", 0o600),
    "tool no tool": change_mode("d/tool", 0o644),
    "plain a tool": change_mode("d/plain", 0o755),
    "odd bits gone": change_mode("d/odd", 0o644),
    "folder opened": change_mode("d/private", 0o755),
    "folder unlocked": change_mode("d/locked", 0o755),
    "folder shut": change_mode("d/private", 0o500),
    "tree shut": change_mode("d", 0o555),
    "empty folder opened": change_mode("d/empty", 0o777),
    "removed": lambda root: (root / "d/private/deep/y").unlink(),
    "removed with its folder": lambda root: shutil.rmtree(root / "d/private/deep"),
    "renamed": lambda root: (root / "d/plain").rename(root / "d/named"),
    "folder renamed": lambda root: (root / "d/private").rename(root / "d/public"),
    "swapped": lambda root: (root / "d/plain").replace(root / "d/tool"),
    "in a locked folder": replace_locked,
    "all gone": remove_all,
    "new ones": write_new,
    "a file now a folder": instead_of("d/plain", a_folder),
    "a file now an empty folder": instead_of("d/plain", Path.mkdir),
    "a file now a link": instead_of("d/plain", a_link("tool")),
    "a file now a link to outside": instead_of("d/plain", a_link("/bin")),
    "a folder now a file": instead_of("d/private", a_file),
    "a folder now an empty one": instead_of("d/private", Path.mkdir),
    "a folder now a link": instead_of("d/private", a_link("locked")),
    "a folder now a dangling link": instead_of("d/private", a_link("nowhere")),
    "a folder now a link to outside": instead_of("d/private", a_link("/")),
    "the tree now a file": instead_of("d", a_file),
    "the tree now a link": instead_of("d", a_link("g")),
    "the tree now a link to outside": instead_of("d", a_link("/bin")),
    "the tree now an empty folder": instead_of("d", Path.mkdir),
    "an empty folder filled": lambda root: a_folder(root / "d/empty"),
    "an empty folder gone": lambda root: (root / "d/empty").rmdir(),
    "an empty folder now a file": instead_of("d/empty", a_file),
    "an empty folder now a link": instead_of("d/empty", a_link("private")),
    "a link to elsewhere": instead_of("d/link", a_link("tool")),
    "a link gone": lambda root: (root / "d/link").unlink(),
    "a link now a file": instead_of("d/link", a_file),
    "a link to a folder now a folder": instead_of("d/to-folder", a_folder),
    "a dangling link now a file": instead_of("d/dangling", a_file),
    "a dangling link that leads somewhere": lambda root: (root / "d/nowhere").write_text("now"),
    "a link to outside gone": lambda root: (root / "d/outside").unlink(),
    "a newline edited": lambda root: (root / "d/new\nline").write_text("edited"),
    "no utf-8 gone": lambda root: (root / "d/\udcff").unlink(),
    "the file now a folder": instead_of("f", a_folder),
    "the file gone": lambda root: (root / "f").unlink(),
    "the new file a folder": lambda root: a_folder(root / "new"),
    "the new file an empty folder": lambda root: (root / "new").mkdir(),
    "a match edited": lambda root: (root / "g/a.txt").write_text("edited"),
    "a match gone": lambda root: (root / "g/b.txt").unlink(),
    "all matches gone": lambda root: shutil.rmtree(root / "g"),
    "what is removed gone": lambda root: (root / "old").unlink(),
    "what is removed still there": lambda root: (root / "old").write_text("edited"),
    "a removed folder gone": lambda root: shutil.rmtree(root / "folder"),
    "a removed folder now a file": instead_of("folder", a_file),
    "a removed folder half gone": lambda root: (root / "folder/in/z").unlink(),
}
"""What commands do to their writes and removes."""

UNDECLARED = {"all matches gone": {"g/other"}}
"""What is gone with a folder and nobody declared."""

UNRECORDED = {
    *("the tree now a file", "the file now a folder", "the new file a folder"),
    *("what is removed still there", "a removed folder now a file"),
}
"""What no attempt that ended well leaves, so that nobody has recorded it."""


def check_change(root: Path, name: str, *, succeeds: bool) -> None:
    """Take, change, roll back: all is as before, at once and when it is done again."""
    with open_ground(root) as ground:
        build(ground)
        before = everything(root)
        for path in UNDECLARED.get(name, ()):
            del before[path]
        take(ground, DECLARED)
        CHANGES[name](root)
        made = made_by(ground, DECLARED) if succeeds else None
        done = roll_back(ground, made)
        assert everything(root) == before
        if succeeds and name not in UNRECORDED:
            assert done.trashed == ()
            assert ground.waste() == {}
        assert roll_back(ground, made) == RolledBack()
        assert everything(root) == before
        assert ground.temporary_files() == []


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_command_did_is_taken_back(tmp_path: Path, name: str) -> None:
    """C100: whatever it was, all is as before; nothing the attempt is known to have made is
    kept, and a second time finds nothing to do."""
    check_change(tmp_path / "w", name, succeeds=True)


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_failed_command_did_is_taken_back(tmp_path: Path, name: str) -> None:
    """C100: also where nobody recorded what it had made."""
    check_change(tmp_path / "w", name, succeeds=False)


EVERY_CHANGE = """
import importlib.util, os, shutil, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("itself", sys.argv[1])
itself = importlib.util.module_from_spec(spec)
spec.loader.exec_module(itself)
for number, name in enumerate(itself.CHANGES):
    try:
        itself.check_change(Path(sys.argv[2], str(number)), name, succeeds=True)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""


def test_whoever_is_not_root_can_take_back_as_much(tmp_path: Path) -> None:
    """Read-only folders of one's own are no obstacle."""
    done = run_python(EVERY_CHANGE, __file__, str(tmp_path), obeys_modes=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_what_changed_is_named(ground: Ground) -> None:
    """Sorted: what was put back, and what the attempt had made and is gone."""
    build(ground)
    take(ground, DECLARED)
    write_new(ground.root)
    for path in ("d/tool", "d/plain", "old"):
        (ground.root / path).unlink()
    done = roll_back(ground, made_by(ground, DECLARED))
    assert done.put_back == ("d/plain", "d/tool", "old")
    assert done.removed == (
        *("d/n/e/w", "d/n/x", "d/new", "d/new-link", "d/private/new", "d/\udcfe"),
        *("g/new.txt", "new"),
    )
    assert done.trashed == ()


def test_folders_that_were_made_for_the_command_go(ground: Ground) -> None:
    """Those above declared writes that were missing, as far as nobody uses them."""
    declared = node(writes=["a/b/c/file", "x/y/tree/", "p/q/*.txt", "s/t"])
    take(ground, declared)
    for path in ("a/b/c/file", "x/y/tree/n/f", "p/q/1.txt", "s/t", "s/mine"):
        ground.write(path, "new")
    roll_back(ground, made_by(ground, declared))
    assert ground.tree() == {"s": "folder", "s/mine": "new"}


def test_folders_that_were_there_stay(ground: Ground) -> None:
    """Also when they are empty again, inside a written tree and above a written file."""
    for folder in ("a", "d/e"):
        (ground.root / folder).mkdir(parents=True)
    declared = node(writes=["a/file", "d/", "g/x"])
    take(ground, declared)
    for path in ("a/file", "d/e/f", "d/n/f", "g/x"):
        ground.write(path, "new")
    roll_back(ground, made_by(ground, declared))
    assert ground.tree() == {"a": "folder", "d": "folder", "d/e": "folder"}


def test_what_is_excluded_is_not_looked_at(ground: Ground) -> None:
    """It is neither kept nor put back nor taken for something new."""
    ground.write("d/in", "1")
    ground.write("d/out/x", "1")
    take(ground, node(writes=["d/", "!d/out"]))
    for path in ("d/in", "d/out/x", "d/out/y"):
        ground.write(path, "2")
    roll_back(ground)
    assert ground.tree() == {
        "d": "folder",
        "d/in": "1",
        "d/out": "folder",
        "d/out/x": "2",
        "d/out/y": "2",
    }


# What somebody else put there.


def test_an_edit_made_meanwhile_is_kept_and_named(ground: Ground) -> None:
    """C101: the user's work is in the trash with its content, the tree as before."""
    ground.write("d/x", "before")
    ground.write("d/y", "before")
    declared = node(writes=["d/"])
    take(ground, declared)
    ground.write("d/x", "made")
    ground.write("d/new", "made")
    made = made_by(ground, declared)
    ground.write("d/x", "mine")
    ground.write("d/y", "mine too")
    ground.write("d/sub/note", "and mine")
    done = roll_back(ground, made)
    assert ground.tree() == {
        "d": "folder",
        "d/sub": "folder",
        "d/sub/note": "and mine",
        "d/x": "before",
        "d/y": "before",
    }
    assert [path for path, _ in done.trashed] == ["d/x", "d/y"]
    assert [Path(at).read_text() for _, at in done.trashed] == ["mine", "mine too"]
    assert all(Path(at).is_absolute() for _, at in done.trashed)
    assert (done.removed, done.left) == (("d/new",), ("d/sub/note",))


def test_what_an_attempt_made_and_somebody_edited_is_kept_and_named(ground: Ground) -> None:
    """C101: it was not there before, so it goes; it is not what was made, so it is not lost."""
    declared = node(writes=["d/"])
    take(ground, declared)
    ground.write("d/new", "made")
    made = made_by(ground, declared)
    ground.write("d/new", "mine by now")
    done = roll_back(ground, made)
    assert ground.tree() == {}
    [(path, at)] = done.trashed
    assert (path, Path(at).read_text()) == ("d/new", "mine by now")
    assert (done.removed, done.left) == ((), ())


def test_where_nobody_knows_what_was_made_all_that_is_new_is_kept(ground: Ground) -> None:
    """C101: it may be the work of the attempt, or of a user: in the trash it is neither lost
    nor in the way."""
    (ground.root / "d").mkdir()
    take(ground, node(writes=["d/"]))
    ground.write("d/sub/note", "mine")
    done = roll_back(ground)
    assert ground.tree() == {"d": "folder"}
    assert [path for path, _ in done.trashed] == ["d/sub/note"]
    assert done.left == ()


def test_what_came_since_makes_way_for_what_was_there(ground: Ground) -> None:
    """C101: it is in the trash with the folder it was put into, and only said to be there."""
    ground.write("d/x", "before")
    declared = node(writes=["d/"])
    take(ground, declared)
    (ground.root / "d/x").unlink()
    ground.write("d/x/made", "made")
    made = made_by(ground, declared)
    ground.write("d/x/mine", "mine")
    done = roll_back(ground, made)
    assert ground.tree() == {"d": "folder", "d/x": "before"}
    assert "mine" in ground.waste().values()
    assert done.left == ()
    assert all("d/x".startswith(path) or path == "d/x/mine" for path, _ in done.trashed)


def test_an_edit_is_named_beside_a_link_whose_target_moved(ground: Ground) -> None:
    """C101: that a link leads to other content by now hides nothing of what was done."""
    ground.write("target", "before")
    ground.link("d/link", "../target")
    ground.write("d/x", "before")
    declared = node(writes=["d/"])
    take(ground, declared)
    (ground.root / "d/link").unlink()
    ground.write("d/new", "made")
    made = made_by(ground, declared)
    ground.write("target", "another one's")
    ground.write("d/x", "mine")
    done = roll_back(ground, made)
    assert ground.tree() == {
        "d": "folder",
        "d/link": "-> ../target",
        "d/x": "before",
        "target": "another one's",
    }
    assert [path for path, _ in done.trashed] == ["d/x"]
    assert (done.put_back, done.removed) == (("d/link", "d/x"), ("d/new",))


def test_every_trash_is_a_new_folder(ground: Ground) -> None:
    """Rolling back twice never overwrites what the first time kept."""
    ground.write("f", "before")
    take(ground, node(writes=["f"]))
    for text in ("one", "two"):
        ground.write("f", text)
        roll_back(ground)
    assert sorted(ground.waste().values()) == ["folder", "folder", "one", "two"]


def test_what_was_never_changed_is_not_touched(ground: Ground) -> None:
    """Inode and stamps of files that are as before stay."""
    build(ground)
    take(ground, DECLARED)
    before = (ground.root / "d/plain").stat()
    (ground.root / "d/tool").write_text("edited")
    roll_back(ground)
    after = (ground.root / "d/plain").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


@pytest.mark.parametrize("done", ["d/plain", "d/private/x", "d/new", "f", "old"])
def test_it_is_completed_after_a_crash_in_the_middle(ground: Ground, done: str) -> None:
    """C101: one path is as before already and the rest not yet; what is staged is in nobody's
    way."""
    build(ground)
    before = everything(ground.root)
    content = (ground.root / done).read_bytes() if done in before else None
    take(ground, DECLARED)
    write_new(ground.root)
    for path in ("d/plain", "d/private/x", "f"):
        (ground.root / path).write_text("edited")
    (ground.root / "old").unlink()
    (ground.root / "d/private").chmod(0o755)
    made = made_by(ground, DECLARED)
    left = Path(ground.store.tmp, f"{ATTEMPT}.stage-1-0")
    left.mkdir()
    (left / "0").write_text("half")
    if content is None:
        (ground.root / done).unlink()
    else:
        (ground.root / done).write_bytes(content)
    roll_back(ground, made)
    assert everything(ground.root) == before
    assert ground.waste() == {}


KILLED = """
import importlib.util, os, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("itself", sys.argv[1])
itself = importlib.util.module_from_spec(spec)
spec.loader.exec_module(itself)
with itself.open_ground(Path(sys.argv[2])) as ground:
    itself.roll_back(ground)
"""


@pytest.mark.parametrize("call", ["rename", "unlink", "mkdir", "rmdir", "chmod", "fsync"])
def test_killed_at_any_change_it_is_completed(tmp_path: Path, call: str) -> None:
    """C101: dead before its n-th rename, removal, mode or sync, the next one completes it."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not there")
    number = 0
    while True:
        number += 1
        root = tmp_path / str(number)
        with open_ground(root) as ground:
            for path, mode in {"d/a": 0o600, "d/s/b": 0o644, "e": 0o755, "old": 0o644}.items():
                ground.write(path, path, mode)
            (root / "d/s").chmod(0o700)
            (root / "d/h").mkdir()
            before = everything(root)
            take(ground, node(writes=["d/", "e", "n/new"], removes=["old"]))
            shutil.rmtree(root / "d/s")
            (root / "d/s").write_text("a file now")
            (root / "d/h").rmdir()
            (root / "d/a").chmod(0o644)
            (root / "e").write_text("edited")
            (root / "old").unlink()
            ground.write("n/new", "new")
        inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
        killed = run_python(
            KILLED, __file__, str(root), before=["strace", "-f", "-qq", "-o", "/dev/null", *inject]
        )
        with open_ground(root) as ground:
            roll_back(ground)
            assert everything(root) == before
        if killed.returncode == 0:
            break
    assert number > 1


# What is kept.


def test_it_is_kept_whole_with_all_its_blobs(ground: Ground) -> None:
    """C100: what was taken and what is loaded are one, the file is the owner's alone, and
    every blob it names is there."""
    build(ground)
    taken = take(ground, DECLARED)
    assert preimages.load(place(ground)) == taken
    assert stat.S_IMODE(os.stat(place(ground)).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(ground.store.preimages).st_mode) == 0o700
    assert os.listdir(ground.store.preimages) == [ATTEMPT]
    assert taken.digests
    for digest in taken.digests:
        ground.blobs.get_bytes(digest)
    assert preimages.in_use(ground.store.preimages, [ATTEMPT, "nobody-1"]) == taken.digests


def test_where_nothing_stands_there_is_something_to_keep(ground: Ground) -> None:
    """That there was nothing is known, and is not the same as not having looked."""
    assert preimages.load(place(ground)) is None
    declared = node(writes=["n", "t/", "*.x"], removes=["r"])
    taken = take(ground, declared)
    assert preimages.load(place(ground)) == taken
    assert (taken.entries, taken.digests) == ((), frozenset())
    for path in ("n", "t/a", "b.x"):
        ground.write(path, "1")
    roll_back(ground)
    assert ground.tree() == {}


def test_a_node_that_declares_nothing_has_one_too(ground: Ground) -> None:
    """Its effects are all elsewhere."""
    ground.write("mine", "1")
    take(ground, node())
    ground.write("mine", "2")
    assert roll_back(ground) == RolledBack()
    assert ground.tree() == {"mine": "2"}


def test_dropping_it_twice_is_harmless(ground: Ground) -> None:
    """Whoever is done with it need not know whether somebody else was faster."""
    take(ground, node(writes=["f"]))
    preimages.drop(place(ground))
    preimages.drop(place(ground))
    assert preimages.load(place(ground)) is None


def test_taking_it_again_replaces_it(ground: Ground) -> None:
    """The last look counts, and nothing half written is left."""
    for text in ("one", "two"):
        ground.write("f", text)
        take(ground, node(writes=["f"]))
    ground.write("f", "three")
    roll_back(ground)
    assert ground.read("f") == "two"
    assert os.listdir(ground.store.preimages) == [ATTEMPT]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[:-1],
    "cut in the digest": lambda data: data[:40],
    "longer": lambda data: data + b"\n",
    "a flipped bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "another kind of file": lambda data: b"X" + data[1:],
    "zeros": lambda data: bytes(len(data)),
    "not ascii": lambda data: data[:-3] + b"\xff\xff}",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_preimage_is_refused(ground: Ground, damage: str) -> None:
    """C87: nothing is put back by guess; the sentence names the file."""
    ground.write("f", "before")
    take(ground, node(writes=["f"]))
    path = Path(place(ground))
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(DamagedPreimage) as caught:
        preimages.load(str(path))
    assert str(caught.value) == f"`{path}` is not as it was written"
    # And the blobs of the others are still known.
    assert preimages.in_use(ground.store.preimages, [ATTEMPT]) == frozenset()


def test_a_preimage_that_cannot_be_read_is_refused(ground: Ground) -> None:
    """It is not taken for one that never was."""
    Path(place(ground)).mkdir(parents=True)
    with pytest.raises(DamagedPreimage, match="cannot be read: Is a directory"):
        preimages.load(place(ground))


def blob_of(ground: Ground, content: str) -> Path:
    name = blake3(content.encode()).hexdigest()
    return Path(ground.store.cas, name[:2], name[2:])


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_a_damaged_blob_changes_nothing(ground: Ground, damage: str) -> None:
    """C17, C87: neither the file it is of nor any other is touched, and once the blob is there
    again all comes back."""
    ground.write("a", "of a")
    ground.write("b", "of b")
    before = ground.tree()
    take(ground, node(writes=["a", "b", "n"]))
    path = blob_of(ground, "of b")
    path.chmod(0o644)
    if damage == "gone":
        path.unlink()
    else:
        path.write_text("of" if damage == "short" else "xf b")
    for name in ("a", "b", "n"):
        ground.write(name, "edited")
    edited = ground.tree()
    with pytest.raises(BlobMissing if damage == "gone" else BlobCorrupt):
        roll_back(ground)
    assert ground.tree() == edited
    assert ground.waste() == {}
    path.parent.mkdir(exist_ok=True)
    path.write_text("of b")
    roll_back(ground)
    assert ground.tree() == before


@pytest.mark.parametrize("count", [1, 2, 6, 20])
def test_blobs_that_are_damaged_already_are_healed(ground: Ground, count: int) -> None:
    """C17: what the store holds of these files is read before the command may change them;
    however many are damaged, they are kept aside and stored anew."""
    declared = node(writes=["d/"])
    for number in range(count):
        ground.write(f"d/{number}", f"content {number}")
    ground.capture(declared)
    before = ground.tree()
    for number in range(count):
        path = blob_of(ground, f"content {number}")
        path.chmod(0o644)
        path.write_text(f"CONTENT {number}")
    ground.settle()
    take(ground, declared)
    shutil.rmtree(ground.root / "d")
    roll_back(ground)
    assert ground.tree() == before
    assert len(list(Path(ground.store.folder, "damaged").iterdir())) == count


# What cannot be kept is refused, before anything is written.


def refuse(ground: Ground, declared: Node) -> str:
    """Why no pre-image is taken, with the path relative to the workspace; nothing is kept."""
    before = everything(ground.root)
    with pytest.raises(FilesystemError) as caught:
        take(ground, declared)
    assert preimages.load(place(ground)) is None
    assert everything(ground.root) == before
    return str(caught.value).replace(f"{ground.root}/", "")


@pytest.mark.parametrize("written", ["link/f", "link/t/", "link/*.x", "link/s/f"])
def test_a_link_above_a_declared_write_is_refused(ground: Ground, written: str) -> None:
    """Under its other name it would not be put back."""
    (ground.root / "real/s").mkdir(parents=True)
    ground.link("link", "real")
    assert refuse(ground, node(writes=[written])) == (
        f"`link` stands above `{written}`, which could not be rolled back"
    )


def test_a_declared_tree_that_is_a_link_is_refused(ground: Ground) -> None:
    """What is written below it is written into the folder it leads to, and would stay."""
    ground.write("real/f", "1")
    ground.link("d", "real")
    assert "`d`" in refuse(ground, node(writes=["d/"]))


def test_a_link_above_a_declared_removal_is_refused(ground: Ground) -> None:
    """As for writes."""
    ground.write("real/f", "1")
    ground.link("link", "real")
    assert refuse(ground, node(removes=["link/f"])) == (
        "`link` stands above `link/f`, which could not be rolled back"
    )


def test_a_link_above_what_is_excluded_matters_to_nobody(ground: Ground) -> None:
    """It is no place that may change."""
    ground.write("real/f", "1")
    ground.link("d/link", "../real")
    take(ground, node(writes=["d/", "!d/link/f"]))
    (ground.root / "d/link").unlink()
    roll_back(ground)
    assert ground.tree()["d/link"] == "-> ../real"


def test_a_file_above_a_declared_write_is_refused(ground: Ground) -> None:
    """What stands there is not among what would be put back."""
    ground.write("d", "a file")
    assert refuse(ground, node(writes=["d/f"])) == (
        "`d` stands above `d/f`, which could not be rolled back"
    )


def test_a_socket_or_pipe_in_a_written_tree_is_refused(ground: Ground) -> None:
    """It cannot be kept, so the command does not start."""
    (ground.root / "d").mkdir()
    here = Path.cwd()
    os.chdir(ground.root / "d")  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("s")
    finally:
        os.chdir(here)
    assert refuse(ground, node(writes=["d/"])) == "`d/s` is a socket"
    (ground.root / "d/s").unlink()
    os.mkfifo(ground.root / "d/p")
    assert refuse(ground, node(writes=["d/"])) == "`d/p` is a named pipe"


def test_a_declared_file_that_is_a_folder_is_refused(ground: Ground) -> None:
    """Only a tree could be put back; the sentence says how to declare one."""
    ground.write("d/f", "1")
    assert refuse(ground, node(writes=["d"])) == (
        "`d` is a folder that could not be rolled back: declare it as `d/`"
    )


def test_a_declared_file_that_is_an_empty_folder_comes_back_empty(ground: Ground) -> None:
    """Whatever the command puts into it."""
    (ground.root / "d").mkdir()
    declared = node(writes=["d"])
    take(ground, declared)
    ground.write("d/f", "1")
    roll_back(ground)
    assert ground.tree() == {"d": "folder"}


UNREADABLE = """
import os, sys
from pathlib import Path
from ground import node, open_ground
from assay.engine import preimages
from assay.engine.filesystem import FilesystemError
with open_ground(Path(sys.argv[1])) as ground:
    ground.write("f", "1", 0o200)
    ground.write("d/in/x", "1")
    (ground.root / "d/in").chmod(0)
    for written in ("f", "d/", "d/in/x"):
        try:
            preimages.take(
                node(writes=[written]), ground.measurer, ground.blobs, ground.store.preimages + "/a"
            )
        except FilesystemError as error:
            print(str(error).replace(sys.argv[1] + "/", ""))
    print(os.path.exists(ground.store.preimages))
    (ground.root / "d/in").chmod(0o700)
"""


def test_what_may_not_be_read_is_refused(tmp_path: Path) -> None:
    """A file without permission, and a folder that may be neither listed nor searched."""
    done = run_python(UNREADABLE, str(tmp_path / "w"), obeys_modes=True)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third, made = done.stdout.splitlines()
    assert first == "`f` cannot be read: permission denied"
    assert second == "`d/in` cannot be listed: permission denied"
    assert third.startswith("`d/in")
    assert third.endswith(": permission denied")
    assert made == "False"


SHUT = """
import sys
from pathlib import Path
from ground import node, open_ground
from assay.engine import preimages
from assay.engine.filesystem import FilesystemError
with open_ground(Path(sys.argv[1])) as ground:
    ground.write("d/in/x", "1")
    kept = preimages.take(
        node(writes=[sys.argv[2]]), ground.measurer, ground.blobs, ground.store.preimages + "/a"
    )
    ground.write("d/in/x", "2")
    (ground.root / "d/in").chmod(0)
    try:
        preimages.roll_back(
            kept,
            {},
            measurer=ground.measurer,
            blobs=ground.blobs,
            staging=ground.store.tmp + "/s",
            trash=ground.store.trash + "/t",
            stays={},
        )
    except FilesystemError as error:
        print("refused")
    (ground.root / "d/in").chmod(0o755)
    print(ground.read("d/in/x"))
"""


@pytest.mark.parametrize("written", ["d/", "d/in/x", "d/in/*"])
def test_a_folder_that_the_command_has_shut_is_told_of(tmp_path: Path, written: str) -> None:
    """It comes back, or it is an error of the host that says so: never anything else."""
    done = run_python(SHUT, str(tmp_path / "w"), written, obeys_modes=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("refused\n2\n", "1\n")
