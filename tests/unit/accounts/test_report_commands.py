"""`twinbus cost`, `audit` and `trace`: what they print, write and refuse, and their exit codes."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from tests.unit.accounts.ledgers import Book
from typer.testing import CliRunner, Result

from twinbus.cli import app
from twinbus.ledger import MARKER


def run(*arguments: object) -> Result:
    return CliRunner().invoke(
        app, [str(each) for each in arguments], env={"TWINBUS_SECONDARY": "", "TWINBUS_LEDGER": ""}
    )


class Page(HTMLParser):
    """What a browser would fetch, and whether every element that opens also closes."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(path: Path) -> Page:
    found = Page()
    found.feed(path.read_text())
    assert not found.open
    return found


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    folder = tmp_path / "ledger"
    with Book(folder) as book:
        book.send("11-18 08:00", "sent")
        book.send("11-18 08:05", "gone", ok=False, units=0)
        book.turn("11-18 08:05", "divert")
        book.divert("11-18 08:06", "gone", "home", "<script>")
        book.turn("11-18 08:20", "restore")
        book.syphon("11-18 08:30", "home")
        book.consume("11-18 08:40", "home")
    return folder


def test_a_bill_in_every_format_says_the_same(
    spark: SparkSession, ledger: Path, tmp_path: Path
) -> None:
    names = [tmp_path / f"bill.{kind}" for kind in ("csv", "json", "parquet", "html")]
    outputs = [each for name in names for each in ("--output", name)]
    done = run("cost", "--ledger", ledger, *outputs)
    assert done.exit_code == 0, done.output
    assert "9 operations cost 0.00 and the base is 9.81: 9.81 USD" in done.output
    table = pyarrow.parquet.read_table(names[2])
    document = json.loads(names[1].read_text())
    assert document["operations"] == sum(table["units"].to_pylist()) == 9
    assert document["lines"] == table.to_pylist()
    assert pyarrow.csv.read_csv(names[0]).num_rows == table.num_rows
    found = page(names[3])
    assert not found.fetched
    assert {"svg", "rect", "table"} <= set(found.tags)


def test_an_audit_with_a_loss_fails_and_names_it(
    spark: SparkSession, ledger: Path, tmp_path: Path
) -> None:
    html = tmp_path / "audit.html"
    done = run("audit", "--ledger", ledger, "--json", "--output", html)
    assert done.exit_code == 1, done.output
    document = json.loads(done.output)
    assert (document["accepted"], document["ok"], document["lost"]) == (4, 2, 2)
    assert [row["message_id"] for row in document["questionable"]] == ["<script>", "gone"]
    (outage,) = document["outages"]
    assert outage["began"] == "2026-11-18T08:05:00+00:00"
    assert "script" not in page(html).tags


@pytest.mark.parametrize("is_small", [True, False])
def test_the_journey_of_one_message(
    spark: SparkSession, ledger: Path, monkeypatch: pytest.MonkeyPatch, is_small: bool
) -> None:
    monkeypatch.setattr("twinbus.accounts.journey.is_small", lambda files: is_small)
    done = run("trace", "home", "--ledger", ledger, "--json")
    assert done.exit_code == 0, done.output
    backlog = "the backlog queue contoso/x-servicebus-transfer/0"
    assert [(step["at"][11:16], step["step"]) for step in json.loads(done.output)["steps"]] == [
        ("08:06", f"diverted to {backlog}, for orders"),
        ("08:30", f"taken from {backlog}"),
        ("08:30", "sent home to orders"),
        ("08:30", f"settled in {backlog}"),
        ("08:40", "received from orders"),
        ("08:40", "completed at orders"),
    ]
    assert run("trace", "nobody", "--ledger", ledger).exit_code == 1


def test_the_forecast_needs_no_ledger_and_has_the_documents_numbers() -> None:
    arguments = "--forecast --queues 10 --entities 20 --messages-per-day 240000 --outage-hours 4"
    done = run("cost", *arguments.split(), "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    idle = {"per_hour": 40, "per_day": 960, "per_30_days": 28_800}
    assert document["syphon_idle_receives"] == idle
    assert document["pings"]["in_outage"] == 4 * 60 * 20
    assert document["diverted_messages"]["operations"] == 4 * 40_000
    assert "28,800" in run("cost", *arguments.split()).output
    assert "57,600" in run("cost", *arguments.split(), "--syphons", "2").output


# ---------------------------------------------------------------- bad input


def folder(tmp_path: Path, kind: str) -> Path:
    made = tmp_path / kind
    if kind != "missing":
        made.mkdir()
    if kind == "foreign":
        (made / "photo.jpg").touch()
    if kind in ("older", "newer", "garbled", "unused", "unfinished"):
        number = {"older": 0, "newer": 2}.get(kind, 1)
        (made / MARKER).write_text("{" if kind == "garbled" else json.dumps({"format": number}))
    if kind == "unfinished":
        (made / "day=2026-11-18").mkdir()
        (made / "day=2026-11-18" / "torn.parquet").write_bytes(b"PAR1 half of it")
    return made


@pytest.mark.parametrize("command", ["cost", "audit", "trace"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("missing", "no such folder"),
        ("empty", "is empty"),
        ("foreign", "is not a ledger"),
        ("garbled", "is not a ledger"),
        ("older", "of an older format, 0"),
        ("newer", "of a newer format, 2"),
        ("unused", "has no records yet"),
        ("unfinished", "1 files were left unfinished"),
    ],
)
def test_what_is_no_ledger_is_a_sentence_and_nothing_is_written(
    tmp_path: Path, command: str, kind: str, words: str
) -> None:
    made = folder(tmp_path, kind)
    extra = ["x"] if command == "trace" else ["--output", tmp_path / "out.html"]
    done = run(command, *extra, "--ledger", made)
    assert done.exit_code == 2, done.output
    assert done.output.startswith("twinbus: ")
    assert words in done.output
    assert len(done.output.splitlines()) == 1
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tier", "premium"], "no tier 'premium'"),
        (["--prices", "nowhere.toml"], "cannot be read"),
        (["--output", "bill.docx"], "must end in one of"),
        (["--output", "nowhere/bill.csv"], "there is no folder"),
    ],
)
def test_a_bill_that_cannot_be_made_is_a_sentence(
    ledger: Path, arguments: list[str], words: str
) -> None:
    done = run("cost", "--ledger", ledger, *arguments)
    assert done.exit_code == 2
    assert words in done.output


def test_a_price_table_with_a_gap_is_a_sentence(tmp_path: Path, ledger: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(
        "[[standard.band]]\nfrom = 0\nto = 5\nper_million = 1\n"
        "[[standard.band]]\nfrom = 6\nper_million = 1\n"
    )
    done = run("cost", "--ledger", ledger, "--prices", prices)
    assert done.exit_code == 2
    assert "there must be no gap" in done.output


def test_no_ledger_given_is_a_sentence() -> None:
    done = run("cost")
    assert (done.exit_code, done.output) == (
        2,
        "twinbus: which ledger? Give --ledger, or set TWINBUS_LEDGER\n",
    )


@pytest.mark.parametrize("command", ["cost", "audit", "trace"])
def test_the_help_has_an_example(command: str) -> None:
    assert f"Example: twinbus {command}" in " ".join(run(command, "--help").output.split())
