"""A site with a table and no code: it trains as the same client of a simulation does, bit for bit."""

import asyncio
import csv
import random

import pytest
import torch
from service_harness import PATIENCE, Puppet, replay, serving, trace_of

import tardigrad as td
from tardigrad.data.sets.own_files import Files
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.server_assembly import build_server
from tardigrad.service.client import site_client
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.participant import Participant
from tardigrad.service.client.reconnecting import ask_run
from tardigrad.service.client.site_client import SiteTable

SITES = ("ann", "bob", "eve")
SERVED = {
    "model": td.MLP(hidden=(4,)), "pace": td.Asynchronous(concurrency=2), "buffer": td.Buffer(size=2),
    "local": td.Local(lr=0.2, batch_size=8), "stop": td.Stop(trips=16), "evaluation": {"every_steps": 2},
    "service": {"requests_per_second": 10_000, "poll_seconds": 0.2, "linger_seconds": 0.0},
}  # fmt: skip


def write_table(file, seed, count=30):
    draw = random.Random(seed)
    with file.open("w", newline="") as out:
        table = csv.writer(out, delimiter=draw.choice(",;"))
        table.writerow(("sick", "age", "ward"))
        for _ in range(count):
            age = draw.randrange(20, 90)
            known = "" if draw.random() < 0.1 else age
            table.writerow(("yes" if age > 50 else "no", known, draw.choice(("a", "b"))))


@pytest.fixture
def sites(tmp_path):
    """A folder with a table for each site, and a test table beside it."""
    (tmp_path / "sites").mkdir()
    for seed, name in enumerate(SITES):
        write_table(tmp_path / "sites" / f"{name}.csv", seed)
    write_table(tmp_path / "test.csv", 9)
    return tmp_path


def with_data(folder, **settings):
    data = Files(
        path=str(folder / "sites"), test_path=str(folder / "test.csv"), label="sick", prepare="standard"
    )
    return td.Config(**(SERVED | {"data": data} | settings))


def without_data(folder, **settings):
    """The config of a server that has only the constants."""
    found = with_data(folder).data.federation(0).preparation
    data = Files(label="sick", prepare={"constants": found})
    return td.Config(**(SERVED | {"data": data, "service": SERVED["service"] | {"population": 3}} | settings))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "scaffold", "pace": td.Synchronous(cohort=2), "buffer": {}},
        {
            "privacy": {
                "kind": "local", "noise_multiplier": 0.5, "clip": 1.0, "participations": 16, "delta": 1e-3,
                "noise_from": "seed",
            },
            "stop": td.Stop(steps=6),
        },
    ],
    ids=["fedbuff", "scaffold", "local privacy"],
)  # fmt: skip
def test_sites_with_tables_give_the_bits_of_the_simulation(sites, settings):
    config = with_data(sites, **settings)
    if "privacy" in settings:
        constants = {"constants": config.data.federation(0).preparation}
        data = Files.model_validate(config.data.model_dump() | {"prepare": constants})
        config = config.model_copy(update={"data": data})
    simulation, events, steps = trace_of(config)

    async def served():
        async with serving(config, sites) as running:
            puppets = {}
            for client, name in enumerate(SITES):
                connection = running.connect(str(client))
                await connection.__aenter__()
                app = SiteTable(sites / "sites" / f"{name}.csv").client(name, connection.declaration)
                trainer = ClientTrainer(str(client), app)
                puppets[client] = Puppet(connection, trainer, running.keys / f"{client}.state")
            try:
                assert await replay(running, simulation, steps, puppets) == events[-1]["reason"]
            finally:
                for puppet in puppets.values():
                    await puppet.connection.__aexit__(None, None, None)
            return running.coordinator.model_state.aggregator.evaluated_model

    assert torch.equal(asyncio.run(served()), simulation.model)


def test_sites_take_part_on_a_server_without_data(sites):
    async def scene():
        async with serving(without_data(sites), sites) as running:
            work = []
            for name in SITES:
                offered = await ask_run(running.address, running.signer(name), None, PATIENCE)
                declared = offered.declaration
                app = SiteTable(sites / "sites" / f"{name}.csv").client(name, declared)
                trainer, state = ClientTrainer(name, app), running.keys / f"{name}.state"
                person = Participant(running.address, running.signer(name), None, trainer, state, PATIENCE)
                work.append(person.take_part())
            assert await asyncio.wait_for(asyncio.gather(*work), PATIENCE) == ["trips"] * 3
            return running.record.events

    events = asyncio.run(scene())
    found = [event for event in events if event["event"] == "evaluation"]
    assert found
    assert all(event["federated"] for event in found)
    assert max(event["examples"] for event in found) <= 18  # a fifth of 30 rows at each site


def declaration_of(config):
    return build_server(config).plan.declaration


def test_held_out_rows_depend_on_the_name_and_are_not_trained_on(sites):
    table, text = SiteTable(sites / "sites" / "ann.csv"), declaration_of(without_data(sites))
    one, same, other = table.client("ann", text), table.client("ann", text), table.client("bob", text)
    assert (len(one.examples[1]), len(one.held_out[1])) == (24, 6)
    assert torch.equal(one.held_out[0], same.held_out[0])
    assert not torch.equal(one.held_out[0], other.held_out[0])
    whole = sorted([*one.examples[0].tolist(), *one.held_out[0].tolist()])
    assert whole == sorted([*other.examples[0].tolist(), *other.held_out[0].tolist()])


def test_private_run_has_no_held_out_rows(sites):
    privacy = {
        "kind": "participation",
        "noise_multiplier": 1.0,
        "clip": 1.0,
        "participations": 9,
        "delta": 0.01,
    }
    text = declaration_of(without_data(sites, privacy=privacy, stop=td.Stop(steps=4)))
    assert SiteTable(sites / "sites" / "ann.csv").client("ann", text).held_out is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sick,age\nyes,3\n", r"--data .*site\.csv: has no column 'ward'; the run needs it"),
        ("sick,age,ward\nyes,old,a\n", r"line 2, column 'age': not a number \(client 'ann'\)"),
        ("sick,age,ward\nperhaps,3,a\n", r"column 'sick': not one of the classes no, yes \(client 'ann'\)"),
        ("sick,age,ward\n,3,a\n", r"column 'sick': not one of the classes"),
    ],
)
def test_table_that_does_not_fit_is_refused(sites, text, message):
    (sites / "site.csv").write_text(text)
    with pytest.raises(ConfigError, match=message):
        SiteTable(sites / "site.csv").client("ann", declaration_of(without_data(sites)))


def test_table_is_refused_by_its_size_before_it_is_prepared(sites, monkeypatch):
    monkeypatch.setattr(site_client, "LARGEST_TABLE", 100)
    with pytest.raises(ConfigError, match="30 rows of 4 columns would take"):
        SiteTable(sites / "sites" / "ann.csv").client("ann", declaration_of(without_data(sites)))


def test_unknown_categories_and_missing_values_are_taken(sites):
    (sites / "site.csv").write_text("sick;age;ward;more\nyes;;c;1\nno;3,5;;2\n")
    client = SiteTable(sites / "site.csv", decimal=",").client("ann", declaration_of(without_data(sites)))
    rows = torch.cat([client.examples[0], client.held_out[0]])
    assert rows[:, 1:].tolist() == [[0, 0, 1], [0, 0, 1]]
    assert (rows[:, 0] == 0).sum() == 1


def test_server_with_another_model_declares_nothing(sites):
    module = torch.nn.Linear(4, 2)
    assert build_server(with_data(sites), module).plan.declaration == ""


@pytest.mark.parametrize("head", ["regression", "binary"])
def test_site_uses_the_head_that_the_server_declares(sites, head):
    columns = {"age": "number", "sick": ("no", "yes")}
    data = Files(label="sick", features=("age",), columns=columns)
    if head == "regression":
        data = Files(label="age", features=("size",), columns={"size": "number", "age": "number"})
    text = declaration_of(without_data(sites, data=data, head=head))
    (sites / "site.csv").write_text("sick,age,size\nyes,3.5,1\nno,7,2\n")
    client = SiteTable(sites / "site.csv").client("ann", text)
    assert (client.head.kind, client.module(client.examples[0]).shape) == (head, (1, 1))
    labels = torch.cat([client.examples[1], client.held_out[1]])
    assert sorted(labels.tolist()) == ([3.5, 7.0] if head == "regression" else [0, 1])


def test_personal_parts_of_a_site_begin_with_the_servers_values(sites):
    settings = {"local": td.Local(personal=["*.bias"])}
    run = build_server(without_data(sites, **settings))
    for _ in range(2):  # also when the site starts again
        module = SiteTable(sites / "test.csv").client("ann", run.plan.declaration).module
        own = dict(module.named_parameters())
        for name, value in run.assembly.flat.module.named_parameters():
            assert torch.equal(own[name], value)
