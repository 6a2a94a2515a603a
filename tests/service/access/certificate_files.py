"""Certificates for tests."""

import contextlib
import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from tardigrad.service.access.certificates import make_certificates
from tardigrad.service.server.endpoint import Endpoint
from tardigrad.service.server.listener import Server

DAY = datetime.timedelta(days=1)


def with_certificates(folder, *hosts):
    folder.mkdir(parents=True, exist_ok=True)
    make_certificates(folder, hosts)
    return folder


def signed_anew(folder, days, name="server.pem", only_for=None):
    """Sign the certificate in this file again, to expire in so many days; `only_for`: its only host."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    old = x509.load_pem_x509_certificate((folder / name).read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 400 * DAY)
        .not_valid_after(now + days * DAY)
    )
    for extension in old.extensions:
        value = extension.value
        if only_for is not None and isinstance(value, x509.SubjectAlternativeName):
            value = x509.SubjectAlternativeName([x509.DNSName(only_for)])
        builder = builder.add_extension(value, extension.critical)
    (folder / name).write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return folder


@contextlib.asynccontextmanager
async def listening(running, keys):
    """The same server once more, with the certificate in this folder; without a folder, without TLS."""
    server = Server(running.server.servicer)
    credentials = None if keys is None else Endpoint(keys=keys).credentials()
    try:
        yield await server.start("127.0.0.1:0", credentials)
    finally:
        await server.stop(0)
