"""Reads what a `foreach` says: the list, its bounds, the steps of an item and what each leaves."""

from __future__ import annotations

from collections.abc import Callable

from definitions import limits
from definitions.fields import Fields
from definitions.model import ForeachModel, StepModel
from definitions.yaml_tree import YamlNode


def read_foreach(fields: Fields, read_list: Callable[[YamlNode | None, str], tuple[StepModel, ...]]) -> ForeachModel:
    """Read the mapping behind `foreach`; `read_list` reads a list of steps and names it in messages."""
    concurrency = fields.integer("concurrency", limits.ITEM_CONCURRENCY_MIN, limits.ITEM_CONCURRENCY_MAX)
    return ForeachModel(
        items=fields.scalar_of("items", required=True),
        max_items=fields.integer("max_items", limits.ITEMS_MIN, limits.ITEMS_MAX, required=True),
        concurrency=limits.ITEM_CONCURRENCY_DEFAULT if concurrency is None else concurrency,
        steps=read_list(fields.node("steps", required=True), "`steps`"),
        output=fields.node("output"),
        has_output=fields.has("output"),
    )
