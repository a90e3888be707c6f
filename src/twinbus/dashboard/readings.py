"""What a namespace says of itself at ``/metrics`` and ``/$faults``, read. Pure.

Somebody else may be at that address, or a broker in trouble. Whatever is not a namespace's whole
answer, with numbers that are possible, is an `UnreadableError`: half an answer would look like a
smaller namespace that is well. That is why it is read here: prometheus-client's parser, which no
extra needs otherwise, takes any metrics and any number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from twinbus.accounts.attribution import home_of

_LINE: Final = re.compile(r"twinbus_(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_TRANSFER: Final = "/x-servicebus-transfer/"

# The last two lines of a broker's page, so an answer that has them is whole.
_LAST: Final = ("connections", "links")
MOST: Final = 2.0**53  # messages, bytes or seconds that any namespace will have

Numbers = dict[str, float]


class UnreadableError(Exception):
    """It answers, and what it says is not what a namespace says."""


@dataclass(frozen=True, slots=True)
class Reading:
    """``entities`` has each one's numbers by their names, without ``twinbus_``."""

    at: float
    entities: dict[str, Numbers] = field(default_factory=dict)
    connections: int = 0
    links: int = 0

    @property
    def backlog(self) -> dict[str, Numbers]:
        return {path: found for path, found in self.entities.items() if is_backlog(path)}

    @property
    def sent_to(self) -> dict[str, Numbers]:
        """Queues and topics that applications send to, with what lies in them added up."""
        found: dict[str, Numbers] = {}
        for path, numbers in self.entities.items():
            if not is_backlog(path) and not _among_dead_letters(path):
                _add(found.setdefault(home_of(path), {}), numbers, own=home_of(path) == path)
        return found

    def total(self, name: str, of: Iterable[Numbers]) -> float:
        return sum(numbers.get(name, 0) for numbers in of)


def is_backlog(path: str) -> bool:
    return _TRANSFER in path.lower() and "/$" not in path


def _among_dead_letters(path: str) -> bool:
    return "/$" in path


def _add(into: Numbers, numbers: Numbers, *, own: bool) -> None:
    """A subscription's messages are copies of what its topic has already counted as sent."""
    for name, value in numbers.items():
        if own or name != "messages_in_total":
            into[name] = into.get(name, 0) + value


def parse(text: str, at: float) -> Reading:
    """Lines that are not ours are passed over. Raises UnreadableError."""
    entities: dict[str, Numbers] = {}
    whole: Numbers = {}
    for name, labels, value in _samples(text):
        if "entity" in labels:
            entities.setdefault(labels["entity"], {})[name] = value
        else:
            whole[name] = value
    if not text.endswith("\n") or any(name not in whole for name in _LAST):
        raise UnreadableError(
            "it does not answer with a namespace's metrics, or not with all of them"
        )
    return Reading(at, entities, int(whole.get("connections", 0)), int(whole.get("links", 0)))


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.split("\n"):
        if not line.startswith("twinbus_"):
            continue
        found = _LINE.match(line)
        value = math.nan if found is None else _number(found[3])
        if found is None or not 0 <= value <= MOST:
            raise UnreadableError(f"its metrics have a line that is no count: {line[:100]!r}")
        labels = {name: _plain(quoted) for name, quoted in _LABEL.findall(found[2] or "")}
        yield found[1], labels, value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _plain(quoted: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], quoted)


# ---------------------------------------------------------------- its faults


def parse_faults(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Those that are on, and the kinds there are; only what the page shows. Raises
    UnreadableError."""
    try:
        told = json.loads(text)
        active = [_fault(each) for each in told["faults"]]
        kinds = [_kind(each) for each in told.get("kinds", ())]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableError("it does not answer with a list of faults") from error
    return active, kinds


def _fault(told: dict[str, Any]) -> dict[str, Any]:
    seconds = float(told["seconds_left"])
    if not 0 <= seconds <= MOST:
        raise ValueError(seconds)
    entity = told.get("entity")
    return {
        "id": int(told["id"]),
        "kind": _text(told["kind"]),
        "entity": None if entity is None else _text(entity),
        "seconds_left": seconds,
    }


def _kind(told: dict[str, Any]) -> dict[str, Any]:
    whole = {name: _text(told[name]) for name in ("kind", "what")}
    return {**whole, "per_entity": bool(told.get("per_entity"))}


def _text(told: Any) -> str:
    if not isinstance(told, str):
        raise TypeError(told)
    return told
