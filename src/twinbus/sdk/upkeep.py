"""What the SDK does not see to by itself: whether a connection died while it was quiet, and that
nothing is left of one that is let go of. ``upkeep_aio`` has the same names for asyncio.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from azure.servicebus.exceptions import OperationTimeoutError

from twinbus.sdk.privates import ConnectionState, LinkState

T = TypeVar("T")


def become(handler: Any, kind: type[T]) -> T:
    """Turn a sender or receiver that the SDK made into one of ours.

    The SDK's client names the class it makes and hands it two dozen private settings. Changing the
    class of what it made keeps up with those settings, whatever version of the SDK made it.
    """
    handler.__class__ = kind
    made: T = handler
    return made


def socket_of(handler: Any) -> Any:
    """None if there is none any longer."""
    transport = getattr(getattr(handler, "_connection", None), "_transport", None)
    sock = getattr(transport, "sock", None)
    return getattr(sock, "sock", sock)  # a WebSocket has one inside


def has_news(handler: Any) -> bool:
    """Whether a read would find something, if only the end."""
    sock = socket_of(handler)
    if sock is None or handler._connection.state == ConnectionState.END:
        return False
    pending = getattr(sock, "pending", None)
    if pending is not None and pending():  # read already, by TLS
        return True
    return bool(select.select([sock], [], [], 0)[0])


def is_alive(handler: Any) -> bool:
    """Read what came in while all was quiet: was it a farewell?"""
    try:
        while handler._connection.state == ConnectionState.OPENED and has_news(handler):
            handler._connection.listen(wait=False)
        return is_open(handler)
    except Exception:  # noqa: BLE001  whatever it is, such a link is not worth keeping
        return False


def is_open(handler: Any) -> bool:
    opened = handler._connection.state == ConnectionState.OPENED
    return bool(opened and handler._link.state == LinkState.ATTACHED)


def close(handler: Any) -> None:
    """What is let go of may well be broken; and of a connection that has died by itself the SDK
    never closes the socket."""
    connection, sock = handler._connection, socket_of(handler)
    with suppress(Exception):
        handler.close()
    if isinstance(sock, socket.socket):
        with suppress(OSError):  # it wakes a thread that still reads
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
    with suppress(Exception):
        connection._transport.close()


def break_off(handler: Any) -> None:
    """Whoever waits in another thread for what the peer says hears that it has hung up, where it
    can be reached: not in the middle of a handshake."""
    sock = socket_of(handler)
    if isinstance(sock, socket.socket):
        with suppress(OSError):  # it is over already
            # Not TLS's own, which would first take the socket from whoever reads.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def opening(
    sdk_open: Callable[..., None], too_late: Callable[[], None], **kwargs: Any
) -> Future[None]:
    """The SDK waits for ever for the first words of a peer that took the connection. So that is
    done in a thread of its own, on which its caller gives up in time."""
    opened: Future[None] = Future()

    def job() -> None:
        try:
            sdk_open(**kwargs)
        except BaseException as error:  # noqa: BLE001  it is the caller's, through the future
            with suppress(InvalidStateError):
                opened.set_exception(error)
            return
        with suppress(InvalidStateError):
            opened.set_result(None)
        if opened.cancelled():
            with suppress(Exception):
                too_late()

    threading.Thread(target=job, name="twinbus link open", daemon=True).start()
    return opened


def bound_open(handler: Any, timeout: float | None) -> None:
    """From now on its ``open`` ends in time."""
    sdk_open = handler.open

    def open_in_time(**kwargs: Any) -> None:
        opened = opening(sdk_open, lambda: handler.close(), **kwargs)
        try:
            opened.result(timeout)
        except TimeoutError as error:
            if not opened.cancel():  # it was its own time-out
                raise
            raise OperationTimeoutError(
                message="Timed out waiting for the AMQP connection to open."
            ) from error

    if timeout is not None:
        handler.open = open_in_time
