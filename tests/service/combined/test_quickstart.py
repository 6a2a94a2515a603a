"""The quickstart of examples/service, typed as it stands: two terminals, three clients."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import end, listening_port, plain_blocks, terminal

from tardigrad.service.server.service_settings import ServiceSettings

EXAMPLE = Path(__file__).parents[3] / "examples" / "service"
DOCS = Path(__file__).parents[3] / "docs"


def test_the_documents_are_complete():
    text = (DOCS / "service.md").read_text()
    assert [name for name in ServiceSettings.model_fields if f"| `{name}` |" not in text] == []
    code = (EXAMPLE / "my_client.py").read_text().split('"""', 2)[2].strip()
    assert code in text
    commands = plain_blocks((EXAMPLE / "README.md").read_text())
    assert len(commands) == 2
    assert plain_blocks(text)[:2] == commands


@pytest.mark.parametrize(
    "words", [["-m", "tardigrad"], [str(Path(sys.executable).parent / "tardigrad")]], ids=["module", "script"]
)
def test_command_is_installed(words):
    told = subprocess.run([sys.executable, *words, "--help"], capture_output=True, text=True)
    assert "serve" in told.stdout, told.stderr


def test_commands_of_the_quickstart_work(commands, tmp_path):
    here = tmp_path / "service"
    shutil.copytree(EXAMPLE, here, ignore=shutil.ignore_patterns("keys", "live", "__pycache__"))
    commands.for_shells(tmp_path)
    first, second = plain_blocks((here / "README.md").read_text())
    assert "7433" in second
    # fewer trips, a port that is free, and the server stays until all clients know of the end
    short = "serve run.toml --port 0 --set stop.trips=15 --set service.linger_seconds=300"
    server = terminal(first.replace("serve run.toml", short), here)
    clients = None
    try:
        clients = terminal(second.replace("7433", listening_port(server)), here)
        told, _ = clients.communicate(timeout=300)
        assert clients.returncode == 0, told
        assert told.count("the run is over (trips)") == 3
        os.killpg(server.pid, signal.SIGTERM)
        said, _ = server.communicate(timeout=300)
        assert server.returncode == 0, said
        assert "tardigrad show live" in said
    finally:
        end(server)
        if clients is not None:
            end(clients)
    assert (here / "live" / "model.safetensors").exists()
    assert not (here / "live" / "journal.sqlite").exists()
