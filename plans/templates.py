"""`{{ns.name}}`: what a plan's texts may refer to.

Does not know which keys are rendered nor where values come from. Only the exact form
without blanks is a reference; any other braces, of known namespaces too, are left alone.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Final

from assay.plans.diagnostics import suggest

Namespaces = Mapping[str, Mapping[str, str]]
"""Values by namespace and name; a namespace that is absent is known but not available here.
The name "" is the namespace itself: `{{each}}`."""

_REFERENCE = re.compile(r"\{\{(params|matrix|each)(?:\.([^{}\s]*))?\}\}")

_UNAVAILABLE: Final = {
    "params": "no `[params]` are declared",
    "matrix": "there is no `matrix` here",
    "each": "there is no `foreach` around it",
}


class TemplateError(ValueError):
    """A reference to nothing; the message is a clause after "…, but"."""

    def __init__(self, reference: str, why: str, hint: str | None = None) -> None:
        self.reference = reference
        self.why = why
        self.hint = hint
        super().__init__(f"`{reference}`: {why}")


def render(text: str, namespaces: Namespaces) -> str:
    """`text` with every reference replaced, once: what a value contains is not looked at.

    Raises TemplateError for an unknown name in a known namespace.
    """
    if "{{" not in text:
        return text
    return _REFERENCE.sub(lambda match: _look_up(match, namespaces), text)


def find_faults(text: str, namespaces: Namespaces) -> Iterator[TemplateError]:
    """Every reference of `text` to nothing; `render` raises the first of them."""
    for match in _REFERENCE.finditer(text):
        try:
            _look_up(match, namespaces)
        except TemplateError as error:
            yield error


def find_references(text: str) -> frozenset[tuple[str, str]]:
    """The (namespace, name) pairs that `text` refers to."""
    if "{{" not in text:
        return frozenset()
    return frozenset((m[1], m[2] or "") for m in _REFERENCE.finditer(text))


def each_values(path: str) -> dict[str, str]:
    """The namespace `each` for one match.

    A path that starts with a dash gets `./` in front, so that no command reads it as an
    option.
    """
    folder, name = posixpath.split(path)
    stem = posixpath.splitext(name)[0]
    return {"": _guard(path), "name": name, "stem": stem, "dir": _guard(folder) or "."}


def _guard(path: str) -> str:
    return "./" + path if path.startswith("-") else path


def _look_up(match: re.Match[str], namespaces: Namespaces) -> str:
    namespace, name = match[1], match[2] or ""
    values = namespaces.get(namespace)
    if values is None:
        raise TemplateError(match[0], _UNAVAILABLE[namespace])
    try:
        return values[name]
    except KeyError:
        pass
    if not name:
        names = ", ".join(f"`{{{{{namespace}.{known}}}}}`" for known in sorted(values))
        hint = f"Write one of {names}." if names else None
        raise TemplateError(match[0], "it names no value", hint)
    meant = suggest(name, [known for known in values if known])
    hint = f"Did you mean `{{{{{namespace}.{meant}}}}}`?" if meant is not None else None
    raise TemplateError(match[0], f"`{namespace}` has no `{name}`", hint)
