# Generated from ../aio/keeper.py by tools/unasync.py; change that file, not this one.
"""Keeping the syphon of a pairing alive: started with the factory, started again if it dies."""

from __future__ import annotations

import time

from twinbus.paired.blocking.world import Crew, Signal, sleep
from twinbus.paired.events import SyphonEnded, SyphonStarted
from twinbus.paired.syphon import HOPELESS, SyphonProcess
from twinbus.paired.telemetry import Announcer

LOOK_S = 0.5
# A syphon that died is started again after this long, then twice as long, ...
FIRST_PAUSE_S = 2.0
LAST_PAUSE_S = 60.0
# ... unless it had lived so long that this is another story.
STEADY_S = 120.0
# What it may take to end by itself; the factory's partner has five seconds in all.
GRACE_S = 3.0


class Keeper:
    """Owns the process."""

    def __init__(
        self, process: SyphonProcess, namespace: str, announcer: Announcer, crew: Crew
    ) -> None:
        self._process = process
        self._namespace = namespace
        self._announcer = announcer
        self._crew = crew
        self._stopping = Signal()

    def start(self) -> None:
        self._crew.start("syphon", self._keep)

    def _keep(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._stopping.is_set():
            began = time.monotonic()
            code = self._run()
            if code is None or code == HOPELESS:
                return
            pause = FIRST_PAUSE_S if time.monotonic() - began > STEADY_S else pause * 2
            self._stopping.wait(min(pause, LAST_PAUSE_S))

    def _run(self) -> int | None:
        """One life of the process; None if it was we who ended it."""
        pid = self._process.start()
        self._announcer.announce(SyphonStarted(at=time.time(), namespace=self._namespace, pid=pid))
        while not self._stopping.wait(LOOK_S):
            code = self._process.ended()
            if code is not None:
                self._process.end()
                hint = "its log says why" if code == HOPELESS else "it is started again"
                error = f"exit code {code}; {hint}"
                self._announcer.announce(
                    SyphonEnded(at=time.time(), namespace=self._namespace, error=error)
                )
                return code
        return None

    def stop(self) -> None:
        """End it, gently if it hurries."""
        self._stopping.set()
        self._process.ask_to_end()
        ends = time.monotonic() + GRACE_S
        while self._process.ended() is None and self._process.is_started():
            if time.monotonic() > ends:
                break
            sleep(0.05)
        self._process.end()
