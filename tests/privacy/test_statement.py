"""The privacy statement: the guarantee, its assumptions, and clear marks where it is void."""

import pytest
import torch

import tardigrad as td
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.clipping import AdaptiveClip
from tardigrad.privacy.settings import LocalPrivacy, Participation, PoissonSampling
from tardigrad.privacy.statement import statement
from tardigrad.privacy.tree import Tree

BUFFER = td.Buffer(size=10)
SAMPLED = {"pace": td.Poisson(probability=0.001), "buffer": td.Buffer()}


def said(privacy, population=100_000, made=None, pace=None, buffer=BUFFER):
    guarantee = privacy.guarantee(200, population, pace or td.Asynchronous(), buffer)
    return statement(guarantee, privacy, "fedbuff", population, made), guarantee


def row(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return line.removeprefix(f"| {name} | ").removesuffix(" |")


def section(text, title):
    return text.split(f"## {title}")[1].split("\n## ")[0]


def private(**settings):
    return Participation(**({"epsilon": 2.0, "participations": 4, "separation": 50} | settings))


@pytest.mark.parametrize("noise", [BLT(), Tree()], ids=lambda noise: noise.kind)
def test_statement_has_all_numbers_of_the_guarantee(noise):
    text, guarantee = said(private(noise=noise, clip=0.3), made=120)
    assert row(text, "epsilon") == f"{guarantee.epsilon(120):.4f} after 120 steps"
    assert guarantee.epsilon(120) < 2.0
    assert row(said(private(noise=noise))[0], "epsilon") == "2.0000 when all planned steps are made"
    assert row(text, "delta") == "1e-07"
    assert row(text, "mode").startswith("participation: at most 4 contributions of one client, at least 50")
    assert "no amplification" in row(text, "mode")
    assert row(text, "adjacency").startswith("zero-out")
    assert noise.kind in row(text, "accounting")
    assert row(text, "noise multiplier").startswith(f"{guarantee.noise_multiplier:.6g}")
    assert row(text, "clip") == "0.3"
    assert row(text, "divisor") == "10, fixed"
    assert row(text, "steps") == "planned for 200, the budget allows 200, made 120"
    assert "oid" not in text, "neither void nor VOID"
    assert "ledger is right" in section(text, "Assumptions")
    assert "seed" not in text


def test_noise_from_the_seed_makes_the_statement_void():
    text, _ = said(private(noise_from="seed"))
    assert "**This is a simulation: the guarantee is void.**" in text
    assert "VOID" in row(text, "noise from")


def test_statement_without_noise_says_that_nothing_is_private():
    text, _ = said(private(epsilon=None, noise_multiplier=0.0))
    assert "**Nothing is private: no noise was added**" in text
    assert row(text, "epsilon").startswith("inf")


def test_emulated_cohort_is_called_another_run():
    text, _ = said(PoissonSampling(epsilon=2.0, emulated_cohort=5000), **SAMPLED)
    assert "**The guarantee is that of another run.**" in text
    assert "cohort of 5,000" in text
    assert "cohort of 100, is not private" in text


def test_statement_of_sampling_names_its_assumptions():
    text, _ = said(PoissonSampling(epsilon=2.0), **SAMPLED)
    assert row(text, "adjacency") == "add or remove one client"
    assert row(text, "mode") == "Poisson sampling, rate 0.001 a step (amplification is assumed)"
    assert "Renyi" in row(text, "accounting")
    rests = section(text, "Assumptions")
    assert "who joined stays secret" in rests
    assert "sampling.key" in rests
    assert "oid" not in text
    assert "seed" not in text
    assumed, _ = said(
        PoissonSampling(epsilon=2.0, sampling_rate=0.001),
        buffer=BUFFER.model_copy(update={"once_per_client": True}),
    )
    assert "**The sampling is assumed, not made.**" in assumed
    assert "this one's guarantee is void" in assumed


def test_too_large_delta_is_marked():
    assert "too large" not in row(said(private(delta=1e-7))[0], "delta")
    assert "**too large** for 100,000 clients" in row(said(private(delta=1e-5))[0], "delta")


@pytest.mark.parametrize(
    "privacy",
    [private(), LocalPrivacy(epsilon=2.0), PoissonSampling(epsilon=2.0)],
    ids=lambda privacy: privacy.kind,
)
def test_unprotected_facts_are_listed(privacy):
    text, _ = said(privacy, **(SAMPLED if privacy.kind == "poisson" else {}))
    unprotected = section(text, "What is not protected")
    for what in (
        "takes part at all", "events.jsonl", "metrics.csv", "summary.json", "inputs.json", "Several runs",
        "held_out", "stop.accuracy", "tuned learning rates",
    ):  # fmt: skip
        assert what in unprotected
    assert ("version that an upload started from" in unprotected) == (privacy.kind != "local")
    assert "not finite counts as zeros" in " ".join(section(text, "Assumptions").split())


def test_parts_of_the_payload_are_listed():
    text, guarantee = said(private(adaptive=AdaptiveClip(), versions="private"))
    assert row(text, "payload norm").startswith(f"{guarantee.overhead:.4g} times the clip")
    assert "whether it was within the clip, its version" in row(text, "payload norm")
    assert row(text, "clip") == "1 at first, then adaptive"
    assert "version that an upload started from" not in section(text, "What is not protected")


def test_statement_of_local_privacy_does_not_trust_the_server():
    text, _ = said(LocalPrivacy(epsilon=2.0, participations=3))
    assert row(text, "mode") == "local: noise on each upload; at most 3 uploads of one client"
    assert "server is trusted" not in text
    assert "Each client clips and adds its noise by itself" in section(text, "Assumptions")


def test_run_writes_its_statement_before_and_after(tmp_path):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    clients = dict.fromkeys(range(30), (x, torch.arange(6) % 2))
    seen = []

    class Look:
        def begin(self, config, history):
            seen.append((tmp_path / "run/privacy.md").read_text())

        def see(self, events):
            pass

        def end(self):
            pass

    result = td.run(
        model=torch.nn.Linear(4, 2), clients=clients, out=tmp_path / "run", observers=(Look(),),
        privacy=Participation(epsilon=2.0, participations=2, separation=3), stop=td.Stop(steps=8),
        buffer=td.Buffer(size=5), pace=td.Asynchronous(concurrency=10),
    )  # fmt: skip
    assert "when all planned steps are made" in row(seen[0], "epsilon")
    after = (tmp_path / "run/privacy.md").read_text()
    assert row(after, "epsilon") == f"{result.epsilon:.4f} after 8 steps"
    assert row(after, "algorithm") == "fedbuff"
    assert not (tmp_path / "run/noise.keys").exists()


def test_counts_of_one_are_singular():
    text, _ = said(private(participations=1, separation=None), made=1)
    assert row(text, "epsilon").endswith(" after 1 step")
    assert row(text, "mode") == (
        "participation: at most 1 contribution of one client (no amplification is assumed)"
    )
    assert row(said(private(separation=1))[0], "mode") == (
        "participation: at most 4 contributions of one client, at least 1 step apart "
        "(no amplification is assumed)"
    )
    assert row(said(LocalPrivacy(epsilon=2.0))[0], "mode") == (
        "local: noise on each upload; at most 1 upload of one client"
    )
