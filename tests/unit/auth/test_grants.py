"""What a connection may do with the tokens that were put on it, without a broker."""

from __future__ import annotations

from urllib.parse import quote_plus

import pytest

from twinbus.auth.access_rules import AccessRule, Claim, root_rule
from twinbus.auth.grants import Grants
from twinbus.auth.signature import signed_with
from twinbus.auth.tokens import AccessError
from twinbus.budget import Budget

SENDS = AccessRule("sends", "key", "other", frozenset({Claim.SEND}))


def token(resource: str, key: str = "key", rule: str = "sends", expires: int = 2_000) -> str:
    quoted = quote_plus(resource)
    signature = quote_plus(signed_with(key, f"{quoted}\n{expires}"))
    return f"SharedAccessSignature sr={quoted}&sig={signature}&se={expires}&skn={rule}"


@pytest.fixture
def now() -> list[int]:
    return [1_000_000]


@pytest.fixture
def budget() -> Budget:
    return Budget()


@pytest.fixture
def grants(now: list[int], budget: Budget) -> Grants:
    def rules_of(path: str) -> list[AccessRule]:
        return [root_rule("root"), SENDS] if path.startswith("orders") else [root_rule("root")]

    return Grants(rules_of, lambda: now[0], budget)


def test_without_a_token_nothing_is_allowed(grants: Grants) -> None:
    assert not grants.allow("orders", Claim.SEND)
    assert not grants.open("orders")


def test_a_token_allows_what_its_rule_claims_until_it_expires(
    grants: Grants, now: list[int]
) -> None:
    grants.add("sb://host/orders", token("sb://host/orders"))
    assert grants.allow("orders", Claim.SEND)
    assert grants.open("orders/$management")
    assert not grants.allow("orders", Claim.LISTEN)
    assert not grants.open("events")
    now[0] = 2_000_000
    assert not grants.allow("orders", Claim.SEND)
    assert not grants.open("orders")


def test_a_token_is_good_for_what_it_was_put_for_and_no_more(grants: Grants) -> None:
    whole = token("sb://host/", "root", "RootManageSharedAccessKey")
    grants.add("sb://host/orders", whole)
    assert grants.allow("orders", Claim.MANAGE)
    assert not grants.open("events")
    with pytest.raises(AccessError, match="the token is for 'orders', not for 'events'"):
        grants.add("sb://host/events", token("sb://host/orders"))


def test_a_rule_signs_only_where_it_is_one(grants: Grants, budget: Budget) -> None:
    with pytest.raises(AccessError, match="there is no rule 'sends' here"):
        grants.add("sb://host/events", token("sb://host/events"))
    assert budget.total == 0


def test_what_is_kept_of_tokens_is_counted_once_a_path(grants: Grants, budget: Budget) -> None:
    for _ in range(3):
        grants.add("sb://host/orders", token("sb://host/orders"))
    assert (budget.tokens, budget.total) == (len("orders"), len("orders"))
