"""What can be said of an expression before it runs: names, types, certainty of references, cost.

The checker follows what conditions prove: in `has(input.x) && input.x > 3` the second half may use `input.x`. Without
an environment (a graph that is loaded again) only the shape is checked, since publishing has checked the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from msgspec import Struct, field

from definitions.advice import other_type
from definitions.codes import Code
from definitions.expression.errors import Problem
from definitions.expression.functions import FUNCTIONS, MACROS, NEVER, Function
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
    path_of,
)
from definitions.expression.types import (
    BOOL,
    DOUBLE,
    DYN,
    INT,
    NUMERIC,
    STRING,
    Kind,
    Type,
    join,
    may_equal,
    of_value,
)
from definitions.hints import did_you_mean
from definitions.limits import EXPRESSION_COST_MAX

Path = tuple[str, ...]
Paths = frozenset[Path]
NOTHING: Paths = frozenset()

_STEP_PATH = 3  # steps.<id>.output
_NAMES_SHOWN = 10
_REPORTED = Type(Kind.DYN)  # of a part of what has its finding already
_SIZED_COST = 10  # of an operation whose work grows with its values


class StepFacts(Struct, frozen=True):
    """What is known of a step at the place of an expression. `uncertain` says why it may have no output, if so."""

    output: Type | None  # None: steps of this kind have no output
    uncertain: str | None
    guardable: bool = True  # False: it never has one here, or only by chance of order, so that no guard can help


class Environment(Struct, frozen=True):
    """The place of an expression: which roots it has, what they are, which steps it may read, what is proven."""

    roots: Mapping[str, Type]
    later_roots: Mapping[str, str] = field(default_factory=dict)  # names that exist elsewhere, and where
    step: Callable[[str], StepFacts | None] | None = None  # None: this place has no `steps`
    step_names: Callable[[], Iterable[str]] = tuple
    known: Paths = NOTHING
    is_strict: bool = False  # what no schema declares is a mistake, and not looked at when it is evaluated


class Report(Struct):
    """The outcome of a check."""

    type: Type
    problems: list[Problem]
    step_references: frozenset[str]
    cost: int
    proves: Paths
    refutes: Paths


def check(tree: Node, environment: Environment | None) -> Report:
    """Check a whole expression."""
    checker = _Checker(environment)
    known = environment.known if environment else NOTHING
    result = checker.check(tree, known)
    if checker.cost > EXPRESSION_COST_MAX:
        message = f"the expression costs up to {checker.cost} operations, {EXPRESSION_COST_MAX} are allowed"
        checker.problem(Code.EXPRESSION_TOO_COMPLEX, tree, message)
    return Report(
        type=result,
        problems=sorted(checker.problems, key=lambda problem: problem.offset) if checker.problems else [],
        step_references=frozenset(checker.references),
        cost=checker.cost,
        proves=proven(tree, outcome=True),
        refutes=proven(tree, outcome=False),
    )


def proven(node: Node, *, outcome: bool) -> Paths:
    """Return the paths that certainly exist once `node` gave `outcome`."""
    if not isinstance(node, (Call, Logic, Unary)):  # most of what is asked about
        return NOTHING
    match node:
        case Call(function="has", target=None, arguments=(argument,)) if outcome:
            path = path_of(argument)
            return frozenset(path[: end + 1] for end in range(1, len(path))) if path else NOTHING
        case Unary(operator="!", operand=operand):
            return proven(operand, outcome=not outcome)
        case Logic(operator=operator, operands=operands):
            parts = [proven(operand, outcome=outcome) for operand in operands]
            # `a && b` was true: both were. `a || b` was false: both were. Else only what all have in common is sure.
            every = (operator == "&&") is outcome
            return NOTHING.union(*parts) if every else parts[0].intersection(*parts[1:])
        case _:
            return NOTHING


class _Checker:
    def __init__(self, environment: Environment | None) -> None:
        self._environment = environment
        self.problems: list[Problem] = []
        self.references: set[str] = set()
        self.cost = 0

    def problem(self, code: Code, node: Node, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(code, node.offset, message, hint))

    def check(self, node: Node, known: Paths, *, lenient: bool = False) -> Type:
        """Return the type of `node`. `lenient`: inside has() or default(), where absence is no mistake."""
        match node:  # the kinds that are met most come first
            case Select(operand=operand, field=name):
                self.cost += 1
                return self._member(node, operand, name, known, lenient=lenient)
            case Name():
                return self._name(node)
            case Literal(value=value):
                return of_value(value)
            case Index():
                self.cost += 1
                return self._index(node, known, lenient=lenient)
            case Call():
                return self._call(node, known)
            case Unary():
                self.cost += 1
                return self._unary(node, known)
            case Binary():
                return self._binary(node, known)
            case Logic():
                return self._logic(node, known)
            case Conditional():
                return self._conditional(node, known)
            case ListLiteral(items=items):
                self.cost += len(items) + 1
                return Type(Kind.LIST, items=join([self.check(item, known) for item in items]))
            case MapLiteral():
                return self._map(node, known)

    # Names and paths

    def _name(self, node: Name) -> Type:
        self.cost += 1
        name = node.name
        if name == "steps" and (self._environment is None or self._environment.step is not None):
            self.problem(Code.REFERENCE_FORM, node, "a step's result is read as `steps.<id>.output`")
            return DYN
        if self._environment is None:
            return DYN
        found = self._environment.roots.get(name)
        if found is not None:
            return found
        place = "steps" if name == "steps" else self._environment.later_roots.get(name)
        if place is not None:
            message = f"`{name}` has no value here" if name == "steps" else f"`{name}` has no value here, only {place}"
            self.problem(Code.UNKNOWN_NAME, node, message)
            return DYN
        names = [*self._environment.roots, *(["steps"] if self._environment.step else [])]
        hint = did_you_mean(name, names)
        if hint is None and self._environment.step and self._environment.step(name):
            hint = f"did you mean `steps.{name}.output`?"
        message = f"there is no `{name}` here; there is {', '.join(f'`{other}`' for other in names)}"
        self.problem(Code.UNKNOWN_NAME, node, message, hint)
        return DYN

    def _member(self, node: Node, operand: Node, name: str, known: Paths, *, lenient: bool) -> Type:
        path = path_of(node)
        if path is not None and path[0] == "steps" and len(path) <= _STEP_PATH and self._has_steps():
            return self._step(node, path, known, lenient=lenient)
        owner = self.check(operand, known, lenient=lenient)
        match owner.kind:
            case Kind.DYN:
                return self._undeclared(node, owner, name, lenient=lenient or (path is not None and path in known))
            case Kind.MAP:
                return self._field(node, owner, name, lenient=lenient or (path is not None and path in known))
            case _:
                is_sized = owner.kind in {Kind.LIST, Kind.STRING} and name in {"length", "size", "count", "len"}
                hint = "write `size(...)` around it" if is_sized else "take the value itself"
                self.problem(Code.TYPE_MISMATCH, node, f"{owner} has no field `{name}`", hint)
                return DYN

    def _has_steps(self) -> bool:
        return self._environment is None or self._environment.step is not None

    def _step(self, node: Node, path: Path, known: Paths, *, lenient: bool) -> Type:
        if len(path) < _STEP_PATH or path[2] != "output":
            step = path[1]
            message = f"`steps.{step}` has one field to read: `output`"
            self.problem(Code.REFERENCE_FORM, node, message, f"write `steps.{step}.output`")
            return DYN
        self.cost += 2
        step = path[1]
        self.references.add(step)
        if self._environment is None or self._environment.step is None:
            return DYN
        facts = self._environment.step(step)
        if facts is None:
            hint = did_you_mean(step, self._environment.step_names(), "steps.{}.output")
            if hint is None:
                steps = ", ".join(f"`{name}`" for name in islice(self._environment.step_names(), _NAMES_SHOWN))
                hint = f"there is {steps}"
            self.problem(Code.UNKNOWN_STEP, _step_name(node), f"there is no step `{step}`", hint)
            return DYN
        if facts.output is None:
            message = f"step `{step}` has no output here"
            hint = "tasks, polls, `set`, `foreach`, waits for a signal and child workflows with an output have one"
            self.problem(Code.STEP_WITHOUT_OUTPUT, _step_name(node), message, hint)
            return DYN
        if facts.uncertain is not None and not facts.guardable:
            message = f"step `{step}` can't be read here: {facts.uncertain}"
            self.problem(Code.UNCERTAIN_REFERENCE, _step_name(node), message)
        elif facts.uncertain is not None and not lenient and path not in known:
            hint = f"guard it: `default(steps.{step}.output, null)` or `has(steps.{step}.output) && ...`"
            message = f"step `{step}` may have no output here: {facts.uncertain}"
            self.problem(Code.UNCERTAIN_REFERENCE, _step_name(node), message, hint)
        return facts.output

    def _field(self, node: Node, owner: Type, name: str, *, lenient: bool) -> Type:
        found = owner.fields.get(name)
        if found is None:
            if not owner.closed:
                return self._undeclared(node, owner, name, lenient=lenient)
            known = ", ".join(f"`{other}`" for other in owner.fields) or "no field"
            message = f"there is no field `{name}`; the schema has {known[:200]}"
            self.problem(Code.UNKNOWN_FIELD, node, message, did_you_mean(name, owner.fields))
            return DYN
        if name not in owner.required and not lenient:
            message = f"the field `{name}` is optional in its schema and may be absent"
            self.problem(Code.OPTIONAL_FIELD, node, message, "use has() or default(), or list it in `required`")
        return found

    def _undeclared(self, node: Node, owner: Type, name: str, *, lenient: bool) -> Type:
        """Take a field that no schema declares; where that is a mistake, once for all that is read in it."""
        if owner is _REPORTED or lenient or self._environment is None or not self._environment.is_strict:
            return owner if owner is _REPORTED else DYN
        message = f"no schema declares a field `{name[:80]}` here, so it may be missing when this is evaluated"
        hint = "declare it in the schema of the input, the step's `output` or the `payload`, or guard it with default()"
        self.problem(Code.UNDECLARED_FIELD, node, message, hint)
        return _REPORTED

    def _index(self, node: Index, known: Paths, *, lenient: bool) -> Type:
        if isinstance(node.index, Literal) and isinstance(node.index.value, str):
            return self._member(node, node.operand, node.index.value, known, lenient=lenient)
        owner = self.check(node.operand, known, lenient=lenient)
        key = self.check(node.index, known)
        match owner.kind:
            case Kind.LIST:
                self._expect(node.index, key, frozenset({Kind.INT, Kind.NUMBER}), "the index of a list")
                return owner.items or DYN
            case Kind.MAP:
                self._expect(node.index, key, frozenset({Kind.STRING}), "the key of an object")
                return DYN
            case Kind.DYN:
                self._expect(node.index, key, frozenset({Kind.INT, Kind.NUMBER, Kind.STRING}), "an index")
                return DYN
            case _:
                self.problem(Code.TYPE_MISMATCH, node, f"{owner} can't be indexed")
                return DYN

    def _expect(self, node: Node, found: Type, wanted: frozenset[Kind], what: str) -> bool:
        if found.kind is Kind.DYN or found.kind in wanted:
            return True
        names = " or ".join(sorted(kind.value for kind in wanted if kind is not Kind.NUMBER))
        self.problem(Code.TYPE_MISMATCH, node, f"{what} must be {names}, not {found}")
        return False

    # Calls

    def _call(self, node: Call, known: Paths) -> Type:
        if node.target is None and node.function in MACROS:
            return self._macro(node, known)
        function = FUNCTIONS.get(node.function)
        if function is None or not (function.method if node.target else function.plain):
            self._unknown_function(node, function)
            for argument in node.arguments:
                if function is not None:
                    self.check(argument, known)
            return DYN
        self.cost += function.cost
        arguments = ((node.target,) if node.target else ()) + node.arguments
        if len(arguments) != len(function.parameters):
            wanted = len(function.parameters) - (1 if node.target else 0)
            message = f"{node.function}() takes {wanted} argument(s), not {len(node.arguments)}"
            self.problem(Code.WRONG_ARGUMENTS, node, message)
            return function.result
        for argument, wanted_kinds in zip(arguments, function.parameters, strict=True):
            found = self.check(argument, known)
            self._expect(argument, found, wanted_kinds, f"what {node.function}() takes")
        return function.result

    def _unknown_function(self, node: Call, function: Function | None) -> None:
        name = node.function
        if function is not None:
            form = f"x.{name}(...)" if function.method else f"{name}(x)"
            self.problem(Code.UNKNOWN_FUNCTION, node, f"{name}() is written differently", f"write `{form}`")
        elif name in NEVER:
            self.problem(Code.UNKNOWN_FUNCTION, node, f"there is no {name}(): {NEVER[name]}")
        else:
            hint = did_you_mean(name, [*FUNCTIONS, *MACROS], "{}()")
            self.problem(Code.UNKNOWN_FUNCTION, node, f"there is no function {name}()", hint)

    def _macro(self, node: Call, known: Paths) -> Type:
        wanted = 1 if node.function == "has" else 2
        if len(node.arguments) != wanted:
            message = f"{node.function}() takes {wanted} argument(s), not {len(node.arguments)}"
            self.problem(Code.WRONG_ARGUMENTS, node, message)
            return DYN
        self.cost += 1
        path = node.arguments[0]
        if not isinstance(path, (Select, Index)):
            message = f"{node.function}() asks whether a field exists, such as `input.note`"
            self.problem(Code.WRONG_ARGUMENTS, path, message)
            return DYN
        if node.function == "has" and not isinstance(path, Select):
            self.problem(Code.WRONG_ARGUMENTS, path, "has() takes a field written with a dot")
            return BOOL
        found = self.check(path, known, lenient=True)
        if node.function == "has":
            return BOOL
        return join([found, self.check(node.arguments[1], known)])

    # Operators

    def _unary(self, node: Unary, known: Paths) -> Type:
        found = self.check(node.operand, known)
        if node.operator == "!":
            self._expect(node.operand, found, frozenset({Kind.BOOL}), "what `!` takes")
            return BOOL
        self._expect(node.operand, found, NUMERIC, "what `-` takes")
        return found

    def _logic(self, node: Logic, known: Paths) -> Type:
        self.cost += len(node.operands) - 1
        for operand in node.operands:
            found = self.check(operand, known)
            self._expect(operand, found, frozenset({Kind.BOOL}), f"what `{node.operator}` takes")
            known |= proven(operand, outcome=node.operator == "&&")
        return BOOL

    def _conditional(self, node: Conditional, known: Paths) -> Type:
        self.cost += 1
        found = self.check(node.condition, known)
        self._expect(node.condition, found, frozenset({Kind.BOOL}), "the condition before `?`")
        then = self.check(node.then, known | proven(node.condition, outcome=True))
        otherwise = self.check(node.otherwise, known | proven(node.condition, outcome=False))
        return join([then, otherwise])

    def _map(self, node: MapLiteral, known: Paths) -> Type:
        self.cost += len(node.entries) + 1
        fields: dict[str, Type] = {}
        open_ended = False
        for key, value in node.entries:
            found = self.check(key, known)
            self._expect(key, found, frozenset({Kind.STRING}), "the key of an object")
            held = self.check(value, known)
            if isinstance(key, Literal) and isinstance(key.value, str):
                fields[key.value] = held
            else:
                open_ended = True
        return Type(Kind.MAP, fields=fields, required=frozenset(fields), closed=not open_ended)

    def _binary(self, node: Binary, known: Paths) -> Type:
        left, right = self.check(node.left, known), self.check(node.right, known)
        match node.operator:
            case "==" | "!=":
                self.cost += _SIZED_COST
                if not may_equal(left, right):
                    message = f"{left} and {right} are never equal"
                    self.problem(Code.TYPE_MISMATCH, node, message, _type_hint(node, left, right))
                return BOOL
            case "<" | "<=" | ">" | ">=":
                self.cost += 1
                self._check_order(node, left, right)
                return BOOL
            case "in":
                self.cost += _SIZED_COST
                self._check_in(node, left, right)
                return BOOL
            case _:
                self.cost += _SIZED_COST if node.operator == "+" else 1
                return self._arithmetic(node, left, right)

    def _check_order(self, node: Binary, left: Type, right: Type) -> None:
        orderable = NUMERIC | {Kind.STRING, Kind.BOOL, Kind.DYN}
        both = {left.kind, right.kind}
        fits = both <= orderable and (Kind.DYN in both or len(both) == 1 or both <= NUMERIC)
        if not fits:
            message = f"`{node.operator}` does not compare {left} with {right}"
            self.problem(Code.TYPE_MISMATCH, node, message, _type_hint(node, left, right))

    def _check_in(self, node: Binary, left: Type, right: Type) -> None:
        if not self._expect(node.right, right, frozenset({Kind.LIST, Kind.MAP}), "what stands after `in`"):
            return
        if right.kind is Kind.MAP:
            self._expect(node.left, left, frozenset({Kind.STRING}), "the key of an object")
        elif right.items is not None and not may_equal(left, right.items):
            self.problem(Code.TYPE_MISMATCH, node, f"{left} is never an item of a {right}")

    def _arithmetic(self, node: Binary, left: Type, right: Type) -> Type:
        takes = {Kind.INT} if node.operator == "%" else {Kind.INT, Kind.DOUBLE}
        if node.operator == "+":
            takes |= {Kind.STRING, Kind.LIST}
        kinds = [side.kind for side in (left, right) if side.kind is not Kind.DYN]
        if Kind.NUMBER in kinds or set(kinds) == {Kind.INT, Kind.DOUBLE}:
            message = f"`{node.operator}` takes two int or two double, not {left} and {right}"
            self.problem(Code.TYPE_MISMATCH, node, message, "convert with double(...) or int(...)")
            return DYN
        if not set(kinds) <= takes or len(set(kinds)) > 1:
            message = f"`{node.operator}` does not take {left} and {right}"
            hint = "convert with string(...)" if node.operator == "+" and Kind.STRING in kinds else None
            self.problem(Code.TYPE_MISMATCH, node, message, hint)
            return DYN
        if not kinds:
            return DYN
        match kinds[0]:
            case Kind.INT:
                return INT
            case Kind.DOUBLE:
                return DOUBLE
            case Kind.STRING:
                return STRING
            case _:
                return Type(Kind.LIST, items=join([side.items or DYN for side in (left, right)]))


def _type_hint(node: Binary, left: Type, right: Type) -> str:
    """Say how the two sides can be compared: by what was written down on one of them, or by a conversion."""
    for side, other in ((node.left, right), (node.right, left)):
        if isinstance(side, Literal):
            return other_type(side.value, is_number_wanted=other.kind in NUMERIC)
    return other_type(None, is_number_wanted=False)


def _step_name(node: Node) -> Node:
    """Return the node whose offset is that of the step's id in `steps.<id>.output`."""
    return node.operand if isinstance(node, (Select, Index)) else node
