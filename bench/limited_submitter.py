"""Submits tasks as `bench.submitter` does, each with a concurrency key and a fairness key."""

from typing import Any

from bench.limits import FAIRNESS_KEYS, KEY_PREFIX, KEYS
from bench.submitter import main


def keys(n: int) -> dict[str, Any]:
    """Return the keys of the n-th task."""
    return {"concurrency_keys": [f"{KEY_PREFIX}{n % KEYS}"], "fairness_key": f"customer:{n % FAIRNESS_KEYS}"}


if __name__ == "__main__":
    main(keys)
