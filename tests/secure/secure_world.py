"""A secure run without a network: its parties, its policy, and an honest server that computes for itself."""

import itertools

import numpy as np
import torch
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import tardigrad as td
from tardigrad.privacy.releases import digest_of
from tardigrad.secure.admission import OfferedUpload
from tardigrad.secure.envelopes import Purpose, seal
from tardigrad.secure.helper_state import HelperState
from tardigrad.secure.masks import masked, new_seeds
from tardigrad.secure.policy import CodedVector, Facts, Policy
from tardigrad.service.access.enrolment import public_text
from tardigrad.service.protocol.task_settings import to_json

NUMBERS = 12
LR = 0.5


class World:
    """Server, helpers and clients of a run of FedBuff, with codes of 32 bits."""

    def __init__(self, helpers=1, seed=0, identities=None, **changes):
        self.random = np.random.default_rng(seed)
        self.server = Ed25519PrivateKey.generate()
        self.identities = identities or [Ed25519PrivateKey.generate() for _ in range(helpers)]
        self.models = {0: torch.from_numpy(self.random.normal(size=NUMBERS).astype(np.float32))}
        algorithm = td.FedBuff(lr=LR, staleness=changes.get("staleness", td.Polynomial()))
        fields = {
            "run": "run-1", "settings": to_json(algorithm, td.Local()), "bits": 32, "largest": 1000,
            "vectors": (CodedVector(name="delta/codes", length=NUMBERS),), "step": 0.001,
            "denominator": 256, "staleness": algorithm.law, "batch": 3, "least_clients": 2,
            "facts": Facts(population=8, buffer=3), "start": digest_of(self.version(0)),
            "helpers": tuple(map(public_text, self.identities)), "server": public_text(self.server),
        }  # fmt: skip
        self.policy = Policy(**(fields | changes))
        self.trips = itertools.count()
        self.uploads = {}  # by trip: version, codes and masked codes

    def version(self, number):
        """What clients download."""
        return {"model": self.models[number]}

    def open(self, folder, helper=0, **options):
        """The state of a helper that has begun the run, in this folder."""
        options = {"key_seconds": 0.0} | options
        state = HelperState(folder, self.identities[helper], public_text(self.server), **options)
        state.greet("run-1", b"", 0)
        state.begin(self.policy.to_bytes(), self.version(0))
        return state

    def reopened(self, folder, helper=0, **options):
        """The state of a helper that was stopped."""
        options = {"key_seconds": 0.0} | options
        return HelperState(folder, self.identities[helper], public_text(self.server), **options)

    def offer(self, states, client, version=0, trip=None, codes=None, purpose=()):
        """An upload with its envelopes to these helpers, which may be sealed for another purpose."""
        trip = next(self.trips) if trip is None else trip
        if codes is None:
            codes = self.random.integers(-1000, 1001, NUMBERS).astype(np.int32)
        seeds = new_seeds(len(states))
        hidden = masked({"delta/codes": torch.from_numpy(codes)}, seeds, 32)["delta/codes"].numpy()
        digest = blake3(hidden.tobytes()).digest()
        self.uploads[trip] = (version, codes, hidden.view(np.uint32))
        envelopes = []
        for state, seed in zip(states, seeds):
            key = state.key
            about = {
                "policy": self.policy.digest, "helper": state.identity, "key": key.key_id, "trip": trip,
                "version": version, "client": client, "digest": digest,
            }  # fmt: skip
            envelopes.append((key.key_id, seal(seed, key.public, Purpose(**(about | dict(purpose))).info())))
        return OfferedUpload(client, self.policy.run, trip, version, digest, tuple(envelopes))

    def filled(self, states, version=0, clients=("ann", "bob", "eve"), starts=None):
        """Admit a batch and return its trips."""
        starts = starts or [version] * len(clients)
        offers = [self.offer(states, client, start) for client, start in zip(clients, starts, strict=True)]
        for state in states:
            places = state.admit(offers)
            assert [(one.batch, one.place, one.refusal) for one in places] == [
                (version + 1, place, "") for place in range(len(clients))
            ]
        return [offer.trip for offer in offers]

    def masked_sum(self, batch, trips):
        """The weighted sum of masked codes, as the server computes it."""
        total = np.zeros(NUMBERS, np.uint32)
        for trip in trips:
            version, _, hidden = self.uploads[trip]
            total += np.uint32(self.policy.weight(batch - 1 - version)) * hidden
        return total

    def code_sum(self, batch, trips):
        """The weighted sum of codes, which nobody should know without noise."""
        found = [self.uploads[trip] for trip in trips]
        return sum(
            self.policy.weight(batch - 1 - version) * codes.astype(np.int64) for version, codes, _ in found
        )

    def stepped(self, version, total, count):
        """The step of FedBuff from a sum of codes, in numpy."""
        mean = (total.view(np.int32) * (0.001 / 256)).astype(np.float32) / np.float32(count)
        self.models[version + 1] = self.models[version] - LR * torch.from_numpy(mean)
        return self.version(version + 1)

    def round(self, states, version=0, **filling):
        """A whole batch: admitted, released, stepped and signed. Return the released sum and the receipts."""
        trips = self.filled(states, version, **filling)
        hidden = self.masked_sum(version + 1, trips)
        digest = blake3(hidden.tobytes()).digest()
        total = hidden.copy()
        for state in states:
            total -= state.close(version + 1, digest)
        new = self.stepped(version, total, len(trips))
        receipts = [state.publish(version + 1, digest_of(new), total, new) for state in states]
        return trips, total.view(np.int32), receipts
