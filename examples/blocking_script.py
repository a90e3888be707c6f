"""Send each argument as an order, whether or not the primary is there.

python examples/blocking_script.py coffee tea
"""

import os
import sys
from datetime import timedelta

from azure.servicebus import ServiceBusMessage

from twinbus import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions

PRIMARY, SECONDARY = os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"]
CERTIFICATE = os.environ.get("TWINBUS_CERTIFICATE")  # of a local broker
TRUSTED = {"connection_verify": CERTIFICATE} if CERTIFICATE else {}


def main(drinks: list[str]) -> None:
    with (
        MessagingFactory.from_connection_string(PRIMARY, retry_total=0) as primary,
        MessagingFactory.from_connection_string(SECONDARY) as secondary,
        NamespaceManager.from_connection_string(SECONDARY, **TRUSTED) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager, secondary, backlog_queue_count=2, failover_interval=timedelta(0)
        )
        primary.pair_namespace(options)
        with primary.get_queue_sender("orders") as sender:
            for drink in drinks:
                sender.send_messages(ServiceBusMessage(drink))
                print(f"{drink}: accepted, orders is {primary.entity_states()['orders'].value}")


if __name__ == "__main__":
    main(sys.argv[1:])
