"""Synthetic clients: generated when they are loaded."""

import torch

from tardigrad.data.sets.synthetic import Synthetic, SyntheticClients


def test_client_data_is_generated_when_it_is_loaded(monkeypatch):
    drawn = []
    draw = SyntheticClients.draw

    def recorded(self, random, examples, shift):
        drawn.append(examples)
        return draw(self, random, examples, shift)

    monkeypatch.setattr(SyntheticClients, "draw", recorded)
    federation = Synthetic(clients=1_000_000, examples=12, features=5, classes=3).federation(seed=0)
    clients = federation.clients
    assert len(clients) == 1_000_000
    assert clients.examples(999_999) == 12
    assert drawn == [2000]  # the test set alone
    features, labels = clients.load(999_999)
    assert drawn == [2000, 12]
    assert features.shape == (12, 5)
    assert set(labels.tolist()) <= {0, 1, 2}
    assert torch.equal(clients.load(999_999)[0], features)
    assert not torch.equal(clients.load(0)[0], features)
    assert (federation.shape, federation.classes) == ((5,), 3)


def test_classes_are_separable():
    federation = Synthetic(clients=50, examples=40, features=20, classes=4).federation(seed=0)
    data = [federation.clients.load(c) for c in range(50)]
    features, labels = (torch.cat([d[part] for d in data]) for part in (0, 1))
    centres = torch.stack([features[labels == k].mean(0) for k in range(4)])
    test_x, test_y = federation.test
    nearest = torch.cdist(test_x, centres).argmin(1)
    assert (nearest == test_y).double().mean() > 0.9
