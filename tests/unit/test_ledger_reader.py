"""A ledger's files read without Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twinbus.ledger import MARKER, Ledger, LedgerError, RecordKeeper
from twinbus.ledger.reader import (
    PYTHONS_TIMES,
    data_files,
    files_of,
    find_local,
    local_path,
    read_file,
)

NOON = 1_795_000_000.0  # 2026-11-18T08:26:40Z


def keep(folder: Path, name: str, keeper: RecordKeeper = RecordKeeper.CLIENT) -> Path:
    """A file with one record, of an entity called as its client."""
    ledger = Ledger(folder, client=name, kept_by=keeper)
    ledger.add("send", "normal", "contoso", name, at=NOON)
    ledger.close()
    (path,) = folder.glob(f"day=*/{name}-*.parquet")
    return path


def entities(path: Path, keeper: RecordKeeper | None = None) -> list[str]:
    found: list[str] = read_file(path, ["entity"], keeper)["entity"].to_pylist()
    return found


def test_only_what_a_ledger_wrote_whole_is_found_in_the_order_of_days(tmp_path: Path) -> None:
    first = keep(tmp_path, "a")
    folder = first.parent
    later = tmp_path / "day=2026-11-19" / first.name
    later.parent.mkdir()
    later.write_bytes(first.read_bytes())
    (folder / ".a.parquet.tmp.parquet").touch()
    (folder / "_SUCCESS").touch()
    (folder / "notes.txt").touch()
    torn = folder / "torn.parquet"
    torn.write_bytes(first.read_bytes()[:100])
    (tmp_path / "day=*").mkdir()  # somebody else's
    assert data_files(tmp_path) == [first, torn, later]
    assert files_of(later.parent) == [later]
    found = find_local(tmp_path)
    assert found.days == {
        "2026-11-18": frozenset({first.name}),
        "2026-11-19": frozenset({first.name}),
    }
    assert found.torn == ("day=2026-11-18/torn.parquet",)
    found.check_records("here")
    with pytest.raises(LedgerError, match=r"torn\.parquet of the ledger cannot be read"):
        read_file(torn, ["entity"])


def test_one_keepers_records_are_read_or_all(tmp_path: Path) -> None:
    client, broker = keep(tmp_path, "c"), keep(tmp_path, "b", RecordKeeper.BROKER)
    for path, keeper, expected in (
        (client, None, ["c"]),
        (client, RecordKeeper.CLIENT, ["c"]),
        (client, RecordKeeper.BROKER, []),
        (broker, None, ["b"]),
        (broker, RecordKeeper.CLIENT, []),
        (broker, RecordKeeper.BROKER, ["b"]),
    ):
        assert entities(path, keeper) == expected, (path, keeper)
    old = pq.ParquetFile(broker).read().drop_columns(["kept_by"])
    pq.write_table(old, broker)
    assert entities(broker, RecordKeeper.CLIENT) == ["b"], "no broker kept ledgers then"
    assert entities(broker, RecordKeeper.BROKER) == []


@pytest.mark.parametrize(
    ("us", "expected"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (2**62, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        (-(2**62), datetime(1, 1, 1, tzinfo=UTC)),
        (None, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        (PYTHONS_TIMES[0] - 1, datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_every_time_is_one_that_can_be_printed(
    tmp_path: Path, us: int | None, expected: datetime
) -> None:
    path = keep(tmp_path, "a")
    at = pa.array([us], pa.int64()).cast(pa.timestamp("us", "UTC"))
    pq.write_table(pq.ParquetFile(path).read().set_column(0, "at", at), path)
    assert read_file(path, ["entity", "at"])["at"].to_pylist() == [expected]


def test_a_file_of_somebody_else_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"at": ["noon"], "colour": ["red"]}), path)
    for columns in (["entity"], ["at"], ["at", "entity"]):
        with pytest.raises(LedgerError, match="cannot be read"):
            read_file(path, columns)


def test_without_arrow_it_is_a_sentence_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keep(tmp_path, "a")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(LedgerError, match=r"pip install 'twinbus\[ledger\]'"):
        read_file(path, ["entity"])


def test_an_address_is_a_folder_of_this_machine_or_it_is_not(tmp_path: Path) -> None:
    assert local_path("file:///ledger") == Path("/ledger")
    assert local_path("ledger") == Path.cwd() / "ledger"
    assert local_path("abfs://ledger@shop") is None


def test_a_ledger_without_records_says_so(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text('{"format": 1}')
    with pytest.raises(LedgerError, match="the ledger here has no records yet"):
        find_local(tmp_path).check_records("here")
