"""The file: what is committed is there, what is not is not, and foreign files are left alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from twinbus.broker.batch import Batch
from twinbus.broker.entry import ACTIVE, DEFERRED, SCHEDULED, Entry
from twinbus.broker.refusals import FormatError, StoreError
from twinbus.broker.schema import FORMAT
from twinbus.broker.store import Store

QUEUE = 3


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "messages.db")
    write(store, creating(QUEUE))
    yield store
    store.close()


def creating(number: int) -> Batch:
    batch = Batch()
    batch.run(
        "INSERT INTO entity (id, path, kind, description, created_ms, updated_ms, accessed_ms) "
        "VALUES (?, ?, 'queue', '{}', 0, 0, 0)",
        *(number, f"q{number}"),
    )
    return batch


def write(store: Store, batch: Batch) -> None:
    store.apply(batch)
    store.commit()


def entry(
    sequence: int,
    state: int = ACTIVE,
    *,
    expires_ms: int | None = None,
    due_ms: int | None = None,
    session: str | None = None,
    size: int = 10,
    body: int | None = None,
) -> Entry:
    times = (0, 1_000, expires_ms, due_ms)
    nothing = (None, None, None, None)
    return Entry(sequence, state, *times, session, None, 0, size, 0, *nothing, body, b"x" * size)


def inserting(*entries: Entry, entity: int = QUEUE) -> Batch:
    batch = Batch()
    for each in entries:
        batch.insert(entity, each)
    return batch


def counters(store: Store) -> tuple[int, ...]:
    (row,) = store.query(
        "SELECT last_sequence, active, deferred, scheduled, bytes FROM entity WHERE id = ?", QUEUE
    )
    return row


def test_what_is_committed_is_read_back_as_it_was(store: Store) -> None:
    kept = entry(1, expires_ms=5, due_ms=6, session="s", size=300)
    write(store, inserting(kept))
    assert store.get(QUEUE, 1) == kept
    assert counters(store) == (1, 1, 0, 0, 300)


def test_reads_do_not_see_what_is_not_committed(store: Store) -> None:
    store.apply(inserting(entry(1)))
    assert store.get(QUEUE, 1) is None
    store.commit()
    assert store.get(QUEUE, 1) is not None


def test_a_batch_that_fails_leaves_nothing_behind_and_the_next_one_works(store: Store) -> None:
    write(store, inserting(entry(1)))
    with pytest.raises(StoreError, match="UNIQUE"):
        store.apply(inserting(entry(2), entry(1)))
    store.rollback()
    assert store.get(QUEUE, 2) is None
    assert counters(store) == (1, 1, 0, 0, 10)
    write(store, inserting(entry(2)))
    assert counters(store) == (2, 2, 0, 0, 20)


def test_a_number_too_large_for_the_file_is_a_failed_batch(store: Store) -> None:
    with pytest.raises(StoreError):
        store.apply(inserting(entry(1, due_ms=2**63)))
    store.rollback()
    write(store, inserting(entry(1)))
    assert counters(store) == (1, 1, 0, 0, 10)


def test_a_full_disk_is_told_from_other_failures(store: Store) -> None:
    pages = store.query("PRAGMA page_count")[0][0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="the disk is full") as caught:
        store.apply(inserting(*[entry(n, size=20_000) for n in range(1, 50)]))
    assert caught.value.full
    store.rollback()
    store._writer.execute(f"PRAGMA max_page_count = {pages + 1_000}")
    write(store, inserting(entry(1)))
    assert counters(store)[0] == 1


def test_a_rollback_without_a_transaction_does_no_harm(store: Store) -> None:
    store.rollback()
    write(store, inserting(entry(1)))
    assert counters(store)[0] == 1


def test_deletes_reach_exactly_the_messages_named(store: Store) -> None:
    entries = [entry(n) for n in range(1, 11)]
    write(store, inserting(*entries))
    batch = Batch()
    for number in (9, 2, 3, 4, 7, 3):
        if number != 3 or not any(key & 0xFF == 3 for key in batch.deletes):
            batch.delete(QUEUE, entries[number - 1])
    write(store, batch)
    assert [e.sequence for e in store.browse(QUEUE, 0, 99, 9999, None)] == [1, 5, 6, 8, 10]
    assert counters(store) == (10, 5, 0, 0, 50)


def test_the_counters_follow_a_message_from_state_to_state(store: Store) -> None:
    write(store, inserting(entry(1), entry(2, SCHEDULED, due_ms=5)))
    assert counters(store) == (2, 1, 0, 1, 20)
    batch = Batch()
    batch.restate(QUEUE, entry(1), DEFERRED, 3)
    write(store, batch)
    assert counters(store) == (2, 0, 1, 1, 20)
    found = store.get(QUEUE, 1)
    assert found is not None
    assert (found.state, found.delivery_count) == (DEFERRED, 3)


def test_an_entity_sees_its_own_messages_only(store: Store) -> None:
    write(store, creating(QUEUE + 1))
    write(store, inserting(entry(1), entry(2)))
    write(store, inserting(entry(1), entity=QUEUE + 1))
    assert len(store.load(QUEUE, 0, 99, 9999)) == 2
    assert len(store.browse(QUEUE, 0, 99, 9999, None)) == 2
    assert len(store.load(QUEUE + 1, 0, 99, 9999)) == 1
    assert store.load(QUEUE + 2, 0, 99, 9999) == []


def test_a_page_ends_at_its_bytes_but_has_one_message_at_least(store: Store) -> None:
    write(store, inserting(*[entry(n, size=100) for n in range(1, 6)]))
    assert len(store.load(QUEUE, 0, 99, 250)) == 3
    assert len(store.load(QUEUE, 0, 99, 1)) == 1
    assert len(store.load(QUEUE, 0, 2, 9999)) == 2


def test_pages_of_ready_messages_leave_out_deferred_and_scheduled_ones(store: Store) -> None:
    states = (ACTIVE, DEFERRED, SCHEDULED, ACTIVE)
    write(store, inserting(*[entry(n + 1, state, due_ms=9) for n, state in enumerate(states)]))
    assert [e.sequence for e in store.load(QUEUE, 0, 9, 9999)] == [1, 4]
    assert [e.sequence for e in store.browse(QUEUE, 0, 9, 9999, None)] == [1, 2, 3, 4]


def test_sessions_are_found_by_age_and_by_name(store: Store) -> None:
    names = ("c", "a", "c", "b")
    write(store, inserting(*[entry(n + 1, session=name) for n, name in enumerate(names)]))
    assert store.oldest_sessions(QUEUE, 10) == ["c", "a", "b"]
    assert store.next_session(QUEUE, "") == "a"
    assert store.next_session(QUEUE, "b") == "c"
    assert store.next_session(QUEUE, "c") is None
    assert [e.sequence for e in store.load_session(QUEUE, "c", 1, 9, 9999)] == [3]


def test_shared_bytes_go_with_the_last_message_that_has_them(store: Store) -> None:
    write(store, inserting(entry(1, body=7), entry(2, body=7)))
    assert store.query("SELECT holders, bare FROM body") == [(2, b"x" * 10)]
    assert store.query("SELECT DISTINCT bare FROM message") == [(None,)]
    found = store.get(QUEUE, 2)
    assert found is not None
    assert found.bare == b"x" * 10
    for number, left in ((1, 1), (2, 0)):
        batch = Batch()
        batch.delete(QUEUE, entry(number, body=7))
        write(store, batch)
        assert len(store.query("SELECT id FROM body")) == left


def test_a_file_is_opened_again_with_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    store = Store(path)
    write(store, creating(QUEUE))
    write(store, inserting(entry(1)))
    store.close()
    again = Store(path)
    assert again.get(QUEUE, 1) == entry(1)
    assert again.query("PRAGMA journal_mode") == [("wal",)]
    assert again._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    again.close()


def test_a_format_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    Store(path).close()
    with sqlite3.connect(path) as link:
        link.execute(f"PRAGMA user_version = {FORMAT + 1}")
    link.close()
    before = path.read_bytes()
    with pytest.raises(FormatError, match=f"format version {FORMAT + 1}; this program reads"):
        Store(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"garbage" * 1_000, b"xy", b"SQLite format 3\x00" + b"\xff" * 500]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "messages.db"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="cannot be opened as a Twinbus store"):
        Store(path)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "messages.db"
    with sqlite3.connect(path) as link:
        link.execute("CREATE TABLE mine (x)")
    link.close()
    before = path.read_bytes()
    with pytest.raises(FormatError, match="not a Twinbus store"):
        Store(path)
    assert path.read_bytes() == before


def test_a_folder_in_the_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "messages.db").mkdir()
    with pytest.raises(FormatError, match="cannot be opened"):
        Store(tmp_path / "messages.db")
