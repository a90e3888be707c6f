"""The benchmarks that `make bench` runs: each a module with `measure(quick)` and a `LIMIT_S`.

They are listed in the order of the page.
"""

PARTS = (
    "rabbitmq",
    "ready",
    "load",
    "depth",
    "entities",
    "connections",
    "sizes",
    "profile",
    "paired",
    "syphon",
    "ledger",
    "reports",
)

__all__ = ["PARTS"]
