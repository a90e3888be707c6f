"""Finding the backlog queues, and what lies in them, on a real broker and without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError
from harness.brokers import BrokerProcess
from tests.unit.pipeline.backlogs import ODD, UNREADABLE, plain

from twinbus import envelope
from twinbus.amqp.sections import Sections
from twinbus.amqp.types import encode_list
from twinbus.auth.credentials import Secret
from twinbus.envelope import id_of, queue_path
from twinbus.operate.backlog import USUAL, find_queues, redrive
from twinbus.operate.peek import DEAD_LETTERS, last_number
from twinbus.operate.waiting import NO_DESTINATION, look, waiting_ids
from twinbus.paired.options import DEFAULT_BACKLOG_QUEUE_COUNT
from twinbus.sdk.links import Links
from twinbus.sdk.raw import _text

GAPS = (0, 1, 6, 9, 10, 11, 13)
QUEUES: dict[str, dict[str, Any]] = {
    **{queue_path("gaps", index): {} for index in GAPS},
    **{name: {"max_delivery_count": 1000} for name in ("again", "odd", "numbers", "spoilt")},
}


@pytest.fixture
def links() -> Iterator[Links]:
    made = Links()
    yield made
    made.close()


@pytest.fixture
def secret(broker: BrokerProcess) -> Secret:
    return Secret(broker.connection_string)


@pytest.mark.parametrize(
    ("count", "expected"), [(2, (0, 1)), (7, (0, 1, 6)), (12, GAPS[:-1]), (None, GAPS[:-1])]
)
def test_the_backlog_queues_are_those_of_the_pairing_whatever_lies_between(
    links: Links, secret: Secret, count: int | None, expected: tuple[int, ...]
) -> None:
    """Without a count, as many as a pairing has by itself, and on from there without a gap."""
    assert USUAL == DEFAULT_BACKLOG_QUEUE_COUNT
    found = find_queues(secret, "gaps", links, count)
    assert found == tuple(queue_path("gaps", index) for index in expected)


def test_the_highest_number_is_found_and_of_an_empty_queue_it_is_none(
    links: Links, secret: Secret
) -> None:
    line = links.receiver(secret, "numbers")
    assert last_number(line) == 0
    for count in (1, 3, 40):
        links.sender(secret, "numbers").send([plain(str(number)) for number in range(count)])
        known = [Sections(each).raw(0x72) for each in line.peek(250)]
        assert last_number(line) == len(known), "numbers are given from one on, each once"


def test_redrive_beside_a_syphon_that_sets_all_aside_again_ends_and_counts_each_once(
    links: Links, secret: Secret
) -> None:
    links.sender(secret, "again").send([plain(str(number)) for number in range(230)])
    line = links.receiver(secret, "again")
    stopped = threading.Event()

    def set_aside() -> None:
        """What a syphon does with them."""
        own = Links()
        mine = own.receiver(secret, "again")
        while not stopped.is_set():
            taken = mine.take(100)
            mine.dead_letter([each.lock_token for each in taken], "because", "of this")
        own.close()

    while taken := line.take(250):
        line.dead_letter([each.lock_token for each in taken], "because", "of this")
    beside = threading.Thread(target=set_aside)
    beside.start()
    try:
        done = redrive(secret, ["again"], links)
    finally:
        stopped.set()
        beside.join()
    assert (done["again"].sent, done["again"].stays) == (230, 0)
    found = [*line.peek(250), *links.receiver(secret, "again" + DEAD_LETTERS).peek(250)]
    assert sorted(str(id_of(each)) for each in found) == sorted(map(str, range(230)))


def put_odd(links: Links, secret: Secret, queue: str) -> int:
    """How many of them the broker took."""
    took = 0
    for each in (*ODD.values(), *UNREADABLE.values()):
        try:
            links.sender(secret, queue).send([each])
            took += 1
        except ServiceBusError:
            continue
    return took


def test_what_waits_is_counted_whatever_it_is(links: Links, secret: Secret) -> None:
    links.sender(secret, "odd").send([envelope.wrap(plain("good"), "orders")])
    took = put_odd(links, secret, "odd")
    assert took >= len(ODD)
    found = {each.destination: each for each in look(secret, ["odd"])}
    assert found["orders"].messages == 1
    assert sum(each.messages for each in found.values()) == took + 1
    assert found[NO_DESTINATION].oldest is not None
    seen = list(waiting_ids(secret, ["odd"]))
    assert ("orders", "good", False) in seen
    assert len(seen) == took + 1


def test_what_cannot_be_read_stays_among_the_dead_letters_and_keeps_nobody(
    links: Links, secret: Secret
) -> None:
    took = put_odd(links, secret, "spoilt")
    links.sender(secret, "spoilt").send([plain("good")])
    line = links.receiver(secret, "spoilt")
    # Without a reason, which would be written among the properties that cannot be read.
    tokens = [each.lock_token for each in line.take(50)]
    assert line._settle(tokens, {"disposition-status": _text("suspended")}) == []
    done = redrive(secret, ["spoilt"], links)["spoilt"]
    assert done.sent + done.stays == took + 1
    ids = [Sections(each).raw(0x73) for each in line.peek(50)]
    assert encode_list(["good"]) in ids
    assert len(links.receiver(secret, "spoilt" + DEAD_LETTERS).take(50)) == done.stays
