"""All that a namespace knows, in memory and on disk, as something that can be compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Set
from typing import Any

from twinbus.broker.namespace import Namespace

TABLES = ("entity", "message", "body", "session", "seen", "rule", "aside", "next_number")
# Those through which a namespace reaches what is no memory of its own.
_OUTSIDE = frozenset(("_reader", "_writer", "health", "new_token", "on_change"))


def snapshot(namespace: Namespace) -> dict[str, Any]:
    """Whatever refers to whatever: each object once, by the path on which it was found first."""
    found: dict[str, Any] = {}
    _walk("namespace", namespace, found, {})
    for table in TABLES:
        found[table] = namespace.store.query(f"SELECT * FROM {table}")
    return found


def _walk(path: str, value: Any, found: dict[str, Any], seen: dict[int, str]) -> None:
    parts = _parts(value)
    if parts is None:
        found[path] = value
    elif id(value) in seen:
        found[path] = seen[id(value)]
    else:
        seen[id(value)] = path
        found[path] = type(value).__name__, len(parts)
        for name, part in parts:
            _walk(f"{path}.{name}", part, found, seen)


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """What a value is made of; None if it is to be compared as it is."""
    if isinstance(value, Mapping):
        return [(_name(key), each) for key, each in value.items()]
    if isinstance(value, list | tuple | deque):
        return list(enumerate(value))
    if isinstance(value, Set):
        return [(_name(each), None) for each in value]
    if not type(value).__module__.startswith("twinbus.broker"):
        return None
    kinds = type(value).__mro__
    names = [name for kind in kinds for name in getattr(kind, "__slots__", ())]
    names += getattr(value, "__dict__", {})
    kept = (name for name in names if name not in _OUTSIDE and hasattr(value, name))
    return [(name, getattr(value, name)) for name in kept]


def _name(key: Any) -> str:
    return getattr(key, "path", None) or repr(key)
