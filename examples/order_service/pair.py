"""The pair of namespaces that the service uses, from the environment."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from twinbus import SendAvailabilityPairedNamespaceOptions
from twinbus.aio import MessagingFactory, NamespaceManager

PRIMARY = os.environ["TWINBUS_PRIMARY"]
SECONDARY = os.environ["TWINBUS_SECONDARY"]
LEDGER = os.environ.get("TWINBUS_LEDGER", "./ledger")


def trusted() -> dict[str, Any]:
    """A local broker's certificate is its own; Azure's needs nothing."""
    certificate = os.environ.get("TWINBUS_CERTIFICATE")
    return {"connection_verify": certificate} if certificate else {}


@asynccontextmanager
async def paired() -> AsyncIterator[MessagingFactory]:
    """The primary's factory, paired: its senders go on sending while the primary is out."""
    async with (
        MessagingFactory.from_connection_string(PRIMARY, ledger=LEDGER, retry_total=0) as primary,
        MessagingFactory.from_connection_string(SECONDARY) as secondary,
        NamespaceManager.from_connection_string(SECONDARY, **trusted()) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            backlog_queue_count=2,
            failover_interval=timedelta(0),  # divert on the first failure
            ping_primary_interval=timedelta(seconds=1),
        )
        await primary.pair_namespace(options)
        yield primary
