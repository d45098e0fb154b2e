"""`assay rewind`: takes back what compensable nodes of a run did after a node had settled."""

from __future__ import annotations

import os

from assay.cli.call import Call
from assay.cli.caller import describe_me
from assay.cli.errors import ExitCode, UsageError
from assay.cli.history import reading_store, writing_store
from assay.cli.render.text import one_line
from assay.engine.cancelling import end_if_dead
from assay.engine.clock import SystemClock
from assay.engine.compensation import Compensated
from assay.engine.effects import EffectRow
from assay.engine.environment import CallerEnvironment
from assay.engine.resumption import OwnerLives
from assay.engine.rewinding import CannotRewind, rewind
from assay.engine.rolling_back import describe_changes
from assay.plans.model import NodeName


def perform(call: Call) -> int:
    values, _, err = call
    to = values.text("to")
    if not to:
        raise UsageError(
            "`assay rewind` needs the node to go back to",
            hint="`assay rewind RUN --to NODE`; `assay show RUN` lists its nodes",
        )
    with reading_store() as asked:
        row, root = asked.runs.find(values.words[0]), asked.root
    clock = SystemClock()

    def tell(effect: EffectRow, done: Compensated) -> None:
        for text in describe_changes(effect, done) or ["rolled back"]:
            err.write(f"`{one_line(effect.node)}`: {one_line(text)}\n")

    with writing_store(root) as store:
        store.expect_effects()
        for text in end_if_dead(store, row, clock):
            err.write(f"{one_line(text)}\n")
        row = store.runs.get(row.id)
        if row.settled_at is None and store.runs.is_alive(row.id):
            raise OwnerLives(row)
        if row.settled_at is None:
            raise CannotRewind(f"what run {row.id} has left running has not ended")
        rewound = rewind(
            store,
            row,
            NodeName(to),
            leave_effects=values.flag("leave_effects"),
            caller=CallerEnvironment(dict(os.environ)),
            by=describe_me(),
            clock=clock,
            tell=tell,
        )
    for effect in rewound.left:
        err.write(f"`{one_line(effect.node)}`: left as it is\n")
    for node, how in rewound.elsewhere:
        err.write(f"`{one_line(node)}`: left as it is, since it was {one_line(how)}\n")
    if rewound.problem is not None:
        err.write(
            f"error: run {row.id} is not rewound wholly: {one_line(rewound.problem)}\n"
            f"\nhint: once that is mended, `assay rewind {row.id} --to {to}` goes on\n"
        )
        return ExitCode.NODE_FAILED
    err.write(f"run {row.id} is as it was after `{one_line(to)}`\n")
    err.write(f"`assay resume {row.id}` goes on from there\n")
    return ExitCode.DONE
