"""A real client in a process of its own, which does what it reads from its input, one line at a time."""

import asyncio
import sys
from pathlib import Path

from service_harness import Puppet, app_of

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.access.enrolment import read_key
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.connection import Connection


async def main(client, key):
    connection = puppet = None
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        what, *rest = line.split()
        if what == "join":
            address, config, state = rest
            connection = Connection(address, Signer(client, read_key(key)), None)
            await connection.__aenter__()
            simulation = build(td.load_config(Path(config)))
            puppet = Puppet(connection, ClientTrainer(client, app_of(simulation, int(client))), Path(state))
            print("joined", flush=True)
        elif what == "leave":
            await connection.__aexit__(None, None, None)
            print("left", flush=True)
        elif what == "fetch":
            print(await puppet.fetch(), flush=True)
        else:
            await getattr(puppet, what)(int(rest[0]))
            print("done", flush=True)


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
