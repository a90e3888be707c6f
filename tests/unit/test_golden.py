"""What earlier versions left behind is opened, and all of it is found that was put there.

``tests/golden`` has a folder for each version of a format; ``tools/golden.py`` made them.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.golden.opened import configured, everything
from tests.unit.broker.bus import START_MS, Bus, Taker, message

from twinbus.broker.sessions import SessionQueue
from twinbus.ledger.reader import find_local, read_file
from twinbus.ledger.record import schema
from twinbus.spark.columns import COLUMNS
from twinbus.spark.source import Queues, SourceOptions, StreamReader

VERSIONS = sorted(path.parent for path in Path(__file__).parents[1].glob("golden/*/store.sql"))
YEARS_MS = 3_700 * 86_400_000  # what was scheduled is due then
pytestmark = pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)


def test_a_version_has_one_of_each(version: Path) -> None:
    assert {path.name for path in version.iterdir()} >= {
        *("store.sql", "store.json", "ledger", "ledger.json", "checkpoint"),
        *("broker.toml", "emulator.json", "configured.json"),
    }


def opened(version: Path, folder: Path) -> Bus:
    with closing(sqlite3.connect(folder / "messages.db")) as link:
        link.executescript((version / "store.sql").read_text())
    return Bus(folder)


def test_a_store_has_every_message_that_was_put_there(
    version: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        bus = opened(version, tmp_path)
    found = everything(bus)
    wanted: dict[str, Any] = json.loads((version / "store.json").read_text())
    assert list(found) == list(wanted)
    for path, entity in wanted.items():
        assert found[path] == entity, path
    assert bus.wrong() == {}
    assert caplog.records == []
    bus.close()


def test_a_store_s_messages_are_delivered_each_as_its_state_demands(
    version: Path, tmp_path: Path
) -> None:
    bus = opened(version, tmp_path)
    queue = bus.queue("orders/eu")
    taker = bus.take("orders/eu")
    ready = ["whole", "short-lived", "tried", "spent", "value", "sequence", "locked"]
    assert taker.texts == ready
    for token in taker.tokens:
        bus.do(queue.complete, token)
    ((deferred, _, _),) = queue.receive_deferred(
        [3], bus.now, deletes=False, owner=None, done=lambda error: None
    )
    assert deferred.sequence == 3
    bus.tick(YEARS_MS)
    bus.commit()
    assert taker.texts[len(ready) :] == ["in a while"]
    assert bus.take("worn/$deadletterqueue").texts == ["spent"]
    assert bus.take("lost/$transfer/$deadletterqueue").texts == ["to nobody"]
    assert bus.take("news/Subscriptions/failing/$deadletterqueue").texts == ["shared"]
    assert bus.take("news/Subscriptions/all").texts == ["shared", "news to come"]
    bus.close()


def test_a_store_s_sessions_have_their_states_and_their_messages(
    version: Path, tmp_path: Path
) -> None:
    bus = opened(version, tmp_path)
    queue = bus.queue("sessions")
    assert isinstance(queue, SessionQueue)
    taker = Taker(10)
    queue.accept("blue", taker, bus.now)
    bus.namespace.pump_queue(queue, bus.now)
    assert taker.texts == ["blue 0", "blue 1"]
    assert queue.get_state("green") == b"state of green"
    bus.close()


def test_a_store_remembers_which_ids_it_has_seen_and_to_whom_messages_go(
    version: Path, tmp_path: Path
) -> None:
    bus = opened(version, tmp_path)
    bus.send("once", "seen", "seen and gone", "new")
    assert bus.texts("once") == ["seen", "new"]
    bus.send("first", "another")
    assert bus.texts("last") == ["forwarded", "shared", "another"]
    bus.do(bus.namespace.send, bus.directory.entity("news"), [message("b", subject="red")], bus.now)
    assert bus.texts("news/Subscriptions/all") == ["shared", "b"]
    assert bus.texts("news/Subscriptions/changed") == ["shared"]
    assert bus.texts("last")[-1] == "b"
    for path in list(everything(bus)):
        if "/Subscriptions/" not in path:
            bus.delete(path)
    assert bus.wrong() == {}
    assert bus.store.query("SELECT * FROM body") == []
    bus.close()


def test_a_ledger_has_every_record_that_was_put_there(version: Path) -> None:
    ledger = find_local(version / "ledger")
    assert ledger.torn == ()
    found: list[dict[str, Any]] = []
    for day, names in ledger.days.items():
        for name in names:
            found += read_file(Path(ledger.folder(day)) / name, schema().names).to_pylist()
    for record in found:
        record["at"] = record["at"].timestamp()
    wanted = json.loads((version / "ledger.json").read_text())
    assert len(found) == len(wanted) > 30
    assert all(record in found for record in wanted)
    assert {record["at"] for record in wanted} >= {START_MS / 1000}


def test_configurations_say_what_they_said(version: Path) -> None:
    assert configured(version) == json.loads((version / "configured.json").read_text())


def test_a_checkpoint_is_where_the_source_goes_on(
    version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it left behind is read from all queues, and the next tick is one more."""
    offsets = version / "checkpoint" / "offsets"
    last = max(offsets.iterdir(), key=lambda path: int(path.name)).read_text().splitlines()[-1]
    options = {"connection": "Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=k"}
    reader = StreamReader(SourceOptions.of({**options, "queues": "one, two"}), list(COLUMNS))
    left = reader.partitions(reader.initialOffset(), json.loads(last))
    assert sorted(path for part in left for path in cast(Queues, part).paths) == ["one", "two"]
    monkeypatch.setattr(reader, "_watch", Awake())
    after = reader.latestOffset(json.loads(last), ReadAllAvailable())
    assert after["tick"] == json.loads(last)["tick"] + 1


class Awake:
    """In a watch's place: there is a message in one queue."""

    def wait(self, _: float) -> list[str]:
        return ["one"]

    def let_go(self, _: list[str]) -> None: ...
