from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness.brokers import BrokerProcess, check_stores
from xdist.remote import Producer

from tests import times
from tests.schedule import HEAVY_TIMEOUT_S, LongestFirst, is_heavy, starts_spark
from tests.worlds import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts this in the background has it ignore Ctrl-C, and so would every process
    # that a test starts and then interrupts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if folder := os.environ.get(times.VARIABLE):
        config.pluginmanager.register(times.Stopwatch(Path(folder)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only what `make quick` runs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """More workers than cores make what is heavy slow; such tests have more time than others."""
    if config.getoption("--quick"):
        left_out = [item for item in items if not _is_quick(item)]
        items[:] = [item for item in items if _is_quick(item)]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        if is_heavy(item.nodeid.split("::")[0]) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HEAVY_TIMEOUT_S))


def _is_quick(item: pytest.Item) -> bool:
    """What is pure, what is about bytes, and one of each kind that needs a Spark or processes."""
    if item.get_closest_marker("quick") is not None:
        return True
    path = item.nodeid.split("::")[0]
    return path.startswith(("tests/unit/", "tests/wire/")) and not starts_spark(item, path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst | None:
    return LongestFirst(config, log) if config.getoption("dist") == "load" else None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of the tests, on two cores."""
    from twinbus.spark.engine import spark_session

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


@pytest.fixture(autouse=True)
def holds_together(request: pytest.FixtureRequest) -> Iterator[None]:
    """What real brokers leave in a test's folder is checked, whoever started them.

    Unit tests have stores that say anything, and so has a test that damages one on purpose.
    """
    folder = None
    if "tmp_path" in request.fixturenames and not _may_damage(request.node):
        folder = request.getfixturevalue("tmp_path")
    yield
    if folder is not None:
        check_stores(folder)


def _may_damage(item: pytest.Item) -> bool:
    return item.nodeid.startswith("tests/unit/") or item.get_closest_marker("damages") is not None


@pytest.fixture
def broker_folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture(params=["asyncio", "blocking"])
async def world(request: pytest.FixtureRequest, broker: BrokerProcess) -> AsyncIterator[World]:
    """The real SDK, once in each of its two kinds."""
    world = World(request.param, broker.connection_string)
    yield world
    await world.close()
