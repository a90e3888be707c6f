"""A ping is taken as a message is and goes nowhere: to no receiver, subscription or next queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.test_queue import Answer, Rig, message

from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.entry import PING


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Queue ``q``, ``onward`` that forwards to it, and ``t`` with two subscriptions, one of which
    forwards to it too."""
    rig = Rig(tmp_path)
    directory, now = rig.namespace.directory, rig.now
    sessions = QueueDescription(requires_session=True)
    directory.create_queue("onward", QueueDescription(forward_to="q"), now, Answer())
    directory.create_queue("visits", sessions, now, Answer())
    directory.create_queue(
        "once", QueueDescription(requires_duplicate_detection=True), now, Answer()
    )
    directory.create_topic("t", TopicDescription(), now, Answer())
    rig.commit()
    forwards = SubscriptionDescription(forward_to="q")
    directory.create_subscription("t", "keeps", SubscriptionDescription(), None, now, Answer())
    directory.create_subscription("t", "forwards", forwards, None, now, Answer())
    rig.commit()
    yield rig
    rig.close()


@pytest.mark.parametrize("path", ["q", "onward", "visits", "once", "t"])
def test_a_ping_is_delivered_to_nobody_and_forwarded_nowhere(rig: Rig, path: str) -> None:
    entity = rig.namespace.directory.entity(path)
    answer = Answer()
    ping = message("ping", content_type=PING, group_id="s", ttl_ms=1000)
    assert rig.namespace.send(entity, [ping], rig.now, answer) == [0]
    rig.commit()
    assert answer.done, "it was taken"
    assert rig.store.query("SELECT count(*) FROM message") == [(0,)], "and is nowhere"
    assert entity.queue.counts.pings == 1
    assert rig.taker(5).got == []


def test_what_is_no_ping_goes_all_those_ways(rig: Rig) -> None:
    for path in ("q", "onward", "t"):
        entity = rig.namespace.directory.entity(path)
        rig.namespace.send(entity, [message(path)], rig.now, Answer())
        rig.commit()
    assert sorted(got.text for got in rig.taker(5).got) == ["onward", "q", "t"]
    assert rig.store.query("SELECT count(*) FROM message") == [(4,)]
