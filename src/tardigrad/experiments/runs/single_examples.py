"""Minibatches of one example, with which layers such as BatchNorm cannot be trained."""

from __future__ import annotations

import torch

from tardigrad.data.clients import Federation
from tardigrad.errors import ConfigError
from tardigrad.learning.examples import mapped, predicted
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.local import Local


def check_single_examples(flat: FlatModule, federation: Federation, local: Local) -> None:
    """Raise a ConfigError if some client has a minibatch of one example and the model cannot be trained on
    one. Only models whose running statistics are trained are looked at."""
    if not flat.trains_statistics or _trains_on_one(flat, federation):
        return
    clients = federation.clients
    for client in range(len(clients)):
        if local.has_single(clients.examples(client)):
            raise ConfigError(
                f"local.batch_size: client {clients.name(client)!r} has {clients.examples(client)} examples, "
                f"so that one of its minibatches of {local.batch_size} has a single example, which BatchNorm "
                "cannot be trained on; give another batch_size, or set local.batch_norm to 'group_norm'"
            )


def _trains_on_one(flat: FlatModule, federation: Federation) -> bool:
    """Return whether the module can be called with one example while it is trained."""
    features, labels = federation.some_examples()
    one = mapped(features, lambda tensor: tensor[:1])
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            flat.train()
            predicted(flat.module, federation.head, flat.prepared(one), labels[:1])
    except ValueError:  # of torch's batch_norm
        return False
    except Exception:  # the caller's module fails in another way, which training will show
        return True
    finally:
        flat.reset_buffers()
    return True
