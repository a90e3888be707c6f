"""What a source and a syphon do unless they are told otherwise."""

from __future__ import annotations

import pytest
import typer.main

from twinbus.auth.credentials import CredentialError, Secret
from twinbus.cli import app
from twinbus.spark.source import OptionError, SourceOptions
from twinbus.syphon.query import SyphonError, SyphonOptions

CONNECTION = (
    "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
)
SECRET = Secret(CONNECTION)


def test_the_long_poll_is_fifteen_minutes_unless_told() -> None:
    assert SourceOptions.of({"connection": CONNECTION, "queues": "a"}).long_poll_s == 15 * 60
    assert SyphonOptions(SECRET, SECRET, ("a",)).long_poll_s == 15 * 60
    shorter = SourceOptions.of({"connection": CONNECTION, "queues": "a", "longPoll": "20"})
    assert shorter.long_poll_s == 20
    commands = getattr(typer.main.get_command(app), "commands", {})
    (asked,) = [each for each in commands["syphon"].params if each.name == "long_poll"]
    assert asked.default == 15 * 60, "which is what a pairing's own syphon is started with"


def test_names_of_options_are_not_case_sensitive_and_queues_have_commas() -> None:
    made = SourceOptions.of({"CONNECTION": CONNECTION, "Queues": "a, b/Subscriptions/c,"})
    assert made.queues == ("a", "b/Subscriptions/c")


def test_a_secret_is_shown_by_nothing() -> None:
    made = SourceOptions.of({"connection": CONNECTION, "queues": "a"})
    assert (
        "c2VjcmV0"
        not in f"{made!r} {made.secret} {made.secret!r} {SyphonOptions(SECRET, SECRET, ('a',))}"
    )


def test_a_connection_string_that_is_none_is_not_repeated() -> None:
    with pytest.raises(CredentialError) as refused:
        SourceOptions.of({"connection": "c2VjcmV0", "queues": "a"})
    assert "c2VjcmV0" not in str(refused.value)


@pytest.mark.parametrize("options", [{}, {"connection": CONNECTION, "connectionEnv": "HOME"}])
def test_exactly_one_place_has_the_connection_string(options: dict[str, str]) -> None:
    with pytest.raises(CredentialError, match="exactly one"):
        SourceOptions.of({**options, "queues": "a"})


def test_a_syphon_without_queues_or_with_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(SyphonError, match="no backlog queue"):
        SyphonOptions(SECRET, SECRET, ())
    with pytest.raises(SyphonError, match="above zero"):
        SyphonOptions(SECRET, SECRET, ("a",), rate=0)
    with pytest.raises(OptionError, match="which queues"):
        SourceOptions.of({"connection": CONNECTION})
