"""What comes back from the tasks of a round, as rows and as values."""

from __future__ import annotations

from dataclasses import fields
from random import randbytes

import pytest
from tests.unit.pipeline.backlogs import Backlog, plain, run_round

from twinbus import envelope
from twinbus.homeward.rounds import Destinations, Outcome, Tally
from twinbus.syphon.post import TALLY_DDL, tallies_batch, tallies_of

TALLIES = [
    Tally("q", "orders", Outcome.FAILED, 2, 3, 4, 5, error="it is away"),
    Tally("q", "orders", Outcome.PARTIAL, 1, 6, 6, part_of="some-message"),
]


@pytest.mark.parametrize("tallies", [[], TALLIES])
def test_tallies_come_back_from_a_task_as_they_went(tallies: list[Tally]) -> None:
    assert tallies_of(tallies_batch(tallies).to_pylist()) == tallies


def test_spark_is_told_of_every_column_of_a_tally() -> None:
    told = [column.split()[0] for column in TALLY_DDL.split(", ")]
    assert told == [field.name for field in fields(Tally)] == tallies_batch([]).schema.names


def test_of_a_part_is_told_which_message_it_is_of_and_no_error() -> None:
    backlog = Backlog()
    part, *_ = envelope.pack(plain("big", randbytes(9000)), "orders", 6000)
    backlog.put("q", part)
    place = envelope.place_of(part)
    (tally,) = run_round(backlog, Destinations())
    assert place is not None
    assert (tally.outcome, tally.part_of, tally.error) == (Outcome.PARTIAL, place[0], None)
