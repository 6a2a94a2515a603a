"""Ask the gRPC health service of a server or helper on this machine: PORT CERTIFICATE.

The only certificate that is trusted is the server's own, so that those of another authority do as well. The
exit code is 0 if the service answers that it serves, and 1 otherwise.
"""

import sys
from pathlib import Path

import grpc
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECONDS = 8


def serves(port: str, certificate: bytes) -> bool:
    """Return whether the service on this port says that it serves."""
    extension = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    names = [
        *extension.value.get_values_for_type(x509.DNSName),
        *extension.value.get_values_for_type(x509.IPAddress),
    ]
    name = str(names[0]).replace("*", "health")  # the certificate is checked, so any name of it will do
    credentials = grpc.ssl_channel_credentials(certificate)
    options = [("grpc.ssl_target_name_override", name)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
    return answer.status == health_pb2.HealthCheckResponse.SERVING


if __name__ == "__main__":
    try:
        healthy = serves(sys.argv[1], Path(sys.argv[2]).read_bytes())
    except (OSError, ValueError, IndexError, x509.ExtensionNotFound, grpc.RpcError) as error:
        sys.exit(f"no answer ({error})")
    sys.exit(0 if healthy else "the service does not serve")
