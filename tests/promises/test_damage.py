"""Every file below `.assay/` cut, zeroed, replaced or removed: nothing wrong is ever served.

A sample of blobs and logs; every file, at each of its blocks, with `ASSAY_SWEEP=all`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from damages import DAMAGES, Damage, pick, spread
from sweep import SWEPT, TOLERANT_PLAN, describe, lay_out
from workspace import Workspace, explain

pytestmark = pytest.mark.proof

OUTPUTS = ("tree", "parts", "taken", "all")


@pytest.mark.slow
@SWEPT
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_costs_work_and_nothing_else(
    tmp_path: Path, undisturbed: dict[str, str], damage: Damage
) -> None:
    """C17, C87: one file after the other. The next run says what it found, gives the tree of an
    undisturbed one although its outputs were deleted, and the run after that rests."""
    quiet = lay_out(tmp_path / "quiet", TOLERANT_PLAN)
    assert quiet.assay("run").code == 0
    store = quiet.path(".assay")
    names = sorted(str(path.relative_to(store)) for path in store.rglob("*") if not path.is_dir())
    assert "assay.db" in names
    blobs = [name for name in names if name.startswith("cas/")]
    logs = [name for name in names if name.startswith("logs/")]
    others = [name for name in names if name not in blobs and name not in logs]
    seed = damage.__name__
    chosen = [*others, *pick(blobs, 3, seed), *pick(logs, 1, seed)]
    harms = [
        (name, *harm) for name in chosen for harm in spread(damage, (store / name).stat().st_size)
    ]
    for name, how, harm in harms:
        shutil.copytree(quiet.root, tmp_path / "w", symlinks=True)
        workspace = Workspace(tmp_path / "w")
        harm(workspace.path(".assay") / name)
        for output in OUTPUTS:
            place = workspace.path(output)
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        done = workspace.assay("run", "--json")
        where = f"{how} {name}: {explain(done)}"
        assert "Traceback" not in done.err, where
        assert done.code == 0, where
        assert describe(workspace.root) == undisturbed, where
        again = workspace.assay("run", "--json")
        assert again.code == 0, f"{where}\n{explain(again)}"
        assert describe(workspace.root) == undisturbed, where
        for words in (("runs",), ("show",), ("journal",), ("cache", "verify"), ("cache", "gc")):
            asked = workspace.assay(*words)
            assert "Traceback" not in asked.err, (name, words, asked.err)
        shutil.rmtree(workspace.root)
