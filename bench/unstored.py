"""The broker with storing switched off, for one comparison only: what does being durable cost?

Never a product: it accepts messages and forgets them.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from bench.process import announce
from twinbus.broker.batch import Batch
from twinbus.broker.config import NamespaceConfig
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.server import BrokerConfig, run
from twinbus.broker.store import Store


class ForgetfulStore(Store):
    """Keeps entities, forgets messages, and never waits for the disk."""

    def apply(self, batch: Batch) -> None:
        batch.inserts.clear()
        batch.plain_inserts.clear()
        batch.deletes.clear()
        if batch.statements:
            super().apply(batch)

    def commit(self) -> None:
        if self._writer.in_transaction:
            super().commit()


def main() -> None:
    data, key, *queues = sys.argv[1:]
    namespace = NamespaceConfig("bench", 0, 0, queues={name: QueueDescription() for name in queues})
    config = BrokerConfig([namespace], Path(data), key=key, open_store=ForgetfulStore)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(config, announce))


if __name__ == "__main__":
    main()
