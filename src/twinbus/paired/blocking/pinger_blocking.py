# Generated from ../aio/pinger.py by tools/unasync.py; change that file, not this one.
"""Sends pings. Each goes over a link of its own: a link that was there when the entity failed says
little about whether a new one can be had."""

from __future__ import annotations

from twinbus.paired.blocking.link_blocking import Side
from twinbus.paired.blocking.world_blocking import World
from twinbus.paired.outgoing import IdentifyingTransport, single
from twinbus.paired.ping import ping_message
from twinbus.paired.telemetry import Traced

PING_TIMEOUT_S = 10.0


class Pinger:
    def __init__(self, side: Side, world: World) -> None:
        self._side = side
        self._world = world

    def ping(self, path: str) -> Exception | None:
        """None if the entity took it, else why not."""
        link = self._side.link(path)
        try:
            with Traced("twinbus ping", path):
                outgoing = single(ping_message(), IdentifyingTransport, {})
                with self._world.breakable(link.break_off):
                    link.transfer(outgoing, PING_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  any failure means that it is not back
            return error
        finally:
            link.drop_link()
        return None
