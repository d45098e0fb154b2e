"""The door to files: looking, reading, digesting, copying, moving and removing.

Paths are absolute here. Does not know what a node, a result or a workspace is; it knows
that other programs work on the same files meanwhile, so it never follows a link it was
not asked to follow, never opens anything but plain files and never overwrites what it
did not mean to replace.

Files are read, not mapped: a mapped file that somebody truncates while it is digested
ends the process with SIGBUS. Large ones are read by one thread and digested by another,
which is about as fast.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from itertools import count
from stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG
from typing import Final

from blake3 import blake3

from assay.plans.model import Digest

WHOLE_READ_BYTES: Final = 1 << 20
"""Files up to this size are read in one go and their bytes handed out with the digest."""

_PIPELINE_BYTES: Final = 8 << 20
"""From here on a second thread costs less than it saves."""

_CHUNK_BYTES: Final = 2 << 20

_READ_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_NOTHING_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_numbers = count()


class FilesystemError(Exception):
    """The host refused something that had to be done at `path`; `reason` ends a sentence."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"`{path}` {reason}")


class DiskFull(FilesystemError):
    """No space, quota or permitted file size left for `path`."""


class ChangedMeanwhile(Exception):
    """A file was written to while it was read."""


class NotAPlainFile(Exception):
    """What was to be read is a folder, pipe, socket or device."""


def explain_error(error: OSError) -> str:
    """`permission denied`: the system's words, fit for the middle of a sentence."""
    text = os.strerror(error.errno) if error.errno else str(error)
    return text[:1].lower() + text[1:]


def cannot_write(path: str, error: OSError) -> FilesystemError:
    """The typed form of an error met while writing to `path`."""
    kind = DiskFull if error.errno in _FULL else FilesystemError
    return kind(path, f"cannot be written: {explain_error(error)}")


def look(path: str) -> os.stat_result | None:
    """The stat of what stands at `path`, a link itself for a link; None for nothing.

    Raises OSError where one cannot know, as for a folder that may not be searched.
    """
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return None
        raise
    except ValueError:
        # A name no file can have: a NUL or a lone surrogate.
        return None


def look_through(path: str) -> os.stat_result | None:
    """As `look`, but of what a link leads to; None also for a link that leads nowhere."""
    try:
        return os.stat(path)
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return None
        raise


def read_link(path: str) -> bytes:
    """A link's target text as the bytes on disk."""
    return os.readlink(os.fsencode(path))


def digest_bytes(data: bytes) -> Digest:
    return Digest(blake3(data).hexdigest())


def read_plain_file(
    path: str, *, follow: bool = False
) -> tuple[os.stat_result, Digest, bytes | None]:
    """Stat, digest and, up to `WHOLE_READ_BYTES`, the bytes of a plain file.

    The stat is from before the first byte was read and equals the one after the last.
    Never waits for a writer. Raises ChangedMeanwhile, NotAPlainFile, or OSError (ELOOP
    for a link unless `follow`).
    """
    descriptor = os.open(path, _READ_FLAGS if follow else _READ_FLAGS | os.O_NOFOLLOW)
    try:
        before = os.fstat(descriptor)
        if not S_ISREG(before.st_mode):
            raise NotAPlainFile
        size = before.st_size
        data: bytes | None = None
        if size <= WHOLE_READ_BYTES:
            data = os.read(descriptor, size + 1)
            if len(data) != size:
                # It grows or shrinks, or tells no size, as files of /proc do.
                data += b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))
            digest = blake3(data).hexdigest()
        else:
            hasher = blake3()
            for chunk in _read_chunks(descriptor, size):
                hasher.update(chunk)
            digest = hasher.hexdigest()
        after = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if (
        after.st_mtime_ns != before.st_mtime_ns
        or after.st_ctime_ns != before.st_ctime_ns
        or after.st_size != size
    ):
        raise ChangedMeanwhile
    return before, Digest(digest), data


def read_end(path: str, size: int) -> str:
    """The last `size` bytes of a file as text, empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def write_new_file(path: str, data: bytes, mode: int) -> None:
    """Makes `path`, which must not exist, with these bytes and `mode` less the umask.

    Raises FileExistsError, FileNotFoundError (no such folder), else FilesystemError;
    nothing is left at `path` then.
    """
    descriptor = _create(path, mode)
    try:
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)
    except OSError as error:
        os.unlink(path)
        raise cannot_write(path, error) from error


def copy_new_file(source: str, path: str, mode: int) -> Digest:
    """Copies the plain file `source` to `path`, which must not exist; what was copied.

    The digest is of the very bytes that were written: the caller compares it. Raises
    OSError or NotAPlainFile for trouble with `source`, FileExistsError,
    FileNotFoundError or FilesystemError for `path`; nothing is left at `path` then.
    """
    reading = os.open(source, _READ_FLAGS | os.O_NOFOLLOW)
    try:
        info = os.fstat(reading)
        if not S_ISREG(info.st_mode):
            raise NotAPlainFile
        writing = _create(path, mode)
        hasher = blake3()
        is_whole = False
        try:
            for chunk in _read_chunks(reading, info.st_size):
                hasher.update(chunk)
                try:
                    _write_all(writing, chunk)
                except OSError as error:
                    raise cannot_write(path, error) from error
            is_whole = True
        finally:
            os.close(writing)
            if not is_whole:
                os.unlink(path)
    finally:
        os.close(reading)
    return Digest(hasher.hexdigest())


def sync(path: str) -> None:
    """What the file or folder at `path` holds is on disk when this returns. Raises
    FilesystemError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_write(path, error) from error


def make_executable(path: str) -> None:
    """Sees to it that the owner may execute `path`, whatever the umask took away."""
    mode = S_IMODE(os.stat(path).st_mode)
    if not mode & 0o100:
        os.chmod(path, mode | 0o100)


def make_private_folder(parent: str, prefix: str) -> str:
    """A new folder of this process alone below `parent`, which is made when missing.
    Raises FilesystemError."""
    while True:
        path = f"{parent}/{prefix}-{os.getpid()}-{next(_numbers)}"
        try:
            os.mkdir(path, 0o700)
            return path
        except FileExistsError:
            continue
        except FileNotFoundError:
            make_folders(parent)
        except OSError as error:
            raise cannot_write(path, error) from error


def temporary_name(folder: str, prefix: str) -> str:
    """A name below `folder` that no other thread or live process on this host uses."""
    return f"{folder}/{prefix}-{os.getpid()}-{next(_numbers)}"


def make_folders(path: str) -> None:
    """`path` and what is missing above it. Raises FilesystemError."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def replace(source: str, path: str) -> None:
    """Moves the file or link `source` over `path` in one step: whoever looks sees the old
    or the new one. From another file system it is copied beside `path` first.

    Raises FilesystemError.
    """
    try:
        permit(lambda: _rename(source, path), os.path.dirname(path))
    except OSError as error:
        raise cannot_write(path, error) from error


def remove(path: str) -> bool:
    """Removes a file or link; False when nothing was there. Raises FilesystemError."""
    try:
        permit(lambda: os.unlink(path), os.path.dirname(path))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FilesystemError(path, f"cannot be removed: {explain_error(error)}") from error
    return True


def remove_empty_folder(path: str) -> bool:
    """Removes a folder unless something is in it; whether it is gone now."""
    try:
        permit(lambda: os.rmdir(path), os.path.dirname(path))
    except FileNotFoundError:
        return True
    except OSError:
        # Not empty, not a folder or not permitted: it stays, and nothing depends on it.
        return False
    return True


def remove_hollow_folder(path: str) -> bool:
    """Removes a folder that holds no more than folders, which are no work; whether it is gone
    now."""
    found = [path]
    for folder in found:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        return False
                    found.append(entry.path)
        except OSError:
            return False
    is_gone = [remove_empty_folder(folder) for folder in reversed(found)]
    return is_gone[-1]


def make_folder(path: str) -> None:
    """One folder in an existing one, mode by the umask; fine when it is there already.
    Raises FilesystemError."""
    try:
        permit(lambda: os.mkdir(path), os.path.dirname(path))
    except FileExistsError:
        pass
    except OSError as error:
        raise cannot_write(path, error) from error


def remove_private_folder(path: str) -> None:
    """Removes a folder that `make_private_folder` made, which holds no folders."""
    try:
        with os.scandir(path) as entries:
            for entry in list(entries):
                os.unlink(entry.path)
        os.rmdir(path)
    except OSError:
        # Left-overs below the store's tmp are swept with those of dead runs.
        pass


def permit(action: Callable[[], None], *folders: str) -> None:
    """Does `action`; where a read-only folder of ours forbids it, with the folder opened
    for the moment. Commands make such folders (module caches), and what stands in them
    must still be replaceable.

    A crash in between leaves the folder writable, which loses nothing.
    """
    try:
        action()
        return
    except PermissionError:
        opened: list[tuple[int, int]] = []
        try:
            for folder in folders:
                info = look(folder)
                if info is not None and S_ISDIR(info.st_mode) and info.st_uid == os.geteuid():
                    mode = S_IMODE(info.st_mode)
                    os.chmod(folder, mode | 0o700)
                    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                    # By descriptor, since `action` may move the folder itself.
                    opened.append((os.open(folder, flags), mode))
            if not opened:
                raise
            action()
        finally:
            for descriptor, mode in opened:
                os.fchmod(descriptor, mode)
                os.close(descriptor)


class Trash:
    """A folder for what must not be lost, made when first needed.

    Things keep their relative path below it. The folder is always a new one (`NAME-2`
    when NAME exists), so nothing in the trash is ever overwritten.
    """

    def __init__(self, folder: str) -> None:
        self._wanted = folder
        self._folder: str | None = None
        self._number = 0

    def move(self, path: str, name: str) -> str:
        """Moves `path` (anything, a folder with all it holds) here; where it is now.
        Raises FilesystemError; then `path` is still in place."""
        place = self._place(name)
        try:
            permit(lambda: _move(path, place), os.path.dirname(path), path)
        except OSError as error:
            raise cannot_write(place, error) from error
        return place

    def keep(self, path: str, name: str) -> str:
        """As `move` for a file or link that is about to be replaced: `path` stays in place
        where a second name for it can be made, so that it is never missing."""
        place = self._place(name)
        try:
            os.link(path, place, follow_symlinks=False)
            return place
        except OSError:
            # Another file system, or one without hard links.
            return self.move(path, name)

    def _place(self, name: str) -> str:
        while True:
            if self._folder is None:
                self._folder = self._claim()
            place = f"{self._folder}/{name}"
            try:
                os.makedirs(os.path.dirname(place), exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                self._folder = None
                continue
            except OSError as error:
                raise cannot_write(place, error) from error
            if look(place) is None:
                return place
            self._folder = None

    def _claim(self) -> str:
        while True:
            self._number += 1
            path = self._wanted if self._number == 1 else f"{self._wanted}-{self._number}"
            try:
                os.mkdir(path)
                return path
            except FileExistsError:
                continue
            except FileNotFoundError:
                make_folders(os.path.dirname(path))
                self._number -= 1
            except OSError as error:
                raise cannot_write(path, error) from error


class Obstacles:
    """Finds what stands where a path needs a folder. One instance serves one moment: every
    folder is looked at once."""

    def __init__(self, root: str) -> None:
        self._prefix = root.rstrip("/") + "/"
        self._found: dict[str, str | None] = {}
        self._missing: set[str] = set()

    def find(self, path: str) -> str | None:
        """The topmost parent of the relative `path` that exists and is no folder: a link,
        also one to a folder, or a file. None when every parent is a folder or absent."""
        folder = path.rpartition("/")[0]
        if not folder:
            return None
        if folder in self._found:
            return self._found[folder]
        trail: list[str] = []
        while folder and folder not in self._found:
            trail.append(folder)
            folder = folder.rpartition("/")[0]
        obstacle = self._found.get(folder) if folder else None
        missing = folder in self._missing
        for folder in reversed(trail):
            if obstacle is None and not missing:
                info = look(self._prefix + folder)
                if info is None:
                    missing = True
                elif not S_ISDIR(info.st_mode):
                    obstacle = folder
            self._found[folder] = obstacle
            if missing:
                self._missing.add(folder)
        return obstacle


def leads_outside(root: str, path: str) -> bool:
    """Whether following the links of `path` ends outside the folder `root` (resolved)."""
    real = os.path.realpath(path)
    return real != root and not real.startswith(root.rstrip("/") + "/")


def _create(path: str, mode: int) -> int:
    try:
        return os.open(path, _CREATE_FLAGS, mode)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    written = os.write(descriptor, data)
    if written != len(data):
        rest = memoryview(data)[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def _read_chunks(descriptor: int, size: int) -> Iterator[memoryview]:
    """The bytes up to the end of the file; each chunk is valid until the next is asked
    for. `size` decides how, not how much."""
    if size >= _PIPELINE_BYTES:
        yield from _read_ahead(descriptor)
        return
    buffer = memoryview(bytearray(min(max(size, 1) + 1, 256 << 10)))
    while got := os.readv(descriptor, [buffer]):
        yield buffer[:got]


def _read_ahead(descriptor: int) -> Iterator[memoryview]:
    """As `_read_chunks`, with a second thread reading while the caller works."""
    from queue import SimpleQueue
    from threading import Thread

    free: SimpleQueue[memoryview | None] = SimpleQueue()
    full: SimpleQueue[tuple[memoryview, int] | OSError] = SimpleQueue()
    for _ in range(3):
        free.put(memoryview(bytearray(_CHUNK_BYTES)))

    def read() -> None:
        while (buffer := free.get()) is not None:
            try:
                got = os.readv(descriptor, [buffer])
            except OSError as error:
                full.put(error)
                return
            full.put((buffer, got))
            if not got:
                return

    reader = Thread(target=read, name="assay-read-ahead")
    reader.start()
    try:
        while True:
            item = full.get()
            if isinstance(item, OSError):
                raise item
            buffer, got = item
            if not got:
                return
            yield buffer[:got]
            free.put(buffer)
    finally:
        # Also when the caller gives up half-way: the descriptor must outlive the thread.
        free.put(None)
        reader.join()


def _rename(source: str, path: str) -> None:
    try:
        os.rename(source, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        sibling = f"{os.path.dirname(path)}/.assay-{os.getpid()}-{next(_numbers)}"
        info = os.lstat(source)
        if S_ISLNK(info.st_mode):
            os.symlink(read_link(source), os.fsencode(sibling))
        else:
            copy_new_file(source, sibling, S_IMODE(info.st_mode))
            if info.st_mode & 0o100:
                make_executable(sibling)
        try:
            os.rename(sibling, path)
        except OSError:
            os.unlink(sibling)
            raise
        os.unlink(source)


def _move(path: str, place: str) -> None:
    try:
        os.rename(path, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        import shutil

        shutil.move(path, place)
