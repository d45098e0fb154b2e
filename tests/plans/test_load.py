"""From a plan file to a compiled plan."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plan_files import command_of, lines_of, load_text, node_named, refuse_text, write_file

from assay.plans.diagnostics import PlanError
from assay.plans.load import LoadRequest, load_plan
from assay.plans.model import Origin, Plain, Resource, ResourceScope, Secret, ValueRef

HELLO = '[nodes.hello]\nrun = "echo hello"\n'


def refuse_bytes(root: Path, content: bytes, name: str = "plan.toml") -> list[str]:
    (root / name).write_bytes(content)
    with pytest.raises(PlanError) as raised:
        load_plan(LoadRequest(name, cwd=str(root)))
    return lines_of(raised.value.diagnostics, raised.value.sources)


# Files


def test_a_small_plan_needs_nothing_else(tmp_path: Path) -> None:
    """Two lines are a plan; everything else has a default."""
    folder = tmp_path / "site"
    folder.mkdir()
    loaded = load_text(folder, HELLO)
    assert loaded.plan.name == "site"
    assert loaded.root == os.path.realpath(folder)
    assert loaded.files == (os.path.realpath(folder / "plan.toml"),)
    assert loaded.sources == {"plan.toml": HELLO}
    assert (loaded.warnings, loaded.foreach) == ((), ())
    assert command_of(loaded.plan.nodes[0]) == "echo hello"


def test_nothing_is_written(tmp_path: Path) -> None:
    """Loading and refusing leave the folder as it was (C134)."""
    load_text(tmp_path, HELLO)
    refuse_text(tmp_path, "nope")
    assert os.listdir(tmp_path) == ["plan.toml"]


@pytest.mark.parametrize(
    "content",
    [
        HELLO.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + HELLO.encode(),
        HELLO.rstrip("\n").encode(),
        b"\xef\xbb\xbf" + HELLO.replace("\n", "\r\n").rstrip().encode(),
    ],
)
def test_line_ends_and_marks_change_nothing(tmp_path: Path, content: bytes) -> None:
    """CRLF, a byte order mark and a missing final newline give the same plan (C136)."""
    expected = load_text(tmp_path, HELLO).plan
    (tmp_path / "plan.toml").write_bytes(content)
    assert load_plan(LoadRequest("plan.toml", cwd=str(tmp_path))).plan == expected


def test_key_order_and_machine_change_nothing(tmp_path: Path) -> None:
    """Equal declarations give an equal digest, wherever and in whatever order they stand."""
    one = '[nodes.a]\nrun = ["x"]\ntags = ["t"]\n[nodes.a.env]\nA = "1"\nB = "2"\n'
    two = '[nodes.a.env]\nB = "2"\nA = "1"\n[nodes.a]\ntags = ["t"]\nrun = ["x"]\n'
    digests = set()
    for name, text in (("p", one), ("q", two)):
        folder = tmp_path / name / "same"
        folder.mkdir(parents=True)
        digests.add(load_text(folder, text).plan.digest)
    assert len(digests) == 1


def test_json_has_the_same_shape(tmp_path: Path) -> None:
    """A JSON plan compiles to the same plan."""
    toml = load_text(tmp_path, 'name = "x"\n' + HELLO).plan
    text = '{"name": "x", "nodes": {"hello": {"run": "echo hello"}}}'
    assert load_text(tmp_path, text, "plan.json").plan.digest == toml.digest


def test_standard_input_is_json_relative_to_the_current_folder(tmp_path: Path) -> None:
    """`-` reads JSON; its root is the current folder."""
    text = '{"nodes": {"hello": {"run": ["cat", "x"], "reads": ["x"]}}}'
    write_file(tmp_path, "x")
    loaded = load_plan(LoadRequest("-", cwd=str(tmp_path), stdin=text))
    assert loaded.root == os.path.realpath(tmp_path)
    assert (loaded.plan.file, loaded.files, loaded.sources) == ("-", (), {"-": text})
    assert loaded.plan.name == tmp_path.name
    assert node_named(loaded, "hello").origin.file == "-"


NAMELESS = (
    "-:1:1: The plan on standard input has no `name`, but node `{}` is {} "
    '(Add "name": "…", by which the next run finds out what this one did.)'
)


@pytest.mark.parametrize(
    ("nodes", "name", "tier"),
    [
        ('{"a": {"run": "x"}, "b": {"run": "y", "tier": "irreversible"}}', "b", "irreversible"),
        ('{"b": {"run": "y", "tier": "compensable"}}', "b", "compensable"),
        (
            '{"b": {"run": "y", "tier": "compensable", "matrix": {"m": [1]}}}',
            "b[m=1]",
            "compensable",
        ),
        (
            '{"a": {"run": "x", "writes": ["gen/"]}, "b": {"run": "y {{each}}", '
            '"tier": "irreversible", "foreach": "gen/*"}}',
            "b",
            "irreversible",
        ),
    ],
)
def test_effects_from_standard_input_need_the_plans_name(
    tmp_path: Path, nodes: str, name: str, tier: str
) -> None:
    """The next run of a plan has to know what this one achieved; a file has a path for that."""

    def load(text: str) -> None:
        load_plan(LoadRequest("-", cwd=str(tmp_path), stdin=text))

    with pytest.raises(PlanError) as raised:
        load(f'{{"nodes": {nodes}}}')
    assert lines_of(raised.value.diagnostics, raised.value.sources) == [NAMELESS.format(name, tier)]
    [note] = raised.value.diagnostics[0].notes
    assert (note.text, note.origin) == (f"`{name}` is declared here", Origin("-", ("nodes", "b")))
    load(f'{{"name": "p", "nodes": {nodes}}}')
    load_text(tmp_path, f'{{"nodes": {nodes}}}', "plan.json")


def test_a_misspelt_name_explains_that_there_is_none(tmp_path: Path) -> None:
    """It is not told twice."""
    text = '{"nmae": "p", "nodes": {"a": {"run": "x", "tier": "irreversible"}}}'
    with pytest.raises(PlanError) as raised:
        load_plan(LoadRequest("-", cwd=str(tmp_path), stdin=text))
    assert lines_of(raised.value.diagnostics, raised.value.sources) == [
        "-:1:2: Unknown key `nmae` (Did you mean `name`?)"
    ]


def test_effects_in_an_included_file_need_the_plans_name_too(tmp_path: Path) -> None:
    """Whoever declares them, they are part of the plan that comes down the pipe."""
    write_file(tmp_path, "w.toml", '[nodes.b]\nrun = "x"\ntier = "irreversible"\n')
    with pytest.raises(PlanError) as raised:
        load_plan(LoadRequest("-", cwd=str(tmp_path), stdin='{"include": {"w": "w.toml"}}'))
    assert lines_of(raised.value.diagnostics, raised.value.sources) == [
        NAMELESS.format("w:b", "irreversible")
    ]


def test_standard_input_may_be_no_plan(tmp_path: Path) -> None:
    """What comes down a pipe is explained like a file."""

    def refuse(text: str | None) -> list[str]:
        with pytest.raises(PlanError) as raised:
            load_plan(LoadRequest("-", cwd=str(tmp_path), stdin=text))
        return lines_of(raised.value.diagnostics, raised.value.sources)

    assert refuse(None) == ["-:1:1: Standard input is empty"]
    assert refuse("[nodes.a]") == ["-:1:2: Standard input is not valid JSON: expecting value"]
    assert refuse("nodes = 1") == [
        "-:1:1: Standard input is not valid JSON: expecting value "
        "(A plan on standard input is JSON.)"
    ]
    assert refuse("[]") == ["-:1:1: Standard input is not a plan: a plan is a JSON object"]
    assert refuse("{}\udcff") == [
        "-:1:3: Standard input is not UTF-8: byte 0xff is part of no character"
    ]


def test_the_root_is_relative_to_the_plan_file(tmp_path: Path) -> None:
    """`root` moves the workspace, and the file's name in it."""
    write_file(tmp_path, "src/a")
    text = 'root = ".."\n[nodes.a]\nrun = ["cat", "src/a"]\nreads = ["src/a"]\n'
    write_file(tmp_path, "ci/plan.toml", text)
    loaded = load_plan(LoadRequest("ci/plan.toml", cwd=str(tmp_path)))
    assert loaded.root == os.path.realpath(tmp_path)
    assert loaded.plan.file == "ci/plan.toml"
    assert loaded.plan.name == "ci"


def test_a_linked_workspace_is_the_same_one(tmp_path: Path) -> None:
    """Through a link to the folder, root and plan are the same (C125)."""
    real = tmp_path / "real"
    real.mkdir()
    expected = load_text(real, HELLO)
    (tmp_path / "link").symlink_to(real)
    loaded = load_plan(LoadRequest("link/plan.toml", cwd=str(tmp_path)))
    assert (loaded.root, loaded.plan) == (expected.root, expected.plan)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nope.toml", "`nope.toml` does not exist"),
        ("file/plan.toml", "`file/plan.toml` does not exist"),
        ("folder", "`folder` is a folder"),
        ("pipe", "`pipe` is not a regular file"),
        ("loop", "`loop` cannot be read: too many levels of symbolic links"),
        ("x" * 300, f"`{'x' * 300}` cannot be read: file name too long"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, complaint: str) -> None:
    """One sentence that says why."""
    write_file(tmp_path, "file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(PlanError) as raised:
        load_plan(LoadRequest(name, cwd=str(tmp_path)))
    assert lines_of(raised.value.diagnostics, raised.value.sources) == [complaint]


def test_a_folder_with_a_plan_in_it_gets_a_hint(tmp_path: Path) -> None:
    """The plan file inside is what was meant."""
    write_file(tmp_path, "site/plan.toml", HELLO)
    with pytest.raises(PlanError) as raised:
        load_plan(LoadRequest("site", cwd=str(tmp_path)))
    hint = f"Name `{tmp_path}/site/plan.toml`."
    assert lines_of(raised.value.diagnostics, {}) == [f"`site` is a folder ({hint})"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "plan.toml:1:1: The plan has no nodes"),
        (b"# nothing\n", "plan.toml:1:1: The plan has no nodes"),
        (
            b"a = [1\n\xff]",
            "plan.toml:2:1: `plan.toml` is not UTF-8: byte 0xff is part of no character",
        ),
        (b"\xff\xfea\x00", "plan.toml:1:1: `plan.toml` is UTF-16, but plan files are UTF-8"),
        (b"a =", "plan.toml:1:4: `plan.toml` is not valid TOML: invalid value"),
        (b"[a\n", "plan.toml:1:3: `plan.toml` is not valid TOML: expected ']' at the end"),
        (b"name = site\n", '(A text needs quotes: `"site"`.)'),
        (b'a = "\x00"', "plan.toml:1:6: `plan.toml` is not valid TOML: illegal character '\\x00'"),
        (b'{"nodes": {}}', "(It looks like JSON: a plan in JSON has a name that ends in `.json`.)"),
        (b"a = " + b"[" * 99_999, "plan.toml:1:1: `plan.toml` is nested too deeply"),
        (b"\na = " + b"9" * 9999, "plan.toml:2:5: A number has too many digits"),
        (b"a = 2024-02-31", "plan.toml:1:5: `plan.toml` is not valid TOML: invalid date"),
        (b'name = "\\u0000"', "plan.toml:1:8: `name` contains a NUL character"),
    ],
)
def test_a_text_that_is_no_plan_has_one_clear_complaint(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    """Place and reason, never a traceback."""
    [found] = refuse_bytes(tmp_path, content)
    assert complaint in found


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "plan.json:1:1: `plan.json` is empty"),
        (b'{"a": 1,}', "`plan.json` is not valid JSON: "),
        (b"[" * 99_999, "plan.json:1:1: `plan.json` is nested too deeply"),
        (b'{"a": ' + b"9" * 9999 + b"}", "plan.json:1:7: A number has too many digits"),
        (b'{"name": "\\ud800"}', "plan.json:1:10: `name` contains half a surrogate pair"),
        (b'{"name": NaN}', "plan.json:1:10: `name` must be a string, not nan"),
        (b'"x"', "plan.json:1:1: `plan.json` is not a plan: a plan is a JSON object"),
    ],
)
def test_a_json_text_that_is_no_plan_likewise(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    """Place and reason, never a traceback."""
    [found] = refuse_bytes(tmp_path, content, "plan.json")
    assert complaint in found


# Everything in one go


def test_all_faults_of_a_file_are_told_in_one_go(tmp_path: Path) -> None:
    """Syntax that can be mended, shapes, rules and names, from top to bottom (C131)."""
    text = """\
nmae = "x"
[nodes.a]
run = "x"
run = "y"
timout = "5s"
tier = "irreversable"
after = ["nope"]
[nodes.b]
wait = "10m"
[nodes.c]
run = "echo {{params.x}}"
reads = ["/abs"]
after = ["a", "b", "d"]
[nodes.a]
run = "z"
"""
    assert refuse_text(tmp_path, text) == [
        "plan.toml:1:1: Unknown key `nmae` (Did you mean `name`?)",
        "plan.toml:4:1: `run` of node `a` is declared twice",
        "plan.toml:5:1: Unknown key `timout` in node `a` (Did you mean `timeout`?)",
        'plan.toml:6:8: `tier` of node `a` must be "sealed", "compensable" or "irreversible", '
        'not "irreversable" (Did you mean `"irreversible"`?)',
        "plan.toml:7:10: Node `a` comes after `nope`, but there is no such node",
        "plan.toml:9:8: `wait` of node `b` is not available yet",
        "plan.toml:11:7: `run` of node `c` uses `{{params.x}}`, but `params` has no `x`",
        "plan.toml:12:10: `reads[0]` of node `c`: `/abs` is absolute; entries are relative to the "
        "workspace (Only paths inside the workspace can be read or written.)",
        "plan.toml:13:20: Node `c` comes after `d`, but there is no such node",
        "plan.toml:14:1: Node `a` is declared twice",
    ]


def test_consequences_of_a_fault_are_not_told(tmp_path: Path) -> None:
    """A key that could not be used explains what is missing because of it."""
    text = """\
[nodes.a]
run = "x"
write = ["o"]
reslt = "text"
[nodes.b]
run = "y"
reads = ["o"]
env = { V = { from = "a" } }
after = ["c[src/x.c]"]
[nodes.c]
run = "z"
foreach = "src/{a}.c"
"""
    assert refuse_text(tmp_path, text) == [
        "plan.toml:3:1: Unknown key `write` in node `a` (Did you mean `writes`?)",
        "plan.toml:4:1: Unknown key `reslt` in node `a` (Did you mean `result`?)",
        "plan.toml:12:11: `foreach` of node `c`: `src/{a}.c` has braces, which are no pattern "
        'syntax (For a path of exactly that name write { path = "src/{a}.c" }.)',
    ]


def test_duplicates_in_json_are_told(tmp_path: Path) -> None:
    """The second mention is an error there too."""
    text = '{"nodes": {"a": {"run": "x", "run": "y"}}}'
    assert refuse_text(tmp_path, text, "plan.json") == [
        "plan.json:1:30: `run` of node `a` is declared twice"
    ]


def test_every_wrong_tier_is_refused(tmp_path: Path) -> None:
    """A misspelt tier never falls back to `sealed`, in a node or in the defaults."""
    for tier in ("sealde", "SEALED", "", "irreversible ", 1, True):
        value = f'"{tier}"' if isinstance(tier, str) else str(tier).lower()
        for place in ('[nodes.a]\nrun = "x"\n', '[nodes.a]\nrun = "x"\n[defaults]\n'):
            [found] = refuse_text(tmp_path, f"{place}tier = {value}\n")
            assert 'must be "sealed", "compensable" or "irreversible"' in found


@pytest.mark.parametrize(
    "line",
    [
        'wait = "10m"',
        'wait = { event = "qa" }',
        'plan = "x.toml"',
        'run = "x"\nparams = { a = 1 }',
        'run = "x"\ndetach = true',
        'run = "x"\napproval = true',
        'run = "x"\nrequires = ["gpu"]',
        'run = "x"\non_conflict = "rebase"',
        'run = "x"\nmerge = "m"',
    ],
)
def test_keys_to_come_are_errors(tmp_path: Path, line: str) -> None:
    """Their behaviour is not guessed."""
    [found] = refuse_text(tmp_path, f"[nodes.a]\n{line}\n")
    assert found.endswith("not available yet")


def test_remote_is_to_come(tmp_path: Path) -> None:
    """So is the table."""
    text = HELLO + '[remote]\ncache = "https://x"\n'
    assert refuse_text(tmp_path, text) == ["plan.toml:3:2: `[remote]` is not available yet"]


def test_values_that_ask_for_nothing_new_are_accepted(tmp_path: Path) -> None:
    """The defaults of those keys can be written."""
    text = HELLO + 'tier = "sealed"\nboundary = "declared"\napproval = false\nrequires = []\n'
    load_text(tmp_path, text + 'on_conflict = "fail"\ndetach = false\n')


# Params


def test_params_are_texts_and_can_be_overridden(tmp_path: Path) -> None:
    """Values are texts by their JSON form; the last `-p` wins."""
    text = (
        '[params]\na = 1\nb = true\nc = 1.5\nd = "x"\n[nodes.n]\nrun = "{{params.a}} {{params.b}}'
    )
    text += ' {{params.c}} {{params.d}}"\n'
    assert command_of(load_text(tmp_path, text).plan.nodes[0]) == "1 true 1.5 x"
    loaded = load_text(tmp_path, text, params=[("d", "y"), ("d", "z"), ("a", "")])
    assert command_of(loaded.plan.nodes[0]) == " true 1.5 z"
    assert loaded.plan.params == (("a", ""), ("b", "true"), ("c", "1.5"), ("d", "z"))


def test_unknown_params_are_errors(tmp_path: Path) -> None:
    """On the command line too."""
    text = '[params]\nmode = "dev"\n' + HELLO
    assert refuse_text(tmp_path, text, params=[("moed", "x"), ("zz", "y")]) == [
        "The plan has no param `moed` (Did you mean `-p mode=…`?)",
        "The plan has no param `zz` (Params are declared under `[params]`.)",
    ]


# Includes


WEB = """\
shell = ["bash", "-c"]
ignore = ["*.swp", "/skip"]
[params]
mode = "w"
[env]
A = "web {{params.mode}}"
[defaults]
timeout = "1m"
[nodes.build]
run = "build {{params.mode}} > out.js"
reads = ["src/**", "../common/x"]
writes = ["out.js"]
[nodes.test]
run = ["./test.sh"]
reads = ["out.js"]
after = ["build", "build*"]
"""


def write_web(root: Path) -> None:
    for name in ("web/src/a", "web/src/b.swp", "web/skip/x", "common/x", "web/test.sh"):
        write_file(root, name)
    write_file(root, "web/plan.toml", WEB)


def test_an_included_file_brings_its_nodes(tmp_path: Path) -> None:
    """Names get a prefix, paths are relative to its folder, its own settings apply."""
    write_web(tmp_path)
    text = '[env]\nB = "top"\n[include]\nweb = "web/plan.toml"\n[nodes.all]\nafter = ["web:test"]\n'
    loaded = load_text(tmp_path, text, params=[("web:mode", "x")])
    assert [node.name for node in loaded.plan.nodes] == ["all", "web:build", "web:test"]
    build, test = node_named(loaded, "web:build"), node_named(loaded, "web:test")
    assert command_of(build) == "build x > out.js"
    assert build.command is not None
    assert getattr(build.command, "shell", None) == ("bash", "-c")
    assert [str(entry) for entry in build.reads] == ["web/src/**", "common/x"]
    assert [str(entry) for entry in build.writes] == ["web/out.js"]
    assert build.ignore == ("*.swp", "/web/skip")
    assert (build.workdir, build.timeout_seconds) == ("web", 60.0)
    assert build.env == (("A", Plain("web x")),)
    assert [str(entry) for entry in test.reads] == ["web/out.js", "web/test.sh"]
    assert test.after == ("web:build",)
    assert node_named(loaded, "all").after == ("web:test",)
    assert loaded.plan.params == (("web:mode", "x"),)
    assert loaded.files == tuple(
        os.path.realpath(tmp_path / name) for name in ("plan.toml", "web/plan.toml")
    )
    assert build.origin.file == "web/plan.toml"


def test_an_included_file_can_include(tmp_path: Path) -> None:
    """Names and folders nest; the same file may be included twice."""
    write_file(tmp_path, "a/b/plan.toml", "[params]\nx = 1\n" + HELLO)
    write_file(tmp_path, "a/plan.toml", '[include]\nb = "b/plan.toml"\nc = "b/plan.toml"\n')
    loaded = load_text(tmp_path, '[include]\na = "a/plan.toml"\n', params=[("a:c:x", "2")])
    assert [node.name for node in loaded.plan.nodes] == ["a:b:hello", "a:c:hello"]
    assert loaded.plan.params == (("a:b:x", "1"), ("a:c:x", "2"))
    assert loaded.plan.nodes[0].workdir == "a/b"
    assert len(loaded.files) == 3


def test_what_counts_only_in_the_top_file(tmp_path: Path) -> None:
    """An included file's concurrency, root, default and outputs are its own affair."""
    inner = 'root = "nowhere"\ndefault = ["nope"]\n[concurrency]\nsteps = 1\n' + HELLO
    write_file(tmp_path, "w/plan.toml", inner + '[outputs]\nx = { from = "nope" }\n')
    loaded = load_text(tmp_path, '[include]\nw = "w/plan.toml"\n')
    assert (loaded.plan.steps, loaded.plan.default, loaded.plan.outputs) == (None, None, ())


def test_includes_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    """Missing, outside, badly named, circular: each with its place."""
    write_file(tmp_path, "x/plan.toml", '[include]\nback = "../plan.toml"\n')
    (tmp_path / "f").mkdir()
    text = """\
[include]
a = "nope.toml"
b = "../plan.toml"
"c:d" = "x/plan.toml"
e = "x/plan.toml"
f = "f"
"""
    assert refuse_text(tmp_path, text) == [
        'plan.toml:2:5: `include.a` is "nope.toml", which does not exist',
        'plan.toml:3:5: `include.b` is "../plan.toml", which lies outside the workspace',
        "plan.toml:4:1: `c:d` cannot be the name of an include: it contains `:` (`[ ]` name "
        "instances, `:` separates the name of an include, `*` and `?` are patterns over names.)",
        'plan.toml:6:5: `include.f` is "f", which is a folder',
        "x/plan.toml:2:8: Plan files include each other: "
        "`plan.toml` -> `x/plan.toml` -> `plan.toml`",
    ]


def test_faults_of_included_files_are_told_with_the_rest(tmp_path: Path) -> None:
    """File by file, each with its own text."""
    write_file(tmp_path, "w/plan.toml", "[nodes.a]\nrnu = 'x'\n")
    write_file(tmp_path, "v/plan.toml", "x =\n")
    text = 'nmae = 1\n[include]\nw = "w/plan.toml"\nv = "v/plan.toml"\n'
    assert refuse_text(tmp_path, text) == [
        "plan.toml:1:1: Unknown key `nmae` (Did you mean `name`?)",
        "w/plan.toml:2:1: Unknown key `rnu` in node `a` (Did you mean `run`?)",
        "v/plan.toml:1:4: `v/plan.toml` is not valid TOML: invalid value",
    ]


def test_resources_share_one_namespace(tmp_path: Path) -> None:
    """The same amount twice is one resource, differing amounts are an error (C111)."""
    inner = "[resources]\ngpu = 2\ncpu = { amount = 3, scope = 'host' }\n" + HELLO
    write_file(tmp_path, "w/plan.toml", inner)
    include = '[include]\nw = "w/plan.toml"\n'
    loaded = load_text(tmp_path, "[resources]\ngpu = 2\n" + include)
    assert loaded.plan.resources == (Resource("cpu", 3, ResourceScope.HOST), Resource("gpu", 2))
    assert refuse_text(tmp_path, "[resources]\ngpu = 1\n" + include) == [
        "w/plan.toml:2:7: Resource `gpu` is 2 here, but 1 in `plan.toml`"
    ]


def test_doubling_includes_end(tmp_path: Path) -> None:
    """Files that include the next one twice stop at a bound."""
    for number in range(20):
        both = f'a = "{number + 1}.toml"\nb = "{number + 1}.toml"\n'
        write_file(tmp_path, f"{number}.toml", "[include]\n" + both)
    write_file(tmp_path, "20.toml", HELLO)
    found = refuse_text(tmp_path, '[include]\na = "0.toml"\n')
    assert found == ["plan.toml:1:1: The plan includes more than 10,000 files"]


# The whole plan


def test_the_rest_of_the_top_file_reaches_the_plan(tmp_path: Path) -> None:
    """Name, caps, defaults and outputs."""
    text = """\
name = "x"
default = ["b"]
[concurrency]
steps = 3
agents = 2
[outputs]
v = { from = "a", path = "p.0" }
[nodes.a]
run = "a"
result = "json"
[nodes.b]
run = "b"
"""
    plan = load_text(tmp_path, text).plan
    assert (plan.name, plan.default, plan.steps, plan.agents) == ("x", ("b",), 3, 2)
    assert plan.outputs == (("v", ValueRef("a", ("p", "0"))),)  # type: ignore[arg-type]


def test_the_environment_is_merged(tmp_path: Path) -> None:
    """The file's, the defaults' and the node's own values, in rising order."""
    text = """\
[env]
A = "file"
B = "file"
C = "{{params.p}}"
[params]
p = "x"
[defaults.env]
B = "defaults"
D = 1
[nodes.n]
run = "x"
env = { D = true, E = 1.5, F = { secret = "S", keyed = true }, G = "" }
"""
    assert load_text(tmp_path, text).plan.nodes[0].env == (
        ("A", Plain("file")),
        ("B", Plain("defaults")),
        ("C", Plain("x")),
        ("D", Plain("true")),
        ("E", Plain("1.5")),
        ("F", Secret("S", keyed=True)),
        ("G", Plain("")),
    )


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        (
            'ASSAY_RUN = "x"',
            "`env.ASSAY_RUN` of node `n` cannot be set: assay gives it to every node",
        ),
        ('"A=B" = "x"', '`env."A=B"` of node `n` cannot be the name of a variable'),
        ('"" = "x"', '`env.""` of node `n` cannot be the name of a variable'),
        ("A = 0x" + "f" * 9000, "`env.A` of node `n` is too large a number"),
        ('A = { from = "n", path = "a..b" }', "`env.A.path` of node `n` has an empty part"),
    ],
)
def test_impossible_variables_are_refused(tmp_path: Path, env: str, complaint: str) -> None:
    """Before a process would fail over them."""
    found = refuse_text(tmp_path, f'[nodes.n]\nrun = "x"\nresult = "json"\n[nodes.n.env]\n{env}\n')
    assert complaint in found[0]


def test_many_nodes_load(tmp_path: Path) -> None:
    """10,000 nodes in a row are one plan."""
    lines = [
        f'[nodes.n{i}]\nrun = ["cp", "{i}", "{i + 1}"]\nreads = ["{i}"]\nwrites = ["{i + 1}"]\n'
        for i in range(10_000)
    ]
    write_file(tmp_path, "0")
    plan = load_text(tmp_path, "".join(lines)).plan
    assert plan.dependencies[9_999] == (9_998,)
