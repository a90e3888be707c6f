"""A paired sender as a process, for a soak to kill: `python -m twinbus.lab.child_sender`.

It sends until it is told to end, and writes each attempt and each acknowledgement to its journal
the moment it knows of it, so that a kill -9 takes nothing that it knew along.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from twinbus.errors import first_line
from twinbus.lab.rehearsal import pair
from twinbus.lab.traffic import Observed, SteadySender, entities
from twinbus.lab.verdict import Attempt

# Links are opened anew after so many, so that a soak sees that too.
IN_A_ROW = 500


class Journal(Observed):
    """A history on disk, a line an attempt."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def attempted(self, attempt: Attempt) -> None:
        os.write(self._file, json.dumps(asdict(attempt)).encode() + b"\n")


def read_journal(path: Path) -> Iterator[Attempt]:
    """Everything a sender wrote, in this life or an earlier one."""
    if path.exists():
        for line in path.read_text().splitlines():
            yield Attempt(**json.loads(line))


async def send(index: int, seed: int, journal: Path, name: str, pause_s: float) -> None:
    """Until cancelled. Raises what pairing raises."""
    number = max((each.number + 1 for each in read_journal(journal)), default=0)
    sender = SteadySender(index, entities(), Journal(journal), seed, number)
    async with AsyncExitStack() as stack:
        factory = await pair(
            stack,
            os.environ["TWINBUS_PRIMARY"],
            os.environ["TWINBUS_SECONDARY"],
            name,
            certificate=os.environ["TWINBUS_CERTIFICATE"],
            give_up_s=5,
        )
        while True:
            await sender.send(factory, IN_A_ROW, pause_s)


async def _until_told(arguments: argparse.Namespace) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await send(**vars(arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description="A paired sender of a soak.")
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--pause-s", type=float, required=True)
    logging.basicConfig(level=logging.ERROR)
    try:
        asyncio.run(_until_told(parser.parse_args()))
    except asyncio.CancelledError:
        return
    except Exception as error:  # noqa: BLE001  whatever it is, the soak starts it again
        sys.exit(f"the sender ended: {first_line(error)}")


if __name__ == "__main__":
    main()
