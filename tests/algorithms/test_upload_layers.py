"""Upload layers: their order, what they refuse, and steps that wait for a layer."""

import threading

import pytest
import torch
from toy_encoding import Doubling

import tardigrad as td
from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.layers import UploadLayer, Wire, check_layers, check_layers_served
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.situation import Situation
from tardigrad.core.upload import Upload
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.assembly import Assembly
from tardigrad.experiments.runs.simulation_assembly import build
from waiting_layer import WaitingLayer


def delivery(trip, version=0):
    return Accepted(Ticket(trip, trip, 0, 0.0), 1.0, version, 1.0, 1.0, False)


def upload(value):
    return Upload({"delta": torch.full((2,), float(value))}, 1, 1, 0.0)


def aggregator(*layers):
    return Aggregator(td.FedBuff(), torch.zeros(2), Situation(population=5), layers=layers)


class Noting(UploadLayer):
    """Notes when its hooks are called."""

    def __init__(self, name, calls):
        self.name, self._calls = name, calls

    def extras(self, situation):
        return {self.name: 1}

    def add(self, buffer, delivery, upload, start):
        self._calls.append(f"{self.name} add")
        buffer.extras[self.name] += 1
        return upload

    def closed(self, buffer, version):
        self._calls.append(f"{self.name} closed {version}")

    def release(self, buffer, total):
        self._calls.append(f"{self.name} release {float(buffer.extras[self.name]):g}")
        return total

    def moved(self, buffer, total):
        self._calls.append(f"{self.name} moved")
        return {self.name: 1.0}


def test_layers_act_from_the_bottom_to_the_top():
    calls = []
    values = aggregator(Noting("low", calls), Noting("high", calls))
    values.add(delivery(0), upload(1), torch.zeros(2))
    values.add(delivery(1), upload(1), torch.zeros(2))
    assert values.step() == {"low": 1.0, "high": 1.0}
    assert calls == [
        "low add", "high add", "low add", "high add", "low closed 0", "high closed 0",
        "low release 2", "high release 2", "low moved", "high moved",
    ]  # fmt: skip
    calls.clear()
    values.add(delivery(2), upload(1), torch.zeros(2))
    values.step()
    assert "low release 1" in calls, "extras begin at zero in every buffer"


def test_toy_encoding_changes_uploads_on_both_sides_and_not_the_model():
    layer, plain, encoded = Doubling(), aggregator(), aggregator(Doubling())
    for trip in range(3):
        one = upload(trip + 1)
        plain.add(delivery(trip), one, torch.zeros(2))
        encoded.add(delivery(trip), layer.client(one, None, {}), torch.zeros(2))
    assert plain.step() == encoded.step()
    assert torch.equal(plain.state["model"], encoded.state["model"])


class OnlySums(UploadLayer):
    name = "mask"
    needs_only_sums = True
    needs_common_scale = True


def test_combinations_that_cannot_work_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"fedasync looks at every upload by itself.*the mask"):
        Aggregator(td.FedAsync(), torch.zeros(2), Situation(population=5), layers=[Doubling(), OnlySums()])
    with pytest.raises(ConfigError, match="the mask adds up integers and needs an encoding"):
        aggregator(OnlySums())
    with pytest.raises(ConfigError, match="the mask adds up integers"):
        aggregator(OnlySums(), Doubling())
    check_layers([Doubling(), OnlySums()], only_sums=True, algorithm="fedbuff")


def test_two_layers_that_change_the_type_on_the_wire_are_refused():
    with pytest.raises(ConfigError, match="doubling and doubling both change the type"):
        aggregator(Doubling(), Doubling())


class NotedOnClient(UploadLayer):
    name = "note"
    wire = Wire(extra_bytes=24)

    def client(self, upload, task, memory):
        return upload


def test_server_refuses_a_client_half_that_its_clients_are_not_told_of():
    told = NotedOnClient()
    check_layers_served([told, OnlySums()], told=[told])
    with pytest.raises(ConfigError, match="the note changes uploads on the client"):
        check_layers_served([told], told=[])
    short = Doubling()
    with pytest.raises(ConfigError, match="sends uploads as float16, and a server receives float32"):
        check_layers_served([short], told=[short])


def test_extra_bytes_of_a_layer_are_counted_for_each_upload(monkeypatch):
    config = td.Config(
        data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(4,)),
        pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=6),
    )  # fmt: skip
    plain = build(config)
    monkeypatch.setattr(Assembly, "aggregator", with_layer(Assembly.aggregator, NotedOnClient()))
    noted = build(config)
    for simulation in (plain, noted):
        list(simulation.engine.run())
    assert noted.engine.bytes == plain.engine.bytes + 6 * 24
    assert torch.equal(noted.model, plain.model)


def with_layer(make, layer):
    """Make aggregators with one more layer."""

    def aggregator(self, *given):
        made = make(self, *given)
        made.layers += (layer,)
        return made

    return aggregator


def test_uploads_go_into_the_next_buffer_while_a_step_waits():
    layer = WaitingLayer()
    values = aggregator(layer)
    values.add(delivery(0), upload(1), torch.zeros(2))
    values.close()
    values.add(delivery(1), upload(10), torch.zeros(2))
    values.close()
    assert (values.waiting, values.ready, values.version) == (2, False, 0)
    layer.let(1)
    assert not values.ready, "steps are made in order"
    layer.let(0)
    assert values.ready
    values.step()
    assert torch.equal(values.state["model"], torch.full((2,), -1.0))
    assert values.ready
    values.step()
    assert torch.equal(values.state["model"], torch.full((2,), -11.0))
    assert not values.ready


def test_snapshot_holds_buffers_that_wait():
    first = aggregator(WaitingLayer())
    first.add(delivery(0), upload(1), torch.zeros(2))
    first.close()
    first.add(delivery(1), upload(10), torch.zeros(2))
    second = aggregator(WaitingLayer(open_to=10))
    second.restore(*first.snapshot())
    assert second.waiting == 1
    second.step()
    second.step()
    assert torch.equal(second.state["model"], torch.full((2,), -11.0))


@pytest.mark.parametrize(
    "algorithm", [td.FedBuff(momentum="ema"), td.FedAsync(), td.CA2FL()], ids=lambda a: a.kind
)
def test_simulation_waits_for_a_layer_and_has_the_same_bits(algorithm):
    """Another thread lets each step go on, once it is waited for."""
    config = td.Config(
        algorithm=algorithm, data=td.Digits(partition=td.IID(clients=8)), model=td.MLP(hidden=(4,)),
        pace=td.Asynchronous(concurrency=4), stop=td.Stop(trips=20),
        buffer=td.Buffer(size=1 if algorithm.single_upload else 3),
    )  # fmt: skip
    plain = build(config)
    straight = [event for events in plain.engine.run() for event in events]
    layer = WaitingLayer()
    waiting = build(config)
    waiting.aggregator.layers += (layer,)
    waiting.aggregator.notify(waiting.engine._layers_ready.set)
    helper = threading.Thread(target=layer.let_all_that_wait, daemon=True)
    helper.start()
    assert [event for events in waiting.engine.run() for event in events] == straight
    assert torch.equal(waiting.model, plain.model)
    assert len(layer.waited_for) == plain.engine.version
    layer.stop()
    helper.join(60)
