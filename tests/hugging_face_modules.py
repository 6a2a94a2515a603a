"""Modules of transformers and peft with random values, for `ordinary_modules`: `make test-transformers`."""

import torch.nn.functional as F

import tardigrad as td
from ordinary_modules import Case, masked_sentences, named


def small_bert():
    """Return a classifier of transformers that is as small as it can be."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=2, attn_implementation="eager",
    )  # fmt: skip
    return BertForSequenceClassification(config)


def bert_with_adapters():
    """Return the same classifier with LoRA adapters of peft; all but these and the classifier is frozen."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"])
    return get_peft_model(small_bert(), lora)


def cases():
    """Return the cases by their names."""
    logits = named(lambda outputs, labels: F.cross_entropy(outputs.logits, labels))
    return {
        "BERT of transformers": Case(small_bert, masked_sentences, loss=logits),
        "BERT with its own loss": Case(
            small_bert, masked_sentences, td.ModuleLoss(), lambda module, x, y: module(**x, labels=y).loss
        ),
        "LoRA of peft": Case(bert_with_adapters, masked_sentences, loss=logits),
    }
