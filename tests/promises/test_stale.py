"""A result is never served for anything but what it was made from: commands, tools, variables
and files. `test_stale_outputs` has the other side, what stands where a result belongs."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from counted import Counted, warnings
from probe import Probes
from workspace import finish

COPY = {"run": "cat src > o", "reads": ["src"], "writes": ["o"]}


def test_another_command_executes(counted: Counted) -> None:
    """C01: a command that changed executes; changed back, its own result is there again."""
    for text, executed in (("one", ["a"]), ("two", ["a"]), ("one", [])):
        counted.plan({"a": {"run": f"echo {text} > o", "writes": ["o"]}})
        assert counted.ran() == executed
        assert counted.read("o") == f"{text}\n"
        counted.rests()


@pytest.mark.parametrize("meddling", ["none", "deleted", "edited", "emptied"])
def test_chain_is_keyed_after_its_upstream_ran(counted: Counted, meddling: str) -> None:
    """C02: what a node reads is measured after its producer, however it stood before."""
    counted.plan(
        {
            "x": {"run": "cp src mid", "reads": ["src"], "writes": ["mid"]},
            "y": {"run": "cp mid out", "reads": ["mid"], "writes": ["out"], "after": ["x"]},
        }
    )
    counted.write("src", "1")
    assert counted.ran() == ["x", "y"]
    counted.rests()
    counted.write("src", "2")
    if meddling == "deleted":
        counted.remove("mid")
    elif meddling != "none":
        counted.write("mid", "" if meddling == "emptied" else "by hand")
    assert counted.ran() == ["x", "y"]
    assert (counted.read("mid"), counted.read("out")) == ("2", "2")
    counted.write("src", "1")
    assert counted.ran() == []
    assert (counted.read("mid"), counted.read("out")) == ("1", "1")


@pytest.mark.parametrize("when", ["before it is read", "after it was read"])
def test_input_edited_while_its_node_runs(counted: Counted, probes: Probes, when: str) -> None:
    """C03: an input saved during the run is not credited to the result, whichever version
    the command saw."""
    wait, read = shlex.join(probes.argv("a")), "cat src > o"
    script = f"{wait}\n{read}" if when == "before it is read" else f"{read}\n{wait}"
    counted.plan({"a": {"run": script, "reads": ["src"], "writes": ["o"]}})
    counted.write("src", "1")

    run = counted.start("run", "--json")
    probe = probes.arrive("a")
    counted.write("src", "2")
    probe.exit()
    done = finish(run)
    assert done.code == 0
    assert "`src` changed while it ran" in warnings(done)

    for text in ("2", "1"):
        counted.write("src", text)
        run = counted.start("run", "--json")
        probes.arrive("a").exit()
        assert finish(run).code == 0
        assert counted.read("o") == text
        counted.rests()


def test_passed_variable_is_part_of_the_result(counted: Counted) -> None:
    """C04: a variable that is passed on decides the result; unset and empty differ."""
    counted.plan({"a": {"run": "echo ${V-unset} > o", "writes": ["o"], "pass_env": ["V*"]}})
    expected = [({"V": "1"}, ["a"]), ({"V": "2"}, ["a"]), ({"V": "1"}, []), ({"V": ""}, ["a"])]
    for variables, executed in [*expected, ({}, ["a"]), ({"V": ""}, [])]:
        assert counted.ran(env=variables) == executed
        assert counted.read("o") == variables.get("V", "unset") + "\n"
        counted.rests(env=variables)
    # Another name that the pattern matches is a variable more, whatever its value.
    assert counted.ran(env={"V": "1", "V2": ""}) == ["a"]


@pytest.mark.parametrize("place", ["plan", "node", "param"])
def test_variable_of_the_plan_is_part_of_the_result(counted: Counted, place: str) -> None:
    """C04: the same for a variable that the plan itself sets."""
    for value, executed in (("1", ["a"]), ("2", ["a"]), ("1", [])):
        node = {"run": "echo $V > o", "writes": ["o"]}
        head, words = "", []
        if place == "plan":
            head = f"[env]\nV = '{value}'"
        elif place == "node":
            node["env"] = {"V": value}
        else:
            head, words = "[params]\nv = 'default'", ["-p", f"v={value}"]
            node["env"] = {"V": "{{params.v}}"}
        counted.plan({"a": node}, head)
        assert counted.ran(*words) == executed
        assert counted.read("o") == f"{value}\n"
        counted.rests(*words)


def test_undeclared_variable_does_not_reach_the_node(counted: Counted) -> None:
    """C06: what nobody declared cannot decide a result, and changes of it cost nothing."""
    counted.plan({"a": {"run": "echo ${MODE-none} > o", "writes": ["o"]}})
    assert counted.ran(env={"MODE": "1"}) == ["a"]
    assert counted.read("o") == "none\n"
    assert counted.ran(env={"MODE": "2"}) == []
    counted.rests(env={"MODE": "2"})


def test_language_and_time_zone_are_part_of_the_result(counted: Counted) -> None:
    """C06: LANG, LC_* and TZ reach the node and are in its key; TERM reaches it and is not."""
    counted.plan({"a": {"run": "echo $LC_TIME $TZ $TERM > o", "writes": ["o"]}})
    assert counted.ran(env={"TERM": "one"}) == ["a"]
    assert counted.ran(env={"TERM": "two"}) == []
    assert counted.ran(env={"TERM": "two", "TZ": "UTC"}) == ["a"]
    assert counted.ran(env={"TERM": "two", "LC_TIME": "C"}) == ["a"]
    assert counted.ran(env={"TERM": "three"}) == []
    assert counted.read("o") == "one\n"


@pytest.mark.parametrize("given", ["", "LANG=C", "LANG=POSIX", "LC_CTYPE=C", "LC_ALL=C"])
def test_a_locale_that_only_assay_has_is_no_part_of_the_result(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """C06: in the C locale Python sets LC_CTYPE for itself: nodes and their keys have the
    caller's, or none, and a run is gone on with where Python does not do that."""
    monkeypatch.delenv("LANG")
    env = dict([given.split("=")]) if given else {}
    plain = {**env, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "1"}
    counted.plan(
        {
            "a": {"run": "env | grep ^L[AC] > o || true", "writes": ["o"]},
            "b": {"run": "test -e ok", "after": ["a"]},
        }
    )
    assert counted.tried(env=env)[1].code == 1
    assert counted.read("o") == (f"{given}\n" if given else "")
    counted.write("ok", "")
    resumed = counted.assay("resume", "last", "--retry-failed", env=plain)
    assert resumed.code == 0, resumed.err
    assert counted.ran(env=plain) == ["b"]


@pytest.mark.parametrize("declared", ["argv", "tools", "version"])
def test_program_is_part_of_the_result(counted: Counted, tmp_path: Path, declared: str) -> None:
    """C07: another program under the same name executes: changed, or earlier on PATH."""
    first, second = tmp_path / "first", tmp_path / "second"
    node: dict[str, object] = {"run": "tool", "writes": ["o"]}
    if declared == "argv":
        node = {"run": ["tool"], "writes": ["o"]}
    elif declared == "tools":
        node["tools"] = ["tool"]
    else:
        node["tools"] = [{"name": "tool", "version": ["tool", "--version"]}]
    counted.plan({"a": node})
    env = {"PATH": f"{first}:{second}:{os.environ['PATH']}"}

    def install(folder: Path, text: str) -> None:
        folder.mkdir(exist_ok=True)
        program = folder / "tool"
        program.write_text(f"#!/bin/sh\n[ $1 ] || echo {text} > o\necho {text}\n")
        program.chmod(0o755)

    for folder, text, outcome in (
        (second, "1", "built"),
        (second, "2", "built"),
        (first, "3", "built"),
        (first, "2", "clean"),
        (first, "1", "clean"),
    ):
        install(folder, text)
        done = counted.run(env=env)
        assert done.counts == {outcome: 1}, text
        assert counted.read("o") == f"{text}\n"
        assert counted.run(env=env).counts == {"clean": 1}
    (first / "tool").unlink()
    assert counted.run(env=env).counts == {"clean": 1}
    assert counted.read("o") == "2\n"


def test_program_of_the_workspace_is_a_read(counted: Counted) -> None:
    """C07: a script of the workspace that a command starts with is read without saying so;
    one that another node writes is waited for."""
    counted.write("tool.in", "#!/bin/sh\necho 1 > o\n")
    nodes = {
        "make": {
            "run": "cp tool.in tool; chmod +x tool",
            "reads": ["tool.in"],
            "writes": ["tool"],
        },
        "use": {"run": ["./tool"], "writes": ["o"]},
    }
    counted.plan(nodes)
    assert counted.run().counts == {"built": 2}
    assert counted.run().counts == {"clean": 2}
    counted.write("tool.in", "#!/bin/sh\necho 2 > o\n")
    counted.plan(dict(reversed(nodes.items())))
    assert counted.run().named("built") == {"make", "use"}
    assert counted.read("o") == "2\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"run": ["printf", "%s-", "ab", "c"]}, {"run": ["printf", "%s-", "a", "bc"]}),
        ({"run": ["true", ""]}, {"run": ["true"]}),
        ({"run": ["echo"]}, {"run": "echo"}),
        ({"run": "true", "env": {"A": "1B=2"}}, {"run": "true", "env": {"A": "1", "B": "2"}}),
        ({"run": "true", "env": {"A": ""}}, {"run": "true"}),
        ({"run": "true", "reads": ["a\nb"]}, {"run": "true", "reads": ["a", "b"]}),
        ({"run": "true", "reads": ["text"]}, {"run": "true", "reads": ["link"]}),
        ({"run": "true", "reads": ["a"]}, {"run": "true", "reads": ["program"]}),
        ({"run": "true", "reads": ["a"]}, {"run": "true", "writes": ["a"]}),
        ({"run": "true", "writes": ["a", "b"]}, {"run": "true", "writes": ["a"]}),
        (
            {"run": "true", "writes": ["a", {"path": "nil", "optional": True}]},
            {"run": "true", "writes": ["a"]},
        ),
        ({"run": "true", "reads": ["a"], "workdir": "d"}, {"run": "true", "reads": ["a"]}),
        ({"run": "true", "reads": ["a"], "clean": False}, {"run": "true", "reads": ["a"]}),
        (
            {"run": "true", "reads": ["a"], "nondeterministic": True},
            {"run": "true", "reads": ["a"]},
        ),
        ({"run": "true", "reads": ["a"], "removes": ["nil"]}, {"run": "true", "reads": ["a"]}),
    ],
    ids=str,
)
def test_different_declarations_do_not_share_a_result(
    counted: Counted, one: dict[str, object], other: dict[str, object]
) -> None:
    """C08: parts of a key are framed: declarations that look alike run together differ."""
    for name in ("a\nb", "a", "b", "text", "program", "d/x"):
        counted.write(name, "")
    counted.path("program").chmod(0o755)
    counted.path("link").symlink_to("text")
    for node in (one, other):
        # `cache` so that one without a boundary could be served at all.
        counted.plan({"n": {**node, "cache": True, "clean": node.get("clean", False)}})
        if "clean" in one:
            counted.plan({"n": {**node, "cache": True}})
        assert counted.run().counts == {"built": 1}


@pytest.mark.parametrize("way", ["in place", "renamed over", "at once"])
def test_edit_that_keeps_size_and_mtime_is_noticed(counted: Counted, way: str) -> None:
    """C10: a file rewritten with the same length under the same time stamp is another file."""
    counted.plan({"a": COPY})
    counted.write("src", "aaa")
    assert counted.ran() == ["a"]
    counted.rests()
    source = counted.path("src")
    before = source.stat()
    for text in ("bbb", "ccc"):
        if way == "renamed over":
            new = counted.write("new", text)
            os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
            new.replace(source)
        else:
            source.write_text(text)
            if way == "in place":
                os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert counted.ran() == ["a"]
        assert counted.read("o") == text
    counted.rests()


def test_output_edited_with_its_size_and_mtime_kept_is_noticed(counted: Counted) -> None:
    """C10: the same holds for outputs: such an edit is put right."""
    counted.plan({"a": COPY})
    counted.write("src", "aaa")
    counted.ran()
    counted.rests()
    output = counted.path("o")
    before = output.stat()
    output.write_text("bbb")
    os.utime(output, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert counted.ran() == []
    assert counted.read("o") == "aaa"
    assert counted.trash() == {"o": "bbb"}


def test_files_that_come_and_go_under_a_glob(counted: Counted) -> None:
    """C11: `**` crosses no folder as well as several, and a file that goes takes its result
    with it."""
    counted.plan(
        {
            "a": {
                "run": "find src -name '*.t' | sort | xargs cat > o",
                "reads": ["src/**/*.t"],
                "writes": ["o"],
            }
        }
    )
    counted.write("src/one.t", "1")
    counted.write("src/other.txt", "no")
    assert counted.ran() == ["a"]
    counted.write("src/two.t", "2")
    assert counted.ran() == ["a"]
    assert counted.read("o") == "12"
    counted.remove("src/two.t")
    assert counted.ran() == []
    assert counted.read("o") == "1"
    counted.write("src/d/e.t", "3")
    assert counted.ran() == ["a"]
    assert counted.read("o") == "31"
    counted.rests()
    counted.write("src/d/f/g.t", "4")
    assert counted.ran() == ["a"]
    counted.write("src/d/f/g.txt", "no")
    assert counted.ran() == []
    # A rename keeps every content and is a change all the same.
    counted.path("src/d/e.t").rename(counted.path("src/z.t"))
    assert counted.ran() == ["a"]
    counted.rests()


@pytest.mark.parametrize("git", ["none", "ignored", "below an ignored folder"])
def test_what_git_ignores_is_an_input(counted: Counted, git: str) -> None:
    """C12: git has no say in what a node reads."""
    if git == "ignored":
        subprocess.run(["git", "init", "-q", counted.root], check=True)
        counted.write(".gitignore", "gen/\n")
    elif git != "none":
        subprocess.run(["git", "init", "-q", counted.root.parent], check=True)
        (counted.root.parent / ".gitignore").write_text("*\n")
    counted.plan(
        {
            "file": {"run": "cat gen/f > o", "reads": ["gen/f"], "writes": ["o"]},
            "tree": {"run": "cat gen/* > p", "reads": ["gen/"], "writes": ["p"]},
        }
    )
    for text in ("1", "2"):
        counted.write("gen/f", text)
        assert counted.ran() == ["file", "tree"]
        assert counted.read("o") == counted.read("p") == text


def test_dotfiles_are_inputs(counted: Counted) -> None:
    """C13: a dotfile is an input by its name, under a glob and in a tree."""
    counted.plan(
        {
            "file": {"run": "cat .env > o", "reads": [".env"], "writes": ["o"]},
            "glob": {"run": "cat conf/.[a-z]* > p", "reads": ["conf/*"], "writes": ["p"]},
            "tree": {"run": "cat conf/.[a-z]* > q", "reads": ["conf/"], "writes": ["q"]},
        }
    )
    counted.write(".env", "1")
    counted.write("conf/.hidden", "1")
    assert counted.ran() == ["file", "glob", "tree"]
    counted.rests()
    counted.write(".env", "2")
    assert counted.ran() == ["file"]
    counted.write("conf/.hidden", "2")
    assert counted.ran() == ["glob", "tree"]
    counted.write("conf/.new", "3")
    assert counted.ran() == ["glob", "tree"]
    assert counted.read("p") == counted.read("q") == "23"


def test_link_is_read_as_what_it_leads_to(counted: Counted) -> None:
    """C14: an edit behind a link is an edit, and so is another target."""
    counted.plan({"a": {"run": "cat link > o", "reads": ["link"], "writes": ["o"]}})
    counted.write("real", "1")
    counted.path("link").symlink_to("real")
    assert counted.ran() == ["a"]
    counted.rests()
    counted.write("real", "2")
    assert counted.ran() == ["a"]
    assert counted.read("o") == "2"
    counted.rests()
    counted.write("copy", "3")
    counted.remove("link")
    counted.path("link").symlink_to("copy")
    assert counted.ran() == ["a"]
    assert counted.read("o") == "3"
    counted.rests()
    # Through a second link.
    counted.remove("copy")
    counted.path("copy").symlink_to("real")
    assert counted.ran() == ["a"]
    counted.write("real", "4")
    assert counted.ran() == ["a"]
    assert counted.read("o") == "4"


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_link_that_leads_nowhere_is_named(counted: Counted, target: str) -> None:
    """C14: a dangling or circular link that is read fails its node by name."""
    counted.plan({"a": {"run": "cat link > o", "reads": ["link"], "writes": ["o"]}})
    counted.path("link").symlink_to(target)
    executed, done = counted.tried()
    assert (executed, done.code) == ([], 1)
    assert "`link`" in done.out
    assert "leads nowhere" in done.out
    assert "Traceback" not in done.err


def test_link_under_a_glob_and_in_a_tree(counted: Counted) -> None:
    """C14: links among the members of a glob or tree count by their target's content, and
    one to a folder is recorded as a link."""
    counted.plan({"a": {"run": "cat d/link > o", "reads": ["d/"], "writes": ["o"]}})
    counted.write("d/folder/x", "x")
    counted.write("real", "1")
    counted.path("d/link").symlink_to("../real")
    counted.path("d/loop").symlink_to(".")
    counted.path("d/dangling").symlink_to("nowhere")
    assert counted.ran() == ["a"]
    counted.rests()
    counted.write("real", "2")
    assert counted.ran() == ["a"]
    assert counted.read("o") == "2"
    counted.remove("d/dangling")
    counted.path("d/dangling").symlink_to("elsewhere")
    assert counted.ran() == ["a"]


def test_executable_bit_is_content_and_other_modes_are_not(counted: Counted) -> None:
    """A file that became executable is another input; other bits are not."""
    counted.plan({"a": COPY})
    counted.write("src", "1")
    counted.path("src").chmod(0o644)
    counted.ran()
    counted.path("src").chmod(0o600)
    assert counted.ran() == []
    counted.path("src").chmod(0o700)
    assert counted.ran() == ["a"]
    counted.path("src").chmod(0o644)
    assert counted.ran() == []


def test_shell_and_working_folder_are_part_of_the_result(counted: Counted) -> None:
    """The shell a script is handed to and the folder it starts in decide its result."""
    counted.path("d").mkdir()
    node = {"run": "echo $- > o", "writes": ["o"]}
    counted.plan({"a": node})
    assert counted.ran() == ["a"]
    counted.plan({"a": node}, 'shell = ["/bin/sh", "-euc"]')
    assert counted.ran() == ["a"]
    counted.plan({"a": {**node, "workdir": "d", "writes": ["d/o"]}})
    assert counted.ran() == ["a"]
    counted.plan({"a": node})
    assert counted.ran() == []


def test_input_changed_and_changed_back_meanwhile(counted: Counted) -> None:
    """C03: content that is as before proves nothing when the file was written to during the
    attempt: the result is not kept. A link made to an input is no write."""
    counted.write("src", "1")
    script = "printf 2 > src; cat src > o; printf 1 > src"
    counted.plan({"a": {"run": script, "reads": ["src"], "writes": ["o"]}})
    for _ in range(2):
        executed, done = counted.tried()
        assert (executed, done.code) == (["a"], 0)
        assert "`src` changed while it ran" in warnings(done)
    counted.plan({"a": {"run": "ln src o", "reads": ["src"], "writes": ["o"]}})
    assert counted.ran() == ["a"]
    counted.rests()
