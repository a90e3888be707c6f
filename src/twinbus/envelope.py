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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from uuid import uuid4

from twinbus.amqp import sections
from twinbus.amqp.message import Message
from twinbus.amqp.sections import (
    ANNOTATIONS,
    APPLICATION,
    CONTENT_TYPE,
    DATA,
    FIELDS,
    GROUP_ID,
    HEADER,
    MESSAGE_ID,
    PROPERTIES,
    Sections,
    data_items,
    section,
)
from twinbus.amqp.types import (
    CodecError,
    Symbol,
    Timestamp,
    UInt,
    encode_binary,
    encode_list,
    encode_map,
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
# No Service Bus takes a larger message. Bytes that would unpack to more are refused, so that nobody
# can fill our memory with a few of them.
MOST_UNPACKED: Final = 100 * 1024 * 1024
# Service Bus allows 64 KB of properties on a message; the aliases need some of it.
_PROPERTIES_ROOM = 60 * 1024
# What a sealed message is made of besides its body.
_SEAL_ROOM = 2048
_LONGEST_PATH = 260
# What a broker writes on a message that it hands out; it says nothing about the next broker.
_STAMPS: Final = frozenset(
    (
        sections.SEQUENCE_NUMBER,
        sections.ENQUEUED,
        sections.LOCKED_UNTIL,
        sections.ORIGIN,
        sections.STATE,
        sections.DEAD_SOURCE,
    )
)
_UINT, _TIME = (0, 2**32 - 1), (-(2**63), 2**63 - 1)

Changes = dict[int, list[Any] | dict[Any, Any]]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Home:
    """Where a message belongs and what it takes back on when it goes there."""

    path: str
    session_id: str | None = None
    time_to_live_ms: int | None = None
    expiry_ms: int | None = None
    scheduled_ms: int | None = None


class Unwrapped(NamedTuple):
    """A message out of its envelope, and what was read of it on the way."""

    path: str
    message: bytes
    message_id: Any
    time_to_live_ms: int | None


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


def _of_our_own(act: Callable[P, R]) -> Callable[P, R]:
    """What the codec has against a message is an EnvelopeError to those who call."""

    @wraps(act)
    def acting(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return act(*args, **kwargs)
        except CodecError as error:
            raise EnvelopeError(str(error)) from error

    return acting


@_of_our_own
def pack(message: bytes, path: str, limit: int = DEFAULT_LIMIT) -> list[bytes]:
    """What to put into the backlog for ``message``: one backlog message, or several parts."""
    apart = Sections(message)
    if _fits_aliases(apart):
        wrapped = _wrap(apart, path)
        if len(wrapped) <= limit:
            return [wrapped]
    return _seal(apart, path, limit)


@_of_our_own
def wrap(message: bytes, path: str) -> bytes:
    """The message with its aliases, whatever its size."""
    return _wrap(Sections(message), path)


def unwrap(message: bytes) -> tuple[str, bytes]:
    """The destination, and the message as it was sent. Parts are for ``assemble``."""
    return opened(message)[:2]


@_of_our_own
def opened(message: bytes | Sections) -> Unwrapped:
    """A message that is in one piece, out of its envelope.

    It may come straight from a backlog queue: what its broker wrote on it is taken off. Raises
    EnvelopeError unless what comes out is a message that a broker can read.
    """
    apart = _apart(message)
    properties = apart.application()
    home = home_of(properties)
    if is_sealed(properties):
        seal = {_text(key): value for key, value in properties.items()}
        if seal.get(PARTS) is not None:
            raise EnvelopeError("this is a part of a message; give all its parts to assemble()")
        return _found(home.path, _open(seal, _content(apart)))
    return _read(home.path, _restore(apart, home))


@_of_our_own
def unstamped(message: bytes, without: frozenset[str] = frozenset()) -> bytes:
    """The message as a broker got it, less the application properties named in ``without``."""
    apart = Sections(message)
    changes = _unstamp(apart)
    if without:
        properties = apart.application()
        changes[APPLICATION] = {k: v for k, v in properties.items() if k not in without}
    return apart.joined(changes)


@_of_our_own
def checked(message: bytes) -> bytes:
    """The message, if a broker can read all of it but its body. Raises EnvelopeError if not."""
    return _found("", message).message


@_of_our_own
def living(message: bytes, time_to_live_ms: int) -> bytes:
    """The message with another time to live."""
    apart = Sections(message)
    return apart.joined({HEADER: _with_time_to_live(apart.header(), time_to_live_ms)})


@_of_our_own
def time_to_live_of(message: bytes) -> int | None:
    """The message's own time to live, in milliseconds."""
    header = Sections(message).header()
    if len(header) <= sections.TIME_TO_LIVE:
        return None
    return _whole({TIME_TO_LIVE: header[sections.TIME_TO_LIVE]}, TIME_TO_LIVE, _UINT)


def _wrap(apart: Sections, path: str) -> bytes:
    aliases: dict[str, Any] = {PATH: path}
    changes: Changes = {}
    header = apart.header()
    if len(header) > sections.TIME_TO_LIVE and header[sections.TIME_TO_LIVE] is not None:
        aliases[TIME_TO_LIVE] = UInt(header[sections.TIME_TO_LIVE])
        header[sections.TIME_TO_LIVE] = None
        changes[HEADER] = header
    fields = apart.fields()
    if fields[MESSAGE_ID] is None:
        fields[MESSAGE_ID] = str(uuid4())
    if fields[GROUP_ID] is not None:
        aliases[SESSION_ID], fields[GROUP_ID] = fields[GROUP_ID], None
    if fields[sections.EXPIRY] is not None:
        aliases[EXPIRY], fields[sections.EXPIRY] = fields[sections.EXPIRY], None
    changes[PROPERTIES] = fields
    annotations = apart.annotations()
    scheduled = annotations.pop(sections.SCHEDULED, None)
    if _is_whole(scheduled):  # brokers ignore any other value, so it may stay where it is
        aliases[SCHEDULED] = scheduled
        changes[ANNOTATIONS] = annotations
    changes[APPLICATION] = apart.application() | aliases
    return apart.joined(changes)


def _restore(apart: Sections, home: Home) -> bytes:
    changes = _unstamp(apart)
    if home.session_id is not None or home.expiry_ms is not None:
        fields = apart.fields()
        if home.session_id is not None:
            fields[GROUP_ID] = home.session_id
        if home.expiry_ms is not None:
            fields[sections.EXPIRY] = Timestamp(home.expiry_ms)
        changes[PROPERTIES] = fields
    if home.time_to_live_ms is not None:
        header: Any = changes.get(HEADER, apart.header())
        changes[HEADER] = _with_time_to_live(header, home.time_to_live_ms)
    if home.scheduled_ms is not None:
        annotations: Any = changes.get(ANNOTATIONS, apart.annotations())
        changes[ANNOTATIONS] = {**annotations, sections.SCHEDULED: Timestamp(home.scheduled_ms)}
    changes[APPLICATION] = without_aliases(apart.application())
    return apart.joined(changes)


def _unstamp(apart: Sections) -> Changes:
    """Header and annotations without what a broker wrote there, if one has seen the message."""
    annotations = apart.annotations()
    if sections.SEQUENCE_NUMBER not in annotations:
        return {}
    # How often the backlog handed it out is nobody's business at home.
    header = apart.header()[: sections.FIRST_ACQUIRER]
    known = any(value not in (None, False) for value in header)
    theirs = {key: value for key, value in annotations.items() if key not in _STAMPS}
    return {HEADER: header if known else [], ANNOTATIONS: theirs}


def _with_time_to_live(header: list[Any], milliseconds: int) -> list[Any]:
    header = header + [None] * (sections.TIME_TO_LIVE + 1 - len(header))
    header[sections.TIME_TO_LIVE] = UInt(milliseconds)
    return header


@_of_our_own
def id_of(message: bytes) -> Any:
    """The message id of an encoded message, of whichever type it is; None if there is none."""
    return Sections(message).fields()[MESSAGE_ID]


@_of_our_own
def properties_of(message: bytes) -> Face:
    """Those that decide whether an entity takes it."""
    fields = Sections(message).fields()
    return Face(fields[MESSAGE_ID], fields[CONTENT_TYPE], fields[GROUP_ID])


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


@_of_our_own
def place_of(message: bytes | Sections) -> tuple[str, int, int] | None:
    """``part_of`` for an encoded message."""
    apart = message if isinstance(message, Sections) else Sections(message)
    return part_of(apart.application())


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


def _seal(apart: Sections, path: str, limit: int) -> list[bytes]:
    fields = apart.fields()
    content = apart.joined()
    if fields[MESSAGE_ID] is None:
        fields[MESSAGE_ID] = str(uuid4())
        content = apart.joined({PROPERTIES: fields})
    message_id = fields[MESSAGE_ID]
    checksum = UInt(zlib.crc32(content))
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
    fields: list[Any] = [None] * FIELDS
    fields[MESSAGE_ID], fields[CONTENT_TYPE] = message_id, Symbol(SEALED_CONTENT_TYPE)
    head = section(PROPERTIES, encode_list(fields)) + section(APPLICATION, encode_map(properties))
    return head + section(DATA, encode_binary(content))


def assemble(parts: Iterable[bytes]) -> tuple[str, bytes]:
    """The destination, and the message that the backlog messages ``parts`` were cut from."""
    return joined(parts)[:2]


@_of_our_own
def joined(parts: Iterable[bytes | Sections]) -> Unwrapped:
    """``opened`` for a message that is in several parts."""
    found: dict[int, bytes] = {}
    seal: dict[str, Any] = {}
    groups: set[tuple[str, int]] = set()
    for part in parts:
        apart = _apart(part)
        seal = {_text(key): value for key, value in apart.application().items()}
        place = part_of(seal)
        if place is None:
            raise EnvelopeError("one of the messages is not a part")
        group, index, count = place
        groups.add((group, count))
        found[index] = _content(apart)
    if len(groups) != 1:
        raise EnvelopeError(f"the parts are of {len(groups)} messages; give those of one")
    (_, count), *_ = groups
    if len(found) != count:
        raise EnvelopeError(f"only {len(found)} of {count} parts are there")
    content = b"".join(found[index] for index in range(count))
    return _found(home_of(seal).path, _open(seal, content))


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


def _found(path: str, message: bytes) -> Unwrapped:
    """As ``_read``, of bytes that came from elsewhere as they are."""
    Sections(message)
    return _read(path, message)


def _read(path: str, message: bytes) -> Unwrapped:
    """The message, if all of it but its body can be read, and its sections are in order."""
    try:
        parsed = Message.parse(message)
    except CodecError as error:
        raise EnvelopeError(f"this is not a message that can be sent: {error}") from error
    return Unwrapped(path, message, parsed.properties.message_id, parsed.ttl_ms)


def _apart(message: bytes | Sections) -> Sections:
    return message if isinstance(message, Sections) else Sections(message)


def _fits_aliases(apart: Sections) -> bool:
    if len(apart.raw(APPLICATION)) > _PROPERTIES_ROOM:
        return False
    return not RESERVED & apart.application().keys()


def _content(apart: Sections) -> bytes:
    """The content of the one data section of a sealed message."""
    try:
        items = data_items(apart.body)
    except CodecError:
        items = []
    if len(items) != 1:
        raise EnvelopeError("a sealed message must have one binary body")
    return items[0]
