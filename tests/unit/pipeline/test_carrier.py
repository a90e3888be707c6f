"""Send home, then settle: what a worker does with its rows, whatever the destinations answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.pipeline.backlogs import (
    LIMIT,
    ODD,
    STRANGE,
    UNREADABLE,
    Backlog,
    carried,
    otherwise,
    plain,
    properties_of,
    run_round,
    sealed,
)
from tests.unit.test_envelope import damaged

from twinbus import envelope
from twinbus.amqp.batches import BATCH_OVERHEAD, batch_of, in_transfers
from twinbus.amqp.types import encode_list
from twinbus.homeward.carrier import (
    MOST_AT_ONCE,
    PARTS_MS,
    RENEW_AT,
    BusyError,
    Carrier,
    Parcel,
    RefusedError,
    UnavailableError,
)
from twinbus.homeward.rounds import Destinations, Hold, Orders, Outcome, Tally

Q = "contoso/x-servicebus-transfer/0"


def outcomes(tallies: list[Tally]) -> dict[Outcome, int]:
    found: dict[Outcome, int] = {}
    for tally in tallies:
        found[tally.outcome] = found.get(tally.outcome, 0) + tally.messages
    return found


def filled(*destinations: str) -> Backlog:
    """A message a destination, numbered from 1, with its number for an id."""
    backlog = Backlog()
    for number, destination in enumerate(destinations, 1):
        backlog.divert(Q, destination, plain(str(number)))
    return backlog


def carry(backlog: Backlog, orders: Orders | None = None) -> list[Tally]:
    carrier = Carrier(backlog, orders or Orders())
    carried(backlog, carrier, list(backlog.queues))
    return carrier.finish()


def test_messages_go_home_in_one_transfer_each_destination_and_are_completed() -> None:
    backlog = filled("a", "b", "a", "b", "a")
    assert outcomes(carry(backlog)) == {Outcome.MOVED: 5}
    assert backlog.home == {"a": ["1", "3", "5"], "b": ["2", "4"]}
    assert backlog.transfers == [3, 2]
    assert backlog.is_empty()


def test_what_has_no_path_is_set_aside_with_a_reason() -> None:
    backlog = filled("a")
    backlog.put(Q, plain("stray"))
    tallies = carry(backlog)
    assert outcomes(tallies) == {Outcome.MOVED: 1, Outcome.DEAD: 1}
    ((name, reason, description),) = backlog.dead
    assert (name, reason) == ("stray", "TwinbusEnvelope")
    assert "no x-ms-path" in description


def test_an_alias_of_the_wrong_type_is_set_aside() -> None:
    backlog = Backlog()
    aliases = properties_of(x_ms_path="a", x_ms_timetolive="an hour")
    message = b"\x00\x53\x73\xc0\x04\x01\xa1\x01w" + aliases + b"\x00\x53\x75\xa0\x01x"
    backlog.put(Q, message)
    assert outcomes(carry(backlog)) == {Outcome.DEAD: 1}
    assert "x-ms-timetolive is str" in backlog.dead[0][2]


def test_a_message_that_is_refused_is_found_among_others_and_set_aside() -> None:
    backlog = filled(*["a"] * 7)

    def refuse(destination: str, ids: Sequence[str]) -> None:
        if "4" in ids:
            raise RefusedError("too large")

    backlog.on_send = refuse
    assert outcomes(carry(backlog)) == {Outcome.MOVED: 6, Outcome.DEAD: 1}
    assert backlog.home["a"] == ["1", "2", "3", "5", "6", "7"]
    assert backlog.dead == [("4", "RefusedByDestination", "too large")]


@pytest.mark.parametrize(
    ("error", "outcome"), [(UnavailableError, Outcome.FAILED), (BusyError, Outcome.BUSY)]
)
def test_a_destination_that_does_not_take_it_is_tried_once_and_the_others_flow_on(
    error: type[Exception], outcome: Outcome
) -> None:
    backlog = filled("down", "up", "down", "up")
    tried: list[str] = []

    def fail(destination: str, ids: Sequence[str]) -> None:
        tried.append(destination)
        if destination == "down":
            raise error("not now")

    backlog.on_send = fail
    carrier = Carrier(backlog, Orders())
    carrier.carry(backlog.take(Q, 2))
    carrier.carry(backlog.take(Q, 2))
    assert outcomes(carrier.finish()) == {Outcome.MOVED: 2, outcome: 2}
    assert backlog.home == {"up": ["2", "4"]}
    assert tried.count("down") == 1


def test_what_was_left_stays_locked_while_others_move_and_is_given_back_when_nothing_does() -> None:
    def fail(destination: str, ids: Sequence[str]) -> None:
        if destination == "down":
            raise UnavailableError("not now")

    backlog = filled("down", "up")
    backlog.on_send = fail
    tallies = carry(backlog)
    (left,) = [each for each in tallies if each.outcome is Outcome.FAILED]
    assert left.until_ms == backlog.now + 60_000
    assert not backlog.take(Q, 9)
    alone = filled("down", "down")
    alone.on_send = fail
    (left,) = carry(alone)
    assert left.until_ms == 0
    assert [row.number for row in alone.take(Q, 9)] == [1, 2]


def test_what_waits_for_a_lock_to_end_is_given_back_unless_more_lies_behind_it() -> None:
    """Or each would begin a lock of its own, for which the next would wait."""
    for share, ready in ((9, [2, 3]), (4, [])):
        backlog = filled("a", "a", "a", "b")
        holds = {(Q, "a"): (Hold(0, backlog.now + 10_000),)}
        rows = backlog.take(Q, 4)[1:]  # the first is still locked by a round before
        carrier = Carrier(backlog, Orders(holds=holds, keep=True, share=share - 1))
        carrier.carry(rows)
        tallies = carrier.finish()
        assert outcomes(tallies) == {Outcome.MOVED: 1, Outcome.SKIPPED: 2}
        assert [row.number for row in backlog.take(Q, 9)] == ready
        (left,) = [each for each in tallies if each.outcome is Outcome.SKIPPED]
        assert bool(left.until_ms) is not bool(ready)


def test_what_could_not_be_given_back_is_still_waited_for() -> None:
    """Otherwise what comes next would overtake it."""
    backlog = filled("down", "down")

    def fail(destination: str, ids: Sequence[str]) -> None:
        raise UnavailableError("not now")

    backlog.on_send = fail
    backlog.on_settle = lambda act, tokens: list(tokens) if act == "abandon" else []
    (left,) = carry(backlog)
    assert left.until_ms == backlog.now + 60_000


def test_one_that_is_held_waits_with_all_behind_it() -> None:
    backlog = filled("a", "a", "b")
    orders = Orders(holds={(Q, "a"): (Hold(1, backlog.now + 10_000),)}, keep=True)
    assert outcomes(carry(backlog, orders)) == {Outcome.MOVED: 2, Outcome.SKIPPED: 1}
    assert backlog.home == {"a": ["1"], "b": ["3"]}


def test_locks_with_little_left_are_renewed_before_sending() -> None:
    backlog = filled("a", "a")
    rows = backlog.take(Q, 2)
    backlog.now += int(60_000 * (1 - RENEW_AT)) + 1
    carrier = Carrier(backlog, Orders())
    carrier.carry(rows)
    assert outcomes(carrier.finish()) == {Outcome.MOVED: 2}
    assert backlog.renewed == 2


def test_locks_are_renewed_between_the_transfers_of_a_slow_destination() -> None:
    """A transfer that takes long must not cost those behind it their locks."""
    backlog = Backlog(limits=3000)
    for number in range(12):
        backlog.divert(Q, "a", plain(str(number), b"x" * 1500))

    def slowly(destination: str, ids: Sequence[str]) -> None:
        backlog.now += 9_000

    backlog.on_send = slowly
    assert outcomes(carry(backlog)) == {Outcome.MOVED: 12}
    assert backlog.transfers == [1] * 12


def test_a_slow_pace_does_not_cost_locks() -> None:
    backlog = Backlog(limits=3000)
    for number in range(12):
        backlog.divert(Q, "a", plain(str(number), b"x" * 1500))
    assert outcomes(carry(backlog, Orders(pace=0.1))) == {Outcome.MOVED: 12}


def test_a_pace_is_kept_every_second() -> None:
    backlog = filled(*["a"] * 25)
    sent: list[tuple[int, int]] = []
    began = backlog.now
    backlog.on_send = lambda destination, ids: sent.append((backlog.now - began, len(ids)))
    carry(backlog, Orders(pace=10))
    assert sent == [(0, 10), (1000, 10), (2000, 5)]


def test_a_queue_of_which_one_lost_its_lock_stays_behind_in_order() -> None:
    backlog = filled("a", "a", "a")
    rows = backlog.take(Q, 3)
    backlog.now += 59_000
    backlog.on_settle = lambda act, tokens: [rows[1].token] if act == "renew" else []
    carrier = Carrier(backlog, Orders())
    carrier.carry(rows)
    assert outcomes(carrier.finish()) == {Outcome.SKIPPED: 3}
    assert backlog.home == {}


def test_what_is_home_and_could_not_be_settled_is_counted_as_a_duplicate() -> None:
    backlog = filled("a", "a")

    def lose(act: str, tokens: Sequence[UUID]) -> list[UUID]:
        return [tokens[0]]

    backlog.on_settle = lose
    assert outcomes(carry(backlog)) == {Outcome.MOVED: 1, Outcome.DUPLICATED: 1}


def test_the_wait_is_deducted_from_the_time_to_live_and_what_has_expired_is_set_aside() -> None:
    backlog = Backlog()
    backlog.divert(Q, "a", plain("long", ttl_ms=60_000))
    backlog.divert(Q, "a", plain("short", ttl_ms=5_000))
    backlog.divert(Q, "a", plain("forever"))
    backlog.now += 20_000
    sent: list[bytes] = []
    send = backlog.send

    def keep(destination: str, parcels: Sequence[Parcel]) -> None:
        sent.extend(parcel.message for parcel in parcels)
        send(destination, parcels)

    backlog.send = keep  # type: ignore[method-assign]
    carry(backlog, Orders(deducts=True))
    assert [envelope.time_to_live_of(each) for each in sent] == [40_000, None]
    assert backlog.dead[0][:2] == ("short", "TTLExpiredException")


def test_parts_are_put_together_and_settled_as_one() -> None:
    backlog = Backlog()
    body = random.Random(7).randbytes(9000)
    parts = backlog.divert(Q, "a", plain("big", body), limit=6000)
    assert len(parts) > 1
    tallies = carry(backlog)
    assert outcomes(tallies) == {Outcome.MOVED: 1}
    assert backlog.home == {"a": ["big"]}
    assert backlog.is_empty()


def divided() -> Backlog:
    backlog = Backlog()
    backlog.divert(Q, "a", plain("before"))
    backlog.divert(Q, "a", plain("big", random.Random(7).randbytes(9000)), limit=6000)
    backlog.divert(Q, "a", plain("after"))
    return backlog


@pytest.mark.parametrize("waited_ms", [1000, PARTS_MS + 1])
@pytest.mark.parametrize("most", [2, 3])
def test_parts_that_two_rounds_divide_come_home_in_order(waited_ms: int, most: int) -> None:
    """A round ends where it ends: what it has of a message is no reason to give it up."""
    backlog = divided()
    backlog.now += waited_ms
    destinations = Destinations()
    for _ in range(4):
        run_round(backlog, destinations, most=most)
        most = 10
        backlog.now += 500
    assert backlog.dead == []
    assert backlog.home == {"a": ["before", "big", "after"]}


def test_parts_whose_others_never_come_keep_nobody_and_are_set_aside_in_the_end() -> None:
    backlog = divided()
    del backlog.queues[Q][2]
    destinations = Destinations()
    run_round(backlog, destinations)
    assert backlog.home == {"a": ["before", "after"]}
    ends = backlog.now + PARTS_MS + 10 * 60_000
    while not backlog.dead:
        assert backlog.now < ends
        backlog.now += 30_000
        run_round(backlog, destinations)
    assert backlog.dead[0][1] == "TwinbusIncompleteMessage"
    assert backlog.is_empty()


@pytest.mark.parametrize("ttl", [2**40, -5, "an hour", [1]])
def test_a_sealed_message_with_nonsense_for_a_time_to_live_keeps_nobody(ttl: object) -> None:
    backlog = filled("a", "a")
    inside = b"\x00\x53\x70" + encode_list([None, None, ttl]) + b"\x00\x53\x75\xa0\x01x"
    backlog.put(Q, sealed(inside, **{"x-ms-path": "a"}))
    backlog.divert(Q, "a", plain("3"))
    tallies = carry(backlog, Orders(deducts=True))
    assert outcomes(tallies) == {Outcome.MOVED: 3, Outcome.DEAD: 1}
    assert backlog.home == {"a": ["1", "2", "3"]}
    assert backlog.dead[0][1] == "TwinbusEnvelope"


NONSENSE: list[dict[str, object]] = [
    {"x-ms-part": 5, "x-ms-parts": 3},
    {"x-ms-part": -1, "x-ms-parts": 3},
    {"x-ms-part": "one", "x-ms-parts": 3},
    {"x-ms-part": 0, "x-ms-parts": 0},
    {"x-ms-part": 0, "x-ms-parts": 1},
    {"x-ms-part": 0, "x-ms-parts": [3]},
    {"x-ms-part": 0},
]


@pytest.mark.parametrize("numbers", NONSENSE)
@pytest.mark.parametrize("first", [True, False])
def test_a_part_with_nonsense_for_its_numbers_is_set_aside_alone(
    numbers: dict[str, object], first: bool
) -> None:
    """It says that it belongs to a message whose parts are well; those come home all the same."""
    parts = envelope.pack(plain("big", random.Random(7).randbytes(9000)), "a", 6000)
    group = envelope.place_of(parts[0])
    assert group is not None
    bad = sealed(b"noise", **{"x-ms-path": "a", "x-ms-partof": group[0], **numbers})
    backlog = Backlog()
    backlog.divert(Q, "a", plain("before"))
    for each in [bad, *parts] if first else [*parts[:1], bad, *parts[1:]]:
        backlog.put(Q, each)
    backlog.divert(Q, "a", plain("after"))
    assert outcomes(carry(backlog)) == {Outcome.MOVED: 3, Outcome.DEAD: 1}
    assert sorted(backlog.home["a"]) == ["after", "before", "big"]
    assert backlog.is_empty()


def test_parts_that_do_not_add_up_are_set_aside_all_of_them() -> None:
    parts = envelope.pack(plain("big", random.Random(7).randbytes(9000)), "a", 6000)
    damaged = bytearray(parts[0])
    damaged[-1] ^= 1
    backlog = filled("a")
    for each in (bytes(damaged), *parts[1:]):
        backlog.put(Q, each)
    assert outcomes(carry(backlog)) == {Outcome.MOVED: 1, Outcome.DEAD: 1}
    assert len(backlog.dead) == len(parts)
    assert "x-ms-checksum" in backlog.dead[0][2]
    assert backlog.is_empty()


def test_a_destination_that_will_never_be_one_is_told_from_one_that_is_down() -> None:
    """No queue of that name can be: what is for it is set aside, with what was said."""
    backlog = filled("[", "a")
    limit = backlog.limit

    def asked(destination: str) -> int:
        if destination == "[":
            raise RefusedError("no such name")
        return limit(destination)

    backlog.limit = asked  # type: ignore[method-assign]
    assert outcomes(carry(backlog)) == {Outcome.MOVED: 1, Outcome.DEAD: 1}
    assert backlog.dead == [("1", "RefusedByDestination", "no such name")]


@pytest.mark.parametrize("deducts", [True, False])
def test_what_is_odd_is_set_aside_with_a_reason_and_what_is_legal_comes_home(
    deducts: bool,
) -> None:
    backlog = Backlog()
    odd = {**ODD, **UNREADABLE}
    for each in odd.values():
        backlog.put(Q, each)
        backlog.divert(Q, "good", plain("1"))
    for named in (True, False):
        backlog.put(Q, otherwise(envelope.wrap(plain("1"), "good"), named))
    assert outcomes(carry(backlog, Orders(deducts=deducts))) == {
        Outcome.MOVED: len(odd) + 2,
        Outcome.DEAD: len(odd),
    }
    assert backlog.home == {"good": ["1"] * (len(odd) + 2)}
    assert {reason for _, reason, _ in backlog.dead} == {"TwinbusEnvelope"}
    for each in STRANGE.values():
        backlog.put(Q, each)
    assert outcomes(carry(backlog, Orders(deducts=deducts))) == {Outcome.MOVED: len(STRANGE)}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(damaged(), max_size=5), st.booleans())
def test_good_messages_come_home_whatever_lies_between_them(
    bad: list[bytes], deducts: bool
) -> None:
    """Through Arrow, as on the way from Spark's source; and into a batch, as on the way out."""
    backlog = Backlog()
    backlog.divert(Q, "good", plain("first"))
    for each in bad:
        backlog.put(Q, each)
        backlog.divert(Q, "good", plain("next"))
    send = backlog.send

    def sent(destination: str, parcels: Sequence[Parcel]) -> None:
        batch_of([parcel.message for parcel in parcels])
        send(destination, parcels)

    backlog.send = sent  # type: ignore[method-assign]
    tallies = carry(backlog, Orders(deducts=deducts))
    assert backlog.home["good"].count("first") + backlog.home["good"].count("next") >= len(bad) + 1
    assert sum(each.messages for each in tallies) <= 2 * len(bad) + 1
    for name, reason, description in backlog.dead:
        assert reason
        assert description, name


def test_a_transfer_is_as_large_as_the_destination_takes_and_never_larger() -> None:
    assert list(in_transfers([], 100)) == []
    assert list(in_transfers([10**9], 100)) == [slice(0, 1)]


@given(st.lists(st.integers(0, 3000), max_size=50), st.integers(BATCH_OVERHEAD, 8000))
def test_transfers_have_every_message_once_and_in_order(sizes: list[int], limit: int) -> None:
    slices = list(in_transfers(sizes, limit))
    assert [size for each in slices for size in sizes[each]] == sizes
    for each in slices:
        inside = sizes[each]
        assert len(inside) == 1 or sum(inside) + 8 * len(inside) + BATCH_OVERHEAD <= limit


def test_no_more_is_sent_at_once_than_can_be_settled_within_its_locks() -> None:
    backlog = filled(*["a"] * (MOST_AT_ONCE + 20))
    carry(backlog)
    assert backlog.transfers == [MOST_AT_ONCE, 20]


# ---------------------------------------------------------------- any sequence of failures

QUEUES = ("q/x-servicebus-transfer/0", "q/x-servicebus-transfer/1")
PLACES = ("a", "b", "c")


def check_order(backlog: Backlog, sent: dict[str, tuple[str, str]]) -> None:
    """As first accepted, the messages of one queue and destination are in their order."""
    for destination, ids in backlog.home.items():
        for queue in QUEUES:
            first = list(dict.fromkeys(i for i in ids if sent[i] == (queue, destination)))
            assert first == sorted(first, key=int), (queue, destination, first)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_nothing_overtakes_and_nothing_is_lost_whatever_fails(data: Any) -> None:
    draw = data.draw
    backlog = Backlog(limits=draw(st.sampled_from([LIMIT, 1100])))
    destinations = Destinations()
    sent: dict[str, tuple[str, str]] = {}
    refused = draw(st.sets(st.integers(1, 40).map(str), max_size=3))
    calm = False

    def divert(count: int) -> None:
        for _ in range(count):
            queue, place = draw(st.sampled_from(QUEUES)), draw(st.sampled_from(PLACES))
            name = str(len(sent) + 1)
            sent[name] = (queue, place)
            backlog.divert(queue, place, plain(name))

    def on_send(destination: str, ids: Sequence[str]) -> None:
        if refused & set(ids):
            raise RefusedError("never")
        if calm:
            return
        backlog.now += draw(st.sampled_from([0, 0, 100, 25_000, 61_000]))
        match draw(st.sampled_from(["yes", "yes", "no", "busy"])):
            case "no":
                raise UnavailableError("not now")
            case "busy":
                raise BusyError("wait")

    def on_settle(act: str, tokens: Sequence[UUID]) -> list[UUID]:
        if calm or not tokens:
            return []
        lost: list[UUID] = draw(st.sampled_from([[], [], [tokens[-1]], list(tokens)]))
        return lost

    backlog.on_send, backlog.on_settle = on_send, on_settle
    for _ in range(draw(st.integers(1, 8))):
        divert(draw(st.integers(0, 5)))
        backlog.now += draw(st.sampled_from([0, 500, 5_000, 59_000, 63_000]))
        run_round(backlog, destinations, most=draw(st.integers(1, 8)))
        check_order(backlog, sent)
        accepted = {i for ids in backlog.home.values() for i in ids}
        assert set(backlog.completed) <= accepted
    calm = True
    for _ in range(200):
        if backlog.is_empty():
            break
        backlog.now += 500
        run_round(backlog, destinations)
        backlog.now += 5_000
    check_order(backlog, sent)
    dead = {name for name, _, _ in backlog.dead}
    assert {i for ids in backlog.home.values() for i in ids} == sent.keys() - dead
    assert dead == refused & sent.keys()
    assert backlog.is_empty()
