"""`assay rewind`: back to where one node had settled."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from counted import Counted
from probe import Probes
from running import HEEDING, Begin
from workspace import ASSAY

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(counted: Counted) -> Iterator[Start]:
    """Starts any `assay WORDS` that heeds SIGINT; those that still run after the test end."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [*HEEDING, str(ASSAY), *words],
                cwd=counted.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield begin
    for each in started:
        each.kill()
        each.wait()
        assert each.stderr is not None
        each.stderr.close()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What it says on standard error up to a line with `text`; waits for that."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if text in line:
            return said
    raise AssertionError(f"{text!r} was not said:\n{said}")


def plan_three(counted: Counted) -> None:
    """`a`, `b` and `c`, one after the other, each with a line for `log` and an `undo`."""
    marks = shlex.quote(str(counted.marks))
    counted.write("log", "0\n")
    counted.plan(
        {
            name: {
                "run": f"echo {name} >> log",
                "reads": ["log"],
                "writes": ["log"],
                "tier": "compensable",
                "undo": f"echo undo {name} >> {marks}",
                "after": after,
            }
            for name, after in (("a", []), ("b", ["a"]), ("c", ["b"]))
        }
    )


def test_later_work_is_undone_in_reverse_order(counted: Counted) -> None:
    """The files are as they were after the node; the run can be gone on with from there."""
    plan_three(counted)
    assert counted.ran() == ["a", "b", "c"]
    done = counted.assay("rewind", "last", "--to", "a")
    assert done.code == 0, done.err
    assert counted.read("log") == "0\na\n"
    assert counted.executions == ["a", "b", "c", "undo c", "undo b"]
    assert json.loads(counted.assay("runs", "--json").out)[0]["status"] == "suspended"
    assert "rewound" in counted.assay("journal", "last").out
    resumed = counted.assay("resume", "last", "--json")
    assert (resumed.code, resumed.outcomes) == (0, {"a": "clean", "b": "built", "c": "built"})
    assert counted.read("log") == "0\na\nb\nc\n"


def test_after_a_rewind_a_new_run_goes_on_too(counted: Counted) -> None:
    """What was left standing is carried over, what was rewound is done again."""
    plan_three(counted)
    counted.ran()
    assert counted.assay("rewind", "last", "--to", "b").code == 0
    assert counted.ran() == ["c"]
    assert counted.read("log") == "0\na\nb\nc\n"


def test_an_edit_since_is_kept(counted: Counted) -> None:
    """What a user wrote over it is moved to the trash and named."""
    plan_three(counted)
    counted.ran()
    counted.write("log", "mine\n")
    done = counted.assay("rewind", "last", "--to", "b")
    assert done.code == 0
    assert "kept what stood there instead: `log` is now" in done.err
    assert counted.read("log") == "0\na\nb\n"
    assert counted.trash() == {"log": "mine\n"}


def test_an_irreversible_effect_stands_in_the_way(counted: Counted) -> None:
    """It refuses before it touches anything, unless it is told to leave it; then the effect
    is not repeated by whoever goes on."""
    counted.write("f", "0\n")
    counted.plan(
        {
            "start": {"run": "true"},
            "mod": {
                "run": "echo x >> f",
                "reads": ["f"],
                "writes": ["f"],
                "tier": "compensable",
                "after": ["start"],
            },
            "pub": {"run": "echo out >> sent", "tier": "irreversible", "after": ["mod"]},
        }
    )
    counted.ran()
    refused = counted.assay("rewind", "last", "--to", "start")
    assert refused.code == 4
    assert "`pub` cannot be taken back" in refused.err
    assert "--leave-effects" in refused.err
    assert counted.read("f") == "0\nx\n"
    done = counted.assay("rewind", "last", "--to", "start", "--leave-effects")
    assert done.code == 0, done.err
    assert counted.read("f") == "0\n"
    resumed = counted.assay("resume", "last", "--json")
    assert resumed.code == 0
    assert resumed.outcomes == {"start": "clean", "mod": "built", "pub": "clean"}
    assert counted.read("sent") == "out\n"


def test_work_of_another_run_is_named(counted: Counted) -> None:
    """What the run had taken over from another one stands, and whose it is is said."""
    counted.write("log", "0\n")
    counted.plan(
        {
            "a": {"run": "true"},
            "m": {
                "run": "echo m >> log",
                "reads": ["log"],
                "writes": ["log"],
                "tier": "compensable",
                "after": ["a"],
            },
            "last": {"run": "test -e ok", "after": ["m"], "cache": False},
        }
    )
    assert counted.assay("run").code == 1
    first = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    counted.write("ok", "")
    assert counted.assay("run").code == 0
    done = counted.assay("rewind", "last", "--to", "a")
    assert done.code == 0
    assert f"`m`: left as it is, since it was done earlier in run {first}" in done.err
    assert counted.read("log") == "0\nm\n"


def test_rewind_says_what_is_wrong_with_it(counted: Counted, probes: Probes, begin: Begin) -> None:
    """A node that the run does not have, none at all, a run that is on: one message each."""
    counted.plan({"a": {"run": probes.argv("a")}})
    run = begin()
    probe = probes.arrive("a")
    busy = counted.assay("rewind", "last", "--to", "a")
    assert busy.code == 2
    assert f"pid {run.pid}" in busy.err
    probe.exit(0)
    run.finish()
    assert "needs the node to go back to" in counted.assay("rewind", "last").err
    missing = counted.assay("rewind", "last", "--to", "b")
    assert missing.code == 2
    assert "has no node `b`" in missing.err


def test_a_run_that_a_later_one_built_on_is_not_rewound(counted: Counted) -> None:
    """What a later run has done again is taken back first."""
    plan_three(counted)
    counted.ran()
    first = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    counted.ran()
    done = counted.assay("rewind", first, "--to", "a")
    assert done.code == 2
    assert "has done `c` again since: rewind that first" in done.err
    assert counted.read("log") == "0\na\nb\nc\na\nb\nc\n"


def plan_undo(counted: Counted, probes: Probes) -> None:
    """`a`, then `b`, whose undo is a probe and which writes nothing that assay knows of; the
    first run of it fails in `c`."""
    counted.plan(
        {
            "a": {"run": "cat in > oa", "reads": ["in"], "writes": ["oa"]},
            "b": {
                "run": "cat in >> made",
                "reads": ["in"],
                "after": ["a"],
                "tier": "compensable",
                "undo": probes.argv("undo"),
            },
            "c": {"run": "test -e ok", "after": ["b"], "cache": False},
        }
    )
    counted.write("in", "1\n")
    assert counted.assay("run").code == 1
    counted.write("ok", "")


@pytest.mark.parametrize("how", ["rewind", "killed rewind", "roll-back", "killed roll-back"])
def test_what_is_being_taken_back_is_not_settled(
    counted: Counted, probes: Probes, begin: Begin, how: str
) -> None:
    """While an undo lives, whoever started it, an operator is told to wait: it would take back
    what a later run does. Afterwards it is done again."""
    plan_undo(counted, probes)
    first = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    if "roll-back" in how:
        counted.write("in", "2\n")
        taker = begin().process
    else:
        taker = counted.start("rewind", first, "--to", "a")
    undo = probes.arrive("undo")
    if "killed" in how:
        taker.kill()
        taker.wait()
    refused = counted.assay("settle", first, "b", "--not-done")
    assert refused.code == 2, refused.err
    assert f"error: `b` of run {first} is" in refused.err
    assert "being taken back" in refused.err
    undo.exit(0)
    undo.gone()
    taker.communicate()
    if "killed" in how:
        settled = counted.assay("settle", first, "b", "--not-done")
        assert settled.code == 0, settled.err
    assert counted.assay("run").code == 0
    assert probes.arrivals == ["undo"]


def test_a_run_waits_for_a_rewind(counted: Counted, probes: Probes, begin: Begin) -> None:
    """A node that is being taken back is not performed meanwhile, although it writes nothing:
    the run says for whom it waits, and performs it afterwards."""
    plan_undo(counted, probes)
    first = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    rewind = counted.start("rewind", first, "--to", "a")
    undo = probes.arrive("undo")
    run = begin()
    told = run.told("waiting-for-run", "b")
    assert (told["for_run"], told["pid"]) == (first, rewind.pid)
    assert told["what"] == "node b of plan.toml"
    undo.exit(0)
    assert rewind.wait() == 0
    rewind.communicate()
    done = run.finish()
    assert (done.code, done.outcomes["b"]) == (0, "built")
    assert probes.arrivals == ["undo"]
    assert counted.read("made") == "1\n" * 2


def plan_two(counted: Counted, probes: Probes) -> None:
    """`a`, `b` and `c`, one after the other; the undos of `b` and `c` are probes."""
    counted.plan(
        {
            "a": {"run": "true"},
            **{
                name: {
                    "run": f"echo {name} > {name}",
                    "writes": [name],
                    "after": [after],
                    "tier": "compensable",
                    "undo": probes.argv(f"undo {name}"),
                }
                for name, after in (("b", "a"), ("c", "b"))
            },
        }
    )
    assert counted.assay("run").code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_rewind_that_is_asked_to_stop_ends_what_it_has_begun(
    counted: Counted, probes: Probes, start: Start, number: signal.Signals
) -> None:
    """The undo in progress ends by itself and nothing further is taken back; what stands is
    said, and the next rewind goes on."""
    plan_two(counted, probes)
    rewind = start("rewind", "last", "--to", "a")
    undo = probes.arrive("undo c")
    rewind.send_signal(number)
    read_until(rewind, "stopping once `c` is taken back")
    assert undo.is_alive
    undo.exit(0)
    told = read_until(rewind, "goes on")
    assert "`b`: left as it is, since that was not begun" in told
    assert "is not rewound wholly: interrupted" in told
    assert rewind.wait() == 128 + number
    assert (counted.path("b").exists(), counted.path("c").exists()) == (True, False)
    assert probes.arrivals == ["undo c"]
    again = start("rewind", "last", "--to", "a")
    probes.arrive("undo b").exit(0)
    assert again.wait() == 0
    assert not counted.path("b").exists()


def test_a_rewind_that_is_asked_twice_ends_at_once(
    counted: Counted, probes: Probes, start: Start
) -> None:
    """The second signal ends the undo, whatever that ignores; nothing of it is left, and the
    next rewind runs it again."""
    plan_two(counted, probes)
    rewind = start("rewind", "last", "--to", "a")
    undo = probes.arrive("undo c")
    undo.ignore(signal.SIGTERM)
    rewind.send_signal(signal.SIGTERM)
    read_until(rewind, "stopping once `c` is taken back")
    rewind.send_signal(signal.SIGTERM)
    undo.gone()
    assert "its `undo` was ended by SIGKILL" in read_until(rewind, "not rewound wholly")
    assert rewind.wait() == 143
    assert not [name for name in os.listdir(counted.path(".assay/tmp")) if "undo" in name]
    again = start("rewind", "last", "--to", "a")
    for name in ("undo c", "undo b"):
        probes.arrive(name).exit(0)
    assert again.wait() == 0


@pytest.mark.parametrize("who", ["run", "resume", "rewind"])
@pytest.mark.parametrize("taker", ["rewind", "roll-back"])
def test_an_undo_whose_assay_is_gone_is_awaited(
    counted: Counted, probes: Probes, start: Start, taker: str, who: str
) -> None:
    """Whoever comes next says for which process it waits, also where that has closed its lease,
    and never starts a second one beside it."""
    plan_undo(counted, probes)
    first = json.loads(counted.assay("runs", "--json").out)[0]["run"]
    if taker == "rewind":
        dead = start("rewind", first, "--to", "a")
    else:
        counted.write("in", "2\n")
        dead = start("run")
    undo = probes.arrive("undo")
    undo.detach()
    dead.kill()
    dead.wait()
    words = {
        "run": ["run"],
        "resume": ["resume", first, "--retry-failed"],
        "rewind": ["rewind", first, "--to", "a"],
    }
    after = start(*words[who])
    assert str(undo.pid) in read_until(after, "still runs")
    assert probes.living == ["undo"]
    os.kill(undo.pid, signal.SIGKILL)
    undo.gone()
    probes.arrive("undo").exit(0)
    # The first run saw another `in` than what is there since: it starts no effect over that.
    assert after.wait() == (4 if (who, taker) == ("resume", "roll-back") else 0)
    assert probes.arrivals == ["undo", "undo"]


def test_waiting_for_an_undo_can_be_ended(counted: Counted, probes: Probes, start: Start) -> None:
    """A rewind that waits for what another has left ends on a signal, and has done nothing."""
    plan_undo(counted, probes)
    dead = start("rewind", "last", "--to", "a")
    undo = probes.arrive("undo")
    dead.kill()
    dead.wait()
    after = start("rewind", "last", "--to", "a")
    read_until(after, "still runs")
    after.send_signal(signal.SIGINT)
    read_until(after, "nothing was taken back")
    assert after.wait() == 4
    assert undo.is_alive
