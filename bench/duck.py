"""The bill and the audit as DuckDB's SQL, on the same Parquet files: for the distance.

They do the reading, the grouping and the sums, which is where the time goes; not the prices, the
torn files, or a cluster. So DuckDB is what a single machine could do, not a replacement.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

BILL = """
  SELECT day, namespace, entity, operation, cause, sum(count), sum(bytes), sum(units)
  FROM read_parquet('{files}', hive_partitioning = true, hive_types_autocast = false)
  WHERE ok AND operation NOT IN ('divert', 'restore')
  GROUP BY ALL"""
AUDIT = """
  WITH evidence AS (
    SELECT lower(entity) AS home, unnest(message_ids) AS id, operation, "at"
    FROM read_parquet('{files}', hive_partitioning = true, hive_types_autocast = false)
    WHERE ok AND operation IN ('send', 'complete')
  ), messages AS (
    SELECT home, id, count_if(operation = 'send') AS sent,
      count_if(operation = 'complete') AS completed,
      min("at") FILTER (operation = 'send') AS accepted_at
    FROM evidence GROUP BY home, id
  )
  SELECT home, date_trunc('hour', accepted_at), count(*),
    count_if(sent > 0 AND completed = 0) AS lost, count_if(completed > 1) AS twice
  FROM messages GROUP BY ALL"""
LOST = 3  # the column


def bill(folder: Path) -> int:
    """How many lines it has."""
    return len(_rows(BILL, folder))


def audit(folder: Path) -> int:
    """How many messages are lost."""
    return sum(row[LOST] for row in _rows(AUDIT, folder))


def _rows(query: str, folder: Path) -> list[tuple[int, ...]]:
    with duckdb.connect(config={"threads": 2}) as connection:
        found: list[tuple[int, ...]] = connection.execute(
            query.format(files=f"{folder}/day=*/*.parquet")
        ).fetchall()
    return found
