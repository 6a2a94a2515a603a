"""The initial values of a model from a file: a state dict, or the folder of a run."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tardigrad.errors import ConfigError

IN_FOLDER = "model.safetensors"


def load_start(module: nn.Module, place: Path) -> None:
    """Set the values of a module to those of a file, or of the model in a run's folder.

    A file with the suffix .safetensors is read as such, another by `torch.load` without code. Raises a
    ConfigError that names the first difference if the file has other names or shapes than the module.
    """
    state, own = _read(place), module.state_dict()
    for name, value in own.items():
        if name not in state:
            raise ConfigError(
                f"model.start: {place} has no {name!r}, which the model has; the file has {_some(state)}"
            )
        if state[name].shape != value.shape:
            raise ConfigError(
                f"model.start: {name!r} has the shape {tuple(state[name].shape)} in {place}, but "
                f"{tuple(value.shape)} in the model"
            )
    for name in state:
        if name not in own:
            raise ConfigError(
                f"model.start: {place} has {name!r}, which the model does not have; it has {_some(own)}"
            )
    module.load_state_dict(state)


def _read(place: Path) -> dict[str, Tensor]:
    file = place / IN_FOLDER if place.is_dir() else place
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        hint = "; is the run finished?" if place.is_dir() else ""
        raise ConfigError(f"model.start: {file} does not exist{hint}") from None
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"model.start: {file} cannot be read as a state dict ({said}); save one with "
            "safetensors.torch.save_file or torch.save(module.state_dict(), ...)"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"model.start: {file} has no state dict; save module.state_dict()")
    return state


def _some(state: dict[str, Tensor]) -> str:
    return ", ".join(list(state)[:4]) + (", ..." if len(state) > 4 else "")
