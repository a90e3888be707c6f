"""OpenTelemetry: what the client does in an outage, as spans and counters on the console.

Run it while the queue `orders` of the primary is out, to see more than nothing.
"""

import os
import time
from datetime import timedelta

from azure.servicebus import ServiceBusMessage
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from twinbus import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions

PRIMARY, SECONDARY = os.environ["TWINBUS_PRIMARY"], os.environ["TWINBUS_SECONDARY"]
CERTIFICATE = os.environ.get("TWINBUS_CERTIFICATE")  # of a local broker
TRUSTED = {"connection_verify": CERTIFICATE} if CERTIFICATE else {}


def set_up() -> MeterProvider:
    """In an application of yours this is there already, with your exporters."""
    spans = TracerProvider()
    spans.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
    trace.set_tracer_provider(spans)
    numbers = MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter(), 3_600_000)])
    metrics.set_meter_provider(numbers)
    return numbers


def main() -> None:
    numbers = set_up()
    with (
        MessagingFactory.from_connection_string(PRIMARY, retry_total=0) as primary,
        MessagingFactory.from_connection_string(SECONDARY) as secondary,
        NamespaceManager.from_connection_string(SECONDARY, **TRUSTED) as manager,
    ):
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            backlog_queue_count=1,
            failover_interval=timedelta(0),
            ping_primary_interval=timedelta(seconds=1),
        )
        primary.pair_namespace(options)
        with (
            trace.get_tracer("shop").start_as_current_span("take an order"),
            primary.get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("coffee"))
        time.sleep(3)  # for a ping or two
    numbers.shutdown()  # prints the counters


if __name__ == "__main__":
    main()
