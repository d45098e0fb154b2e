"""A plan as a tree for people: what nothing depends on at the left, what it needs below.

Instances of one `foreach` or `matrix` are one line, a node that stands elsewhere already is
named without its own needs, and very deep chains start again at the left: the text grows
with the plan's declarations, whatever its depth. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from assay.cli.render.text import count, one_line, paint
from assay.plans.model import Kind, Node, Plan

NAMED_INSTANCES = 3
"""How many instances of a family are named."""

DEEPEST_INDENT = 12


@dataclass(frozen=True, slots=True)
class Strokes:
    """What branches are drawn with."""

    branch: str = "|-- "
    last: str = "`-- "
    through: str = "|   "
    blank: str = "    "


UNICODE = Strokes("├── ", "└── ", "│   ", "    ")
ASCII = Strokes()


@dataclass(slots=True)
class _Family:
    """The nodes that one declaration made: one for a plain node."""

    title: str
    nodes: list[Node] = field(default_factory=list)
    needs: dict[int, None] = field(default_factory=dict)
    is_needed: bool = False


def render_tree(
    plan: Plan, selected: Collection[int], *, strokes: Strokes, colour: bool
) -> Iterator[str]:
    """Lines with their ends. `selected` must be closed under dependencies."""
    families, order = _group(plan, selected)
    yield (
        f"{paint(one_line(plan.name), 'bold', colour)}  {one_line(plan.file)}  "
        f"{count(len(selected), 'node')}\n"
    )
    shown: set[int] = set()
    starts = [number for number in order if not families[number].is_needed]
    # Families may need each other in a circle (a of x needs b of y, b of x needs a of z)
    # although nodes cannot: whatever no start reaches becomes one.
    waiting = [*reversed(order), *reversed(starts)]
    while waiting:
        number = waiting.pop()
        if number not in shown:
            yield from _draw(families, number, shown, waiting, strokes, colour)


def _draw(
    families: list[_Family],
    root: int,
    shown: set[int],
    waiting: list[int],
    strokes: Strokes,
    colour: bool,
) -> Iterator[str]:
    stack: list[tuple[int, str, str, int]] = [(root, "", "", 0)]
    while stack:
        number, lead, below, depth = stack.pop()
        family = families[number]
        line = lead + _describe(family, colour)
        needs = list(family.needs)
        if number in shown:
            yield f"{line}{paint('  (see above)' if needs else '', 'dim', colour)}\n"
            continue
        if depth == DEEPEST_INDENT and needs:
            waiting.append(number)
            yield f"{line}{paint('  (goes on below)', 'dim', colour)}\n"
            continue
        shown.add(number)
        yield line + "\n"
        for i in reversed(range(len(needs))):
            is_last = i == len(needs) - 1
            stack.append(
                (
                    needs[i],
                    below + (strokes.last if is_last else strokes.branch),
                    below + (strokes.blank if is_last else strokes.through),
                    depth + 1,
                )
            )


def _group(plan: Plan, selected: Collection[int]) -> tuple[list[_Family], list[int]]:
    """Families and their numbers in plan order."""
    numbers: dict[tuple[object, ...], int] = {}
    families: list[_Family] = []
    family_of: dict[int, int] = {}
    for index in sorted(selected):
        node = plan.nodes[index]
        base, bracket, _ = node.name.partition("[")
        key = (node.origin.file, node.origin.keys[:2], base) if bracket else (node.name,)
        number = numbers.setdefault(key, len(families))
        if number == len(families):
            families.append(_Family(base if bracket else node.name))
        families[number].nodes.append(node)
        family_of[index] = number
    for index, number in family_of.items():
        for needed in plan.dependencies[index]:
            other = family_of[needed]
            if other != number:
                families[number].needs[other] = None
                families[other].is_needed = True
    return families, list(range(len(families)))


def _describe(family: _Family, colour: bool) -> str:
    first = family.nodes[0]
    if len(family.nodes) == 1:
        return one_line(first.name) + paint(_remark(first), "dim", colour)
    instances = [
        one_line(node.name).removeprefix(one_line(family.title))
        for node in family.nodes[:NAMED_INSTANCES]
    ]
    rest = len(family.nodes) - len(instances)
    more = f" and {rest:,} more" if rest > 0 else ""
    listed = f"  {count(len(family.nodes), 'node')}: {' '.join(instances)}{more}"
    return one_line(family.title) + paint(listed, "dim", colour)


def _remark(node: Node) -> str:
    match node.kind:
        case Kind.TEMPLATE:
            what = "  expands when " + ", ".join(
                map(str, node.template.pattern if node.template else ())
            )
            return one_line(what + " is there")
        case Kind.GROUP:
            return "  group"
        case Kind.AGENT:
            return "  agent"
        case Kind.STEP:
            return f"  {one_line(node.description)}" if node.description else ""
