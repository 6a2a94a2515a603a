"""A file with a model, data and an algorithm of one's own, for tests that name it in a config."""

OWN = '''
import torch
import tardigrad as td


class Net(torch.nn.Module):
    def __init__(self, shape, classes, hidden=8, dtype="float32"):
        super().__init__()
        self.inner = torch.nn.Linear(*shape, hidden)
        self.outer = torch.nn.Linear(hidden, classes)
        self.to(getattr(torch, dtype))

    def forward(self, x):
        return self.outer(self.inner(x).relu())


def alone(inputs=3, outputs=2):
    return torch.nn.Linear(inputs, outputs)


ready = torch.nn.Linear(3, 2)


def load(seed, clients=6, examples=20):
    generator = torch.Generator().manual_seed(seed)

    def some(count):
        x = torch.randn(count, 3, generator=generator)
        return x, (x.sum(dim=1) > 0).long()

    return {f"site-{i}": some(examples) for i in range(clients)}, some(50)


class Half(td.SumOnly):
    """Half a step."""

    share: float = 0.5

    def step(self, state, buffer):
        state["model"] = state["model"] - self.share * buffer.mean()
        return {}
'''

SETTINGS = {
    "pace": {"kind": "asynchronous", "concurrency": 3},
    "buffer": {"size": 2},
    "local": {"batch_size": 10, "lr": 0.1},
    "stop": {"trips": 24},
    "evaluation": {"every_steps": 4},
}
"""A short run with such a file."""


def own_values(file, **changes):
    """The values of a config whose model, data and algorithm are in this file."""
    places = {"model": f"{file}:Net", "data": f"{file}:load", "algorithm": f"{file}:Half"}
    return SETTINGS | places | changes
