"""One AMQP 1.0 connection without a socket: bytes in, events out, bytes to send.

`receive` takes whatever bytes there are and answers the events in them; `data_to_send` gives the
bytes to write; `tick` keeps the idle promises and is told the time. The same class serves both
ends; a server waits where a client speaks first.

A peer that breaks the protocol never raises out of here: it gets the AMQP error that fits and a
close, and the last event is `ConnectionClosed` with that error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from twinbus.amqp.decoding import decode, decode_plain, skip
from twinbus.amqp.incoming import ConnectionClosed, Event, Opened, SessionBegun, SessionEnded
from twinbus.amqp.lifecycle import ConnectionLife, Phase, PhaseStep
from twinbus.amqp.link_endpoint import SessionError
from twinbus.amqp.performatives import (
    Begin,
    Close,
    Composite,
    End,
    Error,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
)
from twinbus.amqp.session import Session
from twinbus.amqp.types import Array, CodecError, Symbol
from twinbus.budget import Budget

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
MIN_MAX_FRAME = 512
# Frames we write are no larger than this, whatever the peer would take.
FRAME_CEILING = 1 << 20

FRAMING_ERROR = "amqp:connection:framing-error"
_AMQP_FRAME, _SASL_FRAME = 0, 1
_FLOW, _TRANSFER, _DISPOSITION = 0x13, 0x14, 0x15
_HOT = frozenset((_FLOW, _TRANSFER, _DISPOSITION))
_HOT_HEADS = frozenset(b"\x00\x53" + bytes((code,)) for code in _HOT)

_read_head = struct.Struct(">IBBH").unpack_from
_write_head = struct.Struct(">IBBH").pack


class ProtocolError(Exception):
    """The peer broke the protocol; the connection closes with this error."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.error = Error(condition, description)


class Connection(ConnectionLife):
    """One end of a connection."""

    def __init__(
        self,
        *,
        server: bool,
        container_id: str,
        hostname: str | None = None,
        max_frame_size: int = 65_536,
        channel_max: int = 4_999,
        idle_timeout_s: float | None = None,
        mechanisms: tuple[str, ...] = ("MSSBCBS", "ANONYMOUS"),
        budget: Budget | None = None,
    ) -> None:
        super().__init__()
        self.server = server
        self.peer_max_frame = MIN_MAX_FRAME
        self.budget = Budget() if budget is None else budget
        self._container_id = container_id
        self._hostname = hostname
        self._max_frame_size = max_frame_size
        self._channel_max = channel_max
        self._idle_timeout_s = idle_timeout_s
        self._mechanisms = mechanisms
        self._peer_idle_s: float | None = None
        self._sent_header = False
        self._sent_open = False
        self._flushed_open = False
        self._sasl_done = False
        self._sessions: dict[int, Session] = {}
        self._by_remote: dict[int, Session] = {}
        self._over: set[int] = set()
        self._tail = b""
        self._out: list[bytes] = []
        self._heard = True
        self._spoke = True
        self._last_heard: float | None = None
        self._last_spoke: float | None = None

    # -- what the owner calls

    def start(self) -> None:
        """As a client: ask for SASL ANONYMOUS and open, all in one go."""
        init = SaslInit("ANONYMOUS", b"", self._hostname)
        self._out.append(SASL_HEADER)
        self._out.append(_frame(_SASL_FRAME, 0, init.encoded()))
        self._write_header()
        self._write_open()

    def begin(self) -> Session:
        """As a client: start a session. It may be used at once."""
        channel = next(n for n in range(self._channel_max + 1) if n not in self._sessions)
        session = self._sessions[channel] = Session(self, channel)
        if self.phase is Phase.CLOSED:
            session.silence()
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Say goodbye. Nothing more is taken in."""
        if self.phase is Phase.CLOSED:
            return
        if not self._sent_header:
            self._out.append(AMQP_HEADER)
        if not self._sent_open:
            self._write_open()
        for session in self._sessions.values():
            session.flush()
        self.write_frame(0, Close(error).encoded())
        self.follow(PhaseStep.OVER)
        for session in self._sessions.values():
            session.silence()

    @property
    def link_count(self) -> int:
        """How many links its sessions have, those included that only one side has closed."""
        return sum(len(session.links) for session in self._sessions.values())

    def data_to_send(self) -> bytes:
        """The bytes to write now."""
        for session in self._sessions.values():
            session.flush()
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        self._flushed_open = self._sent_open
        self.budget.unsent = 0
        return data

    def receive(self, data: bytes) -> Iterator[Event]:
        """Take bytes in and answer what happened, event by event."""
        self._heard = True
        data = self._tail + data if self._tail else data
        self._tail = b""
        pos, size = 0, len(data)
        try:
            while size - pos >= 8 and self.phase is not Phase.CLOSED:
                if self.phase is Phase.HEADER:
                    self._on_header(data[pos : pos + 8])
                    pos += 8
                    continue
                length, offset, kind, channel = _read_head(data, pos)
                if length > self._max_frame_size or offset < 2 or offset * 4 > length:
                    raise self._bad_frame(length)
                end = pos + length
                if end > size:
                    break
                frame = data[pos + offset * 4 : end]
                if frame[:3] in _HOT_HEADS and channel in self._by_remote and kind == _AMQP_FRAME:
                    yield from self._on_hot_frame(frame[2], frame, channel)
                else:
                    yield from self._on_frame(kind, channel, frame)
                pos = end
        except CodecError as error:
            yield self._fail("amqp:decode-error", f"the frame cannot be read: {error}")
        except ProtocolError as error:
            yield self._fail(str(error.error.condition), str(error))
        else:
            if self.phase is not Phase.CLOSED:
                self._tail = data[pos:] if pos else data
        self.budget.read_ahead = len(self._tail)

    def tick(self, now: float) -> ConnectionClosed | None:
        """Keep the idle promises: a heartbeat if we were silent, a close if the peer was."""
        if self._heard or self._last_heard is None:
            self._heard, self._last_heard = False, now
        if self._spoke or self._last_spoke is None:
            self._spoke, self._last_spoke = False, now
        if self.phase is not Phase.OPEN:
            return None
        if self._idle_timeout_s and now - self._last_heard > self._idle_timeout_s:
            text = f"the peer sent nothing for {self._idle_timeout_s:g} seconds"
            return self._fail("amqp:resource-limit-exceeded", text)
        if self._peer_idle_s and now - self._last_spoke >= self._peer_idle_s / 2:
            self._out.append(EMPTY_FRAME)
            self._last_spoke = now
        return None

    def write_frame(self, channel: int, body: bytes) -> None:
        self._spoke = True
        self.budget.unsent += len(body)
        self._out.append(_write_head(8 + len(body), 2, 0, channel) + body)

    # -- frames in

    def _bad_frame(self, length: int) -> ProtocolError:
        text = "a frame's header does not fit its size"
        if length > self._max_frame_size:
            text = f"a frame of {length} bytes is over the limit of {self._max_frame_size}"
        return ProtocolError(FRAMING_ERROR, text)

    def _on_header(self, header: bytes) -> None:
        if header == SASL_HEADER and not self._sasl_done:
            self.follow(PhaseStep.SASL_HEADER)
            if self.server:
                names = [Symbol(name) for name in self._mechanisms]
                offer = SaslMechanisms(Array(names, 0xA3))
                self._out.append(SASL_HEADER)
                self._out.append(_frame(_SASL_FRAME, 0, offer.encoded()))
        elif header == AMQP_HEADER:
            self.follow(PhaseStep.AMQP_HEADER)
            if not self._sent_header:
                self._write_header()
        else:
            # An unknown header is to be answered with one that we do know, which closing does.
            raise ProtocolError(FRAMING_ERROR, f"{header!r} is not a protocol header of AMQP 1.0")

    def _on_frame(self, kind: int, channel: int, frame: bytes) -> Sequence[Event]:
        if self.phase is Phase.SASL:
            if kind != _SASL_FRAME:
                raise ProtocolError(FRAMING_ERROR, "an AMQP frame came before SASL was done")
            self._on_sasl(frame)
            return ()
        if kind != _AMQP_FRAME:
            raise ProtocolError(FRAMING_ERROR, f"frame type {kind} is out of place")
        if not frame:
            return ()  # a heartbeat
        if self.phase is Phase.OPENING:
            return self._on_open(frame)
        return self._on_session_frame(frame, channel)

    def _on_sasl(self, frame: bytes) -> None:
        performative, _ = decode(frame, 0)
        if self.server and isinstance(performative, SaslInit):
            known = performative.mechanism in self._mechanisms
            outcome = SaslOutcome(0 if known else 1)
            self._out.append(_frame(_SASL_FRAME, 0, outcome.encoded()))
            if not known:
                raise ProtocolError(
                    "amqp:unauthorized-access",
                    f"the SASL mechanism {performative.mechanism[:32]} is not offered; "
                    f"use one of {', '.join(self._mechanisms)}",
                )
            self._sasl_done = True
            self.follow(PhaseStep.SASL_DONE)
        elif not self.server and isinstance(performative, SaslMechanisms):
            return
        elif not self.server and isinstance(performative, SaslOutcome) and performative.code == 0:
            self._sasl_done = True
            self.follow(PhaseStep.SASL_DONE)
        else:
            raise ProtocolError("amqp:illegal-state", "the SASL exchange went wrong")

    def _on_open(self, frame: bytes) -> Sequence[Event]:
        performative, _ = decode(frame, 0)
        if not isinstance(performative, Open):
            name = type(performative).__name__
            raise ProtocolError("amqp:illegal-state", f"{name} came before open")
        if performative.max_frame_size < MIN_MAX_FRAME:
            raise ProtocolError("amqp:invalid-field", f"max-frame-size is under {MIN_MAX_FRAME}")
        self.peer_max_frame = min(performative.max_frame_size, FRAME_CEILING)
        if performative.idle_timeout:
            self._peer_idle_s = performative.idle_timeout / 1000
        if not self._sent_open:
            self._write_open()
        self.follow(PhaseStep.OPEN_CAME)
        return (Opened(performative),)

    def _on_session_frame(self, frame: bytes, channel: int) -> Sequence[Event]:
        """Dispatch by descriptor. The hot three come here only if something is odd about them."""
        if channel in self._over and channel not in self._by_remote and not _is_begin(frame):
            return ()  # some clients detach their links after they have ended the session
        if frame[:3] in _HOT_HEADS:
            return self._on_hot_frame(frame[2], frame, channel)
        performative, _ = decode(frame, 0)
        if isinstance(performative, Begin):
            return self._on_begin(performative, channel)
        if isinstance(performative, End):
            return self._on_end(performative, channel)
        if isinstance(performative, Close):
            # The peer reads nothing any more but our close: what was to go out before is dropped.
            if self._flushed_open:
                self._out.clear()
            self.close()
            return (ConnectionClosed(performative.error),)
        if isinstance(performative, Composite):
            return self._in_session(channel, performative, frame)
        raise ProtocolError("amqp:not-allowed", "a frame carries no performative")

    def _on_hot_frame(self, code: int, frame: bytes, channel: int) -> Sequence[Event]:
        session = self._session(channel)
        if session.ended:
            return ()
        values, pos = decode_plain(frame, 3)
        if not isinstance(values, list) or not values:
            raise CodecError("a performative is not a list of fields")
        try:
            if code == _TRANSFER:
                delivery = session.on_transfer(values, frame[pos:])
                return () if delivery is None else (delivery,)
            if code == _DISPOSITION:
                return session.on_disposition(values)
            return session.on_flow(values)
        except SessionError as error:
            return (self._end_session(session, error.error),)

    def _in_session(self, channel: int, performative: Composite, frame: bytes) -> Sequence[Event]:
        """A session's frame, its descriptor perhaps written the long way."""
        if performative.CODE in _HOT:
            fields_at = skip(frame, 1)
            rest = b"\x00\x53" + bytes((performative.CODE,)) + frame[fields_at:]
            return self._on_hot_frame(performative.CODE, rest, channel)
        session = self._session(channel)
        if session.ended:
            return ()
        try:
            return session.handle(performative, len(frame))
        except SessionError as error:
            return (self._end_session(session, error.error),)

    def _session(self, channel: int) -> Session:
        session = self._by_remote.get(channel)
        if session is None:
            raise ProtocolError("amqp:not-allowed", f"channel {channel} has no session")
        return session

    def _on_begin(self, begin: Begin, channel: int) -> Sequence[Event]:
        if channel in self._by_remote or channel > self._channel_max:
            raise ProtocolError("amqp:not-allowed", f"channel {channel} cannot begin a session")
        if begin.remote_channel is not None:
            session = self._sessions.get(begin.remote_channel)
            if session is None or session.remote_channel is not None:
                raise ProtocolError("amqp:invalid-field", "a begin answers none of ours")
        elif channel in self._sessions:
            raise ProtocolError("amqp:not-allowed", f"channel {channel} is in use by this side")
        else:
            session = self._sessions[channel] = Session(self, channel)
        session.on_begin(begin, channel)
        self._by_remote[channel] = session
        if not session.begun:
            session.begin(remote_channel=channel)
        return (SessionBegun(session),)

    def _on_end(self, end: End, channel: int) -> Sequence[Event]:
        session = self._session(channel)
        known = not session.ended
        session.end()
        self.budget.attached -= session.attached
        del self._by_remote[channel]
        self._over.add(channel)
        self._sessions.pop(session.channel, None)
        return (SessionEnded(session, end.error),) if known else ()

    def _end_session(self, session: Session, error: Error) -> Event:
        session.end(error)
        return SessionEnded(session, error)

    # -- frames out

    def _write_header(self) -> None:
        self._out.append(AMQP_HEADER)
        self._sent_header = True

    def _write_open(self) -> None:
        idle_ms = int(self._idle_timeout_s * 1000) if self._idle_timeout_s else None
        opening = Open(
            container_id=self._container_id,
            hostname=self._hostname,
            max_frame_size=self._max_frame_size,
            channel_max=self._channel_max,
            idle_timeout=idle_ms,
        )
        self.write_frame(0, opening.encoded())
        self._sent_open = True

    def _fail(self, condition: str, description: str) -> ConnectionClosed:
        error = Error(condition, description)
        self.close(error)
        return ConnectionClosed(error)


def _is_begin(frame: bytes) -> bool:
    """Whether the frame starts a session or closes the connection, which a late one does not."""
    return isinstance(decode(frame, 0)[0], Begin | Close)


def _frame(kind: int, channel: int, body: bytes) -> bytes:
    return _write_head(8 + len(body), 2, kind, channel) + body
