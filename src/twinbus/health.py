"""What lives as long as its process outlives whatever happens in it, and says what fails.

A loop does each piece of its work through `Health.attempt`: what that raises ends the piece and not
the loop, is logged with the entity that it befell, is counted, and stands in `failures` until the
piece succeeds again, or has not failed for a while. The broker tells its failures on `/health`, the
dashboard on its page.

Nothing is swallowed: the first failure of a kind is logged with its traceback, the next ones once a
minute with their number, so that a loop which fails four times a second does not fill a disk. Only
what is ``expected``, a disk that refuses, is logged as a sentence.

A leaf that anybody may use, from any thread. A log that cannot be written ends nothing either.
"""

from __future__ import annotations

import logging
import threading
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

# A failure that was not seen for so long is over, even if nobody has tried again since.
FORGOTTEN_S: Final = 60.0
SAY_AGAIN_S: Final = 60.0
# A thousand entities that fail together are not a thousand tracebacks: so many a minute and kind.
MOST_LINES: Final = 20
MOST_WORDS: Final = 300

_T = TypeVar("_T")


@dataclass(slots=True)
class Failure:
    """One kind of work on one entity that fails, and has since a moment."""

    what: str
    entity: str
    since: float
    last: float
    times: int = 0
    error: str = ""
    said_at: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "entity": self.entity,
            "times": self.times,
            "since": _moment(self.since),
            "last": _moment(self.last),
            "error": self.error,
        }


class Health:
    """Of one process, or of one namespace in it."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        expected: tuple[type[Exception], ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._expected = expected
        self._clock = clock
        self._failing: dict[tuple[str, str], Failure] = {}
        self._lines: dict[str, list[float]] = {}
        self._mutex = threading.Lock()  # held for moments, and never while something is logged

    def attempt(self, what: str, entity: str, act: Callable[..., Any], *args: Any) -> bool:
        """Do it, and answer whether it could be done."""
        try:
            act(*args)
        # Nothing is awaited here, so nobody cancels us: ``act`` asked a cancelled future.
        except (Exception, CancelledError) as error:  # noqa: BLE001 - whatever it is, we go on
            self.failed(what, entity, error)
            return False
        self.well(what, entity)
        return True

    async def attempt_soon(self, what: str, entity: str, work: Awaitable[Any]) -> bool:
        """The same of what has to be awaited."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(what, entity, error)
            return False
        self.well(what, entity)
        return True

    def failed(self, what: str, entity: str, error: BaseException) -> None:
        now = self._clock()
        with self._mutex:
            failure = self._failing.get((what, entity))
            if failure is None or now - failure.last > FORGOTTEN_S:
                failure = self._failing[what, entity] = Failure(what, entity, now, now)
            failure.last = now
            failure.times += 1
            failure.error = _words(error)[:MOST_WORDS]
            say = self._is_worth_saying(failure, now)
        if say:
            self._say(failure, error)

    def well(self, what: str, entity: str) -> None:
        """It was done whole, so what failed before is over."""
        if not self._failing:
            return
        with self._mutex:
            failure = self._failing.pop((what, entity), None)
        if failure is not None and failure.said_at:
            with suppress(Exception):
                self._log.warning("%s of '%s' is well again", what, entity)

    @property
    def failures(self) -> list[Failure]:
        """What fails now, the latest first."""
        now = self._clock()
        with self._mutex:
            for key, failure in list(self._failing.items()):
                if now - failure.last > FORGOTTEN_S:
                    del self._failing[key]
            return sorted(self._failing.values(), key=lambda failure: -failure.last)

    def _is_worth_saying(self, failure: Failure, now: float) -> bool:
        if failure.said_at and now - failure.said_at < SAY_AGAIN_S:
            return False
        lines = [at for at in self._lines.get(failure.what, ()) if now - at < SAY_AGAIN_S]
        self._lines[failure.what] = lines
        if len(lines) >= MOST_LINES:
            return False
        lines.append(now)
        failure.said_at = now
        return True

    def _say(self, failure: Failure, error: BaseException) -> None:
        with suppress(Exception):
            self._log.error(
                "%s of '%s' fails%s: %s",
                *(failure.what, failure.entity, _times(failure.times), _words(error)),
                exc_info=None if isinstance(error, self._expected) else error,
            )


def each(act: Callable[[_T], Any], those: Iterable[_T]) -> None:
    """Do it to each of them. One that fails keeps no other from its turn, and is raised then."""
    failed: Exception | None = None
    for one in those:
        try:
            act(one)
        except Exception as error:  # noqa: BLE001 - raised below
            failed = failed or error
    if failed is not None:
        raise failed


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot even say what it is
        return type(error).__name__


def _times(times: int) -> str:
    return f" ({times} times now)" if times > 1 else ""


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
