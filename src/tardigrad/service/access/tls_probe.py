"""Why TLS with a server fails. gRPC says only that a server is unavailable; a plain handshake says more."""

from __future__ import annotations

import socket
import ssl

SECONDS = 10.0
NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
"""What OpenSSL calls bytes that are not TLS."""
EXPIRED, NOT_YET_VALID, WRONG_NAMES = 10, 9, (62, 64)
"""Numbers of OpenSSL's verification errors; the two for names are of hosts and of IP addresses."""


def tls_fault(address: str, authority: bytes | None) -> str | None:
    """Return in one sentence why a client that trusts this authority can never connect to HOST:PORT.

    None if it could, or if the server does not answer, which may get better. Without an authority the client
    does not use TLS.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        if authority is None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        else:
            context.load_verify_locations(cadata=authority.decode("ascii", "ignore"))
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does
        with (
            socket.create_connection((host, int(port)), timeout=SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            if authority is None:
                return f"{address}: the server uses TLS; leave --insecure out"
    except ssl.SSLCertVerificationError as error:
        return f"{address}: {_explained(error, host)}"
    except ssl.SSLError as error:
        if authority is not None and error.reason in NOT_TLS:
            return (
                f"{address}: the server does not speak TLS; give the port of a server that does, or "
                "--insecure if it is meant"
            )
    except (OSError, ValueError):
        pass
    return None


def _explained(error: ssl.SSLCertVerificationError, host: str) -> str:
    said = error.verify_message
    if error.verify_code == EXPIRED:
        return f"the server's certificate has expired ({said}); its operator must renew it"
    if error.verify_code == NOT_YET_VALID:
        return f"the server's certificate is not valid yet ({said}); is the clock of this machine right?"
    if error.verify_code in WRONG_NAMES:
        return f"the server's certificate is not for {host} ({said}); use a host name that it is made out to"
    return (
        f"the server's certificate is not of the authority that was given ({said}); give its ca.pem as --ca"
    )
