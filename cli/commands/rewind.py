"""`assay rewind`: takes back what compensable nodes of a run did after a node had settled."""

from __future__ import annotations

import os
import time

from assay.cli.call import Call
from assay.cli.caller import describe_me
from assay.cli.errors import ExitCode, Interrupted, UsageError
from assay.cli.execution import listen_to_signals
from assay.cli.history import reading_store, writing_store
from assay.cli.render.text import one_line
from assay.engine.clock import SystemClock
from assay.engine.compensation import Compensated
from assay.engine.effects import EffectRow
from assay.engine.environment import CallerEnvironment
from assay.engine.resumption import OwnerLives, refuse_living, wait_for_dead
from assay.engine.rewinding import rewind
from assay.engine.rolling_back import describe_changes
from assay.engine.run_request import Cancellation
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
    cancellation = Cancellation()
    received = listen_to_signals(cancellation)
    is_on = False

    def stop_waiting() -> None:
        # Once something is being taken back, it is the cancellation that ends it.
        if received and not is_on:
            raise Interrupted(received[0])

    def pause(seconds: float) -> None:
        stop_waiting()
        time.sleep(seconds)

    def say(text: str) -> None:
        err.write(f"{text}\n")
        err.flush()

    def tell(effect: EffectRow, done: Compensated) -> None:
        for text in describe_changes(effect, done) or ["rolled back"]:
            say(f"`{one_line(effect.node)}`: {one_line(text)}")

    def tell_stopping(effect: EffectRow) -> None:
        say(
            f"stopping once `{one_line(effect.node)}` is taken back; Ctrl-C or `kill"
            f" {os.getpid()}` once more ends its `undo` at once"
        )

    with writing_store(root, err, stop_waiting) as store:
        store.expect_effects()

        def tell_wait(text: str) -> None:
            say(one_line(text))

        try:
            refuse_living(store, row.id, tell_wait, pause)
            wait_for_dead(store, row.id, clock, tell_wait, pause)
        except Interrupted:
            say("interrupted while waiting: nothing was taken back")
            return ExitCode.OPERATOR
        row = store.runs.get(row.id)
        if row.settled_at is None:
            raise OwnerLives(row)
        stop_waiting()
        is_on = True
        rewound = rewind(
            store,
            row,
            NodeName(to),
            leave_effects=values.flag("leave_effects"),
            caller=CallerEnvironment(dict(os.environ)),
            by=describe_me(),
            clock=clock,
            tell=tell,
            cancellation=cancellation,
            tell_stopping=tell_stopping,
        )
    for effect in rewound.left:
        say(f"`{one_line(effect.node)}`: left as it is")
    for node, how in rewound.elsewhere:
        say(f"`{one_line(node)}`: left as it is, since it was {one_line(how)}")
    if rewound.problem is not None or rewound.standing:
        why = one_line(rewound.problem or "interrupted")
        for effect in rewound.standing:
            say(f"`{one_line(effect.node)}`: left as it is, since that was not begun")
        err.write(
            f"error: run {row.id} is not rewound wholly: {why}\n"
            f"\nhint: {'once that is mended, ' if rewound.problem else ''}"
            f"`assay rewind {row.id} --to {to}` goes on\n"
        )
        return 128 + received[0] if received else ExitCode.NODE_FAILED
    say(f"run {row.id} is as it was after `{one_line(to)}`")
    say(f"`assay resume {row.id}` goes on from there")
    return 128 + received[0] if received else ExitCode.DONE
