"""Training several trips at once: their models are the rows of a matrix, and each operation updates all rows.

One small model does not keep a GPU busy; many of them do. The result agrees with `Inline` to rounding, not
bit for bit, because a batched product is summed in another order. Therefore it also depends, to rounding, on
which trips were ready at the same time, and a resumed run does not repeat that.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from tardigrad.algorithms.algorithm import Rule
from tardigrad.data.clients import Clients
from tardigrad.errors import RunError
from tardigrad.learning.examples import logits_of
from tardigrad.learning.gradient import autocast
from tardigrad.learning.local import Trainer
from tardigrad.learning.trip_steps import TripSteps
from tardigrad.simulation.executors.inline import Inline
from tardigrad.simulation.executors.protocol import TrainedTrip, TrainingJob


class Vectorised(Inline):
    """Trains up to `at_once` trips together, if their minibatches have the same sizes.

    A trip whose sizes no other trip has is trained as by `Inline`. So are all trips of a module that cannot
    be vectorised because it draws random numbers, keeps state from one minibatch to the next, or branches.
    """

    def __init__(self, trainer: Trainer, clients: Clients, at_once: int) -> None:
        super().__init__(trainer, clients)
        self.ahead = 4 * at_once  # so that enough of them have the same sizes
        self._at_once = at_once
        self._sizes: dict[int, tuple[int, ...]] = {}
        self._results: dict[int, TrainedTrip | RunError] = {}
        self._gradients = vmap(grad_and_value(self._loss))
        self.vectorised = not trainer.flat.has_personal
        """Whether the module can be vectorised. True until the first attempt fails."""
        if not self.vectorised:
            warnings.warn(
                "device.clients_at_once: trips of a model with personal parts are trained one by one",
                stacklevel=2,
            )

    def result(self, trip: int) -> TrainedTrip:
        if trip not in self._results and self.vectorised:
            group = self._group(trip)
            if len(group) > 1:
                with self._trainer.profile.part("training"):
                    self._train(group)
        if trip not in self._results:
            return super().result(trip)
        del self._jobs[trip]
        result = self._results.pop(trip)
        if isinstance(result, RunError):
            raise result
        return result

    def close(self) -> None:
        super().close()
        self._results.clear()

    def _group(self, trip: int) -> list[TrainingJob]:
        """Return the job of this trip, and of the next ones whose minibatches have the same sizes."""
        first = self._jobs[trip]
        sizes = self._sizes_of(first)
        waiting = (job for other, job in self._jobs.items() if other != trip and other not in self._results)
        alike = sorted(
            (job for job in waiting if self._sizes_of(job) == sizes),
            key=lambda job: (job.time, job.task.trip),
        )
        return [first, *alike[: self._at_once - 1]]

    def _sizes_of(self, job: TrainingJob) -> tuple[int, ...]:
        count = self._clients.examples(job.client)
        if count not in self._sizes:
            batches = self._trainer.local.minibatches(count, torch.Generator())
            self._sizes[count] = tuple(len(batch) for batch in batches)
        return self._sizes[count]

    def _train(self, jobs: list[TrainingJob]) -> None:
        """Store the results of these jobs, unless the module cannot be vectorised."""
        rules = [self._trainer.rule(job.task, job.memory) for job in jobs]
        try:
            rows, losses, steps = self._trained(jobs, rules)
        except torch.OutOfMemoryError:
            raise RunError(
                f"device.clients_at_once: {len(jobs)} trips at once do not fit into the device's memory; "
                "give fewer"
            ) from None
        except Exception as error:  # raised by a user's module that cannot be vectorised
            self.vectorised = False
            warnings.warn(
                "device.clients_at_once: this model cannot be vectorised, so that its trips are trained one "
                f"by one ({type(error).__name__}: {str(error).strip().splitlines()[0]})",
                stacklevel=2,
            )
            return
        for job, rule, row, own, made in zip(jobs, rules, rows, losses, steps):
            examples = self._clients.examples(job.client)
            result: TrainedTrip | RunError
            try:
                with torch.no_grad():
                    result = TrainedTrip(
                        *self._trainer.finished(job.task, job.memory, rule, row, own, made, examples)
                    )
            except RunError as error:  # raised when the result of this trip is requested
                result = error
            self._results[job.task.trip] = result

    def _trained(
        self, jobs: list[TrainingJob], rules: list[Rule]
    ) -> tuple[Tensor, list[list[float]], list[TripSteps]]:
        """Return the models at the end of their trips and, for each trip, its losses and its steps."""
        trainer, local = self._trainer, self._trainer.local
        steps = [
            TripSteps(local, rule, job.memory, rule.start, self._clients.examples(job.client))
            for rule, job in zip(rules, jobs)
        ]
        plain = all(made.plain for made in steps)
        with trainer.profile.part("data"):
            examples = [self._clients.indexed(job.client) for job in jobs]
        trips = [trainer.minibatches(own, job.seed) for own, job in zip(examples, jobs)]
        losses = []
        trainer.flat.train()
        with torch.no_grad():
            trainer.flat.reset_buffers()
            rows = torch.stack([rule.start for rule in rules])
            for minibatches in zip(*trips):
                features, labels = (torch.stack(parts) for parts in zip(*minibatches))
                gradients, loss = self._step_gradients(rows, features, labels)
                losses.append(loss)
                rates = [made.next_lr(labels.shape[1]) for made in steps]
                if plain and len(set(rates)) == 1:
                    if local.weight_decay:
                        gradients.add_(rows, alpha=local.weight_decay)
                    rows.sub_(gradients, alpha=rates[0])
                else:
                    for made, gradient, x, rate in zip(steps, gradients, rows, rates):
                        made.move(x, gradient, rate)
        return rows, torch.stack(losses).T.tolist(), steps

    def _step_gradients(self, rows: Tensor, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient and the loss of each row on the examples of a local step, which are computed
        `batch_size` at a time and weigh the same."""
        local = self._trainer.local
        total, mean = rows.new_zeros(()), rows.new_zeros(())
        for x, y in zip(features.split(local.batch_size, dim=1), labels.split(local.batch_size, dim=1)):
            with autocast(rows.device, local.autocast):
                gradients, losses = self._gradients(rows, x, y)
            share = y.shape[1] / labels.shape[1]
            if share == 1:
                return gradients, losses
            total, mean = total + share * gradients, mean + share * losses
        return total, mean

    def _loss(self, row: Tensor, features: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of one row on its own minibatch."""
        flat = self._trainer.flat
        buffers = dict(flat.module.named_buffers())
        tensors = dict(zip(flat.names, flat.views(row))) | buffers
        outputs = functional_call(flat.module, tensors, (features,))
        if any(tensors[name] is not buffer for name, buffer in buffers.items()):
            raise ValueError("it replaces one of its buffers")
        return self._trainer.head.loss(logits_of(outputs), labels)
