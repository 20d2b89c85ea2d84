"""What no file of the repository may hold, whatever its kind: a machine's paths, hosts, half-done marks, dead links."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.declared import ROOT

# Written in parts, so that this file passes its own test.
HOSTS = [
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "debian" + ".org",
    "docker" + ".io",
    "git" + "hub.com",
]
PATHS = ["/wo" + "rk/", "/ro" + "ot/", "/o" + "pt/", "/ho" + "me/", "/Us" + "ers/"]
MARKS = ["TO" + "DO", "FIX" + "ME", "XX" + "X", "Not" + "ImplementedError"]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Every text that git would track, by its path."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, str] = {}
    for name in filter(None, listed.stdout.split("\0")):
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b"\0"
        if b"\0" not in content:
            found[name] = content.decode()
    return found


def lines_with(texts: dict[str, str], words: list[str]) -> list[str]:
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(word)}" for word in words))
    return [
        f"{name}:{number} {line.strip()}"
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_registry_host(texts: dict[str, str]) -> None:
    assert len(texts) > 50
    assert lines_with(texts, HOSTS) == []


def test_no_file_names_a_path_of_one_machine(texts: dict[str, str]) -> None:
    assert lines_with(texts, PATHS) == []


def test_nothing_is_left_half_done(texts: dict[str, str]) -> None:
    assert lines_with({name: text for name, text in texts.items() if name.endswith(".py")}, MARKS) == []


def test_every_link_of_a_document_leads_somewhere(texts: dict[str, str]) -> None:
    dead = [
        f"{name}: {target}"
        for name, text in texts.items()
        if name.endswith(".md")
        for target in LINK.findall(text)
        if not re.match(r"[a-z]+:|#", target) and not (ROOT / name).parent.joinpath(target.partition("#")[0]).exists()
    ]
    assert dead == []


def test_every_anchor_inside_a_document_exists(texts: dict[str, str]) -> None:
    dead = []
    for name, text in texts.items():
        if not name.endswith(".md"):
            continue
        for target in LINK.findall(text):
            path, _, anchor = target.partition("#")
            if not anchor or re.match(r"[a-z]+:", target):
                continue
            page = (ROOT / name).parent / path if path else ROOT / name
            if page.is_file() and anchor not in anchors(page):
                dead.append(f"{name}: {target}")
    assert dead == []


def test_every_decision_has_a_number_of_its_own() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [page.name[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for page in pages:
        assert page.read_text().startswith(f"# {page.name[:4]} "), page.name


def anchors(page: Path) -> set[str]:
    """Name a page's headings as they are linked to: lower case, without punctuation, spaces as dashes."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
