"""`twinbus cost`, `twinbus audit` and `twinbus trace`: what a ledger says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.commands.options import Certificate, Json, Prices, Tier
from twinbus.commands.progress import progress
from twinbus.commands.terminal import (
    DOES_NOT_WORK,
    connection,
    fail,
    local,
    managing,
    needing,
    print_table,
    refuse,
    refusing,
)
from twinbus.ledger import Keeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.accounts.audit import Seen
    from twinbus.accounts.journey import Step
    from twinbus.accounts.report import Report
    from twinbus.ledger.reader import Found

# So many rows go to a terminal; files have them all.
MOST_LINES = 40

LedgerPath = Annotated[
    str | None,
    typer.Option("--ledger", envvar="TWINBUS_LEDGER", help="The ledger: a folder or a URL."),
]
Outputs = Annotated[
    list[Path] | None,
    typer.Option("--output", help="Write a .csv, .json, .parquet or .html file; give several."),
]
State = Annotated[
    str | None,
    typer.Option(
        "--state", help="A folder to keep what was read; next time only what is new is read."
    ),
]
KeptBy = Annotated[
    Keeper,
    typer.Option(
        "--kept-by",
        help="Whose records count: those of clients and the syphon, or those of brokers.",
    ),
]
Master = Annotated[
    str | None,
    typer.Option("--master", help="Spark's master. Default: this machine, or spark-submit's."),
]

Forecast = Annotated[
    bool, typer.Option("--forecast", help="No ledger: what a month with an outage would be.")
]
QueueCount = Annotated[int, typer.Option("--queues", min=1, help="Backlog queues.")]
EntityCount = Annotated[int, typer.Option("--entities", min=0, help="Entities sent to.")]
MessagesPerDay = Annotated[
    int, typer.Option("--messages-per-day", min=0, help="Messages to all of them.")
]
OutageHours = Annotated[
    float, typer.Option("--outage-hours", min=0, help="How long all of them are out.")
]
Clients = Annotated[int, typer.Option("--clients", min=1, help="Processes that send.")]
Factories = Annotated[int, typer.Option("--factories", min=1, help="Messaging factories in each.")]
Syphons = Annotated[
    int, typer.Option("--syphons", min=0, help="Syphons that always run, on all queues.")
]


def cost(
    ledger: LedgerPath = None,
    tier: Tier = "standard",
    prices: Prices = None,
    forecast: Forecast = False,
    queues: QueueCount = 10,
    entities: EntityCount = 1,
    messages_per_day: MessagesPerDay = 0,
    outage_hours: OutageHours = 0,
    clients: Clients = 1,
    factories: Factories = 1,
    syphons: Syphons = 1,
    kept_by: KeptBy = Keeper.CLIENT,
    output: Outputs = None,
    state: State = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """What the operations in a ledger cost, by day, entity, operation and cause; or a forecast.

    Example: twinbus cost --ledger ./ledger --output bill.html

    Example: twinbus cost --forecast --queues 10 --entities 20 --messages-per-day 100000
    --outage-hours 4
    """
    from twinbus.accounts.prices import read_tier

    with refusing():
        chosen = read_tier(tier, prices)
    if forecast:
        from twinbus.accounts.forecast import ForecastPlan

        plan = ForecastPlan(
            queues, entities, messages_per_day, outage_hours, factories, clients, syphons
        )
        _print_forecast(plan, chosen, as_json=as_json)
        return
    with _opened(ledger, output, master, "adding up", kept_by, hidden=as_json) as (spark, found):
        document = _bill(spark, found, chosen, state, output)
    if as_json:
        _print(document)
    else:
        _print_bill(document)


def _bill(
    spark: SparkSession, found: Found, tier: Any, state: str | None, outputs: list[Path] | None
) -> dict[str, Any]:
    from twinbus.accounts.bill import as_dict, make_bill
    from twinbus.accounts.report import Report, bill_page

    bill = make_bill(spark, found, tier, state)
    table = bill.lines.orderBy("day", "namespace", "entity", "operation", "cause").toArrow()
    document = {**as_dict(bill, table), "torn_files": list(found.torn), "lines": table.to_pylist()}
    _write(Report(table, document, bill_page(document, document["lines"])), outputs)
    return document


Peek = Annotated[
    str | None,
    typer.Option(
        "--peek",
        envvar="TWINBUS_SECONDARY",
        help="The secondary's connection string, to see what waits in the backlog.",
    ),
]
PeekPrimary = Annotated[
    str | None,
    typer.Option(
        "--peek-primary",
        help="The primary's connection string, to see what is dead-lettered there.",
    ),
]
Received = Annotated[
    bool,
    typer.Option(
        "--received",
        help="Receivers keep this ledger too: what none of them received counts as lost.",
    ),
]
WindowMinutes = Annotated[
    int, typer.Option("--window-minutes", min=1, help="The length of a row's window.")
]


def audit(
    ledger: LedgerPath = None,
    peek: Peek = None,
    peek_primary: PeekPrimary = None,
    received: Received = False,
    window_minutes: WindowMinutes = 60,
    certificate: Certificate = None,
    kept_by: KeptBy = Keeper.CLIENT,
    output: Outputs = None,
    state: State = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """Check that every message that was accepted is home, waits, or was dead-lettered.

    Fails with exit code 1 if one is lost.

    Example: twinbus audit --ledger ./ledger --peek "$TWINBUS_SECONDARY" --output audit.html
    """
    with _opened(ledger, output, master, "auditing", kept_by, hidden=as_json) as (spark, found):
        from twinbus.accounts.audit import MessageVerdict, as_dict, make_audit
        from twinbus.accounts.report import Report, audit_page

        seen = _peek(peek, certificate) if peek else []
        seen += _peek_dead(peek_primary, certificate) if peek_primary else []
        made = make_audit(
            spark,
            found,
            seen,
            must_be_received=received,
            window_s=60 * window_minutes,
            state=state,
        )
        document = {**as_dict(made), "torn_files": list(found.torn)}
        verdicts = [each.value for each in MessageVerdict]
        _write(Report(made.questionable, document, audit_page(document, verdicts)), output)
    if as_json:
        _print(document)
    else:
        _print_audit(document, verdicts)
    if made.lost:
        raise typer.Exit(DOES_NOT_WORK)


MessageId = Annotated[str, typer.Argument(help="The message's id.")]


def trace(
    message_id: MessageId,
    ledger: LedgerPath = None,
    master: Master = None,
    as_json: Json = False,
) -> None:
    """The journey of one message: every step with its time.

    A ledger in a folder, of a size that is looked through in some seconds, needs no Spark for it.

    Example: twinbus trace 5f0c2a --ledger ./ledger
    """
    where = _which(ledger)
    with _in_sentences():
        steps = _journey(where, message_id, master, hidden=as_json)
    if as_json:
        rows = [{**asdict(step), "step": step.sentence} for step in steps]
        _print({"message_id": message_id, "steps": rows})
    elif steps:
        rows_shown = [
            [f"{step.at:%Y-%m-%d %H:%M:%S.%f}"[:-3], step.sentence, step.namespace, step.client]
            for step in steps
        ]
        print_table(("time (UTC)", "step", "namespace", "client"), rows_shown)
    if not steps:
        fail(f"the ledger has nothing about a message '{message_id}'")


# ---------------------------------------------------------------- what they share


@contextmanager
def _opened(
    ledger: str | None,
    outputs: list[Path] | None,
    master: str | None,
    what: str,
    keeper: Keeper | None,
    *,
    hidden: bool,
) -> Iterator[tuple[SparkSession, Found]]:
    """Spark and the ledger; whatever the user can put right is a sentence."""
    from twinbus.accounts.report import check_outputs
    from twinbus.accounts.tables import find
    from twinbus.ledger.reader import find_local, local_path
    from twinbus.spark.engine import spark_session

    where = _which(ledger)
    with _in_sentences():
        check_outputs(outputs or [])
        path = local_path(where)
        if path is not None:
            find_local(path)  # a mistake is said at once, not after Spark has started
        with progress(what, hidden=hidden):
            spark = spark_session("twinbus", master=master, short_run=True)
            yield spark, find(spark, where, keeper)


def _which(ledger: str | None) -> str:
    where = ledger or local().ledger
    if not where:
        refuse("which ledger? Give --ledger, or set TWINBUS_LEDGER")
    return where


@contextmanager
def _in_sentences() -> Iterator[None]:
    from twinbus.spark.engine import EngineError

    with refusing():
        try:
            yield
        except EngineError as error:
            fail(str(error))


def _journey(where: str, message_id: str, master: str | None, *, hidden: bool) -> Sequence[Step]:
    """With Spark only if the ledger is large, on another store, or Spark was asked for."""
    from twinbus.accounts.journey import is_small, journey, look_through
    from twinbus.accounts.tables import read
    from twinbus.ledger.reader import data_files, find_local, local_path

    path = local_path(where)
    if path is not None and master is None:
        find_local(path).check_records(where)
        files = data_files(path)
        if is_small(files):
            with needing("a trace", "ledger"):
                return look_through(files, message_id).steps
    with _opened(where, None, master, "looking", None, hidden=hidden) as (spark, found):
        return journey(read(spark, found), message_id)


def _write(report: Report, outputs: list[Path] | None) -> None:
    from twinbus.accounts.report import write

    for path in outputs or []:
        write(report, path)


def _print(document: Any) -> None:
    from twinbus.accounts.report import to_json

    typer.echo(to_json(document))


def _peek(text: str, certificate: Path | None) -> list[Seen]:
    from twinbus.accounts.audit import Seen
    from twinbus.auth.credentials import Secret
    from twinbus.operate.backlog import backlog_queues
    from twinbus.operate.waiting import waiting_ids

    text = connection(text, "--peek", "TWINBUS_SECONDARY")
    with managing(text, certificate, "secondary") as manager:
        return [Seen(*each) for each in waiting_ids(Secret(text), backlog_queues(manager))]


def _peek_dead(text: str, certificate: Path | None) -> list[Seen]:
    from twinbus.accounts.audit import Seen
    from twinbus.auth.credentials import Secret
    from twinbus.operate.waiting import dead_ids

    text = connection(text, "--peek-primary", "TWINBUS_PRIMARY")
    with managing(text, certificate, "primary") as manager:
        return [Seen(home, name, dead=True) for home, name in dead_ids(Secret(text), manager)]


def _print_forecast(plan: Any, tier: Any, *, as_json: bool) -> None:
    from twinbus.accounts.forecast import forecast

    document = forecast(plan, tier)
    if as_json:
        _print(document)
        return
    rows = [
        [group.replace("_", " "), name.replace("_", " "), _shown(value)]
        for group, values in document.items()
        for name, value in values.items()
    ]
    print_table(("what", "", "number"), rows)


def _print_bill(document: dict[str, Any]) -> None:
    columns = ("day", "namespace", "entity", "operation", "cause", "count", "units", "cost")
    lines = document["lines"]
    print_table(columns, [[_shown(line[each]) for each in columns] for line in lines[:MOST_LINES]])
    if len(lines) > MOST_LINES:
        typer.echo(f"... and {len(lines) - MOST_LINES} more lines; --output has them all")
    causes = document["by_cause"].items()
    rows = [
        [cause.replace("_", " "), _shown(of["units"]), _shown(of["cost"])] for cause, of in causes
    ]
    print_table(("cause", "operations", f"cost, {document['currency']}"), rows)
    typer.echo(
        f"{document['operations']:,} operations cost {document['operations_cost']:,.2f} and the "
        f"base is {document['base']:,.2f}: {document['total']:,.2f} {document['currency']}"
    )
    _print_torn(document)


def _print_audit(document: dict[str, Any], verdicts: list[str]) -> None:
    columns = ("window", "entity", "accepted", "diverted", *verdicts, "lag_p50_s", "lag_p99_s")
    windows = document["windows"]
    shown = [[_shown(row[each]) for each in columns] for row in windows[-MOST_LINES:]]
    print_table(columns, shown)
    for each in document["outages"]:
        ended = f"until {_shown(each['ended'])}" if each["ended"] else "and still is"
        typer.echo(f"{each['entity']} was out from {_shown(each['began'])} {ended}")
    asked = document["questionable"]
    for row in asked[:MOST_LINES]:
        typer.echo(f"{row['verdict']}: {row['message_id']} for {row['entity']}")
    if len(asked) > MOST_LINES:
        typer.echo(f"... and {len(asked) - MOST_LINES} more; --output has them")
    said = ", ".join(f"{document[each]:,} {each}" for each in verdicts)
    typer.echo(f"{document['accepted']:,} accepted: {said}")
    _print_torn(document)


def _print_torn(document: dict[str, Any]) -> None:
    torn = document["torn_files"]
    if torn:
        typer.echo(f"{len(torn)} unfinished files were passed over, as {torn[0]}", err=True)


def _shown(value: Any) -> str:
    from twinbus.accounts.report import shown

    return shown(value)
