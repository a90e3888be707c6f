"""`twinbus backlog` and `twinbus check`: a pair of namespaces, looked at and tried."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from twinbus.commands.options import BacklogQueueCount, Certificate, Json, Primary, Secondary
from twinbus.commands.progress import progress
from twinbus.commands.terminal import (
    DOES_NOT_WORK,
    managing,
    primary_of,
    print_json,
    print_table,
    secondary_of,
    trusting,
)

OnlyOf = Annotated[
    str | None,
    typer.Option("--primary-name", help="Only the backlog of this primary, as `contoso`."),
]
LookAt = Annotated[
    int | None, typer.Option("--limit", min=1, help="Look at this many messages a queue.")
]


def backlog(
    context: typer.Context,
    secondary: Secondary = None,
    primary_name: OnlyOf = None,
    backlog_queue_count: BacklogQueueCount = None,
    limit: LookAt = None,
    certificate: Certificate = None,
    as_json: Json = False,
) -> None:
    """List what waits in the backlog: by queue and destination, count, bytes and oldest.

    Example: twinbus backlog --primary-name contoso
    """
    from twinbus.auth.credentials import Secret
    from twinbus.operate.backlog import backlog_queues
    from twinbus.operate.waiting import look

    if context.invoked_subcommand is not None:
        return
    text = secondary_of(secondary)
    with (
        managing(text, certificate, "secondary") as manager,
        progress("looking at the backlog", hidden=as_json) as tell,
    ):
        queues = backlog_queues(manager, primary_name, backlog_queue_count)
        found = look(Secret(text), queues, limit, tell)
    rows = [entry.as_json() for entry in found]
    if as_json:
        print_json({"queues": queues, "waiting": rows})
        return
    columns = ("queue", "destination", "messages", "bytes", "oldest")
    if rows:
        print_table(columns, [[str(row[column]) for column in columns] for row in rows])
    total = sum(entry.messages for entry in found)
    typer.echo(f"{total} messages wait in {len(queues)} backlog queues")


Entities = Annotated[
    list[str] | None,
    typer.Option("--entity", help="A queue or topic of the primary to ping; give several."),
]
HowManyQueues = Annotated[
    int, typer.Option("--backlog-queue-count", min=1, help="How many backlog queues to use.")
]


def check(
    primary: Primary = None,
    secondary: Secondary = None,
    entity: Entities = None,
    backlog_queue_count: HowManyQueues = 10,
    certificate: Certificate = None,
    as_json: Json = False,
) -> None:
    """Try a pairing and print what works. Makes the backlog queues; sends nothing but pings.

    Example: twinbus check --entity orders --entity payments
    """
    from twinbus.paired.blocking.factory_blocking import MessagingFactory
    from twinbus.paired.blocking.manager_blocking import NamespaceManager
    from twinbus.paired.check import Tried
    from twinbus.paired.check import check as steps_of

    home, away = primary_of(primary), secondary_of(secondary)
    steps: list[Tried] = []
    with (
        MessagingFactory.from_connection_string(home, retry_total=0) as first,
        MessagingFactory.from_connection_string(away, retry_total=0) as second,
        NamespaceManager.from_connection_string(away, **trusting(certificate, away)) as manager,
    ):
        for step in steps_of(first, second, manager, entity or [], backlog_queue_count):
            steps.append(step)
            if not as_json:
                said = f": {step.detail}" if step.detail else ""
                typer.echo(f"{'ok    ' if step.ok else 'FAILED'} {step.what}{said}")
    ok = all(step.ok for step in steps)
    if as_json:
        print_json({"ok": ok, "steps": [asdict(step) for step in steps]})
    if not ok:
        raise typer.Exit(DOES_NOT_WORK)
