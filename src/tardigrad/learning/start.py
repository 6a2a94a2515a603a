"""The initial values of a model from a file: a state dict, or the folder of a run."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tardigrad.errors import ConfigError
from tardigrad.learning.flat import make_buffers_writable, saved_tensors
from tardigrad.learning.normalisation import trained_statistics

EXTRA_STATE = "_extra_state"
"""Ends the names of what `get_extra_state` adds to a state dict."""
IN_FOLDER = "model.safetensors"


def load_start(module: nn.Module, place: Path, group_norm: bool = False) -> None:
    """Set the values of a module to those of a file, or of the model in a run's folder.

    A file with the suffix .safetensors is read as such, another by `torch.load` without code. Raises a
    ConfigError that names the first difference if the file has other names, shapes or types than the module.
    A parameter with several names needs only one of them. `group_norm`: the layers of the module that have
    running statistics will be replaced by GroupNorm, so that the file may lack these.
    """
    state, own = _read(place), saved_tensors(module)
    parameters = {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)}
    held = {parameters[name]: state[name] for name in parameters if name in state}
    state |= {name: held[same] for name, same in parameters.items() if name not in state and same in held}
    if group_norm:
        state = _statistics(module) | state
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
        if _kind(state[name]) != _kind(value):
            raise ConfigError(
                f"model.start: {name!r} is a tensor of {_kind(state[name])} in {place}, but of "
                f"{_kind(value)} in the model"
            )
        if name in parameters and not torch.isfinite(state[name].double()).all():
            raise ConfigError(f"model.start: {name!r} in {place} has values that are not finite")
    for name in state:
        if name not in own:
            raise ConfigError(
                f"model.start: {place} has {name!r}, which the model does not have; it has {_some(own)}"
            )
    make_buffers_writable(module)
    module.load_state_dict(state, strict=False)  # extra state is not in the file


def _statistics(module: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of a module that change in training, by their names in a state dict."""
    return {
        f"{prefix}.{name}" if prefix else name: buffer
        for prefix, layer in trained_statistics(module).items()
        for name, buffer in layer.named_buffers(recurse=False)
    }


def _kind(tensor: Tensor) -> str:
    """Return what kind of numbers a tensor has; those of one kind can be converted."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return "values in another form (sparse, quantised or without data)"
    if tensor.is_complex():
        return "complex numbers"
    return "floats" if tensor.is_floating_point() else "whole numbers"


def start_file(place: Path) -> Path:
    """Return the file with the values: the place itself, or the model in it if it is a run's folder."""
    return place / IN_FOLDER if place.is_dir() else place


def _read(place: Path) -> dict[str, Tensor]:
    file = start_file(place)
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        state = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        hint = "; is the run finished?" if place.is_dir() else ""
        raise ConfigError(f"model.start: {file} does not exist{hint}") from None
    except pickle.UnpicklingError:
        raise ConfigError(
            f"model.start: {file} cannot be read as a state dict (it has other things than tensors, and code "
            "in files is not run); save one with torch.save(module.state_dict(), ...)"
        ) from None
    except Exception as error:  # torch raises errors of many kinds for a damaged file
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"model.start: {file} cannot be read as a state dict ({said}); save one with "
            "safetensors.torch.save_file or torch.save(module.state_dict(), ...)"
        ) from None
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise ConfigError(f"model.start: {file} has no state dict; save module.state_dict()")
    tensors = {name: v for name, v in state.items() if not name.endswith(EXTRA_STATE)}
    if not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ConfigError(f"model.start: {file} has no state dict; save module.state_dict()")
    return tensors


def _some(state: dict[str, Tensor]) -> str:
    return ", ".join(list(state)[:4]) + (", ..." if len(state) > 4 else "")
