# Generated from ../aio/pinger.py by tools/unasync.py; change that file, not this one.
"""Sends pings. Each goes over a link of its own: a link that was there when the entity failed says
little about whether a new one can be had."""

from __future__ import annotations

from azure.servicebus import ServiceBusClient

from twinbus.paired.blocking.link_blocking import plain_sender
from twinbus.paired.blocking.world_blocking import Crew
from twinbus.paired.outgoing import single
from twinbus.paired.ping import ping_message
from twinbus.paired.telemetry import Traced

PING_TIMEOUT_S = 10.0


class Pinger:
    def __init__(self, primary: ServiceBusClient, crew: Crew) -> None:
        self._primary = primary
        self._crew = crew

    def ping(self, path: str) -> Exception | None:
        """None if the entity took it, else why not."""
        sender = plain_sender(self._primary, path, self._crew)
        try:
            with Traced("twinbus ping", path):
                outgoing = single(ping_message(), sender._amqp_transport, {})
                with self._crew.breakable(sender.break_off):
                    sender.transfer(outgoing, PING_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  any failure means that it is not back
            return error
        finally:
            sender.drop_link()
        return None
