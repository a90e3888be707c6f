"""Options are checked when they are written down, with a sentence that says what to do."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from tests.unit.paired.fakes import CONNECTION

import twinbus
from twinbus import (
    MessagingFactory,
    NamespaceManager,
    PairedNamespaceOptions,
    PairingError,
    SendAvailabilityPairedNamespaceOptions,
)

BACKUP = CONNECTION.format("contoso-backup")


def options(*args: Any, **kwargs: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(
        NamespaceManager.from_connection_string(BACKUP),
        MessagingFactory.from_connection_string(BACKUP),
        *args,
        **kwargs,
    )


def test_the_only_kind_of_pairing_is_send_availability_and_its_base_is_the_options() -> None:
    assert isinstance(options(), PairedNamespaceOptions)


def test_the_defaults_are_ten_queues_one_minute_and_no_syphon() -> None:
    made = options()
    assert made.backlog_queue_count == 10
    assert made.failover_interval == timedelta(minutes=1)
    assert made.ping_primary_interval == timedelta(minutes=1)
    assert made.enable_syphon is False


def test_the_constructors_build_on_each_other() -> None:
    made = options(5, timedelta(seconds=30), True)
    assert made.backlog_queue_count == 5
    assert made.failover_interval == timedelta(seconds=30)
    assert made.enable_syphon is True


@pytest.mark.parametrize("count", [0, -1, True, "10"])
def test_the_backlog_queue_count_must_be_at_least_one(count: Any) -> None:
    with pytest.raises(PairingError, match="backlog_queue_count is"):
        options(count)
    made = options(5)
    with pytest.raises(PairingError, match="backlog_queue_count is"):
        made.backlog_queue_count = count
    assert made.backlog_queue_count == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("failover_interval", timedelta(seconds=-1)),
        ("failover_interval", timedelta(minutes=61)),
        ("failover_interval", 60),
        ("ping_primary_interval", timedelta(0)),
        ("ping_primary_interval", timedelta(hours=1)),
        ("operation_timeout", timedelta(0)),
        ("retry_window", timedelta(seconds=-1)),
        ("retry_window", timedelta(minutes=61)),
        ("retry_window", 3),
        ("backlog_retry_interval", timedelta(0)),
    ],
)
def test_an_interval_out_of_range_is_refused_at_once(name: str, value: Any) -> None:
    with pytest.raises(PairingError, match=f"{name} is .*(it must be from|give a datetime)"):
        options(**{name: value})


def test_intervals_are_settable_and_checked_again() -> None:
    made = options()
    made.ping_primary_interval = timedelta(seconds=5)
    assert made.ping_primary_interval == timedelta(seconds=5)
    with pytest.raises(PairingError):
        made.failover_interval = timedelta(hours=2)


def test_a_send_is_tried_again_for_as_long_as_failures_are_accepted() -> None:
    assert options().retry_window == timedelta(minutes=1)
    assert options(failover_interval=timedelta(0)).retry_window == timedelta(seconds=4.5)
    made = options(retry_window=timedelta(0))
    assert made.retry_window == timedelta(0)
    made.retry_window = timedelta(seconds=20)
    assert made.retry_window == timedelta(seconds=20)


def test_a_secondary_that_is_no_factory_is_refused() -> None:
    manager = NamespaceManager.from_connection_string(BACKUP)
    with pytest.raises(PairingError, match="give a MessagingFactory"):
        SendAvailabilityPairedNamespaceOptions(manager, BACKUP)
    with pytest.raises(PairingError, match="give a NamespaceManager"):
        SendAvailabilityPairedNamespaceOptions(
            BACKUP, MessagingFactory.from_connection_string(BACKUP)
        )


def test_marking_a_path_healthy_needs_a_pairing() -> None:
    with pytest.raises(PairingError, match="pair_namespace"):
        options().mark_path_healthy("orders")


def paired(primary: str, **kwargs: Any) -> None:
    factory = MessagingFactory.from_connection_string(CONNECTION.format(primary))
    factory.pair_namespace(options(**kwargs))


def test_a_namespace_is_not_paired_with_itself() -> None:
    with pytest.raises(PairingError, match="cannot be paired with itself"):
        paired("Contoso-Backup")


def test_the_syphon_needs_connection_strings_to_hand_on() -> None:
    credential = AzureNamedKeyCredential("RootManageSharedAccessKey", "a2V5")
    factory = MessagingFactory("contoso.servicebus.windows.net", credential)
    with pytest.raises(PairingError, match=r"made from a connection string.*enable_syphon=False"):
        factory.pair_namespace(options(enable_syphon=True))


def test_another_kind_of_options_is_refused() -> None:
    factory = MessagingFactory.from_connection_string(CONNECTION.format("contoso"))
    base = PairedNamespaceOptions(
        NamespaceManager.from_connection_string(BACKUP),
        MessagingFactory.from_connection_string(BACKUP),
    )
    with pytest.raises(PairingError, match="give SendAvailabilityPairedNamespaceOptions"):
        factory.pair_namespace(base)


def test_the_two_worlds_export_the_same_names_and_do_not_mix() -> None:
    import twinbus.aio

    assert set(twinbus.aio.__all__) <= set(twinbus.__all__)
    assert all(getattr(twinbus, name) is not None for name in twinbus.__all__)
    other = twinbus.aio.MessagingFactory.from_connection_string(BACKUP)
    mixed = SendAvailabilityPairedNamespaceOptions(
        NamespaceManager.from_connection_string(BACKUP), other
    )
    factory = MessagingFactory.from_connection_string(CONNECTION.format("contoso"))
    with pytest.raises(PairingError, match="same world"):
        factory.pair_namespace(mixed)


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = twinbus.Nothing
