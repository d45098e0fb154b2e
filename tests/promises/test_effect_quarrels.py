"""Effects of several runs of one plan, also of a plan that was edited: nothing is done twice,
nothing counts as done that is not, and what is taken back is taken back in order."""

from __future__ import annotations

import os
import shlex

import pytest
from counted import LAST, Counted, warnings
from probe import Probes
from running import Begin
from workspace import ASSAY


def test_a_resumed_run_takes_over_what_another_has_done_since(counted: Counted) -> None:
    """C96: it failed without an effect in one run and was done in the next: the first one, gone
    on with, does not do it again."""
    counted.plan(
        {
            "pub": {
                "run": "test -e ok || exit 75; echo sent >> shop",
                "tier": "irreversible",
                "retry": {"attempts": 1, "exit_codes": [75]},
            }
        }
    )
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    assert counted.ran() == ["pub"]
    resumed = counted.assay("resume", counted.first_run(), "--retry-failed", "--json")
    assert (resumed.code, resumed.outcomes) == (0, {"pub": "clean"})
    assert counted.read("shop") == "sent\n"


def test_after_an_answer_it_is_performed_once(counted: Counted) -> None:
    """C96: both ways that `settle` names are taken: the second finds it done."""
    counted.plan({"pub": {"run": "test -e ok && echo sent >> shop", "tier": "irreversible"}})
    assert counted.assay("run").code == 1
    first = counted.first_run()
    assert counted.assay("settle", first, "pub", "--not-done").code == 0
    counted.write("ok", "")
    assert counted.ran() == ["pub"]
    assert counted.assay("resume", first).code == 0
    assert counted.read("shop") == "sent\n"


def test_a_try_that_did_nothing_hides_no_effect(counted: Counted) -> None:
    """C95: what may have happened stays open behind a repeat that did nothing."""
    pub = {
        "run": ["./pub.sh"],
        "tier": "irreversible",
        "retry": {"attempts": 1, "exit_codes": [75]},
    }
    script = counted.write("pub.sh", "#!/bin/sh\necho sent >> shop; test -e fine || exit 1\n")
    script.chmod(0o755)
    counted.plan({"pub": {**pub, "idempotency_key": "v1"}})
    assert counted.assay("run").code == 1
    first = counted.first_run()
    counted.write("pub.sh", "#!/bin/sh\nexit 75\n")
    counted.plan({"pub": {**pub, "idempotency_key": "v1"}})
    assert counted.assay("run").code == 4  # the same key, but another content
    assert counted.assay("settle", first, "pub", "--not-done").code == 0
    assert counted.assay("run").code == 1
    counted.write("pub.sh", "#!/bin/sh\necho sent >> shop\n")
    assert counted.assay("run").code == 0
    assert counted.read("shop") == "sent\nsent\n"


def test_an_instance_that_is_gone_is_asked_about(counted: Counted) -> None:
    """C103: what was, or may have been, done for a file that is no longer there is settled before
    the template goes on."""
    counted.write("list", "a\n")
    counted.plan(
        {
            "gen": {
                "run": "rm -rf out; mkdir -p out; for i in $(cat list); do echo $i > out/$i; done",
                "reads": ["list"],
                "writes": ["out/"],
            },
            "pub": {
                "foreach": "out/*",
                "run": "echo {{each.name}} >> shop; test -e ok",
                "reads": ["{{each}}"],
                "tier": "irreversible",
            },
        }
    )
    assert counted.assay("run").code == 1
    first = counted.first_run()
    counted.write("list", "b\n")
    counted.write("ok", "")
    asked = counted.assay("run")
    assert asked.code == 4
    assert "`pub[out/a]`, which it does not expand to any more, ended with exit code 1" in asked.err
    assert f"assay settle {first} 'pub[out/a]' --done" in asked.err
    assert counted.read("shop") == "a\n"
    assert counted.assay("settle", first, "pub[out/a]", "--done").code == 0
    assert counted.assay("run").code == 0
    assert counted.read("shop") == "a\nb\n"


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_node_that_is_gone_while_it_runs_is_not_asked_about(
    counted: Counted, probes: Probes, begin: Begin, is_killed: bool
) -> None:
    """C103: the run that executes it is named, and only once that has ended is there anything to
    be asked."""
    counted.plan({"p": {"run": probes.argv("p"), "tier": "irreversible"}})
    run = begin()
    node = probes.arrive("p")
    first = counted.first_run()
    if is_killed:
        run.kill()
    counted.plan({"q": {"run": "true", "tier": "irreversible"}})
    refused = counted.assay("run")
    assert refused.code == 4
    assert "The plan no longer has `p`, which still runs" in refused.err
    assert f"run {first}" in refused.err
    assert "may or may not" not in refused.err
    assert f"`assay cancel {first}` ends it" in refused.err
    assert is_killed or f"(pid {run.pid})" in refused.err
    node.exit(1)
    node.gone()
    if not is_killed:
        assert run.finish().code == 1
    asked = counted.assay("run")
    assert asked.code == 4
    assert f"assay settle {first} p --done" in asked.err


def test_an_instance_that_is_gone_while_it_runs_is_not_asked_about(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C103: nor where it is a template that expands to it no more."""
    counted.write("list", "a\n")
    counted.plan(
        {
            "gen": {
                "run": "rm -rf out; mkdir -p out; for i in $(cat list); do echo $i > out/$i; done",
                "reads": ["list"],
                "writes": ["out/"],
            },
            "pub": {
                "foreach": "out/*",
                "run": probes.argv("pub"),
                "after": ["gen"],
                "tier": "irreversible",
            },
        }
    )
    run = begin()
    node = probes.arrive("pub")
    counted.write("list", "")
    refused = counted.assay("run")
    assert refused.code == 4
    told = "`pub[out/a]`, which it does not expand to any more, still runs: run"
    assert told in refused.err
    assert f"(pid {run.pid})" in refused.err
    assert "assay settle" not in refused.err
    node.exit(0)
    assert run.finish().code == 0


def test_an_edit_upstream_is_other_content_downstream(counted: Counted) -> None:
    """What an earlier effect is done anew with is not what the later one was done with."""
    bump = {"run": "echo v1 > CHANGES", "writes": ["CHANGES"], "tier": "compensable"}
    nodes = {
        "bump": bump,
        "publish": {
            "run": "cat CHANGES >> shop",
            "reads": ["CHANGES"],
            "tier": "irreversible",
        },
        "last": {**LAST, "after": ["publish"]},
    }
    counted.plan(nodes)
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    counted.plan({**nodes, "bump": {**bump, "run": "echo v2 > CHANGES"}})
    told = counted.assay("run")
    assert told.code == 4
    assert "with other content: read changed: CHANGES" in told.err
    assert counted.read("shop") == "v1\n"


def rewriter(script: str, file: str = "f", **more: object) -> dict[str, object]:
    return {"run": script, "reads": [file], "writes": [file], "tier": "compensable", **more}


def test_what_follows_is_undone_although_nobody_asked_for_it(counted: Counted) -> None:
    """C100: a later rewriter of the same file is taken back with the earlier one, and done again
    on what that makes of it."""
    counted.write("f", "0\n")
    nodes = {
        "m1": rewriter("echo one >> f"),
        "m2": rewriter("echo two >> f", after=["m1"]),
        "last": {**LAST, "after": ["m2"]},
    }
    counted.plan(nodes)
    assert counted.assay("run").code == 1
    counted.plan({**nodes, "m1": rewriter("echo ONE >> f")})
    assert counted.ran("m1") == ["m1"]
    assert counted.read("f") == "0\nONE\n"
    counted.write("ok", "")
    assert counted.assay("run").code == 0
    # The run of `m1` alone completed, so that the next one does it again.
    assert counted.read("f") == "0\nONE\nONE\ntwo\n"


def test_the_order_of_undoing_is_that_of_the_work(counted: Counted) -> None:
    """C100: also where the edited plan has no order between the two any more."""
    counted.write("f", "0\n")
    counted.write("g", "0\n")
    counted.plan(
        {
            "m1": rewriter("echo one >> f"),
            "m2": rewriter("echo two >> f", after=["m1"]),
            "last": {**LAST, "after": ["m2"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    counted.plan(
        {
            "m1": rewriter("echo ONE >> f"),
            "m2": rewriter("echo two >> g", "g"),
            "last": LAST,
        }
    )
    assert counted.assay("run", "-j1").code == 0
    assert counted.read("f") == "0\nONE\n"
    assert counted.read("g") == "0\ntwo\n"


def test_a_formatter_behind_an_effect_is_no_edit(counted: Counted) -> None:
    """What a sealed node after it makes of a file that it rewrites asks for nothing."""
    counted.write("f", "b\n")
    counted.plan(
        {
            "bump": rewriter("echo a >> f", tier="irreversible"),
            "fmt": {"run": "sort -o f f", "reads": ["f"], "writes": ["f"], "after": ["bump"]},
            "last": {**LAST, "after": ["fmt"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    done = counted.assay("run", "--json")
    assert (done.code, done.outcomes["bump"]) == (0, "clean")
    assert counted.read("f") == "a\nb\n"


def test_what_was_put_back_is_not_done(counted: Counted) -> None:
    """An operator cannot say that rolled back work stands, nor that standing work was not done."""
    counted.write("f", "0\n")
    counted.plan({"m": rewriter("echo 1 >> f; test -e good", undo="test -e can")})
    assert counted.assay("run").code == 1
    asked = counted.assay("run")
    assert asked.code == 4
    assert "--not-done" in asked.err
    assert "--done\n" not in asked.err
    refused = counted.assay("settle", "last", "m", "--done")
    assert refused.code == 2
    assert "has been put back" in refused.err
    assert counted.assay("settle", "last", "m", "--not-done").code == 0
    counted.write("good", "")
    counted.plan({"m": rewriter("echo 1 >> f; test -e good"), "last": {**LAST, "after": ["m"]}})
    assert counted.assay("run").code == 1
    standing = counted.assay("settle", "last", "m", "--not-done")
    assert standing.code == 2
    assert "assay rewind" in standing.err


def test_an_answer_holds_for_its_content_alone(counted: Counted) -> None:
    """What an operator says of one content says nothing of another: that is asked anew."""
    pub = {"run": "cat conf >> shop; exit 1", "reads": ["conf"], "tier": "irreversible"}
    counted.write("conf", "v1\n")
    counted.plan({"pub": pub, "last": {**LAST, "after": ["pub"]}})
    assert counted.assay("run").code == 1
    assert counted.assay("settle", "last", "pub", "--done").code == 0
    assert counted.tried()[1].outcomes["pub"] == "clean"
    counted.write("conf", "v2\n")
    assert counted.assay("run").code == 4
    assert counted.assay("settle", "last", "pub", "--done").code == 0
    assert counted.tried()[1].outcomes["pub"] == "clean"
    counted.write("conf", "v3\n")
    assert counted.assay("run").code == 4


def test_starting_over_completes_what_is_half_taken_back(counted: Counted) -> None:
    """`--new` says what it leaves behind, and runs an `undo` that is still to end well first."""
    marks = shlex.quote(str(counted.marks))
    counted.plan(
        {
            "charge": {
                "run": "echo $ASSAY_RUN >> charged; test -e good",
                "tier": "compensable",
                "undo": f"test -e can && echo refunded >> {marks}",
            },
            "sent": {"run": "true", "tier": "irreversible"},
            "last": LAST,
        }
    )
    assert counted.assay("run").code == 1
    counted.write("can", "")
    counted.write("good", "")
    counted.write("ok", "")
    done = counted.assay("run", "--new", "--json")
    assert done.code == 0
    assert "starts over: `sent` was done in run" in warnings(done)
    assert counted.executions.count("refunded") == 1
    assert counted.executions.index("refunded") < len(counted.executions) - 1


def test_a_cancel_reaches_a_node_that_is_about_to_start(counted: Counted, begin: Begin) -> None:
    """C55: cancelled while what it may change is still being kept: it is not started."""
    for number in range(3000):
        counted.write(f"d/{number}", str(number))
    counted.plan({"m": {"run": "sleep 30", "writes": ["d/"], "tier": "compensable"}})
    run = begin()
    run.told("node-started", "m")
    counted.assay("cancel", "last")
    done = run.finish()
    assert (done.code, done.outcomes) == (143, {"m": "cancelled"})


def test_a_second_ctrl_c_ends_an_undo(counted: Counted, probes: Probes, begin: Begin) -> None:
    """C58, C101: what hangs while it takes something back can be ended; the next run does it."""
    undo = shlex.join(probes.argv("undo"))
    counted.plan({"m": {"run": "exit 1", "tier": "compensable", "undo": undo}})
    run = begin()
    probe = probes.arrive("undo")
    run.send(2)
    run.told("cancel-requested")
    assert probe.is_alive
    run.send(2)
    probe.gone()
    assert run.finish().code == 130
    again = begin()
    probes.arrive("undo").exit(0)
    again.told("node-started", "m")
    probes.arrive("undo").exit(0)
    assert again.finish().code == 1


@pytest.mark.parametrize("who", ["its node", "a later run"])
def test_a_second_ctrl_c_ends_an_undo_that_is_about_to_start(
    counted: Counted, probes: Probes, begin: Begin, who: str
) -> None:
    """C58: also where it comes after the last look at whether to begin it, and before the start."""
    counted.write("in", "" if who == "its node" else "1")
    counted.plan(
        {
            "m": {
                "run": probes.argv("m"),
                "reads": ["in"],
                "tier": "compensable",
                "undo": shlex.join(probes.argv("undo")),
            },
            "last": {"run": "exit 1", "after": ["m"]},
        }
    )
    run = begin()
    attempt = run.told("node-started", "m")["attempt"]
    node = probes.arrive("m")
    # What it looks at right before it starts the undo, and waits for here.
    lease = counted.path(f".assay/tmp/{attempt}.undo.lease")
    if who == "its node":
        os.mkfifo(lease)
        node.exit(1)
    else:
        node.exit(0)
        assert run.finish().code == 1
        os.mkfifo(lease)
        counted.write("in", "2")
        run = begin()
    with lease.open("w"):
        for _ in range(2):
            run.send(2)
            run.told("cancel-requested")
        lease.unlink()
    assert run.finish().code == 130
    assert probes.living == []
    assert not lease.exists()


def test_a_run_inside_an_undo_waits_for_nobody_that_waits_for_it(counted: Counted) -> None:
    """A nested run of an `undo` that wants what its attempt holds is an error at once."""
    counted.write("f", "0\n")
    counted.write("cleanup.toml", '[nodes.clean]\nrun = "echo c > f"\nwrites = ["f"]\n')
    counted.plan(
        {
            "m": {
                "run": "exit 1",
                "writes": ["f"],
                "tier": "compensable",
                "undo": "assay run cleanup.toml",
            }
        }
    )

    done = counted.assay("run", env={"PATH": f"{ASSAY.parent}:{os.environ['PATH']}"})
    assert done.code == 1
    assert "its `undo` ended with exit code 1" in done.err


def test_a_survivor_is_not_awaited_beyond_its_timeout(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C97: what a killed assay would have ended by now is ended by whoever comes next."""
    argv = probes.argv("pub")
    counted.plan({"pub": {"run": argv, "tier": "irreversible", "timeout": "1s", "grace": "0s"}})
    run = begin()
    pub = probes.arrive("pub")
    pub.ignore(15)
    run.kill()
    done = counted.assay("run", "--json")
    assert (done.code, done.outcomes) == (4, {"pub": "ambiguous"})
    pub.gone()


def test_a_survivor_is_asked_to_end_at_its_timeout(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C97: as its assay would have done: SIGTERM then, and its grace from then on."""
    argv = probes.argv("pub")
    counted.plan({"pub": {"run": argv, "tier": "irreversible", "timeout": "2s", "grace": "1h"}})
    run = begin()
    pub = probes.arrive("pub")
    pub.trap(15)
    run.kill()
    after = begin()
    assert pub.heard() == 15
    while "it was asked to end" not in after.told("warned")["text"]:
        pass
    pub.exit(0)
    assert after.finish().code == 4


def test_an_undo_is_not_awaited_beyond_its_timeout(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C97: that of its node, from when the undo began, also where its assay was killed."""
    undo = shlex.join(probes.argv("undo"))
    counted.plan(
        {
            "m": {
                "run": "exit 1",
                "tier": "compensable",
                "undo": undo,
                "timeout": "2s",
                "grace": "1h",
            }
        }
    )
    run = begin()
    first = probes.arrive("undo")
    first.trap(15)
    run.kill()
    after = begin()
    assert first.heard() == 15
    first.exit(0)
    for _ in range(2):
        probes.arrive("undo").exit(0)
    assert after.finish().code == 1


def test_a_cancel_ends_what_a_killed_run_left(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """`assay cancel` of a run whose assay is gone ends its node, and says each thing once."""
    counted.plan({"pub": {"run": probes.argv("pub"), "tier": "irreversible"}})
    run = begin()
    pub = probes.arrive("pub")
    run.kill()
    done = counted.assay("cancel", "last")
    assert done.code == 0, done.err
    pub.gone()
    assert done.err.endswith("has ended: cancelled\n")
    assert len(done.err.splitlines()) == len(set(done.err.splitlines()))
    assert counted.assay("run").code == 4


def test_a_rewind_waits_for_no_run_that_builds_on_it(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """Work that a living run has taken over is not pulled from under it."""
    counted.write("f", "0\n")
    counted.plan(
        {
            "a": {"run": "true"},
            "m": rewriter("echo 1 >> f", after=["a"]),
            "hold": {"run": probes.argv("hold"), "after": ["m"], "cache": False},
        }
    )
    first = begin()
    probes.arrive("hold").exit(1)
    assert first.finish().code == 1
    second = begin()
    hold = probes.arrive("hold")
    refused = counted.assay("rewind", counted.first_run(), "--to", "a")
    assert refused.code == 2
    assert "builds on it" in refused.err
    hold.exit(0)
    assert second.finish().code == 0
    assert counted.read("f") == "0\n1\n"


def test_an_edit_after_a_rollback_is_the_users(counted: Counted) -> None:
    """What is in a file after a failed try was rolled back is nobody's left-over."""
    counted.write("f", "0\n")
    counted.plan({"m": {"run": "echo x >> f; test -e ok", "writes": ["f"], "tier": "compensable"}})
    assert counted.assay("run").code == 1
    assert counted.read("f") == "0\n"
    trash = counted.trash()
    counted.write("f", "mine\n")
    counted.write("ok", "")
    assert counted.assay("run").code == 0
    assert counted.read("f") == "mine\nx\n"
    assert counted.trash() == trash


def test_teardown_is_done_each_time(counted: Counted) -> None:
    """A handler with an effect runs on every occasion, whatever an unfinished run did."""
    counted.plan(
        {
            "up": {"run": "echo up >> log; exit 1", "cache": False},
            "down": {
                "run": "echo down >> log",
                "tier": "irreversible",
                "when": "always",
                "after": ["up"],
            },
        }
    )
    for _ in range(2):
        assert counted.assay("run").code == 1
    assert counted.read("log") == "up\ndown\n" * 2


def test_two_runs_take_back_once(counted: Counted, begin: Begin) -> None:
    """C103: of several runs that find work with other content each is told what the first has
    made of it, and none takes that back."""
    counted.write("conf", "one\n")
    counted.write("f", "0\n")
    counted.plan(
        {
            "m": {
                "run": "sleep 0.3; cat conf >> f",
                "reads": ["conf"],
                "writes": ["f"],
                "tier": "compensable",
                # One that is created once another has completed does it again, on top.
                "clean": False,
            },
            "last": {**LAST, "after": ["m"]},
        }
    )
    assert counted.assay("run").code == 1
    counted.write("conf", "two\n")
    counted.write("ok", "")
    runs = [begin() for _ in range(4)]
    assert [run.finish().code for run in runs] == [0] * 4
    text = counted.read("f").splitlines()
    assert text[0] == "0"
    assert set(text[1:]) == {"two"}


def test_a_renamed_node_keeps_no_effect_open(counted: Counted) -> None:
    """A run that completed has selected all that the plan still has of an earlier one: the next
    run performs its effects again."""
    pub = {"run": "echo sent >> shop", "tier": "irreversible"}
    counted.plan({"lint": {"run": "true"}, "pub": pub, "last": {**LAST, "after": ["pub", "lint"]}})
    assert counted.assay("run").code == 1
    counted.write("ok", "")
    counted.plan({"style": {"run": "true"}, "pub": pub, "last": {**LAST, "after": ["pub"]}})
    assert counted.assay("run", "--json").outcomes["pub"] == "clean"
    assert counted.read("shop") == "sent\n"
    assert counted.assay("run", "--json").outcomes["pub"] == "built"
    assert counted.read("shop") == "sent\nsent\n"


def test_a_run_left_behind_by_a_new_start_can_be_gone_on_with(
    counted: Counted, probes: Probes, begin: Begin
) -> None:
    """C103: what the new one has done since counts for it as well; what nobody has done is asked,
    and the answer is taken."""
    counted.plan(
        {
            "pub": {"run": probes.argv("pub"), "tier": "irreversible"},
            "last": {**LAST, "after": ["pub"]},
        }
    )
    first = begin()
    probe = probes.arrive("pub")
    first.kill()
    probe.die(9)
    probe.gone()
    left = counted.first_run()
    anew = begin("--new")
    probes.arrive("pub").exit(1)
    assert anew.finish().code == 1
    assert counted.assay("resume", left).code == 4
    assert counted.assay("settle", left, "pub", "--not-done").code == 0
    again = begin("--new")
    probes.arrive("pub").exit(0)
    assert again.finish().code == 1
    counted.write("ok", "")
    resumed = counted.assay("resume", left, "--json")
    assert (resumed.code, resumed.outcomes) == (0, {"pub": "clean", "last": "built"})


def test_what_the_node_has_become_has_no_effect(counted: Counted) -> None:
    """C95: an effect of unknown outcome is asked about also where a group, or a sealed node, bears
    the name of the node that had it."""
    counted.plan({"charge": {"run": "echo paid >> shop; exit 1", "tier": "irreversible"}})
    assert counted.assay("run").code == 1
    for nodes in (
        {"charge": {"after": ["charge-eu"]}, "charge-eu": {"run": "echo paid >> shop"}},
        {"charge": {"run": "echo paid >> shop"}},
    ):
        counted.plan(nodes)
        assert counted.assay("run").code == 4
        assert counted.read("shop") == "paid\n"


def test_a_template_asks_again_when_its_run_is_gone_on_with(counted: Counted) -> None:
    """C103: to go on without an answer is to be asked again, not to be done."""
    counted.write("list", "a b\n")
    counted.plan(
        {
            "split": {
                "run": "mkdir -p parts; for i in $(cat list); do echo $i > parts/$i; done",
                "reads": ["list"],
                "writes": ["parts/"],
            },
            "send": {
                "foreach": "parts/*",
                "run": "echo {{each.name}} >> shop; test {{each.name}} != b",
                "reads": ["{{each}}"],
                "tier": "irreversible",
            },
        }
    )
    assert counted.assay("run", "-j1").code == 1
    first = counted.first_run()
    counted.write("list", "a c\n")
    assert counted.assay("run").code == 4
    asked = counted.assay("resume", "last")
    assert asked.code == 4
    assert f"assay settle {first} 'send[parts/b]' --done" in asked.err
    assert counted.read("shop") == "a\nb\n"
    assert counted.assay("settle", first, "send[parts/b]", "--done").code == 0
    assert counted.assay("resume", "last").code == 0
    assert counted.read("shop") == "a\nb\nc\n"


def test_an_answer_must_be_a_value_and_tells_what_is_missing(counted: Counted) -> None:
    """What has no JSON form is refused in one line; a declared file that is not there is named."""
    counted.plan(
        {
            "pub": {
                "run": "exit 1",
                "tier": "irreversible",
                "result": "json",
                "writes": ["receipt"],
            }
        }
    )
    assert counted.assay("run").code == 1
    for value in ("NaN", '{"a": 1e400}', r'"\ud800"'):
        refused = counted.assay("settle", "last", "pub", "--done", "--value", value)
        assert refused.code == 2
        assert refused.err.startswith("error: `--value` must be JSON: ")
    done = counted.assay("settle", "last", "pub", "--done", "--value", "1")
    assert done.code == 0
    assert "`receipt`, which it declares to write, is not there" in done.err
