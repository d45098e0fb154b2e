"""`assay run` when nothing is to be done: asked first, before the plan is read.

Everything here is on the path of a run with nothing to do, so it imports next to nothing.
Whatever is not the plain question is left to `commands/run.py`, which gives the same
answers.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from blake3 import blake3

from assay.cli.call import Call
from assay.cli.errors import ExitCode
from assay.cli.location import STORE_FOLDER, Target, find_target, folders_upwards, split_words
from assay.cli.options import Values, read_params
from assay.engine.agreement import Agreed, agree
from assay.engine.certificate import Basis, Question

if TYPE_CHECKING:
    from assay.plans.load import Loaded

_PLAIN = frozenset({"run", "jobs", "agents", "param", "tag", "fail_fast", "quiet", "color"})
"""Options that leave the question as it is."""


def find_nothing_to_do(call: Call) -> int | None:
    """The exit code of a run that found nothing to do, recorded and told; None when that
    cannot be said without reading the plan."""
    values = call.values
    if not values.given <= _PLAIN or split_words(values.words)[0] == "-":
        return None
    if os.environ.get("GITHUB_ACTIONS") == "true":
        return None  # its job summary is made from the plan
    target = find_target(values.words)
    question = ask(target, values)
    for root in _possible_roots(question.plan_path):
        agreed = agree(root, question, os.environ, time.time, time.monotonic)
        if agreed is not None:
            _tell(agreed, call)
            return ExitCode.DONE
    return None


def ask(target: Target, values: Values) -> Question:
    """What is asked of the plan, whatever stands in it."""
    # As the plan is loaded: links on the way are resolved, the file's own name is kept, which says
    # where its workspace is.
    folder, file = os.path.split(os.path.normpath(os.path.join(target.cwd, target.plan)))
    return Question(
        plan_path=os.path.join(os.path.realpath(folder), file),
        targets=target.nodes,
        tags=values.texts("tag"),
        params=read_params(values.texts("param")),
    )


def find_basis(target: Target, values: Values, loaded: Loaded) -> Basis | None:
    """What a run of this plan rests on outside the workspace's files; None when a plan file
    changed since it was read, or warned of something that must be said each time."""
    if target.plan == "-" or loaded.warnings or values.text("boundary"):
        return None
    files: list[tuple[str, str]] = []
    for path in loaded.files:
        text = loaded.sources.get(os.path.relpath(path, loaded.root))
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError:
            return None
        if content.decode("utf-8-sig", "replace").replace("\r\n", "\n") != text:
            return None
        files.append((path, blake3(content).hexdigest()))
    return Basis(ask(target, values), tuple(files), loaded.foreach)


def _possible_roots(plan_path: str) -> list[str]:
    """The plan's folder and those above it that hold a store: which of them is its root
    only the plan itself would tell, and a certificate is found under the right one."""
    folder = os.path.dirname(plan_path)
    return [each for each in folders_upwards(folder) if _has_store(each)]


def _has_store(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, STORE_FOLDER, "assay.db"))


def _tell(agreed: Agreed, call: Call) -> None:
    from assay.cli.render.failures import RerunCommand
    from assay.cli.render.lines import LinesRenderer, Look

    values, out, err = call
    look = Look(
        rerun=RerunCommand(None, (), ""),
        colour=err.colour,
        all_clean=not err.is_terminal,
        quiet=values.flag("quiet"),
    )
    renderer = LinesRenderer(err, out, look)
    renderer.tell_clean(agreed.nodes)
    renderer.tell(agreed.settled)
