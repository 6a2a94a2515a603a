"""Any torch.nn.Module as one flat vector: parameters and gradients are views into two tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tardigrad.errors import ConfigError


class FlatModule:
    """A module whose parameters lie in one contiguous vector, in the module's own order.

    Loading a model is one copy, and a step of SGD is one operation, however many layers there are.
    The module is taken over: its parameters become views.

    >>> flat = FlatModule(nn.Linear(2, 1))
    >>> flat.vector.shape, flat.gradient.shape
    (torch.Size([3]), torch.Size([3]))
    """

    def __init__(self, module: nn.Module) -> None:
        for name, part in module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
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
        self.names = [name for name, _ in parameters]
        self.shapes = [p.shape for _, p in parameters]
        self.vector = torch.cat([p.detach().reshape(-1) for _, p in parameters]).contiguous()
        self.gradient = torch.zeros_like(self.vector)
        for (_, p), value, slope in zip(parameters, self._views(self.vector), self._views(self.gradient)):
            p.data = value
            p.grad = slope

    def _views(self, vector: Tensor) -> list[Tensor]:
        sizes = [shape.numel() for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(vector.split(sizes), self.shapes)]

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        """`vector` under the module's own names: what `load_state_dict` takes."""
        state = {name: value.detach().clone() for name, value in self.module.state_dict().items()}
        for name, value in zip(self.names, self._views(vector)):
            state[name] = value.clone()
        return state
