from __future__ import annotations

from twinbus.accounts.attribution import home_of
from twinbus.dashboard.rates import Rates
from twinbus.dashboard.readings import Reading, is_backlog, parse

TEXT = """\
# HELP twinbus_messages_in_total Messages taken in.
# TYPE twinbus_messages_in_total counter
twinbus_messages_in_total{namespace="p",entity="orders"} 12
twinbus_messages_in_total{namespace="p",entity="news"} 7
twinbus_messages_in_total{namespace="p",entity="news/Subscriptions/a"} 7
twinbus_messages_in_total{namespace="p",entity="news/Subscriptions/b"} 5
twinbus_messages_in_total{namespace="p",entity="orders/$deadletterqueue"} 3
twinbus_active_messages{namespace="p",entity="news/Subscriptions/a"} 2
twinbus_active_messages{namespace="p",entity="news/Subscriptions/b"} 1
twinbus_active_messages{namespace="p",entity="odd \\"name\\" \\\\ here"} 1
twinbus_connections{namespace="p"} 4
twinbus_links{namespace="p"} 2
other_metric nonsense
"""
BACKLOG = "contoso/x-servicebus-transfer/0"


def test_numbers_are_read_by_entity_and_the_rest_is_passed_over() -> None:
    reading = parse(TEXT, 5.0)
    assert reading.entities["orders"]["messages_in_total"] == 12
    assert (reading.at, reading.connections, reading.links) == (5.0, 4, 2)
    assert 'odd "name" \\ here' in reading.entities


def test_a_topic_was_sent_what_it_counts_itself_and_holds_what_its_subscriptions_hold() -> None:
    found = parse(TEXT, 0).sent_to
    assert found["news"] == {"messages_in_total": 7, "active_messages": 3}
    assert found["orders"] == {"messages_in_total": 12}, "dead letters are no sends"


def test_paths_say_what_they_are() -> None:
    assert is_backlog(BACKLOG)
    assert not is_backlog(f"{BACKLOG}/$deadletterqueue")
    assert home_of("News/subscriptions/a/$DeadLetterQueue") == "News"
    assert home_of("a/b/c") == "a/b/c"


def reading(**counts: float) -> Reading:
    names = {"sent": ("orders", "messages_in_total"), "diverted": (BACKLOG, "messages_in_total")}
    entities: dict[str, dict[str, float]] = {}
    for name, value in counts.items():
        path, metric = names.get(name, (BACKLOG, f"{name}"))
        entities.setdefault(path, {})[metric] = value
    return Reading(0, entities)


def test_counters_become_rates() -> None:
    rates = Rates()
    rates.add(10, reading(sent=100), reading(diverted=5, completed_total=0, active_messages=5))
    rates.add(12, reading(sent=140), reading(diverted=9, completed_total=3, active_messages=6))
    drawn = rates.as_json()
    assert drawn["times"] == [10, 12]
    assert drawn["arrived"] == [None, 20]
    assert drawn["diverted"] == [None, 2]
    assert drawn["home"] == [None, 1.5]
    assert drawn["backlog"] == [5, 6]


def test_a_namespace_that_does_not_answer_leaves_a_gap_not_a_zero() -> None:
    rates = Rates()
    for at, told in ((1, reading(sent=10)), (2, None), (3, reading(sent=30))):
        rates.add(at, told, None)
    assert rates.as_json()["arrived"] == [None, None, 10]
    assert rates.as_json()["backlog"] == [None, None, None]


def test_a_counter_that_fell_began_anew_with_its_process() -> None:
    rates = Rates()
    rates.add(1, reading(sent=1000), None)
    rates.add(2, reading(sent=4), None)
    assert rates.as_json()["arrived"] == [None, 4]


def test_only_the_last_minutes_are_kept() -> None:
    rates = Rates()
    for at in range(1000):
        rates.add(at, reading(sent=at), None)
    assert {len(points) for points in rates.as_json().values()} == {300}
