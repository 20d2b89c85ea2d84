"""The documents tell the truth about the API, and say what has to be said."""

from tests.support.declared import ROOT
from tools import api_reference

DOCS = ROOT / "docs"


def words(name: str) -> str:
    """Return a document as one line, so that a sentence is found however it is wrapped."""
    return " ".join((DOCS / name).read_text().split())


def test_the_generated_parts_are_up_to_date() -> None:
    """`python -m tools.api_reference` writes them."""
    for path, text in api_reference.documents().items():
        assert path.read_text() == text, path.name


def test_r024_the_maxima_are_no_promise_of_capacity() -> None:
    assert "The allowed maxima are no promise of capacity" in words("http-api.md")
    assert "../bench/README.md" in words("http-api.md")


def test_r051_a_burst_around_a_boundary_is_documented() -> None:
    assert "around a boundary nearly twice the rate can fall within one second" in words("limits.md")


def test_r052_what_the_rate_does_not_promise_is_documented() -> None:
    assert "The rate does not limit what a handler sends out" in words("limits.md")
    assert "a granted Start does not prove any outside effect" in words("limits.md")


def test_r075_how_to_send_again_is_documented() -> None:
    assert "Wait at least `Retry-After`, add jitter, and give the whole of it a limit." in words("http-api.md")


def test_r178_limits_set_no_order() -> None:
    assert "Concurrency limits and keys set no order: a retried task may be passed by a later one." in words(
        "limits.md"
    )
