"""Up to date means that the outputs are there as they were made: what was removed, edited or
damaged is put back or made again."""

from __future__ import annotations

from pathlib import Path

import pytest
from counted import Counted, restored, warnings

PAIR = "mkdir -p d; echo 1 > d/x; echo 2 > d/y"
RIGHT = {"x": "1\n", "y": "2\n"}


@pytest.mark.parametrize("writes", [["d/*"], ["d/"], ["d/x", "d/y"]], ids=str)
def test_outputs_removed_or_edited_by_hand_come_back(counted: Counted, writes: list[str]) -> None:
    """C16: an output that is gone, edited, unreadable or no file any more is put back, each
    for itself, and work done by hand is kept in the trash."""
    counted.plan({"a": {"run": PAIR, "writes": writes}})
    assert counted.ran() == ["a"]

    def put_back(count: int) -> None:
        done = counted.run()
        assert done.named("built") == set()
        assert restored(done) == count
        assert counted.tree("d") == RIGHT
        assert {oct(path.stat().st_mode & 0o777) for path in counted.everything("d")} == {"0o644"}

    counted.remove("d/y")
    put_back(1)
    counted.write("d/x", "mine")
    put_back(1)
    assert counted.trash() == {"d/x": "mine"}
    counted.remove("d")
    put_back(2)
    counted.path("d/x").chmod(0)
    put_back(1)
    counted.remove("d/x")
    counted.write("d/x/mine", "deep")
    put_back(1)
    counted.remove("d/x")
    counted.path("d/x").symlink_to("y")
    put_back(1)
    assert counted.trash() == {"d/x": "mine", "d/x/mine": "deep"}
    counted.path("d/x").chmod(0o755)
    put_back(1)
    assert counted.executions == ["a"]
    counted.rests()


def test_outputs_are_made_again_when_the_cache_is_empty(counted: Counted) -> None:
    """C16: with the cache cleared, a missing output is made by its command."""
    counted.plan({"a": {"run": PAIR, "writes": ["d/"]}})
    counted.ran()
    assert counted.assay("cache", "clear").code == 0
    counted.remove("d/y")
    assert counted.ran() == ["a"]
    assert counted.tree("d") == RIGHT
    counted.rests()


def damage(blob: Path, how: str) -> None:
    blob.chmod(0o644)
    if how == "gone":
        blob.unlink()
    elif how == "truncated":
        blob.write_bytes(blob.read_bytes()[:-1])
    elif how == "emptied":
        blob.write_bytes(b"")
    else:
        data = blob.read_bytes()
        blob.write_bytes(bytes([data[0] ^ 1]) + data[1:])


@pytest.mark.parametrize("how", ["gone", "truncated", "emptied", "flipped"])
@pytest.mark.parametrize("which", [[0], [1], [0, 1]], ids=["one", "other", "both"])
def test_record_without_sound_blobs_is_a_miss(counted: Counted, how: str, which: list[int]) -> None:
    """C17: a recorded result whose blobs are gone or damaged is made again, whole, and from
    then on the new record serves."""
    counted.plan({"a": {"run": PAIR, "writes": ["d/"]}})
    counted.ran()
    blobs = counted.blobs()
    assert len(blobs) == 2
    for index in which:
        damage(blobs[index], how)
    counted.remove("d")
    executed, done = counted.tried()
    assert (executed, done.code) == (["a"], 0)
    assert "cannot be restored" in warnings(done)
    assert counted.tree("d") == RIGHT
    counted.rests()
    counted.remove("d")
    assert counted.ran() == []
    assert counted.tree("d") == RIGHT


def test_strict_fails_over_a_damaged_record_and_changes_nothing(counted: Counted) -> None:
    """C17: under `--strict` a damaged blob fails the node; nothing half restored is left."""
    counted.plan({"a": {"run": PAIR, "writes": ["d/"]}})
    counted.ran()
    damage(counted.blobs()[1], "flipped")
    counted.remove("d")
    executed, done = counted.tried("--strict")
    assert (executed, done.code) == ([], 1)
    assert not counted.path("d").exists()
    assert counted.ran() == ["a"]
    counted.rests()


def test_damaged_blob_of_an_intermediate_file_costs_its_producer(counted: Counted) -> None:
    """C17: a node that must execute and whose input is neither on disk nor sound in the store
    gets it from its producer, which runs once more."""
    nodes = {
        "x": {"run": "echo mid > mid", "writes": ["mid"]},
        "y": {"run": "cat mid src > out", "reads": ["mid", "src"], "writes": ["out"]},
    }
    counted.plan(nodes)
    counted.write("src", "1")
    counted.ran()
    for blob in counted.blobs():
        damage(blob, "flipped")
    counted.remove("mid")
    counted.write("src", "2")
    assert counted.ran() == ["x", "y"]
    assert counted.read("out") == "mid\n2"
    counted.rests()


def test_node_without_a_boundary_runs_every_time(counted: Counted) -> None:
    """C19: nothing could tell two executions of such a node apart; `cache = true` says that
    nothing has to, and a node that only writes is served."""
    counted.plan(
        {
            "always": {"run": "true"},
            "once": {"run": "true", "cache": True},
            "writes": {"run": "echo 1 > o", "writes": ["o"]},
            "never": {"run": "echo 1 > p", "writes": ["p"], "cache": False},
        }
    )
    assert counted.ran() == ["always", "never", "once", "writes"]
    assert counted.ran() == ["always", "never"]
    counted.remove("o")
    assert counted.ran() == ["always", "never"]
    assert counted.read("o") == "1\n"


def test_reader_of_an_uncached_node_is_keyed_by_content(counted: Counted) -> None:
    """C19: what always runs does not make its readers run while its output stays equal."""
    counted.plan(
        {
            "stamp": {"run": "cat src > o", "writes": ["o"], "cache": False},
            "use": {"run": "cat o > p", "reads": ["o"], "writes": ["p"]},
        }
    )
    counted.write("src", "1")
    assert counted.ran() == ["stamp", "use"]
    assert counted.ran() == ["stamp"]
    counted.write("src", "2")
    assert counted.ran() == ["stamp", "use"]
    assert counted.read("p") == "2"


def test_left_over_of_a_failed_attempt_is_no_result(counted: Counted) -> None:
    """What a failed command left is not there when it is tried again, and is not lost."""
    counted.plan({"a": {"run": "cp src o; test -e go", "writes": ["o"]}})
    counted.write("src", "half")
    executed, done = counted.tried()
    assert (executed, done.code) == (["a"], 1)
    counted.write("go", "")
    counted.plan({"a": {"run": "test ! -e o; echo whole > o", "writes": ["o"]}})
    assert counted.ran() == ["a"]
    assert counted.read("o") == "whole\n"
    assert counted.trash() == {"o": "half"}
    counted.rests()


def test_output_that_was_there_before_is_no_result(counted: Counted) -> None:
    """C45: an output of an earlier result that the command did not write again is missing."""
    node = {"reads": ["src"], "writes": ["x", "y"]}
    counted.plan({"a": {"run": "echo 1 > x; test -s src && echo 1 > y", **node}})
    counted.write("src", "full")
    counted.ran()
    counted.plan({"a": {"run": "echo 2 > x; test ! -s src || echo 1 > y", **node}})
    counted.write("src", "")
    executed, done = counted.tried()
    assert (executed, done.code) == (["a"], 1)
    assert "`y` is declared in `writes` but was not written" in done.out


def test_restored_result_is_no_part_of_the_next(counted: Counted) -> None:
    """What an older result left when it was put back is cleared before the command runs on
    new input, as the last one's outputs are."""
    counted.plan(
        {"a": {"run": "mkdir -p d; cp src d/$(cat src)", "reads": ["src"], "writes": ["d/"]}}
    )
    for text, executed in (("1", ["a"]), ("2", ["a"]), ("1", []), ("3", ["a"])):
        counted.write("src", text)
        assert counted.ran() == executed
        assert counted.files("d") == {text: text}
    counted.rests()
    # Also when the node that made it has another name by now.
    counted.plan(
        {"b": {"run": "mkdir -p d; cp src d/$(cat src)", "reads": ["src"], "writes": ["d/"]}}
    )
    assert counted.ran() == []
    counted.write("src", "4")
    assert counted.ran() == ["b"]
    assert counted.files("d") == {"4": "4"}
