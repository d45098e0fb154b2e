"""The content-addressed store of blobs: what recorded outputs are made of.

On disk: `cas/AB/REST`, where ABREST is the BLAKE3 digest of the file's bytes, mode 0444.
A blob appears by rename from the store's `tmp`, whole or not at all, and is never
written to again; nothing outside is hard-linked to it. After a power loss or at the hands
of others a blob may still be damaged: every read is verified against the name, so that
only the bytes asked for are ever given out. Does not know who refers to a blob.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from time import time
from typing import Final

from assay.engine.filesystem import (
    ChangedMeanwhile,
    FilesystemError,
    NotAPlainFile,
    cannot_write,
    copy_new_file,
    digest_bytes,
    explain_error,
    look,
    make_executable,
    make_folders,
    read_link,
    read_plain_file,
    sync,
    temporary_name,
    write_new_file,
)
from assay.engine.states import State, stored_digest
from assay.plans.model import Digest, RelPath

FRESHEN_AFTER_SECONDS: Final = 30.0
"""A blob that is put again after this long gets a new mtime, so that a collection that
spares young blobs spares it too."""

_MODE: Final = 0o444


class BlobMissing(Exception):
    """The store does not have this blob."""

    def __init__(self, digest: Digest) -> None:
        self.digest = digest
        super().__init__(f"blob {digest} is not in the store")


class BlobCorrupt(Exception):
    """What is stored under this name has other bytes, or cannot be read."""

    def __init__(self, digest: Digest) -> None:
        self.digest = digest
        super().__init__(f"blob {digest} is damaged")


class Moved(Exception):
    """A file no longer had the announced bytes when it was copied into the store."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"`{path}` changed while it was stored")


class StorageFull(FilesystemError):
    """The store takes no more: no space, quota or descriptors left, or it may not be
    written to. Work can go on without it."""


class Blobs:
    """See the module. Any number of threads and processes may use one store."""

    def __init__(self, folder: str, tmp: str) -> None:
        """Absolute folders on one file system; made when first needed."""
        self.folder = folder
        self._tmp = tmp

    def has(self, digest: Digest) -> bool:
        """Whether the blob is there; it is verified only when it is read."""
        return self.size_of(digest) is not None

    def size_of(self, digest: Digest) -> int | None:
        """The size in bytes of the stored blob, None when there is none."""
        info = look(self._path(digest))
        return None if info is None else info.st_size

    def put_state(self, root: str, path: RelPath, state: State, data: bytes | None = None) -> None:
        """Stores what brings `state`, which was measured at `path` below `root`, back: a
        file's bytes (`data`, when the caller has them) or a link's target text.

        Raises Moved when something else stands there by now, StorageFull when it cannot
        be stored; the store is then as before.
        """
        digest = stored_digest(state)
        if digest is None:
            return
        absolute = f"{root.rstrip('/')}/{path}"
        if state.startswith("link:"):
            try:
                data = read_link(absolute)
            except OSError as error:
                raise Moved(absolute) from error
            if digest_bytes(data) != digest:
                raise Moved(absolute)
        if data is None:
            self.put_file(absolute, digest)
        else:
            self.put_bytes(data, digest)

    def put_file(self, path: str, digest: Digest) -> None:
        """Stores a copy of the file at the absolute `path`, which was measured as `digest`.

        Raises Moved when it has other bytes by now, StorageFull when it cannot be stored;
        the store is then as before.
        """
        info = look(path)
        if info is None:
            raise Moved(path)
        if self._holds(digest, info.st_size):
            return

        def copy(temporary: str) -> None:
            try:
                copied = copy_new_file(path, temporary, _MODE)
            except NotAPlainFile:
                raise Moved(path) from None
            if copied != digest:
                os.unlink(temporary)
                raise Moved(path)

        try:
            self._store(digest, copy)
        except OSError as error:
            if look(path) is None or error.errno == errno.ELOOP:
                raise Moved(path) from error
            raise StorageFull(path, f"cannot be stored: {explain_error(error)}") from error

    def put_bytes(self, data: bytes, digest: Digest | None = None) -> Digest:
        """Stores `data`; its digest, which a caller that knows it already may pass.

        Raises StorageFull; the store is then as before.
        """
        if digest is None:
            digest = digest_bytes(data)
        if not self._holds(digest, len(data)):
            self._store(digest, lambda temporary: write_new_file(temporary, data, _MODE))
        return digest

    def secure(self, digests: Iterable[Digest]) -> None:
        """These blobs are on disk and sound when this returns. Raises BlobMissing, BlobCorrupt
        or FilesystemError."""
        shards: set[str] = set()
        for digest in digests:
            path = self._path(digest)
            try:
                found = read_plain_file(path)[1]
            except FileNotFoundError:
                raise BlobMissing(digest) from None
            except OSError as error:
                reason = f"cannot be read: {explain_error(error)}"
                raise FilesystemError(path, reason) from error
            except (NotAPlainFile, ChangedMeanwhile) as error:
                raise BlobCorrupt(digest) from error
            if found != digest:
                raise BlobCorrupt(digest)
            sync(path)
            shards.add(os.path.dirname(path))
        for shard in sorted(shards):
            sync(shard)
        if shards:
            sync(self.folder)

    def get_bytes(self, digest: Digest) -> bytes:
        """The verified bytes. Raises BlobMissing or BlobCorrupt."""
        try:
            with open(self._path(digest), "rb", buffering=0) as file:
                data = file.readall()
        except FileNotFoundError:
            raise BlobMissing(digest) from None
        except OSError as error:
            raise BlobCorrupt(digest) from error
        if digest_bytes(data) != digest:
            raise BlobCorrupt(digest)
        return data

    @property
    def needs_folder(self) -> bool:
        return True

    def stage_output(self, _path: RelPath, state: State, place: str) -> str:
        """Makes the recorded file or link at `place`, where nothing stands. Raises as
        `copy_to`."""
        digest = stored_digest(state)
        assert digest is not None
        if not state.startswith("link:"):
            self.copy_to(digest, place, state.startswith("exec:"))
            return place
        text = self.get_bytes(digest)
        try:
            os.symlink(text, os.fsencode(place))
        except OSError as error:
            raise cannot_write(place, error) from error
        return place

    def copy_to(self, digest: Digest, destination: str, executable: bool) -> None:
        """Makes `destination`, which must not exist, with the blob's bytes: a copy of its
        own, verified as it is made, its mode by the umask.

        Raises BlobMissing or BlobCorrupt, FilesystemError (DiskFull), FileExistsError or
        FileNotFoundError (no such folder); nothing is left at `destination` then.
        """
        path = self._path(digest)
        try:
            copied = copy_new_file(path, destination, 0o777 if executable else 0o666)
        except FileNotFoundError:
            if look(path) is not None:
                raise
            raise BlobMissing(digest) from None
        except FileExistsError:
            raise
        except (OSError, NotAPlainFile) as error:
            raise BlobCorrupt(digest) from error
        if copied != digest:
            os.unlink(destination)
            raise BlobCorrupt(digest)
        if executable:
            make_executable(destination)

    def iterate(self) -> Iterator[tuple[Digest, int, float]]:
        """Every blob with its size in bytes and mtime in seconds, in no order; blobs that
        come or go meanwhile may be missed."""
        for shard in _list(self.folder):
            if len(shard.name) != 2 or not shard.is_dir(follow_symlinks=False):
                continue
            for entry in _list(shard.path):
                name = shard.name + entry.name
                if len(name) == 64:
                    with suppress(FileNotFoundError):
                        info = entry.stat(follow_symlinks=False)
                        yield Digest(name), info.st_size, info.st_mtime

    def remove(self, digest: Digest) -> bool:
        """Removes a blob nobody refers to; False when it was not there. Raises
        FilesystemError."""
        path = self._path(digest)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise FilesystemError(path, f"cannot be removed: {explain_error(error)}") from error
        return True

    def set_aside(self, digest: Digest) -> str | None:
        """Moves a damaged blob to `damaged/` beside the store and returns its new path.

        None when it is gone or meanwhile replaced by a good one. Raises FilesystemError.
        """
        try:
            self.get_bytes(digest)
            return None
        except BlobMissing:
            return None
        except BlobCorrupt:
            pass
        damaged = os.path.join(os.path.dirname(self.folder), "damaged")
        make_folders(damaged)
        place = temporary_name(damaged, f"blob-{digest}")
        while look(place) is not None:
            place = temporary_name(damaged, f"blob-{digest}")
        try:
            os.rename(self._path(digest), place)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise cannot_write(place, error) from error
        return place

    def _path(self, digest: Digest) -> str:
        return f"{self.folder}/{digest[:2]}/{digest[2:]}"

    def _holds(self, digest: Digest, size: int) -> bool:
        """Whether the blob is there and of the right size: one that was cut short by a
        power loss is put again."""
        path = self._path(digest)
        info = look(path)
        if info is None or info.st_size != size:
            return False
        if time() - info.st_mtime > FRESHEN_AFTER_SECONDS:
            try:
                os.utime(path)
            except FileNotFoundError:
                return False
            except OSError:
                # Another user's store on a shared disk: its age is then its owner's matter.
                pass
        return True

    def _store(self, digest: Digest, write: Callable[[str], None]) -> None:
        """Publishes under `digest` the file that `write` makes at the path it is given.

        What `write` raises for a missing folder is answered once by making the store's.
        """
        is_made = False
        temporary = temporary_name(self._tmp, "blob")
        try:
            while True:
                try:
                    write(temporary)
                    break
                except FileExistsError:
                    # A left-over of a process that had this pid before.
                    temporary = temporary_name(self._tmp, "blob")
                except FileNotFoundError:
                    if is_made:
                        raise
                    make_folders(self._tmp)
                    is_made = True
            self._publish(temporary, self._path(digest))
        except FilesystemError as error:
            raise StorageFull(error.path, error.reason) from error

    def _publish(self, temporary: str, path: str) -> None:
        try:
            try:
                os.rename(temporary, path)
            except FileNotFoundError:
                make_folders(os.path.dirname(path))
                os.rename(temporary, path)
        except FilesystemError:
            os.unlink(temporary)
            raise
        except OSError as error:
            os.unlink(temporary)
            raise cannot_write(path, error) from error


def _list(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
