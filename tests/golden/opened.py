"""What is in a namespace's file, as one who may look at everything sees it: said in words that do
not change with the code, for files of other versions to be held against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.broker.bus import Bus

from twinbus.amqp.message import Message
from twinbus.broker import descriptions, rules
from twinbus.broker.config import NamespaceConfig
from twinbus.broker.delivery import shown
from twinbus.broker.document import read_toml
from twinbus.broker.emulator import read_emulator
from twinbus.broker.entity import Entity
from twinbus.broker.entry import Entry
from twinbus.broker.queue import Queue
from twinbus.broker.sessions import SessionQueue

STATES = ("active", "deferred", "scheduled")


def everything(bus: Bus) -> dict[str, Any]:
    """By path: each entity with its description, its rules, and its queues with their messages."""
    return {entity.path: _entity(bus, entity) for entity in bus.directory.entities()}


def _entity(bus: Bus, entity: Entity) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": entity.kind,
        "description": _described(entity.description),
        "created": entity.created_ms,
        "updated": entity.updated_ms,
        "accessed": entity.accessed_ms,
        "bytes": entity.bytes,
        "queues": {queue.path: _queue(queue) for queue in entity.queues},
    }
    if entity.parent is not None:
        assert entity.parent.topic is not None
        known = entity.parent.topic.index.rules(entity.name)
        found["rules"] = [rules.to_json(rule) for rule in known]
    return found


def _queue(queue: Queue) -> dict[str, Any]:
    found: dict[str, Any] = {"messages": [_message(entry) for entry in queue.peek(0, 1_000)]}
    if isinstance(queue, SessionQueue):
        names = {*queue.list_sessions(None, 0, 1_000), *queue.list_sessions(0, 0, 1_000)}
        states = {name: queue.get_state(name) for name in sorted(names)}
        found["sessions"] = {name: state and state.decode() for name, state in states.items()}
    return found


def _message(entry: Entry) -> dict[str, Any]:
    """What of it is easily read, and all of it, as a receiver gets it."""
    return {
        "id": str(Message.parse(entry.bare).properties.message_id),
        "number": entry.sequence,
        "state": STATES[entry.state],
        "session": entry.session,
        "deliveries": entry.delivery_count,
        "enqueued": entry.enqueued_ms,
        "expires": entry.expires_ms,
        "due": entry.due_ms,
        "bytes": shown(entry).hex(),
    }


def configured(folder: Path) -> dict[str, Any]:
    """What the configuration files say, with what they leave to us."""
    return {
        "toml": [_namespace(each) for each in read_toml(folder / "broker.toml")],
        "emulator": [
            _namespace(each) for each in read_emulator(folder / "emulator.json", [1], [2])
        ],
    }


def _namespace(config: NamespaceConfig) -> dict[str, Any]:
    return {
        "name": config.name,
        "ports": [config.port, config.admin_port],
        "key": config.key,
        "queues": {path: _described(each) for path, each in config.queues.items()},
        "topics": {
            path: {
                "description": _described(topic.description),
                "subscriptions": {
                    name: {
                        "description": _described(each.description),
                        "rules": [rules.to_json(rule) for rule in each.rules],
                    }
                    for name, each in topic.subscriptions.items()
                },
            }
            for path, topic in config.topics.items()
        },
    }


def _described(description: descriptions.Description) -> Any:
    return json.loads(descriptions.to_json(description))
