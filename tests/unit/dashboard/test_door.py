from __future__ import annotations

from dataclasses import replace

import pytest

from twinbus.dashboard.door import Door, Knock, Verdict

PORT = 5380
TOKEN = "open-sesame"
HOST = f"127.0.0.1:{PORT}"


@pytest.fixture
def door() -> Door:
    return Door(PORT, TOKEN)


def knock(door: Door, **more: str) -> Knock:
    """Somebody who has been let in before."""
    cookie = door.cookie.partition(";")[0]
    return replace(Knock("GET", HOST, "", cookie, ""), **more)


def test_who_has_the_token_gets_the_cookie_and_who_has_the_cookie_comes_in(door: Door) -> None:
    assert door.judge(Knock("GET", HOST, "", "", TOKEN)) is Verdict.EXCHANGE
    assert door.judge(knock(door)) is Verdict.ENTER
    assert "HttpOnly" in door.cookie
    assert "SameSite=Strict" in door.cookie
    assert TOKEN not in door.cookie


@pytest.mark.parametrize("cookies", ["", "twinbus-5380=", "twinbus-5380=guess", "a=b", "=;;=\x00"])
def test_a_stranger_stays_outside(door: Door, cookies: str) -> None:
    assert door.judge(knock(door, cookies=cookies)) is Verdict.STRANGER
    assert door.judge(knock(door, cookies=cookies, token="guess")) is Verdict.STRANGER


def test_the_cookie_of_another_start_is_worth_nothing(door: Door) -> None:
    assert door.judge(knock(Door(PORT, TOKEN))) is Verdict.STRANGER


@pytest.mark.parametrize(
    "host", ["evil.example.net", f"evil.example.net:{PORT}", "127.0.0.1", "127.0.0.1:80", ""]
)
def test_another_name_that_leads_here_is_turned_away_even_with_the_cookie(
    door: Door, host: str
) -> None:
    assert door.judge(knock(door, host=host)) is Verdict.WRONG_HOST
    assert door.judge(knock(door, host=host, token=TOKEN)) is Verdict.WRONG_HOST


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example.net", "http://127.0.0.1:3000", f"https://{HOST}"]
)
def test_a_page_of_another_origin_changes_nothing(door: Door, origin: str) -> None:
    assert door.judge(knock(door, method="POST", origin=origin)) is Verdict.WRONG_ORIGIN


def test_our_own_page_may(door: Door) -> None:
    assert door.judge(knock(door, method="POST", origin=f"http://{HOST}")) is Verdict.ENTER
    assert door.judge(Knock("POST", HOST, f"http://{HOST}", "", TOKEN)) is Verdict.STRANGER
