"""This machine's clocks, for what is pure and asks for the time."""

from __future__ import annotations

import time


class MachineTimes:
    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def elapsed_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
