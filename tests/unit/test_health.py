from __future__ import annotations

import logging
import threading
from asyncio import CancelledError

import pytest

from twinbus.health import FORGOTTEN_S, MOST_LINES, SAY_AGAIN_S, Health, each

LOG = logging.getLogger("twinbus.test")


class Moody:
    """Work that fails when it is told to, and a clock."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.error: Exception | None = None
        self.health = Health(LOG, expected=(OSError,), clock=lambda: self.now)

    def work(self) -> None:
        if self.error is not None:
            raise self.error

    def attempt(self, entity: str = "orders") -> bool:
        return self.health.attempt("expiry", entity, self.work)


@pytest.fixture
def moody() -> Moody:
    return Moody()


def test_what_fails_is_counted_with_its_entity_since_its_first_time(moody: Moody) -> None:
    assert moody.attempt()
    assert moody.health.failures == []
    moody.error = ValueError("no good")
    for _ in range(3):
        moody.now += 1
        assert not moody.attempt()
    (failure,) = moody.health.failures
    assert failure.as_json() == {
        "what": "expiry",
        "entity": "orders",
        "times": 3,
        "since": "1970-01-01T00:16:41.000+00:00",
        "last": "1970-01-01T00:16:43.000+00:00",
        "error": "ValueError: no good",
    }


def test_it_is_over_when_it_succeeds_and_for_that_entity_alone(moody: Moody) -> None:
    moody.error = ValueError("no good")
    moody.attempt("orders")
    moody.attempt("bills")
    moody.error = None
    moody.attempt("orders")
    assert [failure.entity for failure in moody.health.failures] == ["bills"]


def test_what_nobody_tries_again_is_forgotten(moody: Moody) -> None:
    moody.error = ValueError("no good")
    moody.attempt()
    moody.now += FORGOTTEN_S
    assert moody.health.failures
    moody.now += 1
    assert moody.health.failures == []


def test_a_mistake_is_logged_with_its_traceback_and_a_refusal_as_a_sentence(
    moody: Moody, caplog: pytest.LogCaptureFixture
) -> None:
    for error, traced in ((ValueError("ours"), True), (OSError("the disk"), False)):
        caplog.clear()
        moody.error = error
        moody.attempt(str(error))
        assert f"expiry of '{error}' fails" in caplog.text
        assert ("Traceback" in caplog.text) == traced


def test_it_is_said_once_a_minute_however_often_it_fails(
    moody: Moody, caplog: pytest.LogCaptureFixture
) -> None:
    moody.error = ValueError("no good")
    for _ in range(int(SAY_AGAIN_S * 4) + 1):
        moody.attempt()
        moody.now += 0.25
    assert len(caplog.records) == 2
    assert "(241 times now)" in caplog.text


def test_many_entities_that_fail_together_do_not_fill_the_log(
    moody: Moody, caplog: pytest.LogCaptureFixture
) -> None:
    moody.error = ValueError("no good")
    for number in range(1_000):
        moody.attempt(f"queue-{number}")
    assert len(caplog.records) == MOST_LINES
    assert len(moody.health.failures) == 1_000
    moody.error = None
    caplog.clear()
    for number in range(1_000):
        moody.attempt(f"queue-{number}")
    assert len(caplog.records) == MOST_LINES, "only what was said to fail is said to be well"


def test_each_has_its_turn_before_the_first_failure_is_raised() -> None:
    seen = []

    def act(number: int) -> None:
        seen.append(number)
        if number % 2:
            raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        each(act, [1, 2, 3, 4])
    assert seen == [1, 2, 3, 4]


def test_a_log_that_cannot_be_written_ends_nothing(moody: Moody) -> None:
    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(28, "No space left on device")

    handler = Full()
    LOG.addHandler(handler)
    try:
        moody.error = ValueError("no good")
        assert not moody.attempt()
        assert [failure.error for failure in moody.health.failures] == ["ValueError: no good"]
        moody.error = None
        assert moody.attempt()
    finally:
        LOG.removeHandler(handler)


def test_an_error_that_cannot_say_what_it_is_ends_nothing(
    moody: Moody, caplog: pytest.LogCaptureFixture
) -> None:
    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    moody.error = SpeechlessError()
    assert not moody.attempt()
    assert "expiry of 'orders' fails: SpeechlessError" in caplog.text


def test_a_cancelled_future_that_was_looked_at_is_a_failure_like_others(moody: Moody) -> None:
    def look() -> None:
        raise CancelledError

    assert not moody.health.attempt("expiry", "orders", look)


def test_any_thread_may_use_it(moody: Moody) -> None:
    moody.error = ValueError("no good")

    def often() -> None:
        for _ in range(500):
            moody.attempt()
            moody.health.failures  # noqa: B018  reading it forgets what is over
            moody.now += 0.01

    threads = [threading.Thread(target=often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (failure,) = moody.health.failures
    assert failure.times == 2_000
