"""Sends pings. Each goes over a link of its own: a link that was there when the entity failed says
little about whether a new one can be had."""

from __future__ import annotations

from twinbus.paired.aio.link import Side
from twinbus.paired.aio.world import World
from twinbus.paired.outgoing import IdentifyingTransportAsync, single
from twinbus.paired.ping import ping_message
from twinbus.paired.telemetry import Traced

PING_TIMEOUT_S = 10.0


class Pinger:
    def __init__(self, side: Side, world: World) -> None:
        self._side = side
        self._world = world

    async def ping(self, path: str) -> Exception | None:
        """None if the entity took it, else why not."""
        link = self._side.link(path)
        try:
            with Traced("twinbus ping", path):
                outgoing = single(ping_message(), IdentifyingTransportAsync, {})
                with self._world.breakable(link.break_off):
                    await link.transfer(outgoing, PING_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  any failure means that it is not back
            return error
        finally:
            link.drop_link()
        return None
