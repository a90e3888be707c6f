"""All that the page shows at one moment, as a document. Pure: the page only draws it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twinbus.dashboard.asking import DOWN, UNREADABLE, UP, Watched
from twinbus.dashboard.chronicle import DIVERTED, HEALTHY, SUSPECT, Chronicle
from twinbus.dashboard.rates import Rates
from twinbus.dashboard.readings import Numbers, Reading

COMING_HOME: Final = "coming home"  # its senders send to it again, and messages still wait for it
UNREPORTED: Final = "no report"  # no sender that keeps this ledger has sent to it
_ORDER: Final = (DIVERTED, SUSPECT, COMING_HOME, HEALTHY, UNREPORTED)
# So many rows a page can show; what is in trouble comes first.
MOST_ENTITIES: Final = 200
MOST_OUTAGES: Final = 20
# Readings come once a second. If the last ones are older than this, nobody looks any more.
STALE_S: Final = 10.0
STALE: Final = "stale"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LedgerState:
    """``problem`` says why there is nothing to read; ``read_at`` is 0 before the first time."""

    problem: str
    read_at: float
    torn: int


def document(
    now: float,
    primary: Watched,
    secondary: Watched,
    chronicle: Chronicle,
    rates: Rates,
    bill: Document | None,
    ledger: LedgerState,
    failing: Sequence[Document] = (),
) -> Document:
    backlog = _backlog(secondary.reading, chronicle, now)
    entities = _entities(primary.reading, chronicle, backlog["destinations"], now)
    namespaces = [_namespace(each, now) for each in (primary, secondary)]
    return {
        "at": now,
        "headline": headline(namespaces, entities, backlog["total"], failing),
        "namespaces": namespaces,
        "entities": entities[:MOST_ENTITIES],
        "entities_in_all": len(entities),
        "backlog": backlog,
        "rates": {name: rates.now(name) for name in ("arrived", "diverted", "home")},
        "charts": rates.as_json(),
        "outages": _outages(chronicle),
        "bill": bill,
        "failing": list(failing),
        "ledger": {"problem": ledger.problem, "read_at": ledger.read_at, "torn": ledger.torn},
    }


# ---------------------------------------------------------------- in one sentence


def headline(
    namespaces: Sequence[Document],
    entities: Sequence[Document],
    waiting: int | None,
    failing: Sequence[Document] = (),
) -> Document:
    """What an operator wants to know first. ``tone`` is calm, watch or alarm."""
    down = [each["role"] for each in namespaces if each["state"] == DOWN]
    unread = [each["role"] for each in namespaces if each["state"] in (UNREADABLE, STALE)]
    by_state: dict[str, list[str]] = {}
    for entity in entities:
        by_state.setdefault(entity["state"], []).append(entity["path"])
    wait = f"{waiting:,} messages wait in the backlog" if waiting else "the backlog is empty"
    if waiting is None:
        wait = "how much waits in the backlog is not known"
    if down == ["primary", "secondary"]:
        return _told("alarm", "Both namespaces are down", "Sends fail until one of them is back.")
    if DIVERTED in by_state:
        names = _names(by_state[DIVERTED])
        verb = "is" if len(by_state[DIVERTED]) == 1 else "are"
        return _told("alarm", f"{names} {verb} out", f"Sends are diverted, and {wait}.")
    if "primary" in down:
        return _told("alarm", "The primary is down", f"Nobody has diverted yet; {wait}.")
    if "secondary" in down:
        return _told("watch", "The secondary is down", "An outage of the primary would be felt.")
    if unread:
        who = " and the ".join(unread)
        return _told(
            "watch", f"The {who} cannot be read", "What is shown of it is not known, or old."
        )
    if SUSPECT in by_state:
        return _told("watch", f"{_names(by_state[SUSPECT])} failed", "Not long enough to divert.")
    if waiting:
        return _told("watch", "Messages are to come home", f"The primary is well, and {wait}.")
    if failing:
        return _told("watch", "The dashboard fails in part", "What it shows may be old.")
    return _told("calm", "All is well", "Sends go to the primary, and the backlog is empty.")


def _told(tone: str, text: str, detail: str) -> Document:
    return {"tone": tone, "text": text, "detail": detail}


def _names(paths: Sequence[str]) -> str:
    if len(paths) <= 3:
        return " and ".join(filter(None, (", ".join(paths[:-1]), paths[-1])))
    return f"{len(paths)} entities"


# ---------------------------------------------------------------- part by part


def _namespace(watched: Watched, now: float) -> Document:
    reading, state, since = watched.reading, watched.state, watched.since
    if reading is not None and state == UP and now - reading.at > STALE_S:
        state, since = STALE, reading.at
    numbers = [] if reading is None else list(reading.entities.values())
    faults = watched.faults
    return {
        "role": watched.address.role,
        "host": watched.address.key.host,
        "state": state,
        "since": since,
        "error": watched.error,
        "entities": len(numbers),
        "messages": _total(numbers, "active_messages"),
        "dead": _total(numbers, "dead_letter_messages"),
        "connections": 0 if reading is None else reading.connections,
        "faults": {
            "enabled": faults.enabled,
            "problem": faults.problem,
            "active": faults.active,
            "kinds": faults.kinds,
        },
    }


def _total(numbers: Iterable[Numbers], name: str) -> int:
    return int(sum(each.get(name, 0) for each in numbers))


def _entities(
    reading: Reading | None, chronicle: Chronicle, destinations: Sequence[Document], now: float
) -> list[Document]:
    there = {} if reading is None else reading.sent_to
    names = {path.lower(): path for path in there} | chronicle.names
    waiting = {each["destination"].lower(): each for each in destinations}
    rows = [
        _entity(key, path, there.get(path, {}), chronicle, waiting.get(key), now)
        for key, path in names.items()
    ]
    return sorted(rows, key=lambda row: (_ORDER.index(row["state"]), row["path"]))


def _entity(
    key: str,
    path: str,
    numbers: Mapping[str, float],
    chronicle: Chronicle,
    waiting: Document | None,
    now: float,
) -> Document:
    told = chronicle.standing(key, now)
    pings = chronicle.pings.get(key)
    state = UNREPORTED if told is None else told[0].state
    left = 0 if waiting is None else waiting["messages"]
    return {
        "path": path,
        "state": COMING_HOME if state == HEALTHY and left else state,
        "since": None if told is None else told[0].since,
        "clients": 0 if told is None else told[1],
        "heard": None if told is None else told[2],
        "waiting": left,
        "active": int(numbers["active_messages"]) if "active_messages" in numbers else None,
        "ping": pings and {"at": pings.at, "ok": pings.ok, "failed": pings.failed},
    }


def _backlog(reading: Reading | None, chronicle: Chronicle, now: float) -> Document:
    """By queue as the secondary counts; by destination as the ledger's records add up, which come a
    little later and only from clients that keep it. What the records lack is ``untold``."""
    queues = {} if reading is None else reading.backlog
    depths = {path: int(found.get("active_messages", 0)) for path, found in queues.items()}
    rows = [
        {
            "queue": path,
            "messages": depths[path],
            "dead": int(found.get("dead_letter_messages", 0)),
            "oldest": found.get("oldest_message_timestamp_seconds"),
        }
        for path, found in sorted(queues.items(), key=lambda item: _natural(item[0]))
    ]
    destinations = _destinations(chronicle, None if reading is None else depths)
    total = None if reading is None else sum(depths.values())
    known = sum(each["messages"] for each in destinations)
    ages = [row["oldest"] for row in rows if row["oldest"] is not None]
    return {
        "total": total,
        "oldest": min(ages, default=None),
        "queues": rows,
        "destinations": destinations,
        "untold": max(0, total - known) if total is not None else 0,
    }


def _destinations(chronicle: Chronicle, depths: Mapping[str, int] | None) -> list[Document]:
    told: dict[str, int] = {}
    for (queue, _), waiting in chronicle.waiting.items():
        told[queue] = told.get(queue, 0) + max(0, waiting.messages)
    found: dict[str, Document] = {}
    for (queue, destination), waiting in chronicle.waiting.items():
        left = max(0, waiting.messages)
        if depths is not None and told[queue] > depths.get(queue, 0):
            left = round(left * depths.get(queue, 0) / told[queue])  # some have left, unrecorded
        if left:
            path = chronicle.names.get(destination, destination)
            entry = found.setdefault(path, {"destination": path, "messages": 0, "oldest": None})
            entry["messages"] += left
            times = [at for at in (entry["oldest"], waiting.oldest) if at is not None]
            entry["oldest"] = min(times, default=None)
    return sorted(found.values(), key=lambda entry: (-entry["messages"], entry["destination"]))


def _natural(path: str) -> tuple[str, int]:
    head, _, number = path.rpartition("/")
    return head, int(number) if number.isdigit() else 0


def _outages(chronicle: Chronicle) -> list[Document]:
    return [
        {
            "entity": chronicle.names.get(each.entity, each.entity),
            "began": each.began.timestamp(),
            "ended": None if each.ended is None else each.ended.timestamp(),
            "clients": each.clients,
        }
        for each in chronicle.outages()[:MOST_OUTAGES]
    ]
