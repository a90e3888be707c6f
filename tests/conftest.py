from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.brokers import BrokerProcess
from tests.worlds import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkTogether(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no annotations
    """A file at a time to whoever is free, so that its broker is started once; and all tests that
    need a Spark session, which are those in folders named pipeline, to one worker: one Java for all
    of them. (xdist's own groups do nothing under pytest 9.2: they are appended to a name that it no
    longer looks at.)"""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if "/pipeline/" in nodeid else nodeid.split("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Six workers on two cores make Spark slow; its tests have more time than others."""
    for item in items:
        if "/pipeline/" in item.nodeid and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(400))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return SparkTogether(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of the tests, on two cores."""
    from twinbus.pipeline.engine import spark_session

    conf = {"spark.sql.shuffle.partitions": "2"}
    session = spark_session("tests", master="local[2,4]", conf=conf, short_run=True)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A broker process with the queues that the test module names in QUEUES.

    EXTRA, if the module has it, are more arguments.
    """
    queues: dict[str, dict[str, Any]] = request.module.QUEUES
    extra: tuple[str, ...] = getattr(request.module, "EXTRA", ())
    process = BrokerProcess(tmp_path_factory.mktemp("broker"), queues, extra=extra)
    process.start()
    yield process
    process.close()
    assert "Traceback" not in process.log(), process.log()


@pytest.fixture
def broker_folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(params=["asyncio", "blocking"])
async def world(request: pytest.FixtureRequest, broker: BrokerProcess) -> AsyncIterator[World]:
    """The real SDK, once in each of its two kinds."""
    world = World(request.param, broker.connection_string)
    yield world
    await world.close()
