"""Store any torch.nn.Module in one flat vector: parameters and gradients are views into two tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tardigrad.errors import ConfigError


class FlatModule:
    """A module whose parameters are stored in one contiguous vector, in the module's own order.

    Loading a model is one copy, and a step of SGD is one operation, whatever the number of layers. The module
    is modified: its parameters become views. The weights of two-dimensional convolutions are stored channels
    last, the order in which convolutions are fastest on a CPU; `state_dict` returns them in the usual order.

    >>> flat = FlatModule(nn.Linear(2, 1))
    >>> flat.vector.shape, flat.gradient.shape
    (torch.Size([3]), torch.Size([3]))
    """

    def __init__(self, module: nn.Module) -> None:
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
                raise ConfigError(
                    f"model: {name or 'the module'} is {type(part).__name__}, whose running statistics have "
                    "no meaning in an average of models; use GroupNorm or LayerNorm in its place"
                )
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not parameters:
            raise ConfigError("model: the module has no parameters to train")
        if len({p.dtype for _, p in parameters}) > 1:
            raise ConfigError("model: all parameters must have one dtype")
        self.module = module
        self._parameters = [p for _, p in parameters]
        self.names = [name for name, _ in parameters]
        self.shapes = [p.shape for _, p in parameters]
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
        self._buffers = [
            (part, name, buffer.clone())
            for part in module.modules()
            for name, buffer in part.named_buffers(recurse=False)
        ]

    def on(self, device: torch.device) -> FlatModule:
        """Move the module to a device and return it; this object must not be used afterwards."""
        return self if device == self.device else FlatModule(self.module.to(device))

    def reset_buffers(self) -> None:
        """Restore the initial values of the module's buffers.

        Buffers are not part of the model, so values that one trip writes (spectral norm does) must not affect
        another trip.
        """
        for part, name, first in self._buffers:
            getattr(part, name).copy_(first)

    def prepared(self, features: Tensor) -> Tensor:
        """Return the features in the memory format that is fastest for the module."""
        if self.channels_last and features.dim() == 4:
            return features.contiguous(memory_format=torch.channels_last)
        return features

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return the views of a flat vector that are the module's parameters, in the order of `names`."""
        parts = vector.split([shape.numel() for shape in self.shapes])
        return [self._view(part, shape) for part, shape in zip(parts, self.shapes)]

    def _view(self, part: Tensor, shape: torch.Size) -> Tensor:
        if self.channels_last and len(shape) == 4:
            out, given, height, width = shape
            return part.view(out, height, width, given).permute(0, 3, 1, 2)
        return part.view(shape)

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        """Return `vector` as a state dict on the CPU, which `load_state_dict` of the module accepts."""
        self.reset_buffers()
        state = {name: value.detach().clone().cpu() for name, value in self.module.state_dict().items()}
        values = dict(zip(map(id, self._parameters), self.views(vector)))
        for name, parameter in self.module.named_parameters(
            remove_duplicate=False
        ):  # includes tied parameters
            if id(parameter) in values:
                state[name] = values[id(parameter)].clone(memory_format=torch.contiguous_format).cpu()
        return state


def _generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's global generators of the CPU and of the device."""
    if device.type == "cpu":
        return [torch.default_generator]
    generators: tuple[torch.Generator, ...] = torch.get_device_module(device).default_generators
    return [torch.default_generator, generators[device.index or 0]]
