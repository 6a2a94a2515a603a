"""The LoRA example, with a small encoder in place of the real one: `make test-transformers`."""

import sys
from pathlib import Path

import pytest
import torch

import tardigrad as td

pytest.importorskip("peft")
EXAMPLE = Path(__file__).parents[2] / "examples" / "lora"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])
    import lora

    yield lora
    del sys.modules["lora"]


def small_encoder():
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(
        BertConfig(
            vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=8, attn_implementation="eager",
        )
    )  # fmt: skip


def clients(seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(30, (12, 8), generator=generator)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    return inputs, torch.randint(2, (12,), generator=generator)


def test_only_adapters_travel_and_peft_loads_what_was_trained(example, tmp_path):
    from peft import PeftModel

    result = td.run(
        model=example.with_adapters(small_encoder(), rank=2), clients={n: clients(n) for n in range(4)},
        algorithm="fedbuff", buffer={"size": 2}, pace={"kind": "asynchronous", "concurrency": 2},
        stop={"trips": 8}, local={"lr": 0.5, "batch_size": 4},
    )  # fmt: skip
    trained = example.with_adapters(small_encoder(), rank=2)
    travels = sum(p.numel() for p in trained.parameters() if p.requires_grad)
    assert travels == 2 * 2 * 16 * 2 + 2 * 17, (
        "two matrices of rank 2 for query and value, and the linear layer"
    )
    trips = 8
    assert trips * 8 * travels <= result.bytes <= (trips + 2) * 8 * travels
    example.save_adapters(trained, result.model, tmp_path)
    loaded = PeftModel.from_pretrained(small_encoder(), tmp_path).eval()
    inputs, _ = clients(9)
    with torch.no_grad():
        expected = trained.eval().encoder(**inputs).last_hidden_state
        assert torch.equal(loaded(**inputs).last_hidden_state, expected)
        assert not torch.equal(small_encoder().eval()(**inputs).last_hidden_state, expected)
