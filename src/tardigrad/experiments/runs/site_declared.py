"""The declaration of a server for sites that bring a table and no code."""

from __future__ import annotations

import torch
from torch import nn

from tardigrad.core.draws import key
from tardigrad.data.sets.own_files import Files
from tardigrad.data.tables.preparation import Preparation
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.experiments.runs.assembly import Assembly
from tardigrad.experiments.runs.run_metrics import chosen_head
from tardigrad.learning.heads import Binary, Head, MultiClass, Regression
from tardigrad.learning.models import MLP, FedACMLP
from tardigrad.learning.start import load_start
from tardigrad.service.protocol.site_declaration import DeclaredModel, SiteDeclaration


def declared_preparation(config: Config) -> Preparation | None:
    """Return the columns that a server without data declares; None if it has data, or declares nothing."""
    if not isinstance(config.data, Files) or not config.data.remote:
        return None
    return config.data.declared(chosen_head(config))


def declared_module(config: Config, preparation: Preparation, own_model: bool) -> nn.Module:
    """Return the module of a server without data, for the columns and the target that it declares."""
    if own_model or not isinstance(config.model, MLP | FedACMLP):
        raise ConfigError(
            "model.kind: sites that bring a table build the model themselves, without code from elsewhere; "
            "use 'mlp', or leave [data] out and let clients join with --app"
        )
    declaration = _declaration(config, config.model, preparation, _table_head(chosen_head(config)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(config.seed, "model"))
        module = config.model.build((preparation.width,), declaration.outputs)
    if config.model.start is not None:
        load_start(module, config.model.start)
    return module


def site_declaration(assembly: Assembly, own_model: bool) -> str:
    """Return what a site needs besides its table, as JSON; "" if a table is not enough, because the model or
    the head is the operator's own, or not for rows of a table."""
    config, preparation = assembly.config, assembly.preparation
    model = config.model
    if own_model or not isinstance(model, MLP | FedACMLP) or preparation is None:
        return ""
    federation = assembly.federation
    if federation is not None and not isinstance(federation.head, MultiClass | Binary | Regression):
        return ""
    head = _table_head(chosen_head(config) if federation is None else federation.head)
    declaration = _declaration(config, model, preparation, head)
    return declaration.model_copy(update={"held_out": _held_out(assembly)}).to_json()


def _declaration(
    config: Config, model: MLP | FedACMLP, preparation: Preparation, head: MultiClass | Binary | Regression
) -> SiteDeclaration:
    return SiteDeclaration(
        model=DeclaredModel(kind=model.kind, hidden=model.hidden),
        preparation=preparation,
        head=head,
        seed=key(config.seed, "held out"),
        model_seed=_model_seed(config, model),
    )


def _model_seed(config: Config, model: MLP | FedACMLP) -> int | None:
    """Return the seed of the initial values that sites need, because parts of the model stay with them."""
    if not config.local.personal:
        return None
    if model.start is not None:
        raise ConfigError(
            "model.start: parts of the model stay with their site (local.personal), and a site that brings a "
            "table does not have the file with their initial values; leave one of the two out"
        )
    return key(config.seed, "model")


def _table_head(head: Head | None) -> MultiClass | Binary | Regression:
    """Return the head that sites use; raise a ConfigError if it is not for tables, or needs all labels."""
    if head is None:
        return MultiClass()
    if not isinstance(head, MultiClass | Binary | Regression):
        raise ConfigError(
            "head: sites that bring a table use 'multiclass', 'binary' or 'regression'; for another head, "
            "leave [data] out and let clients join with --app"
        )
    if getattr(head, "class_weights", None) == "balanced":
        raise ConfigError("head.class_weights: a server without data cannot count labels; give numbers")
    return head


def _held_out(assembly: Assembly) -> float:
    """Return the share of its rows that a site evaluates on: none if nobody asks for the metrics."""
    data = assembly.config.data
    assert isinstance(data, Files)
    if assembly.guarantee is not None or assembly.federation is not None:
        return 0.0
    if data.test.by == "client":
        raise ConfigError(
            "data.test.by: sites that bring a table hold out a share of their rows; use 'example'"
        )
    return data.test.share


def preparation_in(config: Config) -> Preparation:
    """Return the preparation that a config declares, gives or finds in its tables."""
    data = config.data
    if not isinstance(data, Files):
        raise ConfigError("data.kind: must be 'files', which declares the columns of tables")
    if data.remote:
        return data.declared(chosen_head(config))
    found = data.federation_for(chosen_head(config), key(config.seed, "data")).preparation
    if found is None:
        raise ConfigError("data.prepare: is not set, so there are no constants; set it to 'standard'")
    return found
