"""What can befall a file: each damage takes its path."""

from __future__ import annotations

import os
import random
from pathlib import Path


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def scramble(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(random.Random(size).randbytes(size))


def remove(path: Path) -> None:
    path.unlink()


def make_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/else")


DAMAGES = (cut, empty, zero, scramble, remove, make_a_folder, make_a_link)
