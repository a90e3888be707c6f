"""What keeping a ledger costs those who send: `bench.ledger`, for the page."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import ledger
from bench.results import Result

TITLE = "The ledger: what it costs a sender"
LIMIT_S = 300


def measure(quick: bool) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="twinbus-bench-ledger-") as name:
        yield from asyncio.run(ledger.sending(Path(name), 2 if quick else 9))
