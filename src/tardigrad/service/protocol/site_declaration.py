"""The declaration of a server for sites with a table and no code: the columns, the target and the model.

It is plain JSON, checked with our own classes. A client builds the model from its own code, after it has
checked how large it would be.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError
from torch import nn

from tardigrad.core.setting import Setting
from tardigrad.data.tables.preparation import Preparation
from tardigrad.errors import ConfigError
from tardigrad.learning.heads import Binary, MultiClass, Regression
from tardigrad.learning.models import MLP

LONGEST = 1 << 20
"""Most characters of a declaration."""
APP = '{"flower":'
"""Begins the declaration of a server that serves a Flower app."""
MOST_LAYERS = 100
LARGEST_MODEL = 100_000_000
"""Most parameters of a declared model."""


class DeclaredModel(Setting):
    """A model that a site without Python code can build."""

    kind: Literal["mlp", "fedac_mlp"]
    hidden: Annotated[tuple[PositiveInt, ...], Field(max_length=MOST_LAYERS)]

    def build(self, width: int, outputs: int, seed: int | None = None) -> nn.Module:
        """Return the module for rows of `width` numbers; refuse one that is too large before it is built.
        `seed`: of its initial values; None if they do not matter."""
        widths = [width, *self.hidden, outputs]
        size = sum((a + 1) * b for a, b in pairwise(widths))
        if size > LARGEST_MODEL:
            raise ConfigError(
                f"the server declares a model of {size:,} parameters; a site builds at most {LARGEST_MODEL:,}"
            )
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.manual_seed(seed)
            return MLP(hidden=self.hidden).build((width,), outputs)


DeclaredHead = Annotated[MultiClass | Binary | Regression, Field(discriminator="kind")]


class SiteDeclaration(Setting):
    """All that a site needs besides its table."""

    model: DeclaredModel
    preparation: Preparation
    head: DeclaredHead = MultiClass()
    """The loss and the metrics."""
    held_out: float = Field(default=0.0, ge=0, lt=1)
    """The share of its rows that a site evaluates on and does not train on."""
    seed: NonNegativeInt = 0
    """Decides which rows these are, together with the site's name."""
    model_seed: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    """The seed of the server's initial values, if parts of the model stay with their site; None if a site
    gets all values from the server."""

    @property
    def outputs(self) -> int:
        """The number of outputs of the model."""
        target = self.preparation.target
        classes = target.classes if target is not None else None
        return len(classes) if classes is not None and isinstance(self.head, MultiClass) else 1

    def to_json(self) -> str:
        """Return the declaration as a server sends it; raise a ConfigError if it is too long."""
        text = self.model_dump_json(exclude_none=True)
        if len(text) > LONGEST:
            raise ConfigError(
                f"data.prepare.constants: the declaration for the clients has {len(text):,} characters, and "
                f"at most {LONGEST:,} can be sent; leave out columns with many categories"
            )
        return text


def read_declaration(text: str) -> SiteDeclaration:
    """Return the declaration of a server, which is not trusted; raise a ConfigError if it cannot be used."""
    if not text:
        raise ConfigError(
            "--data: this server declares no columns, so a table alone is not enough; use --app, or ask its "
            "operator for [data] of kind 'files' and a built-in [model] (docs/service.md)"
        )
    if text.startswith(APP):
        raise ConfigError("--data: this server serves a Flower app, which trains itself; use --flower")
    if len(text) > LONGEST:
        raise ConfigError(f"the server's declaration has {len(text):,} characters, more than {LONGEST:,}")
    try:
        declaration = SiteDeclaration.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the server's declaration cannot be used here ({said}); is it newer?") from None
    target = declaration.preparation.target
    if target is None or (target.classes is None) != isinstance(declaration.head, Regression):
        raise ConfigError("the server's declaration names no target that fits its head")
    return declaration


def held_out_rows(share: float, rows: int) -> int:
    """Return how many of its rows a site holds out: at least one, but never all of them."""
    return 0 if share == 0 else min(max(1, math.floor(share * rows + 0.5)), rows - 1)
