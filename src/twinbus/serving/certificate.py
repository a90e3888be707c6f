"""A certificate for TLS where the user brings none: self-signed, made once, kept with the data.

Clients trust it by name: `connection_verify="<data folder>/certificate.pem"`.
"""

from __future__ import annotations

import datetime
import fcntl
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twinbus.processes import write_private

YEARS = 10


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


def self_signed(folder: Path) -> tuple[Path, Path]:
    """The folder's certificate and key, made now if they are not there."""
    certificate, key = folder / "certificate.pem", folder / "certificate-key.pem"
    with _alone(folder):
        if not (certificate.exists() and key.exists()):
            certificate_pem, key_pem = _generate()
            write_private(key, key_pem.decode())
            certificate.write_bytes(certificate_pem)
    return certificate, key


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two brokers that share a folder must not each write half of it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _generate() -> tuple[bytes, bytes]:
    # Imported here: it takes a tenth of a second, and most starts find the certificate made.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Twinbus")])
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [
        x509.DNSName(host) for host in dict.fromkeys(("localhost", socket.gethostname()))
    ]
    names += [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
