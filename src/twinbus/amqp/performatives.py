"""The composite types of AMQP: what a frame says, and the outcomes and errors it carries.

Each class is written at its full length, nulls included: some clients index into fields that the
specification allows a peer to leave off. The three frames that come by the thousand (transfer,
flow, disposition) have encoders of their own at the end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import (
    Annotated,
    Any,
    ClassVar,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_type_hints,
)

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

T = TypeVar("T")


def _ubyte(value: int) -> bytes:
    return bytes((0x50, value))


def _ushort(value: int) -> bytes:
    return b"\x60" + value.to_bytes(2)


def _symbols(value: Any) -> bytes:
    """One symbol or several: a field marked *multiple* may hold either."""
    return encode_symbol(value) if isinstance(value, str) else encode(value)


def _below(limit: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is not bool and isinstance(value, int) and 0 <= value < limit


def _of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


# How a field is written, and what it must be to be read. Its width on the wire is the peer's own
# affair, and a string does for a symbol. A field of any other type may be anything.
Ubyte = Annotated[int, _ubyte, _below(1 << 8)]
Ushort = Annotated[int, _ushort, _below(1 << 16)]
Uint = Annotated[int, encode_uint, _below(1 << 32)]
Ulong = Annotated[int, encode_ulong, _below(1 << 64)]
Bool = Annotated[bool, encode_boolean, _of(bool)]
Text = Annotated[str, encode_string, _of(str)]
Bytes = Annotated[bytes, encode_binary, _of(bytes)]
Name = Annotated[str, encode_symbol, lambda value: isinstance(value, str) and value.isascii()]
Names = Annotated[Any, _symbols, lambda value: not isinstance(value, str) or value.isascii()]
Map = Annotated[dict[Any, Any], encode_map, _of(dict)]


def _on_the_wire(hint: Any) -> tuple[Encoder, Callable[[Any], bool]]:
    for part in (hint, *get_args(hint)):
        if hasattr(part, "__metadata__"):
            write, fits = part.__metadata__
            return write, fits
    return encode, lambda value: True


class Composite:
    """A described list with named fields: of each, how it is written and what it must be."""

    CODE: ClassVar[int]
    NAME: ClassVar[str]
    FIELDS: ClassVar[tuple[tuple[str, Encoder, Callable[[Any], bool]], ...]]

    @classmethod
    def from_fields(cls, values: list[Any]) -> Composite:
        known = len(cls.FIELDS)
        if len(values) > known:
            raise CodecError(f"{cls.NAME} has {len(values)} fields, {known} are known")
        # A null stands for the field's default, which the dataclass names.
        given = {}
        for (name, _, fits), value in zip(cls.FIELDS, values, strict=False):
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
            for name, write, _ in self.FIELDS:
                value = getattr(self, name)
                parts.append(NULL if value is None else write(value))
        except CodecError:
            raise
        except (struct.error, ValueError, OverflowError) as error:
            raise CodecError(f"the field {name} of {self.NAME} does not fit: {error}") from error
        return bytes((0x00, 0x53, self.CODE)) + compound(0xC0, len(parts), b"".join(parts))


@dataclass_transform()
def _composite(code: int, name: str) -> Callable[[type[T]], type[T]]:
    def register(plain: type[T]) -> type[T]:
        cls: Any = dataclass(slots=True)(plain)
        hints = get_type_hints(plain, include_extras=True)
        cls.CODE, cls.NAME = code, name
        cls.FIELDS = tuple((each.name, *_on_the_wire(hints[each.name])) for each in fields(cls))
        register_composite(code, name, cls.from_fields)
        register_encoder(cls, cls.encoded)
        return cast(type[T], cls)

    return register


# ---------------------------------------------------------------- errors and outcomes


@_composite(0x1D, "amqp:error:list")
class Error(Composite):
    condition: Name
    description: Text | None = None
    info: Map | None = None


ErrorField = Annotated[Error, Error.encoded, _of(Error)]


@_composite(0x23, "amqp:received:list")
class Received(Composite):
    section_number: Uint
    section_offset: Ulong


class Wordless(Composite):
    """It says nothing but its name, so one instance will do."""

    ONLY: ClassVar[Wordless]

    @classmethod
    def from_fields(cls, values: list[Any]) -> Wordless:
        if values:
            raise CodecError(f"{cls.NAME} has {len(values)} fields, 0 are known")
        return cls.ONLY


@_composite(0x24, "amqp:accepted:list")
class Accepted(Wordless):
    pass


@_composite(0x25, "amqp:rejected:list")
class Rejected(Composite):
    error: ErrorField | None = None


@_composite(0x26, "amqp:released:list")
class Released(Wordless):
    pass


@_composite(0x27, "amqp:modified:list")
class Modified(Composite):
    delivery_failed: Bool | None = None
    undeliverable_here: Bool | None = None
    message_annotations: Map | None = None


Outcome = Accepted | Rejected | Released | Modified

ACCEPTED = Accepted.ONLY = Accepted()
RELEASED = Released.ONLY = Released()

# ---------------------------------------------------------------- link ends


@_composite(0x28, "amqp:source:list")
class Source(Composite):
    address: Any = None
    durable: Uint | None = None
    expiry_policy: Name | None = None
    timeout: Uint | None = None
    dynamic: Bool | None = None
    dynamic_node_properties: Map | None = None
    distribution_mode: Name | None = None
    filter: Map | None = None
    default_outcome: Any = None
    outcomes: Names = None
    capabilities: Names = None


@_composite(0x29, "amqp:target:list")
class Target(Composite):
    address: Any = None
    durable: Uint | None = None
    expiry_policy: Name | None = None
    timeout: Uint | None = None
    dynamic: Bool | None = None
    dynamic_node_properties: Map | None = None
    capabilities: Names = None


# ---------------------------------------------------------------- performatives


@_composite(0x10, "amqp:open:list")
class Open(Composite):
    container_id: Text
    hostname: Text | None = None
    max_frame_size: Uint = 0xFFFFFFFF
    channel_max: Ushort = 65535
    idle_timeout: Uint | None = None
    outgoing_locales: Names = None
    incoming_locales: Names = None
    offered_capabilities: Names = None
    desired_capabilities: Names = None
    properties: Map | None = None


@_composite(0x11, "amqp:begin:list")
class Begin(Composite):
    remote_channel: Ushort | None = None
    next_outgoing_id: Uint = 0
    incoming_window: Uint = 0
    outgoing_window: Uint = 0
    handle_max: Uint = 0xFFFFFFFF
    offered_capabilities: Names = None
    desired_capabilities: Names = None
    properties: Map | None = None


@_composite(0x12, "amqp:attach:list")
class Attach(Composite):
    name: Text
    handle: Uint
    role: Bool
    snd_settle_mode: Ubyte = 2
    rcv_settle_mode: Ubyte = 0
    source: Any = None
    target: Any = None
    unsettled: Map | None = None
    incomplete_unsettled: Bool | None = None
    initial_delivery_count: Uint | None = None
    max_message_size: Ulong | None = None
    offered_capabilities: Names = None
    desired_capabilities: Names = None
    properties: Map | None = None


@_composite(0x13, "amqp:flow:list")
class Flow(Composite):
    next_incoming_id: Uint | None = None
    incoming_window: Uint = 0
    next_outgoing_id: Uint = 0
    outgoing_window: Uint = 0
    handle: Uint | None = None
    delivery_count: Uint | None = None
    link_credit: Uint | None = None
    available: Uint | None = None
    drain: Bool = False
    echo: Bool = False
    properties: Map | None = None


@_composite(0x14, "amqp:transfer:list")
class Transfer(Composite):
    handle: Uint
    delivery_id: Uint | None = None
    delivery_tag: Bytes | None = None
    message_format: Uint | None = None
    settled: Bool | None = None
    more: Bool = False
    rcv_settle_mode: Ubyte | None = None
    state: Any = None
    resume: Bool = False
    aborted: Bool = False
    batchable: Bool = False


@_composite(0x15, "amqp:disposition:list")
class Disposition(Composite):
    role: Bool
    first: Uint
    last: Uint | None = None
    settled: Bool = False
    state: Any = None
    batchable: Bool = False


@_composite(0x16, "amqp:detach:list")
class Detach(Composite):
    handle: Uint
    closed: Bool = False
    error: ErrorField | None = None


@_composite(0x17, "amqp:end:list")
class End(Composite):
    error: ErrorField | None = None


@_composite(0x18, "amqp:close:list")
class Close(Composite):
    error: ErrorField | None = None


@_composite(0x40, "amqp:sasl-mechanisms:list")
class SaslMechanisms(Composite):
    mechanisms: Names


@_composite(0x41, "amqp:sasl-init:list")
class SaslInit(Composite):
    mechanism: Name
    initial_response: Bytes | None = None
    hostname: Text | None = None


@_composite(0x44, "amqp:sasl-outcome:list")
class SaslOutcome(Composite):
    code: Ubyte
    additional_data: Bytes | None = None


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
