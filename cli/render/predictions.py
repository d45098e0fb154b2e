"""Predictions in words: a line for each node, or one node's changes field by field.

Does not know how they are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from assay.cli.render.json_events import question_as_json
from assay.cli.render.standings import (
    as_json,
    describe_said,
    describe_standing,
    render_question,
)
from assay.cli.render.text import age, count, moment, one_line, paint
from assay.engine.keys import Change
from assay.engine.prediction import Forecast, Prediction
from assay.engine.standing import Standing
from assay.plans.canonical import JsonValue

_VERDICTS = {
    Forecast.CLEAN: ("is clean", "cyan"),
    Forecast.RESTORE: ("would be restored from the cache", "green"),
    Forecast.RUN: ("would run", "yellow"),
    Forecast.UNKNOWN: ("cannot be told yet", "dim"),
    Forecast.REFUSED: ("would fail before it starts", "error"),
    Forecast.AMBIGUOUS: ("waits for an operator", "error"),
    Forecast.ON_FAILURE: ("waits for a failure", "dim"),
}
_SHOWN_CHARACTERS = 200


def render_predictions(
    predictions: Sequence[Prediction], *, colour: bool, all_clean: bool
) -> Iterator[str]:
    """A line a node, clean ones only when `all_clean`, and the counts."""
    for each in predictions:
        _, hue = _VERDICTS[each.verdict]
        if each.verdict is not Forecast.CLEAN or all_clean:
            reason = f"  {one_line(each.reason)}" if each.reason else ""
            yield f"{paint(f'{each.verdict:<10}', hue, colour)} {one_line(each.node)}{reason}\n"
    counts = Counter(each.verdict for each in predictions)
    parts = [f"{counts[verdict]:,} {verdict.value}" for verdict in _VERDICTS if counts[verdict]]
    yield f"{', '.join(parts)} (nothing was run)\n"


def render_explanation(prediction: Prediction, now: float, *, colour: bool) -> str:
    """Verdict and reason, every change with before and after, and what it is compared with."""
    verdict, hue = _VERDICTS[prediction.verdict]
    reason = f": {one_line(prediction.reason)}" if prediction.reason else ""
    lines = [f"{one_line(prediction.node)} {paint(verdict, hue, colour)}{reason}"]
    if prediction.standing is not None:
        lines += _describe_standing(prediction.standing)
    for change in prediction.changes:
        lines.append("")
        lines += _describe_change(change, colour)
    lines += ["", _describe_since(prediction, now)]
    return "\n".join(lines) + "\n"


def describe_prediction(prediction: Prediction) -> dict[str, JsonValue]:
    """For `--json`."""
    return {
        "node": prediction.node,
        "verdict": prediction.verdict.value,
        "reason": prediction.reason,
        "changes": [
            {
                "field": change.field,
                "path": change.path,
                "before": change.before,
                "after": change.after,
            }
            for change in prediction.changes
        ],
        "effect": None if prediction.standing is None else as_json(prediction.standing),
        "question": None
        if prediction.standing is None or prediction.standing.question is None
        else question_as_json(prediction.node, prediction.standing.question),
        "since_run": prediction.since,
        "recorded_at": prediction.recorded_at,
    }


def _describe_standing(standing: Standing) -> list[str]:
    """What is known of the effect that a run would stop over, and what would be said of it."""
    lines = ["", f"  effect   {describe_standing(standing)}"]
    lines += [f"  settled  {moment(said.at)} {describe_said(said)}" for said in standing.said]
    return [*lines, "", *render_question(standing)]


def _describe_change(change: Change, colour: bool) -> list[str]:
    what = change.field if change.path is None else f"{change.field}  {change.path}"
    return [
        f"  {one_line(what)}",
        f"    {paint('before', 'red', colour)}  {_shorten(change.before)}",
        f"    {paint('after ', 'green', colour)}  {_shorten(change.after)}",
    ]


def _shorten(text: str | None) -> str:
    if text is None:
        return "(none)"
    shown = one_line(text)
    if len(shown) <= _SHOWN_CHARACTERS:
        return shown
    return f"{shown[:_SHOWN_CHARACTERS]}... ({count(len(text), 'character')})"


def _describe_since(prediction: Prediction, now: float) -> str:
    if prediction.recorded_at is None and prediction.since is not None:
        return f"as run {prediction.since} has recorded it"
    if prediction.recorded_at is None:
        return "no result of this node is recorded"
    when = f"{moment(prediction.recorded_at)}, {age(now - prediction.recorded_at)}"
    run = f"run {prediction.since}" if prediction.since is not None else "an earlier run"
    return f"compared with the result recorded by {run} ({when})"
