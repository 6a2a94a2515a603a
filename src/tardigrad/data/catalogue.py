"""All data sets that a config can name, as one type."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SerializeAsAny

from tardigrad.core.own_code import or_own
from tardigrad.core.setting import by_name_or_place
from tardigrad.data.sets.celeba import CelebA
from tardigrad.data.sets.chat import Chat
from tardigrad.data.sets.cifar10 import CIFAR10
from tardigrad.data.sets.digits import Digits
from tardigrad.data.sets.emnist import EMNIST
from tardigrad.data.sets.flair import FLAIR
from tardigrad.data.sets.mnist import MNIST, FashionMNIST
from tardigrad.data.sets.own_data import OwnData
from tardigrad.data.sets.own_files import Files
from tardigrad.data.sets.sent140 import Sent140
from tardigrad.data.sets.shakespeare import Shakespeare
from tardigrad.data.sets.stackoverflow import StackOverflow
from tardigrad.data.sets.synthetic import Synthetic

Source = Annotated[
    Digits
    | Synthetic
    | CIFAR10
    | MNIST
    | FashionMNIST
    | EMNIST
    | CelebA
    | FLAIR
    | Shakespeare
    | Sent140
    | Chat
    | StackOverflow
    | Files,
    Field(discriminator="kind"),
    by_name_or_place,
    or_own(OwnData),
    SerializeAsAny(),
]
"""The `[data]` table of a config: one of these data sets, told apart by `kind`, or `OwnData` from the user's
own file."""
