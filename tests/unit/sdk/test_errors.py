"""What an error of the API says to a person who only reads its text."""

import pytest

from orbit.sdk.errors import APIError


@pytest.mark.parametrize(
    ("message", "details", "text"),
    [
        ("this policy needs this bound", {"pointer": "/overlap/max_backlog"}, " (at /overlap/max_backlog)"),
        ("the field 'name' is required", {"pointer": "/name"}, ""),
        ("/name is too long", {"pointer": "/name"}, ""),
        ("there is no such queue", {"pointer": ""}, ""),
        ("look again", {"task_state": "FAILED"}, ""),
        ("several", [{"pointer": "/a"}], ""),
        ("none", None, ""),
    ],
)
def test_the_text_names_the_field_unless_the_message_does(message: str, details: object, text: str) -> None:
    error = APIError({"code": "INVALID_REQUEST", "message": message, "details": details}, status=400)
    assert str(error) == f"INVALID_REQUEST (400): {message}{text}"
