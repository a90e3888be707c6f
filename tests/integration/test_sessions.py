"""Sessions, by the real SDK in both of its kinds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from tests.worlds import World, receive_some

_SETTINGS: dict[str, dict[str, Any]] = {
    "named": {},
    "next": {},
    "wait": {},
    "taken": {},
    "state": {},
    "renew": {"lock_duration": 5},
    "lost": {"lock_duration": 5},
    "closed": {},
    "list": {},
    "required": {},
    "dead": {},
    "deferred": {},
}
QUEUES = {
    f"{name}-{kind}": {"requires_session": True, **settings}
    for name, settings in _SETTINGS.items()
    for kind in ("asyncio", "blocking")
}


def _messages(session: str, *bodies: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(body, session_id=session) for body in bodies]


async def test_named_session_gets_its_own_messages_in_order(world: World) -> None:
    queue = f"named-{world.kind}"
    for n in range(10):
        await world.send(queue, *_messages(f"s{n % 2}", f"{n}"))
    found = await world.receive(queue, 5, session_id="s1")
    assert [str(message) for message in found] == ["1", "3", "5", "7", "9"]
    found = await world.receive(queue, 5, session_id="s0")
    assert [str(message) for message in found] == ["0", "2", "4", "6", "8"]


async def test_next_free_session_is_the_one_that_waited_longest(world: World) -> None:
    queue = f"next-{world.kind}"
    await world.send(queue, *_messages("z", "first"), *_messages("a", "second"))
    any_one = NEXT_AVAILABLE_SESSION
    async with (
        world.receiver(queue, session_id=any_one) as one,
        world.receiver(queue, session_id=any_one) as two,
    ):
        assert (one.session.session_id, two.session.session_id) == ("z", "a")
        assert [str(message) for message in await receive_some(one, 1)] == ["first"]
        assert [str(message) for message in await receive_some(two, 1)] == ["second"]


async def test_waiting_for_a_session_ends_with_one_or_with_a_time_out(world: World) -> None:
    queue = f"wait-{world.kind}"
    with pytest.raises(OperationTimeoutError):
        async with world.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1):
            pass

    async def accept() -> str:
        async with world.receiver(
            queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20
        ) as receiver:
            return str(receiver.session.session_id)

    waiting = asyncio.create_task(accept())
    await asyncio.sleep(0.5)
    await world.send(queue, *_messages("late", "x"))
    assert await waiting == "late"


async def test_held_session_cannot_be_taken(world: World) -> None:
    queue = f"taken-{world.kind}"
    async with world.receiver(queue, session_id="mine"):
        with pytest.raises(SessionCannotBeLockedError):
            async with world.receiver(queue, session_id="mine"):
                pass
    async with world.receiver(queue, session_id="mine") as receiver:
        assert receiver.session.session_id == "mine"


@pytest.mark.quick
async def test_session_state_is_kept(world: World) -> None:
    queue = f"state-{world.kind}"
    async with world.receiver(queue, session_id="s") as receiver:
        assert await receiver.session.get_state() is None
        await receiver.session.set_state(b"\x00progress")
    async with world.receiver(queue, session_id="s") as receiver:
        assert await receiver.session.get_state() == b"\x00progress"
        await receiver.session.set_state(None)
        assert await receiver.session.get_state() is None


async def test_renewed_session_lock_outlives_its_duration(world: World) -> None:
    queue = f"renew-{world.kind}"
    await world.send(queue, *_messages("s", "x"))
    async with world.receiver(queue, session_id="s") as receiver:
        (message,) = await receive_some(receiver, 1)
        first = receiver.session.locked_until_utc
        await asyncio.sleep(3)
        assert await receiver.session.renew_lock() > first
        await asyncio.sleep(3)
        await receiver.complete_message(message)


async def test_lost_session_cannot_settle_and_its_messages_come_again(world: World) -> None:
    queue = f"lost-{world.kind}"
    await world.send(queue, *_messages("s", "x"))
    async with world.receiver(queue, session_id="s") as receiver:
        (message,) = await receive_some(receiver, 1)
        await asyncio.sleep(6)
        with pytest.raises((SessionLockLostError, ServiceBusError)):
            await receiver.complete_message(message)
    (again,) = await world.receive(queue, session_id="s")
    assert again.delivery_count == 1


async def test_closing_gives_the_session_back_at_once(world: World) -> None:
    queue = f"closed-{world.kind}"
    await world.send(queue, *_messages("s", "x", "y"))
    async with world.receiver(queue, session_id="s") as receiver:
        await receive_some(receiver, 1)
    found = await world.receive(queue, 2, session_id="s")
    assert [str(message) for message in found] == ["x", "y"]


async def test_sessions_with_messages_are_listed(world: World) -> None:
    queue = f"list-{world.kind}"
    for session in ("b", "a", "c"):
        await world.send(queue, *_messages(session, "x"))
    paged = world.client.list_queue_sessions(queue)
    if world.kind == "asyncio":
        listed = [session async for session in paged]
    else:
        listed = await asyncio.to_thread(list, paged)
    assert listed == ["a", "b", "c"]


async def test_message_without_a_session_is_refused(world: World) -> None:
    with pytest.raises(ServiceBusError, match="requires sessions"):
        await world.send(f"required-{world.kind}", ServiceBusMessage("x"))
    with pytest.raises(ServiceBusError, match="accept a session"):
        await world.receive(f"required-{world.kind}")


async def test_dead_letters_of_a_session_queue_need_no_session(world: World) -> None:
    queue = f"dead-{world.kind}"
    await world.send(queue, *_messages("s", "x"))
    async with world.receiver(queue, session_id="s") as receiver:
        (message,) = await receive_some(receiver, 1)
        await receiver.dead_letter_message(message, reason="r")
    (dead,) = await world.receive(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    assert (dead.session_id, dead.dead_letter_reason) == ("s", "r")


async def test_deferred_message_of_a_session_is_settled_in_it(world: World) -> None:
    queue = f"deferred-{world.kind}"
    await world.send(queue, *_messages("s", "x"))
    async with world.receiver(queue, session_id="s") as receiver:
        (message,) = await receive_some(receiver, 1)
        await receiver.defer_message(message)
        (again,) = await receiver.receive_deferred_messages(message.sequence_number)
        await receiver.complete_message(again)
        assert await receiver.peek_messages(1, sequence_number=1) == []
