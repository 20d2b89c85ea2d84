"""The moves of the small world as data: how often each comes, and what it is chosen from."""

from collections.abc import Mapping, Sequence
from typing import Any

from pulse.report import Outcome
from pulse.review import Verdict
from pulse.states import ErrorClass, RecoverySafety

QUEUES = ("main", "side")
# What the workers say of each type; "ask" only verifies.
SAFETY = {
    "echo": RecoverySafety.MANUAL,
    "safe": RecoverySafety.REPLAY_SAFE,
    "pay": RecoverySafety.VERIFY,
    "ask": RecoverySafety.REPLAY_SAFE,
}
KEYS = ("a", "b", "c")

_SOME = range(10_000)
_LIVE = (True, True, True, False)
_NONE = (None,) * 6
# For each move how often it comes, and what is chosen from.
MOVES: Mapping[str, tuple[float, Mapping[str, Sequence[Any]]]] = {
    "submit": (
        6,
        {
            "count": (1, 1, 2, 5),
            "queue": QUEUES,
            "type_": ("echo", "safe", "safe", "pay", "pay"),
            "keys": ((), (), ("a",), ("b",), ("a", "b"), ("b", "c")),
            "priority": range(10),
            "delay": (0, 0, 0, 5, 40),
            "deadline": (20, 600, 600, 3600, 20_000),
            "is_gated": (False, False, True),
            "fairness_key": (None, None, "x", "y"),
        },
    ),
    "submit_to_room": (
        3,
        {
            "count": (1, 1, 2, 5),
            "queue": QUEUES,
            "room": (1, 8),
            "type_": ("echo", "safe", "safe", "pay"),
            "keys": ((), (), (), ("a",)),
            "priority": range(10),
            "delay": (0,),
            "deadline": (20, 600, 3600),
            "is_gated": (False, False, True),
            "fairness_key": (None, None, None, "x"),
        },
    ),
    "submit_again": (1, {"at": _SOME}),
    "cancel": (1, {"at": _SOME}),
    "review": (2, {"at": _SOME, "verdict": tuple(Verdict)}),
    "retry": (1, {"at": _SOME}),
    "reschedule": (1, {"at": _SOME, "priority": range(10)}),
    "claim": (
        8,
        {
            "room": (1, 2, 3, 4, 8),
            "queues": (QUEUES, *zip(QUEUES, strict=True)),
            "types": (tuple(SAFETY), tuple(SAFETY), *zip(SAFETY, strict=True)),
            "is_heard": (True, True, True, True, True, True, True, False),
        },
    ),
    "start": (9, {"at": _SOME, "is_live": _LIVE, "is_same": (True, False)}),
    "report": (
        6,
        {
            "at": _SOME,
            "outcome": (*Outcome, Outcome.SUCCEEDED),
            "class_": tuple(ErrorClass),
            "is_live": _LIVE,
            "ran": (True, False),
        },
    ),
    "renew": (2, {"at": _SOME, "is_live": _LIVE}),
    "release": (1, {"at": _SOME, "is_live": _LIVE}),
    "configure": (
        2,
        {
            "queue": QUEUES,
            "paused": (False, False, False, False, False, True),
            "max_concurrency": (1, 2, 4, 9),
            "rate_per_second": (1, 3, 50),
            "max_unfinished_tasks": (5, 1000, 1000),
        },
    ),
    "configure_application": (
        1,
        {"concurrency": (*_NONE, 1, 4), "rate": (*_NONE, 1, 3), "unfinished": (*_NONE, 12)},
    ),
    "configure_key": (1, {"key": ("a", "b", "*"), "limit": (None, 1, 2)}),
    "move_gate": (1, {"is_open": (False, True, True)}),
    "follow_wake_ups": (1, {}),
    "turn_to_node": (1, {"number": (0, 1), "is_new": (False, True)}),
    "restore": (0.25, {}),
    "pass_time": (3, {"seconds": (0.5, 0.5, 1.1, 1.1, 1.1, 6.0, 6.0, 6.0, 6.0, 31.0, 31.0, 200.0)}),
}
NAMES = tuple(name for name, (weight, _) in MOVES.items() for _ in range(round(4 * weight)))
# After how many transactions a move's node dies; mostly it does not.
LIVES = (*[None] * 20, 0, 1, 2, 3, 4)
