"""Reading a ledger that is a folder of this machine, without Spark: its files, and their records.

``accounts.tables`` reads the same of any ledger with Spark. What both make of a record that is not
as it should be is said here once: a time that no calendar has is the nearest that one has, and a
record that does not say who kept it is a client's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.ledger.record import MARKER, LedgerError, RecordKeeper, need_arrow
from twinbus.ledger.storage import check_marker

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC: Final = b"PAR1"
# In microseconds since 1970, the years 1 to 9999: Python has no others, Arrow and Spark have.
PYTHONS_TIMES: Final = (-62_135_596_800_000_000, 253_402_300_799_999_000)


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a ledger by day. ``torn`` are those that a crash left unfinished. Read are the
    records of one keeper, since both ends of an operation may have recorded it; or, for None, all.
    """

    root: str
    days: Mapping[str, frozenset[str]]
    torn: tuple[str, ...] = ()
    keeper: RecordKeeper | None = None

    def folder(self, day: str) -> str:
        return f"{self.root}/day={day}"

    def check_records(self, where: str) -> None:
        """Raise, with a sentence, if there is nothing to read."""
        if not self.days:
            torn = f": its {len(self.torn)} files were left unfinished" if self.torn else ""
            raise LedgerError(f"the ledger {where} has no records yet{torn}")


def local_path(where: str) -> Path | None:
    """None if it is on some other store."""
    if where.startswith("file:"):
        return Path("/" + where[len("file:") :].lstrip("/"))
    return None if "://" in where else Path(where).absolute()


def find_local(root: Path) -> Found:
    """The files of a ledger that may have none yet. Raises LedgerError if it is not one."""
    if not root.is_dir():
        raise LedgerError(f"there is no ledger {root}: no such folder")
    marker = root / MARKER
    if not marker.is_file():
        state = "is not a ledger" if any(root.iterdir()) else "is empty"
        raise LedgerError(f"the folder {root} {state}: it has no {MARKER}")
    check_marker(marker.read_text(errors="replace"), str(root))
    days: dict[str, set[str]] = {}
    torn: list[str] = []
    for path in data_files(root):
        if _is_whole(path):
            days.setdefault(path.parent.name.removeprefix("day="), set()).add(path.name)
        else:
            torn.append(f"{path.parent.name}/{path.name}")
    return Found(str(root), {day: frozenset(names) for day, names in days.items()}, tuple(torn))


def data_files(root: Path) -> list[Path]:
    """The files of a ledger that have records, or will have."""
    return [path for folder in day_folders(root) for path in files_of(folder)]


def day_folders(root: Path) -> list[Path]:
    return sorted(root.glob("day=*"))


def files_of(folder: Path) -> list[Path]:
    """In an order in which each client's come as it wrote them."""
    return sorted(path for path in folder.glob("*.parquet") if is_data(path.name))


def is_data(name: str) -> bool:
    return name.endswith(".parquet") and name[0] not in "._"


def _is_whole(path: Path) -> bool:
    """Parquet's last bytes are written last."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 12:
            return False
        file.seek(-4, os.SEEK_END)
        return file.read() == _MAGIC


def read_file(path: Path, columns: Sequence[str], keeper: RecordKeeper | None = None) -> pa.Table:
    """These columns of a file's records: of those that this keeper kept, or of all. Raises
    LedgerError if it was left unfinished, or is not a ledger's."""
    need_arrow()
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=[*columns, "kept_by"])
        if keeper is not None:
            table = table.filter(_kept_by(table, keeper))
        table = table.select(columns)
        return _with_times(table) if "at" in columns else table
    except (pa.ArrowException, OSError, KeyError) as error:
        raise LedgerError(f"the file {path} of the ledger cannot be read: {error}") from error


def _kept_by(table: pa.Table, keeper: RecordKeeper) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    # Ledgers of earlier versions do not say, and no broker kept them.
    if "kept_by" not in table.column_names:
        return pa.array([keeper is RecordKeeper.CLIENT] * len(table), pa.bool_())
    by_broker = pc.fill_null(pc.equal(table["kept_by"], RecordKeeper.BROKER.value), False)
    return by_broker if keeper is RecordKeeper.BROKER else pc.invert(by_broker)


def _with_times(table: pa.Table) -> pa.Table:
    """A clock that is wrong, or a record without a time, must not be what nobody can print."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, (first, last) = pa.timestamp("us", "UTC"), PYTHONS_TIMES
    at_us = table["at"].cast(kind, safe=False).cast(pa.int64())
    at_us = pc.max_element_wise(pc.min_element_wise(at_us, last), first)
    return table.set_column(table.schema.get_field_index("at"), "at", at_us.cast(kind))
