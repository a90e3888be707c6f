"""Shared access signatures: who signed, for what, until when."""

from __future__ import annotations

from urllib.parse import quote_plus

import pytest

from twinbus.auth.access_rules import AccessRule, Claim, new_key, root_rule
from twinbus.auth.signature import signed_with
from twinbus.auth.tokens import AccessError, Grant, Token, resource_path, verify

NOW = 1_000.0
RULE = AccessRule("send-only", "first-key", "second-key", frozenset({Claim.SEND}))


def sas(
    resource: str = "sb://host/orders",
    key: str = "first-key",
    rule: str = "send-only",
    expires: object = 2_000,
) -> str:
    quoted = quote_plus(resource)
    signed = quote_plus(signed_with(key, f"{quoted}\n{expires}"))
    return f"SharedAccessSignature sr={quoted}&sig={signed}&se={expires}&skn={rule}"


def granted(text: str, now: float = NOW) -> Grant:
    return verify(Token.parse(text), [root_rule("root-key"), RULE], now)


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_either_key_of_a_rule_signs(key: str) -> None:
    grant = granted(sas(key=key))
    assert (grant.path, grant.claims, grant.expires_s) == ("orders", RULE.claims, 2_000)


def test_the_order_of_the_parts_does_not_matter() -> None:
    parts = sas().removeprefix("SharedAccessSignature ").split("&")
    assert granted("SharedAccessSignature " + "&".join(reversed(parts))).path == "orders"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (sas(key="wrong"), "not signed with a key of the rule 'send-only'"),
        (sas(rule="nobody"), "there is no rule 'nobody'"),
        (sas(expires=1_000), "has expired"),
        (sas(expires=-5), "has expired"),
        (sas().replace("orders", "others"), "not signed"),
        (sas().replace("se=2000", "se=3000"), "not signed"),
        (sas(expires="soon"), "lacks one of"),
        (sas(expires="nan"), "expire"),
        ("SharedAccessSignature", "lacks one of"),
        ("SharedAccessSignature sr=a&sig=b&se=1", "lacks one of"),
        ("SharedAccessSignature sr=&sig=&se=&skn=", "lacks one of"),
        ("Bearer abc", "not a SharedAccessSignature"),
        ("", "not a SharedAccessSignature"),
        ("SharedAccessSignature sr=a&sig=%C3%A9&se=2000&skn=send-only", "not signed"),
        ("SharedAccessSignature sr=a&sig=\u00e9&se=2000&skn=send-only", "not signed"),
    ],
)
def test_a_bad_token_is_refused_and_no_key_is_named(text: str, reason: str) -> None:
    with pytest.raises(AccessError, match=reason) as caught:
        granted(text)
    assert "first-key" not in str(caught.value)
    assert "root-key" not in str(caught.value)


def test_a_resource_whose_address_cannot_be_read_is_refused() -> None:
    with pytest.raises(AccessError):
        granted(sas("sb://[half/orders"))


def test_a_grant_opens_its_path_and_what_lies_below() -> None:
    grant = Grant("orders", frozenset({Claim.SEND}), 2_000)
    for path in ("orders", "Orders", "orders/$management", "orders/subscriptions/s"):
        assert grant.allows(path, Claim.SEND, NOW)
    for path in ("orders2", "order", "", "other/orders"):
        assert not grant.allows(path, Claim.SEND, NOW)
    assert not grant.allows("orders", Claim.LISTEN, NOW)
    assert not grant.allows("orders", Claim.SEND, 2_000)


def test_a_grant_for_the_namespace_opens_everything() -> None:
    grant = granted(sas("sb://host/", key="root-key", rule="RootManageSharedAccessKey"))
    assert grant.path == ""
    assert all(grant.allows("any/path", claim, NOW) for claim in Claim)


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        ("sb://host:5672/Orders/", "orders"),
        ("amqps://host/a/b", "a/b"),
        ("http://host", ""),
        ("orders", "orders"),
        ("sb://host/a%20b", "a b"),
    ],
)
def test_the_path_of_a_resource(resource: str, path: str) -> None:
    assert resource_path(resource) == path


def test_made_keys_are_long_and_never_the_same() -> None:
    assert new_key() != new_key()
    assert len(new_key()) == 44
