"""A server of a secure run that a test scripts, with its helpers' keys, so that it can lie in every way."""

import contextlib
from dataclasses import dataclass, field

import grpc
import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_harness import PATIENCE, app_of
from upload_clients import SIMULATION

import tardigrad as td
from tardigrad.core.staleness import Constant
from tardigrad.core.upload import Vectors
from tardigrad.encodings.common_grid import Grid
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.envelopes import Purpose, new_sealing_key
from tardigrad.secure.masks import SALT, weighted_masks
from tardigrad.secure.policy import CodedVector, Facts, Policy
from tardigrad.secure.receipts import FIRST, Receipt, sign_receipt
from tardigrad.service.access.enrolment import public_text
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.client.client_trainer import ClientTrainer
from tardigrad.service.client.guardrails import Guardrails
from tardigrad.service.client.participant import Participant
from tardigrad.service.protocol.refusals import Cause
from tardigrad.service.protocol.task_settings import to_json
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.v1 import service_pb2_grpc as v1_grpc
from tardigrad.service.protocol.wire import chunks, layout_of, to_wire

GRID = Grid(uploads=2)
SETTINGS = to_json(td.FedBuff(), td.Local(steps=2), encoding=GRID)
START: Vectors = {"model": SIMULATION.model.clone()}
SHAPES = [tuple(p.shape) for p in app_of(SIMULATION, 0).module.parameters()]
SEED = 11


class Helper:
    """The keys of a helper."""

    def __init__(self, post_quantum=False):
        self.key = Ed25519PrivateKey.generate()
        self.identity = public_text(self.key)
        self.key_id, self.sealing = bytes(16), new_sealing_key(post_quantum)

    def offered(self, policy):
        """The key that it offers for the run of this policy."""
        public = self.sealing.public_bytes()
        signature = self.key.sign(b"tardigrad key 1\n" + policy.digest + self.key_id + public)
        return v1.OfferedKey(key_id=self.key_id, public_key=public, signature=signature)


SERVER = Helper()


def policy_of(helpers, **changes):
    """A policy of the scripted run."""
    fields = {
        "run": "the-run", "settings": SETTINGS, "bits": GRID.bits, "largest": GRID.largest,
        "vectors": (CodedVector(name="delta", length=len(START["model"])),), "step": GRID.step,
        "denominator": GRID.denominator, "staleness": Constant(), "batch": 2, "least_clients": 2,
        "facts": Facts(population=4, buffer=2), "start": digest_of(START),
        "helpers": tuple(helper.identity for helper in helpers), "server": SERVER.identity,
    }  # fmt: skip
    return Policy(**fields | changes)


@dataclass
class Script:
    """What the server says. Without changes it is honest; a test changes what it lies about."""

    helpers: list
    policy: Policy
    signed: list = field(default_factory=list)
    """The helpers that sign the policy, if they are others."""
    tasks: list = field(default_factory=list)
    """For each task what is changed: `version`, `vectors`, `settings`, `receipts`. After the last one the
    run is over."""
    keys: list | None = None
    """What is offered, if it is not honest."""
    answers: list = field(default_factory=list)
    """The reasons for which the first deliveries do not count."""
    away: int = 0
    """How many deliveries are refused because a helper is away."""
    secure: bool = True
    joined: dict = field(default_factory=dict)
    """What is changed in the answer to Join."""

    def receipt(self, version, vectors=START, previous=None, **changes):
        """The receipts of a version that makes no change, one of each helper."""
        fields = {"run": self.policy.run, "policy": self.policy.digest.hex(), "digest": digest_of(vectors)}
        last = Receipt(**fields, version=0, previous=FIRST)
        for number in range(1, version + 1):
            last = Receipt(**fields, version=number, previous=last.hash)
        if previous is not None:
            changes["previous"] = previous
        fields = {name: getattr(last, name) for name in Receipt.__slots__} | changes
        return [sign_receipt(Receipt(**fields), helper.key) for helper in self.helpers]


class ScriptedServer(v1_grpc.FederationServicer):
    """The server."""

    def __init__(self, script):
        self.script, self.trip = script, 0
        self.headers, self.bodies, self.calls = [], [], []

    async def Join(self, request, context):
        self.calls.append("Join")
        script, policy = self.script, self.script.policy
        joined = v1.Joined(
            run=policy.run, session=b"session", settings=policy.settings,
            shapes=[v1.Shape(sizes=shape) for shape in SHAPES],
        )  # fmt: skip
        if script.secure:
            joined.policy = policy.to_bytes()
            joined.policy_signatures.extend(
                helper.key.sign(policy.digest) for helper in script.signed or script.helpers
            )
        joined.MergeFrom(v1.Joined(**script.joined))
        return joined

    async def FetchTask(self, request, context):
        self.calls.append("FetchTask")
        script = self.script
        if self.trip == len(script.tasks):
            await context.write(v1.TaskPart(over=v1.Over(reason="the script is over")))
            return
        task = script.tasks[self.trip]
        version, vectors = task.get("version", 0), task.get("vectors", START)
        receipts = task["receipts"](script) if "receipts" in task else script.receipt(version)
        header = v1.TaskHeader(
            trip=self.trip, version=version, seed=SEED, settings=task.get("settings", script.policy.settings),
            vectors=to_wire(layout_of(vectors)), evaluate=True, epoch=1,
            receipts=[
                v1.SignedReceipt(receipt=one.receipt.to_bytes(), signature=one.signature) for one in receipts
            ],
        )  # fmt: skip
        self.trip += 1
        await context.write(v1.TaskPart(header=header))
        for chunk in chunks(vectors):
            await context.write(v1.TaskPart(chunk=chunk))

    async def OfferKeys(self, request, context):
        self.calls.append("OfferKeys")
        script = self.script
        keys = [helper.offered(script.policy) for helper in script.helpers]
        return v1.OfferedKeys(keys=keys if script.keys is None else script.keys)

    async def Deliver(self, parts, context):
        self.calls.append("Deliver")
        body = b""
        async for part in parts:
            if part.WhichOneof("part") == "header":
                self.headers.append(
                    v1.UploadHeader.FromString(v1.Claim.FromString(part.header.claim).content)
                )
            body += part.chunk
        self.bodies.append(body)
        if len(self.bodies) <= self.script.away:
            trailing = (("tardigrad-why", Cause.HELPER_AWAY.value), ("tardigrad-retry-after", "0.01"))
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the helper is away; deliver again", trailing)
        reason = self.script.answers[len(self.bodies) - 1 :][:1]
        return v1.Answer(accepted=not reason, reason=reason[0] if reason else "")

    async def GiveUp(self, request, context):
        self.calls.append("GiveUp")
        return v1.GivenUp(known=True)

    def codes(self, number, client="ann"):
        """Open the envelopes of a delivery as the helpers do, and return its codes."""
        script, header = self.script, self.headers[number]
        assert len(header.envelopes) == len(script.helpers)
        seeds = []
        for helper, envelope in zip(script.helpers, header.envelopes, strict=True):
            purpose = Purpose(
                script.policy.digest, helper.identity, envelope.key_id, header.trip, header.version, client,
                header.digest,
            )  # fmt: skip
            seeds.append((helper.sealing.open(envelope.sealed, purpose.info()), [1]))
        masks = weighted_masks(seeds, script.policy.lengths, script.policy.bits)
        codes = np.frombuffer(self.bodies[number][: -SALT.length], np.uint32)
        return (codes - masks).view(np.int32)


@contextlib.asynccontextmanager
async def scripted(script):
    """Run the server; yield it and its address."""
    server, servicer = grpc.aio.server(), ScriptedServer(script)
    v1_grpc.add_FederationServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def scripted_client(
    address, state, helpers, seen=lambda line: None, patience=PATIENCE, declaration=None, **demands
):
    """A client of the scripted server, which has pinned these helpers."""
    trainer = ClientTrainer("ann", app_of(SIMULATION, 0))
    guardrails = Guardrails(helpers=tuple(helper.identity for helper in helpers), **demands)
    signer = Signer("ann", Ed25519PrivateKey.generate())
    return Participant(address, signer, None, trainer, state, patience, seen, guardrails, declaration)


def other_model():
    """Another model than the one that the run begins with."""
    return {"model": START["model"] + torch.ones_like(START["model"])}
