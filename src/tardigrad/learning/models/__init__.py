"""Models that a config can name. In Python, any torch.nn.Module can be used instead."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SerializeAsAny

from tardigrad.core.own_code import or_own
from tardigrad.core.setting import by_name_or_place
from tardigrad.learning.models.architecture import Architecture, Shape
from tardigrad.learning.models.bag import BagOfWords
from tardigrad.learning.models.cnn import FedACCNN, FedAsyncCNN, FedBuffCNN, MasFLCNN
from tardigrad.learning.models.lstm import CharLSTM, FedBuffLSTM
from tardigrad.learning.models.mlp import MLP, FedACMLP
from tardigrad.learning.models.own_model import OwnModel
from tardigrad.learning.models.resnet import ResNet18
from tardigrad.learning.models.transformer import Transformer

Model = Annotated[
    MLP
    | FedACMLP
    | FedACCNN
    | FedBuffCNN
    | FedAsyncCNN
    | MasFLCNN
    | BagOfWords
    | FedBuffLSTM
    | CharLSTM
    | Transformer
    | ResNet18,
    Field(discriminator="kind"),
    by_name_or_place,
    or_own(OwnModel),
    SerializeAsAny(),
]
"""The `[model]` table of a config: one of these models, or an `OwnModel` from the user's own file."""

__all__ = [
    "MLP",
    "Architecture",
    "BagOfWords",
    "CharLSTM",
    "FedACCNN",
    "FedACMLP",
    "FedAsyncCNN",
    "FedBuffCNN",
    "FedBuffLSTM",
    "MasFLCNN",
    "Model",
    "OwnModel",
    "ResNet18",
    "Shape",
    "Transformer",
]
