"""The entities of a namespace: queues, topics, subscriptions and rules by name.

A change takes effect when it is on disk: ``done`` is called then. What cannot be is refused at
once, by raising, with nothing changed.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from twinbus.auth.access_rules import AccessRule
from twinbus.broker.counts import Counts
from twinbus.broker.descriptions import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    check_name,
    check_path,
    check_update,
    dead_letter_side,
    from_json,
    to_json,
)
from twinbus.broker.entity import (
    DEAD,
    DEAD_LETTERS,
    KINDS,
    NUMBERS,
    SUBSCRIPTIONS,
    TRANSFER,
    TRANSFER_DEAD_LETTERS,
    Entity,
    Topic,
)
from twinbus.broker.queue import Done, Queue
from twinbus.broker.refusals import (
    DescriptionError,
    EntityDisabledError,
    EntityExistsError,
    EntityNotFoundError,
    NotAllowedError,
    QuotaError,
    RequestError,
    StoreError,
)
from twinbus.broker.rules import DEFAULT_RULE, Rule, TrueFilter
from twinbus.broker.rules import from_json as rule_from_json
from twinbus.broker.rules import to_json as rule_to_json
from twinbus.broker.schema import LAST_NUMBER
from twinbus.broker.sessions import SessionQueue
from twinbus.broker.store import Store, StoredEntity

if TYPE_CHECKING:
    from twinbus.broker.namespace import Namespace

MAX_RULES = 2_000


class Directory:
    """All entities of one namespace."""

    def __init__(self, name: str, store: Store, rules: list[AccessRule], owner: Namespace) -> None:
        self.name = name
        self.store = store
        self.rules = rules
        self._owner = owner
        self._entities: dict[str, Entity] = {}
        self._queues: dict[int, Queue] = {}
        self._sorted: dict[str, list[str]] = {"queue": [], "topic": []}
        self._creating: dict[str, Entity | None] = {}
        self._next_id = max(store.next_entity(), NUMBERS)
        self.on_update: Callable[[Entity], None] = lambda entity: None
        self._load()

    # -- loading

    def _load(self) -> None:
        sides = {row.id: row for row in self.store.entities()}
        for row in sides.values():
            if row.kind in KINDS:
                description = from_json(KINDS[row.kind], row.description)
                made = self._build(row.id, row.kind, row.path, description, row.created_ms, sides)
                made.updated_ms, made.accessed_ms = row.updated_ms, row.accessed_ms
                self._enlist(made)
        for number, text, created_ms in self.store.rules():
            subscription = self._queues[number].entity
            self._add_rule(subscription, rule_from_json(json.loads(text)), created_ms)

    def _build(
        self,
        number: int,
        kind: str,
        path: str,
        description: Description,
        now_ms: int,
        sides: dict[int, StoredEntity],
    ) -> Entity:
        parent = None
        if kind == "subscription":
            parent = self.entity(path.rsplit("/", 2)[0])
        main = QueueDescription() if isinstance(description, TopicDescription) else description
        dead = dead_letter_side(main)
        return Entity(
            number,
            kind,
            path,
            description,
            *(now_ms, now_ms, now_ms),
            self._queue(number, path, main, sides),
            self._queue(number + DEAD, f"{path}/{DEAD_LETTERS}", dead, sides),
            self._queue(number + TRANSFER, f"{path}/{TRANSFER_DEAD_LETTERS}", dead, sides),
            parent,
            Topic() if kind == "topic" else None,
        )

    def _queue(
        self,
        number: int,
        path: str,
        description: QueueDescription | SubscriptionDescription,
        sides: dict[int, StoredEntity],
    ) -> Queue:
        kind = SessionQueue if description.requires_session else Queue
        row = sides.get(number)
        last = row.last_sequence if row else 0
        queue = kind(number, path, description, self.store, self._owner, last)
        queue.counts = Counts(*row[-5:]) if row else Counts()
        return queue

    def _enlist(self, entity: Entity) -> None:
        self._entities[entity.path.lower()] = entity
        for queue in entity.queues:
            self._queues[queue.number] = queue
        if entity.parent is not None:
            topic = entity.parent.topic
            assert topic is not None
            topic.subscriptions[entity.name.lower()] = entity
            topic.bytes += sum(queue.counts.bytes for queue in entity.queues)
        else:
            if entity.topic is not None:
                entity.topic.bytes += entity.queue.counts.bytes
            insort(self._sorted[entity.kind], entity.path.lower())
        self._next_id = max(self._next_id, entity.id + NUMBERS)

    # -- finding

    def entity(self, path: str) -> Entity:
        entity = self._entities.get(path.lower())
        if entity is None or entity.deleted:
            raise EntityNotFoundError(
                f"The messaging entity '{self.name}/{path}' could not be found. Create it first, "
                "or check the name."
            )
        return entity

    def resolve(self, path: str) -> tuple[Entity, Queue]:
        """The entity and the queue of it that a path means, dead-letter paths included."""
        lowered = path.lower()
        for suffix, side in ((TRANSFER_DEAD_LETTERS, TRANSFER), (DEAD_LETTERS, DEAD)):
            if lowered.endswith("/" + suffix):
                entity = self.entity(path[: -len(suffix) - 1])
                return entity, entity.queues[side]
        entity = self.entity(path)
        return entity, entity.queue

    def find(self, number: int) -> Queue | None:
        """By the number that the store knows it by."""
        return self._queues.get(number)

    def entities(self) -> Iterator[Entity]:
        return iter(list(self._entities.values()))

    def page(self, kind: str, skip: int, top: int) -> list[Entity]:
        """Queues or topics in order of their paths."""
        return [self._entities[key] for key in self._sorted[kind][skip : skip + top]]

    def page_subscriptions(self, topic: str, skip: int, top: int) -> list[Entity]:
        subscriptions = self._topic(topic).subscriptions
        return [subscriptions[key] for key in sorted(subscriptions)[skip : skip + top]]

    def page_rules(
        self, topic: str, subscription: str, skip: int, top: int
    ) -> list[tuple[Rule, int]]:
        entity = self.subscription(topic, subscription)
        found = self._topic(topic)
        rules = sorted(found.index.rules(entity.name), key=lambda rule: rule.name.lower())
        return [
            (rule, found.created_ms[entity.name, rule.name]) for rule in rules[skip : skip + top]
        ]

    def get_rule(self, topic: str, subscription: str, name: str) -> tuple[Rule, int]:
        for rule, created_ms in self.page_rules(topic, subscription, 0, MAX_RULES):
            if rule.name.lower() == name.lower():
                return rule, created_ms
        raise EntityNotFoundError(
            f"The rule '{name}' of '{topic}/{SUBSCRIPTIONS}/{subscription}' could not be found."
        )

    def subscription(self, topic: str, name: str) -> Entity:
        return self.entity(f"{topic}/{SUBSCRIPTIONS}/{name}")

    def _topic(self, path: str) -> Topic:
        entity = self.entity(path)
        if entity.topic is None:
            raise NotAllowedError(f"'{path}' is not a topic.")
        return entity.topic

    def access_rules(self, path: str) -> list[AccessRule]:
        """The rules whose tokens may open this path: the namespace's, then the entity's own."""
        parts = path.lower().split("/")
        for count in range(len(parts), 0, -1):
            entity = self._entities.get("/".join(parts[:count]))
            if entity is not None:
                return [*self.rules, *(entity.parent or entity).sized.access_rules]
        return self.rules

    # -- creating

    def create_queue(
        self, path: str, description: QueueDescription, now_ms: int, done: Done
    ) -> None:
        check_path(path)
        self._check_forwards(path, description)
        self._create("queue", path, description, None, now_ms, done)

    def create_topic(
        self, path: str, description: TopicDescription, now_ms: int, done: Done
    ) -> None:
        check_path(path)
        self._create("topic", path, description, None, now_ms, done)

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        rule: Rule | None,
        now_ms: int,
        done: Done,
    ) -> None:
        """Subscribe, with a first rule: one that takes everything unless another is given."""
        check_name(name, "subscription")
        self._topic(topic)
        path = f"{self.entity(topic).path}/{SUBSCRIPTIONS}/{name}"
        self._check_forwards(path, description)
        first = rule or Rule(DEFAULT_RULE, TrueFilter())
        check_name(first.name, "rule")
        self._create("subscription", path, description, first, now_ms, done)

    def _check_forwards(
        self, path: str, description: QueueDescription | SubscriptionDescription
    ) -> None:
        for target in description.targets:
            if target.lower() == path.lower():
                raise DescriptionError(f"'{path}' cannot forward to itself")
            found = self._entities.get(target.lower())
            if found is None or found.deleted:
                raise DescriptionError(
                    f"'{path}' cannot forward to '{target}', which is not there; create it first"
                )
            found.sized  # noqa: B018 (raises for a subscription)

    def _create(
        self,
        kind: str,
        path: str,
        description: Description,
        rule: Rule | None,
        now_ms: int,
        done: Done,
    ) -> None:
        key = path.lower()
        if key in self._entities or key in self._creating:
            raise EntityExistsError(f"The messaging entity '{self.name}/{path}' already exists.")
        number = self._next_id
        if number + NUMBERS > LAST_NUMBER:
            raise QuotaError(
                f"'{self.name}' has created {number // NUMBERS} entities, which is the limit; "
                "begin a new data folder."
            )
        self._next_id += NUMBERS
        entity = self._build(number, kind, path, description, now_ms, {})
        self._creating[key] = entity
        text = to_json(description)
        for queue, side in zip(entity.queues, (kind, "dead", "transfer"), strict=True):
            self.store.batch.create_entity(
                queue.number, queue.path, side, text, now_ms, self._next_id
            )
        if rule is not None:
            self._store_rule(entity, rule, now_ms)

        def apply() -> None:
            self._enlist(entity)
            if rule is not None:
                self._add_rule(entity, rule, now_ms)

        self._submit(apply, done, key)

    def _submit(self, apply: Callable[[], None], done: Done, creating: str = "") -> None:
        """Make a change on the disk, and in memory once it is there."""

        def committed(error: StoreError | None) -> None:
            if creating:
                del self._creating[creating]
            if error is None:
                apply()
            done(error)

        self.store.submit(committed)

    # -- rules

    def create_rule(
        self, topic: str, subscription: str, rule: Rule, now_ms: int, done: Done
    ) -> None:
        check_name(rule.name, "rule")
        entity = self.subscription(topic, subscription)
        rules = self._topic(topic).index.rules(entity.name)
        key = f"{entity.path}/{rule.name}".lower()
        if key in self._creating or any(r.name.lower() == rule.name.lower() for r in rules):
            raise EntityExistsError(f"The rule '{rule.name}' of '{entity.path}' already exists.")
        if len(rules) >= MAX_RULES:
            raise QuotaError(f"'{entity.path}' has {MAX_RULES} rules; that is the limit.")
        self._creating[key] = None
        self._store_rule(entity, rule, now_ms)
        self._submit(partial(self._add_rule, entity, rule, now_ms), done, key)

    def update_rule(
        self, topic: str, subscription: str, rule: Rule, now_ms: int, done: Done
    ) -> None:
        old, created_ms = self.get_rule(topic, subscription, rule.name)
        entity = self.subscription(topic, subscription)
        self.store.batch.drop_rule(entity.id, old.name)
        self._store_rule(entity, rule, created_ms)

        def apply() -> None:
            self._remove_rule(entity, old.name)
            self._add_rule(entity, rule, created_ms)

        self._submit(apply, done)

    def delete_rule(self, topic: str, subscription: str, name: str, done: Done) -> None:
        rule, _ = self.get_rule(topic, subscription, name)
        entity = self.subscription(topic, subscription)
        self.store.batch.drop_rule(entity.id, rule.name)
        self._submit(partial(self._remove_rule, entity, rule.name), done)

    def _store_rule(self, entity: Entity, rule: Rule, created_ms: int) -> None:
        definition = json.dumps(rule_to_json(rule))
        self.store.batch.keep_rule(entity.id, rule.name, definition, created_ms)

    def _add_rule(self, entity: Entity, rule: Rule, created_ms: int) -> None:
        topic = entity.parent.topic if entity.parent else None
        assert topic is not None
        topic.index.add(entity.name, rule)
        topic.created_ms[entity.name, rule.name] = created_ms

    def _remove_rule(self, entity: Entity, name: str) -> None:
        topic = entity.parent.topic if entity.parent else None
        assert topic is not None
        if topic.created_ms.pop((entity.name, name), None) is not None:
            topic.index.remove(entity.name, name)

    # -- changing and deleting

    def update(self, path: str, description: Description, now_ms: int, done: Done) -> None:
        entity = self.entity(path)
        if type(description) is not type(entity.description):
            raise DescriptionError(f"'{path}' is a {entity.kind}; it cannot become another kind")
        check_update(entity.description, description)
        if not isinstance(description, TopicDescription):
            self._check_forwards(path, description)
        self.store.batch.describe(entity.id, to_json(description), now_ms)
        self._submit(partial(self._apply, entity, description, now_ms), done)

    def _apply(self, entity: Entity, description: Description, now_ms: int) -> None:
        entity.describe(description)
        entity.updated_ms = now_ms
        if not isinstance(description, TopicDescription):
            entity.queue.description = description
            side = dead_letter_side(description)
            entity.dead_letters.description = entity.transfer_dead_letters.description = side
            entity.queue.reorder_locks()
            if not description.status.may_receive:
                self._dismiss(
                    entity, EntityDisabledError(f"'{entity.path}' was disabled for receiving.")
                )
        self.on_update(entity)

    def delete(self, path: str, done: Done) -> None:
        """Delete an entity with its messages, and a topic with its subscriptions."""
        entity = self.entity(path)
        doomed = [entity, *self._within(entity)]
        for each in doomed:
            each.close(1)
            self.store.batch.drop(each.id, each.id + TRANSFER)

        def committed(error: StoreError | None) -> None:
            for each in doomed:
                if error is None:
                    self._delist(each)
                else:
                    self._reopen(each)
            done(error)

        self.store.submit(committed)

    def _within(self, entity: Entity) -> list[Entity]:
        """A topic's subscriptions, those included that are on their way to the disk."""
        if entity.topic is None:
            return []
        coming = [each for each in self._creating.values() if each and each.parent is entity]
        return [*entity.topic.subscriptions.values(), *coming]

    def _reopen(self, entity: Entity) -> None:
        entity.close(-1)
        for queue in entity.queues:
            queue.wake()

    def _delist(self, entity: Entity) -> None:
        key = entity.path.lower()
        if self._entities.get(key) is not entity:
            return  # it was deleted, and so was its topic: this is the second of the two
        del self._entities[key]
        for queue in entity.queues:
            self._queues.pop(queue.number, None)
        if entity.parent is not None and entity.parent.topic is not None:
            topic = entity.parent.topic
            topic.subscriptions.pop(entity.name.lower(), None)
            topic.index.remove_subscription(entity.name)
            topic.bytes -= sum(queue.counts.bytes for queue in entity.queues)
        elif entity.kind in self._sorted:
            keys = self._sorted[entity.kind]
            at = bisect_left(keys, key)
            if at < len(keys) and keys[at] == key:
                del keys[at]
        self._dismiss(entity, EntityNotFoundError(f"'{entity.path}' was deleted."))
        for queue in entity.queues:
            queue.forget()

    @staticmethod
    def _dismiss(entity: Entity, error: RequestError) -> None:
        """Tell those who receive from it that it is over."""
        for queue in entity.queues if entity.deleted else (entity.queue,):
            for consumer in queue.dismissed():
                consumer.lose(error)
