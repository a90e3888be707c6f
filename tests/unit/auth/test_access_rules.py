"""Shared access rules, and what none of them can be."""

from __future__ import annotations

import pytest

from twinbus.auth.access_rules import AccessRule, Claim, new_key, root_rule


def test_a_rule_that_manages_does_everything() -> None:
    with pytest.raises(ValueError, match="Send and Listen too"):
        AccessRule("r", "k", "k", frozenset({Claim.MANAGE}))
    with pytest.raises(ValueError, match="claims nothing"):
        AccessRule("r", "k", "k", frozenset())


def test_a_key_is_in_no_text_of_a_rule() -> None:
    key = new_key()
    assert key not in repr(root_rule(key))
