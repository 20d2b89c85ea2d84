"""Structured logs: one JSON object a line on standard error. No log line ever holds a secret or a token."""

from __future__ import annotations

import json
import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Write a record as one line of JSON: time, level, event, and what `extra` carries."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record; values that JSON does not know are written by their type's name only."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "at": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD:
                line[key] = value.hex() if isinstance(value, bytes) else value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=lambda value: type(value).__name__)


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module; its events are noun.verb, with details in `extra`."""
    return logging.getLogger(name)


def logs_configure(*, level: str = "INFO") -> None:
    """Send all records to standard error as JSON lines. Called once, by a process's entry point."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
