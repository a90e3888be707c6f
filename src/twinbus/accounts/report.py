"""A bill or an audit as a file: CSV, JSON, Parquet, or one HTML page that needs nothing else.

Everything that came from outside is escaped. Files appear whole or not at all. The plots are drawn
here, because they are but rectangles and text in SVG: no extra that makes reports needs a library
that draws, and its pictures would neither follow the reader's colours nor say their numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from html import escape
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from twinbus.accounts.attribution import KEYS, SUMS
from twinbus.errors import TwinbusError

if TYPE_CHECKING:
    import pyarrow as pa

KINDS: Final = (".csv", ".json", ".parquet", ".html")
# A page with more rows than this is slow to open; the other formats have them all.
MOST_ROWS: Final = 2_000
WIDEST_BAR: Final = 90.0
LONG_TEXT: Final = 26
# How the parts of a bar are painted, by verdict.
COLOURS: Final = {"ok": "good", "waiting": "c1", "dead": "c2", "lost": "bad", "duplicated": "c4"}


class ReportError(TwinbusError):
    """A report that cannot be written where it was asked for."""


@dataclass(frozen=True, slots=True)
class Report:
    """The same content for every format: ``table`` for rows, ``document`` for everything."""

    table: pa.Table
    document: Mapping[str, Any]
    page: str


def check_outputs(paths: Sequence[Path]) -> None:
    """Before any work is done: can these be written?"""
    for path in paths:
        if path.suffix.lower() not in KINDS:
            raise ReportError(f"{path}: the name must end in one of {', '.join(KINDS)}")
        if not path.absolute().parent.is_dir():
            raise ReportError(f"{path}: there is no folder {path.absolute().parent}")


def write(report: Report, path: Path) -> None:
    content = _content(report, path.suffix.lower())
    unfinished = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise ReportError(f"{path} cannot be written: {error.strerror}") from error


def _content(report: Report, kind: str) -> bytes:
    if kind == ".json":
        return to_json(report.document).encode()
    if kind == ".html":
        return report.page.encode()
    sink = BytesIO()
    if kind == ".csv":
        import pyarrow.csv

        pyarrow.csv.write_csv(report.table, sink)
    else:
        import pyarrow.parquet

        pyarrow.parquet.write_table(report.table, sink)
    return sink.getvalue()


def to_json(document: Any) -> str:
    return json.dumps(document, indent=2, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value)


# ---------------------------------------------------------------- the page


def page(title: str, said: str, *parts: str) -> str:
    style = (files("twinbus.accounts") / "report.css").read_text()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f"<h1>{escape(title)}</h1><p>{escape(said)}</p>{''.join(parts)}</main></body></html>\n"
    )


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """(name, value, good|bad|nothing)"""
    made = (
        f'<div class="tile {escape(mood)}"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value, mood in entries
    )
    return f'<div class="tiles">{"".join(made)}</div>'


def section(title: str, *parts: str) -> str:
    return f"<h2>{escape(title)}</h2>{''.join(parts)}"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    shown_rows = rows[:MOST_ROWS]
    kinds = [_kind([row[place] for row in shown_rows]) for place in range(len(columns))]
    head = "".join(
        f'<th class="{kind}">{escape(words(name))}</th>'
        for name, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{escape(_cell(value, kind))}</td>'
            for value, kind in zip(row, kinds, strict=True)
        )
        + "</tr>"
        for row in shown_rows
    )
    more = len(rows) - MOST_ROWS
    note = f"<p>{more:,} more rows are in the other formats.</p>" if more > 0 else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>{note}'


def _kind(values: Sequence[Any]) -> str:
    """What a column looks like: numbers, numbers with decimals, long text that may wrap, text."""
    types = {type(value) for value in values if value is not None}
    if types and types <= {int, float}:
        return "n d" if float in types else "n"
    return "w" if any(len(str(value)) > LONG_TEXT for value in values) else ""


def _cell(value: Any, kind: str) -> str:
    # As many decimals in every row, so that they stand below each other.
    return f"{value:,.4f}" if kind == "n d" and value is not None else shown(value)


def shown(value: Any) -> str:
    if value is None:
        return "–"  # noqa: RUF001  a dash is what it is
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:,.2f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return str(value)


def stacked_bars(
    bars: Sequence[tuple[str, Sequence[float]]],
    series: Sequence[str],
    unit: str,
    colours: Mapping[str, str] | None = None,
) -> str:
    """One bar a label, its parts in the order of ``series``; hovering says the numbers."""
    if not bars:
        return "<p>There is nothing to draw.</p>"
    width, height, left, bottom = 1000, 240, 64, 24
    paint = [(colours or {}).get(name, f"c{place % 7}") for place, name in enumerate(series)]
    top = _round_up(max(sum(parts) for _, parts in bars) or 1)
    slot = min((width - left) / len(bars), WIDEST_BAR)
    drawn = [_axis(top, width, height, left, bottom)]
    for place, (label, parts) in enumerate(bars):
        x, y = left + (place + 0.1) * slot, float(height - bottom)
        for name, colour, part in zip(series, paint, parts, strict=True):
            tall = part / top * (height - bottom - 12)
            y -= tall
            if tall > 0:
                drawn.append(
                    f'<rect x="{x:.1f}" y="{y:.2f}" width="{slot * 0.8:.1f}" height="{tall:.2f}" '
                    f'fill="var(--{colour})"><title>{escape(label)}: {escape(name)} '
                    f"{escape(shown(part))} {escape(unit)}</title></rect>"
                )
        if place % -(-len(bars) // 8) == 0:
            drawn.append(f'<text x="{x:.1f}" y="{height - 6}">{escape(label)}</text>')
    key = "".join(
        f'<span><i style="background:var(--{colour})"></i>{escape(name)}</span>'
        for name, colour in zip(series, paint, strict=True)
    )
    return f'<div class="key">{key}</div>' + _drawing(
        width, height, f"{unit} by {', '.join(series)}", drawn
    )


def _drawing(width: int, height: int, said: str, drawn: Sequence[str]) -> str:
    return (
        f'<div class="scroll"><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(said)}">{"".join(drawn)}</svg></div>'
    )


def _round_up(value: float) -> float:
    """Where an axis with four steps ends, so that every step is a number one would say."""
    size = 10.0 ** (len(str(int(value / 4))) - 1)
    step = next(step * size for step in (1, 2, 2.5, 5, 10) if step * size * 4 >= value)
    return max(4.0, 4 * step)


def _axis(top: float, width: int, height: int, left: int, bottom: int) -> str:
    lines = []
    for step in range(5):
        y = height - bottom - step / 4 * (height - bottom - 12)
        lines.append(
            f'<line x1="{left}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{short(top * step / 4)}</text>'
        )
    return "".join(lines)


def short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def time_line(spans: Sequence[tuple[str, datetime, datetime | None]]) -> str:
    """One row an entity, a bar from when it went out until it was back, if it is."""
    if not spans:
        return "<p>There was no outage.</p>"
    names = sorted({name for name, _, _ in spans})
    first = min(began for _, began, _ in spans)
    last = max(ended or began for _, began, ended in spans)
    still_out = any(ended is None for _, _, ended in spans)
    # What is still out reaches beyond all that is known.
    length = max(1.0, (last - first).total_seconds()) * (1.1 if still_out else 1)
    width, left, row = 1000, 260, 26

    def across(moment: datetime) -> float:
        return left + (moment - first).total_seconds() / length * (width - left)

    drawn = [
        f'<text x="0" y="{place * row + 17}">{escape(_clipped(name))}'
        f"<title>{escape(name)}</title></text>"
        for place, name in enumerate(names)
    ]
    for name, began, ended in spans:
        start, end = across(began), width if ended is None else across(ended)
        until = "still out" if ended is None else f"until {shown(ended)}"
        drawn.append(
            f'<rect x="{start:.1f}" y="{names.index(name) * row + 4}" '
            f'width="{max(3.0, end - start):.1f}" height="{row - 8}" rx="3" fill="var(--bad)">'
            f"<title>{escape(name)}: {escape(shown(began))} {escape(until)}</title></rect>"
        )
    foot = len(names) * row + 18
    right = "still out" if still_out else shown(last)
    drawn.append(f'<text x="{left}" y="{foot - 2}">{escape(shown(first))}</text>')
    drawn.append(f'<text x="{width}" y="{foot - 2}" text-anchor="end">{right}</text>')
    return _drawing(width, foot, "outages", drawn)


def _clipped(name: str, most: int = 34) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


# ---------------------------------------------------------------- the bill and the audit


def bill_page(document: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    causes = list(document["by_cause"])
    costs: dict[str, dict[str, float]] = {day: {} for day in document["by_day"]}
    for line in lines:
        of_day = costs[line["day"]]
        of_day[line["cause"]] = of_day.get(line["cause"], 0.0) + line["units"]
    bars = [(day[5:], [of_day.get(cause, 0) for cause in causes]) for day, of_day in costs.items()]
    sums = [
        [words(cause), each["count"], each["bytes"], each["units"], each["cost"]]
        for cause, each in document["by_cause"].items()
    ]
    currency = document["currency"]
    columns = (*KEYS, *SUMS, "cost")
    return page(
        "What the pair cost",
        f"{document['tier'].capitalize()} tier, {', '.join(document['months'])}, in {currency}.",
        tiles(
            [
                ("total", f"{document['total']:,.2f}", ""),
                ("base", f"{document['base']:,.2f}", ""),
                ("operations", shown(document["operations"]), ""),
                ("their cost", f"{document['operations_cost']:,.2f}", ""),
            ]
        ),
        section(
            "Operations by day", stacked_bars(bars, [words(each) for each in causes], "operations")
        ),
        section("By cause", table(("cause", "count", "bytes", "operations", currency), sums)),
        section("Every line", table(columns, [[line[each] for each in columns] for line in lines])),
    )


def audit_page(document: Mapping[str, Any], verdicts: Sequence[str]) -> str:
    moods = {"lost": "bad", "duplicated": "bad", "ok": "good"}
    counts = [
        (each, shown(document[each]), moods.get(each, "") if document[each] else "")
        for each in verdicts
    ]
    by_window: dict[str, list[float]] = {}
    for row in document["windows"]:
        parts = by_window.setdefault(shown(row["window"])[:16], [0.0] * len(verdicts))
        for place, verdict in enumerate(verdicts):
            parts[place] += row[verdict]
    spans = [(each["entity"], each["began"], each["ended"]) for each in document["outages"]]
    skew = document["clock_skew_at_least_s"]
    said = (
        "Nothing was lost." if not document["lost"] else f"{document['lost']:,} messages were lost."
    )
    columns = ("window", "entity", "accepted", "diverted", *verdicts, "lag_p50_s", "lag_p99_s")
    asked = ("verdict", "entity", "message_id", "accepted_at", "home_at")
    return page(
        "Where the messages are",
        said + (f" Clocks differ by at least {skew:g} seconds." if skew else ""),
        tiles([("accepted", shown(document["accepted"]), ""), *counts]),
        section(
            "Messages by when they were accepted",
            stacked_bars(list(by_window.items()), verdicts, "messages", COLOURS),
        ),
        section("Outages", time_line(spans)),
        section(
            "By window and entity",
            table(columns, [[row[c] for c in columns] for row in document["windows"]]),
        ),
        section(
            "Messages in question",
            table(asked, [[row[c] for c in asked] for row in document["questionable"]]),
        ),
    )


def words(name: str) -> str:
    return name.replace("_", " ")
