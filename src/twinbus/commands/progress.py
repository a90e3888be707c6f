"""What moves while something takes time; on standard error, and only on a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import ProgressColumn

REFRESH_S = 0.25


def _terminal(*, hidden: bool) -> Console | None:
    from rich.console import Console

    console = Console(stderr=True)
    return None if hidden or not console.is_terminal else console


@contextmanager
def progress(what: str, *, hidden: bool) -> Iterator[Callable[[str, int], None]]:
    """A line that says which queue it is about, and how many messages there were."""
    console = _terminal(hidden=hidden)
    if console is None:
        yield lambda queue, messages: None
        return
    with console.status(what) as status:
        yield lambda queue, messages: status.update(f"{what}: {queue}, {messages} messages")


@contextmanager
def bar(
    what: str, total: int | None, *columns: str | ProgressColumn, hidden: bool
) -> Iterator[Callable[..., None]]:
    """A bar. What is given to the function is what ``rich.progress.Progress.update`` takes."""
    from rich.progress import Progress

    console = _terminal(hidden=hidden)
    if console is None:
        yield lambda **changes: None
        return
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda **changes: shown.update(task, **changes)


@asynccontextmanager
async def moving(view: Callable[[], RenderableType], *, hidden: bool) -> AsyncIterator[None]:
    """A view that is drawn anew several times a second."""
    import asyncio

    from rich.live import Live

    console = _terminal(hidden=hidden)
    if console is None:
        yield
        return
    with Live(view(), console=console, refresh_per_second=4) as live:

        async def refresh() -> None:
            while True:
                live.update(view())
                await asyncio.sleep(REFRESH_S)

        refreshing = asyncio.create_task(refresh())
        try:
            yield
        finally:
            refreshing.cancel()
            live.update(view())
