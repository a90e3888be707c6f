"""A lean AMQP client over a blocking socket: our own wire code in the client's role.

The SDK costs several hundred microseconds a message, so it measures itself; this one costs a few,
so that what is measured is the broker.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import select
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote_plus

from twinbus.amqp.connection import Connection
from twinbus.amqp.decoding import decode_plain
from twinbus.amqp.incoming import (
    Confirmation,
    ConnectionClosed,
    Delivery,
    Event,
    LinkAttached,
    LinkDetached,
    SessionEnded,
)
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.message import Properties, with_application_properties
from twinbus.amqp.performatives import ACCEPTED, Accepted, Source, Target, encode_disposition
from twinbus.amqp.session import TRANSFER_OVERHEAD
from twinbus.amqp.types import compound, encode, encode_uint

# RabbitMQ lets go of who says nothing for a minute.
SIGN_OF_LIFE_S = 10
_EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
_ACCEPTED = encode(ACCEPTED)
_MOST_PACED = 10_000  # unanswered, so that neither side's socket fills up
# The header section. Service Bus stores every message; others only those that say this.
_DURABLE = b"\x00\x53\x70\xc0\x02\x01\x41"


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
    """An encoded durable message with an id and a body of ``size`` bytes."""
    body = b"\x00\x53\x75\xb0" + size.to_bytes(4) + b"y" * size
    return _DURABLE + Properties(message_id=f"{index:032d}").encoded() + body


@dataclass(frozen=True, slots=True)
class Paced:
    """What became of a load that was offered at a steady pace."""

    per_s: float
    latencies_s: list[float]  # ascending

    def quantile_ms(self, share: float) -> float:
        place = min(len(self.latencies_s) - 1, int(len(self.latencies_s) * share))
        return self.latencies_s[place] * 1000


class Raw:
    """One connection, authorized for the whole namespace.

    A connection string without a key is one of a broker without Service Bus's tokens, as RabbitMQ
    is: SASL ANONYMOUS is all it asks for.
    """

    def __init__(self, connection_string: str) -> None:
        self._connect(parse_connection_string(connection_string))
        self._connection_string = connection_string

    def renew(self) -> None:
        """Begin anew. RabbitMQ counts the credit of a second receiver on a connection from where
        the first one ended, if that had deliveries under way, and then sends nothing more."""
        self.close()
        self._connect(parse_connection_string(self._connection_string))

    def _connect(self, parts: dict[str, str]) -> None:
        self._host, port = parts["Endpoint"].removeprefix("sb://").rstrip("/").split(":")
        self.socket = socket.create_connection((self._host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        patience = struct.pack("ll", SIGN_OF_LIFE_S, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self.amqp = Connection(server=False, container_id="load", hostname=self._host)
        self._tail = b""
        self._next_id = 1  # of the next delivery; the token's was 0
        self.confirms = "SharedAccessKey" in parts
        self.amqp.start()
        self.session = self.amqp.begin() if self._open() else None
        if self.confirms:
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
        data, self._tail = self._tail + self._read(), b""
        return self._check(list(self.amqp.receive(data)))

    def _read(self) -> bytes:
        """What comes next. A broker that takes its time is told that we are still there."""
        while True:
            with suppress(BlockingIOError):
                data = self.socket.recv(1 << 18)
                if not data:
                    raise ConnectionError("the broker closed the connection")
                return data
            self.socket.sendall(_EMPTY_FRAME)

    @staticmethod
    def _check(events: list[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, ConnectionClosed | LinkDetached | SessionEnded):
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
        waiting = accepted = 0
        more = True
        while more or waiting:
            frames: list[bytes] = []
            while waiting < outstanding:
                payload = next(payloads, None)
                if payload is None:
                    more = False
                    break
                frames += self._transfer(link, payload)
                waiting += 1
            if frames:
                self.socket.sendall(b"".join(frames))
            if waiting:
                answered = sum(last - first + 1 for first, last in self._answered())
                waiting -= answered
                accepted += answered
        link.detach()
        self.flush()
        return accepted

    def send_paced(self, address: str, payload: bytes, rate: float, count: int) -> Paced:
        """Offer so many messages a second, whatever becomes of them.

        A latency runs from when a message was due to its acknowledgement, so that a broker that
        falls behind is charged for the queue that it causes.
        """
        link = self.attach(SENDER, address)
        latencies: list[float] = []
        sent, offset = 0, self._next_id
        started = now = time.perf_counter()
        while len(latencies) < count:
            ready = min(count, int((now - started) * rate) + 1, len(latencies) + _MOST_PACED)
            if ready > sent:
                frames = [
                    each for _ in range(sent, ready) for each in self._transfer(link, payload)
                ]
                self.socket.sendall(b"".join(frames))
                sent = ready
            pause = max(0.0, started + sent / rate - time.perf_counter())
            if select.select([self.socket], [], [], pause if sent < count else None)[0]:
                answered = self._answered()
                now = time.perf_counter()
                for first, last in answered:
                    places = range(first - offset, last - offset + 1)
                    latencies += [now - started - place / rate for place in places]
            now = time.perf_counter()
        link.detach()
        self.flush()
        return Paced(count / (now - started), sorted(latencies))

    def _transfer(self, link: Link, payload: bytes) -> list[bytes]:
        """One message as frames, several if it is larger than the peer takes."""
        name = self._next_id.to_bytes(4)
        self._next_id += 1
        fields = encode_uint(link.handle) + b"\x70" + name + b"\xa0\x04" + name + b"\x43\x42"
        channel = link.session.channel.to_bytes(2)
        room = self.amqp.peer_max_frame - TRANSFER_OVERHEAD
        if len(payload) <= room:
            body = b"\x00\x53\x14" + compound(0xC0, 6, fields + b"\x42")
            size = 8 + len(body) + len(payload)
            return [size.to_bytes(4), b"\x02\x00", channel, body, payload]
        frames = []
        for start in range(0, len(payload), room):
            part = payload[start : start + room]
            more = b"\x41" if start + room < len(payload) else b"\x42"
            body = b"\x00\x53\x14" + compound(0xC0, 6, fields + more)
            frames += [(8 + len(body) + len(part)).to_bytes(4), b"\x02\x00", channel, body, part]
        return frames

    def _answered(self) -> list[tuple[int, int]]:
        """Read once: the ranges of deliveries that were accepted."""
        data = self._tail + self._read()
        pos = 0
        ranges = []
        while len(data) - pos >= 8:
            size = int.from_bytes(data[pos : pos + 4])
            if len(data) - pos < size:
                break
            frame = data[pos + 8 : pos + size]
            if frame[:3] == b"\x00\x53\x15":
                _, first, last, settled, state, *_ = decode_plain(frame, 3)[0]
                if not settled or not isinstance(state, Accepted):
                    raise ConnectionError(f"a message was not accepted: {state}")
                ranges.append((first, first if last is None else last))
            else:
                self._check(list(self.amqp.receive(data[pos : pos + size])))
            pos += size
        self._tail = data[pos:]
        return ranges

    def receive(self, address: str, count: int, credit: int) -> int:
        """Receive and complete ``count`` messages, each by a frame of its own.

        Service Bus confirms a settlement once it is stored, and is waited for. RabbitMQ knows no
        such mode; it is told and believed, which is the faster way for it.
        """
        link = self.attach(RECEIVER, address, settle_second=self.confirms)
        link.grant(credit)
        received = confirmed = 0
        assert self.session is not None
        channel = self.session.channel
        while (confirmed if self.confirms else received) < count:
            for event in self.step():
                if isinstance(event, Delivery):
                    received += 1
                    frame = encode_disposition(
                        RECEIVER, event.delivery_id, event.delivery_id, not self.confirms, _ACCEPTED
                    )
                    self.amqp.write_frame(channel, frame)
                elif isinstance(event, Confirmation):
                    confirmed += event.last - event.first + 1
            if link.credit < credit // 2 and received < count:
                link.grant(min(credit, count - received))
        link.detach()
        self.flush()
        return received

    def close(self) -> None:
        self.amqp.close()
        self.flush()
        self.socket.close()
