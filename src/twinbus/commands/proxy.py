"""`twinbus proxy`: a bad network, on purpose."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.commands.options import Host, Json
from twinbus.commands.terminal import fail, print_json, refuse

if TYPE_CHECKING:
    from twinbus.lab.proxy import Proxy

To = Annotated[str, typer.Option("--to", help="Where it leads, as localhost:5672.")]
Listen = Annotated[
    int, typer.Option("--listen", min=0, max=65_535, help="The port; 0 is any that is free.")
]
LatencyMs = Annotated[float, typer.Option("--latency-ms", min=0, help="How late each way.")]
BandwidthKbps = Annotated[
    float, typer.Option("--bandwidth-kbps", min=0, help="Kilobits a second each way; 0: all.")
]
CutAfterS = Annotated[
    float | None, typer.Option("--cut-after-s", min=0, help="Reset each connection then.")
]
CutAfterBytes = Annotated[
    int | None,
    typer.Option("--cut-after-bytes", min=0, help="Or when its client has sent so many."),
]
HalfOpenAfterS = Annotated[
    float | None, typer.Option("--half-open-after-s", min=0, help="Lose the far side, say nothing.")
]
BlackHoleAfterS = Annotated[
    float | None, typer.Option("--black-hole-after-s", min=0, help="Let nothing pass any more.")
]


def proxy(
    to: To,
    listen: Listen = 0,
    host: Host = "127.0.0.1",
    latency_ms: LatencyMs = 0,
    bandwidth_kbps: BandwidthKbps = 0,
    cut_after_s: CutAfterS = None,
    cut_after_bytes: CutAfterBytes = None,
    half_open_after_s: HalfOpenAfterS = None,
    black_hole_after_s: BlackHoleAfterS = None,
    as_json: Json = False,
) -> None:
    """Carry TCP to a broker, or to Azure, over a bad network. Ctrl-C ends it.

    Example: twinbus proxy --listen 5680 --to localhost:5672 --latency-ms 200 --bandwidth-kbps 256
    """
    import asyncio

    from twinbus.lab.proxy import Conditions, Proxy

    name, _, port = to.rpartition(":")
    if not name or not port.isdecimal() or not 0 < int(port) < 65_536:
        refuse(f"--to is '{to}'; give a host and a port, as localhost:5672")
    conditions = Conditions(
        latency_ms=latency_ms,
        bandwidth_kbps=bandwidth_kbps,
        cut_after_s=cut_after_s,
        cut_after_bytes=cut_after_bytes,
        half_open_after_s=half_open_after_s,
        black_hole_after_s=black_hole_after_s,
    )
    target = name.strip("[]"), int(port)
    try:
        made = Proxy(*target, listen_host=host, listen_port=listen, conditions=conditions)
        asyncio.run(_run(made, to, as_json=as_json))
    except OSError as error:
        fail(f"cannot listen on {host}:{listen}: {error.strerror or error}")


async def _run(proxy: Proxy, to: str, *, as_json: bool) -> None:
    import asyncio

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with proxy:
        if as_json:
            print_json({"port": proxy.port, "to": to})
        else:
            typer.echo(f"localhost:{proxy.port} leads to {to}")
        await stopped.wait()
