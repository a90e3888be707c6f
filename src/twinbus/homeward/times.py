"""The clocks of the world that the way home runs in: a machine's, or a simulator's."""

from __future__ import annotations

from typing import Protocol


class Times(Protocol):
    def now_ms(self) -> int:
        """Since 1970. It may be set while one looks, and jump."""

    def elapsed_s(self) -> float:
        """Since a moment that nobody names. It does not jump."""

    def sleep(self, seconds: float) -> None: ...
