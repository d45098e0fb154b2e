"""`assay schema`: the JSON Schema of the plan file."""

from __future__ import annotations

import json

from assay.cli.call import Call
from assay.cli.errors import ExitCode
from assay.plans.schema import json_schema


def perform(call: Call) -> int:
    call.out.write(json.dumps(json_schema(), indent=2) + "\n")
    return ExitCode.DONE
