"""`assay infer`: a node runs once under a tracer, and is told what it should declare."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tomllib

import pytest
from counted import Counted
from probe import Probes
from running import HEEDING
from workspace import ASSAY, Finished

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


def told(done: Finished) -> dict[str, list[str]]:
    assert done.code == 0, done.err
    return {key: list(value) for key, value in tomllib.loads(done.out).items()}


def test_what_it_prints_is_enough_to_hold_it(counted: Counted) -> None:
    """Reads, writes, a made folder, a removal and a tool: declared as printed, the node runs
    enforced, from nothing."""
    for name in ("a", "b", "c"):
        counted.write(f"src/{name}.t", f"{name}\n")
    counted.write("src/other.x", "x\n")
    counted.write("conf", "conf\n")
    counted.write("junk", "junk\n")
    script = "mkdir -p gen/sub; cat src/*.t conf > gen/sub/all; cp gen/sub/all copy; rm junk"
    counted.write("plan.toml", f'[nodes.n]\nrun = "{script}"\n')
    found = told(counted.assay("infer", "n"))
    assert found == {
        "reads": ["conf", "src/*.t"],
        "writes": ["copy", "gen/"],
        "removes": ["junk"],
    }
    shutil.rmtree(counted.path("gen"))
    counted.path("copy").unlink()
    counted.write("junk", "junk\n")
    counted.write(
        "plan.json",
        json.dumps({"nodes": {"n": {"run": script, "boundary": "enforced", **found}}}),
    )
    assert counted.assay("run", "plan.json").code == 0
    assert counted.read("copy") == "a\nb\nc\nconf\n"


def test_it_writes_into_the_plan_and_keeps_the_rest(counted: Counted) -> None:
    """Comments, order and other nodes stay; what was declared wrongly is replaced."""
    counted.write("in", "1\n")
    counted.write(
        "plan.toml",
        '# the plan\n\n[nodes.copy]  # a copy\nrun = "cp in out"  # the command\n'
        'reads = [\n  "plan.toml",  # wrong\n]\n\n[nodes.other]\nrun = "true"\n',
    )
    counted.path("plan.toml").chmod(0o640)
    assert counted.assay("infer", "copy", "--write").code == 0
    assert counted.read("plan.toml") == (
        '# the plan\n\n[nodes.copy]  # a copy\nrun = "cp in out"  # the command\n'
        'reads = ["in"]\nwrites = ["out"]\n\n[nodes.other]\nrun = "true"\n'
    )
    assert counted.path("plan.toml").stat().st_mode & 0o777 == 0o640
    assert counted.assay("run", "--boundary", "enforced").code == 0


@pytest.mark.parametrize(
    "text",
    [
        '[nodes]\nn = { run = "cp in out" }\n',
        'nodes.n.run = "cp in out"\n',
        '{"nodes": {"n": {"run": "cp in out", "description": "x"}}}',
    ],
)
def test_other_ways_to_write_a_plan(counted: Counted, text: str) -> None:
    """An inline table and JSON are edited; what cannot be is left as it is, in one message."""
    counted.write("in", "1\n")
    file = "plan.json" if text.startswith("{") else "plan.toml"
    counted.write(file, text)
    done = counted.assay("infer", file, "n", "--write")
    if done.code == 0:
        load = json.loads if text.startswith("{") else tomllib.loads
        assert load(counted.read(file))["nodes"]["n"]["reads"] == ["in"]
    else:
        assert (done.code, counted.read(file)) == (2, text)
        assert "is left as it is" in done.err


def test_names_of_every_kind(counted: Counted) -> None:
    """C121: what is printed names exactly the file that was read."""
    names = ["a b", "q'q", "[x].t", "*", "é", "-rf", "{c}", "tab\tx", "new\nline"]
    for name in names:
        counted.write(f"in/{name}", name)
    counted.write("plan.json", json.dumps({"nodes": {"n": {"run": ["sh", "-c", "cat in/* > o"]}}}))
    found = told(counted.assay("infer", "plan.json", "n"))
    node = {"run": ["sh", "-c", "cat in/* > o"], "boundary": "enforced", **found}
    counted.write("held.json", json.dumps({"nodes": {"n": node}}))
    assert counted.assay("run", "held.json").code == 0, found


def test_where_it_works_and_what_it_is_given(counted: Counted) -> None:
    """`workdir`, values of other nodes and their secrets reach the command as in a run; paths are
    relative to the workspace."""
    counted.write("sub/in", "1\n")
    counted.write(
        "plan.toml",
        '[nodes.v]\nrun = "printf 7 > $ASSAY_RESULT"\nresult = "text"\n\n'
        '[nodes.n]\nrun = "test $V = 7; test -n $S; cp in out; test -d $TMPDIR"\nworkdir = "sub"\n'
        'env = { V = { from = "v" }, S = { secret = "TOKEN" } }\n',
    )
    secret = {"TOKEN": "hunter2-unique"}
    early = counted.assay("infer", "n", env=secret)
    assert early.code == 2
    assert "takes `V` from `v`, which has yet to run" in early.err
    assert counted.assay("run", "v").code == 0
    assert told(counted.assay("infer", "n", env=secret)) == {
        "reads": ["sub/in"],
        "writes": ["sub/out"],
    }


def test_it_says_what_is_wrong_with_it(counted: Counted) -> None:
    """Each misuse is one message with the way out, and nothing is run."""
    counted.write(
        "plan.toml",
        '[nodes.ship]\nrun = "echo x > shipped"\ntier = "irreversible"\n'
        '[nodes.all]\nafter = ["ship"]\n[nodes.n]\nrun = "true"\n',
    )
    empty = {"PATH": str(counted.path("nowhere"))}
    for words, env, code, text in (
        ([], {}, 2, "Missing argument"),
        (["nope"], {}, 2, "no node `nope`"),
        (["all"], {}, 2, "no command"),
        (["ship"], {}, 2, "would have its effect"),
        (["n"], empty, 5, "needs `strace`"),
    ):
        done = counted.assay("infer", *words, env=env)
        assert (done.code, text in done.err) == (code, True), (words, done.err)
        assert "Traceback" not in done.err
    assert not counted.path("shipped").exists()
    failed = counted.write("plan.toml", '[nodes.n]\nrun = "echo why >&2; exit 3"\n')
    assert failed
    done = counted.assay("infer", "n")
    assert done.code == 0
    assert "it ended with exit code 3" in done.err
    assert "why" in done.err


def test_a_signal_leaves_nothing(counted: Counted, probes: Probes) -> None:
    """C55, C57: the command, its tracer and what it started end with it."""
    counted.plan({"n": {"run": probes.argv("n")}})
    running = counted.start("infer", "n")
    probe = probes.arrive("n")
    child = probe.fork("child", setsid=True)
    running.terminate()
    child.gone()
    probe.gone()
    _, err = running.communicate()
    assert running.returncode == 143
    assert "Traceback" not in err


def test_what_a_person_has_written_with_more_in_mind_stays(counted: Counted) -> None:
    """Patterns, exclusions and optional entries are not replaced by what was read this time, and a
    command that fails changes nothing."""
    counted.write("t/a", "a\n")
    text = (
        '[nodes.n]\nrun = "cat t/a > o"\n'
        'reads = ["t/*", "!t/skip*", { path = "conf", optional = true }]  # mine\n'
    )
    counted.write("plan.toml", text)
    done = counted.assay("infer", "n", "--write")
    assert done.code == 0
    assert "`reads` stays as it is" in done.err
    assert counted.read("plan.toml") == text + 'writes = ["o"]\n'
    failing = '[nodes.n]\nrun = "cat t/a; exit 3"\n'
    counted.write("plan.toml", failing)
    refused = counted.assay("infer", "n", "--write")
    assert refused.code == 2
    assert "did not end well" in refused.err
    assert counted.read("plan.toml") == failing


def test_modules_are_declared_not_their_bytecode(counted: Counted) -> None:
    """What Python keeps of a module is not what it is made of."""
    counted.write("pkg/__init__.py", "")
    counted.write("pkg/core.py", "X = 1\n")
    counted.write("main.py", "import pkg.core\nopen('o', 'w').write(str(pkg.core.X))\n")
    counted.plan({"n": {"run": ["python3", "main.py"]}})
    for _ in range(2):
        found = told(counted.assay("infer", "n"))
        assert {"main.py", "pkg/__init__.py", "pkg/core.py"} <= set(found["reads"])
        assert not any("__pycache__" in entry for entry in found["reads"] + found["writes"])


def test_an_interrupted_trial_says_what_stays(counted: Counted, probes: Probes) -> None:
    """Ctrl-C ends the command and writes nothing into the plan; what the command did is said to
    stay."""
    counted.plan({"n": {"run": probes.argv("n")}})
    before = counted.read("plan.toml")
    process = subprocess.Popen(
        [*HEEDING, str(ASSAY), "infer", "n", "--write"],
        cwd=counted.root,
        stderr=subprocess.PIPE,
        text=True,
    )
    probe = probes.arrive("n")
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 130
    assert said == (
        "error: Interrupted while `n` ran: what it had done by then stays, nothing is declared\n"
    )
    assert counted.read("plan.toml") == before
    with pytest.raises(ProcessLookupError):
        os.kill(probe.pid, 0)


def test_a_tracer_that_may_not_trace_is_told(counted: Counted) -> None:
    """What the tracer says itself, and no list of it."""
    tracer = counted.path("bin/strace")
    tracer.parent.mkdir()
    tracer.write_text("#!/bin/sh\necho 'strace: not permitted' >&2\nexit 1\n")
    tracer.chmod(0o755)
    counted.plan({"n": {"run": ["true"]}})
    done = counted.assay("infer", "n", env={"PATH": f"{tracer.parent}:{os.environ['PATH']}"})
    assert done.code == 5
    assert done.err.startswith(
        "environment: `strace` may not trace here: strace: not permitted\n"
    ), done.err
