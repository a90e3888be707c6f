"""The key in a connection string, and the signatures made with it. A leaf, without the SDK.

For those who speak HTTP to a namespace themselves. A key is in no ``repr``, so in no log.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote_plus, urlsplit

TOKEN_S: Final = 300


def signed_with(key: str, text: str) -> str:
    digest = hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


@dataclass(frozen=True, slots=True)
class Key:
    """``signature`` is one that was made by somebody else, instead of a key."""

    host: str
    rule: str = ""
    secret: str = field(default="", repr=False)
    signature: str = field(default="", repr=False)
    plain: bool = False  # no TLS, as the emulator

    @classmethod
    def of(cls, connection_string: str) -> Key:
        """Raises ValueError, with a sentence that has no key in it."""
        parts = {
            name.strip().lower(): value.strip()
            for name, _, value in (each.partition("=") for each in connection_string.split(";"))
        }
        host = urlsplit(parts.get("endpoint", "")).netloc
        if not host:
            raise ValueError("a connection string begins with Endpoint=sb://, and a host")
        found = cls(
            host,
            parts.get("sharedaccesskeyname", ""),
            parts.get("sharedaccesskey", ""),
            parts.get("sharedaccesssignature", ""),
            parts.get("usedevelopmentemulator", "").lower() == "true",
        )
        if not found.signature and not (found.rule and found.secret):
            raise ValueError("a connection string has SharedAccessKeyName and SharedAccessKey")
        return found

    @property
    def base(self) -> str:
        """Where the host speaks HTTP, on the port of AMQP."""
        return f"{'http' if self.plain else 'https'}://{self.host}"

    def token(self) -> str:
        """What goes into the header ``Authorization``, good for some minutes."""
        if self.signature:
            return self.signature
        resource = quote_plus(f"http://{self.host}/")
        expiry = int(time.time()) + TOKEN_S
        signature = quote_plus(signed_with(self.secret, f"{resource}\n{expiry}"))
        return (
            f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}"
            f"&skn={quote_plus(self.rule)}"
        )
