"""What the syphon does, as the ledger has it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import randbytes
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.unit.pipeline.backlogs import plain

from twinbus import envelope
from twinbus.amqp.message import Properties
from twinbus.amqp.sections import Sections
from twinbus.amqp.types import UInt, encode_list
from twinbus.auth.credentials import Secret
from twinbus.homeward.carrier import Parcel
from twinbus.homeward.received import ReceivedMessage
from twinbus.homeward.rounds import Orders, Outcome
from twinbus.homeward.row import Row
from twinbus.ledger import Operation
from twinbus.spark.columns import arrow_schema, record_batch
from twinbus.syphon.books import Books
from twinbus.syphon.post import BACKLOG_COLUMNS, carry, tallies_of

HOME = Secret("Endpoint=sb://home.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k")
AWAY = Secret("Endpoint=sb://away.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k")


def row(name: str, destination: str) -> Row:
    message = Properties(message_id=name).encoded() + b"\x00\x53\x75\xa0\x01x"
    wrapped = envelope.wrap(message, destination)
    return Row.of(ReceivedMessage("q", uuid4(), wrapped, 0))


def parcel(row: Row) -> Parcel:
    found = envelope.opened(row.content)
    own = row.queue, row.number, row.number, [row.token], 0, 1, 0
    return Parcel(*own, found.path, found.message, found.message_id)


def test_each_step_is_recorded_with_where_the_message_belongs(tmp_path: Path) -> None:
    books = Books(str(tmp_path / "ledger"), HOME, AWAY)
    rows = [row("a", "orders"), row("b", "bills"), row("c", "orders")]
    books.received(rows)
    books.sent("orders", [parcel(rows[0]), parcel(rows[2])])
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


class Sink:
    """In the place of a sender and a receiver of the SDK's."""

    limit = 262_144

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def sender(self, *_: object) -> Sink:
        return self

    receiver = sender

    def ready(self) -> None: ...

    def send(self, messages: Sequence[bytes]) -> None:
        self.sent += messages

    def complete(self, tokens: Sequence[UUID]) -> list[UUID]:
        return []

    abandon = renew = complete


@pytest.fixture
def taken_apart(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every message that was split into its sections since."""
    split: list[bytes] = []
    make = Sections.__init__

    def counted(self: Sections, message: bytes) -> None:
        split.append(message)
        make(self, message)

    monkeypatch.setattr(Sections, "__init__", counted)
    return split


def on_its_way(messages: list[bytes]) -> Iterator[pa.RecordBatch]:
    """As the source has them, and Spark hands them to a worker."""
    rows = [ReceivedMessage("q", uuid4(), message, 1_000_000) for message in messages]
    yield record_batch(rows, arrow_schema(BACKLOG_COLUMNS))


@pytest.mark.parametrize("deducts", [False, True])
@pytest.mark.parametrize("has_ledger", [False, True])
def test_a_message_is_split_once_on_its_way(
    has_ledger: bool,
    deducts: bool,
    tmp_path: Path,
    taken_apart: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the source, by way of the carrier, the envelope and the books, to its destination."""
    sink = Sink()
    monkeypatch.setattr("twinbus.syphon.post.links", lambda: sink)
    message = b"\x00\x53\x70" + encode_list([None, None, UInt(60_000)])
    message += Properties(message_id="a", group_id="s").encoded() + b"\x00\x53\x75\xa0\x01x"
    inside = envelope.pack(plain("big", randbytes(9000)), "orders", 6000)
    (sealed,) = envelope.pack(plain("sealed", b"x" * 9000), "orders", 6000)
    backlog = [envelope.wrap(message, "orders"), *inside, sealed]
    taken_apart.clear()
    where = str(tmp_path / "ledger") if has_ledger else None
    (told,) = carry(on_its_way(backlog), HOME, AWAY, Orders(deducts=deducts), where)
    assert [each.outcome for each in tallies_of(told.to_pylist())] == [Outcome.MOVED]
    wanted = [len(plain(name, b"x" * 9000)) for name in ("big", "sealed")]
    assert [len(each) for each in sink.sent][1:] == wanted
    assert sorted(each for each in taken_apart if each in backlog) == sorted(backlog)
    # Of what was sealed, what was inside is a message of its own, and checked before it is sent.
    most = 2 if not deducts else 3
    assert len(taken_apart) - len(backlog) <= most
    assert (tmp_path / "ledger").exists() == has_ledger
