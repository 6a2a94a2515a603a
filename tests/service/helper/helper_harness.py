"""A real helper, in this process or in one of its own, for tests of secure runs."""

import contextlib
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tardigrad.secure.helper_state import HelperState
from tardigrad.secure.secure_settings import HelperAddress
from tardigrad.service.access.enrolment import LIST, public_text
from tardigrad.service.access.identity import own_identity
from tardigrad.service.access.new_clients import add_clients
from tardigrad.service.helper.helper_lifecycle import listening_helper
from tardigrad.service.helper.helper_rpc import HelperServicer
from tardigrad.service.server.endpoint import Endpoint


@dataclass
class RunningHelper:
    """A helper that listens on a port of this machine, without TLS."""

    port: int
    identity: str
    """Its public key in base64."""
    folder: Path
    keys: Path
    state: HelperState | None = None
    """What it knows, if it is in this process."""
    servicer: HelperServicer | None = None
    """Its calls, if it is in this process."""
    process: subprocess.Popen | None = None

    @property
    def address(self):
        """Its row in the secure table of a config."""
        return HelperAddress(address=f"127.0.0.1:{self.port}", identity=self.identity)

    def enroll(self, clients):
        """Enroll clients with the helper: keys (private or public) by name."""
        add_clients(self.keys / LIST, {name: public_text(key) for name, key in clients.items()})


def prepared(folder, clients=()):
    """Make the keys of a helper in this folder, and its list of clients: keys by name. Return its identity,
    which a config needs before the helper runs."""
    keys = folder / "helper-keys"
    identity = own_identity(keys)
    if not (keys / LIST).exists():
        (keys / LIST).touch()
        add_clients(keys / LIST, {name: public_text(key) for name, key in dict(clients).items()})
    return public_text(identity)


@contextlib.asynccontextmanager
async def running_helper(folder, server: Ed25519PrivateKey, clients=(), port=0, **options):
    """A helper in this process. `server`: the server's identity, private or public. `clients`: keys by name.
    `options`: of `HelperState`; keys rotate at every release unless `key_seconds` is given.

    Left and entered again with the same folder, it is a helper that was stopped and started."""
    identity, server = prepared(folder, clients), public_text(server)
    options = {"key_seconds": 0.0} | options
    keys, out = folder / "helper-keys", folder / "helper"
    with HelperState(out, own_identity(keys), server, **options) as state:
        endpoint = Endpoint(port=port, keys=keys, insecure=True)
        async with listening_helper(state, endpoint, server) as (servicer, port):
            yield RunningHelper(port, identity, out, keys, state, servicer)


@contextlib.contextmanager
def helper_process(folder, server: Ed25519PrivateKey, clients=(), port=0, commands=None, words=()):
    """A helper in a process of its own, by the command; it is killed at the end if it still runs.

    `commands`: the fixture of the same name, which starts processes faster. `words`: more options."""
    identity = prepared(folder, clients)
    keys, out = folder / "helper-keys", folder / "helper"
    line = [
        "helper", "--out", out, "--keys", keys, "--server", public_text(server), "--port", port, "--insecure",
        *words,
    ]  # fmt: skip
    if commands is not None:
        process = commands.start(*line)
    else:
        process = subprocess.Popen(
            [sys.executable, "-m", "tardigrad", *map(str, line)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    try:
        while "listening on" not in (said := process.stdout.readline()):
            assert said, process.stderr.read()
        yield RunningHelper(int(said.rpartition(":")[2]), identity, out, keys, process=process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
