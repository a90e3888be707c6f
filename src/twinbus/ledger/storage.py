"""Where a ledger is kept: a folder of this machine, or any store that ``fsspec`` knows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from twinbus.ledger.record import FORMAT, MARKER, LedgerError, need_arrow


def store_at(where: str) -> Folder | Remote:
    need_arrow()  # asked now: later there is nobody to tell
    import pyarrow as pa

    pa.array([])  # loads the rest of it, which it could not do while the process ends
    if not where:
        raise LedgerError("where is the ledger? Give a folder or a URL")
    if "://" not in where:
        return Folder(Path(where))
    scheme, _, rest = where.partition("://")
    return Folder(Path(rest)) if scheme == "file" else Remote(where)


def check_marker(text: str, where: str) -> None:
    """Raise unless ``text`` is the marker of a ledger of this format."""
    try:
        number = json.loads(text)["format"]
    except (ValueError, TypeError, KeyError):
        raise LedgerError(f"{where} is not a ledger: its {MARKER} cannot be read") from None
    if number != FORMAT:
        age = "an older" if isinstance(number, int) and number < FORMAT else "a newer"
        raise LedgerError(
            f"the ledger {where} is of {age} format, {number}; this version of Twinbus keeps "
            f"format {FORMAT}: start a new folder, and read this one with the version that wrote it"
        )


class Folder:
    """A local folder. A file is there whole or not at all, whatever happens to the machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def mark(self) -> None:
        marker = self._root / MARKER
        if marker.exists():
            check_marker(marker.read_text(), str(self._root))
        else:
            self.put(MARKER, json.dumps({"format": FORMAT}).encode())

    def put(self, name: str, content: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Spark, DuckDB and pandas pass over names that begin with a dot.
        unfinished = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


class Remote:
    """Any store that ``fsspec`` knows. Object stores show a file only when it is complete."""

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        try:
            import fsspec

            fsspec.get_filesystem_class(scheme)
        except ImportError as error:
            raise LedgerError(
                f"a ledger at {scheme}:// needs fsspec and the package for that store, as in: "
                "pip install fsspec adlfs"
            ) from error
        except ValueError as error:
            raise LedgerError(f"a ledger cannot be kept at {scheme}://: {error}") from error
        self._url = url.rstrip("/")
        self._fsspec: Any = fsspec

    def mark(self) -> None:
        files, root = self._fsspec.core.url_to_fs(self._url)
        if files.exists(f"{root}/{MARKER}"):
            check_marker(files.cat_file(f"{root}/{MARKER}").decode(), self._url)
        else:
            self.put(MARKER, json.dumps({"format": FORMAT}).encode())

    def put(self, name: str, content: bytes) -> None:
        files, root = self._fsspec.core.url_to_fs(self._url)
        path = f"{root}/{name}"
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        files.pipe_file(path, content)
