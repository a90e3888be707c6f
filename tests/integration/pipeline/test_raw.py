"""Encoded messages over the SDK's own links, against a real broker."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError
from harness.brokers import BrokerProcess
from tests.integration.test_metrics import metrics
from tests.times import is_prompt
from tests.unit.pipeline.backlogs import plain

from twinbus.amqp.message import Message
from twinbus.auth.credentials import Secret, client_of
from twinbus.envelope import id_of, unstamped
from twinbus.lab.proxy import Proxy
from twinbus.sdk import raw
from twinbus.sdk.raw import RawReceiver, RawSender, receiver, sender
from twinbus.spark.watch import Watch

_NAMES = (
    *("taking", "draining", "watching", "deleting", "settling", "halving", "peeking"),
    *("large", "batched", "two", "quiet", "lost", "forgetting"),
)
QUEUES: dict[str, dict[str, Any]] = {name: {} for name in _NAMES}
QUEUES["briefly"] = {"lock_duration": "PT5S"}


class Lines:
    """Links to one broker, closed together."""

    def __init__(self, connection_string: str) -> None:
        self.client = client_of(Secret(connection_string))
        self._made: list[Any] = []

    def receiver(self, queue: str, **options: Any) -> RawReceiver:
        made = receiver(self.client, queue, **options)
        self._made.append(made)
        return made

    def sender(self, queue: str) -> RawSender:
        made = sender(self.client, queue)
        self._made.append(made)
        return made

    def ends(self, queue: str, **options: Any) -> tuple[RawSender, RawReceiver]:
        return self.sender(queue), self.receiver(queue, **options)

    def close(self) -> None:
        for each in (*self._made, self.client):
            each.close()


@pytest.fixture
def lines(broker: BrokerProcess) -> Iterator[Lines]:
    made = Lines(broker.connection_string)
    yield made
    made.close()


def ids(messages: list[bytes]) -> list[str]:
    return [str(id_of(each)) for each in messages]


def names(count: int) -> list[bytes]:
    return [plain(str(number)) for number in range(count)]


def heard_within(line: RawReceiver, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if line.heard():
            return True
        select.select([line], [], [], max(0.0, end - time.monotonic()))
    return line.heard()


def test_one_who_takes_the_connection_and_says_nothing_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raw, "OPEN_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        lines = Lines(
            f"Endpoint=sb://localhost:{deaf.getsockname()[1]};SharedAccessKeyName=a;"
            "SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
        )
        line, before = lines.receiver("any"), threading.active_count()
        for _ in range(3):
            with pytest.raises(ServiceBusError, match="too long"):
                line.ready()
        assert threading.active_count() <= before + 1, "each attempt leaves a thread behind"
    lines.close()


def test_what_is_taken_is_what_was_sent_byte_for_byte(lines: Lines) -> None:
    source, line = lines.ends("taking")
    sent = [*names(3), plain("empty", b""), plain("ttl", ttl_ms=3_600_000)]
    for message in sent:
        source.send([message])
    taken = line.take(10)
    assert [Message.parse(each.message).bare for each in taken] == [
        Message.parse(each).bare for each in sent
    ]
    assert len({each.lock_token for each in taken}) == 5
    assert line.complete([each.lock_token for each in taken]) == []


def test_an_empty_queue_is_answered_at_once_and_no_credit_is_left_behind(
    lines: Lines,
) -> None:
    source, line = lines.ends("draining")
    line.ready()
    began = time.monotonic()
    assert line.take(100) == []
    assert is_prompt(began, 2)
    source.send(names(2))
    other = lines.receiver("draining")
    assert len(other.take(10)) == 2, "the first receiver has taken nothing meanwhile"
    assert line.take(10) == []


def test_two_queues_are_asked_before_either_answers(lines: Lines) -> None:
    source, first = lines.ends("two")
    source.send(names(3))
    second = lines.receiver("quiet")
    first.ask(2)
    second.ask(5)
    assert len(first.answer(2)) == 2
    assert second.answer(5) == []


def test_a_watch_hears_a_message_and_lets_it_go_to_its_place(
    lines: Lines, broker: BrokerProcess
) -> None:
    source, line = lines.ends("watching")
    line.watch()
    assert not line.heard()
    source.send([plain("first")])
    assert heard_within(line, 5)
    source.send([plain("second"), plain("third")])
    assert line.let_go() == 1
    taken = lines.receiver("watching").take(10)
    assert ids([each.message for each in taken]) == ["first", "second", "third"]
    headers = [each.message[:3] for each in taken]
    assert headers == [taken[1].message[:3]] * 3, "it does not count as a delivery"


def test_a_watch_is_one_receive_request(lines: Lines, broker: BrokerProcess) -> None:
    line = lines.receiver("quiet")
    line.ready()
    before = metrics(broker, "quiet")["receive_requests_total"]
    line.watch()
    assert not heard_within(line, 0.5)
    assert line.let_go() == 0
    assert metrics(broker, "quiet")["receive_requests_total"] == before + 1


def test_receive_and_delete_leaves_nothing_behind(lines: Lines) -> None:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    source, line = lines.ends("deleting", receive_mode=mode)
    source.send(names(3))
    assert len(line.take(2)) == 2
    assert ids(lines.receiver("deleting").peek(10)) == ["2"]


def test_locks_are_settled_on_another_connection_than_they_were_taken_on(
    lines: Lines,
) -> None:
    source, line = lines.ends("settling")
    source.send(names(4))
    tokens = [each.lock_token for each in line.take(4)]
    other = lines.receiver("settling")
    assert other.complete(tokens[:1]) == []
    assert other.renew(tokens[1:]) == []
    assert other.abandon(tokens[1:2]) == []
    assert other.dead_letter(tokens[2:3], "because", "of this") == []
    (again,) = line.take(4)
    assert ids([again.message]) == ["1"]
    (dead,) = lines.receiver("settling/$DeadLetterQueue").take(4)
    assert ids([dead.message]) == ["2"]
    assert b"DeadLetterReason" in dead.message
    assert other.complete([again.lock_token, tokens[3]]) == []


def test_lost_locks_are_found_among_many(lines: Lines) -> None:
    source, line = lines.ends("halving")
    source.send(names(20))
    tokens = [each.lock_token for each in line.take(20)]
    strange = [uuid4(), uuid4()]
    mixed = [*tokens[:7], strange[0], *tokens[7:15], strange[1], *tokens[15:]]
    assert line.renew(mixed) == strange
    assert line.complete(mixed) == strange
    assert line.peek(10) == []


def test_a_lock_that_has_ended_is_lost_and_its_message_comes_again(
    lines: Lines,
) -> None:
    source, line = lines.ends("briefly")
    source.send(names(1))
    (taken,) = line.take(1)
    line.watch()
    assert heard_within(line, 10)
    line.let_go()
    assert line.complete([taken.lock_token]) == [taken.lock_token]
    (again,) = line.take(1)
    assert line.complete([again.lock_token]) == []


def held(link: Any) -> dict[str, int]:
    """How much each container of the SDK's link has in it; of its session and answers, too."""
    answers = [each._mgmt_link._response_link for each in link._handler._mgmt_links.values()]
    owners = [link._handler, link._handler._link, link._handler._link._session, *answers]
    return {
        f"{type(owner).__name__}.{name}": len(value)
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, set | dict | list | bytearray)
    }


def test_a_link_keeps_nothing_of_what_it_has_handed_out_and_settled(lines: Lines) -> None:
    source, line = lines.ends("forgetting")

    def some() -> None:
        source.send(names(50))
        taken = line.take(50)
        assert len(taken) == 50
        assert line.complete([each.lock_token for each in taken]) == []

    some()
    before = held(line), held(source)
    for _ in range(6):
        some()
    assert (held(line), held(source)) == before
    assert held(line)["ReceiverLink._received_delivery_tags"] == 0


def test_peeking_sees_what_is_locked_and_locks_nothing(lines: Lines) -> None:
    source, line = lines.ends("peeking")
    assert line.peek(5) == []
    source.send(names(4))
    line.take(2)
    assert ids(line.peek(10)) == ["0", "1", "2", "3"]
    assert ids(line.peek(2)) == ["0", "1"]
    assert len(lines.receiver("peeking").take(10)) == 2


def test_a_message_as_large_as_the_link_takes_goes_alone_and_comes_in_frames(
    lines: Lines,
) -> None:
    source, line = lines.ends("large")
    source.ready()
    body = os.urandom(source.limit - 200)
    source.send([plain("large", body)])
    (taken,) = line.take(1)
    assert body in taken.message
    line.complete([taken.lock_token])
    with pytest.raises(MessageSizeExceededError):
        source.send([plain("larger", os.urandom(source.limit + 1))])
    source.send([plain("after")])
    assert ids([each.message for each in line.take(5)]) == ["after"]


def test_a_batch_is_taken_whole_and_read_by_the_sdk(lines: Lines) -> None:
    source, line = lines.ends("batched")
    source.send(names(300))
    with lines.client.get_queue_receiver("batched") as theirs:
        assert [each.message_id for each in theirs.peek_messages(3)] == ["0", "1", "2"]
    with lines.client.get_queue_sender("batched") as sdk:
        sdk.send_messages(ServiceBusMessage("theirs", message_id="theirs"))
    taken = line.take(400)
    assert len(taken) == 301
    assert ids([taken[-1].message]) == ["theirs"]
    assert unstamped(taken[0].message) == plain("0")


def test_a_queue_that_is_not_there_is_the_sdks_own_error(lines: Lines) -> None:
    for attempt in range(2):
        with pytest.raises(ServiceBusError, match="could not be found"):
            lines.receiver(f"nowhere-{attempt}").take(1)
        with pytest.raises(ServiceBusError, match="could not be found"):
            lines.sender(f"nowhere-{attempt}").send([plain("x")])


async def test_a_connection_lost_without_a_word_is_noticed_and_a_quiet_one_is_kept(
    lines: Lines, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinbus.sdk.raw.IDLE_S", 6.0)
    monkeypatch.setattr("twinbus.spark.watch.UPKEEP_S", 0.5)
    asked: list[str] = []
    async with Proxy("localhost", broker.port) as proxy:
        far = Lines(broker.connection_string.replace(f":{broker.port}", f":{proxy.port}"))
        watch = Watch({"lost": far.receiver("lost")}, asked=asked.append)
        try:
            assert await asyncio.to_thread(watch.wait, 10.0) == []
            assert asked == ["lost"], "the broker said that it is there, and was believed"
            proxy.half_open()
            await asyncio.sleep(0.5)  # the broker is told, and only the broker
            lines.sender("lost").send([plain("1")])
            assert await asyncio.to_thread(watch.wait, 30.0) == ["lost"]
        finally:
            await asyncio.to_thread(far.close)


def test_links_outlive_a_broker_that_dies_and_returns(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, {"dying": {}})
    process.start()
    try:
        lines = Lines(process.connection_string)
        source, line = lines.ends("dying")
        source.send(names(3))
        (first, *_) = line.take(1)
        line.watch()
        process.kill()
        for act in (
            lambda: line.take(1),
            lambda: line.complete([first.lock_token]),
            line.watch,
            lambda: source.send([plain("lost")]),
        ):
            with pytest.raises(ServiceBusError):
                act()
        process.start()
        source.send([plain("after")])
        taken = line.take(10)
        assert ids([each.message for each in taken])[-3:] == ["1", "2", "after"]
        line.watch()
        source.send([plain("heard")])
        assert heard_within(line, 5)
        assert line.let_go() == 1
        lines.close()
    finally:
        process.close()
