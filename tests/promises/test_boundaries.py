"""What is held by a boundary works as it does without one, and says so where it cannot."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from counted import Counted, warnings
from held import BOUNDARIES
from probe import Probes
from running import Begin
from workspace import ASSAY, Finished

HOW = pytest.mark.parametrize("boundary", BOUNDARIES)
ANY = pytest.mark.parametrize("boundary", ["declared", *BOUNDARIES])
LARGE = "0123456789abcdef" * (1 << 15)


def held_plan(held: Counted, boundary: str, nodes: dict[str, dict[str, object]]) -> None:
    held.plan(nodes, f'[defaults]\nboundary = "{boundary}"\n')


def detail(done: Finished, node: str) -> str:
    """Why the node failed."""
    return next(
        str(event["detail"])
        for event in done.events
        if event["event"] == "node-settled" and event["node"] == node
    )


def left_over(held: Counted) -> list[str]:
    """Private trees and what else is left below the store's `tmp`."""
    return sorted(path.name for path in held.path(".assay/tmp").iterdir() if path.suffix != ".lock")


# One node of every kind that one plan can hold.
EVERY_KIND: dict[str, dict[str, object]] = {
    "file": {"run": "cat src/a > o", "reads": ["src/a"], "writes": ["o"]},
    "folder": {
        "run": "mkdir -p d/e d/empty; cp src/a d/e/f; printf '#!/bin/sh' > d/x; chmod +x d/x;"
        " ln -s e/f d/link; ln -s nowhere d/dangling; ln -s e d/folder",
        "reads": ["src/a"],
        "writes": ["d/"],
    },
    "glob": {
        "run": 'for f in src/[ab]*; do cp "$f" "g/${f##*/}.out"; done',
        "reads": ["src/*", "!src/skip"],
        "writes": ["g/*.out"],
    },
    "alone": {
        "run": "mkdir -p alone; cat d/e/f o > alone/o",
        "reads": ["o", "d/"],
        "writes": ["alone/o"],
    },
    "beside": {"run": "echo beside > beside", "writes": ["beside"]},
    "format": {
        "run": "for f in fmt/*; do tr a-z A-Z < $f > $TMPDIR/x; cat $TMPDIR/x > $f; done",
        "reads": ["fmt/*"],
        "writes": ["fmt/*"],
    },
    "after format": {
        "run": "for f in fmt/*; do cat $f; done | sort > formatted",
        "reads": ["fmt/*"],
        "writes": ["formatted"],
        "after": ["format"],
    },
    "remove": {"run": "rm -rf old/f", "removes": ["old/f"], "reads": ["old/f"]},
    "workdir": {
        "run": "cat ../src/a > here; cat here > ../there",
        "workdir": "work",
        "reads": ["src/a"],
        "writes": ["work/here", "there"],
    },
    "tool by path": {
        "run": ["tools/t", "tool/o"],
        "writes": ["tool/o"],
        "reads": ["tools/part"],
    },
    "value": {"run": "echo '{\"n\": [1, 2]}' > $ASSAY_RESULT", "result": "json", "cache": True},
    "uses value": {
        "run": "echo $N > value/o",
        "env": {"N": {"from": "value", "path": "n.1"}},
        "writes": ["value/o"],
    },
    "each": {
        "foreach": "src/*",
        "run": "cat '{{each}}' > 'each/{{each.stem}}.o'",
        "reads": ["{{each}}"],
        "writes": ["each/{{each.stem}}.o"],
    },
    "join": {"run": "cat each/*.o > joined", "reads": ["each/*.o"], "writes": ["joined"]},
    "streams": {
        "run": "echo a > /dev/stdout; echo b > /dev/stderr; echo c > /dev/null; echo ok > s/o",
        "writes": ["s/o"],
    },
    "optional": {"run": "true", "writes": [{"path": "opt/o", "optional": True}]},
    "compensable": {
        "run": "echo new > comp/o",
        "writes": ["comp/o"],
        "tier": "compensable",
        "undo": "true",
    },
    "irreversible": {"run": "echo sent > sent/o", "writes": ["sent/o"], "tier": "irreversible"},
    "check": {"run": "grep -q a src/a", "reads": ["src/a"]},
}


def lay_out(held: Counted) -> None:
    held.write("src/a", "a\n")
    held.write("src/b c", "bc\n")
    held.write("src/skip", "skip\n")
    held.write("fmt/one", "one\n").chmod(0o755)
    held.write("fmt/two", "two\n")
    held.write("old/f", "old\n")
    held.write("work/kept", "kept\n")
    held.write("tools/part", "part\n")
    held.write("comp/o", "old\n")
    held.write("opt/kept", "kept\n")
    held.write("tools/t", '#!/bin/sh\nmkdir -p "$(dirname "$1")"; cat "${0%/*}/part" > "$1"\n')
    held.path("tools/t").chmod(0o755)


@pytest.mark.parametrize("jobs", ["-j1", "-j4"])
def test_boundaries_agree(held: Counted, jobs: str) -> None:
    """C47: however boundaries are held, a plan of every kind of node leaves the same tree, and
    puts back what was removed."""
    trees = []
    for boundary in ("declared", *BOUNDARIES):
        for path in held.root.iterdir():
            held.remove(path.name)
        lay_out(held)
        held_plan(held, boundary, EVERY_KIND)
        _, done = held.tried(jobs)
        assert done.code == 0, f"{boundary}: {done.out}\n{done.err}"
        tree = held.tree()
        del tree["plan.toml"]
        trees.append(tree)
        assert left_over(held) == []
        # The formatter reads what it wrote, and what is gone cannot be removed again.
        assert set(held.ran()) <= {"format", "remove", "compensable", "irreversible"}
        held.remove("o", "d", "g", "alone", "formatted", "each", "joined", "work/here", "s")
        assert held.ran() == ["compensable", "irreversible"]
        tree = held.tree()
        del tree["plan.toml"]
        assert tree == trees[0], boundary
        # What stood there and nobody had recorded.
        assert held.trash().keys() <= {"comp/o"}
    assert trees[0] == trees[1] == trees[2]


@HOW
def test_formatter_rewrites_what_it_reads(held: Counted, boundary: str) -> None:
    """C47: a formatter finds its inputs and its results land on them, modes and all, once."""
    held.write("src/a", "a\n").chmod(0o755)
    held.write("src/large", LARGE)
    held.write("src/other", "other")
    held_plan(
        held,
        boundary,
        {
            "f": {
                "run": "for f in src/a src/large; do tr a-f A-F < $f > $TMPDIR/x && cat $TMPDIR/x"
                " > $f; done",
                "reads": ["src/a", "src/large"],
                "writes": ["src/a", "src/large"],
            }
        },
    )
    assert held.ran() == ["f"]
    assert held.tree("src") == {"a": "A\n (executable)", "large": LARGE.upper(), "other": "other"}
    assert stat.S_IMODE(held.path("src/a").stat().st_mode) == 0o755
    assert held.trash() == {}
    held.ran()
    held.rests()
    held.write("src/a", "b\n")
    assert held.ran() == ["f"]
    assert held.read("src/a") == "B\n"


@HOW
def test_links_among_inputs(held: Counted, tmp_path: Path, boundary: str) -> None:
    """C14, C30: a link among the inputs is that link, and leads where it leads in the
    workspace: to files of the workspace by one or several links, out of it, or nowhere."""
    (tmp_path / "outside").write_text("outside\n")
    held.write("src/f", "f\n")
    links = {
        "relative": "f",
        "chain": "relative",
        "up": "../src/chain",
        "absolute": str(held.path("src/f")),
        "outside": "../../outside",
        "far": str(tmp_path / "outside"),
        "dangling": "nowhere",
        "loop": "loop",
        "folder": "../src",
    }
    for name, text in links.items():
        held.write("in/keep", "").with_name(name).symlink_to(text)
    names = ["relative", "chain", "up", "absolute", "outside", "far"]
    held.path("src/relative").symlink_to("f")
    held.path("src/chain").symlink_to("relative")
    held.remove("in/relative")
    held.path("in/relative").symlink_to("../src/f")
    script = f"cd in; cat {' '.join(names)} > ../{{0}}; for f in *; do readlink $f || :; done >&2"
    reads: list[object] = [f"in/{name}" for name in names]
    held_plan(
        held,
        boundary,
        {
            "alone": {
                "run": script.format("alone/o"),
                "reads": reads,
                "writes": ["alone/o"],
            },
            "beside": {"run": script.format("o"), "reads": ["in/"], "writes": ["o"]},
        },
    )
    assert held.ran() == ["alone", "beside"]
    assert held.read("alone/o") == held.read("o") == "f\n" * 4 + "outside\n" * 2
    held.rests()
    held.write("src/f", "g\n")
    assert held.ran() == ["alone", "beside"]
    assert held.read("alone/o") == "g\n" * 4 + "outside\n" * 2


@HOW
def test_links_among_outputs(held: Counted, boundary: str) -> None:
    """C30: links come as they were made, also where they lead to what lands with them, to an
    input, out of the workspace, nowhere, or to folders."""
    held.write("src/f", "f\n")
    held_plan(
        held,
        boundary,
        {
            "a": {
                "run": "mkdir -p d/k; echo 1 > d/f; ln -s f d/l; ln -s l d/ll;"
                " ln -s nowhere d/dang;"
                " ln -s . d/self; ln -s k d/dl; ln -s ../src/f d/in; ln -s /etc/passwd d/out;"
                " ln -sf d/f top",
                "reads": ["src/f"],
                "writes": ["d/", "top"],
            },
            "b": {
                "run": "cat d/ll d/in top > b/o",
                "reads": ["d/", "top", "src/f"],
                "writes": ["b/o"],
            },
        },
    )
    assert held.ran() == ["a", "b"]
    assert held.tree("d") == {
        "dang": "-> nowhere",
        "dl": "-> k",
        "f": "1\n",
        "in": "-> ../src/f",
        "k": "folder",
        "l": "-> f",
        "ll": "-> l",
        "out": "-> /etc/passwd",
        "self": "-> .",
    }
    assert held.read("b/o") == "1\nf\n1\n"
    held.rests()
    held.remove("d", "top", "b")
    assert held.ran() == []
    assert held.read("b/o") == "1\nf\n1\n"


NAMES = [
    "a b",
    "n\nl",
    "é",
    "e\u0301",
    "-dash",
    "q'q",
    "$HOME",
    "[x]",
    "*",
    "tab\t",
    "b\\s",
    "#",
    "~",
]


@HOW
def test_names(held: Counted, boundary: str) -> None:
    """C121, C123, C124: names of any kind are read, written, removed and put back."""
    for name in NAMES:
        held.write(f"in/{name}", f"{name}\n")
    entries = [{"path": f"in/{name}"} for name in NAMES]
    script = 'for f in in/*; do cp -- "$f" out/; done'
    held_plan(
        held,
        boundary,
        {
            "literal": {
                "run": script,
                "reads": entries,
                "writes": [{"path": f"out/{name}"} for name in NAMES],
            },
            "glob": {"run": "mkdir -p all; cp -- in/* all/", "reads": ["in/*"], "writes": ["all/"]},
        },
    )
    assert held.ran() == ["glob", "literal"]
    expected = {name: f"{name}\n" for name in NAMES}
    assert held.files("out") == held.files("all") == expected
    held.rests()
    held.remove("out", "all")
    assert held.ran() == []
    assert held.files("out") == held.files("all") == expected


@HOW
def test_stamps_and_modes_of_inputs(held: Counted, boundary: str) -> None:
    """C20: inputs have their times and modes for the command, and keep them, large ones too."""
    for name, text in (("small", "x"), ("large", LARGE)):
        held.write(f"src/{name}", text).chmod(0o754)
        os.utime(held.path(f"src/{name}"), ns=(1_000_000_007, 1_234_567_890_123_456_789))
    held_plan(
        held,
        boundary,
        {
            "a": {
                "run": "stat -c '%n %a %s %y' src/small src/large > out/o",
                "reads": ["src/*"],
                "writes": ["out/o"],
            }
        },
    )
    before = {path: found[:3] for path, found in held.stats().items() if path.startswith("src")}
    assert held.ran() == ["a"]
    after = {path: found[:3] for path, found in held.stats().items() if path.startswith("src")}
    assert after == before
    assert held.path("src/large").stat().st_nlink == 1
    lines = held.read("out/o").splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["src/small", "754", "1"],
        ["src/large", "754", str(len(LARGE))],
    ]
    assert all("23:31:30.123456789" in line for line in lines)
    held.rests()


@HOW
def test_tool_of_the_workspace_in_path(held: Counted, boundary: str) -> None:
    """C07: a program of the workspace that is found by PATH is a read and can be run, whether by
    assay or, being declared, by a script."""
    held.write("bin/tool", "#!/bin/sh\necho one\n").chmod(0o755)
    env = {"PATH": f"{held.path('bin')}:/usr/bin:/bin"}
    held_plan(
        held,
        boundary,
        {
            "direct": {"run": ["tool"], "env": env},
            "script": {"run": "tool > o", "env": env, "reads": ["bin/tool"], "writes": ["o"]},
            "named": {"run": "tool > n/o", "env": env, "tools": ["tool"], "writes": ["n/o"]},
        },
    )
    done = held.run()
    assert done.counts == {"built": 3}
    assert held.read("o") == held.read("n/o") == "one\n"
    held.write("bin/tool", "#!/bin/sh\necho two\n").chmod(0o755)
    done = held.run()
    assert done.counts == {"built": 3}
    assert held.read("o") == held.read("n/o") == "two\n"


@HOW
def test_clean_false_lets_a_tool_find_its_outputs(held: Counted, boundary: str) -> None:
    """C35: an incremental tool finds its earlier outputs where it says `clean = false`, and no
    other does."""
    for clean, expected in ((False, "12"), (True, "2")):
        held.write("src", "1")
        node = {"run": "cat src >> o; mkdir -p d; cat src >> d/x", "reads": ["src"]}
        held_plan(held, boundary, {"a": {**node, "writes": ["o", "d/"], "clean": clean}})
        held.ran("--fresh")
        for path in ("o", "d/x"):
            held.path(path).write_text("1")
        held.write("src", "2")
        # Whose content nobody recorded: it is found, and what it becomes is kept apart.
        held.ran()
        assert held.read("o") == held.read("d/x") == expected
        held.remove("o", "d")


@HOW
def test_values_and_secrets(held: Counted, boundary: str) -> None:
    """C82: a held node has secrets, whose output is masked, and gives values."""
    held_plan(
        held,
        boundary,
        {
            "a": {
                "run": "echo $TOKEN; echo again $TOKEN > /dev/stdout\n"
                "echo ${#TOKEN} > $ASSAY_RESULT",
                "env": {"TOKEN": {"secret": "TOKEN"}},
                "result": "text",
            },
            "b": {"run": "echo $N > b/o", "env": {"N": {"from": "a"}}, "writes": ["b/o"]},
        },
    )
    done = held.run(env={"TOKEN": "hunter2-hunter2"})
    assert held.read("b/o") == "15\n"
    logs = [Path(e["log"]).read_text() for e in done.events if e.get("log") and "outcome" in e]
    assert any("again ***" in log for log in logs), logs
    assert not any("hunter2" in log for log in logs)


@HOW
def test_foreach_over_what_another_writes(held: Counted, boundary: str) -> None:
    """C110: instances made from outputs that did not exist before are held as well."""
    held_plan(
        held,
        boundary,
        {
            "gen": {
                "run": "mkdir -p gen; echo x > gen/x; echo y > gen/y",
                "writes": ["gen/"],
            },
            "use": {
                "foreach": "gen/*",
                "run": "cat {{each}} > use/{{each.name}}",
                "reads": ["{{each}}"],
                "writes": ["use/{{each.name}}"],
            },
            "all": {"run": "cat use/* > all/o", "reads": ["use/*"], "writes": ["all/o"]},
        },
    )
    held.run("-j4")
    assert held.read("all/o") == "x\ny\n"
    held.rests()


def test_no_false_report_of_what_others_write(held: Counted, probes: Probes, begin: Begin) -> None:
    """C47: what other nodes write into the same folder while a node works there is no deviation
    of that node."""
    held_plan(
        held,
        "enforced",
        {
            "a": {
                "run": f"{shlex.join(probes.argv('a'))}; echo a > out/a",
                "writes": ["out/a"],
            },
            "list": {"run": "mkdir -p in; echo > in/x; echo > in/y", "writes": ["in/"]},
            "each": {
                "foreach": "in/*",
                "run": "echo {{each}} > out/{{each.name}}",
                "reads": ["{{each}}"],
                "writes": ["out/{{each.name}}"],
            },
        },
    )
    run = begin("-j2")
    probe = probes.arrive("a")
    run.told("node-settled", "each[in/y]")
    probe.exit()
    done = run.finish()
    assert done.code == 0, done.out
    assert set(held.files("out")) == {"a", "x", "y"}


def test_what_cannot_be_put_in_place_is_taken_back(
    held: Counted, probes: Probes, begin: Begin
) -> None:
    """C84: an isolated compensable node whose file was edited while it ran has failed: it is undone
    at once, tried again, and the edit stays where it is."""
    held.write("f", "before\n")
    held.plan(
        {
            "mod": {
                "run": f"{shlex.join(probes.argv('mod'))}; echo x > f",
                "writes": ["f"],
                "tier": "compensable",
                "boundary": "isolated",
                "undo": f"echo undone $(cat f) >> {shlex.quote(str(held.marks))}",
                "retry": {"attempts": 2, "backoff": "0s"},
            }
        }
    )
    run = begin()
    for text in ("1\n", "2\n"):
        mod = probes.arrive("mod")
        held.write("f", text)
        mod.exit(0)
    done = run.finish()
    assert (done.code, done.outcomes) == (1, {"mod": "failed"})
    assert "`f` was changed while it ran" in done.out
    assert held.executions == ["mod", "undone 1", "mod", "undone 2"]
    assert (held.read("f"), held.trash()) == ("2\n", {})
    again = begin()
    probes.arrive("mod").exit(0)
    assert again.finish().code == 0
    assert held.read("f") == "x\n"


@HOW
def test_a_failed_compensable_attempt_and_an_edit(
    held: Counted, probes: Probes, begin: Begin, boundary: str
) -> None:
    """C84: of a node in a private tree that fails nothing was put in place: an edit of the user's
    meanwhile is not taken for its work."""
    held.write("f", "before\n")
    held.plan(
        {
            "mod": {
                "run": f"{shlex.join(probes.argv('mod'))}; echo x > f; exit 1",
                "writes": ["f"],
                "tier": "compensable",
                "boundary": boundary,
            }
        }
    )
    run = begin()
    mod = probes.arrive("mod")
    held.write("f", "mine\n")
    mod.exit(0)
    assert run.finish().code == 1
    assert (held.read("f"), held.trash()) == ("mine\n", {})


@HOW
def test_failed_attempt_and_the_workspace(held: Counted, boundary: str) -> None:
    """C84: a failed isolated attempt leaves everything as it was, stamps and all, whatever it
    did before; an enforced one at least everything that it does not write alone."""
    held.write("src/a", "a\n")
    held.write("src/large", LARGE)
    held.write("both", "before\n")
    held.write("old", "old\n")
    held.write("mine/o", "by hand\n")
    node: dict[str, object] = {
        "run": "echo after > both; rm old; echo new > mine/o; mkdir d; echo > d/x; exit 3",
        "reads": ["src/*", "both", "old"],
        "writes": ["both", "mine/o", "d/"],
        "removes": ["old"],
    }
    held_plan(held, boundary, {"a": node})
    names = held.tree()
    before = {path: found[:3] for path, found in held.stats().items()}
    for _ in range(2):
        _, done = held.tried()
        assert done.code == 1
        assert held.tree() == names
        assert {path: found[:3] for path, found in held.stats().items()} == before
        assert left_over(held) == []
    held_plan(held, boundary, {"a": {**node, "run": str(node["run"])[: -len("; exit 3")]}})
    assert held.ran() == ["a"]
    assert (held.read("both"), held.read("mine/o")) == ("after\n", "new\n")
    assert not held.path("old").exists()
    assert held.path("d/x").exists()


@HOW
def test_retry_starts_from_the_beginning(held: Counted, boundary: str) -> None:
    """C100: every further attempt finds its inputs as the first did, and nothing of it."""
    held.write("f", "0")
    once = held.marks.parent / "once"
    held_plan(
        held,
        boundary,
        {
            "a": {
                "run": f"test ! -e d; printf 1 >> f; mkdir d; echo > d/x; test -e {once} ||"
                f" {{ touch {once}; exit 1; }}",
                "reads": ["f"],
                "writes": ["f", "d/"],
                "retry": {"attempts": 2, "backoff": "0s"},
            }
        },
    )
    assert held.ran() == ["a", "a"]
    assert held.read("f") == "01"
    assert left_over(held) == []


@HOW
def test_timeout_and_cancel(held: Counted, probes: Probes, boundary: str) -> None:
    """C64: a held node that takes too long is ended with all it started, and its tree goes."""
    held_plan(
        held,
        boundary,
        {
            "a": {
                "run": probes.argv("a"),
                "writes": [{"path": "o", "optional": True}],
                "timeout": "100ms",
            }
        },
    )
    _, done = held.tried()
    assert done.code == 1
    assert done.outcomes == {"a": "failed"}
    assert probes.living == []
    assert left_over(held) == []


@HOW
def test_background_processes(held: Counted, probes: Probes, begin: Begin, boundary: str) -> None:
    """C62: what a node leaves behind is ended, or lives on with its leave, held as before."""
    script = f"{shlex.join(probes.argv('child'))} & echo 1 > out/o"
    node = {"run": script, "writes": ["out/o"]}
    held_plan(held, boundary, {"a": {**node, "background": "keep"}})
    done = begin().finish()
    child = probes.arrive("child")
    assert (done.code, child.is_alive) == (0, True)
    child.exit()
    child.gone()
    held_plan(held, boundary, {"a": {**node, "background": "end"}})
    assert begin("--fresh").finish().code == 0
    assert probes.living == []
    assert left_over(held) == []


@HOW
def test_compensable(held: Counted, boundary: str) -> None:
    """C100: a compensable node that fails is taken back, its own writes and the rest by `undo`,
    which no boundary holds."""
    elsewhere = held.root.parent / "elsewhere"
    held.write("o", "before\n")
    node = {
        "run": "echo after > o; exit 3",
        "writes": ["o"],
        "tier": "compensable",
        "undo": f"echo undone >> {elsewhere}",
    }
    held_plan(held, boundary, {"a": node})
    _, done = held.tried()
    assert done.code == 1
    assert held.read("o") == "before\n"
    assert elsewhere.read_text() == "undone\n"
    held_plan(held, boundary, {"a": {**node, "run": "echo after > o"}})
    assert held.ran() == ["a"]
    assert held.read("o") == "after\n"


@HOW
def test_irreversible(held: Counted, boundary: str) -> None:
    """C95: an irreversible node is performed once, and a broken boundary leaves its effect
    unknown."""
    node = {"run": "echo sent >> sent/o", "writes": ["sent/o"], "tier": "irreversible"}
    held_plan(held, boundary, {"a": node})
    assert held.ran() == ["a"]
    assert held.read("sent/o") == "sent\n"
    held_plan(held, boundary, {"b": {**node, "run": "echo sent > sent/o; echo > sent/stray"}})
    _, done = held.tried("--new")
    assert done.code != 0
    assert "`sent/stray`" in done.out
    again = held.assay("run")
    assert again.code == 4, again.err


def test_why_names_the_boundary(held: Counted) -> None:
    """C22: how a boundary is held is part of the key: results are not shared between them."""
    held.write("src", "1")
    nodes: dict[str, dict[str, object]] = {
        "a": {"run": "cat src > out/o", "reads": ["src"], "writes": ["out/o"]}
    }
    held_plan(held, "declared", nodes)
    assert held.ran() == ["a"]
    held_plan(held, "enforced", nodes)
    assert "boundary" in held.assay("why", "a").out
    assert held.ran() == ["a"]
    assert held.ran("--boundary", "isolated") == ["a"]
    for boundary in ("declared", "enforced", "isolated"):
        assert held.ran("--boundary", boundary) == []
    assert held.ran() == []
    held.rests()


def test_boundary_of_the_command_line(held: Counted) -> None:
    """C129: `--boundary` counts for every node, whatever the plan says of it."""
    held.write("src", "1")
    script = "if cat src; then echo free > out/o; else echo held > out/o; fi"
    nodes: dict[str, dict[str, object]] = {
        name: {"run": script.replace("out", name), "writes": [f"{name}/o"], "boundary": name}
        for name in ("declared", *BOUNDARIES)
    }
    held.plan(nodes)
    held.ran()
    assert [held.read(f"{name}/o") for name in nodes] == ["free\n", "held\n", "held\n"]
    for boundary in nodes:
        held.ran("--boundary", boundary)
        word = "free\n" if boundary == "declared" else "held\n"
        assert [held.read(f"{name}/o") for name in nodes] == [word] * 3, boundary
    wrong = held.assay("run", "--boundary", "open")
    assert wrong.code == 2
    assert "declared" in wrong.err


@HOW
def test_denials_are_explained(held: Counted, boundary: str) -> None:
    """C47, C128: a command that names what it was refused is told the line to add."""
    held.write("src/a", "a\n")
    held.write("src/[b]", "b\n")
    for command, path, key in (
        ("cat src/a", "src/a", "reads"),
        ("cat 'src/[b]'", "src/[b]", "reads"),
        ("echo > made", "made", "writes"),
        (f"{sys.executable} -c \"open('src/a')\"", "src/a", "reads"),
        (f"{sys.executable} -c \"open('made', 'w')\"", "made", "writes"),
    ):
        held_plan(held, boundary, {"a": {"run": command, "writes": ["out/o"]}})
        _, done = held.tried()
        assert done.code == 1, command
        said = warnings(done)
        if command.startswith("cat") or "src/a" in command:
            assert f"`{path}` is not among its `{key}`" in said, (command, done.out)


@HOW
def test_store_that_cannot_be_written(held: Counted, boundary: str) -> None:
    """C90: where nothing can be recorded, held nodes are held all the same, also where private
    trees are on another file system than the workspace."""
    held.write("src", "fine\n")
    held.write("undeclared", LARGE)
    held_plan(
        held,
        boundary,
        {
            "check": {"run": "grep fine src; if cat undeclared; then exit 7; fi", "reads": ["src"]},
            "make": {
                "run": "mkdir d; cat src > d/x; ln -s x d/l",
                "reads": ["src"],
                "writes": ["d/"],
            },
        },
    )
    held.path(".assay").mkdir(mode=0o700)
    unshare = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this machine has no namespaces for users")
    script = "mount --bind .assay .assay; mount -o remount,ro,bind .assay; "
    for place in ("/tmp", str(held.marks.parent)):
        done = subprocess.run(
            [*unshare, "sh", "-ec", f'{script} TMPDIR={place} "$0" run --json', str(ASSAY)],
            cwd=held.root,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, (place, done.stdout, done.stderr)
        assert held.tree("d") == {"x": "fine\n", "l": "-> x"}
        held.remove("d")


def test_doctor_tells(held: Counted) -> None:
    """C129: `assay doctor` says whether boundaries can be held, and leaves nothing."""
    done = held.assay("doctor", "--json")
    found = {finding["name"]: finding for finding in json.loads(done.out)}
    assert found["boundaries"]["verdict"] == "ok"
    assert "files" in found["boundaries"]["what"]
    assert list(held.root.iterdir()) == []


NO_LANDLOCK = """
import ctypes, errno, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
# Answers the three calls of Landlock with ENOSYS, for this process and all it starts.
code = [(0x20, 0, 0, 0), (0x35, 0, 2, 444), (0x25, 1, 0, 446), (0x06, 0, 0, 0x50000 | errno.ENOSYS),
    (0x06, 0, 0, 0x7FFF0000)]
data = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(data)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_kernel_without_landlock(held: Counted, tmp_path: Path) -> None:
    """C129: where the kernel holds nothing, held nodes are refused before anything runs, with
    the way out, which works; `doctor` says the same."""
    (tmp_path / "without.py").write_text(NO_LANDLOCK)

    def assay(*words: str) -> Finished:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "without.py"), str(ASSAY), *words],
            cwd=held.root,
            text=True,
            capture_output=True,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    held.plan(
        {
            "a": {"run": "echo 1 > o", "writes": ["o"], "boundary": "enforced"},
            "b": {"run": "echo 1 > p", "writes": ["p"]},
        }
    )
    done = assay("run")
    assert done.code == 5, done.err
    assert "`a`" in done.err
    assert "no Landlock" in done.err
    assert "--boundary declared" in done.err
    assert held.executions == []
    assert assay("run", "b").code == 0
    assert assay("run", "--boundary", "declared").code == 0
    assert held.files().keys() == {"plan.toml", "o", "p"}
    found = {each["name"]: each for each in json.loads(assay("doctor", "--json").out)}
    assert found["boundaries"]["verdict"] == "warn"
    assert "Landlock" in found["boundaries"]["what"]


def test_two_plans_that_write_in_one_folder(held: Counted, probes: Probes, begin: Begin) -> None:
    """C47: what another run's node makes in a folder that is open to this one is never taken for
    its own: the second waits."""
    write = f"{shlex.join(probes.argv('a'))}; echo a > out/a"
    a = {"boundary": "enforced", "run": write, "writes": ["out/a"]}
    held.write("a.json", json.dumps({"nodes": {"a": a}}))
    b = {"boundary": "enforced", "run": "echo b > out/b", "writes": ["out/b"]}
    held.write("b.json", json.dumps({"nodes": {"b": b}}))
    first = begin("a.json")
    probe = probes.arrive("a")
    second = begin("b.json")
    second.told("waiting-for-run", "b")
    probe.exit()
    assert first.finish().code == 0
    assert second.finish().code == 0
    assert (held.read("out/a"), held.read("out/b")) == ("a\n", "b\n")


@pytest.mark.parametrize("limit", [64, 160])
def test_many_neighbours_and_few_descriptors(held: Counted, limit: int) -> None:
    """C73: with more beside the workspace than there are descriptors fewer nodes run at once, and
    all of them do run."""
    beside = [held.root.parent / f"beside-{number}" for number in range(150)]
    for folder in beside:
        folder.mkdir()
    (beside[7] / "f").write_text("beside\n")
    nodes: dict[str, dict[str, object]] = {
        f"n{number}": {
            "run": f"cat {beside[7]}/f > o/n{number}/f",
            "writes": [f"o/n{number}/f"],
            "boundary": ("enforced", "isolated")[number % 2],
        }
        for number in range(30)
    }
    held.plan(nodes)
    script = f"ulimit -n {limit}; exec {ASSAY} run -q -j 30"
    done = subprocess.run(["sh", "-c", script], cwd=held.root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert {held.read(f"o/n{number}/f") for number in range(30)} == {"beside\n"}
