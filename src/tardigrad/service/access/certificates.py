"""Make a certificate authority and a certificate for the server, and read when certificates expire."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tardigrad.errors import ConfigError
from tardigrad.service.access.enrolment import all_or_nothing, write_secret

AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca.key"
SERVER, SERVER_KEY = "server.pem", "server.key"
FILES = (AUTHORITY, AUTHORITY_KEY, SERVER, SERVER_KEY)
DAYS = 825
"""How long certificates are valid: the longest that common TLS libraries accept."""
ALWAYS = ("localhost", "127.0.0.1")
"""Hosts that every server certificate is valid for, so that it can be tried on its own machine."""
HOST = re.compile(
    r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*(?![0-9]+$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?",
    re.ASCII | re.IGNORECASE,
)


def expiries(folder: Path) -> dict[str, float]:
    """Return when ca.pem and server.pem expire, in seconds since 1970, by file.

    If a file has several certificates, the earliest expiry is returned. Files that do not exist or are not
    certificates are left out.
    """
    found = {}
    for name in (AUTHORITY, SERVER):
        try:
            certificates = x509.load_pem_x509_certificates((folder / name).read_bytes())
        except (OSError, ValueError):
            continue
        found[name] = min(one.not_valid_after_utc.timestamp() for one in certificates)
    return found


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise a ConfigError unless a certificate can be made for all of these hosts."""
    for host in hosts:
        if _address(host) is None and (len(host) > 253 or not HOST.fullmatch(host)):
            raise ConfigError(
                f"--host {host!r}: must be an IP address or a name in DNS (other letters than a to z in "
                "their xn-- form), without a port"
            )


def needs_certificates(folder: Path) -> bool:
    """Return whether the folder has no certificate yet; raise a ConfigError if it has a key without one."""
    if any((folder / name).exists() for name in (AUTHORITY, SERVER)):
        return False
    for name in (AUTHORITY_KEY, SERVER_KEY):
        if (folder / name).exists():
            raise ConfigError(f"{folder / name}: has no certificate beside it; add that, or remove the key")
    return True


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write ca.pem (for the clients), server.pem and server.key (for the server), and ca.key (to lock away).

    The server's certificate is valid for these hosts, and for `ALWAYS`.
    """
    hosts = list(dict.fromkeys([*hosts, *ALWAYS]))
    authority_key, authority = _authority()
    server_key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    server = (
        _builder(name, authority.subject, server_key)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    with all_or_nothing() as made:
        for file, key in ((AUTHORITY_KEY, authority_key), (SERVER_KEY, server_key)):
            write_secret(folder / file, _private(key))
            made.append(folder / file)
        for file, certificate in ((AUTHORITY, authority), (SERVER, server)):
            made.append(folder / file)
            (folder / file).write_bytes(certificate.public_bytes(pem))


def _authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tardigrad authority")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _name(host: str) -> x509.GeneralName:
    address = _address(host)
    return x509.DNSName(host) if address is None else x509.IPAddress(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
