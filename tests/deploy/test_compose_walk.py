"""The commands of the compose files and of the client's unit work together, here without containers."""

import re
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from deploy_files import COMPOSE, DEPLOY, compose_services, filled_in, unit_command
from prometheus_client.parser import text_string_to_metric_families
from service_harness import PATIENCE

from tardigrad.service.access.enrolment import public_text, read_key
from tardigrad.service.access.identity import own_identity
from tardigrad.service.access.new_clients import enroll_clients, make_client_keys
from tardigrad.service.monitor.metrics import EVALUATED

CLIENTS = ("ann", "bob", "eve")
HEALTH = DEPLOY / "docker" / "health.py"


class Walk:
    """Folders in place of volumes, and free ports of loopback in place of fixed ones."""

    def __init__(self, folder, commands):
        self.folder, self.commands, self.running, self.values = folder, commands, [], {}
        (folder / "config").mkdir()
        (folder / "config" / "run.toml").write_bytes((DEPLOY / "config" / "run.toml").read_bytes())
        make_client_keys(folder / "clients", CLIENTS)
        for keys in ("keys", "helper-keys"):
            for name in CLIENTS:
                public = public_text(read_key(folder / "clients" / f"{name}.key"))
                enroll_clients(folder / keys, [name], ["helper"], public)
        (folder / "config" / "helper-ca.pem").write_bytes((folder / "helper-keys" / "ca.pem").read_bytes())
        self.values["SERVER_IDENTITY"] = public_text(own_identity(folder / "keys"))
        self.values["HELPER_IDENTITY"] = public_text(own_identity(folder / "helper-keys"))

    def service(self, service, helper_port=None):
        """Start a service of a compose file."""
        volumes = {mount.split(":")[1]: mount.split(":")[0] for mount in service["volumes"]}
        words = []
        for word in service["command"]:
            word = filled_in(word, self.values.items())
            for inside, outside in {**volumes, "/config": "config"}.items():
                word = re.sub(rf"(^|=|'){inside}\b", rf"\1{self.folder / outside}", word)
            word = word.replace("=0.0.0.0", "=127.0.0.1").replace("helper:7434", f"localhost:{helper_port}")
            words.append(re.sub(r"^--metrics-port=\d+$", "--metrics-port=0", word))
        return self.start(*words, "--port=0")

    def start(self, *words):
        self.running.append(self.commands.start(*words, merged=True))
        return self.running[-1]

    def client(self, name, server, *more):
        """Start a client as its unit does."""
        table = self.folder / f"{name}.csv"
        rows = [f"{i % 7 - 3},{i % 5 - 2},{'yes' if i % 7 + i % 5 > 5 else 'no'}" for i in range(70)]
        table.write_text("\n".join(["age,pulse,returned", *rows]))
        (self.folder / "clients" / "ca.pem").write_bytes((self.folder / "keys" / "ca.pem").read_bytes())
        words = unit_command(DEPLOY / "systemd" / "tardigrad-client@.service")
        values = {"SERVER": f"localhost:{server}", "TABLE": str(table)}.items()
        paths = {
            "%i": name,
            "/etc/tardigrad/keys": str(self.folder / "clients"),
            "/var/lib/tardigrad": str(self.folder),
        }
        for old, new in paths.items():
            words = [word.replace(old, new) for word in words]
        return self.start(*(filled_in(word, values) for word in words), *more)

    def healthy(self, port, keys):
        return subprocess.run(
            [sys.executable, HEALTH, str(port), self.folder / keys / "server.pem"]
        ).returncode


def told(process, pattern):
    """Read what a process says until a line has this pattern; return its group."""
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"{pattern} was not said; the exit code is {process.wait()}")


def metrics(port, enough):
    """The samples of a server by name, as soon as they are enough."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
        found = {
            one.name: one.value for family in text_string_to_metric_families(text) for one in family.samples
        }
        if enough(found):
            return found
        time.sleep(0.2)
    raise AssertionError("not enough has happened")


@pytest.fixture
def walk(commands, tmp_path):
    walk = Walk(tmp_path, commands)
    yield walk
    for process in walk.running:
        process.kill()


@pytest.mark.parametrize("file", COMPOSE, ids=lambda file: file.name)
def test_services_work_together(walk, file):
    services = compose_services(COMPOSE[0]) | {}
    more, helper, helper_port = (), None, None
    if file.name == "secure.yaml":
        secure = compose_services(file)
        services["server"] = services["server"] | secure["server"]
        helper = walk.service(secure["helper"])
        helper_port = told(helper, r"^listening on .*:(\d+)$")
        assert walk.healthy(helper_port, "helper-keys") == 0
        more = ("--helper", walk.values["HELPER_IDENTITY"], "--least-clients", 3)
    server = walk.service(services["server"], helper_port)
    metrics_port = told(server, r"metrics on http://127.0.0.1:(\d+)/")
    port = told(server, r"^listening on .*:(\d+)$")
    assert walk.healthy(port, "keys") == 0
    assert walk.healthy(metrics_port, "keys") == 1  # nothing that speaks gRPC is there
    clients = [walk.client(name, port, *more) for name in CLIENTS]
    watch = walk.service(services["watch"])
    page = told(watch, r"^(http://\S+)$")
    if helper is not None:
        expected = {"tardigrad_helper_away_seconds"}
    else:
        expected = {f"tardigrad_evaluation_{name}" for name in EVALUATED}
    assert expected <= set(
        metrics(metrics_port, lambda found: found["tardigrad_version"] >= 3 and expected <= set(found))
    )
    with urllib.request.urlopen(page, timeout=PATIENCE) as answer:
        assert answer.status == 200
    for process in [*clients, watch, server, *([helper] if helper else [])]:
        process.send_signal(signal.SIGINT)  # the STOPSIGNAL of the image
        assert process.wait() == (130 if process in clients else 0)
