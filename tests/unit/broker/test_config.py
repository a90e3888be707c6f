"""The broker's TOML file: what it says, and how each mistake in it is named."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from twinbus.broker.config import ConfigError, NamespaceConfig, check_together
from twinbus.broker.descriptions import FOREVER, QueueDescription, Status
from twinbus.broker.document import FilePlace, duration, read_toml


def read(folder: Path, text: str) -> list[NamespaceConfig]:
    path = folder / "broker.toml"
    path.write_text(text)
    return read_toml(path)


def test_a_whole_file(tmp_path: Path) -> None:
    one, two = read(
        tmp_path,
        """
        [[namespace]]
        name = "contoso"
        port = 6000
        admin_port = 6001
        key = "k"

        [[namespace.queue]]
        name = "orders"
        lock_duration = "PT30S"
        default_ttl = 3600
        max_delivery_count = 5
        requires_session = true
        status = "SendDisabled"
        forward_dead_letters_to = "plain"

        [[namespace.queue]]
        name = "plain"

        [[namespace]]
        name = "fabrikam"
        """,
    )
    assert (one.name, one.port, one.admin_port, one.key) == ("contoso", 6000, 6001, "k")
    assert one.queues == {
        "orders": QueueDescription(
            lock_duration=timedelta(seconds=30),
            default_ttl=timedelta(hours=1),
            max_delivery_count=5,
            requires_session=True,
            status=Status.SEND_DISABLED,
            forward_dead_letters_to="plain",
        ),
        "plain": QueueDescription(),
    }
    assert (two.name, two.port, two.admin_port, two.key) == ("fabrikam", 5673, 5301, None)


HEAD = '[[namespace]]\nname = "n"\n'
QUEUE = HEAD + '[[namespace.queue]]\nname = "q"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no [[namespace]]"]),
        ("x = 1", ["'x' is not known"]),
        ("[namespace]\nname = 'n'", ["line 1", "'namespace'"]),
        ("namespace = ['n']", ["line 1", "'namespace'"]),
        ("[[namespace]]", ["line 1", "a namespace has no name"]),
        ("[[namespace]\n", ["is not TOML", "line 1"]),
        (HEAD + "prot = 1", ["prot", "port"]),
        (HEAD + "port = '5672'", ["port", "5672"]),
        (HEAD + "port = 70000", ["port", "70000"]),
        (HEAD + "admin_port = true", ["admin_port", "True"]),
        (HEAD + "key = 5", ["key"]),
        (HEAD + "queue = 'q'", ["queue"]),
        (HEAD + "queue = ['q']", ["queue"]),
        (HEAD + "queue = 5", ["queue"]),
        ("[[namespace]]\nname = 'a b'", ["a b"]),
        ("[[namespace]]\nname = '..'", [".."]),
        (HEAD + "[[namespace]]\nname = 'N'", ["twice"]),
        (HEAD + "port = 7000\nadmin_port = 7000", ["7000"]),
        (HEAD + "[[namespace.queue]]", ["queue", "name"]),
        (HEAD + "[[namespace.queue]]\nname = '/q'", ["/q"]),
        (QUEUE + "[[namespace.queue]]\nname = 'Q'", ["'Q'", "twice"]),
        (QUEUE + "lock_durations = 5", ["line 5", "lock_durations"]),
        (QUEUE + "lock_duration = 'soon'", ["lock_duration", "soon"]),
        (QUEUE + "lock_duration = 'P1X'", ["lock_duration", "P1X"]),
        (QUEUE + "lock_duration = true", ["lock_duration"]),
        (QUEUE + "lock_duration = nan", ["line 5", "nan is not a duration"]),
        (QUEUE + "lock_duration = 1", ["LockDuration", "n.q"]),
        (QUEUE + "max_delivery_count = 'x'", ["max_delivery_count", "'x'"]),
        (QUEUE + "max_delivery_count = 0", ["MaxDeliveryCount"]),
        (QUEUE + "requires_session = 1", ["requires_session"]),
        (QUEUE + "status = 'Open'", ["status", "Open"]),
        (QUEUE + "status = ['Open']", ["status"]),
        (QUEUE + "forward_to = 5", ["forward_to"]),
        (QUEUE + "forward_to = 'nowhere'", ["'q'", "'nowhere'"]),
        (QUEUE + "access_rules = []", ["access_rules"]),
    ],
)
def test_a_mistake_is_named_with_the_file_and_the_key(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    for word in ["broker.toml", *words]:
        assert word in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_toml(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.toml is not UTF-8"):
        read_toml(tmp_path / "binary.toml")


def test_namespaces_share_no_port_but_any_number_may_take_any() -> None:
    check_together([NamespaceConfig("a", 0, 0), NamespaceConfig("b", 0, 0)])
    with pytest.raises(ConfigError, match="port 7 is given to 'a' and to 'b'"):
        check_together([NamespaceConfig("a", 7, 8), NamespaceConfig("b", 9, 7)])


def test_durations_are_iso_8601_or_seconds() -> None:
    place = FilePlace(Path("file"), "")
    assert duration("PT1M30S", place) == duration(90, place) == timedelta(seconds=90)
    assert duration(0.5, place) == timedelta(milliseconds=500)
    assert duration("P10675199DT2H48M5.4775807S", place) > timedelta(days=10_000_000)
    assert duration(1e300, place) == FOREVER


def test_a_key_is_not_shown_with_its_namespace() -> None:
    assert "secret" not in repr(NamespaceConfig("a", key="secret"))
