# Generated from ../aio/keeper.py by tools/unasync.py; change that file, not this one.
"""Keeping the syphon of a pairing alive: started with the pairing, started again if it dies."""

from __future__ import annotations

from collections.abc import Callable

from twinbus.client_errors import PairingError
from twinbus.paired.blocking.world_blocking import World
from twinbus.paired.events import SyphonEnded, SyphonStarted
from twinbus.paired.syphon_process import HOPELESS, RUNS, SyphonProcess
from twinbus.paired.telemetry import Announcer

LOOK_S = 0.5
# Spark takes some seconds to start, and many on a machine that has much to do.
START_S = 180.0
START_LOOK_S = 0.05
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
        self, process: SyphonProcess, namespace: str, announcer: Announcer, world: World
    ) -> None:
        self._process = process
        self._namespace = namespace
        self._announcer = announcer
        self._world = world
        self._stopping = world.signal()
        self._given_up = False
        self._pause_s = FIRST_PAUSE_S
        self._began = 0.0

    def start(self, still: Callable[[], None]) -> None:
        """Returns when the syphon runs. Raises why it does not, or what ``still`` raises, and then
        nothing is left of it."""
        try:
            self._launch()
            self._until_running(still)
        except BaseException:
            self.stop()
            raise

    def keep(self) -> None:
        """Start it again whenever it dies, from now on."""
        self._world.start("syphon", self._keep)

    @property
    def is_running(self) -> bool:
        return self._process.is_alive()

    def _launch(self) -> None:
        try:
            pid = self._process.start()
        except Exception as error:
            raise PairingError(f"the syphon did not start: {error}") from error
        self._announcer.announce(
            SyphonStarted(at=self._world.date(), namespace=self._namespace, pid=pid)
        )

    def _until_running(self, still: Callable[[], None]) -> None:
        ends = self._world.now() + START_S
        while not self._process.said():
            still()
            code = self._process.ended()
            if code is not None and not self._process.said():
                raise PairingError(f"the syphon did not start: it ended with exit code {code}")
            if self._world.now() > ends:
                raise PairingError(f"the syphon did not start within {START_S:.0f} seconds")
            self._stopping.wait(START_LOOK_S)
        if self._process.said() != RUNS:
            raise PairingError(f"the syphon did not start: {self._process.said()}")

    def _keep(self) -> None:
        self._began = self._world.now()
        while not self._given_up and not self._stopping.wait(LOOK_S):
            self._world.attempt("keeping the syphon", self._namespace, self._look_after)

    def _look_after(self) -> None:
        code = self._process.ended()
        if code is None and self._process.is_started():
            return
        if code is not None:
            self._given_up = code == HOPELESS
            self._world.attempt("ending the syphon", self._namespace, self._bury, code)
        if self._given_up:
            return
        steady = self._world.now() - self._began > STEADY_S
        self._pause_s = FIRST_PAUSE_S if steady else self._pause_s * 2
        if not self._stopping.wait(min(self._pause_s, LAST_PAUSE_S)):
            self._began = self._world.now()
            self._launch_again()

    def _bury(self, code: int) -> None:
        said = ""
        try:
            said = self._process.said()
            self._process.end()
        finally:
            reason = "" if said in ("", RUNS) else f": {said}"
            self._announce_end(f"exit code {code}{reason}", for_good=code == HOPELESS)

    def _launch_again(self) -> None:
        try:
            self._launch()
        except PairingError as error:
            self._announce_end(str(error))
        if self._stopping.is_set():  # since we last looked: nobody else will end this one
            self._process.end()

    def _announce_end(self, error: str, *, for_good: bool = False) -> None:
        self._announcer.announce(
            SyphonEnded(
                at=self._world.date(), namespace=self._namespace, error=error, for_good=for_good
            )
        )

    def stop(self) -> None:
        """End it, gently if it hurries."""
        self._stopping.set()
        self._process.ask_to_end()
        ends = self._world.now() + GRACE_S
        while self._process.ended() is None and self._process.is_started():
            if self._world.now() > ends:
                break
            self._world.sleep(0.05)
        self._process.end()
