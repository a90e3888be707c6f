"""What `twinbus broker --check` finds in a file, and mends: real stores, damaged with SQL."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness.raw import kilobyte_message
from tests.years import NOW_MS, Taker, Years

from twinbus.amqp.message import Properties, encode_annotations
from twinbus.amqp.sections import SCHEDULED
from twinbus.amqp.types import Timestamp
from twinbus.broker.burial import Burial
from twinbus.broker.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from twinbus.broker.findings import COPY, REPAIR, Finding
from twinbus.broker.inspection import (
    FILE,
    InspectionError,
    inspect,
    repair,
    stores,
)
from twinbus.broker.rules import Rule, SqlFilter
from twinbus.broker.schema import FORMAT
from twinbus.broker.store import alone_in

LATER = encode_annotations({SCHEDULED: Timestamp(NOW_MS + 600_000)})


def in_session(session: str) -> bytes:
    return Properties(message_id=session, group_id=session).encoded() + b"\x00\x53\x75\xa0\x01y"


def filled(path: Path) -> Years:
    """A namespace with something of every kind in it."""
    home = Years(path)
    make = home.directory
    home.do(make.create_queue, "orders", QueueDescription())
    home.do(make.create_queue, "talks", QueueDescription(requires_session=True))
    home.do(make.create_queue, "once", QueueDescription(requires_duplicate_detection=True))
    home.do(make.create_queue, "empty", QueueDescription())
    home.do(make.create_topic, "news", TopicDescription())
    for name, rule in (("one", None), ("two", None), ("three", Rule("all", SqlFilter("1 = 1")))):
        home.do(make.create_subscription, "news", name, SubscriptionDescription(), rule)
    for number in range(6):
        home.send("orders", number)
    settle(home)
    home.do(home.namespace.send, make.entity("orders"), [LATER + kilobyte_message(7)])
    home.do(home.namespace.send, make.entity("news"), [LATER + kilobyte_message(8)])
    for session in ("a", "b"):
        home.do(home.namespace.send, make.entity("talks"), [in_session(session)])
    home.do(make.entity("talks").queue.set_state, "a", b"half way")  # type: ignore[attr-defined]
    for number in range(2):
        home.send("once", number)
    for number in range(4):
        home.send("news", number)
    return home


def settle(home: Years) -> None:
    """Of the first three messages of a queue one is deferred, one dead-lettered, one completed."""
    queue = home.directory.entity("orders").queue
    taker = Taker()
    queue.add_consumer(taker)
    queue.pump(home.now_ms)
    queue.remove_consumer(taker)
    deferred, dead, completed, *_ = taker.tokens
    queue.defer(deferred, lambda error: None)
    queue.dead_letter(dead, lambda entry: Burial(entry, "bad", "very"), lambda error: None)
    queue.complete(completed, lambda error: None)
    home.commit()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / FILE
    filled(path).store.close()
    return path


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path / FILE))


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            link.execute(statement)


def of(path: str) -> str:
    return f"(SELECT id FROM entity WHERE path = '{path}')"


def row(path: str, number: int = 0) -> str:
    """The key of a message of an entity, by its number or the first there is."""
    if number:
        return f"({of(path)} << 40 | {number})"
    return f"(SELECT min(id) FROM message WHERE id >> 40 = {of(path)})"


def whole(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All that is in a file."""
    with closing(sqlite3.connect(path)) as link:
        tables = [name for (name,) in link.execute("SELECT name FROM sqlite_master")]
        return {
            name: sorted(link.execute(f"SELECT * FROM {name}"), key=repr)
            for name in tables
            if not name.startswith(("sqlite_", "message_", "entity_", "seen_"))
        }


# ---------------------------------------------------------------- what is sound


def test_nothing_is_found_in_a_sound_store_and_all_of_it_is_counted(copy: Path) -> None:
    report = inspect(copy)
    assert report.findings == []
    assert report.counts == {"entities": 8, "messages": 23, "bodies": 4, "bytes": 23_059}


def test_a_look_leaves_the_folder_as_it_was(copy: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in copy.parent.iterdir()}
    inspect(copy)
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in copy.parent.iterdir()}
    assert after == before


def test_what_a_killed_broker_left_in_the_log_is_read_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "live").mkdir()
    home = filled(tmp_path / "live" / FILE)
    shutil.copytree(tmp_path / "live", tmp_path / "killed")
    home.store.close()
    killed = tmp_path / "killed" / FILE
    before = {path.name: path.read_bytes() for path in killed.parent.iterdir()}
    assert before.keys() == {FILE, f"{FILE}-wal", f"{FILE}-shm"}
    report = inspect(killed)
    assert report.findings == []
    assert report.counts["messages"] == 23
    assert {path.name: path.read_bytes() for path in killed.parent.iterdir()} == before
    (tmp_path / "killed" / f"{FILE}-shm").unlink()
    assert inspect(killed).counts["messages"] == 23


def test_one_moment_of_a_store_that_is_served_is_looked_at(tmp_path: Path) -> None:
    home = filled(tmp_path / FILE)
    home.send("orders", 100)
    report = inspect(tmp_path / FILE)
    home.send("orders", 101)
    home.store.close()
    assert (report.findings, report.counts["messages"]) == ([], 24)


def test_stores_are_found_in_a_data_folder_and_in_a_folder_of_such(tmp_path: Path) -> None:
    for folder in ("contoso", "pair/primary/primary", "a/b/c/too-deep"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / FILE).touch()
    assert [path.parent.name for path in stores(tmp_path)] == ["contoso"]
    assert [path.parent.name for path in stores(tmp_path / "pair")] == ["primary"]
    assert [path.parent.name for path in stores(tmp_path / "contoso")] == ["contoso"]


# ---------------------------------------------------------------- what is not


# Its name, the SQL that does it, and what is to be said: with what to do, unless that is COPY.
DAMAGES = """
an active message too many is counted
    UPDATE entity SET active = active + 1 WHERE path = 'orders';
    > orders: active is 4 and must be 3; --repair counts again

no counter is right
    UPDATE entity SET active = -1, deferred = 0, scheduled = 0, bytes = 1 WHERE path =
    'orders';
    > orders: active is -1 and must be 3, deferred is 0 and must be 1, scheduled is 0 and
      must be 1, bytes is 1 and must be 5500; --repair counts again

a number would be given again
    UPDATE entity SET last_sequence = 2 WHERE path = 'orders';
    > orders: 2 is the last number it gave, and it has a message of the number 7; --repair
      goes on from there

a share too few is counted
    UPDATE body SET holders = holders - 1 WHERE id = 1;
    > news/Subscriptions/one: 1 shared body counted for 2 messages and shared by 3
      (number 1); --repair counts again

shares too many are counted
    UPDATE body SET holders = holders + 1 WHERE id IN (2, 3);
    > news/Subscriptions/one: 2 shared bodies counted for 4 messages and shared by 3
      (numbers 2, 3); --repair counts again

a body of nobody
    INSERT INTO body VALUES (99, 1, x'00');
    > the file: 1 shared body that no message has (number 99); --repair sets this aside

a body is gone
    DELETE FROM body WHERE id = 1;
    > news/Subscriptions/one: 1 message without bytes (number 1); --repair sets this aside
    > news/Subscriptions/two: 1 message without bytes (number 1); --repair sets this aside
    > news/Subscriptions/three: 1 message without bytes (number 1); --repair sets this aside

messages of nobody
    INSERT INTO message (id, enqueued_ms, size, bare) SELECT (300 << 40) + id % (1 << 40),
    1, 7, bare FROM message WHERE id >> 40 = {orders};
    > number 300, which is no entity's: 5 messages of no entity (numbers 1, 4, 5, ...);
      --repair sets this aside

a message of a number below any
    UPDATE message SET id = -7 WHERE id = {in_once};
    > number -1, which is no entity's: 1 message of no entity (number 1099511627769);
      --repair sets this aside
    > once: active is 2 and must be 1, bytes is 2182 and must be 1091; --repair counts again

an id that nobody remembers
    INSERT INTO seen VALUES (300, 'x', 1);
    > number 300, which is no entity's: 1 remembered message id of no use; --repair sets
      this aside

an id that nobody asks for
    INSERT INTO seen VALUES ({orders}, 'x', 1);
    > orders: 1 remembered message id of no use; nobody asks for this, and it stays

a session's state of nobody
    INSERT INTO session VALUES (300, 'x', x'00', 1);
    > number 300, which is no entity's: 1 session state of no use; --repair sets this aside

a session's state where none are
    INSERT INTO session VALUES ({orders}, 'x', x'00', 1);
    > orders: 1 session state of no use; nobody asks for this, and it stays

a rule of nobody
    INSERT INTO rule SELECT 300, name, definition, created_ms FROM rule LIMIT 1;
    > number 300, which is no entity's: the rule '$Default' is of no subscription; --repair
      removes this

a rule of a queue
    INSERT INTO rule SELECT {orders}, name, definition, created_ms FROM rule LIMIT 1;
    > orders: the rule '$Default' is of no subscription

a rule that is no JSON
    UPDATE rule SET definition = 'all' WHERE name = 'all';
    > news/Subscriptions/three: the rule 'all' cannot be read (Expecting value: line 1
      column 1 (char 0))

a rule of no known filter
    UPDATE rule SET definition = json_set(definition, '$.filter.type', 'moon') WHERE name =
    'all';
    > news/Subscriptions/three: the rule 'all' cannot be read (not a stored filter: {'type':
      'moon', 'expression': '1 = 1', 'parameters': {}})

a rule of two names
    UPDATE rule SET name = 'other' WHERE name = 'all';
    > news/Subscriptions/three: the rule 'other' calls itself 'all'

a dead-letter queue is not entered
    DELETE FROM entity WHERE path = 'once/$deadletterqueue';
    > once/$deadletterqueue: its number, 10, is not entered, so that nothing is counted
      there; --repair enters it

a dead-letter queue of nobody
    INSERT INTO entity SELECT 301, 'x/$deadletterqueue', 'dead', description, 1, 1, 1, 0, 0,
    0, 0, 0, 0 FROM entity WHERE path = 'once';
    > x/$deadletterqueue: it is entered as 'dead' with the number 301, which is no entity's;
      --repair removes this

a number that is no multiple
    UPDATE entity SET id = id + 301 WHERE path LIKE 'empty%';
    > empty: its number is 313, and those of entities are multiples of 3

an entity of no known kind
    UPDATE entity SET kind = 'moon' WHERE path = 'once';
    > once: its description cannot be read (KeyError: 'moon')

a side queue of another path
    UPDATE entity SET path = 'other' WHERE path = 'orders/$deadletterqueue';
    > other: it is entered as 'dead' with the number 4, which is that of
      'orders/$deadletterqueue'

a topic is gone
    DELETE FROM entity WHERE path = 'news' OR path LIKE 'news/$%';
    > news/Subscriptions/one: it is a subscription of no topic; --repair sets this aside
    > news/Subscriptions/two: it is a subscription of no topic; --repair sets this aside
    > news/Subscriptions/three: it is a subscription of no topic; --repair sets this aside
    > number 15, which is no entity's: 1 message of no entity (number 1); --repair sets this
      aside

a description that is no JSON
    UPDATE entity SET description = 'deep' WHERE path = 'talks';
    > talks: its description cannot be read (JSONDecodeError: Expecting value: line 1 column
      1 (char 0))

a description of what cannot be
    UPDATE entity SET description = json_set(description, '$.lock_duration', 1) WHERE path =
    'talks';
    > talks: its description cannot be read (DescriptionError: LockDuration must be between
      0:00:05 and 0:05:00; it is 0:00:00.001000)

a state that there is not
    UPDATE message SET state = 7 WHERE id = {in_once};
    > once: 1 message neither active, deferred nor scheduled (number 1)
    > once: active is 2 and must be 1, scheduled is 0 and must be 1; --repair counts again

scheduled for no time
    UPDATE message SET due_ms = NULL WHERE state = 2;
    > orders: 1 message scheduled for no time (number 7)
    > news: 1 message scheduled for no time (number 1)

due and not scheduled
    UPDATE message SET due_ms = 5 WHERE id = {in_once};
    > once: 1 message due at a time and not scheduled (number 1)

expiring by no time to live
    UPDATE message SET expires_ms = 5 WHERE id = {in_once};
    > once: 1 message expiring by no time to live (number 1)

expiring before it appears
    UPDATE message SET expires_ms = 5, ttl_ms = 5 WHERE state = 2;
    > orders: 1 message expiring before the time to appear (number 7)
    > news: 1 message expiring before the time to appear (number 1)

a dead letter that expires
    UPDATE message SET expires_ms = 5, ttl_ms = 5 WHERE id = {in_dead};
    > orders/$deadletterqueue: 1 message expiring among dead letters (number 1)

a dead letter that is scheduled
    UPDATE message SET state = 2, due_ms = 5 WHERE id = {in_dead};
    > orders/$deadletterqueue: 1 message scheduled among dead letters (number 1)
    > orders/$deadletterqueue: active is 1 and must be 0, scheduled is 0 and must be 1;
      --repair counts again

a message ready in a topic
    UPDATE message SET state = 0, due_ms = NULL WHERE id = {in_news};
    > news: 1 message ready in a topic, which nobody receives (number 1)
    > news: active is 0 and must be 1, scheduled is 1 and must be 0; --repair counts again

no session where one must be
    UPDATE message SET session = NULL WHERE id = {in_talks};
    > talks: 1 message in no session (number 1)

a session where none are
    UPDATE message SET session = '3' WHERE id = {in_orders};
    > orders: 1 message in a session, where none are (number 1)
    > orders: 1 message in another session than the bytes say (number 1)

another session
    UPDATE message SET session = 'b' WHERE id = {in_talks};
    > talks: 1 message in another session than the bytes say (number 1)

no bytes
    UPDATE message SET bare = NULL WHERE id = {in_orders};
    > orders: 1 message without bytes (number 1); --repair sets this aside

bytes twice
    UPDATE message SET bare = (SELECT bare FROM body WHERE id = 1) WHERE id = {in_one};
    > news/Subscriptions/one: 1 message with bytes twice (number 1)

the number 0
    UPDATE message SET id = id >> 40 << 40 WHERE id = {in_orders};
    > orders: 1 message of a number that is never given (number 0)

less than no delivery
    UPDATE message SET delivery_count = -1 WHERE id = {in_orders};
    > orders: 1 message with a size or a count below 0 (number 1)

bytes that are no message
    UPDATE message SET bare = x'ff' WHERE id >> 40 = {once};
    > once: 2 messages that cannot be read: a message's section has no descriptor (numbers
      1, 2)

shared bytes that are no message
    UPDATE body SET bare = x'005373d0' WHERE id = 2;
    > news/Subscriptions/one: 1 message that cannot be read: the bytes end in the middle of
      a value (number 2)
    > news/Subscriptions/two: 1 message that cannot be read: the bytes end in the middle of
      a value (number 2)
    > news/Subscriptions/three: 1 message that cannot be read: the bytes end in the middle
      of a value (number 2)

annotations that cannot be read
    UPDATE message SET annotations = x'c1' WHERE id = {in_orders};
    > orders: 1 message that cannot be read: its message annotations are no map: the
      bytes end in the middle of a value (number 1)

texts for numbers and for bytes
    UPDATE entity SET active = 'many' WHERE path = 'orders';
    UPDATE message SET state = 'x', bare = 'text' WHERE id = {in_orders};
    > the file: 1 row of 'entity' with no INTEGER as 'active'
    > the file: 1 row of 'message' with no INTEGER as 'state'
    > the file: 1 row of 'message' with no BLOB as 'bare'

an index is missing
    DROP INDEX message_due;
    > the file: the index 'message_due' is missing; --repair makes it

another index of the name
    DROP INDEX message_due;
    CREATE INDEX message_due ON message (due_ms);
    > the file: the index 'message_due' is not made as it must be

a table is missing
    DROP TABLE seen;
    > the file: the table 'seen' is missing
    > the file: the index 'seen_at' is missing; --repair makes it

it was made twice
    INSERT INTO about VALUES (1);
    > the file: the table 'about' has 2 rows and must have 1
"""


@dataclass(frozen=True)
class Damage:
    """What was done to a file, and what is to be said of it."""

    sql: tuple[str, ...]
    found: tuple[str, ...]

    @property
    def mendable(self) -> tuple[str, ...]:
        return tuple(line for line in self.found if f"; {REPAIR}" in line)


def read_damages() -> Iterator[object]:
    keys = {name: of(name) for name in ("orders", "once", "talks", "news")}
    keys |= {f"in_{name}": row(name) for name in keys}
    keys["in_dead"] = row("orders/$deadletterqueue")
    keys["in_one"] = row("news/Subscriptions/one")
    for block in DAMAGES.strip().split("\n\n"):
        name, _, rest = block.partition("\n")
        sql, *found = " ".join(rest.split()).split(" > ")
        for word, key in keys.items():
            sql = sql.replace(f"{{{word}}}", key)
        lines = (line if re.search("; (--|nobody)", line) else f"{line}; {COPY}" for line in found)
        yield pytest.param(Damage(tuple(sql.split(";")), tuple(lines)), id=name)


@pytest.fixture(params=read_damages())
def damage(request: pytest.FixtureRequest, copy: Path) -> Damage:
    damage: Damage = request.param
    change(copy, *damage.sql)
    return damage


def lines(findings: list[Finding]) -> tuple[str, ...]:
    return tuple(map(str, findings))


def test_damage_is_found(copy: Path, damage: Damage) -> None:
    assert lines(inspect(copy).findings) == damage.found


def test_what_can_be_mended_is_and_the_rest_is_left_alone(copy: Path, damage: Damage) -> None:
    before = whole(copy)
    report = repair(copy)
    if "the table 'seen' is missing" in damage.found[0]:
        assert (report.mended, lines(report.findings)) == ([], damage.found)
    else:
        assert lines(report.mended) == damage.mendable
        assert lines(report.findings) == tuple(
            line for line in damage.found if line not in damage.mendable
        )
    after = whole(copy)
    assert (after == before) == (not report.mended) or "index" in damage.found[0]
    assert after.get("message") is not None
    assert lines(inspect(copy).findings) == lines(report.findings)
    again = repair(copy)
    assert (again.mended, again.findings) == ([], report.findings)
    assert whole(copy) == after


def test_no_message_is_lost_when_a_store_is_mended(copy: Path) -> None:
    before = whole(copy)
    change(copy, "UPDATE entity SET active = 0", "UPDATE body SET holders = 9")
    assert repair(copy).findings == []
    assert whole(copy) == before


def test_an_index_that_lacks_a_row_is_made_anew(copy: Path) -> None:
    with closing(sqlite3.connect(copy, isolation_level=None)) as link:
        link.execute("PRAGMA writable_schema = ON")
        (kept,) = link.execute("SELECT sql FROM sqlite_master WHERE name = 'message_due'")
        link.execute(
            "UPDATE sqlite_master SET sql = ? WHERE name = 'message_due'",
            ("CREATE INDEX message_due ON message (due_ms) WHERE state = 3",),
        )
    change(copy, f"UPDATE message SET state = 2, due_ms = 7 WHERE id = {row('once')}")
    with closing(sqlite3.connect(copy, isolation_level=None)) as link:
        link.execute("PRAGMA writable_schema = ON")
        link.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'message_due'", kept)
    (first, *_) = inspect(copy).findings
    assert (first.check, "message_due" in first.what) == ("integrity", True)
    report = repair(copy)
    assert first in report.mended
    # What the index hid was found behind it, and mended too.
    assert [each.check for each in report.mended if each.check != "integrity"] == ["counters"]
    assert report.findings == []


# ---------------------------------------------------------------- files that are something else


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file: it is empty, and no broker has made a store of it"),
        (b"xy", "the file: SQLite cannot read it: file is not a database"),
        (b"garbage" * 1_000, "the file: SQLite cannot read it: file is not a database"),
    ],
    ids=["nothing", "two bytes", "garbage"],
)
def test_a_file_that_is_no_store_is_a_finding_and_left_alone(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    assert lines(inspect(path).findings) == (f"{said}; {COPY}",)
    assert lines(repair(path).findings) == (f"{said}; {COPY}",)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("pragma", "said"),
    [
        (f"user_version = {FORMAT + 1}", f"has format version {FORMAT + 1}"),
        ("application_id = 9", "is a SQLite file, but not a Twinbus store"),
    ],
)
def test_a_file_of_another_version_or_program_is_a_finding_and_left_alone(
    copy: Path, pragma: str, said: str
) -> None:
    change(copy, f"PRAGMA {pragma}", "UPDATE entity SET active = 9")
    before = whole(copy)
    for look in (inspect, repair):
        (finding,) = look(copy).findings
        assert finding.check == "format"
        assert said in finding.what
    assert whole(copy) == before


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE entity SET description = '{DEEP}' WHERE path = 'orders'",
        f"UPDATE rule SET definition = '{DEEP}'",
        """UPDATE entity SET description = '{"lock_duration": 1e999}' WHERE path = 'orders'""",
        "UPDATE entity SET id = 9223372036854775807 WHERE path = 'orders'",
        "UPDATE entity SET path = CAST(x'ff' AS TEXT) WHERE path = 'orders'",
        "UPDATE entity SET description = CAST(x'fffe' AS TEXT) WHERE path = 'orders'",
    ],
    ids=[
        "nested description",
        "nested rule",
        "endless",
        "huge number",
        "no UTF-8",
        "no UTF-8 here",
    ],
)
def test_what_cannot_even_be_read_is_a_finding_and_left_alone(copy: Path, statement: str) -> None:
    messages = whole(copy)["message"]
    change(copy, statement)
    found = inspect(copy).findings
    assert found
    assert repair(copy).findings == found
    with closing(sqlite3.connect(copy)) as link:
        assert sorted(link.execute("SELECT * FROM message"), key=repr) == messages


def test_a_store_of_the_first_releases_is_sound_before_a_broker_has_added_to_it(copy: Path) -> None:
    change(copy, "DROP TABLE aside", "DROP TABLE next_number", "DROP INDEX message_ready")
    assert not inspect(copy).findings


def test_a_log_that_is_none_is_no_finding_however_often_it_is_met(
    copy: Path,
) -> None:
    copy.with_name(FILE + "-wal").write_bytes(b"y" * 5_000)
    for _ in range(2):
        assert not inspect(copy).findings


def test_a_pipe_in_the_place_of_the_file_is_a_sentence_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    for look in (inspect, repair):
        with pytest.raises(InspectionError, match="is no file"):
            look(tmp_path / FILE)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_file_that_was_cut_off_is_a_finding_and_left_alone(copy: Path, share: float) -> None:
    content = copy.read_bytes()
    cut = content[: int(len(content) * share)]
    copy.write_bytes(cut)
    report = inspect(copy)
    assert lines(report.findings) == (
        f"the file: SQLite cannot read it: database disk image is malformed; {COPY}",
    )
    assert repair(copy).mended == []
    assert copy.read_bytes() == cut


def test_a_folder_in_the_place_of_the_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    for look in (inspect, repair):
        with pytest.raises(InspectionError, match="is a folder, where"):
            look(tmp_path / FILE)


def test_a_file_that_is_not_there_or_not_to_be_read_is_a_sentence(copy: Path) -> None:
    with pytest.raises(InspectionError, match="No such file"):
        inspect(copy.with_name("other.db"))
    copy.chmod(0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65_534)  # root may read everything
    try:
        for look in (inspect, repair):
            with pytest.raises(InspectionError, match="cannot be read: Permission denied"):
                look(copy)
    finally:
        os.seteuid(me)


def test_nothing_is_mended_in_a_folder_that_a_broker_uses(copy: Path) -> None:
    change(copy, "UPDATE entity SET active = 9")
    before = whole(copy)
    with alone_in(copy.parent), pytest.raises(InspectionError, match="another broker is using"):
        repair(copy)
    assert whole(copy) == before
