"""Clients of which some have poisoned examples: a backdoor's trigger, and its target as the label."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.draws import key
from tardigrad.data.clients import Clients, Examples, Indexed
from tardigrad.simulation.adversaries import Adversaries, AdversaryLayer, Backdoor


class PoisonedClients(Clients):
    """Wraps the clients that train: adversaries put the trigger on a share of their examples.

    Which examples depends only on the seed and the client, so that each has the same ones at every trip.
    """

    def __init__(self, clients: Clients, backdoor: Backdoor, seed: int) -> None:
        self._clients, self._seed = clients, seed
        self._trigger, self._share = backdoor.trigger, backdoor.poisoned
        self._lies = AdversaryLayer(backdoor, seed).lies

    def __len__(self) -> int:
        return len(self._clients)

    def examples(self, client: int) -> int:
        return self._clients.examples(client)

    def load(self, client: int) -> Examples:
        features, labels = self._clients.load(client)
        if not self._lies(client):
            return features, labels
        assert isinstance(features, Tensor), "checked"
        random = np.random.default_rng(key(self._seed, "poisoned examples", client))
        chosen = torch.from_numpy(random.permutation(len(labels))[: round(self._share * len(labels))])
        features, labels = features.clone(), labels.clone()
        features[chosen] = self._trigger.stamp(features[chosen])
        labels[chosen] = self._trigger.target
        return features, labels

    def indexed(self, client: int) -> Indexed:
        if self._lies(client):
            return *self.load(client), None
        return self._clients.indexed(client)

    def held_out(self, client: int) -> Examples | None:
        return self._clients.held_out(client)

    def name(self, client: int) -> int | str:
        return self._clients.name(client)


def training_clients(clients: Clients, adversaries: Adversaries | None, seed: int) -> Clients:
    """Return the clients with the examples that they train on."""
    return PoisonedClients(clients, adversaries, seed) if isinstance(adversaries, Backdoor) else clients
