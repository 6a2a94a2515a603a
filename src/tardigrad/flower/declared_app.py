"""The declaration of a server that serves a Flower app: the arrays of the model and the config."""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, ValidationError

from tardigrad.algorithms.registry import BUILT_IN
from tardigrad.core.draws import key
from tardigrad.core.setting import Setting
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.flower.app_folder import open_app, parse_pairs
from tardigrad.flower.grid_carrier import arrays_of
from tardigrad.flower.grid_run import check_app_brings, check_no_statistics_in
from tardigrad.flower_grid.named_arrays import ArraysModule
from tardigrad.service.protocol.site_declaration import APP, LONGEST

LARGEST_MODEL = 1 << 32
"""Most numbers of a declared model."""
Size = Annotated[int, Field(ge=0, le=1 << 40)]


class DeclaredArray(Setting):
    """One array of the model."""

    name: str
    shape: tuple[Size, ...]
    dtype: str
    content: str | None = None
    """The bytes of an array that is not trained, in base64; None for one that is."""

    def array(self) -> np.ndarray:
        """Return the array; what is trained is zero, because the task brings the values."""
        if self.content is None:
            return np.zeros(self.shape, np.float32)
        return np.frombuffer(base64.b64decode(self.content), np.dtype(self.dtype)).reshape(self.shape)


class AppDeclaration(Setting):
    """All that a client needs besides its copy of the app."""

    flower: Literal[1] = 1
    """The revision of this declaration. It stands first, because `APP` looks for it."""
    arrays: tuple[DeclaredArray, ...]
    """In the order of the app."""
    run_config: dict[str, bool | int | float | str]
    """The config of the run, for the context and for messages."""
    weighs: bool = False
    """Whether uploads weigh by their examples, which the app must report then."""

    def module(self) -> ArraysModule:
        """Return a module with the declared arrays; refuse one that is too large before it is built."""
        size = sum(math.prod(declared.shape) for declared in self.arrays)
        if size > LARGEST_MODEL:
            raise ConfigError(
                f"the server declares a model of {size:,} numbers; a client takes at most {LARGEST_MODEL:,}"
            )
        try:
            return ArraysModule({declared.name: declared.array() for declared in self.arrays})
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"the server's declaration cannot be used here ({error}); is it newer?"
            ) from None


class ServedApp:
    """A Flower app to serve: its model, and what the clients are told."""

    def __init__(
        self, config: Config, folder: Path, model: str | None, run_config: str | None = None
    ) -> None:
        """`folder`: of the app. `model`: the "module:name" in it that makes the model. `run_config`: changes
        of the app's own config, as `flwr run` takes them."""
        if model is None:
            raise ConfigError(
                "--model: give the function or class of the app that makes its model, such as my_app.task:Net"
            )
        check_app_brings(config)
        if not isinstance(config.algorithm, BUILT_IN):
            raise ConfigError(
                f"algorithm.kind: {config.algorithm.name} is not built in, so that clients with a ClientApp "
                "do not have it; use AsyncStrategy"
            )
        app = open_app(folder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(config.seed, "model"))
            arrays = arrays_of(app.initial_arrays(model))
        self.module = ArraysModule(arrays)
        check_no_statistics_in(self.module, f"--model {model}")
        trained = {name for name, _ in self.module.named_parameters()}
        declaration = AppDeclaration(
            arrays=tuple(_declared(name, array, name in trained) for name, array in arrays.items()),
            run_config={**app.config, **parse_pairs(run_config, "--run-config")},
            weighs=config.buffer.weights == "examples",
        )
        self.declaration = declaration.model_dump_json(exclude_none=True)
        """For the clients, as JSON."""
        if len(self.declaration) > LONGEST:
            raise ConfigError(
                f"--model {model}: the names, and the arrays that are not floats, take "
                f"{len(self.declaration):,} characters, and at most {LONGEST:,} can be sent; leave such "
                "arrays out of the state dict (persistent=False)"
            )


def read_app_declaration(text: str) -> AppDeclaration:
    """Return the declaration of a server, which is not trusted; raise a ConfigError if it cannot be used."""
    if not text.startswith(APP):
        raise ConfigError(
            "--flower: this server does not serve a Flower app; its operator starts it with `tardigrad serve "
            "... --flower APP` (docs/flower.md)"
        )
    try:
        return AppDeclaration.model_validate_json(text)
    except (ValidationError, RecursionError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"the server's declaration cannot be used here ({said}); is it newer?") from None


def _declared(name: str, array: np.ndarray, trained: bool) -> DeclaredArray:
    content = None if trained else base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return DeclaredArray(name=name, shape=array.shape, dtype=str(array.dtype), content=content)
