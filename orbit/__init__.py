"""Orbit: the foundation of both layers, and the public face (SDK and CLI).

User code imports this package only: `orbit.Client`, `orbit.Worker` and their types. The names are loaded when they are
first used, so that `import orbit` costs nothing and never pulls in a database driver or gevent.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# Public name → the module that defines it.
_PUBLIC: dict[str, str] = {
    "Client": "orbit.sdk.client",
    "Worker": "orbit.sdk.worker",
    "APIError": "orbit.sdk.errors",
    "OutcomeUnknown": "orbit.sdk.errors",
}

__all__ = ["__version__", *sorted(_PUBLIC)]  # noqa: PLE0604  (the names are data, see _PUBLIC)


def __getattr__(name: str) -> object:
    """Load a public name from its module on first use (PEP 562)."""
    module = _PUBLIC.get(name)
    if module is None:
        message = f"module 'orbit' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(module), name)
