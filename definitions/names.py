"""The forms of names in a definition: patterns, the words that describe them, and the code of what does not fit."""

from __future__ import annotations

import re

from msgspec import Struct

from definitions.codes import Code
from definitions.limits import IDENTIFIER_CHARACTERS_MAX


class Form(Struct, frozen=True):
    """A pattern that a text must have as a whole, and the pattern in words."""

    pattern: re.Pattern[str]
    words: str
    code: Code = Code.BAD_NAME


IDENTIFIER = Form(
    re.compile(rf"[A-Za-z][A-Za-z0-9_]{{0,{IDENTIFIER_CHARACTERS_MAX - 1}}}"),
    f"a letter, then letters, digits or `_` (at most {IDENTIFIER_CHARACTERS_MAX} characters)",
)
WORKFLOW = Form(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"),
    "a letter or digit, then letters, digits, `_`, `.` or `-` (at most 100 characters)",
)
# As Pulse has them: a queue's name and a task type.
QUEUE = Form(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"),
    "a letter or digit, then letters, digits, `_`, `.`, `:` or `-` (at most 128 characters)",
)
TASK_TYPE = Form(
    re.compile(r"([A-Za-z0-9][A-Za-z0-9_.:-]{0,127})@([1-9][0-9]{0,8})"),
    "a task type with its version, such as `payout.submit@2`",
    Code.BAD_TASK_TYPE,
)
CHILD = Form(
    re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,99})(?:@([1-9][0-9]{0,8}))?"),
    "a workflow, with its version or without, such as `payout@2`",
)
ERROR_CODE = Form(
    re.compile(r"[A-Z][A-Z0-9_]{0,63}"),
    "capital letters, digits and `_`, such as `ORDER_REFUSED` (at most 64 characters)",
)
# The classes of a failure that can reach a handler, as Pulse has them; what needs a person waits for one.
FAILURE_CLASSES = ("RETRYABLE", "NON_RETRYABLE", "UNCLASSIFIED", "UNKNOWN_OUTCOME")
EVERY_ERROR = "*"
ERROR_MATCH = Form(
    re.compile(r"\*|[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}"),  # a worker's code is its own
    f'an error code such as `ORDER_REFUSED`, a class ({", ".join(FAILURE_CLASSES)}), or `"*"` for every error',
)
LANGUAGE = Form(re.compile(r"weave/1"), "`weave/1`", Code.BAD_VALUE)
