"""Whatever arrives at the port: no crash, no change, no memory that stays. `make soak` sends 100,000."""

import asyncio
import contextlib
import gc
import logging
import math
import os
import random
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import torch
from google.protobuf.message import DecodeError
from service_harness import app_of, fetched, serving
from several_runs import serving_several

import tardigrad as td
from tardigrad.experiments.runs.simulation_assembly import build
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import (
    CHUNK,
    NAMES,
    REVISION,
    chunks,
    digest,
    layout_of,
    packed,
    received,
    to_wire,
)

MESSAGES = 100_000 if "TARDIGRAD_SOAK" in os.environ else 1000
AT_ONCE = 8
CONFIG = td.Config(
    data=td.Digits(partition=td.IID(clients=4)), model=td.MLP(hidden=(8,)),
    pace=td.Asynchronous(concurrency=2), buffer=td.Buffer(size=2), stop=td.Stop(trips=20),
    service={"requests_per_second": 1e9},
)  # fmt: skip
CASES = {
    "plain": (td.Float32(), "in memory", MESSAGES),
    "plain, in files": (td.Float32(), "in files", MESSAGES // 4),
    "int8, in files": (td.Int8(block=64), "in files", MESSAGES // 4),
    "grid": (td.Grid(bits=16), "in memory", MESSAGES // 4),
    "topk": (td.TopK(share=0.1), "in memory", MESSAGES // 4),
}
"""Encoding, how uploads are received, and how many messages are sent."""
BAD_VALUES = (math.nan, math.inf, -math.inf)
BAD_SCALES = (0.0, -1.0, 3e38, 1e-45, *BAD_VALUES)
OTHERS = ("int4", "sign", "INT8", "x" * 900)
"""Encodings that no task asks for."""
METHODS = ("Join", "FetchTask", "GiveUp", "Watch", "Deliver")


def flipped(data, chance):
    """Some bits of it are others."""
    other = bytearray(data)
    while data and other == data:
        for _ in range(chance.choice((1, 1, 1, 8))):
            other[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(other)


def cut(data, chance):
    """It ends before its end, or something follows."""
    if chance.random() < 0.5:
        return data[: chance.randrange(len(data))]
    return data + chance.randbytes(chance.choice((1, 4, 100)))


def cut_part(part, chance):
    """A part of an upload, cut so that its chunk is another one.

    What follows can be a field that protobuf does not know and leaves out: that upload is as good as before.
    """
    chunk = v1.UploadPart.FromString(part).chunk
    while True:
        other = cut(part, chance)
        try:
            same = v1.UploadPart.FromString(other).chunk == chunk
        except DecodeError:
            same = False
        if not same:
            return other


def other_types(wire, chance):
    """The same vectors with the type of one of them unknown, or another."""
    copies = [v1.Vector.FromString(one.SerializeToString()) for one in wire]
    one = chance.choice(copies)
    one.dtype = chance.choice([name for name in ("float64", "int1", "int16", "", "\0") if name != one.dtype])
    return copies if one.dtype or copies != wire else [*copies, *copies]


class Fuzzer:
    """Sends what no honest client would. `ann` and `bob` hold a ticket each, which must stay good."""

    def __init__(self, running, channel, ann, bob, chance):
        self.running, self.chance = running, chance
        self.signers = {"ann": ann._signer, "bob": bob._signer}
        self.run = ann.run
        raw = {"request_serializer": None, "response_deserializer": None}
        path = "/tardigrad.v1.Federation/"
        self.calls = {
            "Join": channel.unary_unary(path + "Join", **raw),
            "GiveUp": channel.unary_unary(path + "GiveUp", **raw),
            "FetchTask": channel.unary_stream(path + "FetchTask", **raw),
            "Watch": channel.unary_stream(path + "Watch", **raw),
            "Deliver": channel.stream_unary(path + "Deliver", **raw),
        }
        self.old = []  # messages that were taken before

    # -- messages ----------------------------------------------------------------------------------

    def header(self, name, finished, **changes):
        """An upload's header that is right but for the changes."""
        upload = finished.upload
        content = {
            "run": self.run, "trip": finished.trip, "version": finished.version,
            "vectors": to_wire(layout_of(upload.vectors)), "digest": digest(packed(upload.vectors)),
            "examples": upload.examples, "steps": upload.steps, "loss": upload.loss,
            "epoch": finished.epoch, "encoding": finished.encoding,
        }  # fmt: skip
        return v1.UploadHeader(**(content | changes)).SerializeToString()

    def signed(self, name, method, content=b""):
        return self.signers[name].sign(method, content)

    def spoilt(self, message):
        """A signed request that is not, any more."""
        chance = self.chance
        what = chance.randrange(4)
        if what == 0:
            message.signature = flipped(message.signature, chance)
        elif what == 1:
            message.claim = flipped(message.claim, chance)
        elif what == 2:
            message.signature = cut(message.signature, chance) or b"x"
        else:
            return chance.randbytes(chance.choice((0, 1, 10, 300, 5000)))
        return message.SerializeToString()

    def request(self, method):
        """A single request that must be refused."""
        chance = self.chance
        honest = self.signed(chance.choice(("ann", "bob")), method)
        if self.old and chance.random() < 0.2:
            return chance.choice(self.old)[1]
        if chance.random() < 0.1:  # signed for another call
            other = chance.choice([one for one in METHODS if one != method])
            return self.signed("ann", other).SerializeToString()
        return self.spoilt(honest)

    def body(self, finished):
        """The chunks of an upload as they should be."""
        return [v1.UploadPart(chunk=one).SerializeToString() for one in chunks(finished.upload.vectors)]

    def upload(self, name, finished):
        """The messages of an upload that must not count."""
        chance = self.chance
        body = self.body(finished)
        right = self.header(name, finished)

        def begun(content, who=name):
            return v1.UploadPart(header=self.signed(who, "Deliver", content)).SerializeToString()

        other = "bob" if name == "ann" else "ann"
        size = len(packed(finished.upload.vectors))
        wire = to_wire(layout_of(finished.upload.vectors))
        huge = [v1.Vector(name="delta", length=chance.choice((2**40, 2**63, 2**64 - 1, 0)))]
        if finished.encoding and chance.random() < 0.4:
            return self.encoded(name, finished)
        kinds = [
            lambda: [begun(right, other), *body],  # another's ticket
            lambda: [begun(right)],  # nothing follows
            lambda: [begun(right), begun(right), *body],  # the header twice
            lambda: [begun(right), *body, v1.UploadPart(chunk=b"more").SerializeToString()],
            lambda: [begun(right), *body, *body],
            lambda: [*body, begun(right)],
            lambda: [begun(right), *(flipped(one, chance) for one in body)],
            lambda: [begun(right), *(cut_part(one, chance) for one in body)],
            lambda: [begun(right), v1.UploadPart(chunk=bytes(CHUNK + 1)).SerializeToString()],
            lambda: [begun(right), *[v1.UploadPart(chunk=b"").SerializeToString()] * 3, *body],
            lambda: [begun(right), *[v1.UploadPart(chunk=bytes(4)).SerializeToString()] * (size // 4 + 9)],
            lambda: [begun(self.header(name, finished, vectors=huge)), *body],
            lambda: [begun(self.header(name, finished, vectors=[*wire, *wire])), *body],
            lambda: [
                begun(self.header(name, finished, encoding=chance.choice(("int4", "sign", "x" * 900)))),
                *body,
            ],
            lambda: [begun(self.header(name, finished, vectors=other_types(wire, chance))), *body],
            lambda: [begun(self.header(name, finished, trip=chance.choice((3, 99, 2**63)))), *body],
            lambda: [begun(self.header(name, finished, epoch=chance.choice((0, 7, 2**64 - 1)))), *body],
            lambda: [begun(self.header(name, finished, digest=chance.randbytes(32))), *body],
            lambda: [begun(self.header(name, finished, run=chance.choice(("", "other")))), *body],
            lambda: [begun(self.header(name, finished, examples=2**63)), *body],
            lambda: [begun(right[: chance.randrange(30)]), *body],
            lambda: [begun(chance.randbytes(50)), *body],
            lambda: [chance.randbytes(chance.choice((0, 1, 60, 2 * CHUNK))), *body],
            lambda: [],
        ]
        return chance.choice(kinds)()

    def encoded(self, name, finished):
        """The messages of an upload that has a right signature and digest, and wrong parts."""
        chance, vectors = self.chance, dict(finished.upload.vectors)
        part = chance.choice(list(vectors))
        vector = vectors[part] = vectors[part].clone()
        what = chance.choice(
            ("value", "value", "value", "longer", "shorter", "type", "plain", "missing", "more")
        )
        place = chance.randrange(len(vector))
        if what == "value" and vector.is_floating_point():
            vector[place] = chance.choice(BAD_SCALES if part == "delta/scales" else BAD_VALUES)
        elif what == "value":  # no code and no position
            vector[place] = torch.iinfo(vector.dtype).min
        elif what == "longer":
            vectors[part] = torch.cat([vector, vector[: chance.choice((1, 7, len(vector)))]])
        elif what == "shorter":
            vectors[part] = vector[: chance.randrange(len(vector))]
        elif what == "type":
            types = [dtype for dtype in NAMES if dtype != vector.dtype]
            vectors[part] = vector.to(chance.choice(types))
        elif what == "plain":
            vectors = {"delta": torch.zeros(sum(v.numel() for v in vectors.values()))}
        elif what == "missing":
            del vectors[part]
        else:
            vectors["delta/more"] = vector
        changed = replace(finished, upload=replace(finished.upload, vectors=vectors))
        begin = v1.UploadPart(header=self.signed(name, "Deliver", self.header(name, changed)))
        return [begin.SerializeToString(), *self.body(changed)]

    # -- sending -----------------------------------------------------------------------------------

    async def one(self, finished):
        """One thing that must come to nothing; the status that it was answered with."""
        chance = self.chance
        what = chance.choices(("bytes", "request", "upload", "cut off"), (1, 8, 10, 2))[0]
        if what == "bytes":
            return what, await self.bytes_on_the_port()
        if what == "request":
            method = chance.choice(METHODS[:4])
            call = self.calls[method](self.request(method), timeout=20)
            return method, await self.status(call, method in ("Join", "GiveUp"))
        name = chance.choice(("ann", "bob"))
        parts = self.upload(name, finished[name])
        if what == "cut off":  # at any point, but not where it was a whole one up to there
            sent = parts[: chance.randrange(len(parts) + 1)]
            sent = sent[:-1] if sent[1:] == self.body(finished[name]) else sent
            call = self.calls["Deliver"](iter(sent), timeout=20)
            await asyncio.sleep(chance.uniform(0, 0.003))
            call.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await call
            return what, None
        return what, await self.status(self.calls["Deliver"](iter(parts), timeout=20), True)

    @staticmethod
    async def status(call, single):
        try:
            await (call if single else call.read())
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await call.code()

    async def bytes_on_the_port(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.running.port)
        data = self.chance.randbytes(self.chance.choice((0, 1, 24, 1000, 100_000)))
        if self.chance.random() < 0.5:
            data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + data
        with contextlib.suppress(OSError, TimeoutError):  # it may hang up on us
            writer.write(data)
            await writer.drain()
            writer.write_eof()
            await asyncio.wait_for(reader.read(100), 5)
        writer.close()


def resident():
    """Megabytes of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.parametrize(
    ("encoding", "where_large", "messages"), CASES.values(), ids=CASES, indirect=["where_large"]
)
def test_malformed_messages_change_nothing(encoding, where_large, messages, tmp_path, caplog):
    config = CONFIG.model_copy(update={"encoding": encoding})
    caplog.set_level(
        logging.CRITICAL, "tardigrad"
    )  # pytest would keep every line, in the memory that we look at
    simulation = build(config)
    chance = random.Random(11)

    async def fuzz(running, ann, bob):
        finished = {}
        for client, (name, connection) in enumerate((("ann", ann), ("bob", bob))):
            found = await fetched(connection)
            finished[name] = ClientTrainer(str(client), app_of(simulation, client)).train(found, {})
        coordinator = running.coordinator
        before = coordinator.run_state.state(), coordinator._store.entries(0)
        async with grpc.aio.insecure_channel(running.address) as channel:
            fuzzer = Fuzzer(running, channel, ann, bob, chance)
            joining = v1.JoinRequest(revision=REVISION).SerializeToString()
            taken = ann._signer.sign("Join", joining).SerializeToString()
            await fuzzer.calls["Join"](taken)
            fuzzer.old.append(("Join", taken))
            statuses, sizes = {}, []

            async def some(count):
                for _ in range(count):
                    what, status = await fuzzer.one(finished)
                    statuses.setdefault(status, what)

            for _ in range(10):
                await asyncio.gather(*(some(messages // (10 * AT_ONCE)) for _ in range(AT_ONCE)))
                sizes.append(resident())
        assert grpc.StatusCode.OK not in statuses
        assert grpc.StatusCode.UNKNOWN not in statuses  # how gRPC says that a handler has crashed
        assert (coordinator.run_state.state(), coordinator._store.entries(0)) == before
        while running.server.servicer.reception.memory.used or coordinator.busy:
            await asyncio.sleep(0.05)
        assert list((tmp_path / "uploads").iterdir()) == []
        assert sizes[-1] - sizes[2] < 40
        for name, connection in (("ann", ann), ("bob", bob)):
            assert (await connection.deliver(finished[name])).accepted
        assert coordinator.run_state.book.version == 1
        assert not coordinator.ended.done()

    async def scene():
        async with (
            serving(config, tmp_path) as running,
            running.connect("ann") as ann,
            running.connect("bob") as bob,
        ):
            await fuzz(running, ann, bob)

    asyncio.run(scene())


def test_malformed_messages_to_a_server_with_several_runs_change_nothing(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL, "tardigrad")
    simulation, chance = build(CONFIG), random.Random(13)

    async def scene():
        async with (
            serving_several(tmp_path, {"heart": CONFIG, "lung": CONFIG}) as running,
            running.connect("ann", "heart") as ann,
            running.connect("bob", "lung") as bob,
            grpc.aio.insecure_channel(running.address) as channel,
        ):
            running.port = int(running.address.split(":")[1])
            finished = {}
            for client, (name, connection) in enumerate((("ann", ann), ("bob", bob))):
                found = await fetched(connection)
                finished[name] = ClientTrainer(str(client), app_of(simulation, client)).train(found, {})
            coordinators = [run.coordinator for run in running.runs.values()]
            before = [(one.run_state.state(), one._store.entries(0)) for one in coordinators]
            fuzzer = Fuzzer(running, channel, ann, bob, chance)
            right, statuses = fuzzer.header, {}

            def header(name, finished, **changes):  # bob's are of the other run
                return right(name, finished, **({"run": bob.run} if name == "bob" else {}) | changes)

            def signed(name, method, content=b""):  # sometimes with a session of the other run, or of none
                signer = fuzzer.signers[name]
                session = signer.session
                others = (ann._signer.session, bob._signer.session, b"", chance.randbytes(16), bytes(900))
                if chance.random() < 0.3:
                    signer.session = chance.choice([other for other in others if other != session])
                message = signer.sign(method, content)
                signer.session = session
                return message

            fuzzer.header = header
            for _ in range(MESSAGES // 2):
                fuzzer.signed = signed if chance.random() < 0.5 else Fuzzer.signed.__get__(fuzzer)
                what, status = await fuzzer.one(finished)
                statuses.setdefault(status, what)
            assert grpc.StatusCode.OK not in statuses
            assert grpc.StatusCode.UNKNOWN not in statuses  # how gRPC says that a handler has crashed
            assert [(one.run_state.state(), one._store.entries(0)) for one in coordinators] == before
            while any(run.calls or run.coordinator.busy for run in running.runs.values()):
                await asyncio.sleep(0.05)
            for name, connection in (("ann", ann), ("bob", bob)):
                assert (await connection.deliver(finished[name])).accepted
            assert not any(one.ended.done() for one in coordinators)

    asyncio.run(scene())


def test_a_part_is_read_as_protobuf_reads_it():
    chance = random.Random(5)
    sound = [v1.UploadPart(chunk=chance.randbytes(n)).SerializeToString() for n in (0, 1, 127, 128, 70_000)]
    sound.append(v1.UploadPart(header=v1.Signed(claim=b"claim")).SerializeToString())
    for number in range(5000):
        data = chance.choice(sound)[: chance.choice((3, 200, 100_000))]
        data = data if number < 100 else chance.choice((flipped, cut))(data, chance)
        try:
            theirs = v1.UploadPart.FromString(data)
        except DecodeError:
            theirs = v1.UploadPart()
        ours = received(data)
        assert (v1.UploadPart(chunk=bytes(ours)) if isinstance(ours, memoryview) else ours) == theirs
    assert isinstance(received(sound[-2]), memoryview)
    assert bytes(received(sound[3])) == v1.UploadPart.FromString(sound[3]).chunk
