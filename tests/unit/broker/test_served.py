"""What goes into a ledger is what came about: it is in the batch, and is dropped with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.bus import Bus, message

from twinbus.amqp.message import Message, Properties, with_application_properties
from twinbus.broker.served import ServedRecords, _ref
from twinbus.ledger import Operation


class Ledger:
    """Keeps what it is told."""

    where = "memory"

    class status:  # noqa: N801
        error = ""

    def __init__(self) -> None:
        self.kept: Counter[tuple[str, str]] = Counter()
        self.ids: list[Any] = []

    def add(self, operation: Any, cause: Any, namespace: str, entity: str, **more: Any) -> None:
        self.kept[str(operation), entity] += more["count"]
        self.ids += more["message_ids"]


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    bus = Bus(tmp_path)
    bus.create_queue("q", max_delivery_count=1)
    bus.create_queue("once", requires_duplicate_detection=True)
    bus.create_queue("onward", forward_to="q")
    yield bus
    bus.close()


@pytest.fixture
def ledger(bus: Bus) -> Ledger:
    ledger: Any = Ledger()
    bus.namespace.books = ServedRecords(ledger, bus.namespace)
    kept: Ledger = ledger
    return kept


def sent(bus: Bus, path: str, *texts: str) -> list[Exception | None]:
    answers: list[Exception | None] = []
    payloads = [message(text) for text in texts]
    bus.namespace.send(bus.directory.entity(path), payloads, bus.now, answers.append)
    return answers


def test_what_the_disk_refuses_is_not_recorded(bus: Bus, ledger: Ledger) -> None:
    answers = sent(bus, "onward", "one", "two")
    bus.refuse()
    assert answers[0] is not None
    assert not ledger.kept
    bus.send("onward", "three")
    assert ledger.kept == {("send", "onward"): 1, ("forward", "onward"): 1}


def test_a_duplicate_is_recorded_with_the_message_that_it_repeats(bus: Bus, ledger: Ledger) -> None:
    """Which is on its way to the disk: the two are stored together or refused together."""
    first = sent(bus, "once", "same")
    batch = bus.store.take_batch()
    again = sent(bus, "once", "same")
    bus.store.apply(batch)
    bus.store.rollback()
    bus.tell(batch, Exception("the disk is full"))  # type: ignore[arg-type]
    bus.commit()
    bus.tick()
    assert first[0] is not None
    assert again[0] is not None
    assert not ledger.kept
    third, fourth = sent(bus, "once", "same"), sent(bus, "once", "same")
    bus.commit()
    assert third == fourth == [None]
    assert ledger.kept == {("send", "once"): 2}
    assert ledger.ids == ["same", "same"]


def test_what_is_given_up_comes_after_what_led_to_it(bus: Bus, ledger: Ledger) -> None:
    bus.send("q", "bad")
    taker = bus.take("q", 1)
    queue = bus.queue("q")
    queue.abandon(taker.tokens[0], bus.now, lambda error: None)
    bus.namespace.books.settled(Operation.ABANDON, queue, taker.tokens)
    assert list(ledger.kept) == [("send", "q")]
    bus.commit()
    assert list(ledger.kept) == [("send", "q"), ("abandon", "q"), ("dead_letter", "q")]


@pytest.mark.parametrize(("length", "is_kept"), [(260, True), (261, False), (200_000, False)])
def test_a_lock_remembers_no_more_of_a_message_than_a_path_can_have(
    bus: Bus, ledger: Ledger, length: int, is_kept: bool
) -> None:
    home = "h" * length
    bare = with_application_properties(Properties(message_id="m").encoded(), {"x-ms-path": home})
    ref = _ref("q/x-servicebus-transfer/0", Message.parse(bare))
    assert ref == ("m", home if is_kept else None)
