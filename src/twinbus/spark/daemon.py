"""Spark's Python daemon, with what every worker of ours needs imported before the first is forked.

Importing Arrow, the SDK and these modules takes about a second of a core. Spark forks a worker for
each task that runs at the same time, source and sink apart; this way they have it for nothing.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if sys.argv[1:2] == ["pyspark.worker"]:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401

    from pyspark.daemon import manager

    manager()
