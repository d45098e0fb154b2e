"""`matrix` and `foreach`, over sources and over written paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plan_files import (
    command_of,
    entries_of,
    lines_of,
    load_text,
    node_named,
    refuse_text,
    write_file,
)

from assay.plans.diagnostics import PlanError
from assay.plans.generations import expand_template
from assay.plans.load import Loaded
from assay.plans.model import Kind, Plain, Plan, RelPath, Script, Tier, ValueRef


def names_of(loaded: Loaded) -> list[str]:
    return [node.name for node in loaded.plan.nodes]


def followed(plan: Plan, name: str) -> list[str]:
    """What a node follows, by name."""
    [index] = [n for n, node in enumerate(plan.nodes) if node.name == name]
    return [plan.nodes[other].name for other in plan.dependencies[index]]


# Matrix


def test_a_matrix_is_a_product(tmp_path: Path) -> None:
    """One node per combination, axes in alphabetical order, values as written."""
    text = """\
[nodes.t]
matrix = { py = ["3.11", "3.12"], level = [1, true, 2.5] }
run = "{{matrix.py}}/{{matrix.level}}"
"""
    loaded = load_text(tmp_path, text)
    assert names_of(loaded) == [
        "t[level=1,py=3.11]",
        "t[level=1,py=3.12]",
        "t[level=true,py=3.11]",
        "t[level=true,py=3.12]",
        "t[level=2.5,py=3.11]",
        "t[level=2.5,py=3.12]",
    ]
    assert command_of(loaded.plan.nodes[2]) == "3.11/true"


def test_a_matrix_may_use_params(tmp_path: Path) -> None:
    """Values are rendered."""
    text = '[params]\nv = "x"\n[nodes.t]\nmatrix = { a = ["{{params.v}}1"] }\nrun = "x"\n'
    assert names_of(load_text(tmp_path, text)) == ["t[a=x1]"]


def test_a_matrix_of_groups_is_groups(tmp_path: Path) -> None:
    """Every key of a node can be repeated."""
    text = """\
[nodes.t]
matrix = { a = [1, 2] }
run = "x"
[nodes.g]
matrix = { a = [1, 2] }
after = ["t[a={{matrix.a}}]"]
[nodes.all]
after = ["t"]
"""
    plan = load_text(tmp_path, text).plan
    assert followed(plan, "g[a=2]") == ["t[a=2]"]
    assert followed(plan, "all") == ["t[a=1]", "t[a=2]"]


@pytest.mark.parametrize(
    ("matrix", "complaint"),
    [
        ('{ a = ["1", 1] }', 'plan.toml:2:22: `matrix.a[1]` of node `t` repeats "1"'),
        (
            '{ "a b" = [1] }',
            '`matrix."a b"` of node `t` cannot be used in templates: it must be made of letters, '
            "digits, `_`, `-` and `.`",
        ),
        ("{ a = ['{{params.x}}'] }", "`matrix.a[0]` of node `t` uses `{{params.x}}`, but"),
        ("{ a = ['{{matrix.a}}'] }", "`matrix.a[0]` of node `t` uses `{{matrix.a}}`, but"),
        (
            "{ " + ", ".join(f"a{i} = {list(range(100))}" for i in range(4)) + " }",
            "plan.toml:2:10: `matrix` of node `t` makes 100,000,000 nodes, more than 1,000,000",
        ),
    ],
)
def test_an_impossible_matrix_is_explained(tmp_path: Path, matrix: str, complaint: str) -> None:
    """Before it fills the memory or makes two nodes of one name."""
    [found] = refuse_text(tmp_path, f'[nodes.t]\nmatrix = {matrix}\nrun = "x"\n')
    assert complaint in found


def test_values_that_make_one_name_are_explained(tmp_path: Path) -> None:
    """Differing combinations may still read alike."""
    text = '[nodes.t]\nmatrix = { a = ["1", "1,b=2"], b = ["2,b=2", "2"] }\nrun = "x"\n'
    found = refuse_text(tmp_path, text)
    assert found == ["plan.toml:1:1: Two nodes are both named `t[a=1,b=2,b=2]`"]


# Foreach over sources


def test_a_foreach_makes_one_node_per_source(tmp_path: Path) -> None:
    """Sorted, with the path and its parts to refer to."""
    for name in ("src/b.c", "src/a.test.c", "src/x/c.c", "src/a.h"):
        write_file(tmp_path, name)
    text = """\
[nodes.cc]
foreach = "src/**/*.c"
run = ["cc", "{{each}}", "{{each.stem}}", "{{each.name}}", "{{each.dir}}"]
reads = ["{{each}}"]
writes = ["out/{{each.stem}}.o"]
[nodes.link]
run = "link"
reads = ["out/*.o"]
"""
    loaded = load_text(tmp_path, text)
    assert names_of(loaded) == ["cc[src/a.test.c]", "cc[src/b.c]", "cc[src/x/c.c]", "link"]
    first = loaded.plan.nodes[0]
    assert command_of(first) == ("cc", "src/a.test.c", "a.test", "a.test.c", "src")
    assert (entries_of(first.reads), entries_of(first.writes)) == (
        ["src/a.test.c"],
        ["out/a.test.o"],
    )
    assert followed(loaded.plan, "link") == names_of(loaded)[:3]
    [(pattern, ignore, matches)] = loaded.foreach
    assert (entries_of(pattern), ignore) == (["src/**/*.c"], ())
    assert matches == ("src/a.test.c", "src/b.c", "src/x/c.c")


def test_a_foreach_takes_a_list_of_entries(tmp_path: Path) -> None:
    """Globs, trees, literals and exclusions, with the ignore patterns of the file."""
    for name in ("a/1", "a/2.swp", "b/3.x", "b/4.x", "[c].x", "b/skip.x"):
        write_file(tmp_path, name)
    text = """\
ignore = ["*.swp"]
[nodes.n]
foreach = ["a/", "b/*.x", "!b/4*", "!b/skip.x", { path = "[c].x" }]
run = "x"
"""
    assert names_of(load_text(tmp_path, text)) == ["n[[c].x]", "n[a/1]", "n[b/3.x]"]


def test_a_foreach_and_a_matrix_combine(tmp_path: Path) -> None:
    """Every match with every combination; the pattern may depend on the matrix."""
    for name in ("x/1", "y/2", "y/3"):
        write_file(tmp_path, name)
    text = """\
[nodes.n]
matrix = { os = ["x", "y"] }
foreach = "{{matrix.os}}/*"
run = "{{each}} {{matrix.os}}"
"""
    loaded = load_text(tmp_path, text)
    assert names_of(loaded) == ["n[x/1,os=x]", "n[y/2,os=y]", "n[y/3,os=y]"]
    assert command_of(loaded.plan.nodes[2]) == "y/3 y"


ODD_NAMES = (
    *("a b", 'q"q', "it's", "$HOME", "[slug].ts", "*", "?", "a\nb", "tab\t", "back\\slash", "é"),
    *("#x", "~", "!bang", "-rf.txt", "{{each}}", "{a,b}", "x" * 250, os.fsdecode(b"\xff")),
)


def test_any_file_name_can_be_a_match(tmp_path: Path) -> None:
    """Substituted paths are literal in entries and never options (C121, C123)."""
    for name in ODD_NAMES:
        write_file(tmp_path, name)
    text = '[nodes.n]\nforeach = "*"\nrun = ["x", "{{each}}"]\nreads = ["{{each}}"]\n'
    text += 'writes = ["out/{{each.name}}.o", "t/{{each.stem}}*.d", { path = "l/{{each}}" }]\n'
    loaded = load_text(tmp_path, text)
    by_name = {node.name: node for node in loaded.plan.nodes}
    assert by_name.keys() >= {f"n[{name}]" for name in ODD_NAMES}
    for name in ODD_NAMES:
        node = by_name[f"n[{name}]"]  # type: ignore[index]
        assert [(entry.path, entry.exclude) for entry in node.reads] == [(name, False)]
        assert node.writes[0].path == f"out/{name}.o"
        assert node.writes[2].path == f"l/{name}"
        argument = "./-rf.txt" if name == "-rf.txt" else name
        assert command_of(node) == ("x", argument)


def test_no_match_expands_to_nothing_with_a_warning(tmp_path: Path) -> None:
    """Who follows it has nothing to wait for."""
    text = '[nodes.n]\nforeach = "*.x"\nrun = "x"\n[nodes.m]\nrun = "y"\nafter = ["n"]\n'
    loaded = load_text(tmp_path, text)
    assert names_of(loaded) == ["m"]
    assert lines_of(loaded.warnings, loaded.sources) == [
        "warning: plan.toml:2:11: `foreach` of node `n` matches nothing, so there is no node `n`"
    ]
    assert loaded.foreach[0][2] == ()


def test_a_literal_source_must_exist(tmp_path: Path) -> None:
    """Unless it is optional."""
    write_file(tmp_path, "a")
    text = '[nodes.n]\nforeach = ["a", "b", { path = "c", optional = true }]\nrun = "x"\n'
    assert refuse_text(tmp_path, text) == [
        "plan.toml:2:11: `foreach` of node `n` names `b`, but no node writes it and it does not "
        "exist"
    ]


def test_faults_of_a_declaration_are_told_once(tmp_path: Path) -> None:
    """However many nodes are made from it."""
    for number in range(5):
        write_file(tmp_path, f"{number}.x")
    text = '[nodes.n]\nforeach = "*.x"\nrun = "{{each.path}} {{params.y}}"\nreads = ["/a"]\n'
    assert [line.split(" (")[0] for line in refuse_text(tmp_path, text)] == [
        "plan.toml:3:7: `run` of node `n` uses `{{each.path}}`, but `each` has no `path`",
        "plan.toml:3:7: `run` of node `n` uses `{{params.y}}`, but `params` has no `y`",
        "plan.toml:4:10: `reads[0]` of node `n`: `/a` is absolute; entries are relative to the "
        "workspace",
    ]


def test_paths_of_an_included_file_are_its_own(tmp_path: Path) -> None:
    """`{{each}}` is relative to the folder that the file's paths are relative to."""
    write_file(tmp_path, "w/src/a.c")
    write_file(
        tmp_path, "w/plan.toml", '[nodes.n]\nforeach = "src/*"\nrun = "x"\nreads = ["{{each}}"]\n'
    )
    loaded = load_text(tmp_path, '[include]\nw = "w/plan.toml"\n')
    assert names_of(loaded) == ["w:n[src/a.c]"]
    assert entries_of(loaded.plan.nodes[0].reads) == ["w/src/a.c"]


def test_rewriting_sources_is_no_reason_to_wait(tmp_path: Path) -> None:
    """A formatter brings no new files: the sources are there already."""
    write_file(tmp_path, "src/a.c")
    text = """\
[nodes.fmt]
foreach = "src/*.c"
run = "fmt {{each}}"
reads = ["{{each}}"]
writes = ["{{each}}"]
[nodes.cc]
foreach = "src/*.c"
run = "cc {{each}}"
reads = ["{{each}}"]
[nodes.touch]
run = "x"
reads = ["src/a.c"]
writes = ["src/a.c"]
after = ["fmt", "cc"]
"""
    loaded = load_text(tmp_path, text)
    assert names_of(loaded) == ["fmt[src/a.c]", "cc[src/a.c]", "touch"]
    assert followed(loaded.plan, "cc[src/a.c]") == ["fmt[src/a.c]"]


# Foreach over written paths

GENERATED = """\
[params]
flag = "-O2"
[env]
E = "1"
[nodes.gen]
run = "gen"
writes = ["gen/"]
[nodes.conf]
run = "conf"
result = "text"
[nodes.cc]
foreach = "gen/*.c"
run = ["cc", "{{params.flag}}", "{{each}}"]
reads = ["{{each}}"]
writes = ["out/{{each.stem}}.o"]
env = { V = { from = "conf" } }
tags = ["t"]
[nodes.link]
run = "link"
reads = ["out/*.o"]
writes = ["app"]
[nodes.after]
run = "x"
after = ["cc"]
"""


def test_a_foreach_over_written_paths_is_a_template(tmp_path: Path) -> None:
    """It follows who writes its pattern; who reads what it may write follows it."""
    loaded = load_text(tmp_path, GENERATED)
    template = node_named(loaded, "cc")
    assert template.kind is Kind.TEMPLATE
    assert (entries_of(template.reads), entries_of(template.writes)) == (["gen/*.c"], ["out/*.o"])
    assert template.env == (("V", ValueRef("conf")),)  # type: ignore[arg-type]
    assert template.tags == ("t",)
    assert followed(loaded.plan, "cc") == ["gen", "conf"]
    assert followed(loaded.plan, "link") == ["cc"]
    assert followed(loaded.plan, "after") == ["cc"]
    assert loaded.foreach == ()


def test_a_template_expands_into_a_generation(tmp_path: Path) -> None:
    """Instances as a `foreach` over sources would make them, following what it follows."""
    plan = load_text(tmp_path, GENERATED).plan
    index = [node.name for node in plan.nodes].index("cc")  # type: ignore[arg-type]
    grown = expand_template(plan, index, [RelPath("gen/a.c"), RelPath("gen/[b].c")])
    assert grown.generation == 1
    assert grown.base_digest == plan.digest != grown.digest
    assert grown.nodes[: len(plan.nodes)] == plan.nodes
    first, second = grown.nodes[len(plan.nodes) :]
    assert (first.name, second.name) == ("cc[gen/a.c]", "cc[gen/[b].c]")
    assert command_of(first) == ("cc", "-O2", "gen/a.c")
    assert [entry.path for entry in (*second.reads, *second.writes)] == ["gen/[b].c", "out/[b].o"]
    assert first.env == (("E", Plain("1")), ("V", ValueRef("conf")))  # type: ignore[arg-type]
    assert followed(grown, "cc[gen/a.c]") == ["gen", "conf"]
    assert followed(grown, "link")[0] == "cc"


def test_a_template_has_the_tier_of_its_instances(tmp_path: Path) -> None:
    """A selection is judged before there are any; what each needs is its own."""
    text = """\
[nodes.gen]
run = "x"
writes = ["gen/"]
[nodes.send]
foreach = "gen/*"
run = ["send", "{{each}}"]
tier = "compensable"
idempotency_key = "{{each.name}}"
undo = "unsend '{{each}}'"
"""
    plan = load_text(tmp_path, text).plan
    template = plan.nodes[1]
    assert (template.tier, template.idempotency_key, template.undo) == (
        Tier.COMPENSABLE,
        None,
        None,
    )
    send = expand_template(plan, 1, [RelPath("gen/a")]).nodes[2]
    assert (send.tier, send.idempotency_key) == (Tier.COMPENSABLE, "a")
    assert send.undo == Script("unsend 'gen/a'", ("/bin/sh", "-ec"))


def test_a_template_may_find_nothing(tmp_path: Path) -> None:
    """The plan grows by an empty generation."""
    plan = load_text(tmp_path, GENERATED).plan
    grown = expand_template(plan, 2, [])
    assert (grown.nodes, grown.generation) == (plan.nodes, 1)


def test_instances_that_cannot_be_compiled_are_explained(tmp_path: Path) -> None:
    """Two instances that write one file are known only now."""
    plan = load_text(tmp_path, GENERATED.replace('"gen/*.c"', '"gen/**/*.c"')).plan
    with pytest.raises(PlanError, match=r"`out/a\.o`"):
        expand_template(plan, 2, [RelPath("gen/x/a.c"), RelPath("gen/y/a.c")])


def test_templates_follow_templates(tmp_path: Path) -> None:
    """What one may write, another may match."""
    text = GENERATED + '[nodes.strip]\nforeach = "out/*.o"\nrun = "strip {{each}}"\n'
    text += 'reads = ["{{each}}"]\nwrites = ["s/{{each.name}}"]\n'
    plan = load_text(tmp_path, text).plan
    assert followed(plan, "strip") == ["cc"]


def test_a_template_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """No path of this machine is part of it, not even for a program named by one."""
    digests = set()
    for name in ("p", "q"):
        folder = tmp_path / name / "same"
        write_file(folder, "tool")
        text = '[nodes.g]\nrun = "g"\nwrites = ["gen/"]\n'
        text += '[nodes.n]\nforeach = "gen/*"\nrun = ["./tool"]\n'
        plan = load_text(folder, text).plan
        assert str(tmp_path) not in str(plan)
        digests.add(plan.digest)
        grown = expand_template(plan, 1, [RelPath("gen/x")])
        assert entries_of(grown.nodes[2].reads) == ["tool"]
        absolute = load_text(folder, text.replace("./tool", str(folder / "tool"))).plan
        grown = expand_template(absolute, 1, [RelPath("gen/x")])
        assert entries_of(grown.nodes[2].reads) == ["tool"]
    assert len(digests) == 1


def test_only_params_in_use_are_part_of_a_template(tmp_path: Path) -> None:
    """Another param does not change what it makes."""
    declarations = {
        node_named(load_text(tmp_path, GENERATED, params=[("flag", flag)]), "cc").template
        for flag in ("-O2", "{{each}}")
    }
    assert len(declarations) == 2
    same = {
        node_named(
            load_text(tmp_path, GENERATED.replace("[params]", f"[params]\nx = {n}")), "cc"
        ).template
        for n in range(3)
    }
    assert len(same) == 1


def test_every_combination_of_a_template_is_explained_once(tmp_path: Path) -> None:
    """The second combination has the same fault, not another one."""
    text = GENERATED.replace("tags =", 'matrix = { m = [1, 2] }\nafter = ["{{params.x}}"]\ntags =')
    assert refuse_text(tmp_path, text) == [
        "plan.toml:18:10: `after[0]` of node `cc` uses `{{params.x}}`, but `params` has no `x`"
    ]


def test_params_of_any_language_reach_a_template(tmp_path: Path) -> None:
    """Their names are kept as they are, and so is what only looks like one."""
    text = (
        GENERATED.replace("flag =", '"flâg" =')
        .replace(".flag", ".flâg")
        .replace('E = "1"', '"{{params.x}}" = "1"')
    )
    plan = load_text(tmp_path, text).plan
    [node] = expand_template(plan, 2, [RelPath("gen/a.c")]).nodes[len(plan.nodes) :]
    assert command_of(node) == ("cc", "-O2", "gen/a.c")
    assert node.env[1] == ("{{params.x}}", Plain("1"))


def test_faults_of_a_template_show_before_anything_runs(tmp_path: Path) -> None:
    """A misspelt reference is found without a single match."""
    text = GENERATED.replace("{{params.flag}}", "{{params.flga}}")
    assert refuse_text(tmp_path, text) == [
        "plan.toml:13:14: `run[1]` of node `cc` uses `{{params.flga}}`, but `params` has no `flga` "
        "(Did you mean `{{params.flag}}`?)"
    ]


def test_a_template_in_an_included_file_expands_there(tmp_path: Path) -> None:
    """Prefix, folder and matrix are kept until then."""
    inner = """\
[nodes.gen]
run = "gen"
writes = ["gen/*.c"]
[nodes.cc]
matrix = { m = [1] }
foreach = "gen/*.c"
run = "cc {{each}} {{matrix.m}}"
reads = ["{{each}}"]
writes = ["{{each.dir}}/out/{{each.stem}}.o"]
after = ["gen"]
"""
    write_file(tmp_path, "w/plan.toml", inner)
    plan = load_text(tmp_path, '[include]\nw = "w/plan.toml"\n').plan
    template = plan.nodes[1]
    assert (template.name, template.kind) == ("w:cc[m=1]", Kind.TEMPLATE)
    assert entries_of(template.writes) == ["w/gen/out/*.o"]
    grown = expand_template(plan, 1, [RelPath("w/gen/a.c")])
    node = grown.nodes[2]
    assert (node.name, command_of(node)) == ("w:cc[gen/a.c,m=1]", "cc gen/a.c 1")
    assert entries_of((*node.reads, *node.writes)) == ["w/gen/a.c", "w/gen/out/a.o"]
    assert (node.workdir, followed(grown, node.name)) == ("w", ["w:gen"])


@pytest.mark.parametrize(
    ("pattern", "write", "path", "written"),
    [
        ("g/*.c", "o/{{each}}.o", "g/a.c", "o/g/a.c.o"),
        ("g/**/*.c", "o/{{each}}.o", "g/x/y/a.c", "o/g/x/y/a.c.o"),
        ("g/**/*.c", "o/{{each}}.o", "g/a.c", "o/g/a.c.o"),
        ("g/**/*.c", "{{each.dir}}/o.o", "g/x/a.c", "g/x/o.o"),
        ("g/**/*.c", "{{each.dir}}/o.o", "g/a.c", "g/o.o"),
        ("g/", "o/{{each.name}}/", "g/x/a.c", "o/a.c/z"),
        ("g/**", "pre-{{each}}.o", "g/x/a.c", "pre-g/x/a.c.o"),
        ("g/[[]a].c", "o/{{each.name}}", "g/[a].c", "o/[a].c"),
        ("g/a.c", "o/{{each}}.o", "g/a.c", "o/g/a.c.o"),
    ],
)
def test_what_a_template_may_write_covers_what_it_writes(
    tmp_path: Path, pattern: str, write: str, path: str, written: str
) -> None:
    """A reader of one written path follows the template, so that it never comes too early."""
    text = f"""\
[nodes.gen]
run = "gen"
writes = ['{pattern}']
[nodes.cc]
foreach = '{pattern}'
run = "cc"
writes = ["{write}"]
[nodes.reader]
run = "x"
reads = [{{ path = "{written}" }}]
"""
    plan = load_text(tmp_path, text).plan
    assert plan.nodes[1].kind is Kind.TEMPLATE
    assert "cc" in followed(plan, "reader")
    grown = expand_template(plan, 1, [RelPath(path)])
    assert written.startswith(entries_of(grown.nodes[3].writes)[0])
