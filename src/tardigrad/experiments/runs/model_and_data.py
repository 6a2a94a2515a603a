"""The module and the data of a run: made as the config says, and checked whether they fit each other."""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable, Mapping
from dataclasses import replace

import torch
from torch import nn

from tardigrad.core.draws import key
from tardigrad.data.clients import Federation, HoldingOut, given
from tardigrad.data.sets.own_data import is_own_data
from tardigrad.errors import ConfigError, TardigradError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.run_metrics import chosen_head, with_head
from tardigrad.learning.examples import described, predicted
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import Head, MultiClass
from tardigrad.learning.models import Architecture
from tardigrad.learning.models.own_model import is_own_model
from tardigrad.learning.start import load_start

log = logging.getLogger("tardigrad.experiments")


def make_federation(
    config: Config,
    clients: Mapping[Hashable, object] | None = None,
    test: object | None = None,
    head: Head | None = None,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """Return the clients' data, without the examples that each holds out for its own evaluation.

    `clients`, `test`, `head`: the caller's own, in place of those of the config.
    """
    head = chosen_head(config, head)
    if clients is not None:
        federation = given(clients, test, dtype, head)
    elif is_own_data(config.data):
        federation = config.data.federation(key(config.seed, "data"), head, dtype)
    elif config.data is not None:
        try:
            federation = config.data.federation_for(head, key(config.seed, "data"))
        except MemoryError as error:
            raise ConfigError(f"data: it does not fit into the memory of this machine ({error})") from None
    else:
        raise ConfigError("data: name a data set in the config, or give clients in Python")
    federation = with_head(federation, head, config.privacy is not None)
    if config.evaluation.held_out > 0:
        kept = HoldingOut(federation.clients, config.evaluation.held_out, key(config.seed, "held out"))
        federation = replace(federation, clients=kept)
    return federation


def make_module(config: Config, model: nn.Module | None, federation: Federation | None) -> nn.Module:
    """Return a copy of the caller's module, or build that of the config, which takes a federation unless it
    is from a file of the user's own."""
    if model is not None:
        return _copied(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(config.seed, "model"))
        if federation is None and is_own_model(config.model):
            module = config.model.make({})
        elif config.model is None or federation is None:
            raise ConfigError("model: name a model in the config, or give a torch.nn.Module in Python")
        else:
            module = _built(config.model, federation)
    if config.model.start is not None:
        load_start(module, config.model.start, config.local.batch_norm == "group_norm")
    return module


def _built(model: Architecture, federation: Federation) -> nn.Module:
    """Return the module of a config for this data."""
    try:
        return model.build_with(federation.vectors, federation.shape, federation.classes)
    except (RuntimeError, MemoryError, OverflowError) as error:  # of torch, if a layer is too large
        said = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"model: it cannot be built for examples of the shape {federation.shape}; is one of its sizes "
            f"too large? ({said})"
        ) from None


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:  # of the caller's own module
        raise ConfigError(
            f"model: it cannot be copied ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}); "
            "give a new module that was not called yet, and parametrizations.weight_norm in place of "
            "torch.nn.utils.weight_norm"
        ) from None


def check_fit(flat: FlatModule, federation: Federation) -> None:
    """Raise a ConfigError if the model does not fit the data, found with one forward pass."""
    x, labels = federation.some_examples()
    flat.module.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            flat.load(flat.shared, {})
            outputs = predicted(flat.module, federation.head, flat.prepared(x), labels)
            federation.head.loss(outputs, labels)
    except TardigradError:
        raise
    except Exception as error:
        raise ConfigError(
            f"model: it does not fit the data, whose examples are {described(x)} and whose labels are "
            f"{labels.dtype} ({type(error).__name__}: {(str(error).splitlines() or [''])[0]})"
        ) from None
    finally:
        flat.reset_buffers()  # the module may have changed them, and they are part of fingerprints
    if isinstance(federation.head, MultiClass) and federation.classes > outputs.shape[1]:
        raise ConfigError(
            f"model: it has {outputs.shape[1]} outputs, but the labels go up to {federation.classes - 1}; "
            "labels count from 0"
        )


def check_personal(flat: FlatModule, federation: Federation, config: Config) -> None:
    """Raise a ConfigError if the run could be evaluated only with personal parts that nobody has trained."""
    if flat.has_personal and federation.test is not None and config.evaluation.held_out == 0:
        raise ConfigError(
            "evaluation.held_out: parts of this model stay with their clients (local.personal or "
            "local.batch_norm), so that only clients can evaluate it, and none keeps examples for that; give "
            "a share such as 0.2, or leave the central test set out"
        )
    if flat.has_personal and federation.test is not None:
        log.warning(
            "the central test set is not used, because parts of this model stay with their clients; they "
            "evaluate it on the examples that they hold out (evaluation.held_out)",
            extra={"event": "evaluation"},
        )
