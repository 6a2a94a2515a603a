"""Training on Ray: what only this executor has. `test_contract` has the rest."""

import contextlib
import inspect
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

import own_code_file
import tardigrad as td
from observers import InterruptAfter
from tardigrad.algorithms.algorithm import Rule
from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.upload import Task
from tardigrad.data.clients import Given
from tardigrad.experiments.config.reading import parse_config
from tardigrad.experiments.runs.simulation_assembly import assemble_simulation, training_parts
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import MultiClass
from tardigrad.learning.local import Trainer
from tardigrad.simulation.executors import dispatch
from tardigrad.simulation.executors.ray import session, workers
from tardigrad.simulation.executors.ray.actor import Actor, RayOrder
from tardigrad.simulation.executors.ray.kit import kit_size, pack, pack_kit, unpack, unpack_kit
from tardigrad.simulation.executors.ray.session import RaySession
from tardigrad.simulation.executors.ray.workers import RayWorkers, ray_executor

try:
    import ray
except ImportError:
    ray = None

needs_ray = pytest.mark.skipif(ray is None, reason="Ray is not installed: pip install '.[ray]'")

SETTINGS = {
    "pace": td.Asynchronous(concurrency=40),
    "local": td.Local(batch_size=8, lr=0.1),
    "stop": td.Stop(trips=300),
    "evaluation": td.Evaluation(every_steps=20),
}


def wait_for(what, seconds=300.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


# -- the same bits ---------------------------------------------------------------------------------


@needs_ray
@pytest.mark.parametrize("algorithm", BUILT_IN, ids=lambda algorithm: algorithm.__name__)
def test_every_algorithm_has_the_bits_of_one_process(warm_ray, algorithm):
    settings = {
        "algorithm": algorithm(),
        "data": td.Digits(partition=td.IID(clients=40)),
        "model": td.MLP(hidden=(8,)),
        "local": td.Local(batch_size=16, lr=0.02),
        "stop": td.Stop(trips=60),
        "evaluation": td.Evaluation(every_trips=60),
        "delay": td.HalfNormal(give_up=0.02),
    }
    if algorithm is td.SGD:
        settings |= {"data": td.Digits(partition=td.Central()), "local": td.Local(batch_size=8, steps=3)}
    assert td.run(workers="ray:2", **settings).model_sha256 == td.run(**settings).model_sha256


@needs_ray
def test_own_clients_dropout_and_versions_in_the_object_store(warm_ray, tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 1024), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(1024, 3)
    )
    clients = {f"client {i}": (torch.randn(16, 20), torch.randint(3, (16,))) for i in range(60)}
    given = {"model": model, "clients": clients, "test": clients["client 0"], **SETTINGS}
    seen = []
    publish = RayWorkers.publish
    monkeypatch.setattr(
        RayWorkers, "publish", lambda self, *a: (publish(self, *a), seen.extend(self._versions.values()))[0]
    )
    expected = td.run(**given)
    with pytest.raises(KeyboardInterrupt):  # stopped in one process, resumed on Ray
        td.run(out=tmp_path / "run", observers=(InterruptAfter(150),), **given)
    resumed = td.run(workers="ray:2", out=tmp_path / "run", resume=True, **given)
    assert resumed.model_sha256 == expected.model_sha256
    assert resumed.history == expected.history
    assert seen
    assert all(isinstance(version, ray.ObjectRef) for version in seen)


# -- workers that do not start ---------------------------------------------------------------------


class KillsItsReader:
    """An object that kills the process that unpickles it."""

    def __reduce__(self):
        return eval, ("__import__('os').kill(__import__('os').getpid(), 9)",)


@needs_ray
def test_a_worker_that_dies_while_it_loads_its_kit_again_and_again(local_ray, monkeypatch):
    monkeypatch.setattr(dispatch, "TRIES", 2)
    monkeypatch.setattr(workers, "pack_kit", lambda *_: (ray.cloudpickle.dumps(KillsItsReader()), []))
    with pytest.raises(td.RunError, match=r"a worker died while it started, 2 times \("):
        td.run(workers="ray:1", **SETTINGS)


@needs_ray
def test_a_worker_that_cannot_build_its_trainer_is_named_with_the_reason(warm_ray, monkeypatch):
    monkeypatch.setattr(workers, "pack_kit", lambda *_: (b"no pickle", []))
    with pytest.raises(td.RunError, match=r"a Ray worker could not get ready: .*[Uu]npickl"):
        td.run(workers="ray:1", **SETTINGS)


@needs_ray
def test_a_worker_on_another_platform_is_refused(warm_ray, monkeypatch):
    monkeypatch.setattr(workers, "platform", lambda: "torch 1.0 with an abacus")
    with pytest.raises(
        td.RunError, match=r"a Ray worker runs on torch .*, and this process on torch 1.0 with"
    ):
        td.run(workers="ray:1", **SETTINGS)


@needs_ray
def test_a_cluster_where_no_cpu_is_free(local_ray, monkeypatch):
    monkeypatch.setattr(workers, "START_SECONDS", 1.0)
    reserved = ray.util.placement_group([{"CPU": 2}])
    assert reserved.wait(300)
    try:
        with pytest.raises(
            td.RunError, match=r"no Ray worker has started in 1 seconds; .* 2 CPUs, 0 of them"
        ):
            td.run(workers="ray:1", **SETTINGS)
    finally:
        ray.util.remove_placement_group(reserved)
        wait_for(lambda: ray.available_resources().get("CPU") == 2)


@needs_ray
def test_a_cluster_without_cpus(local_ray, monkeypatch):
    monkeypatch.setattr(RaySession, "cpus", 0)
    with pytest.raises(td.ConfigError, match="the cluster offers no CPUs; start its nodes with --num-cpus"):
        td.run(workers="ray:1", **SETTINGS)


# -- clusters --------------------------------------------------------------------------------------

OWN = """
import sys
import torch
import tardigrad as td
from pydantic import PositiveFloat
from tardigrad.simulation.executors.ray import session, workers as ray_workers

session.JOIN_SECONDS = ray_workers.START_SECONDS = 500  # a busy machine may be slow

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(64, 10)
    def forward(self, x):
        return self.layer(x.flatten(1))

class Mine(td.FedBuff):
    factor: PositiveFloat = 2.0
    def rule(self, task, memory, lr):
        return super().rule(task, memory, lr * self.factor)

class Watch:
    def begin(self, config, history): pass
    def end(self): pass
    def see(self, events):
        if any(event.kind == "step" and event.version == 5 for event in events):
            print("running", flush=True)

for workers in (sys.argv[1], 0):
    own = {"model": Net(), "algorithm": Mine()}
    result = td.run(stop=td.Stop(trips=int(sys.argv[2])), workers=workers, observers=(Watch(),), **own)
    print(result.model_sha256)
"""


@needs_ray
def test_a_cluster_is_joined_and_left_by_a_program_with_its_own_model_and_algorithm(local_ray, tmp_path):
    script = tmp_path / "own.py"
    script.write_text(OWN)
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, str(script), f"ray:{address}", "40"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    here, there = done.stdout.split()
    assert here == there
    wait_for(lambda: ray.available_resources().get("CPU") == 2)  # it goes on, and nobody is left on it


@needs_ray
def test_after_an_interrupt_nothing_of_a_ray_of_ones_own_is_left(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(OWN)
    temporary = Path(tempfile.mkdtemp(prefix="ours"))  # a short path: Ray has sockets in there
    process = subprocess.Popen(
        [sys.executable, str(script), "ray:1", "1000000000"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True, env=os.environ | {"TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "running\n"
        assert len(session_of(process.pid)) >= 4  # itself, its worker, and what Ray itself needs
        assert list(temporary.glob("tardigrad-ray-*/session_*"))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        process.communicate(timeout=600)
        wait_for(lambda: not session_of(process.pid))
        assert list(temporary.iterdir()) == []
    finally:
        for pid in session_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(temporary, ignore_errors=True)


def session_of(leader):
    """The processes that somebody started, whatever their names."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            state, _, _, session, *_ = stat.read_text().rpartition(")")[2].split()
            if int(session) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


@needs_ray
def test_address_where_nothing_listens_is_refused():
    with pytest.raises(td.ConfigError, match=r"ray:127.0.0.1:1: the cluster cannot be joined \(.*refused"):
        session._probe("127.0.0.1:1")


@needs_ray
def test_address_that_does_not_answer_is_refused(monkeypatch):
    monkeypatch.setattr(session, "JOIN_SECONDS", 3)
    with socket.create_server(("0.0.0.0", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(
            td.ConfigError, match=r"cannot be joined \(no answer in 3 seconds\); this machine"
        ):
            session._probe(address)


@pytest.mark.parametrize(
    "text", ["ray:0", "ray:-1", "ray:", "rays", "ray:host", "ray://host:10001", "ray:a:b"]
)
def test_a_malformed_number_or_address_of_workers_is_refused(text):
    with pytest.raises(td.ConfigError, match=rf"--workers {text}: must be ray or ray:N"):
        ray_executor(text, None, None)


def test_ray_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(td.ConfigError, match=r"pip install .*'\.\[ray\]'"):
        ray_executor("ray:1", None, None)


# -- what passes -----------------------------------------------------------------------------------


@needs_ray
def test_uploads_of_one_call_do_not_overwrite_each_other():
    class EndItself(Rule):
        def finish(self, end, steps, path):
            return {"model": end}

    class Careless(td.FedBuff):
        def rule(self, task, memory, lr):
            return EndItself(task, memory, lr)

    clients = Given({i: (torch.randn(8, 5), torch.randint(3, (8,))) for i in range(2)}, torch.float32)
    trainer = Trainer(FlatModule(torch.nn.Linear(5, 3)), MultiClass(), Careless(), td.Local(batch_size=4))
    start = {"model": trainer.flat.vector.clone()}
    expected = []
    for i in range(2):
        upload, _ = trainer.train(Task(i, i, 0, start), {}, clients.indexed(i), seed=i)
        expected.append(upload.vectors["model"].clone())
    assert not torch.equal(*expected)
    actor = Actor()
    actor.build(pack_kit(ray.cloudpickle, trainer, clients))
    answer = actor.train([RayOrder(i, i, 0, None, i, {}) for i in range(2)], set(), [0], pack(start))
    for trip, model in enumerate(expected):
        assert torch.equal(unpack(answer.results[trip].upload)["model"], model)


@needs_ray
def test_data_is_not_copied_by_workers():
    clients = Given({0: (torch.randn(600, 5), torch.zeros(600, dtype=torch.int64))}, torch.float32)
    module = torch.nn.Sequential(torch.nn.Linear(5, 500), torch.nn.ReLU(), torch.nn.Linear(500, 3))
    module.register_buffer("seen", torch.zeros(2000))
    trainer = Trainer(FlatModule(module), MultiClass(), td.FedBuff(), td.Local())
    module.seen.fill_(7.0)  # as a trip may leave it
    kit = pack_kit(ray.cloudpickle, trainer, clients)
    assert kit_size(kit) <= 600 * (20 + 8) + 4 * (4503 + 2000) + 8192  # everything once
    for content in kit[1]:
        content.setflags(write=False)  # as in the object store
    theirs, their_clients = unpack_kit(kit)
    places = [content.ctypes.data for content in kit[1]]
    for ours, tensor in zip(clients.load(0), their_clients.load(0)):
        assert torch.equal(ours, tensor)
        assert tensor.data_ptr() in places
    assert torch.equal(theirs.flat.vector, trainer.flat.vector)
    assert torch.equal(theirs.flat.module.seen, torch.zeros(2000))
    assert theirs.flat.module.seen.data_ptr() not in places  # what is written to is their own


def test_a_trainer_is_made_of_what_the_kit_holds():
    parts = list(inspect.signature(Trainer).parameters)
    sent = ["flat", "head", "algorithm", "local", "transform", "accept_divergence"]
    assert parts == sent, "pack_kit must send the others too"


@needs_ray
def test_object_that_cannot_be_pickled_is_named():
    clients = Given({0: (torch.randn(6, 5), torch.zeros(6, dtype=torch.int64))}, torch.float32)
    clients.file = (i for i in range(3))
    trainer = Trainer(FlatModule(torch.nn.Linear(5, 3)), MultiClass(), td.FedBuff(), td.Local())
    with pytest.raises(td.ConfigError, match=r"cannot be sent to workers \(cannot pickle 'generator' object"):
        pack_kit(ray.cloudpickle, trainer, clients)


@needs_ray
def test_code_of_an_own_algorithm_file_is_sent(commands, tmp_path):
    own = tmp_path / "mine.py"
    own.write_text("import tardigrad as td\n\nclass Mine(td.FedBuff):\n    extra: float = 3.0\n")
    config = td.Config(algorithm={"kind": f"{own}:Mine"})
    clients = Given({0: (torch.randn(6, 5), torch.zeros(6, dtype=torch.int64))}, torch.float32)
    trainer = Trainer(FlatModule(torch.nn.Linear(5, 3)), MultiClass(), config.algorithm, td.Local())
    pickled, contents = pack_kit(ray.cloudpickle, trainer, clients)
    assert contents == []  # all so small that it goes along
    (tmp_path / "kit").write_bytes(pickled)
    own.unlink()
    load = "import sys, tardigrad.simulation.executors.ray.kit as k; from pathlib import Path\n"
    load += "print(k.unpack_kit((Path(sys.argv[1]).read_bytes(), []))[0].algorithm.extra)"
    said, errors = commands.start(tmp_path / "kit", program=load).communicate()
    assert said == "3.0\n", errors


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_vectors_of_every_type_are_sent(dtype):
    values = torch.arange(12).to(dtype)
    vectors = {"flat": values, "table": values.view(3, 4).t(), "one": values[1], "none": values[:0]}
    packed = pack(vectors)
    for _, _, content in packed.values():
        content.setflags(write=False)  # as it comes from the object store
    back = unpack(packed)
    assert list(back) == list(vectors)
    for name, vector in vectors.items():
        assert back[name].dtype == dtype
        assert torch.equal(back[name], vector)


# -- the user's own code ---------------------------------------------------------------------------

UNPACK = """
import pickle, sys
from tardigrad.simulation.executors.ray.kit import unpack_kit
trainer, clients = unpack_kit(pickle.load(open(sys.argv[1], "rb")))
print(type(trainer.flat.module).__name__, type(trainer.algorithm).__name__, clients.name(1))
"""


@needs_ray
def test_the_kit_has_the_code_of_a_file_of_ones_own(commands, tmp_path):
    """A worker on another machine does not have the file."""
    file = tmp_path / "own.py"
    file.write_text(own_code_file.OWN)
    assembly = assemble_simulation(parse_config(own_code_file.own_values(file), "test"))
    parts = training_parts(assembly)
    kit = pack_kit(ray.cloudpickle, parts.trainer, assembly.clients)
    (tmp_path / "kit").write_bytes(pickle.dumps(kit))
    file.unlink()
    said, errors = commands.start(tmp_path / "kit", program=UNPACK).communicate()
    assert said.split() == ["Net", "Half", "site-1"], errors
