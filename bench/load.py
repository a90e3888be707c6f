"""A lean AMQP client over a blocking socket: our own wire code in the client's role.

The SDK costs several hundred microseconds a message, so it measures itself; this one costs a few,
so that what is measured is the broker.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from urllib.parse import quote_plus

from twinbus.amqp.connection import Connection
from twinbus.amqp.events import (
    Closed,
    Confirmation,
    Delivery,
    Event,
    LinkAttached,
    LinkDetached,
)
from twinbus.amqp.message import Properties, with_application_properties
from twinbus.amqp.performatives import ACCEPTED, Accepted, Source, Target, encode_disposition
from twinbus.amqp.session import RECEIVER, SENDER, Link
from twinbus.amqp.types import compound, decode_plain, encode, encode_uint

_ACCEPTED = encode(ACCEPTED)


def sas_token(uri: str, key_name: str, key: str) -> str:
    expiry = int(time.time()) + 3600
    signed = f"{quote_plus(uri)}\n{expiry}".encode()
    digest = base64.b64encode(hmac.new(key.encode(), signed, hashlib.sha256).digest()).decode()
    return (
        f"SharedAccessSignature sr={quote_plus(uri)}&sig={quote_plus(digest)}"
        f"&se={expiry}&skn={key_name}"
    )


def parse_connection_string(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(";") if part)


def kilobyte_message(index: int, size: int = 1024) -> bytes:
    """An encoded message with an id and a body of ``size`` bytes."""
    body = b"\x00\x53\x75\xb0" + size.to_bytes(4) + b"y" * size
    return Properties(message_id=f"{index:032d}").encoded() + body


class Raw:
    """One connection, authorized for the whole namespace."""

    def __init__(self, connection_string: str) -> None:
        parts = parse_connection_string(connection_string)
        self._host, port = parts["Endpoint"].removeprefix("sb://").rstrip("/").split(":")
        self.socket = socket.create_connection((self._host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.amqp = Connection(server=False, container_id="load", hostname=self._host)
        self._tail = b""
        self.amqp.start()
        self.session = self.amqp.begin() if self._open() else None
        self._authorize(parts)

    def _open(self) -> bool:
        while self.amqp.phase.name != "OPEN":
            self.step()
        return True

    def _authorize(self, parts: dict[str, str]) -> None:
        uri = f"sb://{self._host}/"
        requests = self.attach(SENDER, "$cbs")
        replies = self.attach(RECEIVER, "$cbs")
        replies.grant(1)
        properties = Properties(message_id=uuid.uuid4(), reply_to="load")
        values = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": uri}
        token = sas_token(uri, parts["SharedAccessKeyName"], parts["SharedAccessKey"])
        message = with_application_properties(properties.encoded(), values)
        requests.send(message + b"\x00\x53\x77" + encode(token), b"cbs", settled=True)
        self.wait(lambda event: isinstance(event, Delivery))

    def step(self) -> list[Event]:
        """Write what there is to write, read once, and answer what came."""
        self.flush()
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker closed the connection")
        return self._check(list(self.amqp.receive(data)))

    @staticmethod
    def _check(events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, Closed | LinkDetached):
                raise ConnectionError(str(event.error))
        return events

    def flush(self) -> None:
        data = self.amqp.data_to_send()
        if data:
            self.socket.sendall(data)

    def wait(self, wanted: Callable[[Event], bool]) -> Event:
        while True:
            for event in self.step():
                if wanted(event):
                    return event

    def attach(self, role: bool, address: str, *, settle_second: bool = False) -> Link:
        assert self.session is not None
        link = self.session.attach(
            uuid.uuid4().hex,
            role,
            source=Source(address if role == RECEIVER else "load"),
            target=Target(address if role == SENDER else "load"),
            rcv_settle_mode=1 if settle_second else 0,
        )
        self.wait(lambda event: isinstance(event, LinkAttached) and event.link is link)
        while role == SENDER and link.credit == 0:
            self.step()
        return link

    def send(self, address: str, payloads: Iterator[bytes], outstanding: int) -> int:
        """Send all, never more than ``outstanding`` unanswered; answers how many were accepted.

        Frames are put together by hand and dispositions read by hand: the load must not slow down
        what it measures, and on two cores it would.
        """
        link = self.attach(SENDER, address)
        channel = link.session.channel
        handle = encode_uint(link.handle)
        sent = waiting = accepted = 0
        more = True
        while more or waiting:
            frames = []
            while waiting < outstanding:
                payload = next(payloads, None)
                if payload is None:
                    more = False
                    break
                fields = handle + b"\x70" + sent.to_bytes(4) + b"\xa0\x04" + sent.to_bytes(4)
                body = b"\x00\x53\x14" + compound(0xC0, 6, fields + b"\x43\x42\x42")
                size = 8 + len(body) + len(payload)
                frames += [size.to_bytes(4), b"\x02\x00", channel.to_bytes(2), body, payload]
                sent += 1
                waiting += 1
            if frames:
                self.socket.sendall(b"".join(frames))
            if waiting:
                answered = self._answered()
                waiting -= answered
                accepted += answered
        link.detach()
        self.flush()
        return accepted

    def _answered(self) -> int:
        """Read once, and count the deliveries that were accepted."""
        data = self._tail + self.socket.recv(1 << 18)
        pos, count = 0, 0
        while len(data) - pos >= 8:
            size = int.from_bytes(data[pos : pos + 4])
            if len(data) - pos < size:
                break
            frame = data[pos + 8 : pos + size]
            if frame[:3] == b"\x00\x53\x15":
                _, first, last, settled, state, *_ = decode_plain(frame, 3)[0]
                if not settled or not isinstance(state, Accepted):
                    raise ConnectionError(f"a message was not accepted: {state}")
                count += last - first + 1
            else:
                self._check(list(self.amqp.receive(data[pos : pos + size])))
            pos += size
        self._tail = data[pos:]
        return count

    def receive(self, address: str, count: int, credit: int) -> int:
        """Receive and complete ``count`` messages, each by a frame of its own."""
        link = self.attach(RECEIVER, address, settle_second=True)
        link.grant(credit)
        received = confirmed = 0
        assert self.session is not None
        channel = self.session.channel
        while confirmed < count:
            for event in self.step():
                if isinstance(event, Delivery):
                    received += 1
                    frame = encode_disposition(
                        RECEIVER, event.delivery_id, event.delivery_id, False, _ACCEPTED
                    )
                    self.amqp.write_frame(channel, frame)
                elif isinstance(event, Confirmation):
                    confirmed += event.last - event.first + 1
            if link.credit < credit // 2 and received < count:
                link.grant(min(credit, count - received))
        link.detach()
        self.flush()
        return confirmed

    def close(self) -> None:
        self.amqp.close()
        self.flush()
        self.socket.close()
