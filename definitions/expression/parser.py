"""Tokens to a syntax tree, by CEL's grammar and precedence. Raises SyntaxProblem at the first mistake.

Depth and size are limited here, so that nothing after the parser can meet a tree that is too large for recursion.
"""

from __future__ import annotations

from definitions.codes import Code
from definitions.expression.errors import Problem, SyntaxProblem
from definitions.expression.lexer import Token, TokenKind, tokenize
from definitions.expression.syntax import (
    Binary,
    Call,
    Conditional,
    Index,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    Name,
    Node,
    Select,
    Unary,
)
from definitions.limits import (
    EXPRESSION_CHARACTERS_MAX,
    EXPRESSION_DEPTH_MAX,
    EXPRESSION_NODES_MAX,
    INT64_MAX,
    INT64_MIN,
)

_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_PRECEDENCES = {
    "||": 1,
    "&&": 2,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
_LOGIC = frozenset({"||", "&&"})

# CEL keeps these for itself; as names of fields after a dot they are fine.
RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
KEYWORDS = frozenset({"true", "false", "null", "in"})

# What people write from other languages, and what it is called here.
_FOREIGN = {"and": "&&", "or": "||", "not": "!", "is": "==", "None": "null", "True": "true", "False": "false"}


def parse(source: str) -> Node:
    """Parse an expression. Raises SyntaxProblem."""
    if len(source) > EXPRESSION_CHARACTERS_MAX:
        message = f"an expression may have {EXPRESSION_CHARACTERS_MAX} characters, this one has {len(source)}"
        raise SyntaxProblem(Problem(Code.EXPRESSION_TOO_LONG, 0, message))
    return _Parser(tokenize(source)).parse()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._peek = tokens[0]  # the token at that place
        self._nodes = 0
        self._depth = 0

    def parse(self) -> Node:
        if self._at_end():
            raise self._unexpected("an expression")
        node = self._expression()
        if not self._at_end():
            raise self._unexpected("an operator or the end")
        return node

    def _at_end(self) -> bool:
        return self._peek.kind is TokenKind.END

    def _next(self) -> Token:
        token = self._peek
        self._at += 1
        self._peek = self._tokens[self._at]
        return token

    def _is(self, text: str) -> bool:
        # A literal's text has its quotes or digits, so no literal is taken for an operator.
        return self._peek.text == text

    def _expect(self, text: str) -> Token:
        if not self._is(text):
            raise self._unexpected(f"`{text}`")
        return self._next()

    def _unexpected(self, wanted: str) -> SyntaxProblem:
        token = self._peek
        found = TokenKind.END.value if token.kind is TokenKind.END else f"`{token.text[:40]}`"
        # `not x` reads as two names: the first is the foreign one.
        before = self._tokens[self._at - 1] if self._at else token
        foreign = _FOREIGN.get(token.text) or ("!" if before.text == "not" else None)
        hint = f"write `{foreign}`" if foreign else None
        return SyntaxProblem(Problem(Code.EXPRESSION_SYNTAX, token.offset, f"expected {wanted}, found {found}", hint))

    def _made(self, node: Node) -> Node:
        self._nodes += 1
        if self._nodes > EXPRESSION_NODES_MAX:
            message = f"an expression may have {EXPRESSION_NODES_MAX} parts"
            raise SyntaxProblem(Problem(Code.EXPRESSION_TOO_COMPLEX, node.offset, message))
        return node

    def _deeper(self, offset: int) -> None:
        self._depth += 1
        if self._depth > EXPRESSION_DEPTH_MAX:
            message = f"an expression may be nested {EXPRESSION_DEPTH_MAX} levels deep"
            raise SyntaxProblem(Problem(Code.EXPRESSION_TOO_COMPLEX, offset, message))

    def _expression(self) -> Node:
        self._deeper(self._peek.offset)
        condition = self._operation(1)
        if self._is("?"):
            offset = self._next().offset
            then = self._operation(1)
            self._expect(":")
            condition = self._made(Conditional(condition, then, self._expression(), offset))
        self._depth -= 1
        return condition

    def _operation(self, level: int) -> Node:
        """Parse operators that bind at least as tightly as `level`; all of them group from the left."""
        left = self._unary()
        depth = self._depth
        while True:
            token = self._peek
            precedence = _PRECEDENCES.get(token.text, 0)
            if precedence < level or precedence == 0:
                self._depth = depth
                return left
            if token.text in _LOGIC:
                left = self._chain(left, token)
                continue
            self._next()
            self._deeper(token.offset)
            left = self._made(Binary(token.text, left, self._operation(precedence + 1), token.offset))

    def _chain(self, first: Node, token: Token) -> Node:
        operands = [first]
        while self._is(token.text):
            self._next()
            operands.append(self._operation(_PRECEDENCES[token.text] + 1))
        return self._made(Logic(token.text, tuple(operands), token.offset))

    def _unary(self) -> Node:
        if self._peek.text not in ("!", "-"):
            return self._member()
        token = self._next()
        if token.text == "-" and self._peek.kind is TokenKind.INT:
            # The sign belongs to the number: -9223372036854775808 is a legal integer, its absolute value is not.
            number = self._next()
            literal = self._made(self._integer(number, -int(number.value or 0), token.offset))
            return self._suffixes(literal)
        self._deeper(token.offset)
        node = self._made(Unary(token.text, self._unary(), token.offset))
        self._depth -= 1
        return node

    def _integer(self, token: Token, value: int, offset: int) -> Node:
        if not INT64_MIN <= value <= INT64_MAX:
            message = f"{token.text} does not fit a 64-bit integer"
            raise SyntaxProblem(Problem(Code.NUMBER_RANGE, offset, message))
        return Literal(value, offset)

    def _member(self) -> Node:
        return self._suffixes(self._primary())

    def _suffixes(self, node: Node) -> Node:
        depth = self._depth
        while self._peek.text in (".", "["):
            opening = self._next()
            self._deeper(opening.offset)
            if opening.text == "[":
                index = self._expression()
                self._expect("]")
                node = self._made(Index(node, index, opening.offset))
                continue
            field = self._peek
            if field.kind is not TokenKind.NAME or field.text in KEYWORDS:
                raise self._unexpected("the name of a field")
            self._next()
            if self._is("("):
                node = self._made(Call(field.text, node, self._arguments(), field.offset))
            else:
                node = self._made(Select(node, field.text, field.offset))
        self._depth = depth
        return node

    def _arguments(self) -> tuple[Node, ...]:
        self._expect("(")
        return self._list_until(")")

    def _list_until(self, closing: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._is(closing):
            items.append(self._expression())
            if not self._is(","):
                break
            self._next()
        if not self._is(closing):
            raise self._unexpected(f"`,` or `{closing}`")
        self._next()
        return tuple(items)

    def _primary(self) -> Node:
        token = self._peek
        match token.kind:
            case TokenKind.NAME:
                return self._name()
            case TokenKind.INT:
                self._next()
                return self._made(self._integer(token, int(token.value or 0), token.offset))
            case TokenKind.DOUBLE | TokenKind.STRING:
                self._next()
                return self._made(Literal(token.value, token.offset))
            case TokenKind.OPERATOR if token.text == "(":
                self._next()
                node = self._expression()
                self._expect(")")
                return node
            case TokenKind.OPERATOR if token.text == "[":
                self._next()
                return self._made(ListLiteral(self._list_until("]"), token.offset))
            case TokenKind.OPERATOR if token.text == "{":
                return self._map()
            case _:
                raise self._unexpected("a value")

    def _name(self) -> Node:
        token = self._peek
        if token.text in _CONSTANTS:
            self._next()
            return self._made(Literal(_CONSTANTS[token.text], token.offset))
        if token.text in KEYWORDS or token.text in RESERVED:
            raise self._unexpected("a value")
        self._next()
        if self._is("("):
            return self._made(Call(token.text, None, self._arguments(), token.offset))
        return self._made(Name(token.text, token.offset))

    def _map(self) -> Node:
        opening = self._expect("{")
        entries: list[tuple[Node, Node]] = []
        while not self._is("}"):
            key = self._expression()
            self._expect(":")
            entries.append((key, self._expression()))
            if not self._is(","):
                break
            self._next()
        if not self._is("}"):
            raise self._unexpected("`,` or `}`")
        self._next()
        return self._made(MapLiteral(tuple(entries), opening.offset))
