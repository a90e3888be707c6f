"""The page of metrics, without a broker around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from tests.bench.counting import database_steps
from tests.unit.broker.test_queue import START_MS, Rig, message

from twinbus.broker.metrics import exposition, metrics_page
from twinbus.broker.namespace import Namespace


class Host:
    """A namespace that nobody is connected to."""

    connection_count = link_count = 0

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace


async def test_what_was_deferred_is_not_walked_past_on_the_loop(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.send(*[message(str(number)) for number in range(500)])
    rig.now += 60_000
    rig.send(message("last"))
    rig.store._writer.execute("UPDATE message SET state = 1 WHERE enqueued_ms = ?", (START_MS,))
    host = Host(rig.namespace)
    page = await metrics_page(host, cast(Any, None))
    oldest = (START_MS + 60_000) / 1000
    line = f'oldest_message_timestamp_seconds{{namespace="test",entity="q"}} {oldest}'
    assert line in bytes(page.body).decode()
    connections = [rig.store._reader, rig.store._writer]
    assert database_steps(connections, lambda: list(exposition(host, {}))) == 0
    rig.close()
