"""The query parameters that several lists share."""

from __future__ import annotations

from api.calls import Parameter
from api.models.fields import LABEL_LENGTH_MAX
from api.queries import LIMIT_DEFAULT, LIMIT_MAX, WAIT_SECONDS_MAX

_HEX_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
_INSTANT = {"type": "string", "format": "date-time"}

LIMIT = Parameter(
    "limit",
    f"Items on a page, {LIMIT_DEFAULT} if not given",
    {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
)
CURSOR = Parameter("cursor", "`next_cursor` of the page before", {"type": "string", "minLength": 1, "maxLength": 1024})
WAIT_SECONDS = Parameter(
    "wait_seconds",
    "Answer only when there is something new, at the latest after this time",
    {"type": "number", "minimum": 0, "maximum": WAIT_SECONDS_MAX},
)
AFTER_REVISION = Parameter(
    "after_revision",
    "With `wait_seconds`: wait for a later revision; if not given, wait for a terminal state",
    {"type": "string", "pattern": "^(?:0|[1-9][0-9]{0,19})$"},
)
CREATED_AFTER = Parameter("created_after", "Not before this instant", _INSTANT)
CREATED_BEFORE = Parameter("created_before", "Before this instant", _INSTANT)
BUSINESS_KEY = Parameter(
    "business_key", "Exactly this business key", {"type": "string", "minLength": 1, "maxLength": 128}
)
LABEL = Parameter(
    "label", "With this label, as `name=value`", {"type": "string", "minLength": 1, "maxLength": LABEL_LENGTH_MAX}
)
SUBJECT_ID = Parameter("subject_id", "About this task, queue or instance", _HEX_ID)
REQUEST_ID = Parameter("request_id", "Caused by this request", _HEX_ID)


def text_parameter(name: str, description: str, *, length_max: int = 128) -> Parameter:
    """Make a parameter that is plain text."""
    return Parameter(name, description, {"type": "string", "minLength": 1, "maxLength": length_max})


def word_parameter(name: str, description: str, words: list[str]) -> Parameter:
    """Make a parameter that is one of some words."""
    return Parameter(name, description, {"type": "string", "enum": words})


def number_parameter(name: str, description: str, *, maximum: int) -> Parameter:
    """Make a parameter that is a whole number from 1."""
    return Parameter(name, description, {"type": "integer", "minimum": 1, "maximum": maximum})
