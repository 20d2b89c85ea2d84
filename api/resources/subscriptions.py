"""Subscriptions: who wants which events, and the deliveries that consumers pull and acknowledge.

A subscription that chooses queues is seen by callers whose range covers all of them; one that does not choose gets the
events of every queue and needs the range of all. Whatever is out of range is not found.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from api.calls import Call, Operation, Reply
from api.models import subscriptions as models
from api.models.fields import revision_number
from api.parameters import CURSOR, LIMIT, word_parameter
from api.queries import Cursor, cursor_text
from orbit import subscription as kinds
from orbit.access import Credential, Scope
from orbit.clock import seconds, to_rfc3339
from orbit.database import Database
from orbit.ids import from_hex
from orbit.store.delivery import deliveries_list, events_read
from orbit.store.subscription import Bounds, Subscription, subscription_find, subscriptions_list
from orbit.subscription import DeliveryState
from pulse.changes import Changes
from pulse.deliveries import (
    REPLAY_MAX,
    TokenResult,
    deliveries_ack,
    deliveries_extend,
    deliveries_pull,
    deliveries_replay,
    event_content,
)
from pulse.subscriptions import (
    Change,
    Wish,
    subscription_configure,
    subscription_create,
    subscription_delete,
    subscription_json,
    subscription_not_found,
    subscription_resume,
)

if TYPE_CHECKING:
    from orbit.database import Transaction
    from orbit.idempotency import Command
    from orbit.jsontext import Json
    from pulse.deliveries import Pulled

_MISSING = subscription_not_found().message
_PULL_DEFAULT = 10
_STATE = word_parameter("state", "In this state; POISONED if not given", [state.value for state in DeliveryState])
_ONE = "/v1/subscriptions/{subscription_id}"


class Subscriptions:
    """The resource `/v1/subscriptions`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changes = Changes()

    def operations(self) -> list[Operation]:
        """Declare what can be done with subscriptions."""
        read, manage, result = Scope.EVENTS_READ, Scope.EVENTS_MANAGE, models.SubscriptionResult
        return [
            Operation(
                "POST", "/v1/subscriptions", "Subscribe to events", self.create, manage, result,
                models.CreateSubscription, keyed=True, creates=True,
            ),
            Operation(
                "GET", "/v1/subscriptions", "List the subscriptions in range, by name", self.list_page, read,
                models.Subscription, query=(LIMIT, CURSOR), is_page=True,
            ),
            Operation("GET", _ONE, "Read a subscription", self.get, read, models.Subscription),
            Operation(
                "GET", f"{_ONE}/deliveries", "List deliveries that wait, parked ones if no state is given",
                self.deliveries, read, models.Delivery, query=(_STATE, LIMIT, CURSOR), is_page=True,
            ),
            Operation(
                "POST", f"{_ONE}:configure", "Replace a subscription's filters and bounds", self.configure, manage,
                result, models.ConfigureSubscription, keyed=True,
            ),
            Operation(
                "POST", f"{_ONE}:resume", "Read on where an overflowed subscription stopped", self.resume, manage,
                result, models.ChangeSubscription, keyed=True,
            ),
            Operation(
                "POST", f"{_ONE}:delete", "Delete a subscription and its deliveries", self.delete, manage,
                result, models.ChangeSubscription, keyed=True,
            ),
            Operation(
                "POST", f"{_ONE}:pull", "Get deliveries, hidden from others for a while", self.pull, read,
                models.PullResult, models.PullDeliveries,
            ),
            Operation(
                "POST", f"{_ONE}:ack", "Say that deliveries are done", self.ack, read, models.TokenResults,
                models.AckDeliveries,
            ),
            Operation(
                "POST", f"{_ONE}:extend", "Hide deliveries longer, or give them back", self.extend, read,
                models.TokenResults, models.ExtendDeliveries,
            ),
            Operation(
                "POST", f"{_ONE}:replay", "Let parked deliveries come again", self.replay, manage,
                models.ReplayResult, models.ReplayDeliveries,
            ),
        ]  # fmt: skip

    def create(self, call: Call) -> Reply:
        """Subscribe."""
        body = call.model(models.CreateSubscription)
        bounds = Bounds(
            seconds(body.visibility_seconds or kinds.VISIBILITY_SECONDS_DEFAULT),
            body.max_deliveries or kinds.DELIVERIES_DEFAULT,
            body.max_backlog or kinds.BACKLOG_DEFAULT,
        )
        wish = _wish(call.caller, body, bounds)
        command = call.command("subscription.create")
        answer = self._database.transaction(
            lambda tx: subscription_create(tx, command, call.actor, name=body.name, wish=wish)
        )
        return call.receipt(answer, creates=True)

    def list_page(self, call: Call) -> Reply:
        """List subscriptions by name; what is out of range is left out, so a page may be short."""
        limit = call.query.limit()
        parts = call.query.cursor_parts(1)
        if parts is not None and not isinstance(parts[0], str):
            raise call.query.refused("cursor", "this is not a cursor of this list")
        after = "" if parts is None else str(parts[0])
        found = self._database.transaction(
            lambda tx: subscriptions_list(tx, call.namespace_id, after_name=after, limit=limit)
        )
        next_cursor = cursor_text([found[-1].name]) if len(found) == limit else None
        return call.page([subscription_json(each) for each in found if _is_in_range(call.caller, each)], next_cursor)

    def get(self, call: Call) -> Reply:
        """Read a subscription."""
        return call.data(subscription_json(self._database.transaction(lambda tx: _found(tx, call))))

    def configure(self, call: Call) -> Reply:
        """Replace the filters and bounds of a subscription."""
        body = call.model(models.ConfigureSubscription)
        bounds = Bounds(seconds(body.visibility_seconds), body.max_deliveries, body.max_backlog)
        wish = _wish(call.caller, body, bounds)
        change, command = self._change(call, body), _command(call, "configure")
        answer = self._database.transaction(
            lambda tx: subscription_configure(tx, command, call.actor, change, wish=wish)
        )
        return call.receipt(answer, creates=False)

    def resume(self, call: Call) -> Reply:
        """Let an overflowed subscription read on."""
        change, command = self._change(call, call.model(models.ChangeSubscription)), _command(call, "resume")
        answer = self._database.transaction(lambda tx: subscription_resume(tx, command, call.actor, change))
        return call.receipt(answer, creates=False)

    def delete(self, call: Call) -> Reply:
        """Delete a subscription."""
        change, command = self._change(call, call.model(models.ChangeSubscription)), _command(call, "delete")
        answer = self._database.transaction(lambda tx: subscription_delete(tx, command, call.actor, change))
        return call.receipt(answer, creates=False)

    def pull(self, call: Call) -> Reply:
        """Hand deliveries out; with `wait_seconds` look again and again until there is one."""
        body = call.model(models.PullDeliveries)
        limit = body.max or _PULL_DEFAULT

        def work(tx: Transaction) -> list[Pulled]:
            return deliveries_pull(tx, _found(tx, call), limit=limit)

        pulled = self._changes.wait_for(
            call.path_id("subscription_id", message=_MISSING),
            lambda: self._database.transaction(work),
            until=bool,
            seconds=body.wait_seconds or 0.0,
        )
        return call.data({"deliveries": [each.as_json() for each in pulled]})

    def ack(self, call: Call) -> Reply:
        """Remove deliveries that are done."""
        tokens = call.model(models.AckDeliveries).tokens
        return _results(call, self._database.transaction(lambda tx: deliveries_ack(tx, _found(tx, call), tokens)))

    def extend(self, call: Call) -> Reply:
        """Hide deliveries longer, or give them back."""
        body = call.model(models.ExtendDeliveries)
        hidden = seconds(body.visibility_seconds)

        def work(tx: Transaction) -> list[TokenResult]:
            return deliveries_extend(tx, _found(tx, call), body.tokens, visibility_micros=hidden)

        return _results(call, self._database.transaction(work))

    def replay(self, call: Call) -> Reply:
        """Let parked deliveries come again."""
        wanted = call.model(models.ReplayDeliveries).event_ids
        event_ids = None if wanted is None else [from_hex(each) for each in wanted]
        replayed = self._database.transaction(lambda tx: deliveries_replay(tx, _found(tx, call), event_ids))
        return call.data({"replayed": replayed, "has_more": event_ids is None and replayed == REPLAY_MAX})

    def deliveries(self, call: Call) -> Reply:
        """List deliveries of one state, the earliest instant first."""
        limit, cursor = call.query.limit(), call.query.cursor()
        word = call.query.word("state", tuple(DeliveryState))
        state = DeliveryState.POISONED if word is None else DeliveryState(word)
        after = None if cursor is None else (cursor.at, cursor.id)

        def work(tx: Transaction) -> tuple[list[Json], str | None]:
            found = deliveries_list(tx, _found(tx, call).id, state, limit=limit, after=after)
            events = events_read(tx, {each.event_id for each in found})
            shown: list[Json] = [
                {
                    "state": each.state,
                    "delivery_count": each.deliveries_count,
                    "visible_at": to_rfc3339(each.visible_at),
                    "event": event_content(events[each.event_id]),
                }
                for each in found
                if each.event_id in events
            ]
            last = found[-1] if len(found) == limit else None
            return shown, None if last is None else Cursor(last.visible_at, last.event_id).text()

        return call.page(*self._database.transaction(work))

    def _change(self, call: Call, body: models.ConfigureSubscription | models.ChangeSubscription) -> Change:
        """Read what a change is made for; the subscription must be in range."""
        revision = revision_number(body.expected_revision, pointer="/expected_revision")
        return Change(_known(self._database, call), revision, body.reason)


def _known(database: Database, call: Call) -> bytes:
    """Return the path's id; to callers for all queues also that of a deleted one, whose receipts are still there."""
    identifier = call.path_id("subscription_id", message=_MISSING)
    found = database.transaction(partial(subscription_find, namespace_id=call.namespace_id, identifier=identifier))
    is_seen = call.caller.queues is None if found is None else _is_in_range(call.caller, found)
    if not is_seen:
        raise subscription_not_found()
    return identifier


def _command(call: Call, operation: str) -> Command:
    return call.command(f"subscription.{operation}", resource=call.path["subscription_id"])


def _found(tx: Transaction, call: Call) -> Subscription:
    identifier = call.path_id("subscription_id", message=_MISSING)
    found = subscription_find(tx, call.namespace_id, identifier)
    if found is None or not _is_in_range(call.caller, found):
        raise subscription_not_found()
    return found


def _is_in_range(caller: Credential, found: Subscription) -> bool:
    if caller.queues is None:
        return True
    return found.wanted.queues is not None and all(map(caller.covers, found.wanted.queues))


def _wish(caller: Credential, body: models.CreateSubscription | models.ConfigureSubscription, bounds: Bounds) -> Wish:
    """Read what is wanted. What names no queue is about all of them; a queue out of range is not found."""
    if body.queues is None:
        caller.require_all_queues()
    for queue in body.queues or ():
        caller.require_queue(queue)
    filters = (body.event_types, body.queues, body.workflows, body.task_types)
    event_types, queues, workflows, task_types = map(_words, filters)
    return Wish(event_types, queues, workflows, task_types, bounds)


def _words(words: list[str] | None) -> tuple[str, ...] | None:
    return None if words is None else tuple(dict.fromkeys(words))


def _results(call: Call, results: list[TokenResult]) -> Reply:
    items: list[Json] = [
        {
            "token": each.token,
            "outcome": each.outcome,
            "visible_at": None if each.visible_at is None else to_rfc3339(each.visible_at),
        }
        for each in results
    ]
    return call.data({"items": items})
