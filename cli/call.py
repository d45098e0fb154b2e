"""One call of assay: what was asked and where answers go."""

from __future__ import annotations

from typing import NamedTuple

from assay.cli.options import Values
from assay.cli.render.stream import Stream


class Call(NamedTuple):
    """`out` is for data, `err` for everything else."""

    values: Values
    out: Stream
    err: Stream
