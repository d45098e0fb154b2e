"""The blob store: whole or not at all, verified whenever read, never changed from outside."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from ground import Ground, open_ground, run_python

from assay.engine.blobs import BlobCorrupt, BlobMissing, Moved, StorageFull
from assay.engine.filesystem import DiskFull
from assay.engine.states import stored_digest
from assay.plans.model import Digest, RelPath


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with open_ground(tmp_path / "w") as ground:
        yield ground


def digest(content: bytes) -> Digest:
    return Digest(blake3(content).hexdigest())


def blob_path(ground: Ground, name: Digest) -> Path:
    return Path(ground.store.cas, name[:2], name[2:])


def damage(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


@pytest.mark.parametrize("size", [0, 5, 1 << 20, (9 << 20) + 1])
def test_what_is_put_comes_back(ground: Ground, tmp_path: Path, size: int) -> None:
    """A file and bytes of any size, under the digest of their content, read-only."""
    content = os.urandom(size)
    place = ground.write("file", content)
    ground.blobs.put_file(str(place), digest(content))
    assert ground.blobs.put_bytes(content) == digest(content)
    assert ground.blobs.has(digest(content))
    assert ground.blobs.size_of(digest(content)) == size
    assert ground.blobs.get_bytes(digest(content)) == content
    ground.blobs.copy_to(digest(content), str(tmp_path / "copy"), executable=False)
    assert (tmp_path / "copy").read_bytes() == content
    assert blob_path(ground, digest(content)).stat().st_mode & 0o777 == 0o444
    assert ground.temporary_files() == []


def test_modes_follow_the_umask(ground: Ground, tmp_path: Path) -> None:
    """C29: a copy is executable when asked for, however narrow the umask, and never setuid."""
    name = ground.blobs.put_bytes(b"x")
    modes = {}
    for umask in (0o022, 0o077, 0o111):
        before = os.umask(umask)
        try:
            for executable in (False, True):
                place = tmp_path / f"{umask}-{executable}"
                ground.blobs.copy_to(name, str(place), executable)
                modes[umask, executable] = place.stat().st_mode & 0o7777
        finally:
            os.umask(before)
    assert modes == {
        (0o022, False): 0o644,
        (0o022, True): 0o755,
        (0o077, False): 0o600,
        (0o077, True): 0o700,
        (0o111, False): 0o666,
        (0o111, True): 0o766,
    }


def test_a_missing_blob_is_told(ground: Ground, tmp_path: Path) -> None:
    """C17: nothing is given out for a blob that is gone, and no file is left."""
    with pytest.raises(BlobMissing):
        ground.blobs.get_bytes(digest(b"x"))
    with pytest.raises(BlobMissing):
        ground.blobs.copy_to(digest(b"x"), str(tmp_path / "copy"), executable=False)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("wrong", [b"", b"hell", b"hellp", b"hello!"])
def test_a_damaged_blob_is_told(ground: Ground, tmp_path: Path, wrong: bytes) -> None:
    """C17: cut short, a byte flipped or added: never given out, set aside on request."""
    name = ground.blobs.put_bytes(b"hello")
    damage(blob_path(ground, name), wrong)
    with pytest.raises(BlobCorrupt):
        ground.blobs.get_bytes(name)
    with pytest.raises(BlobCorrupt):
        ground.blobs.copy_to(name, str(tmp_path / "copy"), executable=False)
    assert not (tmp_path / "copy").exists()
    aside = ground.blobs.set_aside(name)
    assert aside is not None
    assert Path(aside).read_bytes() == wrong
    assert not ground.blobs.has(name)
    assert ground.blobs.set_aside(name) is None


def test_a_folder_in_a_blobs_place_is_damage(ground: Ground, tmp_path: Path) -> None:
    """Whatever stands under a blob's name, the answer is a typed one."""
    blob_path(ground, digest(b"x")).mkdir(parents=True)
    with pytest.raises(BlobCorrupt):
        ground.blobs.get_bytes(digest(b"x"))
    with pytest.raises(BlobCorrupt):
        ground.blobs.copy_to(digest(b"x"), str(tmp_path / "copy"), executable=False)


def test_a_good_blob_is_not_set_aside(ground: Ground) -> None:
    """One that another process has replaced by a good one meanwhile stays."""
    name = ground.blobs.put_bytes(b"hello")
    assert ground.blobs.set_aside(name) is None
    assert ground.blobs.get_bytes(name) == b"hello"


def test_set_aside_never_overwrites(ground: Ground) -> None:
    """Every damaged version is kept."""
    places = set()
    for wrong in (b"1", b"2", b"3"):
        name = ground.blobs.put_bytes(b"hello")
        damage(blob_path(ground, name), wrong)
        places.add(ground.blobs.set_aside(name))
    assert {Path(str(place)).read_bytes() for place in places} == {b"1", b"2", b"3"}


def test_a_blob_cut_short_is_put_again(ground: Ground) -> None:
    """C17: the next result with these bytes mends a blob that power loss has shortened."""
    name = ground.blobs.put_bytes(b"hello")
    damage(blob_path(ground, name), b"")
    place = ground.write("file", "hello")
    ground.blobs.put_file(str(place), name)
    assert ground.blobs.get_bytes(name) == b"hello"


def test_putting_again_keeps_the_blob_and_makes_it_young(ground: Ground) -> None:
    """A collection that spares young blobs spares one that a new result has just named."""
    name = ground.blobs.put_bytes(b"hello")
    place = blob_path(ground, name)
    os.utime(place, (1, 1))
    inode = place.stat().st_ino
    ground.blobs.put_bytes(b"hello")
    assert place.stat().st_ino == inode
    assert place.stat().st_mtime > 1_000_000


def test_blobs_share_nothing_with_the_workspace(ground: Ground) -> None:
    """C34: editing a stored or a restored file in place leaves the stored bytes alone."""
    place = ground.write("file", "1")
    name = digest(b"1")
    ground.blobs.put_file(str(place), name)
    ground.blobs.copy_to(name, str(ground.root / "copy"), executable=False)
    for edited in ("file", "copy"):
        with open(ground.root / edited, "a") as file:
            file.write("x")
    assert ground.blobs.get_bytes(name) == b"1"


def test_a_file_with_other_bytes_by_now_is_not_stored(ground: Ground) -> None:
    """Changed, gone, or replaced by a link, pipe or folder since it was measured."""
    name = digest(b"1")
    place = ground.write("file", "2")
    (ground.root / "folder").mkdir()
    os.mkfifo(ground.root / "pipe")
    ground.link("link", "file")
    for path in ("file", "folder", "pipe", "link", "nothing"):
        with pytest.raises(Moved):
            ground.blobs.put_file(str(ground.root / path), name)
    state = ground.state("link")
    (ground.root / "link").unlink()
    ground.link("link", "elsewhere")
    with pytest.raises(Moved):
        ground.blobs.put_state(str(ground.root), RelPath("link"), state)
    assert not ground.blobs.has(name)
    assert place.read_text() == "2"
    assert ground.temporary_files() == []


def test_a_link_is_stored_by_its_text(ground: Ground) -> None:
    """C30: the text alone, not what it leads to."""
    ground.write("file", "content")
    ground.link("link", "file")
    state = ground.state("link")
    ground.blobs.put_state(str(ground.root), RelPath("link"), state)
    assert stored_digest(state) == digest(b"file")
    assert [path.read_bytes() for path in ground.blob_paths()] == [b"file"]


def test_iterating_and_removing(ground: Ground) -> None:
    """Every blob with its size; files that are no blobs are passed over."""
    names = {ground.blobs.put_bytes(content): len(content) for content in (b"", b"a", b"bc")}
    Path(ground.store.cas, "README").write_text("x")
    blob_path(ground, Digest("ab" * 32)).parent.mkdir(exist_ok=True)
    (blob_path(ground, Digest("ab" * 32)).parent / "short").write_text("x")
    assert {name: size for name, size, _ in ground.blobs.iterate()} == names
    assert ground.blobs.remove(digest(b"a"))
    assert not ground.blobs.remove(digest(b"a"))
    assert digest(b"a") not in {name for name, _, _ in ground.blobs.iterate()}


def test_a_store_without_folders_is_empty(tmp_path: Path) -> None:
    """Nothing is made before something is put."""
    with open_ground(tmp_path / "w") as ground:
        ground.blobs.folder = str(tmp_path / "none" / "cas")
        assert list(ground.blobs.iterate()) == []
        assert not ground.blobs.has(digest(b"x"))
        assert not (tmp_path / "none").exists()
        ground.blobs.put_bytes(b"x")
        assert ground.blobs.has(digest(b"x"))


def test_many_threads_may_put_the_same_blob(ground: Ground) -> None:
    """One whole blob results and no temporary file stays."""
    content = os.urandom(300_000)
    place = ground.write("file", content)
    threads = [
        threading.Thread(target=ground.blobs.put_file, args=(str(place), digest(content)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ground.blobs.get_bytes(digest(content)) == content
    assert ground.temporary_files() == []


def test_a_left_over_of_an_equal_pid_is_stepped_over(ground: Ground) -> None:
    """Temporary names that a dead process has used already do no harm."""
    import itertools

    from assay.engine import filesystem

    number = next(filesystem._numbers)
    for ahead in range(1, 4):
        Path(ground.store.tmp, f"blob-{os.getpid()}-{number + ahead}").write_text("old")
    assert ground.blobs.get_bytes(ground.blobs.put_bytes(b"new")) == b"new"
    assert isinstance(filesystem._numbers, itertools.count)


def test_file_size_limits_are_a_full_store(ground: Ground) -> None:
    """C89: `ulimit -f` while storing is a typed error and leaves the store as it was."""
    code = """if True:
        import resource, signal, sys
        from pathlib import Path
        from blake3 import blake3
        from ground import open_ground
        from assay.engine.blobs import StorageFull
        with open_ground(Path(sys.argv[1])) as ground:
            content = b"x" * 2_000_000
            place = ground.write("file", content)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
            for put in (
                lambda: ground.blobs.put_file(str(place), blake3(content).hexdigest()),
                lambda: ground.blobs.put_bytes(content),
            ):
                try:
                    put()
                except StorageFull as error:
                    print(error.reason)
            print(list(ground.blobs.iterate()), ground.temporary_files())
    """
    done = run_python(code, str(ground.root))
    assert done.stdout.splitlines() == [
        "cannot be written: file too large",
        "cannot be written: file too large",
        "[] []",
    ], done.stderr


def test_a_full_disk_is_told_and_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    """C89: on a disk of 1 MB a large output is not stored, a small one is, and after room was
    made the large one is stored as well."""
    code = """if True:
        import sys
        from blake3 import blake3
        from assay.engine.blobs import Blobs, StorageFull
        source, disk = sys.argv[1:]
        content = open(source, "rb").read()
        blobs = Blobs(disk + "/cas", disk + "/tmp")
        filler = blobs.put_bytes(b"f" * 400_000)
        for put in (
            lambda: blobs.put_file(source, blake3(content).hexdigest()),
            lambda: blobs.put_bytes(content),
        ):
            try:
                put()
            except StorageFull as error:
                print(error.reason)
        import os
        print(os.listdir(disk + "/tmp"), [size for _, size, _ in blobs.iterate()])
        blobs.remove(filler)
        print(blobs.get_bytes(blobs.put_bytes(content)) == content)
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    source = tmp_path / "source"
    source.write_bytes(os.urandom(800_000))
    script = 'mount -t tmpfs -o size=1M none "$0" && exec "$@"'
    probe = ["unshare", "-rm", "sh", "-c", script, str(disk)]
    if run_python("", before=probe).returncode:
        pytest.skip("no file system may be mounted here")
    done = run_python(code, str(source), str(disk), before=probe)
    assert done.stdout.splitlines() == [
        "cannot be written: no space left on device",
        "cannot be written: no space left on device",
        "[] [400000]",
        "True",
    ], done.stderr


def test_no_descriptors_left_is_a_full_store(ground: Ground) -> None:
    """C89: running out of descriptors spoils no blob and names no other cause."""
    code = """if True:
        import os, resource, sys
        from pathlib import Path
        from blake3 import blake3
        from ground import open_ground
        from assay.engine.blobs import StorageFull
        with open_ground(Path(sys.argv[1])) as ground:
            place = ground.write("file", "x")
            resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
            taken = []
            try:
                while True:
                    taken.append(os.open("/", os.O_RDONLY))
            except OSError:
                pass
            reasons = []
            for spare in range(2):
                try:
                    ground.blobs.put_file(str(place), blake3(b"x").hexdigest())
                except StorageFull as error:
                    reasons.append(error.reason)
                os.close(taken.pop())
            for descriptor in taken:
                os.close(descriptor)
            print(*reasons, list(ground.blobs.iterate()), ground.temporary_files(), sep="\\n")
    """
    done = run_python(code, str(ground.root))
    assert done.stdout.splitlines() == [
        "cannot be stored: too many open files",
        "cannot be written: too many open files",
        "[]",
        "[]",
    ], done.stderr


def test_a_store_that_may_not_be_written_is_told(ground: Ground) -> None:
    """C90: a read-only folder of blobs is a typed error, not a failed build."""
    code = """if True:
        import os, sys
        from pathlib import Path
        from ground import open_ground
        from assay.engine.blobs import StorageFull
        with open_ground(Path(sys.argv[1])) as ground:
            os.makedirs(ground.store.cas, exist_ok=True)
            os.chmod(ground.store.cas, 0o555)
            try:
                ground.blobs.put_bytes(b"x")
            except StorageFull as error:
                print(error.reason, ground.temporary_files())
            os.chmod(ground.store.cas, 0o755)
    """
    done = run_python(code, str(ground.root), obeys_modes=True)
    assert done.stdout == "cannot be written: permission denied []\n", done.stderr


def test_typed_errors_can_be_told_apart() -> None:
    """A full store is no full workspace: the caller goes on without the one only."""
    assert not issubclass(StorageFull, DiskFull)
