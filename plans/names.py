"""What a node name in a plan or on the command line refers to.

An exact name wins; `test` means every `test[…]`; `*` and `?` make a pattern over names, in
which brackets stand for themselves, since they are part of the names of instances. Names
in an included file are looked for among its own nodes first, then outwards. Does not know
edges or selections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from assay.plans.diagnostics import suggest
from assay.plans.model import Node, NodeName

MAX_SUGGESTIONS: Final = 20
"""How many unknown names get a search for the nearest known one; each is linear."""


def base_of(name: str) -> str:
    """`cc` of `cc[src/main.c]`."""
    return name.partition("[")[0]


def scope_of(name: str) -> str:
    """`web:` of `web:test[py=3.11]`; empty in the top file."""
    head, colon, _ = base_of(name).rpartition(":")
    return head + colon


def is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


class NodeNames:
    """The names of a plan's nodes. Look-ups are answered once for each text and scope.

    The first `declared` nodes are found in every way. Later ones, instances that a template
    has expanded into, are found by their exact names only: the template stands for them,
    so that what a name means does not depend on how far the plan has grown.
    """

    def __init__(self, nodes: Sequence[Node], declared: int | None = None) -> None:
        self._nodes = nodes
        self.indices: dict[str, int] = {}
        self._instances: dict[str, list[int]] = {}
        self._declared = len(nodes) if declared is None else declared
        self._grown: dict[str, list[int]] = {}
        self._known: dict[tuple[str, str], tuple[int, ...]] = {}
        self._suggestions = 0
        for index, node in enumerate(nodes):
            self.indices.setdefault(node.name, index)
            base, bracket, _ = node.name.partition("[")
            if bracket:
                family = self._instances if index < self._declared else self._grown
                family.setdefault(base, []).append(index)

    def find_exact(self, name: str) -> tuple[int, ...]:
        """The node of that name, or all instances of a name without brackets."""
        index = self.indices.get(name)
        return tuple(self._instances.get(name, ())) if index is None else (index,)

    def find(self, text: str, scope: str = "") -> tuple[int, ...]:
        """The indices of the nodes `text` refers to, ascending; () when there are none."""
        key = (scope, text)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(text, scope)
        return found

    def _find(self, text: str, scope: str) -> tuple[int, ...]:
        for prefix in _outwards(scope):
            found = self.find_exact(prefix + text)
            if found:
                return found
        if is_pattern(text):
            for prefix in _outwards(scope):
                found = self._find_pattern(prefix + text)
                if found:
                    return found
        return ()

    def _find_pattern(self, pattern: str) -> tuple[int, ...]:
        text = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
        match = re.compile(text, re.DOTALL).fullmatch
        return tuple(
            index for name, index in self.indices.items() if index < self._declared and match(name)
        )

    def find_grown(self, template: Node) -> tuple[int, ...]:
        """The instances `template` has expanded into: `cc[m=1]` stands for `cc[…,m=1]`."""
        base, bracket, combination = template.name.partition("[")
        tail = f",{combination}" if bracket else ""
        return tuple(
            index for index in self._grown.get(base, ()) if self._nodes[index].name.endswith(tail)
        )

    def suggest(self, text: str, scope: str = "") -> NodeName | None:
        """The name that was probably meant, or None."""
        if self._suggestions == MAX_SUGGESTIONS:
            return None
        self._suggestions += 1
        known = dict.fromkeys(self.indices) | dict.fromkeys(self._instances)
        for prefix in _outwards(scope):
            found = suggest(prefix + text, known)
            if found is not None:
                return NodeName(found)
        return None


def _outwards(scope: str) -> Iterator[str]:
    """`a:b:` gives `a:b:`, `a:` and the empty scope."""
    while scope:
        yield scope
        scope = scope[:-1].rpartition(":")[0]
        scope += ":" if scope else ""
    yield ""
