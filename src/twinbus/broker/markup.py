"""XML of the management API, in and out: text, values, and the one element a body holds.

What is read is trusted less than what is written. A document type is refused before the parser sees
the text, so no entity is ever expanded.

Reading is the standard library's. Writing is our own, because its tree takes more than twice as
long for a page of entities, and writes characters that no XML may have.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from twinbus.broker.refusals import AtomError, DescriptionError

SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
SERIALIZATION = "http://schemas.microsoft.com/2003/10/Serialization/"
NAMESPACES = f'xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}"'
_TYPE = f"{{{INSTANCE}}}type"
_NIL = f"{{{INSTANCE}}}nil"

Element = ElementTree.Element


_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN = re.compile(r"[\w ./:?=$~-]*", re.ASCII)
_SPECIAL = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;", "\n": "&#10;"}
)


def escape(text: str) -> str:
    """Text for an element or attribute; what XML cannot say at all becomes U+FFFD.

    A name or filter that came over AMQP may hold such a character, and one of them would
    make a whole page unreadable.
    """
    if _PLAIN.fullmatch(text):
        return text
    return _ILLEGAL.sub("\ufffd", text).translate(_SPECIAL)


def text_of(element: Element) -> str:
    return element.text or ""


def integer(text: str, what: str) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", text):
        raise DescriptionError(f"{what} must be a whole number; it is '{text[:40]}'")
    return int(text)


def boolean(text: str, what: str) -> bool:
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
    raise DescriptionError(f"{what} must be true or false; it is '{text[:40]}'")


def truth(value: bool) -> str:
    return "true" if value else "false"


# A document type stands before the root element or nowhere, so this finds every one.
_DOCTYPE = re.compile(r"(?:\s++|<!--.*?-->|<\?.*?\?>)*+<!(?!--)", re.DOTALL)


def parse(body: bytes) -> Element:
    """The description in an Atom entry, whatever it describes."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AtomError("the body is not UTF-8 text") from error
    if _DOCTYPE.match(text):
        raise AtomError("the body has a document type declaration, which is not accepted")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 - no entity can be declared: see above
    except ElementTree.ParseError as error:
        raise AtomError(f"the body is not well-formed XML: {error}") from error
    content = children(root).get("content") if local_name(root) == "entry" else None
    if content is None or len(content) != 1:
        raise AtomError("the body must be an Atom entry whose content holds one description")
    return content[0]


def local_name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def children(element: Element) -> dict[str, Element]:
    """The children that say something, by name: one marked as nil is not there."""
    return {
        local_name(child): child
        for child in element
        if child.get(_NIL, "").strip() not in ("true", "1")
    }


def type_of(element: Element) -> str:
    return element.get(_TYPE, "").rpartition(":")[2].strip()
