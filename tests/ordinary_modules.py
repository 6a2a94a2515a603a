"""Modules that are written the ordinary way, with examples for them: the cases of `test_ordinary_modules`.

To add a case, add a line to `CASES`.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import tardigrad as td


@dataclass(frozen=True)
class Case:
    """A module to train."""

    make: Callable
    """Returns a module; its values come from torch's generator."""
    draw: Callable
    """Returns features and labels, given a number and a generator."""
    head: object = None
    loss: Callable = lambda module, x, y: F.cross_entropy(module(x), y)
    """The loss of a minibatch in plain torch, for the comparison with a plain loop."""
    local: dict = field(default_factory=dict)


# -- images ------------------------------------------------------------------------------------------------


def images(channels=3, side=8, classes=4):
    def draw(n, generator):
        labels = torch.randint(classes, (n,), generator=generator)
        pictures = torch.randn(n, channels, side, side, generator=generator)
        return pictures + labels[:, None, None, None] / 2, labels

    return draw


class TutorialCNN(nn.Module):
    """Two convolutions with pooling and three linear layers, as in PyTorch's 60-minute tutorial."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5, padding=2), nn.Conv2d(6, 16, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 12), nn.Linear(12, 10), nn.Linear(10, 4)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class QuickstartCNN(TutorialCNN):
    """The same with `.view`, as in the quickstart of Flower."""

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class ViewOfLargeMaps(nn.Module):
    """`.view` where the maps are larger than one pixel, so that channels last cannot be viewed."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 5, 3), nn.Linear(5 * 36, 4)

    def forward(self, x):
        x = F.relu(self.conv(x))
        return self.out(x.view(x.size(0), -1))


class Block(nn.Module):
    """A residual block with BatchNorm."""

    def __init__(self, given, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(given, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or given != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(given, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class UNet(nn.Module):
    """One step down, one up, and a connection across; it labels every pixel."""

    def __init__(self):
        super().__init__()
        self.left, self.bottom = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.right, self.out = nn.Conv2d(12, 6, 3, padding=1), nn.Conv2d(6, 2, 1)

    def forward(self, x):
        left = F.relu(self.left(x))
        x = self.up(F.relu(self.bottom(F.max_pool2d(left, 2))))
        return self.out(F.relu(self.right(torch.cat([left, x], dim=1))))


def pixels(n, generator):
    pictures = torch.randn(n, 3, 8, 8, generator=generator)
    return pictures, (pictures.mean(1) > 0).long()


class PixelClasses(td.Head):
    """Cross entropy of every pixel."""

    def loss(self, outputs, labels):
        return F.cross_entropy(outputs, labels)

    def metrics(self, outputs):
        found = [
            (float(self.loss(o, y)), float((o.argmax(1) == y).float().mean()), len(y)) for o, y in outputs
        ]
        n = sum(count for *_, count in found)
        loss = sum(loss * count for loss, _, count in found) / n
        return {"loss": loss, "accuracy": sum(right * count for _, right, count in found) / n}


class SpectralNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))
        self.out = nn.utils.parametrizations.spectral_norm(nn.Linear(4 * 36, 4))

    def forward(self, x):
        return self.out(F.leaky_relu(self.conv(x)).flatten(1))


# -- sequences ---------------------------------------------------------------------------------------------


def sentences(words=20, longest=6, classes=2):
    """Tokens padded with 0, and their lengths."""

    def draw(n, generator):
        lengths = torch.randint(2, longest + 1, (n,), generator=generator)
        tokens = torch.randint(1, words, (n, longest), generator=generator)
        tokens = tokens * (torch.arange(longest) < lengths[:, None])
        return (tokens, lengths), tokens[:, 0] % classes

    return draw


def masked_sentences(n, generator):
    (tokens, lengths), labels = sentences()(n, generator)
    return {"input_ids": tokens, "attention_mask": (torch.arange(6) < lengths[:, None]).long()}, labels


class PackedLSTM(nn.Module):
    """Two inputs: tokens and lengths."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6, padding_idx=0)
        self.lstm, self.out = nn.LSTM(6, 8, batch_first=True, bidirectional=True), nn.Linear(16, 2)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        return self.out(torch.cat([hidden[0], hidden[1]], dim=1))


class MaskedTransformer(nn.Module):
    """Named inputs, as of Hugging Face: a dict with a mask."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.register_buffer("positions", torch.arange(6), persistent=False)
        self.position = nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 1), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids) + self.position(self.positions)
        x = self.encoder(x, src_key_padding_mask=attention_mask == 0)
        mask = attention_mask.unsqueeze(-1)
        return self.out((x * mask).sum(1) / mask.sum(1))


class LogitsObject(MaskedTransformer):
    """Returns an object with `logits`, and with a `loss` if it is given labels."""

    def forward(self, input_ids, attention_mask, labels=None):
        logits = super().forward(input_ids, attention_mask)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss)


class LogitsDict(MaskedTransformer):
    def forward(self, input_ids, attention_mask):
        return {"logits": super().forward(input_ids, attention_mask)}


class TiedLanguageModel(nn.Module):
    """The embedding is the output layer too."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens):
        return self.out(self.gru(self.embedding(tokens))[0])


def next_tokens(n, generator):
    start = torch.randint(1, 20, (n, 1), generator=generator)
    tokens = (start + torch.arange(6)) % 19 + 1
    return tokens[:, :-1], tokens[:, 1:]


# -- rows --------------------------------------------------------------------------------------------------


def rows(classes=3):
    def draw(n, generator):
        features = torch.randn(n, 5, generator=generator)
        return features, features[:, :classes].argmax(1)

    return draw


def two_inputs(n, generator):
    features, labels = rows()(n, generator)
    return (features, torch.randint(4, (n,), generator=generator)), labels


def numbers(n, generator):
    features = torch.randn(n, 5, generator=generator)
    return features, features.sum(1) + torch.randn(n, generator=generator) / 10


def two_tasks(n, generator):
    features = torch.randn(n, 5, generator=generator)
    return features, torch.stack([(features[:, 0] > 0).float(), features[:, 1]], dim=1)


class MeanSquare(td.Head):
    """A regression."""

    def loss(self, outputs, labels):
        return F.mse_loss(outputs.squeeze(1), labels)

    def metrics(self, outputs):
        found = [(float(self.loss(o, y)), len(y)) for o, y in outputs]
        loss = sum(loss * n for loss, n in found) / sum(n for _, n in found)
        return {"loss": loss, "accuracy": 1 / (1 + loss)}


class BothTasks(MeanSquare):
    """A class and a number, from a module that returns a tuple."""

    def loss(self, outputs, labels):
        logits, guess = outputs
        return F.binary_cross_entropy_with_logits(logits, labels[:, 0]) + F.mse_loss(guess, labels[:, 1])


class MLP(nn.Module):
    def __init__(self, outputs=3, dropout=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout))
        self.out = nn.Linear(8, outputs)

    def forward(self, x):
        return self.out(self.body(x))


class TwoHeads(MLP):
    def forward(self, x):
        x = super().forward(x)
        return x[:, 0], x[:, 1]


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds, self.out = nn.Embedding(4, 3), nn.Linear(8, 3)

    def forward(self, numbers, kind):
        return self.out(torch.cat([numbers, self.kinds(kind)], dim=1))


class Branching(MLP):
    """How deep it is depends on the data."""

    def forward(self, x):
        x = self.body(x)
        while x.norm() > 4:
            x = torch.tanh(x) * 0.5
        if x.mean() > 0:
            x = x * 1.5
        return self.out(x)


class Noisy(MLP):
    """Draws random numbers in training."""

    def forward(self, x):
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        return super().forward(x)


class NormOfRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.out = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.one(x))))


def frozen_body():
    """A module whose first layer, and a BatchNorm in it, are frozen, as one that was trained before."""
    module = NormOfRows()
    module.norm.running_mean.normal_()
    module.norm.running_var.uniform_(0.5, 1.5)
    for part in (module.one, module.norm):
        part.requires_grad_(False)
    return module


def with_frozen_eval(module, x, y):
    module.norm.eval()  # a frozen layer keeps its statistics
    return F.cross_entropy(module(x), y)


def named(loss):
    return lambda module, x, y: loss(module(**x), y)


def several(loss):
    return lambda module, x, y: loss(module(*x), y)


CASES = {
    "the CNN of PyTorch's tutorial": Case(TutorialCNN, images()),
    "the CNN of Flower's quickstart": Case(QuickstartCNN, images()),
    "view of large maps": Case(ViewOfLargeMaps, images()),
    "resnet, each client's own BatchNorm": Case(ResNet, images(), local={"batch_norm": "client"}),
    "resnet, BatchNorm replaced": Case(ResNet, images(), local={"batch_norm": "group_norm"}),
    "BatchNorm of rows": Case(NormOfRows, rows(), local={"batch_norm": "client"}),
    "u-net": Case(UNet, pixels, PixelClasses()),
    "spectral norm": Case(SpectralNorm, images()),
    "packed lstm": Case(PackedLSTM, sentences(), loss=several(F.cross_entropy)),
    "transformer with masks": Case(MaskedTransformer, masked_sentences, loss=named(F.cross_entropy)),
    "an object with logits": Case(
        LogitsObject, masked_sentences, loss=named(lambda o, y: F.cross_entropy(o.logits, y))
    ),
    "a dict with logits": Case(
        LogitsDict, masked_sentences, loss=named(lambda o, y: F.cross_entropy(o["logits"], y))
    ),
    "the module's own loss": Case(
        LogitsObject, masked_sentences, td.ModuleLoss(), lambda module, x, y: module(**x, labels=y).loss
    ),
    "tied embedding": Case(
        TiedLanguageModel, next_tokens, td.NextToken(pad=0),
        lambda module, x, y: F.cross_entropy(module(x).flatten(0, 1), y.flatten()),
    ),
    "dropout": Case(lambda: MLP(dropout=0.5), rows()),
    "random numbers": Case(Noisy, rows()),
    "regression": Case(
        lambda: MLP(1), numbers, MeanSquare(), lambda module, x, y: F.mse_loss(module(x)[:, 0], y)
    ),
    "two tasks": Case(
        lambda: TwoHeads(2), two_tasks, BothTasks(), lambda module, x, y: BothTasks().loss(module(x), y)
    ),
    "two inputs": Case(TwoInputs, two_inputs, loss=several(F.cross_entropy)),
    "control flow that depends on the data": Case(Branching, rows()),
    "frozen parts": Case(frozen_body, rows(), loss=with_frozen_eval),
    "personal head": Case(MLP, rows(), local={"personal": ("out.*",)}),
}  # fmt: skip


def hugging_face_cases():
    """Return the cases of transformers and peft, if these are installed (`make test-transformers`)."""
    if not all(importlib.util.find_spec(name) for name in ("transformers", "peft")):
        return {}
    import hugging_face_modules

    return hugging_face_modules.cases()


def module_of(case):
    """Return the module of a case, always with the same values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return case.make()


def clients_of(case, clients=3, examples=10):
    """Return the examples of each client."""
    generator = torch.Generator().manual_seed(4)
    return {f"client-{number}": case.draw(examples, generator) for number in range(clients)}
