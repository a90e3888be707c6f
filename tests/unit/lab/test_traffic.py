"""What senders and receivers write down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twinbus.lab.child_sender import Journal, read_journal
from twinbus.lab.traffic import Observed
from twinbus.lab.verdict import Attempt, Receipt

ATTEMPT = Attempt("1-0-7", "orders", "sender 0", 7, acknowledged=False)
RECEIPT = Receipt("1-0-7", "orders", "sender 0")


def test_a_message_that_comes_again_before_it_was_settled_is_no_duplicate() -> None:
    history = Observed()
    history.received(RECEIPT)  # and the answer to its settling is lost
    history.received(RECEIPT)
    history.settled(RECEIPT)
    assert history.receipts == [RECEIPT]
    history.received(RECEIPT)
    assert history.receipts == [RECEIPT, RECEIPT], "settled, and here again: that is one"


def test_a_journal_holds_what_an_earlier_life_of_its_sender_knew(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert list(read_journal(path)) == []
    Journal(path).attempted(ATTEMPT)
    Journal(path).attempted(replace(ATTEMPT, acknowledged=True))
    assert list(read_journal(path)) == [ATTEMPT, replace(ATTEMPT, acknowledged=True)]
