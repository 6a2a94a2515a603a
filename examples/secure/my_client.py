"""A client: a torch module and its examples. Here, handwritten digits chosen by the client's name."""

import torch
from sklearn.datasets import load_digits

from tardigrad import Client


def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def client(name):
    x, y = (torch.as_tensor(values) for values in load_digits(return_X_y=True))
    mine = torch.randperm(len(y), generator=torch.Generator().manual_seed(sum(name.encode())))[:400]
    x, y = (x[mine] / 16).float(), y[mine]
    return Client(model(), examples=(x[:300], y[:300]), held_out=(x[300:], y[300:]))
