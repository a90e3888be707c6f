"""The paired sender beside the bare SDK: `bench.paired`, for the page."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bench import paired
from bench.results import Result

TITLE = "The paired sender: beside the bare SDK"
LIMIT_S = 300
CUT = "seven rounds where `make bench-paired` has eleven"


def measure(quick: bool) -> Iterator[Result]:
    yield from asyncio.run(paired.run(2 if quick else 7))
