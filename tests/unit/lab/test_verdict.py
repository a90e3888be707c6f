"""The checker: what each of its words means."""

from __future__ import annotations

import json

from twinbus.lab.verdict import MOST_IDS, Attempt, Judgement, Receipt, judge


def sent(id_: str, number: int = 0, *, acknowledged: bool = True) -> Attempt:
    return Attempt(id_, "orders", "s", number, acknowledged)


def got(id_: str, entity: str = "orders", session: str | None = "s") -> Receipt:
    return Receipt(id_, entity, session)


def of(*delivered: str, attempts: list[Attempt]) -> Judgement:
    return judge(attempts, [got(each) for each in delivered], [], [])


def test_a_message_that_was_acknowledged_and_delivered_is_ok() -> None:
    verdict = of("a", attempts=[sent("a")])
    assert verdict.holds
    assert (verdict.attempted.count, verdict.acknowledged.count, verdict.ok.count) == (1, 1, 1)
    assert str(verdict).startswith("1 attempted, 1 acknowledged, 1 ok, 0 waiting, 0 dead-lettered")


def test_acknowledged_and_nowhere_is_lost() -> None:
    verdict = of(attempts=[sent("a")])
    assert verdict.lost.ids == ("a",)
    assert not verdict.holds


def test_what_waits_or_is_set_aside_is_not_lost() -> None:
    verdict = judge([sent("a"), sent("b")], [], ["a"], ["b"])
    assert verdict.holds
    assert (verdict.waiting.ids, verdict.dead_lettered.ids) == (("a",), ("b",))


def test_one_that_was_delivered_counts_as_that_wherever_else_it_lies() -> None:
    verdict = judge([sent("a")], [got("a")], ["a"], ["a"])
    assert (verdict.ok.count, verdict.waiting.count, verdict.dead_lettered.count) == (1, 0, 0)


def test_never_acknowledged_but_delivered_is_recovered_and_no_fault() -> None:
    verdict = of("a", attempts=[sent("a", acknowledged=False)])
    assert verdict.recovered.ids == ("a",)
    assert verdict.holds


def test_never_acknowledged_and_never_delivered_is_not_lost() -> None:
    assert of(attempts=[sent("a", acknowledged=False)]).holds


def test_delivered_but_never_attempted_is_unexpected() -> None:
    verdict = of("z", attempts=[sent("a", acknowledged=False)])
    assert verdict.unexpected.ids == ("z",)
    assert not verdict.holds


def test_delivered_twice_is_duplicated_and_not_out_of_order() -> None:
    verdict = of("a", "b", "a", attempts=[sent("a", 1), sent("b", 2)])
    assert verdict.duplicated.ids == ("a",)
    assert not verdict.out_of_order


def test_two_subscriptions_deliver_once_each() -> None:
    verdict = judge([sent("a")], [got("a", "t/one"), got("a", "t/two")], [], [])
    assert not verdict.duplicated


def test_a_first_delivery_after_a_later_one_is_out_of_order() -> None:
    verdict = of("b", "a", "c", attempts=[sent("a", 1), sent("b", 2), sent("c", 3)])
    assert verdict.out_of_order.ids == ("a",)


def test_sessions_have_no_order_between_them() -> None:
    delivered = [got("b", session="one"), got("a", session="two")]
    assert not judge([sent("a", 1), sent("b", 2)], delivered, [], []).out_of_order


def test_an_attempt_that_was_repeated_is_acknowledged_if_one_was() -> None:
    verdict = of(attempts=[sent("a", 1, acknowledged=False), sent("a", 2)])
    assert (verdict.attempted.count, verdict.lost.ids) == (1, ("a",))


def test_ids_are_few_however_many_there_are() -> None:
    verdict = of(attempts=[sent(str(n)) for n in range(100)])
    assert (verdict.lost.count, len(verdict.lost.ids)) == (100, MOST_IDS)


def test_a_verdict_is_json() -> None:
    told = json.loads(json.dumps(of("z", attempts=[sent("a")]).as_json()))
    assert (told["holds"], told["lost"], told["unexpected"]) == (False, 1, 1)
    assert told["ids"] == {"lost": ["a"], "unexpected": ["z"]}


def test_a_finding_in_a_file_is_a_failure_though_every_message_is_there() -> None:
    verdict = of("a", attempts=[sent("a")])
    assert verdict.with_findings([])["holds"]
    told = verdict.with_findings(["the primary namespace: orders: active is 3 and must be 0"])
    assert (told["holds"], told["lost"], len(told["findings"])) == (False, 0, 1)
