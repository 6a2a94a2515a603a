"""A model and data of one's own for a config: `net` and `clinics` are named in run.toml and compare.toml."""

import torch


def net(shape, classes, hidden=16):
    """Return the module. `shape` and `classes` come from the data, `hidden` from the config."""
    return torch.nn.Sequential(
        torch.nn.Linear(*shape, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes)
    )


def clinics(seed, number=8):
    """Return the examples of each clinic by its name, and a test set. `number` comes from the config."""
    generator = torch.Generator().manual_seed(seed)

    def patients(count):
        x = torch.randn(count, 10, generator=generator)
        return x, (x[:, 0] * x[:, 1] + x[:, 2] > 0).long()

    return {f"clinic-{i}": patients(40 + 20 * i) for i in range(number)}, patients(1000)
