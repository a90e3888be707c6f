"""How a diverted message remembers home, and how it gets its own face back.

This is the one contract between diverting and returning. It works on encoded AMQP messages and
changes only the sections it must, so a body, an annotation or a property of any AMQP type comes
out as it went in.

What would act on the message while it waits in the backlog is taken off it and kept, with its AMQP
type, under an alias among the application properties; an alias is there only if the value was:

    group-id of the properties               x-ms-sessionid                string
    ttl of the header                        x-ms-timetolive               uint, milliseconds
    absolute-expiry-time of the properties   x-ms-absoluteexpirytime       timestamp
    x-opt-scheduled-enqueue-time             x-ms-scheduledenqueuetimeutc  timestamp
    where it was sent to                     x-ms-path                     string

A message that has no room for its aliases, or that uses one of these names itself, is *sealed*:
its whole encoding becomes the body of one backlog message, compressed if need be, and if that is
still too much the bodies of several (``x-ms-part`` of ``x-ms-parts``, told apart by
``x-ms-partof``). ``assemble`` puts them together and does not mind their order, nor duplicates.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from twinbus.amqp.message import Message, batch_items
from twinbus.amqp.message import sections as sections_of
from twinbus.amqp.types import (
    CodecError,
    Symbol,
    Timestamp,
    UInt,
    decode_foreign,
    encode,
    encode_binary,
)
from twinbus.client_errors import EnvelopeError

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
EXPIRY: Final = "x-ms-absoluteexpirytime"
SCHEDULED: Final = "x-ms-scheduledenqueuetimeutc"
ENCODING: Final = "x-ms-encoding"
PART: Final = "x-ms-part"
PARTS: Final = "x-ms-parts"
PART_OF: Final = "x-ms-partof"
CHECKSUM: Final = "x-ms-checksum"

ALIASES: Final = frozenset((PATH, SESSION_ID, TIME_TO_LIVE, EXPIRY, SCHEDULED))
SEALS: Final = frozenset((ENCODING, PART, PARTS, PART_OF, CHECKSUM))
RESERVED: Final = ALIASES | SEALS
SEALED_CONTENT_TYPE: Final = "application/vnd.twinbus-sealed"
PLAIN, ZLIB = "identity", "zlib"

# The second label of a backlog queue's path: contoso/x-servicebus-transfer/0
TRANSFER: Final = "x-servicebus-transfer"

DEFAULT_LIMIT: Final = 262_144
# No Service Bus takes a larger message; one that says it is must not fill the memory to prove it.
MOST_UNPACKED: Final = 100 * 1024 * 1024
# Service Bus allows 64 KB of properties on a message; the aliases need some of it.
_PROPERTIES_ROOM = 60 * 1024
# What a sealed message is made of besides its body.
_SEAL_ROOM = 2048
_LONGEST_PATH = 260
_SCHEDULE_ANNOTATION = Symbol("x-opt-scheduled-enqueue-time")
_PARTITION_KEY = Symbol("x-opt-partition-key")
_SEQUENCE_NUMBER = Symbol("x-opt-sequence-number")
# What a broker writes on a message that it hands out; it says nothing about the next broker.
_STAMPS: Final = frozenset(
    Symbol(name)
    for name in (
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-locked-until",
        "x-opt-enqueue-sequence-number",
        "x-opt-message-state",
        "x-opt-deadletter-source",
    )
)

HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, BODY = 0x70, 0x71, 0x72, 0x73, 0x74, 0x75
_FOOTER = 0x78
_HEAD = frozenset((HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION))
_ID, _CONTENT_TYPE, _EXPIRY, _GROUP, _FIELDS = 0, 6, 8, 10, 13
_TTL, _FIRST_ACQUIRER = 2, 3
_UINT, _TIME = (0, 2**32 - 1), (-(2**63), 2**63 - 1)

Sections = dict[int, bytes]
K = TypeVar("K", list[Any], dict[Any, Any])


@dataclass(frozen=True, slots=True)
class Home:
    """Where a message belongs and what it takes back on when it goes there."""

    path: str
    session_id: str | None = None
    time_to_live_ms: int | None = None
    expiry_ms: int | None = None
    scheduled_ms: int | None = None


class Face(NamedTuple):
    """What an entity looks at before it takes a message."""

    message_id: Any
    content_type: Any
    session_id: Any


# ---------------------------------------------------------------- where it waits


def queue_path(namespace: str, index: int) -> str:
    """The path of a backlog queue."""
    return f"{namespace}/{TRANSFER}/{index}"


def is_backlog_path(path: str) -> bool:
    """Whether a queue of that path is a backlog queue of some namespace."""
    parts = path.split("/")
    return len(parts) == 3 and parts[1].lower() == TRANSFER and parts[2].isdigit()


def namespace_name(host: str) -> str:
    """The first DNS label: what a backlog queue's path begins with."""
    return host.split(":", 1)[0].split(".", 1)[0]


# ---------------------------------------------------------------- one message


def pack(message: bytes, path: str, limit: int = DEFAULT_LIMIT) -> list[bytes]:
    """What to put into the backlog for ``message``: one backlog message, or several parts."""
    sections = split(message)
    if _fits_aliases(sections):
        wrapped = _wrap(sections, path)
        if len(wrapped) <= limit:
            return [wrapped]
    return _seal(_with_id(sections), path, limit)


def wrap(message: bytes, path: str) -> bytes:
    """The message with its aliases, whatever its size."""
    return _wrap(split(message), path)


def unwrap(message: bytes) -> tuple[str, bytes]:
    """The destination, and the message as it was sent. Parts are for ``assemble``.

    The bytes may come straight from a backlog queue: what its broker wrote on them is taken off.
    Raises EnvelopeError unless what comes out is a message that a broker can read.
    """
    sections = split(message)
    properties = _map(sections.get(APPLICATION))
    home = home_of(properties)
    if is_sealed(properties):
        seal = {_text(key): value for key, value in properties.items()}
        if seal.get(PARTS) is not None:
            raise EnvelopeError("this is a part of a message; give all its parts to assemble()")
        return home.path, checked(_open(seal, _body(sections)))
    return home.path, _parsed(_restore(sections, properties, home))


def unstamped(message: bytes, without: frozenset[str] = frozenset()) -> bytes:
    """The message as a broker got it, less the application properties named in ``without``."""
    sections = split(message)
    annotations = _unstamp(sections)
    if annotations is not None:
        sections[ANNOTATIONS] = _encoded(annotations) if annotations else b""
    if without:
        properties = _map(sections.get(APPLICATION))
        rest = {key: value for key, value in properties.items() if key not in without}
        sections[APPLICATION] = _encoded(rest) if rest else b""
    return _join(sections)


def checked(message: bytes) -> bytes:
    """The message, if a broker can read all of it but its body. Raises EnvelopeError if not."""
    split(message)
    return _parsed(message)


def living(message: bytes, time_to_live_ms: int) -> bytes:
    """The message with another time to live."""
    sections = split(message)
    _set_time_to_live(sections, UInt(time_to_live_ms))
    return _join(sections)


def time_to_live_of(message: bytes) -> int | None:
    """The message's own time to live, in milliseconds."""
    header = _list(split(message).get(HEADER))
    return _whole({TIME_TO_LIVE: header[_TTL]}, TIME_TO_LIVE, _UINT) if len(header) > _TTL else None


def identity_of(message: bytes) -> tuple[Any, Any, Any]:
    """Its message id, session id and partition key: what a batch has of its first message."""
    sections = split(message)
    fields = _fields(sections)
    return fields[_ID], fields[_GROUP], _map(sections.get(ANNOTATIONS)).get(_PARTITION_KEY)


def _wrap(sections: Sections, path: str) -> bytes:
    sections = dict(sections)
    aliases: dict[str, Any] = {PATH: path}
    header = _list(sections.get(HEADER))
    if len(header) > _TTL and header[_TTL] is not None:
        aliases[TIME_TO_LIVE] = UInt(header[_TTL])
        header[_TTL] = None
        sections[HEADER] = _encoded(header)
    fields = _fields(sections)
    if fields[_ID] is None:
        fields[_ID] = str(uuid4())
    if fields[_GROUP] is not None:
        aliases[SESSION_ID], fields[_GROUP] = fields[_GROUP], None
    if fields[_EXPIRY] is not None:
        aliases[EXPIRY], fields[_EXPIRY] = fields[_EXPIRY], None
    sections[PROPERTIES] = _encoded(fields)
    annotations = _map(sections.get(ANNOTATIONS))
    scheduled = annotations.pop(_SCHEDULE_ANNOTATION, None)
    if _is_whole(scheduled):  # brokers pass over anything else, and home is to do so too
        aliases[SCHEDULED] = scheduled
        sections[ANNOTATIONS] = _encoded(annotations) if annotations else b""
    sections[APPLICATION] = _encoded(_map(sections.get(APPLICATION)) | aliases)
    return _join(sections)


def _restore(sections: Sections, properties: dict[Any, Any], home: Home) -> bytes:
    if home.session_id is not None or home.expiry_ms is not None:
        fields = _fields(sections)
        if home.session_id is not None:
            fields[_GROUP] = home.session_id
        if home.expiry_ms is not None:
            fields[_EXPIRY] = Timestamp(home.expiry_ms)
        sections[PROPERTIES] = _encoded(fields)
    annotations = _unstamp(sections)
    if home.time_to_live_ms is not None:
        _set_time_to_live(sections, UInt(home.time_to_live_ms))
    if home.scheduled_ms is not None:
        annotations = _map(sections.get(ANNOTATIONS)) if annotations is None else annotations
        annotations[_SCHEDULE_ANNOTATION] = Timestamp(home.scheduled_ms)
    if annotations is not None:
        sections[ANNOTATIONS] = _encoded(annotations) if annotations else b""
    rest = without_aliases(properties)
    sections[APPLICATION] = _encoded(rest) if rest else b""
    return _join(sections)


def _unstamp(sections: Sections) -> dict[Any, Any] | None:
    """The annotations without what a broker wrote there; None if no broker has seen the message."""
    annotations = _map(sections.get(ANNOTATIONS))
    if _SEQUENCE_NUMBER not in annotations:
        return None
    # How often the backlog handed it out is nobody's business at home.
    header = _list(sections.get(HEADER))[:_FIRST_ACQUIRER]
    known = any(value not in (None, False) for value in header)
    sections[HEADER] = _encoded(header) if known else b""
    return {key: value for key, value in annotations.items() if key not in _STAMPS}


def _set_time_to_live(sections: Sections, milliseconds: Any) -> None:
    header = _list(sections.get(HEADER))
    header += [None] * (_TTL + 1 - len(header))
    header[_TTL] = milliseconds
    sections[HEADER] = _encoded(header)


def id_of(message: bytes) -> Any:
    """The message id of an encoded message, of whichever type it is; None if there is none."""
    return _fields(split(message))[_ID]


def properties_of(message: bytes) -> Face:
    """Those that decide whether an entity takes it."""
    fields = _fields(split(message))
    return Face(fields[_ID], fields[_CONTENT_TYPE], fields[_GROUP])


# ---------------------------------------------------------------- rows: aliases in, properties out


def home_of(properties: Mapping[Any, Any]) -> Home:
    """What the aliases among ``properties`` say. Keys and texts may be ``bytes``, as the SDK has
    them. Raises EnvelopeError if the destination is missing or an alias is not of its type."""
    found = {name: value for key, value in properties.items() if (name := _text(key)) in ALIASES}
    path = _text(found.get(PATH))
    if not isinstance(path, str) or not path:
        raise EnvelopeError(f"the message has no {PATH}, so it cannot be said where it belongs")
    if len(path) > _LONGEST_PATH:
        raise EnvelopeError(f"{PATH} has {len(path)} characters; no entity has more than 260")
    if any(part.startswith("$") for part in path.split("/")):
        # A request to "orders/$management" would be carried out, by the right of who brings it.
        raise EnvelopeError(f"{PATH} is {path!r}, which is no queue or topic")
    session = _text(found.get(SESSION_ID))
    if session is not None and not isinstance(session, str):
        raise EnvelopeError(f"{SESSION_ID} is {type(session).__name__}; it must be a string")
    return Home(
        path,
        None if session is None else str(session),
        _whole(found, TIME_TO_LIVE, _UINT),
        _whole(found, EXPIRY, _TIME),
        _whole(found, SCHEDULED, _TIME),
    )


def without_aliases(properties: Mapping[Any, Any]) -> dict[Any, Any]:
    """The application's own properties."""
    return {key: value for key, value in properties.items() if _text(key) not in RESERVED}


def is_sealed(properties: Mapping[Any, Any]) -> bool:
    """Whether the body is an encoded message, or a part of one."""
    return any(_text(key) == ENCODING for key in properties)


def part_of(properties: Mapping[Any, Any]) -> tuple[str, int, int] | None:
    """(which message, which part, of how many) for a part, else None."""
    found = {name: value for key, value in properties.items() if (name := _text(key)) in SEALS}
    if PARTS not in found:
        return None
    group = _text(found.get(PART_OF))
    part, parts = _whole(found, PART, _UINT), _whole(found, PARTS, _UINT)
    if not isinstance(group, str) or part is None or parts is None or not 0 <= part < parts:
        raise EnvelopeError(f"{PART}, {PARTS} and {PART_OF} do not say which part this is")
    return group, part, parts


def place_of(message: bytes) -> tuple[str, int, int] | None:
    """``part_of`` for an encoded message."""
    return part_of(_map(split(message).get(APPLICATION)))


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _whole(found: Mapping[Any, Any], name: str, limits: tuple[int, int]) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if not _is_whole(value):
        raise EnvelopeError(f"{name} is {type(value).__name__}; it must be a whole number")
    low, high = limits
    if not low <= value <= high:
        raise EnvelopeError(f"{name} is {int(value)}; it must be from {low} to {high}")
    return int(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# ---------------------------------------------------------------- sealed messages


def _seal(sections: Sections, path: str, limit: int) -> list[bytes]:
    content = _join(sections)
    checksum = UInt(zlib.crc32(content))
    message_id = _fields(sections)[_ID]
    room = limit - _SEAL_ROOM
    if room <= 0:
        raise EnvelopeError(f"a limit of {limit} bytes is too small for any sealed message")
    if len(content) <= room:
        seal = {PATH: path, ENCODING: PLAIN, CHECKSUM: checksum}
        return [_sealed(message_id, seal, content)]
    squeezed = zlib.compress(content)
    name, content = (ZLIB, squeezed) if len(squeezed) < len(content) else (PLAIN, content)
    seal = {PATH: path, ENCODING: name, CHECKSUM: checksum}
    if len(content) <= room:
        return [_sealed(message_id, seal, content)]
    chunks = [content[start : start + room] for start in range(0, len(content), room)]
    group = str(uuid4())
    return [
        _sealed(
            f"{group}/{index}",
            {**seal, PART: UInt(index), PARTS: UInt(len(chunks)), PART_OF: group},
            chunk,
        )
        for index, chunk in enumerate(chunks)
    ]


def _sealed(message_id: Any, properties: dict[str, Any], content: bytes) -> bytes:
    fields: list[Any] = [None] * _FIELDS
    fields[_ID], fields[_CONTENT_TYPE] = message_id, Symbol(SEALED_CONTENT_TYPE)
    return _join(
        {
            PROPERTIES: _encoded(fields),
            APPLICATION: _encoded(properties),
            BODY: b"\x00\x53\x75" + encode_binary(content),
        }
    )


def assemble(parts: Iterable[bytes]) -> tuple[str, bytes]:
    """The destination, and the message that the backlog messages ``parts`` were cut from."""
    found: dict[int, bytes] = {}
    seal: dict[str, Any] = {}
    groups: set[tuple[str, int]] = set()
    for encoded in parts:
        sections = split(encoded)
        seal = {_text(key): value for key, value in _map(sections.get(APPLICATION)).items()}
        place = part_of(seal)
        if place is None:
            raise EnvelopeError("one of the messages is not a part")
        group, part, count = place
        groups.add((group, count))
        found[part] = _body(sections)
    if len(groups) != 1:
        raise EnvelopeError(f"the parts are of {len(groups)} messages; give those of one")
    (_, count), *_ = groups
    if len(found) != count:
        raise EnvelopeError(f"only {len(found)} of {count} parts are there")
    content = b"".join(found[index] for index in range(count))
    return home_of(seal).path, checked(_open(seal, content))


def join_bodies(properties: Mapping[Any, Any], bodies: Iterable[bytes]) -> bytes:
    """The message in the ordered bodies of a sealed message: ``assemble`` for rows."""
    seal = {_text(key): value for key, value in properties.items()}
    return _open(seal, b"".join(bodies))


def _open(seal: Mapping[str, Any], content: bytes) -> bytes:
    encoding = _text(seal.get(ENCODING))
    if encoding == ZLIB:
        content = _decompressed(content)
    elif encoding != PLAIN:
        raise EnvelopeError(f"{ENCODING} is {encoding!r}; this version knows zlib and identity")
    if zlib.crc32(content) != seal.get(CHECKSUM):
        raise EnvelopeError(f"the message's bytes do not add up to its {CHECKSUM}")
    return content


def _decompressed(content: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        whole = stream.decompress(content, MOST_UNPACKED)
    except zlib.error as error:
        raise EnvelopeError(f"the compressed message is damaged: {error}") from error
    if stream.unconsumed_tail:
        raise EnvelopeError(f"the message unpacks to more than {MOST_UNPACKED} bytes")
    if not stream.eof:
        raise EnvelopeError("the compressed message is damaged: it ends too soon")
    return whole


def _parsed(message: bytes) -> bytes:
    """The message, if all of it but its body can be read, and its sections are in order."""
    try:
        Message.parse(message)
    except CodecError as error:
        raise EnvelopeError(f"this is not a message that can be sent: {error}") from error
    return message


# ---------------------------------------------------------------- sections


def split(message: bytes) -> Sections:
    """Sections by code. The body's and footer's bytes, descriptors and all, are under ``BODY``.

    The SDK writes delivery annotations last; they are put where AMQP wants them.
    """
    sections: Sections = {}
    bodies: list[bytes] = []
    try:
        for code, pos, start, end in sections_of(message):
            if BODY <= code <= _FOOTER:
                bodies.append(message[pos:end])
            elif code in _HEAD and code not in sections:
                sections[code] = message[start:end]
            else:
                raise EnvelopeError(f"the section {code:#x} is of no message, or is there twice")
    except CodecError as error:
        raise EnvelopeError(f"the bytes are not an encoded message: {error}") from error
    sections[BODY] = bodies[0] if len(bodies) == 1 else b"".join(bodies)
    return sections


def _join(sections: Sections) -> bytes:
    head = b"".join(
        b"\x00\x53" + bytes((code,)) + sections[code]
        for code in (HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION)
        if sections.get(code)
    )
    return head + sections[BODY]


def _fits_aliases(sections: Sections) -> bool:
    raw = sections.get(APPLICATION, b"")
    return len(raw) <= _PROPERTIES_ROOM and not RESERVED & _map(raw).keys()


def _with_id(sections: Sections) -> Sections:
    fields = _fields(sections)
    if fields[_ID] is not None:
        return sections
    fields[_ID] = str(uuid4())
    return {**sections, PROPERTIES: _encoded(fields)}


def _fields(sections: Sections) -> list[Any]:
    fields = _list(sections.get(PROPERTIES))
    return fields + [None] * (_FIELDS - len(fields))


def _list(raw: bytes | None) -> list[Any]:
    return _of_kind(raw, list)


def _map(raw: bytes | None) -> dict[Any, Any]:
    return _of_kind(raw, dict)


def _of_kind(raw: bytes | None, kind: type[K]) -> K:
    value = _value(raw)
    if value is None:
        return kind()
    if type(value) is not kind:
        raise EnvelopeError(f"a section of the message is {type(value).__name__}, of all things")
    return value


def _value(raw: bytes | None) -> Any:
    try:
        return decode_foreign(raw, 0)[0] if raw else None
    except CodecError as error:
        raise EnvelopeError(f"a section of the message is damaged: {error}") from error


def _encoded(value: list[Any] | dict[Any, Any]) -> bytes:
    try:
        return encode(value)
    except CodecError as error:
        raise EnvelopeError(f"a section of the message cannot be written again: {error}") from error


def _body(sections: Sections) -> bytes:
    """The content of the one data section of a sealed message."""
    try:
        items = batch_items(sections[BODY])
    except CodecError:
        items = []
    if len(items) != 1:
        raise EnvelopeError("a sealed message must have one binary body")
    return items[0]
