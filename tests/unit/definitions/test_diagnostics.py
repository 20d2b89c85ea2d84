"""docs/diagnostics.md lists every code, and each of its examples fails or passes as it says."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from definitions.children import ChildName, Children, child_of
from definitions.codes import Code
from definitions.compiler import compile_definition
from definitions.expression.errors import FaultCode
from definitions.expression.functions import FUNCTIONS, MACROS, NEVER
from definitions.limits import CHILD_DEPTH_MAX
from definitions.scope import INSTANCE

DOCUMENT = (Path(__file__).parents[3] / "docs" / "diagnostics.md").read_text(encoding="utf-8")
FRAME = DOCUMENT.split("```yaml frame\n", 1)[1].split("```", 1)[0]
SECTION = re.compile(r"^### (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^```(yaml steps|yaml|python) (fails|passes)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = dict(SECTION.findall(DOCUMENT))


def _children() -> Children:
    """What the page says that its examples of children lie beside."""
    compiled = compile_definition(DOCUMENT.split("```yaml child\n", 1)[1].split("```", 1)[0])
    assert compiled.graph is not None, compiled.render()
    child = child_of(compiled.graph)
    return {
        ChildName("settle"): child,
        ChildName("settle", 1): replace(child, is_retired=True),
        ChildName("settle", 2): child,
        ChildName("tower"): replace(child, depth=CHILD_DEPTH_MAX + 1),
    }


CHILDREN = _children()


def text_of(kind: str, example: str) -> str | bytes:
    if kind == "python":
        made: str | bytes = eval(example, {"FRAME": FRAME})  # noqa: S307  (the text is part of this repository)
        return made
    if kind == "yaml":
        return example
    return FRAME + "".join(
        line if line.startswith("---") or line[0].isalpha() else f"  {line}"
        for line in example.splitlines(keepends=True)
    )


Pair = tuple[str | bytes, str | bytes]


def examples(code: str) -> list[Pair]:
    """Give the failing examples of a code, each with the mended one behind it."""
    found = [(outcome, text_of(kind, example)) for kind, outcome, example in EXAMPLE.findall(SECTIONS[code])]
    failing, mended = found[::2], found[1::2]
    assert {outcome for outcome, _ in failing} == {"fails"}, f"the examples of {code} do not alternate"
    assert {outcome for outcome, _ in mended} == {"passes"}, f"the examples of {code} do not alternate"
    return [(bad, good) for (_, bad), (_, good) in zip(failing, mended, strict=True)]


PAIRS = [
    pytest.param(code, pair, id=f"{code}-{number}") for code in Code for number, pair in enumerate(examples(code), 1)
]


def test_every_code_is_listed_once_and_nothing_else() -> None:
    listed = [code for code, _ in SECTION.findall(DOCUMENT)]
    assert sorted(listed) == sorted(Code)


@pytest.mark.parametrize(("code", "pair"), PAIRS)
def test_the_failing_example_has_this_finding(code: Code, pair: Pair) -> None:
    compiled = compile_definition(pair[0], CHILDREN, is_strict=code is Code.UNDECLARED_FIELD)
    found = {finding.code for finding in compiled.findings}
    if code is Code.TOO_MANY_FINDINGS:
        assert compiled.findings[-1].code is code
        found = {code}
    assert found == {code}, compiled.render()
    assert compiled.graph is None
    for finding in compiled.findings:
        assert finding.line >= 1
        assert finding.column >= 1
        assert finding.caret <= len(finding.excerpt) + 1


@pytest.mark.parametrize(("code", "pair"), PAIRS)
def test_the_mended_example_compiles(code: Code, pair: Pair) -> None:
    compiled = compile_definition(pair[1], CHILDREN, is_strict=code is Code.UNDECLARED_FIELD)
    assert compiled.graph is not None, compiled.render()


def test_every_contradiction_of_a_block_has_an_example_of_its_own() -> None:
    found = " ".join(
        finding.message
        for failing, _ in examples(Code.CONTRADICTION)
        for finding in compile_definition(failing, CHILDREN).findings
    )
    for what in ("is a child workflow", "does last could be undone", "all items of", "already", "undoes nothing"):
        assert what in found


def test_the_page_on_expressions_names_every_function_and_run_time_error() -> None:
    page = (Path(__file__).parents[3] / "docs" / "expressions.md").read_text(encoding="utf-8")
    for name in [*FUNCTIONS, *MACROS]:
        assert f"{name}(" in page
    for name in [*NEVER, *FaultCode, *INSTANCE.fields]:
        assert f"`{name}`" in page
