"""Expression text to tokens, with CEL's spelling of literals.

Leaves structure to the parser. What CEL has and this subset does not (bytes, unsigned numbers, triple quotes) is told
from a typing mistake and refused by name.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from definitions.codes import Code
from definitions.expression.errors import Problem, SyntaxProblem
from definitions.limits import INT64_MAX


class TokenKind(StrEnum):
    """What a token is; operators and brackets are told apart by their text."""

    NAME = "name"
    INT = "int"
    DOUBLE = "double"
    STRING = "string"
    OPERATOR = "operator"
    END = "end of the expression"


class Token(Struct):
    """One token; `value` is a literal's value, and an INT may be 2**63, which only a minus can make legal."""

    kind: TokenKind
    text: str
    offset: int
    value: str | int | float | None = None


# Whatever the text is, its tokens are all of it: the last alternative takes what has no meaning, and the end. What is
# met most comes first, so that a name is told from `r"..."` and a dot from `.5` by looking ahead.
_TOKEN = re.compile(
    r"""
    ([ \t\r\n]*+)
    (?:
        ((?![rR](?:"[^"\r\n]*"|'[^'\r\n]*'))[A-Za-z_][A-Za-z0-9_]*+)
      | (\.(?!\d)|[(),:\[\]{}+*/%?-]|&&|\|\||[=!<>]=|[<>!])
      | ([rR](?:"[^"\r\n]*"|'[^'\r\n]*')|"(?:[^"\\\r\n]|\\.)*"|'(?:[^'\\\r\n]|\\.)*')
      | ((?:\d+\.\d+|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (0[xX][0-9a-fA-F]+|\d+)
      | ([^ \t\r\n]|\Z)
    )
    """,
    re.VERBOSE,
)

_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL
)
_SIMPLE_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "`": "`",
    "?": "?",
}
_CODE_POINT_MAX = 0x10FFFF

# A character that people type from habit, and what stands for it here.
_HABITS = {"=": "==", "&": "&&", "|": "||", "\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'"}


def _fail(offset: int, message: str, hint: str | None = None) -> SyntaxProblem:
    return SyntaxProblem(Problem(Code.EXPRESSION_SYNTAX, offset, message, hint))


def tokenize(source: str) -> list[Token]:
    """Split `source` into tokens, the last of kind END. Raises SyntaxProblem."""
    tokens: list[Token] = []
    offset = 0
    for space, name, operator, string, double, integer, unknown in _TOKEN.findall(source):
        offset += len(space)
        if operator:
            tokens.append(Token(TokenKind.OPERATOR, operator, offset))
            offset += len(operator)
            continue
        if unknown:
            raise _unreadable(source, offset)
        if name:
            token = Token(TokenKind.NAME, name, offset)
        elif string:
            token = Token(TokenKind.STRING, string, offset, _string(string, offset))
        elif integer:
            token = Token(TokenKind.INT, integer, offset, _integer(integer, offset))
        elif double:
            token = Token(TokenKind.DOUBLE, double, offset, _double(double, offset))
        else:
            break
        if not space and tokens:
            _check_neighbours(tokens[-1], token)
        tokens.append(token)
        offset += len(token.text)
    tokens.append(Token(TokenKind.END, "", len(source)))
    return tokens


def _double(text: str, offset: int) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise SyntaxProblem(Problem(Code.NUMBER_RANGE, offset, f"{text[:40]} is too large for a double"))
    return value


def _check_neighbours(left: Token, right: Token) -> None:
    """Refuse `1u`, `12px`, `b"x"` and triple quotes, which would else read as two tokens side by side."""
    if left.kind in (TokenKind.INT, TokenKind.DOUBLE) and right.kind is TokenKind.NAME:
        if right.text in ("u", "U"):
            raise _fail(left.offset, "unsigned numbers are not part of the language", f"write {left.text}")
        raise _fail(left.offset, f"{left.text}{right.text} is neither a number nor a name")
    if right.kind is TokenKind.STRING:
        if left.kind is TokenKind.STRING:
            raise _fail(left.offset, "triple quotes are not part of the language", "use one quote and \\n")
        if left.kind is TokenKind.NAME and left.text.lower() in ("b", "br", "rb"):
            raise _fail(left.offset, "bytes are not part of the language")


def _integer(text: str, offset: int) -> int:
    # 2**63 passes here, because `-9223372036854775808` is a minus and this number; the parser refuses it elsewhere.
    value = int(text, 16) if text[:2].lower() == "0x" else int(text)
    if value > INT64_MAX + 1:
        raise SyntaxProblem(Problem(Code.NUMBER_RANGE, offset, f"{text[:40]} does not fit a 64-bit integer"))
    return value


def _string(text: str, offset: int) -> str:
    if text[0] in "rR":
        return text[2:-1]
    if "\\" not in text:
        return text[1:-1]
    parts: list[str] = []
    at = 1
    end = len(text) - 1
    while at < end:
        stop = text.find("\\", at, end)
        if stop < 0:
            parts.append(text[at:end])
            break
        parts.append(text[at:stop])
        match = _ESCAPE.match(text, stop, end)
        assert match is not None, "the token's pattern lets no string end in a backslash"
        parts.append(_escape(match.group(), offset + stop))
        at = match.end()
    return "".join(parts)


def _escape(text: str, offset: int) -> str:
    body = text[1:]
    if len(body) == 1:
        value = _SIMPLE_ESCAPES.get(body)
        if value is None:
            raise _fail(offset, f"\\{body} is not an escape", "write \\\\ for a backslash")
        return value
    number = int(body, 8) if body[0].isdigit() else int(body[1:], 16)
    if number > _CODE_POINT_MAX or 0xD800 <= number <= 0xDFFF:  # noqa: PLR2004  (the surrogates' range)
        raise _fail(offset, f"{text} is not a character")
    return chr(number)


def _unreadable(source: str, offset: int) -> SyntaxProblem:
    character = source[offset]
    if character in "\"'":
        return _fail(offset, "the text that begins here is not closed", f"close it with {character}")
    instead = _HABITS.get(character)
    hint = f"did you mean `{instead}`?" if instead else None
    if source.startswith("${", offset):
        return _fail(offset, "`${` has no place in here: all of this is one expression", "leave `${` and `}` out")
    return _fail(offset, f"{character!r} has no meaning here", hint)
