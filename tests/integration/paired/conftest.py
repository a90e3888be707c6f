"""A primary and a secondary of the file's queues, and a pair of factories on them in each world."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from harness.brokers import BrokerProcess
from tests.pairs import Pair


@pytest.fixture(scope="module")
def brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """A file says in QUEUES what the primary has, and may say in QUEUES_AWAY what the secondary
    has, and in OPTIONS how each is started."""
    queues = (request.module.QUEUES, getattr(request.module, "QUEUES_AWAY", {}))
    options = getattr(request.module, "OPTIONS", ((), ()))
    made = [
        BrokerProcess(tmp_path_factory.mktemp(name), declared, extra=extra)
        for name, declared, extra in zip(("primary", "secondary"), queues, options, strict=True)
    ]
    for process in made:
        process.start()
    yield made[0], made[1]
    for process in made:
        process.close()
        assert "Traceback" not in process.log(), process.log()


@pytest.fixture(params=["asyncio", "blocking"])
async def pair(
    request: pytest.FixtureRequest, brokers: tuple[BrokerProcess, BrokerProcess]
) -> AsyncIterator[Pair]:
    """Not open yet."""
    pair = Pair(request.param, *brokers)
    yield pair
    await pair.close()
