"""Store any torch.nn.Module in one flat vector: parameters and gradients are views into two tensors."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tardigrad.core.upload import Vectors
from tardigrad.errors import ConfigError, RunError
from tardigrad.learning.examples import Features, mapped
from tardigrad.learning.normalisation import (
    BatchNormMode,
    check_no_statistics,
    statistics_layers,
    statistics_of,
    trained_statistics,
    with_group_norm,
)

PERSONAL, STATISTICS = "personal/vector", "personal/statistics"
"""Names in a client's memory: its personal parameters, and the running statistics of its layers."""


class FlatModule:
    """A module whose parameters are stored in one contiguous vector: first those that all clients share, then
    the personal ones, which stay with their client; each in the module's own order.

    Loading a model is one copy, and a step of SGD is one operation, whatever the number of layers. The module
    is modified: its parameters become views. The weights of two-dimensional convolutions are stored channels
    last, the order in which convolutions are fastest on a CPU; `state_dict` returns them in the usual order.

    `personal`: patterns of the names of personal parameters. `batch_norm`: what becomes of layers with
    running statistics; None refuses them.

    >>> flat = FlatModule(nn.Linear(2, 1), personal=["bias"])
    >>> flat.vector.shape, flat.shared.shape, flat.names
    (torch.Size([3]), torch.Size([2]), ['weight', 'bias'])
    """

    def __init__(
        self,
        module: nn.Module,
        personal: Sequence[str] | None = None,
        batch_norm: BatchNormMode | None = None,
    ) -> None:
        if batch_norm == "group_norm":
            module = with_group_norm(module)
        elif batch_norm is None:
            check_no_statistics(module)
        self._settings = personal, batch_norm
        if any(is_lazy(p) for p in module.parameters()):
            raise ConfigError(
                "model: it has lazy layers, whose sizes are not known yet; call it once with an example, or "
                "give the sizes"
            )
        for name, value in saved_tensors(module).items():
            if value.layout != torch.strided:
                raise ConfigError(
                    f"model: {name} is a sparse tensor, which cannot be saved with the model; register it "
                    "with persistent=False"
                )
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trained:
            raise ConfigError("model: the module has no parameters to train")
        if len({p.dtype for _, p in trained}) > 1:
            raise ConfigError("model: all parameters must have one dtype")
        own = _personal_names(module, [name for name, _ in trained], personal or (), batch_norm == "client")
        parameters = sorted(trained, key=lambda named: named[0] in own)  # a stable order
        self.module = module
        self._parameters = [p for _, p in parameters]
        self.names = [name for name, _ in parameters]
        self.shapes = [p.shape for _, p in parameters]
        self.shared_shapes = self.shapes[: len(parameters) - len(own)]
        """Shapes of the parameters that all clients share."""
        self.channels_last = any(isinstance(part, nn.Conv2d) for part in module.modules())
        size = sum(p.numel() for _, p in parameters)
        self.vector = parameters[0][1].detach().new_empty(size)
        self.gradient = torch.zeros_like(self.vector)
        self.device = self.vector.device
        self.generators = _generators(self.device)
        """Torch's global generators, from which the module may draw (dropout does)."""
        self.values, self.slopes = self.views(self.vector), self.views(self.gradient)
        for (_, p), value, slope in zip(parameters, self.values, self.slopes):
            value.copy_(p.detach())
            p.data = value
            p.grad = slope
        shared = sum(shape.numel() for shape in self.shared_shapes)
        whole = shared == size
        self.shared = self.vector if whole else self.vector[:shared]
        """The shared part of `vector`, which is the model of the server; all of it if nothing is personal."""
        self._own_values = self.vector[shared:]
        self._own_start = self._own_values.clone()
        layers = trained_statistics(module).values() if batch_norm == "client" else ()
        self._statistics = [tensor for layer in layers for tensor in statistics_of(layer)]
        self._still = [layer for layer in statistics_layers(module).values() if layer not in layers]
        for layer in self._still:
            layer.eval()
        make_buffers_writable(module)
        self._buffers = [
            (part, name, buffer.clone())
            for part in module.modules()
            for name, buffer in part.named_buffers(recurse=False)
        ]
        self.contiguous = False
        """Whether the module is given contiguous tensors, because it does not work with channels last."""
        self._copies: list[tuple[nn.Parameter, Tensor, Tensor]] = []

    @property
    def has_personal(self) -> bool:
        """Whether something of the module stays with its client."""
        return bool(len(self._own_values) or self._statistics)

    @property
    def trains_statistics(self) -> bool:
        """Whether the module has running statistics that change in training and stay with their client."""
        return bool(self._statistics)

    def on(self, device: torch.device) -> FlatModule:
        """Move the module to a device and return it; this object must not be used afterwards."""
        if device == self.device:
            return self
        moved = FlatModule(self.module.to(device), *self._settings)
        moved.use_contiguous(self.contiguous)
        return moved

    def drop_gradient(self) -> None:
        """Release the memory of the gradient, because this module is never trained, as on a server."""
        self.gradient = self.gradient.new_empty(0)
        self.slopes = []
        for parameter in self._parameters:
            parameter.grad = None

    # -- values --------------------------------------------------------------------------------------------

    def load(self, shared: Tensor, memory: Vectors) -> None:
        """Put the server's model and what a client remembers into the module. What the client does not
        remember has its initial values."""
        self.shared.copy_(shared)
        self.reset_buffers()
        if self.has_personal:
            own, remembered = memory.get(PERSONAL, self._own_start), memory.get(STATISTICS)
            statistics = sum(tensor.numel() for tensor in self._statistics)
            if len(own) != len(self._own_values) or (
                remembered is not None and len(remembered) != statistics
            ):
                raise RunError(
                    "the memory of this client is of another model: its personal parts have other sizes; "
                    "give the model that it began with"
                )
            self._own_values.copy_(own)
            if remembered is not None:
                parts = remembered.split([tensor.numel() for tensor in self._statistics])
                for tensor, part in zip(self._statistics, parts):
                    tensor.copy_(part.view(tensor.shape))

    def personal_memory(self) -> Vectors:
        """Return a copy of what stays with the client, for its memory."""
        memory: Vectors = {}
        if len(self._own_values):
            memory[PERSONAL] = self._own_values.clone()
        if self._statistics:  # as float64, which has every value of every statistic
            memory[STATISTICS] = torch.cat([tensor.double().view(-1) for tensor in self._statistics])
        return memory

    @property
    def personal_bytes(self) -> int:
        """The size of `personal_memory` in bytes."""
        own = self._own_values
        return own.numel() * own.element_size() + 8 * sum(tensor.numel() for tensor in self._statistics)

    def reset_buffers(self) -> None:
        """Restore the initial values of the module's buffers.

        Buffers are not part of the model, so values that one trip writes (spectral norm does) must not affect
        another trip.
        """
        for part, name, first in self._buffers:
            now = part._buffers.get(name)
            if now is None or (now.shape, now.dtype) != (first.shape, first.dtype):  # the module replaced it
                part._buffers[name] = first.clone()
            else:
                now.copy_(first)

    def train(self) -> None:
        """Set the module to training. Frozen layers keep their running statistics."""
        self.module.train()
        for layer in self._still:
            layer.eval()

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the shared `vector` as a state dict on the CPU, which `load_state_dict` of the module
        accepts. Personal parameters have their initial values in it."""
        self.reset_buffers()
        state = {name: v.detach().clone().cpu() for name, v in saved_tensors(self.module).items()}
        whole = torch.cat([vector, self._own_start]) if len(self._own_start) else vector
        values = dict(zip(map(id, self._parameters), self.views(whole)))
        for name, parameter in self.module.named_parameters(
            remove_duplicate=False
        ):  # includes tied parameters
            if id(parameter) in values:
                state[name] = values[id(parameter)].clone(memory_format=torch.contiguous_format).cpu()
        return state

    # -- memory formats ------------------------------------------------------------------------------------

    def prepared(self, features: Features) -> Features:
        """Return the features in the memory format that is fastest for the module."""
        if self.contiguous or not self.channels_last:
            return features
        if isinstance(features, Tensor):
            return _channels_last(features)
        return mapped(features, _channels_last)

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return the views of a flat vector that are the module's parameters, in the order of `names`."""
        parts = vector.split([shape.numel() for shape in self.shapes])
        return [self._view(part, shape) for part, shape in zip(parts, self.shapes)]

    def _view(self, part: Tensor, shape: torch.Size) -> Tensor:
        if self.channels_last and len(shape) == 4:
            out, given, height, width = shape
            return part.view(out, height, width, given).permute(0, 3, 1, 2)
        return part.view(shape)

    def use_contiguous(self, on: bool) -> None:
        """Say whether the module is given contiguous tensors from now on. The order of the vector stays the
        same: if it is, the weights of convolutions are copies, which `pull` and `push` keep equal to it."""
        self.contiguous, self._copies = on and self.channels_last, []
        for p, value, slope in zip(self._parameters, self.values, self.slopes):
            if self.channels_last and value.dim() == 4:
                p.data = value.clone(memory_format=torch.contiguous_format) if on else value
                p.grad = torch.zeros_like(p.data) if on else slope
                if on:
                    self._copies.append((p, value, slope))

    @torch.no_grad()
    def pull(self) -> None:
        """Copy the vector into the weights that are copies of it, and set their gradients to zero."""
        for p, value, _ in self._copies:
            p.copy_(value)
            if p.grad is not None:
                p.grad.zero_()

    @torch.no_grad()
    def push(self) -> None:
        """Copy the gradients of the weights that are copies into the gradient vector."""
        for p, _, slope in self._copies:
            if p.grad is not None:
                slope.copy_(p.grad)


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a module's state dict. What `get_extra_state` adds to it is left out."""
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def make_buffers_writable(module: nn.Module) -> None:
    """Replace buffers that are expanded from smaller tensors by copies, because torch writes to no others."""
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            if any(size > 1 and step == 0 for size, step in zip(buffer.shape, buffer.stride())):
                part._buffers[name] = buffer.clone()


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def _personal_names(
    module: nn.Module, names: Sequence[str], patterns: Sequence[str], norms: bool
) -> frozenset[str]:
    """Return the names of the personal parameters."""
    own: set[str] = set()
    first = {id(p): name for name, p in module.named_parameters()}
    every = {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False)}
    for pattern in patterns:
        found = {name for name in names if fnmatchcase(name, pattern)}
        if not found:
            raise ConfigError(
                f"local.personal: {pattern!r} matches no trained parameter of the model; they are called "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            )
        own |= found
    for name, called in every.items():
        if called not in own and called in names and any(fnmatchcase(name, pattern) for pattern in patterns):
            raise ConfigError(
                f"local.personal: {name} is the same parameter as {called}, which would be sent; add "
                f"{called!r}, or leave {name!r} out"
            )
    if norms:
        for name, layer in trained_statistics(module).items():
            own |= {f"{name}.{one}" if name else one for one, _ in layer.named_parameters(recurse=False)}
    own &= set(names)
    if len(own) == len(names):
        raise ConfigError(
            "local.personal: every parameter would stay with its client, so nothing would be learnt "
            "together; leave some out"
        )
    return frozenset(own)


def _generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's global generators of the CPU and of the device."""
    if device.type == "cpu":
        return [torch.default_generator]
    generators: tuple[torch.Generator, ...] = torch.get_device_module(device).default_generators
    return [torch.default_generator, generators[device.index or 0]]
