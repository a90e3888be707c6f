from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.accounts.ledgers import BACKLOG, PRIMARY, Book, at

from twinbus.auth.signature import Key
from twinbus.dashboard.asking import DOWN, UNREADABLE, UP, AskedAt, Watched
from twinbus.dashboard.chronicle import Chronicle
from twinbus.dashboard.follower import LedgerFollower
from twinbus.dashboard.rates import Rates
from twinbus.dashboard.readings import Reading
from twinbus.dashboard.view import LedgerState, document

NOW = at("11-18 12:05")


class Scene:
    """Two namespaces and a ledger; a test says what they say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.primary = self._watched("primary", PRIMARY)
        self.secondary = self._watched("secondary", "fabrikam.example.net")
        self.primary.reading = Reading(NOW, {"orders": {"active_messages": 3}})
        self.primary.state = UP
        self.waits(0)

    def _watched(self, role: str, host: str) -> Watched:
        return Watched(AskedAt(role, Key(host, "root", "secret-key", plain=True)))

    def waits(self, messages: int) -> None:
        numbers = {"active_messages": float(messages)}
        self.secondary.reading, self.secondary.state = Reading(NOW, {BACKLOG: numbers}), UP

    def silent(self, watched: Watched, state: str = DOWN) -> None:
        watched.reading, watched.error, watched.state = None, "nobody listens", state

    def show(self) -> dict[str, Any]:
        books = LedgerFollower(self.folder, Chronicle(PRIMARY))
        books.refresh(NOW)
        state = LedgerState("", NOW, 0)
        return document(NOW, self.primary, self.secondary, books.chronicle, Rates(), None, state)

    def entity(self, path: str = "orders") -> dict[str, Any]:
        found: dict[str, Any]
        (found,) = [each for each in self.show()["entities"] if each["path"] == path]
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_all_is_well(scene: Scene) -> None:
    with Book(scene.folder) as book:
        book.send("11-18 12:04", "1")
    shown = scene.show()
    assert shown["headline"]["tone"] == "calm"
    assert scene.entity()["state"] == "healthy"
    assert "secret-key" not in str(shown)


def test_nobody_reports_on_an_entity(scene: Scene) -> None:
    assert scene.entity()["state"] == "no report"
    assert scene.show()["headline"]["tone"] == "calm"


def test_an_entity_that_is_out_is_the_headline(scene: Scene) -> None:
    with Book(scene.folder) as book:
        book.turn("11-18 12:04", "divert")
        book.divert("11-18 12:04", "1", "2")
    scene.waits(2)
    scene.silent(scene.primary)
    headline = scene.show()["headline"]
    assert headline == {
        "tone": "alarm",
        "text": "orders is out",
        "detail": "Sends are diverted, and 2 messages wait in the backlog.",
    }
    assert scene.entity()["waiting"] == 2
    assert scene.entity()["active"] is None


def test_an_entity_that_is_back_comes_home_until_nothing_waits_for_it(scene: Scene) -> None:
    with Book(scene.folder) as book:
        book.turn("11-18 12:01", "divert")
        book.divert("11-18 12:02", "1", "2")
        book.turn("11-18 12:03", "restore")
    scene.waits(2)
    assert scene.entity()["state"] == "coming home"
    assert scene.show()["headline"]["tone"] == "watch"
    scene.waits(0)  # the secondary knows before the ledger does
    assert scene.entity()["state"] == "healthy"
    assert scene.show()["headline"]["tone"] == "calm"


def test_what_the_ledger_does_not_tell_of_is_told_apart(scene: Scene) -> None:
    with Book(scene.folder) as book:
        book.divert("11-18 12:04", "1", "2")
    scene.waits(5)
    backlog = scene.show()["backlog"]
    assert [(e["destination"], e["messages"]) for e in backlog["destinations"]] == [("orders", 2)]
    assert (backlog["total"], backlog["untold"]) == (5, 3)


def test_where_fewer_are_left_than_the_ledger_tells_the_queue_is_right(scene: Scene) -> None:
    with Book(scene.folder) as book:
        book.divert("11-18 12:04", *"abcdefgh")
        book.divert("11-18 12:04", *"xy", entity="payments")
    scene.waits(5)
    told = {e["destination"]: e["messages"] for e in scene.show()["backlog"]["destinations"]}
    assert told == {"orders": 4, "payments": 1}


@pytest.mark.parametrize(
    ("down", "tone", "words"),
    [
        (("primary",), "alarm", "The primary is down"),
        (("secondary",), "watch", "The secondary is down"),
        (("primary", "secondary"), "alarm", "Both namespaces are down"),
    ],
)
def test_a_namespace_that_is_down_is_said(
    scene: Scene, down: tuple[str, ...], tone: str, words: str
) -> None:
    for role in down:
        scene.silent(getattr(scene, role))
    headline = scene.show()["headline"]
    assert (headline["tone"], headline["text"]) == (tone, words)


def test_a_namespace_that_cannot_be_read_is_said(scene: Scene) -> None:
    scene.silent(scene.secondary, UNREADABLE)
    shown = scene.show()
    assert (shown["headline"]["tone"], shown["headline"]["text"]) == (
        "watch",
        "The secondary cannot be read",
    )
    assert shown["backlog"]["total"] is None
    with Book(scene.folder) as book:
        book.turn("11-18 12:04", "divert")
    assert "is not known" in scene.show()["headline"]["detail"]


def test_readings_that_nobody_renews_are_stale_since_the_last(scene: Scene) -> None:
    scene.primary.reading = Reading(NOW - 11, {"orders": {"active_messages": 3}})
    shown = scene.show()
    assert (shown["namespaces"][0]["state"], shown["namespaces"][0]["since"]) == ("stale", NOW - 11)
    assert shown["headline"]["text"] == "The primary cannot be read"


def test_trouble_comes_first_and_a_long_list_is_cut(scene: Scene) -> None:
    with Book(scene.folder) as book:
        for number in range(300):
            book.send("11-18 12:04", str(number), entity=f"q{number:03}")
        book.turn("11-18 12:04", "suspect", entity="zebra")
    shown = scene.show()
    assert shown["entities"][0]["path"] == "zebra"
    assert (len(shown["entities"]), shown["entities_in_all"]) == (200, 302)
