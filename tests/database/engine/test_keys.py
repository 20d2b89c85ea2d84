"""A workflow's steps hold concurrency keys: of two instances that name the same one, one task runs at a time."""

from pulse.waker import keys_wake
from tests.support.weave import Done, Weave

KEYED = """
orbit: weave/1
workflow: keyed
version: 1
input: {type: object, required: [supplier], properties: {supplier: {type: string}}}
defaults: {queue: main, concurrency_keys: ["supplier:${ input.supplier }"]}
steps:
  - {id: a, task: do.a@1}
  - {id: b, task: do.b@1, concurrency_keys: []}
"""


def test_r176_steps_of_two_instances_share_a_key(weave: Weave) -> None:
    weave.queue()
    weave.publish(KEYED)
    one, two, other = (weave.start("keyed", {"supplier": name}) for name in ("acme", "acme", "b"))
    weave.advance()
    running = weave.claim()
    assert [item.task.source_id for item in running] == [one, other]
    assert weave.claim() == []
    for assignment in running:
        weave.answer(assignment, Done(None))
    while keys_wake(weave.database, weave):
        pass
    assert [item.task.source_id for item in weave.claim()] == [two]
