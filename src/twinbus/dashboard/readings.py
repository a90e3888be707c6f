"""What a namespace says of itself at ``/metrics``: Prometheus's text, read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

_LINE: Final = re.compile(r"twinbus_(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_TRANSFER: Final = "/x-servicebus-transfer/"
_WITHIN: Final = re.compile(r"/(subscriptions/|\$)", re.IGNORECASE)

Numbers = dict[str, float]


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


def home_of(path: str) -> str:
    """The queue or topic that a path lies in."""
    return _WITHIN.split(path, maxsplit=1)[0]


def _add(into: Numbers, numbers: Numbers, *, own: bool) -> None:
    """A subscription's messages are copies of what its topic has already counted as sent."""
    for name, value in numbers.items():
        if own or name != "messages_in_total":
            into[name] = into.get(name, 0) + value


def parse(text: str, at: float) -> Reading:
    """Lines that are not ours are passed over."""
    entities: dict[str, Numbers] = {}
    whole: Numbers = {}
    for name, labels, value in _samples(text):
        if "entity" in labels:
            entities.setdefault(labels["entity"], {})[name] = value
        else:
            whole[name] = value
    return Reading(at, entities, int(whole.get("connections", 0)), int(whole.get("links", 0)))


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = {name: _plain(quoted) for name, quoted in _LABEL.findall(found[2] or "")}
        yield found[1], labels, value


def _plain(quoted: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], quoted)
