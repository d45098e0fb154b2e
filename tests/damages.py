"""What can befall a file: each damage takes its path.

A test damages some files, and cuts them in half; every file, and cut and zeroed at each block, with
`ASSAY_SWEEP=all`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

from sweep import SWEEP_ALL

Damage: TypeAlias = Callable[[Path], None]

BLOCK_BYTES = 4096


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


def spread(damage: Damage, size_bytes: int) -> list[tuple[str, Damage]]:
    """The damage in each place of a file of this size where it is something else, with a name."""
    found = [(damage.__name__, damage)]
    at_block = {cut: _cut_at, zero: _zero_block}.get(damage)
    if SWEEP_ALL and at_block is not None:
        found += [
            (f"{damage.__name__} at {start}", partial(at_block, start=start))
            for start in range(BLOCK_BYTES, size_bytes, BLOCK_BYTES)
        ]
    return found


def pick(names: list[str], number: int, seed: str) -> list[str]:
    """Some of the files, the same ones every time; all in a complete sweep."""
    if SWEEP_ALL or len(names) <= number:
        return names
    return random.Random(seed).sample(names, number)


def _cut_at(path: Path, start: int) -> None:
    os.truncate(path, start)


def _zero_block(path: Path, start: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(min(BLOCK_BYTES, path.stat().st_size - start)))
