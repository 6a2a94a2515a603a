"""The example of examples/secure, typed as it stands: a server, a helper and five clients in terminals."""

import json
import os
import shutil
import signal
from pathlib import Path

from terminals import end, listening_port, plain_blocks, terminal

EXAMPLE = Path(__file__).parents[3] / "examples" / "secure"
NAMES = ("ann", "bob", "eve", "joe", "zoe")


def test_commands_of_the_secure_example_work(commands, tmp_path):
    here = tmp_path / "secure"
    shutil.copytree(EXAMPLE, here, ignore=shutil.ignore_patterns("*keys", "live", "helper", "__pycache__"))
    commands.for_shells(tmp_path)
    once, first, second, third = plain_blocks((here / "README.md").read_text())
    assert "7434" in second
    assert "7433" in third
    opened = []

    def typed(words):
        opened.append(terminal(words, here))
        return opened[-1]

    try:
        told, _ = typed(once).communicate(timeout=300)
        assert opened[0].returncode == 0, told
        helper = typed(first.replace("--out helper", "--out helper --port 0"))
        # fewer trips, ports that are free, and the server stays until all clients know of the end
        short = "serve run.toml --port 0 --set stop.trips=12 --set service.linger_seconds=300"
        server = typed(second.replace("serve run.toml", short).replace("7434", listening_port(helper)))
        clients = typed(third.replace("7433", listening_port(server)))
        told, _ = clients.communicate(timeout=300)
        assert clients.returncode == 0, told
        assert told.count("the run is over (trips)") == len(NAMES)
        assert "this run is secure: the server sees sums of at least 3 clients" in told
        for process in (server, helper):
            os.killpg(process.pid, signal.SIGTERM)
            said, _ = process.communicate(timeout=300)
            assert process.returncode == 0, said
    finally:
        for process in opened:
            end(process)
    events = [json.loads(line) for line in (here / "live" / "events.jsonl").read_text().splitlines()]
    counted = [event for event in events if event["event"] == "upload" and event["accepted"]]
    assert len(counted) == 12
    assert {event["client"] for event in counted} <= {*NAMES}
    assert [event["version"] for event in events if event["event"] == "step"] == [1, 2, 3]
    found = [event["accuracy"] for event in events if event["event"] == "evaluation"]
    assert found[-1] > found[0]
    for name in NAMES:  # every client has agreed to the policy, and kept the last receipt that it saw
        (run,) = (here / "keys" / f"{name}.state").iterdir()
        assert {"policy.json", "receipts.json"} <= {file.name for file in run.iterdir()}
