"""Regular expressions that can't stall a node: searched in time linear in the text, whatever the pattern.

A pattern becomes Glushkov's automaton: one position for each character of the pattern, and a search keeps the set of
positions that the text so far can stand at, as the bits of a number. Sets that were met before are remembered with what
each character makes of them, so common patterns cost a look-up a character (Cox, "Regular Expression Matching Can Be
Simple And Fast"). Backtracking, as in Python's own `re`, takes exponential time for patterns such as `(a+)+$`.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct, field

from orbit.schemas.pattern_syntax import Anchor, Chain, Characters, Choice, PatternError, Repeat, Tree, parse_pattern

POSITIONS_MAX = 1_024  # of one pattern, after its counted repetitions are written out
_REMEMBERED_MAX = 4_096

_Symbol = Characters | Anchor


class _Part(Struct):
    """What is known of a part of the pattern: can it be empty, where can it begin and end."""

    is_empty: bool
    first: int
    last: int


_NOTHING = _Part(is_empty=True, first=0, last=0)


class _Builder(Struct):
    symbols: list[_Symbol] = field(default_factory=list)
    follow: list[int] = field(default_factory=list)

    def build(self, tree: Tree) -> _Part:
        match tree:
            case Characters() | Anchor():
                if len(self.symbols) == POSITIONS_MAX:
                    message = f"the pattern is too long: written out, it may have {POSITIONS_MAX} characters"
                    raise PatternError(message)
                self.symbols.append(tree)
                self.follow.append(0)
                bit = 1 << (len(self.symbols) - 1)
                return _Part(is_empty=False, first=bit, last=bit)
            case Chain(parts=parts):
                whole = _NOTHING
                for part in parts:
                    whole = self._joined(whole, self.build(part))
                return whole
            case Choice(parts=parts):
                built = [self.build(part) for part in parts]
                either = _Part(is_empty=any(each.is_empty for each in built), first=0, last=0)
                for each in built:
                    either.first |= each.first
                    either.last |= each.last
                return either
            case Repeat():
                return self._repeated(tree)

    def _joined(self, left: _Part, right: _Part) -> _Part:
        self._link(left.last, right.first)
        return _Part(
            is_empty=left.is_empty and right.is_empty,
            first=left.first | (right.first if left.is_empty else 0),
            last=right.last | (left.last if right.is_empty else 0),
        )

    def _repeated(self, repeat: Repeat) -> _Part:
        whole = _NOTHING
        for _ in range(repeat.low):
            whole = self._joined(whole, self.build(repeat.part))
        if repeat.high is None:
            once = self.build(repeat.part)
            self._link(once.last, once.first)
            return self._joined(whole, _Part(is_empty=True, first=once.first, last=once.last))
        for _ in range(repeat.high - repeat.low):
            once = self.build(repeat.part)
            whole = self._joined(whole, _Part(is_empty=True, first=once.first, last=once.last))
        return whole

    def _link(self, sources: int, targets: int) -> None:
        for source in _bits(sources):
            self.follow[source] |= targets

    def anchors(self, *, is_start: bool) -> int:
        """Return the positions that are anchors to the text's start, or to its end."""
        return sum(1 << place for place, symbol in enumerate(self.symbols) if symbol == Anchor(is_start))

    def merge_anchors(self, last: int) -> int:
        """Let anchors of one kind that follow each other stand at the same place of the text."""
        for is_start in (True, False):
            same = self.anchors(is_start=is_start)
            steps = [(place, _bits(self.follow[place] & same)) for place in reversed(_bits(same))]
            grew = True
            while grew:  # what follows lies behind, except around repetitions: two or three turns do
                grew = False
                for place, others in steps:
                    before = self.follow[place]
                    for other in others:
                        self.follow[place] |= self.follow[other]
                    grew = grew or self.follow[place] != before
            ending = last & same
            last |= sum(1 << place for place, _ in steps if self.follow[place] & ending and not last >> place & 1)
        return last

    def is_met_by_nothing(self, first: int, last: int) -> bool:
        """Tell whether anchors alone lead through the pattern: the empty text's start is its end too."""
        anchors = self.anchors(is_start=True) | self.anchors(is_start=False)
        reached, new = 0, first & anchors
        while new:
            reached |= new
            after = 0
            for place in _bits(new):
                after |= self.follow[place]
            new = after & anchors & ~reached
        return bool(reached & last)


class Pattern:
    """A pattern that is ready to search. Kept and shared: what it remembers speeds up the next search."""

    def __init__(self, text: str) -> None:
        builder = _Builder()
        part = builder.build(parse_pattern(text))
        self._symbols = builder.symbols
        self._last = builder.merge_anchors(part.last)
        self._follow = builder.follow
        self._first = part.first
        self._is_empty = part.is_empty
        self._is_met_by_nothing = builder.is_met_by_nothing(part.first, part.last)
        self._start = builder.anchors(is_start=True)
        self._end = builder.anchors(is_start=False)
        self._fits: dict[str, int] = {}
        # What follows the positions of each byte of a set, by that byte; -1 is not computed yet.
        self._tables = [[-1] * 256 for _ in range((len(self._symbols) + 7) // 8)]
        self._moves: dict[tuple[int, str], int] = {}
        self._answered: tuple[str, bool] | None = None

    @property
    def positions(self) -> int:
        """Return how many positions the pattern has: what a search costs at worst, beside the text's length."""
        return len(self._symbols)

    def search(self, text: str) -> bool:
        """Tell whether the pattern matches somewhere in a text."""
        if self._is_empty:
            return True
        if not text:
            return self._is_met_by_nothing
        answered = self._answered
        if answered is not None and answered[0] == text:
            return answered[1]  # a schema may apply the same pattern to the same text many times
        found = self._search(text)
        self._answered = (text, found)
        return found

    def _search(self, text: str) -> bool:
        last, moves = self._last, self._moves
        state = self._first & self._start
        if state & last:
            return True
        for character in text:
            after = moves.get((state, character))
            if after is None:
                after = self._move(state, character)
            state = after
            if state & last:
                return True
        return bool(self._reached(state) & self._end & last)

    def _move(self, state: int, character: str) -> int:
        fits = self._fits.get(character)
        if fits is None:
            fits = self._fit(character)
        if len(self._moves) >= _REMEMBERED_MAX:
            self._moves.clear()
        after = self._moves[state, character] = self._reached(state) & fits
        return after

    def _fit(self, character: str) -> int:
        if len(self._fits) >= _REMEMBERED_MAX:
            self._fits.clear()
        code = ord(character)
        fits = 0
        for place, symbol in enumerate(self._symbols):
            if isinstance(symbol, Characters):
                inside = any(low <= code <= high for low, high in symbol.ranges)
                fits |= (inside is not symbol.negated) << place
        self._fits[character] = fits
        return fits

    def _reached(self, state: int) -> int:
        """Return the positions that can come next; a match may begin anywhere, so the first ones always can."""
        reached = self._first
        tables = self._tables
        for chunk, part in enumerate(state.to_bytes(len(tables), "little")):
            if part:
                found = tables[chunk][part]
                reached |= found if found >= 0 else self._fill(chunk, part)
        return reached

    def _fill(self, chunk: int, part: int) -> int:
        found = 0
        for bit in _bits(part):
            found |= self._follow[chunk * 8 + bit]
        self._tables[chunk][part] = found
        return found


def _bits(number: int) -> list[int]:
    found = []
    while number:
        low = number & -number
        found.append(low.bit_length() - 1)
        number ^= low
    return found


@lru_cache(maxsize=512)
def pattern(text: str) -> Pattern:
    """Return a pattern, made once. Raises PatternError."""
    return Pattern(text)
