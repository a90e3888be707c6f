"""The composite types of AMQP: what a frame says, and the outcomes and errors it carries.

Each class is written at its full length, nulls included: some clients index into fields that the
specification allows a peer to leave off. The three frames that come by the thousand (transfer,
flow, disposition) have encoders of their own at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from twinbus.amqp.decoding import register_composite
from twinbus.amqp.types import (
    NULL,
    CodecError,
    Encoder,
    compound,
    encode,
    encode_binary,
    encode_boolean,
    encode_map,
    encode_string,
    encode_symbol,
    encode_uint,
    encode_ulong,
    register_encoder,
)


def _ubyte(value: int) -> bytes:
    return bytes((0x50, value))


def _ushort(value: int) -> bytes:
    return b"\x60" + value.to_bytes(2)


def _symbols(value: Any) -> bytes:
    """One symbol or several: a field marked *multiple* may hold either."""
    return encode_symbol(value) if isinstance(value, str) else encode(value)


def _error(value: Error) -> bytes:
    return value.encoded()


def _below(limit: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is not bool and isinstance(value, int) and 0 <= value < limit


# What a field must be to be read, by how it is written. A field's width on the wire is the peer's
# own affair, and a string does for a symbol. Fields not named here may be anything.
_CHECKS: dict[Encoder, Callable[[Any], bool]] = {
    _ubyte: _below(1 << 8),
    _ushort: _below(1 << 16),
    encode_uint: _below(1 << 32),
    encode_ulong: _below(1 << 64),
    encode_boolean: lambda value: isinstance(value, bool),
    encode_string: lambda value: isinstance(value, str),
    encode_binary: lambda value: isinstance(value, bytes),
    encode_symbol: lambda value: isinstance(value, str) and value.isascii(),
    encode_map: lambda value: isinstance(value, dict),
    _symbols: lambda value: not isinstance(value, str) or value.isascii(),
    _error: lambda value: isinstance(value, Error),
}


def _anything(value: Any) -> bool:
    return True


class Composite:
    """A described list with named fields. ``ENCODERS`` has one encoder a field, in order."""

    CODE: ClassVar[int]
    NAME: ClassVar[str]
    ENCODERS: ClassVar[tuple[Encoder, ...]]
    FIELDS: ClassVar[tuple[tuple[str, Callable[[Any], bool]], ...]]

    @classmethod
    def from_fields(cls, values: list[Any]) -> Composite:
        known = len(cls.ENCODERS)
        if len(values) > known:
            raise CodecError(f"{cls.NAME} has {len(values)} fields, {known} are known")
        # A null stands for the field's default, which the dataclass names.
        given = {}
        for (name, fits), value in zip(cls.FIELDS, values, strict=False):
            if value is not None:
                if not fits(value):
                    raise CodecError(f"the field {name} of {cls.NAME} is not of its type")
                given[name] = value
        try:
            return cls(**given)
        except TypeError as error:
            raise CodecError(f"{cls.NAME} lacks a mandatory field") from error

    def encoded(self) -> bytes:
        parts = []
        try:
            for (name, _), write in zip(self.FIELDS, self.ENCODERS, strict=True):
                value = getattr(self, name)
                parts.append(NULL if value is None else write(value))
        except CodecError:
            raise
        except (struct.error, ValueError, OverflowError) as error:
            raise CodecError(f"the field {name} of {self.NAME} does not fit: {error}") from error
        return bytes((0x00, 0x53, self.CODE)) + compound(0xC0, len(parts), b"".join(parts))


def _composite(code: int, name: str, *encoders: Encoder) -> Callable[[type], Any]:
    def register(cls: Any) -> Any:
        cls.CODE, cls.NAME, cls.ENCODERS = code, name, encoders
        checks = [_CHECKS.get(write, _anything) for write in encoders]
        cls.FIELDS = tuple(zip([field.name for field in fields(cls)], checks, strict=True))
        register_composite(code, name, cls.from_fields)
        register_encoder(cls, cls.encoded)
        return cls

    return register


# ---------------------------------------------------------------- errors and outcomes


@_composite(0x1D, "amqp:error:list", encode_symbol, encode_string, encode_map)
@dataclass(slots=True)
class Error(Composite):
    condition: str
    description: str | None = None
    info: dict[Any, Any] | None = None


@_composite(0x23, "amqp:received:list", encode_uint, encode_ulong)
@dataclass(slots=True)
class Received(Composite):
    section_number: int
    section_offset: int


@_composite(0x24, "amqp:accepted:list")
@dataclass(slots=True)
class Accepted(Composite):
    @classmethod
    def from_fields(cls, values: list[Any]) -> Accepted:
        if values:
            raise CodecError(f"{cls.NAME} has {len(values)} fields, 0 are known")
        return ACCEPTED  # it says nothing more, so one instance will do


@_composite(0x25, "amqp:rejected:list", _error)
@dataclass(slots=True)
class Rejected(Composite):
    error: Error | None = None


@_composite(0x26, "amqp:released:list")
@dataclass(slots=True)
class Released(Composite):
    @classmethod
    def from_fields(cls, values: list[Any]) -> Released:
        if values:
            raise CodecError(f"{cls.NAME} has {len(values)} fields, 0 are known")
        return RELEASED  # it says nothing more, so one instance will do


@_composite(0x27, "amqp:modified:list", encode_boolean, encode_boolean, encode_map)
@dataclass(slots=True)
class Modified(Composite):
    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: dict[Any, Any] | None = None


Outcome = Accepted | Rejected | Released | Modified

ACCEPTED = Accepted()
RELEASED = Released()

# ---------------------------------------------------------------- link ends


@_composite(
    0x28,
    "amqp:source:list",
    *(encode, encode_uint, encode_symbol, encode_uint, encode_boolean, encode_map),
    *(encode_symbol, encode_map, encode, _symbols, _symbols),
)
@dataclass(slots=True)
class Source(Composite):
    address: Any = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: dict[Any, Any] | None = None
    distribution_mode: str | None = None
    filter: dict[Any, Any] | None = None
    default_outcome: Any = None
    outcomes: Any = None
    capabilities: Any = None


@_composite(
    0x29,
    "amqp:target:list",
    *(encode, encode_uint, encode_symbol, encode_uint, encode_boolean, encode_map, _symbols),
)
@dataclass(slots=True)
class Target(Composite):
    address: Any = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool | None = None
    dynamic_node_properties: dict[Any, Any] | None = None
    capabilities: Any = None


# ---------------------------------------------------------------- performatives


@_composite(
    0x10,
    "amqp:open:list",
    *(encode_string, encode_string, encode_uint, _ushort, encode_uint),
    *(_symbols, _symbols, _symbols, _symbols, encode_map),
)
@dataclass(slots=True)
class Open(Composite):
    container_id: str
    hostname: str | None = None
    max_frame_size: int = 0xFFFFFFFF
    channel_max: int = 65535
    idle_timeout: int | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


@_composite(
    0x11,
    "amqp:begin:list",
    *(_ushort, encode_uint, encode_uint, encode_uint, encode_uint, _symbols, _symbols, encode_map),
)
@dataclass(slots=True)
class Begin(Composite):
    remote_channel: int | None = None
    next_outgoing_id: int = 0
    incoming_window: int = 0
    outgoing_window: int = 0
    handle_max: int = 0xFFFFFFFF
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


@_composite(
    0x12,
    "amqp:attach:list",
    *(encode_string, encode_uint, encode_boolean, _ubyte, _ubyte, encode, encode, encode_map),
    *(encode_boolean, encode_uint, encode_ulong, _symbols, _symbols, encode_map),
)
@dataclass(slots=True)
class Attach(Composite):
    name: str
    handle: int
    role: bool
    snd_settle_mode: int = 2
    rcv_settle_mode: int = 0
    source: Any = None
    target: Any = None
    unsettled: dict[Any, Any] | None = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: dict[Any, Any] | None = None


@_composite(
    0x13,
    "amqp:flow:list",
    *(encode_uint, encode_uint, encode_uint, encode_uint, encode_uint, encode_uint),
    *(encode_uint, encode_uint, encode_boolean, encode_boolean, encode_map),
)
@dataclass(slots=True)
class Flow(Composite):
    next_incoming_id: int | None = None
    incoming_window: int = 0
    next_outgoing_id: int = 0
    outgoing_window: int = 0
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: dict[Any, Any] | None = None


@_composite(
    0x14,
    "amqp:transfer:list",
    *(encode_uint, encode_uint, encode_binary, encode_uint, encode_boolean, encode_boolean),
    *(_ubyte, encode, encode_boolean, encode_boolean, encode_boolean),
)
@dataclass(slots=True)
class Transfer(Composite):
    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: Any = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@_composite(
    0x15,
    "amqp:disposition:list",
    *(encode_boolean, encode_uint, encode_uint, encode_boolean, encode, encode_boolean),
)
@dataclass(slots=True)
class Disposition(Composite):
    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: Any = None
    batchable: bool = False


@_composite(0x16, "amqp:detach:list", encode_uint, encode_boolean, _error)
@dataclass(slots=True)
class Detach(Composite):
    handle: int
    closed: bool = False
    error: Error | None = None


@_composite(0x17, "amqp:end:list", _error)
@dataclass(slots=True)
class End(Composite):
    error: Error | None = None


@_composite(0x18, "amqp:close:list", _error)
@dataclass(slots=True)
class Close(Composite):
    error: Error | None = None


@_composite(0x40, "amqp:sasl-mechanisms:list", _symbols)
@dataclass(slots=True)
class SaslMechanisms(Composite):
    mechanisms: Any


@_composite(0x41, "amqp:sasl-init:list", encode_symbol, encode_binary, encode_string)
@dataclass(slots=True)
class SaslInit(Composite):
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


@_composite(0x44, "amqp:sasl-outcome:list", _ubyte, encode_binary)
@dataclass(slots=True)
class SaslOutcome(Composite):
    code: int
    additional_data: bytes | None = None


# ---------------------------------------------------------------- the frames of the hot path


def encode_transfer(
    handle: int,
    delivery_id: int | None,
    tag: bytes,
    message_format: int,
    settled: bool,
    more: bool,
) -> bytes:
    """A transfer without its payload. The six fields behind *more* are null or false."""
    first = NULL * 3
    if delivery_id is not None:
        first = encode_uint(delivery_id) + encode_binary(tag) + encode_uint(message_format)
    body = encode_uint(handle) + first + (b"\x41" if settled else b"\x42")
    body += (b"\x41" if more else b"\x42") + b"\x40\x40\x42\x42\x42"
    return b"\x00\x53\x14" + compound(0xC0, 11, body)


def encode_disposition(role: bool, first: int, last: int, settled: bool, state: bytes) -> bytes:
    """A disposition whose state is already encoded."""
    body = (b"\x41" if role else b"\x42") + encode_uint(first) + encode_uint(last)
    body += (b"\x41" if settled else b"\x42") + state + b"\x42"
    return b"\x00\x53\x15" + compound(0xC0, 6, body)
