"""The forms of names in a definition: patterns and the words that describe them."""

from __future__ import annotations

import re

from definitions.limits import IDENTIFIER_CHARACTERS_MAX

IDENTIFIER = re.compile(rf"[A-Za-z][A-Za-z0-9_]{{0,{IDENTIFIER_CHARACTERS_MAX - 1}}}")
IDENTIFIER_FORM = f"a letter, then letters, digits or _ (at most {IDENTIFIER_CHARACTERS_MAX} characters)"

WORKFLOW = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
WORKFLOW_FORM = "a letter or digit, then letters, digits, `_`, `.` or `-` (at most 100 characters)"

# As Pulse has them: a queue's name and a task type.
QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
QUEUE_FORM = "a letter or digit, then letters, digits, `_`, `.`, `:` or `-` (at most 128 characters)"
TASK_TYPE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.:-]{0,127})@([1-9][0-9]{0,8})")
TASK_TYPE_FORM = "a task type with its version, such as `payout.submit@2`"

ERROR_CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
ERROR_CODE_FORM = "capital letters, digits and _, such as `ORDER_REFUSED` (at most 64 characters)"
