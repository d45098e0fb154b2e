"""Resources of the machine are counted across processes and survive their death."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from assay.engine.host_resources import HostResources, UnsafeFolder, folder_for


@pytest.fixture
def resources(tmp_path: Path) -> HostResources:
    return HostResources(str(tmp_path / "assay"))


def test_units_are_taken_all_or_none_and_given_back(resources: HostResources) -> None:
    """No more units than there are; a demand that does not fit takes none."""
    two = resources.try_take("gpu", 2, 3)
    assert two is not None
    assert resources.try_take("gpu", 2, 3) is None
    one = resources.try_take("gpu", 1, 3)
    assert one is not None
    assert resources.try_take("gpu", 1, 3) is None
    two.release()
    two.release()
    assert resources.try_take("gpu", 2, 3) is not None


def test_resources_are_apart(resources: HostResources, tmp_path: Path) -> None:
    """Names are names, whatever is in them; nothing is made beside the folder."""
    names = ["gpu", "GPU", "../gpu", "a/b", "", ".", "..", "ü"]
    held = [resources.try_take(name, 1, 1) for name in names]
    assert None not in held
    assert [resources.try_take(name, 1, 1) for name in names] == [None] * len(names)
    assert [entry.name for entry in tmp_path.iterdir()] == ["assay"]


def test_plans_that_disagree_still_share(resources: HostResources) -> None:
    """Whoever believes in fewer units counts those held by all."""
    held = resources.try_take("licence", 2, 3)
    assert held is not None
    assert resources.try_take("licence", 1, 2) is None
    more = resources.try_take("licence", 1, 3)
    assert more is not None
    held.release()
    assert resources.try_take("licence", 2, 2) is None
    assert resources.try_take("licence", 1, 2) is not None


HOLDER = """
    import os, sys
    from assay.engine.host_resources import HostResources
    held = HostResources(sys.argv[1]).try_take("gpu", 1, 1)
    print("held" if held else "refused", flush=True)
    input()
"""


def test_units_of_the_dead_are_free(resources: HostResources, tmp_path: Path) -> None:
    """Another process is kept out while the holder lives, and not a moment longer."""
    argv = [sys.executable, "-c", textwrap.dedent(HOLDER), str(tmp_path / "assay")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert resources.try_take("gpu", 1, 1) is None
        holder.kill()
        holder.wait()
        assert resources.try_take("gpu", 1, 1) is not None


def test_nobody_takes_too_much_at_once(resources: HostResources) -> None:
    """However many ask at the same time, there are never more units out than exist."""
    rounds = 200
    out: list[int] = []

    def take_and_release(_: int) -> int:
        held = resources.try_take("gpu", 2, 5)
        if held is None:
            return 0
        out.append(1)
        most = len(out)
        out.pop()
        held.release()
        return most

    with ThreadPoolExecutor(8) as pool:
        most = list(pool.map(take_and_release, range(rounds)))
    assert max(most) in {1, 2}
    assert resources.try_take("gpu", 5, 5) is not None


def test_folder_is_private_or_refused(tmp_path: Path) -> None:
    """The folder is made 0700; one that others could write to is not used."""
    folder = tmp_path / "assay"
    assert HostResources(str(folder)).try_take("gpu", 1, 1) is not None
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(UnsafeFolder) as caught:
        HostResources(str(folder)).try_take("gpu", 1, 1)
    assert str(caught.value) == f"`{folder}` is open to others (mode 0755)"
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(UnsafeFolder) as caught:
        HostResources(str(link)).try_take("gpu", 1, 1)
    assert str(caught.value) == f"`{link}` is not a folder"
    with pytest.raises(UnsafeFolder, match="does not exist"):
        HostResources(str(tmp_path / "nowhere" / "assay")).try_take("gpu", 1, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make another user's folder")
def test_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    """A folder that another user made first is not used."""
    folder = tmp_path / "assay"
    folder.mkdir(0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(UnsafeFolder) as caught:
        HostResources(str(folder)).try_take("gpu", 1, 1)
    assert str(caught.value) == f"`{folder}` belongs to another user (uid 12345)"


def test_where_the_runs_of_a_user_meet(tmp_path: Path) -> None:
    """The session's runtime folder when there is one, a fixed one in /tmp otherwise."""
    assert folder_for({"XDG_RUNTIME_DIR": str(tmp_path)}, 4_000_000) == str(tmp_path / "assay")
    for environ in ({}, {"XDG_RUNTIME_DIR": "relative"}, {"TMPDIR": str(tmp_path)}):
        assert folder_for(environ, 4_000_000) == "/tmp/assay-4000000"
