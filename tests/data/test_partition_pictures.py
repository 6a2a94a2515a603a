"""A partition as a table and as a picture."""

import numpy as np
import pytest
import torch
from PIL import Image

from tardigrad.data.catalogue import Digits, Synthetic
from tardigrad.data.clients import Clients, Federation, given
from tardigrad.data.dataset import Holders
from tardigrad.data.partition import Dirichlet
from tardigrad.data.partition_pictures import Holdings, draw_partition, holdings
from tardigrad.learning.heads import MultiLabel


def test_holdings_count_examples_by_client_and_label():
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    clients = Holders(torch.zeros(6, 1), labels, [np.array([0, 1, 2]), np.array([3, 4, 5])])
    held = holdings(Federation(clients, (torch.zeros(4, 1), torch.zeros(4)), (1,), 4))
    assert held.sizes.tolist() == [3, 3]
    assert held.counts.tolist() == [[2, 1, 0, 0], [0, 0, 3, 0]]
    assert held.test == 4


def test_table_summarises_sizes_and_labels():
    counts = np.array([[5, 0, 0], [1, 1, 0], [1, 1, 1234]])
    assert Holdings(counts.sum(axis=1), counts, 7).table().splitlines() == [
        "clients                                  3",
        "examples                                 1,243",
        "examples per client (min, median, max)   2, 5, 1,236",
        "labels                                   3",
        "labels per client (min, median, max)     1, 2, 3",
        "share of a client's main label (median)  100%",
        "test examples                            7",
    ]


def test_labels_of_at_most_5000_clients_are_counted():
    held = holdings(Synthetic(clients=12_000, examples=2, features=1, classes=3).federation(0))
    assert len(held.sizes) == 12_000
    assert held.counts.shape == (5000, 3)
    assert held.counts.sum() == 10_000


class Several(Clients):
    """Three clients with several labels for each image, which must not be loaded."""

    def __len__(self):
        return 3

    def examples(self, client):
        return 2

    def load(self, client):
        raise AssertionError("too large to load")

    def labels(self, client):
        return torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.uint8)


def test_multi_label_counts_do_not_load_the_features():
    held = holdings(Federation(Several(), None, (1,), 3, head=MultiLabel()))
    assert held.counts.tolist() == [[2, 1, 0]] * 3
    assert held.test == 0


@pytest.mark.parametrize("labels", [torch.zeros(6, 4, dtype=torch.int64), torch.rand(6)])
def test_labels_that_are_not_classes_are_not_counted(labels, tmp_path):
    clients = Holders(torch.zeros(6, 1), labels, [np.arange(2), np.arange(2, 6)])
    held = holdings(Federation(clients, None, (1,), 50))
    assert held.counts is None
    assert "labels" not in held.table()
    draw_partition(held, tmp_path / "sizes.png")
    assert Image.open(tmp_path / "sizes.png").size[0] > 500


def picture(file):
    return np.asarray(Image.open(file).convert("RGB")).astype(int)


@pytest.mark.parametrize(("clients", "alpha"), [(2, 100.0), (10, 0.3), (30, 0.3), (31, 0.3), (900, 0.1)])
def test_picture_is_drawn_for_few_and_many_clients(tmp_path, clients, alpha):
    federation = Digits(partition=Dirichlet(clients=clients, alpha=alpha)).federation(0)
    file = tmp_path / "new" / "partition.png"
    draw_partition(holdings(federation), file, "digits")
    pixels = picture(file)
    assert pixels.shape[1] > pixels.shape[0] > 400
    assert (np.ptp(pixels, axis=2) > 60).mean() > 0.01  # something is drawn in colour


@pytest.mark.parametrize(
    "counts",
    [
        np.random.default_rng(0).poisson(0.3, size=(40, 300)),  # more labels than are drawn
        np.random.default_rng(0).poisson(3, size=(5, 62)),
        np.concatenate([np.full((50, 4), 1), np.full((1, 4), 100_000)]),  # a long tail
        np.array([[1]]),
        np.zeros((2, 3), dtype=int),
    ],
    ids=["many labels", "62 labels", "long tail", "one", "none"],
)
def test_unusual_partitions_are_drawn_without_a_warning(tmp_path, counts, recwarn):
    draw_partition(Holdings(np.maximum(counts.sum(axis=1), 1), counts, 0), tmp_path / "odd.png")
    assert (tmp_path / "odd.png").stat().st_size > 5000
    assert [str(warning.message) for warning in recwarn] == []


def test_skew_is_visible_in_the_picture(tmp_path):
    for name, alpha in (("skewed", 0.01), ("even", 1000.0)):
        federation = Digits(partition=Dirichlet(clients=100, alpha=alpha)).federation(0)
        draw_partition(holdings(federation), tmp_path / f"{name}.png")

    def dark(name):  # share of dark pixels in the left half, which shows labels by client
        pixels = picture(tmp_path / f"{name}.png")
        return (pixels[80:-120, 100 : pixels.shape[1] // 2].sum(axis=2) < 200).mean()

    assert dark("skewed") > 0.05
    assert dark("even") < 0.01


def test_few_clients_are_drawn_with_their_names(tmp_path):
    x, y = torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])
    held = holdings(given({"north": (x, y), "cost $5 a day, and a very long name": (x, y)}, None))
    assert held.names == ("north", "cost $5 a day, and a very long name")
    draw_partition(held, tmp_path / "named.svg")
    drawn = (tmp_path / "named.svg").read_text()
    assert "<!-- north -->" in drawn
    assert "and a very long name" not in drawn
    assert holdings(Digits(partition=Dirichlet(clients=31)).federation(0)).names == ()
