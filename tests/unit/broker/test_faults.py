"""Which faults are on, and that none of them costs anything while it is not."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from harness.conversations import NOW, Conversation

from twinbus.amqp.link_endpoint import RECEIVER, SENDER
from twinbus.broker.fault_kinds import ANY_FRAGMENT, FRAGMENTS, KINDS, Act, Faults, fragment_of
from twinbus.broker.refusals import ArgumentError


def begun(kind: str, entity: str | None = None, seconds: float = 60, **settings: Any) -> Faults:
    faults = Faults()
    faults.start(kind, entity, seconds, settings, NOW)
    return faults


# --- which are on ---------------------------------------------------------------------------


def test_a_fault_is_over_when_its_time_is() -> None:
    faults = begun("throttling", seconds=2)
    assert faults.expire(NOW + 1_999) == []
    (over,) = faults.expire(NOW + 2_000)
    assert over.kind.name == "throttling"
    assert not faults
    assert faults.refusal(Act.SEND, "orders", 1, NOW + 2_000) is None


@pytest.mark.parametrize(
    ("path", "covered"),
    [
        ("orders", True),
        ("ORDERS", True),
        ("orders/$deadletterqueue", True),
        ("orders/Subscriptions/audit", True),
        ("orders/eu", False),
        ("orders-eu", False),
        ("bills", False),
    ],
)
def test_a_fault_concerns_its_entity_and_what_lies_in_it(path: str, covered: bool) -> None:
    faults = begun("sends-refused", "Orders")
    assert (faults.find("sends-refused", path) is not None) == covered
    assert (faults.refusal(Act.SEND, path, 1, NOW) is not None) == covered


def test_a_fault_of_the_namespace_concerns_everything() -> None:
    assert begun("no-answer").find("no-answer", "any/thing") is not None


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("sends-refused", {Act.SEND}),
        ("receives-refused", {Act.RECEIVE}),
        ("management-refused", {Act.MANAGE}),
        ("unreachable", set(Act)),
        ("node-restart", set(Act)),
        ("throttling", set(Act)),
        ("no-answer", set()),
        ("answers-lost", set()),
        ("store-and-forward", set()),
    ],
)
def test_each_kind_refuses_what_it_says(kind: str, refused: set[Act]) -> None:
    faults = begun(kind)
    assert {act for act in Act if faults.refusal(act, "orders", 1, NOW)} == refused


def test_a_message_takes_fifteen_minutes_to_appear_at_most_and_unless_told() -> None:
    faults = Faults()
    late = faults.start("store-and-forward", "q", 60, {}, 0)
    assert late.settings == {"delay_s": 15 * 60}
    with pytest.raises(ArgumentError, match=r"delay_s is 901; use a number from 0\.1 to 900"):
        faults.start("store-and-forward", "q", 60, {"delay_s": 15 * 60 + 1}, 0)


def test_credits_come_back_by_the_second_and_are_not_saved_up() -> None:
    faults = begun("throttling", rate=10)

    def taken(now_ms: int) -> int:
        """How many sends of one message each go through at this moment."""
        count = 0
        while faults.refusal(Act.SEND, "orders", 1, now_ms) is None:
            count += 1
        return count

    assert taken(NOW) == 10
    assert taken(NOW) == 0
    assert taken(NOW + 500) == 5
    assert taken(NOW + 60_000) == 10
    assert faults.refusal(Act.SEND, "orders", 11, NOW + 120_000) is not None
    assert faults.refusal(Act.MANAGE, "orders", 10, NOW + 120_000) is None


def test_a_throttled_partitioned_entity_suffers_in_a_quarter_of_its_fragments() -> None:
    faults = begun("throttling", "orders")
    refused = {
        fragment
        for fragment in range(FRAGMENTS)
        if faults.refusal(Act.SEND, "orders", 1, NOW, fragment) is not None
    }
    assert len(refused) == FRAGMENTS // 4
    keys = [fragment_of(None, None, str(number)) for number in range(1_000)]
    assert 200 < sum(key in refused for key in keys) < 300
    for act in (Act.SEND, Act.RECEIVE, Act.MANAGE):
        assert faults.refusal(act, "orders", 1, NOW, ANY_FRAGMENT) is None
        assert faults.refusal(act, "orders", 1, NOW) is not None, "one of one piece"


def test_each_fragment_has_credits_of_its_own() -> None:
    faults = begun("throttling", rate=2)
    hit = [each for each in range(FRAGMENTS) if next(iter(faults)).throttles(each)]
    for fragment in hit:
        told = [faults.refusal(Act.SEND, "orders", 1, NOW, fragment) for _ in range(3)]
        assert [each is None for each in told] == [True, True, False]


def test_another_fault_of_a_partitioned_entity_is_the_whole_entitys() -> None:
    assert begun("sends-refused").refusal(Act.SEND, "orders", 1, NOW, ANY_FRAGMENT) is not None


def test_what_belongs_together_lies_in_one_fragment() -> None:
    assert fragment_of("a", "b", "c") == fragment_of("a", None, 7)
    assert fragment_of(None, "b", "c") == fragment_of(None, "b", 7)
    assert fragment_of(None, None, b"\xff") in range(FRAGMENTS)
    assert fragment_of(None, None, None) in range(FRAGMENTS)
    assert {fragment_of(None, None, number) for number in range(500)} == set(range(FRAGMENTS))


def test_a_link_costs_no_credit() -> None:
    assert begun("throttling", rate=0).refusal(Act.SEND, "orders", 0, NOW) is None


def test_the_refusal_names_azures_error() -> None:
    error = begun("throttling").refusal(Act.SEND, "orders", 1, NOW)
    assert error is not None
    assert error.condition == "com.microsoft:server-busy"
    assert "Error code: 50009. Please wait 2 seconds and try again." in str(error)
    chosen = begun("sends-refused", condition="amqp:not-found")
    refusal = chosen.refusal(Act.SEND, "orders", 1, NOW)
    assert refusal is not None
    assert refusal.condition == "amqp:not-found"


def test_two_faults_of_one_entity_end_each_by_itself() -> None:
    faults = Faults()
    short = faults.start("sends-refused", "orders", 1, {}, NOW)
    long = faults.start("sends-refused", None, 9, {}, NOW)
    faults.expire(NOW + 1_000)
    assert [fault.id for fault in faults] == [long.id]
    assert faults.refusal(Act.SEND, "orders", 1, NOW + 1_000) is not None
    with pytest.raises(ArgumentError, match=f"there is no fault {short.id}"):
        faults.clear(short.id)
    assert faults.clear(None) == [long]


def test_a_fault_that_is_refused_changes_nothing() -> None:
    faults = Faults()
    for kind, entity, seconds, settings in (
        ("meteor", None, 1, {}),
        ("slow-store", "orders", 1, {}),
        ("slow-store", None, 0, {}),
        ("slow-store", None, float("nan"), {}),
        ("slow-store", None, 1, {"delay_s": 61}),
        ("sends-refused", None, 1, {"condition": "no-such-thing"}),
    ):
        with pytest.raises(ArgumentError):
            faults.start(kind, entity, seconds, settings, NOW)
    assert not faults


def test_every_kind_has_a_kebab_case_name_and_a_sentence() -> None:
    for name, kind in KINDS.items():
        assert name == kind.name
        assert name.replace("-", "").isalpha()
        assert name.islower()
        assert kind.text.endswith(".")


# --- what they cost while off -----------------------------------------------------------------


@pytest.fixture
def conversation(tmp_path: Path) -> Iterator[Conversation]:
    conversation = Conversation(tmp_path)
    yield conversation
    conversation.store.close()


def lines_run(act: Callable[[], None]) -> list[str]:
    """The lines of the broker that something runs and that have to do with faults."""
    lines: list[str] = []

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        name = frame.f_code.co_filename
        if "/broker/" not in name:
            return None
        line = linecache.getline(name, frame.f_lineno)
        fault = Path(name).stem in ("faults", "trouble") or "trouble" in line
        if event == "line" and fault:
            lines.append(line.strip())
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return lines


def test_while_no_fault_is_on_a_hundred_messages_that_are_read_at_once_ask_once(
    conversation: Conversation,
) -> None:
    sender, receiver = (
        conversation.attach(SENDER, "orders"),
        conversation.attach(RECEIVER, "orders"),
    )
    one = lines_run(lambda: conversation.send(sender, 1))
    hundred = lines_run(lambda: conversation.send(sender, 100))
    asked = "if trouble is not None:"
    assert one.count(asked) == hundred.count(asked) == 1
    assert hundred == one, "and nothing of the faults themselves is run"
    received = lines_run(lambda: conversation.receive(receiver, 101))
    assert received.count(asked) == 2, "for the credit, and for a hundred settlements"
    assert set(received) == set(one)
