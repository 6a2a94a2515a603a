"""The server of a `World` that talks to real helpers, one call at a time, honestly or not."""

import contextlib

import grpc
import numpy as np
from blake3 import blake3

from tardigrad.privacy.releases import digest_of
from tardigrad.secure.receipts import SignedReceipt, read_receipt
from tardigrad.service.access.signed_requests import Signer
from tardigrad.service.protocol.v1 import helper_pb2 as helper_v1
from tardigrad.service.protocol.v1 import helper_pb2_grpc as helper_v1_grpc
from tardigrad.service.protocol.v1 import service_pb2 as v1
from tardigrad.service.protocol.wire import chunks, layout_of, to_wire


class WireServer:
    """The server's side of a connection to one helper."""

    def __init__(self, channel, world, helper=0, signer=None):
        self.world, self.identity = world, world.policy.helpers[helper]
        self.signer = signer or Signer("server", world.server)
        self.stub = helper_v1_grpc.HelperStub(channel)
        self.key = None

    def signed(self, method, content):
        """A signed request."""
        return self.signer.sign(method, content.SerializeToString())

    async def greet(self, run="run-1", receipt=b"", version=0):
        """Greet the helper, and take its session and its key."""
        content = helper_v1.GreetRequest(run=run, receipt=receipt, version=version)
        found = await self.stub.Greet(self.signed("Greet", content))
        self.signer.session, self.key = found.session, _key(found.key)
        return found

    async def begin(self, policy=None, vectors=None):
        """Begin the run."""
        vectors = self.world.version(0) if vectors is None else vectors
        content = helper_v1.BeginRequest(
            policy=policy or self.world.policy.to_bytes(), vectors=to_wire(layout_of(vectors))
        )
        parts = [helper_v1.BeginPart(header=self.signed("Begin", content))]
        found = await self.stub.Begin(
            iter([*parts, *(helper_v1.BeginPart(chunk=c) for c in chunks(vectors))])
        )
        self.key = _key(found.key)
        return found

    def delivery(self, offer, key, **changes):
        """A client's signed header of an upload, as its server has it. `key`: the client's."""
        fields = {
            "run": offer.run, "trip": offer.trip, "version": offer.version, "digest": offer.digest,
            "envelopes": [v1.Envelope(key_id=key_id, sealed=sealed) for key_id, sealed in offer.envelopes],
        }  # fmt: skip
        header = v1.UploadHeader(**(fields | changes))
        return Signer(offer.client, key).sign("Deliver", header.SerializeToString()).SerializeToString()

    async def admit(self, deliveries, check_only=False):
        """Offer uploads."""
        content = helper_v1.AdmitRequest(deliveries=deliveries, check_only=check_only)
        found = await self.stub.Admit(self.signed("Admit", content))
        self.key = _key(found.key)
        return found.places

    async def close(self, batch, masked_digest):
        """Close a batch, and return what is released for it."""
        content = helper_v1.CloseRequest(batch=batch, masked_digest=masked_digest)
        parts = [part async for part in self.stub.Close(self.signed("Close", content))]
        release = b"".join(part.chunk for part in parts[1:])
        assert parts[0].header == helper_v1.Release(
            batch=batch, length=len(release) // 4, digest=blake3(release).digest()
        )
        return np.frombuffer(release, np.uint32)

    async def publish(self, version, total, vectors, digest=None):
        """Publish a version, and return its receipt."""
        digest = bytes.fromhex(digest or digest_of(vectors))
        content = helper_v1.PublishRequest(
            version=version, digest=digest, vectors=to_wire(layout_of(vectors))
        )
        pieces = [total.tobytes(), *chunks(vectors)]
        found = await self.stub.Publish(iter([
            helper_v1.PublishPart(header=self.signed("Publish", content)),
            *(helper_v1.PublishPart(chunk=piece) for piece in pieces),
        ]))  # fmt: skip
        return self._receipted(found)

    async def abandon(self, batch):
        """Give a batch up."""
        content = helper_v1.AbandonRequest(batch=batch, reason="a test")
        return self._receipted(await self.stub.Abandon(self.signed("Abandon", content)))

    def _receipted(self, found):
        self.key = _key(found.key)
        return signed_receipt(found.receipt)

    async def round(self, version, keys, clients=("ann", "bob", "eve")):
        """A whole batch with this helper alone: return the trips, the sum, and the receipt."""
        world = self.world
        offers = [world.offer([self], client, version) for client in clients]
        places = await self.admit([self.delivery(one, keys[one.client]) for one in offers])
        assert [one.batch for one in places] == [version + 1] * len(clients), places
        trips = [offer.trip for offer in offers]
        hidden = world.masked_sum(version + 1, trips)
        total = hidden - await self.close(version + 1, blake3(hidden.tobytes()).digest())
        new = world.stepped(version, total, len(trips))
        return trips, total.view(np.int32), await self.publish(version + 1, total, new)


class _Key:
    def __init__(self, message):
        self.key_id, self.public, self.signature = message.key_id, message.public_key, message.signature


def signed_receipt(message):
    """The receipt in a message."""
    return SignedReceipt(read_receipt(message.receipt), message.signature)


def _key(message):
    return _Key(message)


@contextlib.asynccontextmanager
async def connected(running, world, helper=0, signer=None):
    """A server that is connected to a helper, and has not greeted it yet."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        yield WireServer(channel, world, helper, signer)
