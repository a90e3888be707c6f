"""Prometheus's text format: what the broker and the syphon answer on `/metrics`.

A leaf that both write with. Numbers are kept where things happen, as plain integers; this only
writes them down when somebody asks, so that counting costs nothing more. prometheus-client, which
no extra needs, would keep each number once more in a registry of its own, under a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge"]
Sample = tuple[Mapping[str, str], float]


def metric(name: str, kind: Kind, text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """The lines of one metric: what it is, and its value for each set of labels. Every name begins
    with ``twinbus_``, and a counter's ends with ``_total``."""
    whole = f"twinbus_{name}" + ("_total" if kind == "counter" else "")
    yield f"# HELP {whole} {text}"
    yield f"# TYPE {whole} {kind}"
    for labels, value in samples:
        yield f"{whole}{_written(labels)} {value}"


def _written(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def as_page(lines: Iterable[str]) -> str:
    return "\n".join([*lines, ""])
