from __future__ import annotations

from dataclasses import replace

import pytest

from twinbus.dashboard.login import Decision, Login, RequestFacts

PORT = 5380
TOKEN = "open-sesame"
HOST = f"127.0.0.1:{PORT}"


@pytest.fixture
def login() -> Login:
    return Login(PORT, TOKEN)


def facts(login: Login, **more: str) -> RequestFacts:
    """Somebody who has been let in before."""
    cookie = login.cookie.partition(";")[0]
    return replace(RequestFacts("GET", HOST, "", cookie, ""), **more)


def test_who_has_the_token_gets_the_cookie_and_who_has_the_cookie_comes_in(login: Login) -> None:
    assert login.decide(RequestFacts("GET", HOST, "", "", TOKEN)) is Decision.GIVE_COOKIE
    assert login.decide(facts(login)) is Decision.LET_IN
    assert "HttpOnly" in login.cookie
    assert "SameSite=Strict" in login.cookie
    assert TOKEN not in login.cookie


@pytest.mark.parametrize("cookies", ["", "twinbus-5380=", "twinbus-5380=guess", "a=b", "=;;=\x00"])
def test_a_stranger_stays_outside(login: Login, cookies: str) -> None:
    assert login.decide(facts(login, cookies=cookies)) is Decision.STRANGER
    assert login.decide(facts(login, cookies=cookies, token="guess")) is Decision.STRANGER


def test_the_cookie_of_another_start_is_worth_nothing(login: Login) -> None:
    assert login.decide(facts(Login(PORT, TOKEN))) is Decision.STRANGER


@pytest.mark.parametrize(
    "host", ["evil.example.net", f"evil.example.net:{PORT}", "127.0.0.1", "127.0.0.1:80", ""]
)
def test_another_name_that_leads_here_is_turned_away_even_with_the_cookie(
    login: Login, host: str
) -> None:
    assert login.decide(facts(login, host=host)) is Decision.WRONG_HOST
    assert login.decide(facts(login, host=host, token=TOKEN)) is Decision.WRONG_HOST


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example.net", "http://127.0.0.1:3000", f"https://{HOST}"]
)
def test_a_page_of_another_origin_changes_nothing(login: Login, origin: str) -> None:
    assert login.decide(facts(login, method="POST", origin=origin)) is Decision.WRONG_ORIGIN


def test_our_own_page_may(login: Login) -> None:
    assert login.decide(facts(login, method="POST", origin=f"http://{HOST}")) is Decision.LET_IN
    assert (
        login.decide(RequestFacts("POST", HOST, f"http://{HOST}", "", TOKEN)) is Decision.STRANGER
    )
