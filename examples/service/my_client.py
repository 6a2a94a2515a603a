"""A client of one's own: a torch module and its examples. Every client has other examples, by its name."""

import torch

from tardigrad.service.app import Client


def model():
    return torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))


def client(name):
    generator = torch.Generator().manual_seed(sum(name.encode()))
    x = torch.randn(400, 20, generator=generator)
    y = (x[:, :5].sum(dim=1) > 0).long()
    return Client(model(), examples=(x[:300], y[:300]), held_out=(x[300:], y[300:]))
