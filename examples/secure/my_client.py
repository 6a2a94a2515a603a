"""A client: a torch module and its examples. Here, handwritten digits chosen by the client's name."""

import torch
from sklearn.datasets import load_digits

from tardigrad import Client


def model():
    layers = torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    return torch.nn.Sequential(*layers)


def client(name):
    x, y = (torch.as_tensor(values) for values in load_digits(return_X_y=True))
    mine = torch.randperm(len(y), generator=torch.Generator().manual_seed(sum(name.encode())))[:400]
    x, y = (x[mine] / 16).float(), y[mine]
    return Client(model(), examples=(x, y))
