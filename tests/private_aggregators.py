"""Aggregators with the layers of privacy, and layers that watch them."""

from tardigrad.algorithms.aggregator import Aggregator
from tardigrad.algorithms.layers import UploadLayer
from tardigrad.core.outcomes import Accepted, Ticket
from tardigrad.core.upload import Task
from tardigrad.privacy.layers.central_noise import CentralNoiseLayer
from tardigrad.privacy.layers.clip import ClipLayer
from tardigrad.privacy.layers.stack import central_layers, local_layers


def centrally_private(algorithm, model, situation, guarantee, normals, *more):
    """The aggregator of a run with central privacy; further layers lie on top."""
    return Aggregator(algorithm, model, situation, layers=[*central_layers(guarantee, normals), *more])


def locally_private(algorithm, model, situation, guarantee, normals):
    """The aggregator of a run with local privacy; `add` begins with what the client does to its upload."""
    aggregator = Aggregator(algorithm, model, situation, layers=local_layers(guarantee, normals))
    add = aggregator.add

    def from_the_client(delivery, upload, start):
        task = Task(delivery.trip, delivery.client, delivery.ticket.version, {"model": start})
        for layer in aggregator.layers:
            upload = layer.client(upload, task, {})
        add(delivery, upload, start)

    aggregator.add = from_the_client
    return aggregator


def delivery(trip=0, client=0, version=0, staleness=0, weight=1.0, closes=True):
    """An accepted delivery."""
    return Accepted(Ticket(trip, client, version - staleness, 0.0), 1.0, version, weight, 1.0, closes)


def layer(aggregator, kind):
    """The layer of this class."""
    (found,) = (layer for layer in aggregator.layers if isinstance(layer, kind))
    return found


def clip_of(aggregator):
    return layer(aggregator, ClipLayer)


def noise_of(aggregator):
    return layer(aggregator, CentralNoiseLayer).noise


class Watching(UploadLayer):
    """Keeps each released sum with its extras; on top of the others it sees what the algorithm sees."""

    name = "watching"

    def __init__(self):
        self.totals, self.told, self.members = [], [], []

    def release(self, buffer, total):
        self.totals.append(total)
        self.told.append({name: extra.clone() for name, extra in buffer.extras.items()})
        self.members.append(list(buffer.members))
        return total
