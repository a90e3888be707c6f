"""What a topic does with a message: the rules say who gets a copy, and of what form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from twinbus.broker.burial import Burial
from twinbus.broker.entry import Entry, lifetime
from twinbus.broker.queue import Done, nothing
from twinbus.broker.routing import Changed, read, rewrite

if TYPE_CHECKING:
    from twinbus.amqp.message import Message
    from twinbus.broker.entity import Entity
    from twinbus.broker.namespace import Namespace


def publish(
    namespace: Namespace, entity: Entity, entry: Entry, message: Message, now_ms: int, done: Done
) -> int:
    """Give each subscription its copies. The bytes that several have are stored once."""
    store, place = namespace.store, namespace.place
    topic = entity.topic
    assert topic is not None
    as_sent: list[Entity] = []
    changed: list[tuple[Entity, Changed]] = []
    facts = read(message)
    for name, match in topic.index.route(facts.properties):
        subscription = topic.subscriptions[name.lower()]
        if match.error is not None:
            _bury(namespace, subscription, entry, match.error)
        for copy in match.copies:
            if copy is None:
                as_sent.append(subscription)
                continue
            try:
                changed.append((subscription, rewrite(message, facts, copy)))
            except Exception as error:  # noqa: BLE001 - an action's failure, as in `route`
                _bury(namespace, subscription, entry, f"the action failed: {error}")
    # One that comes from another topic, by way of a subscription, may share its bytes already.
    if len(as_sent) > 1:
        store.share(entry)
    for subscription in as_sent:
        place(subscription, replace(entry), message, now_ms, nothing)
    for subscription, new in changed:
        copy_entry = replace(entry, bare=new.message.bare, body=None)
        copy_entry.annotations = new.message.annotations
        if new.ttl_ms is not None:
            copy_entry.ttl_ms, copy_entry.expires_ms = lifetime(new.ttl_ms, now_ms)
        place(subscription, copy_entry, new.message, now_ms, nothing)
    store.submit(done)
    return 0


def _bury(namespace: Namespace, subscription: Entity, entry: Entry, error: str) -> None:
    if getattr(subscription.description, "dead_lettering_on_filter_errors", False):
        burial = Burial(replace(entry), "FilterException", error)
        namespace.dead_letters.put(subscription.dead_letters, subscription.path, burial)
