"""Every file below `.assay/` cut, zeroed, replaced or removed while effects are open: none is
repeated by that, none is forgotten without a word."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damages import DAMAGES
from workspace import Workspace, explain

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


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_repeats_no_effect(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """C87: whatever file is damaged, the next runs perform no effect of an unfinished run again:
    they know, or they ask, or they say what the host does not give."""
    quiet = Workspace(tmp_path / "quiet")
    quiet.root.mkdir()
    quiet.write("plan.toml", PLAN)
    quiet.write("text", "base\n")
    assert quiet.assay("run").code == 1
    store = quiet.path(".assay")
    names = sorted(str(path.relative_to(store)) for path in store.rglob("*") if not path.is_dir())
    assert {"assay.db", "has-effects"} <= set(names)
    assert any(name.startswith("preimages/") for name in names)
    chosen = [name for name in names if not name.startswith(("cas/", "logs/"))]
    chosen += random.Random(damage.__name__).sample([n for n in names if n not in chosen], 2)
    for name in chosen:
        shutil.copytree(quiet.root, tmp_path / "w", symlinks=True)
        workspace = Workspace(tmp_path / "w")
        damage(workspace.path(".assay") / name)
        for words in (("run", "--json"), ("run", "--json"), ("run", "--fresh", "--json")):
            done = workspace.assay(*words)
            where = f"{damage.__name__} {name} {words}: {explain(done)}"
            assert "Traceback" not in done.err, where
            assert done.code in (4, 5), where
            if name != "has-effects":
                assert workspace.read("sent") == "out\n", where
                assert workspace.read("perhaps") == "perhaps\n", where
        for words in (("runs",), ("show",), ("journal",), ("cache", "verify"), ("cache", "gc")):
            asked = workspace.assay(*words)
            assert "Traceback" not in asked.err, (name, words, asked.err)
        shutil.rmtree(workspace.root)
