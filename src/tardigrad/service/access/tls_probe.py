"""Find out why a server cannot be reached. gRPC says little; a plain socket tells more."""

from __future__ import annotations

import socket
import ssl
from contextlib import closing, suppress

from cryptography import x509

from tardigrad.service.access.certificates import HOST

SECONDS = 10.0
"""The time-out of a TLS handshake."""
CONNECT_SECONDS = 2.0
"""The time-out of a connection that only finds out why a server is not reached."""
NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""OpenSSL's names for bytes that are not TLS."""
EXPIRED, NOT_YET_VALID, WRONG_NAMES, UNKNOWN_AUTHORITY = 10, 9, (62, 64), (18, 19, 20, 21)
"""Numbers of OpenSSL's verification errors; the two for names are of hosts and of IP addresses."""
MOST_NAMES = 8
"""Names of a certificate that a message lists."""


def tls_fault(address: str, authority: bytes | None) -> str | None:
    """Return in one sentence why a client that trusts this authority can never connect to HOST:PORT.

    Return None if it can connect, or if the server does not answer, which may be temporary. Without an
    authority the client does not use TLS.
    """
    host = _split(address)[0]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        if authority is None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        else:
            context.load_verify_locations(cadata=authority.decode("ascii", "ignore"))
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does
        with closing(_connect(address, context)):
            if authority is None:
                return f"{address}: the server uses TLS; leave --insecure out"
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_NAMES:
            return f"{address}: {_wrong_name(address, host)}"
        return f"{address}: {_explained(error)}"
    except ssl.SSLError as error:
        if authority is not None and error.reason in NOT_TLS:
            return (
                f"{address}: the server does not speak TLS; give the port of a server that does, or "
                "--insecure if it is meant"
            )
    except (OSError, ValueError):
        pass
    return None


def unreachable(address: str) -> str:
    """Return in one sentence why no connection to HOST:PORT can be made now; it may be temporary."""
    host, port = _split(address)
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except (socket.gaierror, UnicodeError):
        return f"the host {host} is not known; check its name and the network of this machine"
    except ConnectionRefusedError:
        return f"no server listens at {address}; check that it runs, and its host and port"
    except TimeoutError:
        return f"{address} does not answer; check its host and port, and the firewalls on the way"
    except OSError as error:
        return f"{address} cannot be reached ({error.strerror}); check the network of this machine"
    return f"the connection to {address} was lost"


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _connect(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Return a TLS connection to HOST:PORT."""
    host, port = _split(address)
    plain = socket.create_connection((host, port), timeout=SECONDS)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _explained(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message
    if error.verify_code == EXPIRED:
        return f"the server's certificate has expired ({said}); its operator must renew it"
    if error.verify_code == NOT_YET_VALID:
        return f"the server's certificate is not valid yet ({said}); is the clock of this machine right?"
    if error.verify_code in UNKNOWN_AUTHORITY:
        return "the server's certificate is not of the authority that was given; give its ca.pem as --ca"
    return f"the server's certificate cannot be trusted ({said}); ask its operator"


def _wrong_name(address: str, host: str) -> str:
    names = _certificate_names(address)
    if not names:
        return f"the server's certificate is not for {host}; use a host name that it is made out to"
    return f"the server's certificate is not for {host}; use a name that it is for: {', '.join(names)}"


def _certificate_names(address: str) -> list[str]:
    """Return the names in the server's certificate, or [] if it cannot be had."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError, ValueError, x509.ExtensionNotFound), closing(_connect(address, context)) as server:
        certificate = x509.load_der_x509_certificate(server.getpeercert(binary_form=True) or b"")
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = [name for name in found.get_values_for_type(x509.DNSName) if HOST.fullmatch(name)]
        return [*hosts, *map(str, found.get_values_for_type(x509.IPAddress))][:MOST_NAMES]
    return []
