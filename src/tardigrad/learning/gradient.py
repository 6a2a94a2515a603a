"""Compute the loss and gradient of a minibatch, eagerly or from a traced graph.

Small models spend most of their time in dispatching Python calls, not in arithmetic. Tracing the gradient
once for each batch shape, and running the traced operations on the views of the flat vector, avoids that
cost. The graph is used only if it gives the same bits as the eager gradient, so results do not depend on
tracing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import BuiltinFunctionType, MethodDescriptorType

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tardigrad.learning.examples import Features, logits_of, predicted
from tardigrad.learning.flat import FlatModule
from tardigrad.learning.heads import Head

TRACE_AFTER = 2000
"""Number of minibatches of one shape before it is traced. Tracing takes up to two seconds (most of it only
once) and saves a tenth of a millisecond a step."""

Shape = tuple[torch.Size, torch.dtype, torch.Size, torch.dtype]
Graph = Callable[..., tuple[Tensor, ...]]
Loss = float | Tensor
"""A float on the CPU. On another device a tensor, because reading a number waits for the device."""


def numbers(losses: list[Loss]) -> list[float]:
    """Convert losses to floats, waiting for the device only once."""
    if isinstance(losses[0], Tensor):
        return torch.stack(losses).tolist()  # type: ignore[arg-type]
    return losses  # type: ignore[return-value]


def autocast(device: torch.device, enabled: bool = True) -> torch.autocast:
    """Return the context in which a device computes in bfloat16 where torch considers it safe."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


class Gradient:
    """Computes the loss of a minibatch and stores its gradient in `flat.gradient`."""

    def __init__(self, flat: FlatModule, head: Head, trace: bool = True, autocast: bool = False) -> None:
        """`autocast`: in bfloat16 where torch does; such gradients are not traced."""
        self._flat, self._head, self._autocast = flat, head, autocast
        self._read: Callable[[Tensor], Loss] = Tensor.item if flat.device.type == "cpu" else Tensor.detach
        # Tracing does not speed convolutions up (measured ratio: 0.95 to 1.05), and recurrent layers take
        # long to trace and give other bits.
        untraced = (nn.modules.conv._ConvNd, nn.RNNBase)
        own_loss = head.labels_for_module is not None
        self._trace = trace and not (
            autocast or own_loss or any(isinstance(part, untraced) for part in flat.module.modules())
        )
        self._seen: Counter[Shape] = Counter()
        self._graphs: dict[Shape, Graph | None] = {}

    def __call__(self, features: Features, labels: Tensor) -> Loss:
        """Return the loss, and store the gradient in `flat.gradient`."""
        graph = self._graph(features, labels)
        if graph is None:
            return self._eager(features, labels)
        with torch.inference_mode():
            loss, *slopes = graph(features, labels, *self._flat.values)
            torch._foreach_copy_(self._flat.slopes, slopes)
        return self._read(loss)

    def step(self, features: Features, labels: Tensor, lr: float) -> Loss:
        """Return the loss, and subtract `lr` times its gradient from `flat.vector`. `flat.gradient` may have
        any values afterwards: a traced gradient is not copied there first."""
        graph = self._graph(features, labels)
        if graph is None:
            loss = self._eager(features, labels)
            self._flat.vector.sub_(self._flat.gradient, alpha=lr)
            return loss
        with torch.inference_mode():
            traced_loss, *slopes = graph(features, labels, *self._flat.values)
            torch._foreach_sub_(self._flat.values, slopes, alpha=lr)
        return self._read(traced_loss)

    def _graph(self, features: Features, labels: Tensor) -> Graph | None:
        """Return the graph for minibatches like this one, or None if there is none."""
        if not self._trace or not isinstance(features, Tensor):
            return None
        shape = (features.shape, features.dtype, labels.shape, labels.dtype)
        if shape not in self._graphs:
            self._seen[shape] += 1
            if self._seen[shape] < TRACE_AFTER:
                return None
            self._graphs[shape] = self._traced(features, labels)
        return self._graphs[shape]

    @torch.enable_grad()
    def _eager(self, features: Features, labels: Tensor) -> Loss:
        flat = self._flat
        flat.gradient.zero_()
        if flat.contiguous:
            flat.pull()
        if self._autocast:
            with autocast(flat.device):
                loss = self._loss(features, labels)
        else:
            loss = self._loss(features, labels)
        loss.backward()
        if flat.contiguous:
            flat.push()
        return self._read(loss)

    def _loss(self, features: Features, labels: Tensor) -> Tensor:
        head = self._head
        return head.loss(predicted(self._flat.module, head, features, labels), labels)

    def _traced(self, features: Tensor, labels: Tensor) -> Graph | None:
        """Trace a graph for this shape; return None if it cannot be traced or gives other bits."""
        from torch.fx.experimental.proxy_tensor import make_fx

        flat, head, names = self._flat, self._head, self._flat.names

        def loss_and_slopes(x: Tensor, y: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            def loss(values: tuple[Tensor, ...]) -> Tensor:
                return head.loss(logits_of(functional_call(flat.module, dict(zip(names, values)), (x,))), y)

            slopes, value = torch.func.grad_and_value(loss)(values)
            return value, *slopes

        before = [generator.get_state() for generator in flat.generators]
        buffers = [(buffer, buffer.clone()) for buffer in flat.module.buffers()]
        try:
            expected_loss = self._eager(features, labels)
            expected = [slope.clone() for slope in flat.slopes]
            if not all(torch.equal(g.get_state(), was) for g, was in zip(flat.generators, before)):
                return None  # the module draws random numbers
            if not all(torch.equal(buffer, was) for buffer, was in buffers):
                return None  # the module has state that changes with each minibatch
            given = (features, labels, *flat.values)
            graph = _direct(make_fx(loss_and_slopes)(*given))
            with torch.inference_mode():
                loss, *slopes = graph(*given)
        except Exception:  # a user's module may fail to trace in any way
            return None
        finally:
            for generator, was in zip(flat.generators, before):
                generator.set_state(was)
            with torch.no_grad():
                for buffer, was in buffers:
                    buffer.copy_(was)
        same = self._read(loss) == expected_loss and all(torch.equal(a, b) for a, b in zip(slopes, expected))
        return graph if same and self._moves_alike(slopes) else None

    def _moves_alike(self, slopes: list[Tensor]) -> bool:
        """Return whether a step gives the same bits parameter by parameter as on the whole vector, which has
        this gradient."""
        vector = self._flat.vector.clone()
        torch._foreach_sub_(self._flat.views(vector), slopes, alpha=0.1)
        return torch.equal(vector, self._flat.vector.sub(self._flat.gradient, alpha=0.1))


def _direct(module: torch.fx.GraphModule) -> Graph:
    """Replace traced operations by torch's own functions, which have less overhead for each call.

    The operations and their order stay the same, except that double transpositions are removed.
    """
    graph = module.graph
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            name = node.target._schema.name.removeprefix("aten::")
            function, method = getattr(torch, name, None), getattr(Tensor, name, None)
            if isinstance(function, BuiltinFunctionType):
                node.target = function
            elif isinstance(method, MethodDescriptorType):
                node.op, node.target = "call_method", name
    for node in graph.nodes:
        (inner, *_) = node.args or (None,)
        if node.target is torch.t and isinstance(inner, torch.fx.Node) and inner.target is torch.t:
            node.replace_all_uses_with(inner.args[0])
    graph.eliminate_dead_code()
    module.recompile()
    return module.forward
