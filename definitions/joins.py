"""Pure rules over the lanes of a parallel block: their order, what is certain in each, and whether a join can be kept.

A lane of a dependency graph is one step. It runs if one lane that it needs is done and none has failed, and is skipped
if all of them are; so what is certain where it runs follows from its needs alone. Failures are no paths here: they are
what a join's policy is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Needs = Mapping[str, tuple[str, ...]]


def in_order(needs: Needs) -> list[str]:
    """Sort lanes so that each comes behind what it needs, otherwise as written; those on a cycle are left out."""
    placed: dict[str, None] = {}
    waiting = list(needs)
    while True:
        ready = next((label for label in waiting if all(need in placed for need in needs[label])), None)
        if ready is None:
            return list(placed)
        placed[ready] = None
        waiting.remove(ready)


def cycle_of(needs: Needs) -> list[str] | None:
    """Find a cycle of needs, each label followed by one that it needs, the first repeated at the end; None if none."""
    left = needs.keys() - set(in_order(needs))
    if not left:
        return None
    at = next(label for label in needs if label in left)
    walked: list[str] = []
    while at not in walked:
        walked.append(at)
        at = next(need for need in needs[at] if need in left)
    return [*walked[walked.index(at) :], at]


def ancestors_of(needs: Needs) -> dict[str, frozenset[str]]:
    """List for each lane all that have ended before it starts; the needs have no cycle."""
    found: dict[str, frozenset[str]] = {}
    for label in in_order(needs):
        found[label] = frozenset(needs[label]).union(*(found[need] for need in needs[label]))
    return found


def certain_at(needs: Needs, conditional: frozenset[str]) -> dict[str, frozenset[str]]:
    """Say for each lane which others have certainly run where it runs; `conditional` ones have a `when` of their own.

    One of its needs is done, so what all its needs have in common is certain. From there it goes on: an ancestor
    without a condition has run if one that it needs has, and nothing behind a failure would run at all.
    """
    ancestors = ancestors_of(needs)
    ordered = {label: needs[label] for label in ancestors}
    found: dict[str, frozenset[str]] = {}
    for label in ordered:
        common = [found[need] | {need} for need in needs[label]]
        start = frozenset.intersection(*common) if common else frozenset[str]()
        found[label] = _spread(ordered, conditional, start, among=ancestors[label])
    return found


def certain_after(needs: Needs, conditional: frozenset[str]) -> frozenset[str]:
    """List the lanes that no condition can make skipped."""
    ordered = {label: needs[label] for label in in_order(needs)}
    return _spread(ordered, conditional, frozenset(), among=frozenset(needs))


def _spread(
    ordered: Needs, conditional: frozenset[str], certain: frozenset[str], *, among: frozenset[str]
) -> frozenset[str]:
    """Add those among some lanes that run because of what is certain."""
    found = set(certain)
    for label, needed in ordered.items():
        is_free = label in among and label not in conditional
        if is_free and (not needed or any(need in found for need in needed)):
            found.add(label)
    return frozenset(found)


def longest(needs: Needs, seconds: Mapping[str, float]) -> float:
    """Return the longest time of a way through the needs."""
    ends: dict[str, float] = {}
    for label in in_order(needs):
        ends[label] = seconds[label] + max((ends[need] for need in needs[label]), default=0.0)
    return max(ends.values(), default=0.0)


def widest(needs: Needs, weights: Mapping[str, int]) -> int:
    """Return the largest sum of weights of lanes that can run at once: no one is among another's ancestors.

    Dilworth's theorem with weights: it is what is left of the whole sum after the largest flow from lanes to their
    ancestors, each lane giving and taking its weight at most.
    """
    if not any(needs.values()):
        return sum(weights.values())
    ancestors = ancestors_of(needs)
    gives, takes = dict(weights), dict(weights)
    flow: dict[tuple[str, str], int] = {}
    total = 0
    while True:
        path = _augmenting(ancestors, gives, takes, flow)
        if path is None:
            return sum(weights.values()) - total
        room = min(gives[path[0]], takes[path[-1]], *(flow[pair] for pair in _given_back(path)))
        gives[path[0]] -= room
        takes[path[-1]] -= room
        for giver, taker in zip(path[::2], path[1::2], strict=True):
            flow[giver, taker] = flow.get((giver, taker), 0) + room
        for pair in _given_back(path):
            flow[pair] -= room
        total += room


def _given_back(path: Sequence[str]) -> list[tuple[str, str]]:
    """List the pairs whose flow a path turns back: from a taker to the giver that now gives to the next."""
    return list(zip(path[2::2], path[1::2], strict=False))


def _augmenting(
    ancestors: Mapping[str, frozenset[str]],
    gives: Mapping[str, int],
    takes: Mapping[str, int],
    flow: Mapping[tuple[str, str], int],
) -> list[str] | None:
    """Find a way for more flow: giver, taker, giver, taker ...; a step from a taker to a giver turns flow back."""
    todo = [[giver] for giver, room in gives.items() if room > 0]
    seen_givers = {path[0] for path in todo}
    seen_takers: set[str] = set()
    for path in todo:  # grows while it is walked: breadth first
        for taker in sorted(ancestors[path[-1]] - seen_takers):
            seen_takers.add(taker)
            if takes[taker] > 0:
                return [*path, taker]
            back = [giver for (giver, to), amount in flow.items() if to == taker and amount > 0]
            for giver in back:
                if giver not in seen_givers:
                    seen_givers.add(giver)
                    todo.append([*path, taker, giver])
    return None
