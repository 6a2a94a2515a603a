"""The head and the metrics of a run: which head its data gets, what it is judged by, and the baseline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tardigrad.core.metric import ACCURACY, Metric
from tardigrad.core.stop import Stop
from tardigrad.data.clients import Clients, Federation
from tardigrad.errors import ConfigError
from tardigrad.experiments.config.schema import Config
from tardigrad.learning.heads import Head
from tardigrad.learning.heads.baseline import Baseline, baseline
from tardigrad.learning.heads.class_weights import Weighted, balanced
from tardigrad.learning.heads.head_choice import built
from tardigrad.learning.heads.labels import check_labels
from tardigrad.learning.heads.named_metrics import check_names

MOST_CLIENTS = 300
"""If there are more clients, the baseline is learned from this many evenly spaced ones."""


def chosen_head(config: Config, head: Head | None = None) -> Head | None:
    """Return the caller's head, or that of the config, or None if the data has the say."""
    if head is None and config.head is not None:
        return built(config.head)
    return head


def with_head(federation: Federation, head: Head | None, private: bool) -> Federation:
    """Return the federation with a head in place of its own, and balanced class weights as numbers.

    Raises a ConfigError if the labels cannot be what the head takes them for.
    """
    labels = federation.clients.indexed(0)[1]
    if head is not None:
        check_labels("data", labels, head)
        federation = replace(federation, head=head, classes=head.width(federation.classes, labels))
    own = federation.head
    if isinstance(own, Weighted) and own.class_weights is not None:
        classes = 2 if own.task == "binary" else federation.classes
        if own.class_weights == "balanced":
            if private:
                raise ConfigError(
                    "head.class_weights: 'balanced' counts all clients' labels, which is outside of what "
                    "the privacy of this run promises; give numbers"
                )
            weights = _balanced_weights(federation, classes)
            federation = replace(federation, head=own.model_copy(update={"class_weights": weights}))
        own.check_classes(classes)
    return federation


def _balanced_weights(federation: Federation, classes: int) -> tuple[float, ...]:
    clients = federation.clients
    labels = torch.cat([_labels(clients, client) for client in range(len(clients))])
    if federation.head.task == "multilabel":  # as many a yes as there are a no
        yes = (labels > 0).double().sum(dim=0)
        return tuple(((len(labels) - yes) / yes.clamp(min=1)).clamp(min=1e-3).tolist())
    counts = torch.bincount(labels.flatten().long(), minlength=classes)
    return balanced(counts.tolist(), len(labels))


def with_metrics(config: Config, federation: Federation | None) -> Config:
    """Return the config with the metric that the run is judged by, and the one that it stops at.

    Raises a ConfigError for a metric that the run's own evaluations cannot have. What clients evaluate is not
    known here.
    """
    head = chosen_head(config) if federation is None else federation.head
    evaluation, stop = config.evaluation, config.stop
    name = evaluation.main or ("accuracy" if head is None else _main(head))
    metric = _directed(name, head) if evaluation.better is None else Metric.named(name, evaluation.better)
    if metric != ACCURACY or evaluation.main is not None:
        evaluation = evaluation.model_copy(update={"main": metric.name, "better": metric.better})
    here = federation is not None and (federation.test is not None or evaluation.held_out > 0)
    if head is not None:
        stop = _stop(stop, metric, head)
    _check_target(stop, metric)
    if here and head is not None:
        check_names(evaluation.metrics or (), head, "evaluation.metrics")
        if config.evaluation.main is not None:
            check_names([name], head, "evaluation.main")
        if stop.metric is not None:
            check_names([stop.metric], head, "stop.metric")
    return config.model_copy(update={"evaluation": evaluation, "stop": stop})


def _main(head: Head) -> str:
    """Return the main metric of a head; of one that declares others, the first besides the loss."""
    if head.main in head.names:
        return head.main
    return next((name for name in head.names if name != "loss"), "loss")


def _directed(name: str, head: Head | None) -> Metric:
    return Metric.named(name) if head is None else head.metric(name)


def _stop(stop: Stop, metric: Metric, head: Head) -> Stop:
    """Return the stop rules with the metric that the target is about."""
    if stop.accuracy is not None and "accuracy" not in head.names:
        if metric.lower_is_better or stop.target is not None:
            raise ConfigError(
                f"stop.accuracy: the head {type(head).__name__} has no accuracy; give stop.target, which is "
                f"about {metric}"
            )
        stop = stop.model_copy(update={"accuracy": None, "target": stop.accuracy})
    if stop.target is None:
        return stop
    wanted = metric if stop.metric is None else _directed(stop.metric, head)
    better = stop.better or wanted.better
    return stop.model_copy(update={"metric": wanted.name, "better": better})


def _check_target(stop: Stop, metric: Metric) -> None:
    wanted = metric if stop.metric is None else Metric.named(stop.metric, stop.better)
    given = (("accuracy", stop.accuracy, ACCURACY), ("target", stop.target, wanted))
    for key, value, about in given:
        if value is not None and value > about.most and not about.lower_is_better:
            raise ConfigError(
                f"stop.{key}: {value:g} is never reached, because {about} is at most {about.most:g}; give "
                "less, such as 0.9"
            )


def names_to_compute(config: Config, head: Head) -> tuple[str, ...]:
    """Return the metrics that evaluations compute besides those of the head."""
    wanted = [*(config.evaluation.metrics or ()), config.evaluation.metric.name, config.stop.metric]
    return tuple(dict.fromkeys(name for name in wanted if name is not None and name not in head.names))


def run_baseline(config: Config, federation: Federation | None, served: bool) -> Baseline | None:
    """Return what the best constant prediction gets on the test set, or None if there is no test set.

    It is learned from the clients' labels. In a private run those are private, and it is learned from the
    test set itself, which makes it a little better.
    """
    if federation is None or federation.test is None or not isinstance(federation.test[1], Tensor):
        return None
    head, test = federation.head, federation.test[1].cpu()
    if config.evaluation.examples is not None:
        test = test[config.evaluation.sample(len(test), config.seed)]
    if type(head).constant is Head.constant:
        return None
    learned, of = test, "the test set's labels"
    if config.privacy is None:
        of = "the labels of the server's own data" if served else "the clients' labels"
        learned = _clients_labels(federation.clients)
    return baseline(head, learned, of, test, federation.classes, names_to_compute(config, head))


def _clients_labels(clients: Clients) -> Tensor:
    count = min(len(clients), MOST_CLIENTS)
    some = np.unique(np.linspace(0, len(clients) - 1, count).astype(int)).tolist()
    labels = [_labels(clients, client).cpu() for client in some]
    if len({part.shape[1:] for part in labels}) > 1:  # sequences of different lengths
        labels = [part.flatten() for part in labels]
    return torch.cat(labels)


def _labels(clients: Clients, client: int) -> Tensor:
    """Return a client's labels, without a copy of its features where possible."""
    _, labels, part = clients.indexed(client)
    return labels if part is None else labels[part]
