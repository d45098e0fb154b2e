"""Putting what a command wrote in a private tree into the workspace: all of it or nothing.

    (attempt)    worker        what it wrote is measured in the tree and stored: the bundle
    (endings)    coordinator   records the bundle, committed before anything is touched
    land         worker        swaps everything into place, unless something is in the way
    (endings)    coordinator   records the outcome

After a crash between the two records recovery completes the landing from what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from assay.engine.blobs import BlobCorrupt, BlobMissing, Blobs
from assay.engine.filesystem import FilesystemError
from assay.engine.known_outputs import KnownOutputs
from assay.engine.materialize import CannotRestore, Restored, Source, restore
from assay.engine.measuring import Measurer, Unmeasurable
from assay.engine.results import ResultRow, result_from_json
from assay.engine.states import ABSENT, State
from assay.engine.store import Store
from assay.plans.model import Entry, RelPath


@dataclass(frozen=True, slots=True)
class Change:
    """One path: what the command started from, and what it made of it."""

    path: RelPath
    base: State
    made: State


Bundle = tuple[Change, ...]


class CannotLand(Exception):
    """Nothing was touched, or all that was is complete on the next try; a clause says why."""


def make_bundle(
    outputs: tuple[tuple[RelPath, State], ...],
    gone: tuple[RelPath, ...],
    base: Mapping[RelPath, State],
) -> Bundle:
    """Of what was written, what is gone, and how all of that stood before."""
    made = {**dict(outputs), **dict.fromkeys(gone, ABSENT)}
    return tuple(Change(path, base.get(path, ABSENT), state) for path, state in made.items())


def find_conflict(bundle: Bundle, measurer: Measurer) -> RelPath | None:
    """A path that is no longer what the command started from, nor what it made."""
    for change in bundle:
        try:
            if measurer.state_of(change.path) not in (change.base, change.made):
                return change.path
        except Unmeasurable:
            return change.path
    return None


def land(
    bundle: Bundle,
    writes: tuple[Entry, ...],
    keep: Collection[RelPath],
    *,
    store: Store,
    measurer: Measurer,
    source: Source,
    attempt: str,
) -> Restored:
    """Makes the workspace hold the bundle. What somebody else has put there is moved to the trash
    first; what is at `keep` is left. Raises CannotLand."""
    base = {change.path: change.base for change in bundle}

    def knows(known: KnownOutputs) -> Callable[[RelPath, State], bool]:
        # What it started from is not lost: the command had it before it.
        return lambda path, state: state == base.get(path) or known.knows(path, state)

    try:
        with KnownOutputs(store) as known:
            return restore(
                measurer.root,
                [(change.path, change.made) for change in bundle],
                writes,
                measurer=measurer,
                source=source,
                staging=f"{store.tmp}/{attempt}.stage",
                trash=f"{store.trash}/{attempt}",
                knows=knows(known),
                keep=keep,
            )
    except (CannotRestore, FilesystemError, BlobMissing, BlobCorrupt) as error:
        raise CannotLand(f"what it wrote cannot be put in place: {error}") from error


def complete_landing(
    told: Mapping[str, Any], *, store: Store, measurer: Measurer, blobs: Blobs
) -> tuple[ResultRow, Restored]:
    """As `land`, from a `bundle-made` record and what is stored: the result that it stands for.
    What an earlier result left in the same trees is the next run's business. Raises CannotLand."""
    changes = (
        Change(RelPath(path), State(base), State(made)) for path, base, made in told["changes"]
    )
    landed = land(
        tuple(changes),
        (),
        (),
        store=store,
        measurer=measurer,
        source=blobs,
        attempt=told["attempt"],
    )
    return result_from_json(told["result"], 0), landed
