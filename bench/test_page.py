"""Results as a page: what is measured is told, what failed is told too, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import page, part, results, shape
from bench.results import Curve, Due, Figure, Note, Outcome, Result, State

MACHINE = {"Processor": "two of them", "Date": "today"}
SEND = Figure(
    "durable send",
    "messages/s",
    [30_000, 10_000, 20_000],
    "one connection",
    {"RabbitMQ": [15_000, 20_000, 10_000]},
    goal="ahead",
    met=True,
)
MEMORY = Figure(
    "memory", "MB", [200.0], "all of it", {"RabbitMQ": [100.0]}, False, wall="the interpreter"
)
LINE = [(1.0, [11.0, 12.0, 13.0]), (10.0, [30.0]), (100.0, [210.0])]


def curve(due: Due, points: list[tuple[float, list[float]]]) -> Curve:
    return Curve("c", "Cost", "messages", "us", {"ours": points}, "so", due, "it is odd.")


def outcome(*found: Result, state: State = State.DONE, error: str = "") -> Outcome:
    made = Outcome("queues", "make bench", "Queues", state=state, error=error)
    for each in found:
        made.add(each)
    return made


def test_a_ratio_is_of_the_rounds_and_above_one_we_are_ahead() -> None:
    assert SEND.ratios("RabbitMQ") == [2, 0.5, 2]
    assert SEND.ratio("RabbitMQ") == 2
    assert MEMORY.ratio("RabbitMQ") == 0.5, "less memory is better, and we need twice as much"
    assert MEMORY.is_behind
    assert not SEND.is_behind


def test_a_figure_is_shown_with_its_spread_its_command_and_how_it_was_taken() -> None:
    text = page.render([outcome(SEND)], MACHINE)
    assert "20,000 (10,000 to 30,000)" in text
    assert "15,000 (10,000 to 20,000) | **2.00** | ahead: met" in text
    assert "`make bench`" in text
    assert "durable send: one connection." in text
    assert "| Processor | two of them |" in text


def test_where_we_are_behind_the_wall_is_named() -> None:
    assert "- **memory**: the interpreter." in page.render([outcome(SEND, MEMORY)], MACHINE)
    assert "behind" not in page.render([outcome(SEND)], MACHINE)


def test_a_part_that_failed_says_why_and_keeps_what_it_had() -> None:
    text = page.render(
        [outcome(SEND, state=State.FAILED, error="OSError: no disk"), outcome(MEMORY)], MACHINE
    )
    assert "**Not whole:** queues (failed)" in text
    assert "**failed**: OSError: no disk" in text
    assert "20,000 (10,000 to 30,000)" in text


def test_a_rehearsal_says_that_it_is_one() -> None:
    assert "mean nothing" in page.render([outcome(SEND)], MACHINE, quick=True)
    assert "mean nothing" not in page.render([outcome(SEND)], MACHINE)


def test_a_straight_line_is_found_straight_and_a_bent_one_gets_its_reason() -> None:
    assert page.judged(curve(Due.LINE, LINE)).startswith("A straight line, within")
    bent = [(1.0, [1.0]), (10.0, [100.0]), (100.0, [10_000.0])]
    assert page.judged(curve(Due.LINE, bent)).endswith("it is odd.")
    assert page.judged(curve(Due.FLAT, LINE)).startswith("Not flat")
    assert page.judged(curve(Due.NONE, bent)) == "it is odd."
    assert page.judged(curve(Due.LINE, bent[:2])).startswith("Too few"), "two are always on a line"


def test_a_line_through_points_on_a_line_is_that_line() -> None:
    found = shape.fit(LINE, Due.LINE)
    assert found.base == pytest.approx(10)
    assert found.slope == pytest.approx(2)
    assert found.off == pytest.approx(0, abs=1e-9)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    made = outcome(SEND, curve(Due.LINE, LINE), Note("a", "b"), state=State.LATE)
    made.save(tmp_path)
    loaded = results.load(tmp_path / "queues.json")
    assert page.render([loaded], MACHINE) == page.render([made], MACHINE)
    assert loaded.state is State.LATE


def test_a_measurement_that_raises_keeps_what_it_had_yielded(tmp_path: Path) -> None:
    def measure(quick: bool) -> Iterator[Result]:
        yield SEND
        raise RuntimeError("the peer went away\nand more of it")

    made = outcome()
    part.run(made, tmp_path, measure, quick=True)
    kept = results.load(tmp_path / "queues.json")
    assert kept.figures[0].name == "durable send"
    assert (kept.state, kept.error) == (State.FAILED, "RuntimeError: the peer went away")


def test_a_page_and_its_pictures_are_written_the_same_twice(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        path = page.write([outcome(curve(Due.LINE, LINE))], MACHINE, tmp_path, quick=False)
        written.append((path.read_text(), (tmp_path / "images/c.svg").read_text()))
    assert "![Cost](images/c.svg)" in written[0][0]
    assert written[0] == written[1]
