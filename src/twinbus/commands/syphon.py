"""`twinbus syphon` moves the backlog home; `twinbus backlog redrive` tries again what was left."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twinbus.commands.options import BacklogQueueCount, Json, Primary, Secondary, Verbose
from twinbus.commands.progress import bar, progress
from twinbus.commands.terminal import (
    DOES_NOT_WORK,
    Ended,
    asking,
    fail,
    local,
    needing,
    primary_of,
    print_json,
    print_table,
    refuse,
    refusing,
    secondary_of,
)

if TYPE_CHECKING:
    from twinbus.syphon.progress import Snapshot
    from twinbus.syphon.query import Syphon, SyphonOptions

_PrimaryName = Annotated[
    str | None,
    typer.Option(
        "--primary-name",
        help="What the backlog queues' paths begin with. Default: the primary's first DNS label.",
    ),
]

Once = Annotated[bool, typer.Option("--once", help="End when the backlog is empty.")]
SyphonsMaster = Annotated[
    str | None,
    typer.Option("--master", help="A Spark master. Default: this machine, all its cores."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", help="A folder or URL for Spark's notes. Default: temporary."),
]
Rate = Annotated[
    float | None,
    typer.Option("--rate", help="At most so many messages a second. Default: as they go."),
]
Ttl = Annotated[
    str, typer.Option("--ttl", help="whole: live as long as sent; remaining: less what was waited.")
]
LongPoll = Annotated[
    float, typer.Option("--long-poll", min=1, help="Seconds that one receive waits.")
]
BacklogQueues = Annotated[
    list[str] | None,
    typer.Option("--queue", help="A backlog queue; give several. Default: the primary's."),
]
Patience = Annotated[
    float, typer.Option("--patience", min=1, help="With --once: give up if nothing moves so long.")
]
SyphonsLedger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="TWINBUS_LEDGER",
        help="A folder or URL to record operations in, for cost, audit and trace.",
    ),
]
HttpPort = Annotated[
    int | None,
    typer.Option(
        "--http-port",
        min=0,
        max=65_535,
        help="Serve /metrics and /progress on this port of loopback; 0 is any that is free.",
    ),
]
WithParent = Annotated[bool, typer.Option("--with-parent", hidden=True)]


def syphon(
    primary: Primary = None,
    secondary: Secondary = None,
    once: Once = False,
    master: SyphonsMaster = None,
    checkpoint: Checkpoint = None,
    rate: Rate = None,
    ttl: Ttl = "whole",
    long_poll: LongPoll = 900,
    queue: BacklogQueues = None,
    primary_name: _PrimaryName = None,
    backlog_queue_count: BacklogQueueCount = None,
    patience: Patience = 100,
    ledger: SyphonsLedger = None,
    http_port: HttpPort = None,
    with_parent: WithParent = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Move every message in the backlog to the queue or topic it was sent to.

    Example: twinbus syphon --once --rate 200
    """
    _log(verbose)
    with _answering(with_parent) as answer:
        with needing("the syphon", "syphon"):
            from twinbus.auth.credentials import Secret
            from twinbus.syphon.query import SyphonOptions
        home, away = Secret(primary_of(primary)), Secret(secondary_of(secondary))
        queues = _named(queue, backlog_queue_count)
        with refusing():
            options = SyphonOptions(
                home,
                away,
                queues or _found(home, away, primary_name, backlog_queue_count, hidden=as_json),
                checkpoint=checkpoint,
                rate=rate,
                time_to_live=ttl,  # type: ignore[arg-type]  # it is checked there
                long_poll_s=long_poll,
                ledger=_absolute(ledger or _ours(home)),
            )
        with _stoppable(with_parent) as stopped, _bar(hidden=as_json) as tell:
            made = _start(options, master, tell, once=once)
            _heed(stopped)  # Spark has a handler of its own for Ctrl-C
            try:
                empty = _run(made, stopped, http_port, patience if once else None, answer)
            finally:
                _quit(made)
    if not with_parent:  # who hears no more than whether it runs
        _report(made, as_json=as_json, once=once, empty=empty)


@contextmanager
def _answering(with_parent: bool) -> Iterator[Callable[[str], None]]:
    """Whoever started us hears, in a line on standard output, that the syphon runs or why not."""

    def answer(line: str) -> None:
        if with_parent:
            with suppress(OSError):  # it is gone, and so shall we be
                os.write(1, f"{' '.join(line.split())}\n".encode())

    try:
        yield answer
    except Ended as end:
        answer(end.why)
        raise


def _ours(primary: Any) -> str | None:
    """The ledger of the pair that runs here, if it is that pair's backlog which is moved."""
    return local().ledger if local().knows(primary.reveal()) else None


def _absolute(ledger: str | None) -> str | None:
    """Workers have folders of their own to be in."""
    return ledger if ledger is None or "://" in ledger else str(Path(ledger).absolute())


def _log(verbose: bool) -> None:
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    terminal = sys.stderr.isatty()
    level = logging.DEBUG if verbose else logging.WARNING if terminal else logging.INFO
    logging.getLogger("twinbus").setLevel(level)
    # What the SDK and Spark's bridge have to say about an outage, the syphon says in fewer words.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for handler in logging.getLogger().handlers:
        # A command that was under way when Java died the bridge reports under nobody's name.
        handler.addFilter(lambda record: record.module != "java_gateway")
    logging.getLogger("azure").setLevel(logging.DEBUG if verbose else logging.CRITICAL)


def _named(queues: list[str] | None, count: int | None) -> tuple[str, ...]:
    if queues and count:
        refuse("give --queue or --backlog-queue-count, not both")
    return tuple(queues or ())


def _found(
    primary: Any, secondary: Any, name: str | None, count: int | None, *, hidden: bool
) -> tuple[str, ...]:
    from twinbus.operate.backlog import find_queues
    from twinbus.operate.backlog import primary_name as name_of
    from twinbus.sdk.links import Links

    name = name or name_of(primary)
    with (
        asking("secondary"),
        closing(Links()) as kept,
        progress("looking for the backlog queues", hidden=hidden),
    ):
        found = find_queues(secondary, name, kept, count)
    if not found:
        refuse(
            f"the secondary has no backlog queue of a primary called {name}: pair it first, or "
            "say --primary-name if the pairing has another name for it"
        )
    return found


def _start(
    options: SyphonOptions, master: str | None, tell: Callable[[Snapshot], None], *, once: bool
) -> Syphon:
    from twinbus.spark.engine import spark_session
    from twinbus.syphon.query import SETTINGS, Syphon

    with refusing():
        spark = spark_session("twinbus syphon", master=master, conf=SETTINGS, short_run=once)
        return Syphon(spark, options, tell)


def _run(
    made: Syphon,
    stopped: threading.Event,
    http_port: int | None,
    patience: float | None,
    answer: Callable[[str], None],
) -> bool:
    """Until it is stopped, or the backlog is empty; whether it is."""
    from twinbus.paired.syphon_process import RUNS
    from twinbus.syphon.progress import ProgressServer
    from twinbus.syphon.query import SyphonError

    server = None
    if http_port is not None:
        try:
            server = ProgressServer(made.progress, http_port)
        except OSError as error:
            refuse(f"--http-port {http_port}: {error.strerror}; choose another")
        typer.echo(f"progress at http://127.0.0.1:{server.port}/progress", err=True)
    try:
        if patience is not None:
            return made.drain(patience, stopped)
        made.start()
        answer(RUNS)
        while not stopped.wait(0.5):
            made.check()
        made.stop()
        return False
    except SyphonError as error:
        fail(str(error))
    finally:
        if server is not None:
            server.close()


def _quit(made: Syphon) -> None:
    made.stop()
    made.quit()


@contextmanager
def _stoppable(with_parent: bool) -> Iterator[threading.Event]:
    """Set by Ctrl-C, SIGTERM and, if wanted, the end of whoever started us."""
    stopped = threading.Event()
    before = _heed(stopped)
    if with_parent:
        threading.Thread(target=_await_orphanhood, args=(stopped,), daemon=True).start()
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heed(stopped: threading.Event) -> dict[int, Any]:
    return {
        number: signal.signal(number, lambda *_: stopped.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }


def _await_orphanhood(stopped: threading.Event) -> None:
    """Standard input ends when the process at its other end does."""
    while os.read(0, 4096):
        pass
    stopped.set()


@contextmanager
def _bar(*, hidden: bool) -> Iterator[Callable[[Snapshot], None]]:
    """Elsewhere than on a terminal the log says as much."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with bar("starting Spark", None, *columns, hidden=hidden) as change:

        def tell(now: Snapshot) -> None:
            left = (
                "" if now.left is None else f", {now.left}{'' if now.left_is_exact else '+'} left"
            )
            words = f"{now.moved} home, {now.failed} failed, {now.dead_lettered} set aside{left}"
            total = now.moved + now.left if now.left_is_exact and now.left is not None else None
            change(description=words, completed=now.moved, total=total)

        yield tell


def _report(made: Syphon, *, as_json: bool, once: bool, empty: bool) -> None:
    now = made.progress.snapshot()
    if as_json:
        print_json({"empty": empty, **now.as_json()})
    else:
        columns = ("destination", "moved", "failed", "dead-lettered", "duplicates", "left")
        rows = [
            [
                name,
                str(c.moved),
                str(c.failed),
                str(c.dead_lettered),
                str(c.duplicates),
                _or(c.left),
            ]
            for name, c in sorted(now.destinations.items())
        ]
        if rows:
            print_table(columns, rows)
        typer.echo(f"{now.moved} messages went home")
    if once and not empty:
        for name, said in made.down().items():
            typer.echo(f"twinbus: {name} does not take messages: {said}", err=True)
        typer.echo("twinbus: the backlog is not empty; run it again when they are back", err=True)
        raise typer.Exit(DOES_NOT_WORK)


def _or(value: int | None) -> str:
    return "?" if value is None else str(value)


OnlyQueues = Annotated[
    list[str] | None, typer.Option("--queue", help="Only this backlog queue; give several.")
]
WhoseBacklog = Annotated[
    str | None, typer.Option("--primary-name", help="Whose backlog, as `contoso`; or give --queue.")
]
AtMost = Annotated[
    int | None, typer.Option("--limit", min=1, help="At most so many messages a queue.")
]


def redrive(
    secondary: Secondary = None,
    queue: OnlyQueues = None,
    primary_name: WhoseBacklog = None,
    backlog_queue_count: BacklogQueueCount = None,
    limit: AtMost = None,
    as_json: Json = False,
) -> None:
    """Send again what the syphon has set aside: from a backlog queue's dead letters to the queue.

    Example: twinbus backlog redrive --primary-name contoso
    """
    from twinbus.auth.credentials import Secret
    from twinbus.operate.backlog import find_queues
    from twinbus.operate.backlog import redrive as send_again
    from twinbus.sdk.links import Links

    away = Secret(secondary_of(secondary))
    if not queue and not primary_name:
        refuse("whose backlog? Give --primary-name, or --queue")
    queues = _named(queue, backlog_queue_count)
    with asking("secondary"), closing(Links()) as kept:
        queues = queues or find_queues(away, primary_name or "", kept, backlog_queue_count)
        if not queues:
            refuse(f"the secondary has no backlog queue of a primary called {primary_name}")
        with progress("sending again", hidden=as_json) as tell:
            done = send_again(away, queues, kept, limit, tell)
    total = sum(each.sent for each in done.values())
    stays = sum(each.stays for each in done.values())
    if as_json:
        redriven = {queue: each.sent for queue, each in done.items()}
        print_json({"redriven": redriven, "total": total, "stays": stays})
        return
    typer.echo(f"{total} messages were sent again")
    if stays:
        typer.echo(f"{stays} stay where they are: they cannot be read, or are too large", err=True)
