"""What the syphon does, as the ledger has it."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pyarrow.dataset as ds

from twinbus import envelope
from twinbus.amqp.message import Properties
from twinbus.auth.credentials import Secret
from twinbus.homeward.row import Row
from twinbus.ledger import Operation
from twinbus.syphon.books import Books

HOME = Secret("Endpoint=sb://home.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k")
AWAY = Secret("Endpoint=sb://away.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k")


def row(name: str, destination: str) -> Row:
    message = Properties(message_id=name).encoded() + b"\x00\x53\x75\xa0\x01x"
    wrapped = envelope.wrap(message, destination)
    return Row("q", 1, uuid4(), 0, 0, 0, destination, None, wrapped)


def test_each_step_is_recorded_with_where_the_message_belongs(tmp_path: Path) -> None:
    books = Books(str(tmp_path / "ledger"), HOME, AWAY)
    rows = [row("a", "orders"), row("b", "bills"), row("c", "orders")]
    books.received(rows)
    books.sent("orders", [envelope.unwrap(rows[0].message)[1], envelope.unwrap(rows[2].message)[1]])
    books.settled(Operation.COMPLETE, "q", [rows[0].token, rows[2].token], [rows[2].token])
    books.settled(Operation.DEAD_LETTER, "q", [rows[1].token], [])
    books.close()
    table = ds.dataset(str(tmp_path / "ledger"), format="parquet", partitioning="hive").to_table()
    columns = ("namespace", "entity", "operation", "cause", "destination", "message_ids")
    found = [tuple(each[name] for name in columns) for each in table.to_pylist()]
    away, home = "away.servicebus.windows.net", "home.servicebus.windows.net"
    backlog = "backlog_receive"
    assert found == [
        (away, "q", "receive", backlog, "orders", ["a", "c"]),
        (away, "q", "receive", backlog, "bills", ["b"]),
        (home, "orders", "send", "home_send", None, ["a", "c"]),
        (away, "q", "complete", backlog, "orders", ["a"]),
        (away, "q", "dead_letter", backlog, "bills", ["b"]),
    ]


def test_without_a_ledger_nothing_is_written() -> None:
    books = Books(None, HOME, AWAY)
    books.received([row("a", "orders")])
    books.sent("orders", [b""])
    books.close()
