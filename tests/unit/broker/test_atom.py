"""Atom XML: round trips, what the SDK's own code writes and reads, and what is refused.

The SDK's serializer makes the requests and its deserializer reads the answers, so these tests
fail when either side moves.
"""

import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleFilter,
    TrueRuleFilter,
)
from azure.servicebus.management import SqlRuleAction as SdkAction
from azure.servicebus.management import _utils as sdk_utils
from azure.servicebus.management._generated import models as sdk_models
from azure.servicebus.management._models import (
    QueueProperties,
    QueueRuntimeProperties,
    RuleProperties,
    SubscriptionProperties,
    TopicProperties,
)
from hypothesis import given
from hypothesis import strategies as st

from twinbus.auth.access_rules import AccessRule, Claim
from twinbus.broker import atom, durations, markup, rule_markup
from twinbus.broker.atom import Runtime
from twinbus.broker.descriptions import (
    FOREVER,
    Description,
    QueueDescription,
    Status,
    SubscriptionDescription,
    TopicDescription,
)
from twinbus.broker.refusals import AtomError, DescriptionError, RuleError, SqlError
from twinbus.broker.rules import (
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)

# Generated code, whose types promise less than it does.
models: Any = sdk_models
utils: Any = sdk_utils

HOST = "localhost:5673"
AT_MS = 1_700_000_000_123
RUNTIME = Runtime(AT_MS, AT_MS + 1, AT_MS + 2, 5, 4, 3, 2, 1_000, 7)


def entry(content: str, title: str = "q") -> bytes:
    return atom.entry(f"https://{HOST}/{title}", title, "ns", content, AT_MS, AT_MS).encode()


def written(description: Description) -> bytes:
    return entry(atom.write_description(description, RUNTIME, HOST))


def queue_body(inside: str) -> bytes:
    return entry(f'<QueueDescription xmlns="{markup.SERVICE_BUS}">{inside}</QueueDescription>')


def read_queue(inside: str, current: QueueDescription | None = None) -> QueueDescription:
    return atom.read_description(markup.parse(queue_body(inside)), QueueDescription, current)


# --- round trips ------------------------------------------------------------------------

# What XML can hold; the rest is tested by itself.
texts = st.text(
    st.characters(codec="utf-8", exclude_characters="\ufffe\uffff", exclude_categories=["Cs", "Cc"])
    | st.sampled_from("\t\n\r"),
    max_size=20,
)
names = st.text("abcXYZ0189.-_", min_size=1, max_size=20)
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


def spans(low: timedelta, high: timedelta = timedelta(days=10_675_198)) -> Any:
    return st.timedeltas(low, high)


access_rules = st.builds(
    AccessRule,
    name=texts.filter(bool),
    primary_key=texts.filter(bool),
    secondary_key=texts.filter(bool),
    claims=st.sampled_from(
        [
            frozenset(Claim),
            frozenset({Claim.SEND}),
            frozenset({Claim.LISTEN}),
            frozenset({Claim.SEND, Claim.LISTEN}),
        ]
    ),
)
common: dict[str, Any] = {
    "default_ttl": st.just(FOREVER) | spans(timedelta(milliseconds=1)),
    "auto_delete_on_idle": st.just(FOREVER) | spans(timedelta(minutes=5)),
    "enable_batched_operations": st.booleans(),
    "user_metadata": st.none() | texts,
}
sized: dict[str, Any] = {
    "max_size_mb": st.integers(1, 81_920),
    "requires_duplicate_detection": st.booleans(),
    "duplicate_window": spans(timedelta(seconds=20), timedelta(days=7)),
    "enable_partitioning": st.booleans(),
    "enable_express": st.booleans(),
    "access_rules": st.lists(access_rules, max_size=3, unique_by=lambda rule: rule.name).map(tuple),
}
received: dict[str, Any] = {
    "lock_duration": spans(timedelta(seconds=5), timedelta(minutes=5)),
    "requires_session": st.booleans(),
    "dead_lettering_on_expiration": st.booleans(),
    "max_delivery_count": st.integers(1, 2**31 - 1),
    "forward_to": st.none() | paths,
    "forward_dead_letters_to": st.none() | paths,
    "status": st.sampled_from(Status),
}
queues = st.builds(QueueDescription, **common, **sized, **received)
topics = st.builds(
    TopicDescription,
    **common,
    **sized,
    status=st.sampled_from([Status.ACTIVE, Status.DISABLED, Status.SEND_DISABLED]),
    support_ordering=st.booleans(),
)
subscriptions = st.builds(
    SubscriptionDescription, **common, **received, dead_lettering_on_filter_errors=st.booleans()
)


@given(queues | topics | subscriptions)
def test_what_is_written_is_read_again(description: Any) -> None:
    element = markup.parse(written(description))
    kind: Any = atom.described_kind(element)
    assert kind is type(description)
    assert atom.read_description(element, kind) == description


values: Any = (
    texts
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
)
properties = st.dictionaries(st.text("abcdefgh", min_size=1), values, max_size=4)
correlations = st.builds(
    CorrelationFilter,
    label=st.none() | texts.filter(bool),
    to=st.none() | texts.filter(bool),
    content_type=texts.filter(bool),
    properties=properties,
)
sql_filters = st.builds(SqlFilter, st.just("a > 'x & <y>'\r\n OR b = 1"), properties)
actions = st.builds(SqlRuleAction, st.just("SET a = '<&>'"), properties)
rules = st.builds(
    Rule,
    names,
    st.just(TrueFilter()) | st.just(FalseFilter()) | correlations | sql_filters,
    st.none() | actions,
)


@given(rules)
def test_a_rule_that_is_written_is_read_again(rule: Rule) -> None:
    element = markup.parse(entry(rule_markup.write_rule(rule, AT_MS)))
    assert rule_markup.read_rule(element, rule.name) == rule


@given(st.timedeltas())
def test_durations_are_read_as_written(value: timedelta) -> None:
    assert durations.parse_duration(durations.duration(value), "x") == value


@given(st.text())
def test_any_text_at_all_makes_readable_xml(text: str) -> None:
    rule = Rule("r", CorrelationFilter(label=text))
    ElementTree.fromstring(rule_markup.write_rule(rule, AT_MS))


# --- what the SDK writes ----------------------------------------------------------------


def sent(body: Any) -> bytes:
    """The bytes of a request, with what the SDK's pipeline does to them last."""
    data: bytes = ElementTree.tostring(body)
    return data.replace(b"ns1:", b"").replace(b":ns1", b"") if b"<ns1:" in data else data


def sdk_queue(**changes: Any) -> bytes:
    settings: dict[str, Any] = dict.fromkeys(
        [
            *("authorization_rules", "auto_delete_on_idle", "dead_lettering_on_message_expiration"),
            *("default_message_time_to_live", "duplicate_detection_history_time_window"),
            *("availability_status", "enable_batched_operations", "enable_express"),
            *("enable_partitioning", "lock_duration", "max_delivery_count", "status"),
            *("max_size_in_megabytes", "requires_duplicate_detection", "requires_session"),
            *("forward_to", "user_metadata", "forward_dead_lettered_messages_to"),
            "max_message_size_in_kilobytes",
        ]
    )
    properties = QueueProperties("q", **{**settings, **changes})
    content = models.CreateQueueBodyContent(queue_description=properties._to_internal_entity(HOST))
    return sent(models.CreateQueueBody(content=content).serialize(is_xml=True))


def test_a_queue_the_sdk_asks_for_without_settings_has_the_defaults() -> None:
    element = markup.parse(sdk_queue())
    assert atom.read_description(element, QueueDescription) == QueueDescription()


def test_every_setting_the_sdk_sends_for_a_queue_is_read() -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        rights=[AccessRights.SEND],
        key_name="sender",
        primary_key="one",
        secondary_key="two",
    )
    body = sdk_queue(
        authorization_rules=[rule],
        auto_delete_on_idle=timedelta(minutes=7),
        dead_lettering_on_message_expiration=True,
        default_message_time_to_live="P10675199DT2H48M5.477539S",
        duplicate_detection_history_time_window=timedelta(minutes=1),
        enable_batched_operations=False,
        enable_express=True,
        enable_partitioning=True,
        lock_duration=timedelta(seconds=13.5),
        max_delivery_count=3,
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        requires_session=True,
        status="SendDisabled",
        forward_to="a/b",
        user_metadata="<&>",
        forward_dead_lettered_messages_to="c",
        max_message_size_in_kilobytes=256,
    )
    assert atom.read_description(markup.parse(body), QueueDescription) == QueueDescription(
        access_rules=(AccessRule("sender", "one", "two", frozenset({Claim.SEND})),),
        auto_delete_on_idle=timedelta(minutes=7),
        dead_lettering_on_expiration=True,
        duplicate_window=timedelta(minutes=1),
        enable_batched_operations=False,
        enable_express=True,
        enable_partitioning=True,
        lock_duration=timedelta(seconds=13.5),
        max_delivery_count=3,
        max_size_mb=2048,
        requires_duplicate_detection=True,
        requires_session=True,
        status=Status.SEND_DISABLED,
        forward_to="a/b",
        user_metadata="<&>",
        forward_dead_letters_to="c",
    )


TYPED: dict[str, Any] = {
    "a": 1,
    "b": "x",
    "c": True,
    "d": 1.5,
    "e": datetime(2020, 1, 1, tzinfo=UTC),
    "f": timedelta(days=1, seconds=0.5),
    "g": 2**40,
}
CASES = [
    (TrueRuleFilter(), TrueFilter()),
    (FalseRuleFilter(), FalseFilter()),
    (SqlRuleFilter("a = @b", {"@b": 3, "c": "x"}), SqlFilter("a = @b", {"@b": 3, "c": "x"})),
    (
        CorrelationRuleFilter(
            correlation_id="1",
            message_id="2",
            to="3",
            reply_to="4",
            label="5",
            session_id="6",
            reply_to_session_id="7",
            content_type="8",
            properties=TYPED,
        ),
        CorrelationFilter(
            correlation_id="1",
            message_id="2",
            to="3",
            reply_to="4",
            label="5",
            session_id="6",
            reply_to_session_id="7",
            content_type="8",
            properties=TYPED,
        ),
    ),
]


@pytest.mark.parametrize(("asked", "expected"), CASES)
@pytest.mark.parametrize("action", [None, SdkAction("SET a = @x", {"@x": 1})])
def test_rules_pass_between_the_sdk_and_us_both_ways(
    asked: Any, expected: Any, action: SdkAction | None
) -> None:
    properties = RuleProperties("n", filter=asked, action=action, created_at_utc=None)
    description = properties._to_internal_entity()
    content = models.CreateRuleBodyContent(rule_description=description)
    body = models.CreateRuleBody(content=content).serialize(is_xml=True)
    utils.serialize_rule_key_values(body, properties)

    rule = rule_markup.read_rule(markup.parse(sent(body)), "n")
    assert rule.filter == expected
    assert rule.action == (SqlRuleAction("SET a = @x", {"@x": 1}) if action else None)

    element = ElementTree.fromstring(entry(rule_markup.write_rule(rule, AT_MS)))
    internal = models.RuleDescriptionEntry.deserialize(element).content.rule_description
    back = RuleProperties._from_internal_entity("n", internal)
    utils.deserialize_rule_key_values(element, back)
    assert type(back.filter) is type(asked)
    for name in ("correlation_id", "label", "content_type", "session_id", "sql_expression"):
        if type(asked) is not FalseRuleFilter:
            assert getattr(back.filter, name, None) == getattr(asked, name, None)
    for name in ("properties", "parameters"):
        assert (getattr(back.filter, name, None) or {}) == (getattr(asked, name, None) or {})
    if action is None:
        assert back.action is None
    else:
        assert back.action is not None
        assert back.action.parameters == action.parameters
    assert back.created_at_utc == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)


# --- what the SDK reads -----------------------------------------------------------------

FULL = QueueDescription(
    access_rules=(AccessRule("all", "one", "two", frozenset(Claim)),),
    forward_to="target",
    user_metadata="m",
    default_ttl=timedelta(hours=1),
)


def test_the_sdk_reads_a_queue_and_its_update_changes_nothing() -> None:
    element = ElementTree.fromstring(written(FULL))
    internal = models.QueueDescriptionEntry.deserialize(element).content.queue_description
    queue = QueueProperties._from_internal_entity("q", internal)
    assert queue.forward_to == f"sb://{HOST}/target"
    assert queue.default_message_time_to_live == timedelta(hours=1)
    assert queue.max_message_size_in_kilobytes == 256
    assert queue.availability_status == "Available"
    assert queue.authorization_rules is not None
    assert queue.authorization_rules[0].type == "SharedAccessAuthorizationRule"
    content = models.CreateQueueBodyContent(queue_description=queue._to_internal_entity(HOST))
    update = sent(models.CreateQueueBody(content=content).serialize(is_xml=True))
    assert atom.read_description(markup.parse(update), QueueDescription, FULL) == FULL


def test_the_sdk_reads_a_queues_counts_and_dates() -> None:
    element = ElementTree.fromstring(written(FULL))
    internal = models.QueueDescriptionEntry.deserialize(element).content.queue_description
    runtime = QueueRuntimeProperties._from_internal_entity("q", internal)
    assert runtime.active_message_count == 5
    assert runtime.dead_letter_message_count == 4
    assert runtime.scheduled_message_count == 3
    assert runtime.transfer_dead_letter_message_count == 2
    assert runtime.transfer_message_count == 0
    assert runtime.total_message_count == 14
    assert runtime.size_in_bytes == 1_000
    assert runtime.created_at_utc == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)


def test_the_sdk_updates_a_topic_and_a_subscription_without_changing_them() -> None:
    topic = TopicDescription(max_size_mb=2048, requires_duplicate_detection=True)
    element = ElementTree.fromstring(written(topic))
    internal = models.TopicDescriptionEntry.deserialize(element).content.topic_description
    assert internal.subscription_count == 7
    assert internal.message_count_details.scheduled_message_count == 3
    back: Any = TopicProperties._from_internal_entity("t", internal)._to_internal_entity()
    body: Any = models.CreateTopicBody(
        content=models.CreateTopicBodyContent(topic_description=back)
    )
    update = markup.parse(sent(body.serialize(is_xml=True)))
    assert atom.read_description(update, TopicDescription, topic) == topic

    subscription = SubscriptionDescription(requires_session=True, forward_dead_letters_to="d")
    element = ElementTree.fromstring(written(subscription))
    content = models.SubscriptionDescriptionEntry.deserialize(element).content
    internal = content.subscription_description
    properties = SubscriptionProperties._from_internal_entity("s", internal)
    back = properties._to_internal_entity(HOST)
    body = models.CreateSubscriptionBody(
        content=models.CreateSubscriptionBodyContent(subscription_description=back)
    )
    update = markup.parse(sent(body.serialize(is_xml=True)))
    assert atom.read_description(update, SubscriptionDescription, subscription) == subscription


def test_the_sdk_follows_the_next_link_of_a_page_and_stops_without_one() -> None:
    entries = [written(FULL).decode()] * 2
    link = f"https://{HOST}/$Resources/queues?api-version=2024-05&$skip=2&$top=2"

    def page(following: str | None) -> tuple[Any, list[Any]]:
        text = atom.feed(f"https://{HOST}/", "Queues", entries, following, AT_MS)
        feed = models.QueueDescriptionFeed
        found, items = utils.extract_data_template(feed, None, ElementTree.fromstring(text))
        return found, list(items)

    assert page(link)[0] == link
    assert page(None)[0] is None
    assert [item.title for item in page(link)[1]] == ["q", "q"]


def test_the_sdk_takes_an_empty_page_for_not_found() -> None:
    text = atom.feed(f"https://{HOST}/q", "Publicly Listed Services", [], None, AT_MS)
    assert models.QueueDescriptionEntry.deserialize(ElementTree.fromstring(text)).content is None


# --- what other SDKs need ---------------------------------------------------------------


def test_every_boolean_and_number_is_written_and_the_counts_declare_their_prefix() -> None:
    text = written(QueueDescription()).decode()
    for tag in (
        *("MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession", "SizeInBytes"),
        *("DeadLetteringOnMessageExpiration", "MaxDeliveryCount", "EnableBatchedOperations"),
        *("MessageCount", "EnablePartitioning", "EnableExpress", "SupportOrdering"),
        "MaxMessageSizeInKilobytes",
    ):
        assert f"<{tag}>" in text
    assert "<CountDetails xmlns:d2p1=" in text
    assert "P10675199DT2H48M5.4775807S" in text


def test_typed_values_use_the_prefixes_that_the_javascript_sdk_cuts_off() -> None:
    rule = Rule("r", CorrelationFilter(properties={"n": 1}))
    assert 'i:type="d6p1:int">1<' in rule_markup.write_rule(rule, AT_MS)


def test_a_rule_as_the_javascript_sdk_writes_it_is_read() -> None:
    body = f"""<entry xmlns="{atom.ATOM}"><updated>2020-01-01T00:00:00Z</updated>
      <content type="application/xml"><RuleDescription xmlns="{markup.SERVICE_BUS}">
        <Filter p4:type="CorrelationFilter" xmlns:p4="http://www.w3.org/2001/XMLSchema-instance">
          <CorrelationId>abc</CorrelationId><Label/><To/>
          <Properties><KeyValueOfstringanyType><Key>n</Key>
            <Value p4:type="l28:int" xmlns:l28="http://www.w3.org/2001/XMLSchema">3</Value>
          </KeyValueOfstringanyType></Properties></Filter>
        <Action p4:type="EmptyRuleAction" xmlns:p4="http://www.w3.org/2001/XMLSchema-instance"/>
        <Name>r</Name></RuleDescription></content></entry>"""
    rule = rule_markup.read_rule(markup.parse(body.encode()), "r")
    assert rule == Rule("r", CorrelationFilter(correlation_id="abc", properties={"n": 3}))


@pytest.mark.parametrize(
    "text", ["a/b", "/a/b/", "sb://host:1/a/b", "https://host/a/b", "sb://host/a%2Fb"]
)
def test_a_forwarding_target_may_be_an_address(text: str) -> None:
    assert read_queue(f"<ForwardTo>{text}</ForwardTo>").forward_to == "a/b"


def test_an_empty_or_nil_forwarding_target_is_none() -> None:
    instance = "http://www.w3.org/2001/XMLSchema-instance"
    nil = f'<ForwardTo xmlns:i="{instance}" i:nil="true">a</ForwardTo>'
    assert read_queue("<ForwardTo/>").forward_to is None
    assert read_queue(nil).forward_to is None


def test_a_subscriptions_default_rule_is_read_with_its_name() -> None:
    inside = (
        '<DefaultRuleDescription xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        '<Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>{}'
        "</DefaultRuleDescription>"
    )
    for name, expected in (("<Name>mine</Name>", "mine"), ("", "$Default")):
        tag = "SubscriptionDescription"
        body = f'<{tag} xmlns="{markup.SERVICE_BUS}">{inside.format(name)}</{tag}>'
        rule = rule_markup.default_rule(markup.parse(entry(body)))
        assert rule == Rule(expected, SqlFilter("a = 1"))
    assert rule_markup.default_rule(markup.parse(queue_body(""))) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P10675199DT2H48M5.4775807S", FOREVER),
        ("P10675199DT2H48M5.477539S", FOREVER),
        ("P1Y", timedelta(days=365)),
        ("P1M", timedelta(days=30)),
        ("P2W", timedelta(days=14)),
        ("PT0.5S", timedelta(milliseconds=500)),
        ("PT36H", timedelta(hours=36)),
    ],
)
def test_durations_are_read_as_dotnet_reads_them(text: str, expected: timedelta) -> None:
    ttl = f"<DefaultMessageTimeToLive>{text}</DefaultMessageTimeToLive>"
    assert read_queue(ttl).default_ttl == expected


# --- updates ----------------------------------------------------------------------------


def test_leaving_a_setting_out_of_an_update_takes_it_away() -> None:
    assert read_queue("", FULL).forward_to is None
    assert read_queue("", FULL).access_rules == ()


def test_leaving_out_what_is_fixed_at_creation_keeps_it() -> None:
    assert read_queue("", QueueDescription(requires_session=True)).requires_session


ACCESS = """<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights>
  </Rights><KeyName>{}</KeyName>{}</AuthorizationRule></AuthorizationRules>"""


def test_missing_keys_are_made_and_then_kept() -> None:
    made = read_queue(ACCESS.format("a", ""))
    (rule,) = made.access_rules
    assert len(rule.primary_key) == 44
    assert rule.primary_key != rule.secondary_key
    assert read_queue(ACCESS.format("a", ""), made) == made
    changed = read_queue(ACCESS.format("a", "<PrimaryKey>new</PrimaryKey>"), made)
    assert changed.access_rules[0].primary_key == "new"
    assert changed.access_rules[0].secondary_key == rule.secondary_key


def test_an_authorization_rule_that_cannot_be_is_refused() -> None:
    with pytest.raises(DescriptionError, match="claims Manage, so it must claim Send and Listen"):
        read_queue(ACCESS.format("a", "").replace(">Send<", ">Manage<"))


# --- what is refused --------------------------------------------------------------------

BOMB = (
    '<?xml version="1.0"?>{}<!DOCTYPE e [<!ENTITY a "aaaaaaaaaa">'
    + "".join(f'<!ENTITY b{i} "{f"&b{i - 1};" * 10}">' for i in range(1, 30))
    + "]><entry>&b29;</entry>"
)


@pytest.mark.parametrize(
    "body",
    [
        BOMB.format("").encode(),
        BOMB.format(" <!-- a --> <?b c?>\n").encode(),
        b"\xef\xbb\xbf" + BOMB.format("").encode(),
        BOMB.format("").encode("utf-16"),
        b'<!DOCTYPE e SYSTEM "file:///etc/passwd"><entry/>',
        b"<!-- " * 100_000,
        b"<!---->" * 100_000 + b"<!DOCTYPE a>",
    ],
)
def test_document_types_are_refused_at_once(body: bytes) -> None:
    start = time.perf_counter()
    with pytest.raises(AtomError):
        markup.parse(body)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        b"<entry>",
        b"<feed/>",
        b"<entry/>",
        b"<entry><content/></entry>",
        b"<entry><content>&undeclared;</content></entry>",
        b"<entry><content><a/><b/></content></entry>",
        b"<a>" * 300_000,
        b"<a>" * 100_000 + b"</a>" * 100_000,
    ],
)
def test_what_is_not_an_entry_is_refused(body: bytes) -> None:
    with pytest.raises(AtomError):
        markup.parse(body)


@given(st.binary())
def test_no_bytes_do_worse_than_being_refused(body: bytes) -> None:
    with pytest.raises(AtomError):
        markup.parse(body)


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("<MaxDeliveryCount>ten</MaxDeliveryCount>", "MaxDeliveryCount must be a whole number"),
        ("<MaxDeliveryCount>0</MaxDeliveryCount>", "MaxDeliveryCount must be between"),
        (f"<MaxSizeInMegabytes>{'9' * 5000}</MaxSizeInMegabytes>", "whole number"),
        ("<RequiresSession>maybe</RequiresSession>", "RequiresSession must be true or false"),
        ("<LockDuration>1 minute</LockDuration>", "LockDuration must be an ISO 8601 duration"),
        ("<LockDuration>P</LockDuration>", "ISO 8601"),
        ("<LockDuration>P1DT</LockDuration>", "ISO 8601"),
        ("<LockDuration>PT10M</LockDuration>", "LockDuration must be between"),
        ("<DefaultMessageTimeToLive>-PT1S</DefaultMessageTimeToLive>", "must be between"),
        ("<AutoDeleteOnIdle>P999999999Y</AutoDeleteOnIdle>", "too long"),
        ("<Status>Sleeping</Status>", "Status must be one of Active"),
        ("<ForwardTo>sb://[x/y</ForwardTo>", "ForwardTo is not an address"),
        (f"<UserMetadata>{'x' * 1025}</UserMetadata>", "UserMetadata"),
        ("<MaxMessageSizeInKilobytes>1024</MaxMessageSizeInKilobytes>", "Premium"),
        (ACCESS.format("", ""), "KeyName"),
        (ACCESS.format("a", "").replace(">Send<", ">Own<"), "rights of the rule 'a'"),
        (ACCESS.format("a", "").replace(">Send<", ">Manage<"), "Send and Listen too"),
    ],
)
def test_values_that_cannot_be_are_refused_with_their_name(inside: str, text: str) -> None:
    with pytest.raises(DescriptionError, match=text):
        read_queue(inside)


def test_no_refusal_repeats_a_key() -> None:
    secret = "s3cret" * 50
    for inside in (
        ACCESS.format("a", f"<PrimaryKey>{secret}</PrimaryKey>"),
        ACCESS.format("a", "<PrimaryKey>s3cret</PrimaryKey>").replace(">Send<", ">Manage<"),
    ):
        with pytest.raises(DescriptionError) as refused:
            read_queue(inside)
        assert "s3cret" not in str(refused.value)


def test_a_description_of_another_kind_is_refused() -> None:
    with pytest.raises(AtomError, match="TopicDescription"):
        atom.read_description(markup.parse(queue_body("")), TopicDescription)
    with pytest.raises(AtomError, match="RuleDescription"):
        rule_markup.read_rule(markup.parse(queue_body("")), "r")


def rule_body(inside: str) -> bytes:
    instance = "http://www.w3.org/2001/XMLSchema-instance"
    tag = "RuleDescription"
    return entry(f'<{tag} xmlns="{markup.SERVICE_BUS}" xmlns:i="{instance}">{inside}</{tag}>')


PAIR = "<KeyValueOfstringanyType><Key>k</Key>{}</KeyValueOfstringanyType>"
CORRELATION = '<Filter i:type="CorrelationFilter"><Properties>{}</Properties></Filter>'


@pytest.mark.parametrize(
    ("inside", "error"),
    [
        ('<Filter i:type="MagicFilter"/>', RuleError),
        ("<Filter/>", RuleError),
        ('<Action i:type="MagicAction"/>', RuleError),
        ('<Filter i:type="CorrelationFilter"/>', RuleError),
        ('<Filter i:type="SqlFilter"/>', SqlError),
        ('<Filter i:type="SqlFilter"><SqlExpression>a =</SqlExpression></Filter>', SqlError),
        (
            f'<Filter i:type="SqlFilter"><SqlExpression>a = {"1" * 2000}</SqlExpression></Filter>',
            SqlError,
        ),
        (CORRELATION.format(PAIR.format("")), RuleError),
        (CORRELATION.format(PAIR.format('<Value i:type="x:map"/>')), RuleError),
        (CORRELATION.format(PAIR.format('<Value i:type="x:int">x</Value>')), RuleError),
        (CORRELATION.format(PAIR.format('<Value i:type="x:double">x</Value>')), RuleError),
        (CORRELATION.format(PAIR.format('<Value i:type="x:guid">x</Value>')), RuleError),
        (CORRELATION.format(PAIR.format("<Value>x</Value>") * 2), RuleError),
    ],
)
def test_rules_that_cannot_be_are_refused(inside: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        rule_markup.read_rule(markup.parse(rule_body(inside)), "r")


def test_a_guid_that_came_over_amqp_is_kept() -> None:
    rule = Rule("r", CorrelationFilter(properties={"g": uuid.UUID(int=7)}))
    assert rule_markup.read_rule(markup.parse(entry(rule_markup.write_rule(rule, 0))), "r") == rule


def test_an_error_is_what_the_sdk_shows() -> None:
    text = atom.error(400, "no <such> thing")
    model = models.ServiceBusManagementError.deserialize(ElementTree.fromstring(text))
    assert model.code == 400
    assert model.detail == "SubCode=40000. no <such> thing"
