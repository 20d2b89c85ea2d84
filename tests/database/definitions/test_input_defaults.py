"""A start fills in the defaults of the input schema, since definitions are checked as if it did."""

from orbit.database import Database
from tests.support.weave import Weave

DEFINITION = """\
orbit: weave/1
workflow: dated
version: 1
input:
  type: object
  required: [start]
  properties:
    start: {type: string, default: 2024-01-01}
    at: {type: string, default: 2024-01-01T00:00:00Z}
    note: {type: string}
steps:
  - id: copy
    set: {start: "${ input.start }", at: "${ input.at }", note: "${ default(input.note, null) }"}
output: ${ steps.copy.output }
"""


def test_c129_a_run_with_no_input_gets_the_texts_of_the_defaults(database: Database) -> None:
    weave = Weave(database)
    try:
        weave.publish(DEFINITION)
        empty, given = weave.start("dated"), weave.start("dated", {"start": "2025-02-02", "note": "mine"})
        weave.advance()
        shown = [weave.get(instance_id) for instance_id in (empty, given)]
    finally:
        weave.close()
    assert [instance["state"] for instance in shown] == ["SUCCEEDED", "SUCCEEDED"]
    assert shown[0]["output"] == {"start": "2024-01-01", "at": "2024-01-01T00:00:00Z", "note": None}
    assert shown[1]["output"] == {"start": "2025-02-02", "at": "2024-01-01T00:00:00Z", "note": "mine"}
