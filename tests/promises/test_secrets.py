"""Secrets reach the node that asks for them and nothing else: no log, record, event or key."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from blake3 import blake3
from counted import Counted, warnings
from probe import Probes
from running import Begin
from workspace import ASSAY

TOKEN = "hunter2-unique"
ENV = {"TOKEN": TOKEN}
SECRET = {"secret": "TOKEN"}


def traces(counted: Counted, *texts: str) -> list[Path]:
    """The files below `.assay/` that hold one of these texts."""
    needles = [text.encode() for text in texts]
    return [
        path
        for path in counted.path(".assay").rglob("*")
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    ]


def digests(text: str) -> list[str]:
    """What a bare digest of a secret looks like, whole and as a beginning."""
    whole = blake3(text.encode())
    return [whole.hexdigest()[:24], blake3(f'"{text}"'.encode()).hexdigest()[:24]]


def test_secret_is_nowhere(counted: Counted) -> None:
    """C82: a secret that its node prints, passes on in an argument and fails with is masked
    wherever assay shows or keeps anything, and its digest is nowhere."""
    counted.plan(
        {
            "a": {
                "run": 'echo "first $T"; sh -c "echo \\$0 >&2; exit 3" "$T"',
                "env": {"T": SECRET},
            },
            "keyed": {"run": 'echo "$T"', "env": {"T": {**SECRET, "keyed": True}}, "cache": True},
            "result": {"run": 'echo "$T" > $ASSAY_RESULT', "env": {"T": SECRET}, "result": "text"},
        }
    )
    asked = [["run", "--log", "all"], ["run", "--json"], ["why", "keyed"], ["why", "a"], ["show"],
             ["show", "--json"], ["log", "a"], ["journal"], ["plan", "--format", "json"],
             ["run", "--dry-run"], ["doctor"]]  # fmt: skip
    shown = ""
    for words in asked:
        done = counted.assay(*words, env=ENV)
        shown += done.out + done.err
    assert "first ***" in shown
    for text in (TOKEN, *digests(TOKEN)):
        assert text not in shown
    assert traces(counted, TOKEN, *digests(TOKEN)) == []


def test_store_is_for_its_user_alone(counted: Counted) -> None:
    """C82: what assay keeps cannot be read by others, whatever the umask."""
    counted.plan({"a": {"run": "echo 1; echo 1 > o", "writes": ["o"]}})
    subprocess.run(["sh", "-c", f"umask 0; exec {ASSAY} run -q"], cwd=counted.root, check=True)
    assert stat.S_IMODE(counted.path(".assay").stat().st_mode) & 0o077 == 0


def test_masked_while_it_runs_and_when_it_is_cut(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C82: a secret written in two pieces is masked in the log that can be read meanwhile."""
    counted.plan({"a": {"run": probes.argv("a"), "env": {"T": SECRET}}})
    run = begin(env=ENV)
    node = probes.arrive("a")
    assert node.environ()["T"] == TOKEN
    node.say(f"one {TOKEN[:7]}")
    node.say(f"{TOKEN[7:]} two {TOKEN[:5]}")
    node.complain("ly\n")
    node.exit(1)
    done = run.finish()
    assert counted.assay("log", "a").out == f"one *** two {TOKEN[:5]}ly\n"
    assert TOKEN not in done.out + done.err


def test_only_who_asks_gets_it(counted: Counted, probes: Probes, begin: Begin) -> None:
    """A secret reaches the node that names it, under the name it gives it."""
    counted.plan(
        {"a": {"run": probes.argv("a"), "env": {"T": SECRET}}, "b": {"run": probes.argv("b")}}
    )
    run = begin("-j2", env=ENV)
    a, b = probes.arrive("a"), probes.arrive("b")
    assert TOKEN not in b.environ().values()
    assert "TOKEN" not in a.environ()
    for node in (a, b):
        node.exit(0)
    assert run.finish().code == 0


def test_secret_is_not_in_the_key_unless_asked(counted: Counted) -> None:
    """Another secret is no reason to execute again; with `keyed = true` it is, and the
    earlier one's result serves when that is back."""
    counted.plan(
        {
            "plain": {"run": "true", "env": {"T": SECRET}, "cache": True},
            "keyed": {"run": "true", "env": {"T": {**SECRET, "keyed": True}}, "cache": True},
        }
    )
    other = {"TOKEN": "another-secret"}
    assert counted.ran(env=ENV) == ["keyed", "plain"]
    assert counted.ran(env=ENV) == []
    assert counted.ran(env=other) == ["keyed"]
    assert counted.ran(env=ENV) == []
    assert counted.ran(env=other) == []


def test_outputs_that_hold_it_are_not_stored(counted: Counted) -> None:
    """An output with a secret in it stands in the workspace, where the node put it, and is
    neither stored nor served; others of the same node neither."""
    counted.plan(
        {
            "a": {
                "run": 'echo "token=$T" > d/config; echo 1 > d/other',
                "env": {"T": SECRET},
                "writes": ["d/config", "d/other"],
            },
            "b": {"run": "cat d/other > o", "reads": ["d/other"], "writes": ["o"]},
        }
    )
    for executed in (["a", "b"], ["a"]):
        ran, done = counted.tried(env=ENV)
        assert (ran, done.code) == (executed, 0)
        assert "holds a secret" in warnings(done)
    assert counted.read("d/config") == f"token={TOKEN}\n"
    assert traces(counted, TOKEN) == []


def test_result_that_holds_it_fails_the_node(counted: Counted) -> None:
    """A result with a secret's bytes in it is none, and nobody gets it."""
    counted.plan(
        {
            "a": {"run": 'echo "x${T}x" > $ASSAY_RESULT', "env": {"T": SECRET}, "result": "text"},
            "b": {"run": "true", "env": {"V": {"from": "a"}}},
        }
    )
    executed, done = counted.tried(env=ENV)
    assert (executed, done.code) == (["a"], 1)
    assert "its result holds a secret" in done.out
    assert TOKEN not in done.out + done.err
    assert traces(counted, TOKEN) == []


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, "needs the secret `TOKEN`, which is not set"),
        ({"TOKEN": ""}, "the secret `TOKEN` is shorter than 6 bytes"),
        ({"TOKEN": "12345"}, "the secret `TOKEN` is shorter than 6 bytes"),
    ],
)
def test_secrets_that_cannot_be_had_or_masked(
    counted: Counted, env: dict[str, str], told: str
) -> None:
    """A secret that is not set, or too short to be masked, fails its node before it starts;
    other nodes run."""
    counted.plan({"a": {"run": "true", "env": {"T": SECRET}}, "b": {"run": "true"}})
    executed, done = counted.tried(env=env)
    assert (executed, done.code) == (["b"], 1)
    assert told in done.out


def test_secret_of_several_lines(counted: Counted) -> None:
    """A secret with line ends in it is masked as a whole, also where it is printed line by
    line within others."""
    secret = "-----BEGIN-----\nabcdef\n-----END-----"
    counted.plan({"a": {"run": 'printf "<%s>" "$T"', "env": {"T": SECRET}}})
    assert counted.ran(env={"TOKEN": secret}) == ["a"]
    assert counted.assay("log", "a").out == "<***>"
