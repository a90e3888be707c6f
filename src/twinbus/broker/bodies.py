"""Bytes that several messages share, and the one place that counts how many do.

A body's ``holders`` is the number of rows that refer to it. It is never worked out from what
memory believes: whoever is about to remove rows, or to give them other bytes, names the rows, and
what is counted is those among them that are really there and still have a share. So a share is
given up once, however many changes of one batch concern the same message.

Everything here happens inside the transaction that changes the rows.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping

# Row ids, first and last.
Run = tuple[int, int]

_HOLD = """
INSERT INTO body (id, holders, bare) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET holders = holders + excluded.holders
"""
_LEAVE = """
UPDATE body SET holders = holders - leaving.count
FROM (
    SELECT body, count(*) AS count FROM message
    WHERE id BETWEEN ? AND ? AND body IS NOT NULL GROUP BY body
) AS leaving
WHERE body.id = leaving.body
"""
_DROP = """
DELETE FROM body
WHERE holders <= 0 AND id IN (SELECT body FROM message WHERE id BETWEEN ? AND ?)
"""
_RECOUNT = """
UPDATE body SET holders = (SELECT count FROM counted WHERE counted.body = body.id)
WHERE holders IS NOT (SELECT count FROM counted WHERE counted.body = body.id)
"""


def hold(link: sqlite3.Connection, holders: Iterable[int], bytes_: Mapping[int, bytes]) -> None:
    """Rows are being added that share bodies: one number for each row. New ones are stored."""
    counts = Counter(holders)
    link.executemany(_HOLD, [(body, count, bytes_[body]) for body, count in counts.items()])


def release(link: sqlite3.Connection, runs: Iterable[Run]) -> None:
    """These rows are about to go, or to get other bytes; a body goes with the last of its rows."""
    runs = list(runs)
    link.executemany(_LEAVE, runs)
    link.executemany(_DROP, runs)


def recount(link: sqlite3.Connection) -> int:
    """Count all over again, for a file whose counts cannot be relied on; answers how many were
    wrong. Every body must have a row. Reads the whole file."""
    link.execute(
        "CREATE TEMP TABLE counted AS "
        "SELECT body, count(*) AS count FROM message WHERE body IS NOT NULL GROUP BY body"
    )
    link.execute("CREATE UNIQUE INDEX temp.counted_body ON counted (body)")
    wrong = link.execute(_RECOUNT).rowcount
    link.execute("DROP TABLE counted")
    return wrong
