"""Plans: they have the numbers of the run, and unused options and unlimited answers are refused."""

import json
import math
from dataclasses import replace

import pytest

import tardigrad as td
from tardigrad.privacy.accounting import ByParticipation
from tardigrad.privacy.blt import BLT
from tardigrad.privacy.clipping import AdaptiveClip
from tardigrad.privacy.independent import Independent
from tardigrad.privacy.planning import Question, _largest_prefix, answer, compared
from tardigrad.privacy.settings import Participation
from tardigrad.privacy.tree import Tree

TREES = [Tree(), Tree(honaker=False), Tree(restart_every=12), Tree(honaker=False, restart_every=16)]


@pytest.mark.parametrize("noise", [BLT(), Independent(), *TREES], ids=repr)
def test_the_prefix_noise_is_that_of_the_worst_prefix(noise):
    for steps in [*range(1, 70), 127, 128, 129, 200]:
        variances = {t: noise.prefix_variance(t, steps, 2, 5) for t in range(1, steps + 1)}
        found, step = _largest_prefix(noise, steps, 2, 5)
        assert found == pytest.approx(max(variances.values())), steps
        assert variances[step] == found


def test_tree_has_more_prefix_noise_than_blt_at_a_power_of_two():
    for steps in (2047, 2048, 2049):
        found = compared(Question(epsilon=2.0, steps=steps))
        assert 2 * found["blt"].prefix_noise < found["tree"].prefix_noise < found["independent"].prefix_noise


@pytest.mark.parametrize(
    ("adaptive", "versions"), [(None, None), (1.02, None), (None, 1.1), (1.3, 1.2)], ids=repr
)
def test_a_plan_has_the_numbers_of_the_run(adaptive, versions):
    settings = {
        "participations": 3,
        "separation": 30,
        "epsilon": 2.0,
        "delta": 1e-6,
        "noise": Tree(honaker=False),
    }
    if adaptive:
        settings["adaptive"] = AdaptiveClip(overhead=adaptive)
    if versions:
        settings |= {"versions": "private", "version_overhead": versions}
    guarantee = Participation(**settings).guarantee(100, 10**6, td.Asynchronous(), td.Buffer(size=10))
    plan = answer(
        Question(
            epsilon=2.0,
            delta=1e-6,
            steps=100,
            participations=3,
            separation=30,
            noise="tree",
            honaker=False,
            adaptive_overhead=adaptive,
            version_overhead=versions,
            buffer_size=10,
        )
    )
    assert plan.noise_multiplier == pytest.approx(guarantee.noise_multiplier)
    assert plan.overhead == pytest.approx(guarantee.overhead)
    noise = guarantee.noise_multiplier * guarantee.overhead * math.sqrt(6)  # 95 has six set bits
    assert plan.prefix_noise == pytest.approx(noise)
    assert plan.mean_prefix_noise == pytest.approx(noise / 10)
    assert plan.prefix_step == 95
    assert plan.worked_out == "noise_multiplier"
    assert plan.memory == 7


def test_restarts_are_planned_for():
    plain = answer(Question(epsilon=2.0, steps=512, participations=8, separation=64, noise="tree"))
    often = answer(
        Question(epsilon=2.0, steps=512, participations=8, separation=64, noise="tree", restart_every=64)
    )
    mode = ByParticipation(Tree(restart_every=64), 8, 64)
    assert often.noise_multiplier == pytest.approx(mode.noise_multiplier(2.0, 512, 1e-7))
    assert often.sensitivity < plain.sensitivity
    assert (often.memory, plain.memory) == (7, 10)


def test_plan_with_unlimited_steps_is_refused():
    for noise in ("blt", "independent"):
        with pytest.raises(td.ConfigError, match="steps and more, but no more can be planned for"):
            answer(Question(epsilon=8.0, noise_multiplier=6.0, noise=noise))
    found = answer(Question(epsilon=0.4, noise_multiplier=20.0, noise="tree"))
    mode = ByParticipation(Tree(), 1, 1)
    assert mode.epsilon(20.0, found.steps, 1e-7) <= 0.4 < mode.epsilon(20.0, found.steps + 1, 1e-7)
    assert found.worked_out == "steps"
    with pytest.raises(td.ConfigError, match="constants for at most 16384 steps"):
        answer(Question(epsilon=8.0, steps=16385))


GIVEN = Question(epsilon=2.0, steps=100)
SAMPLED = replace(GIVEN, sampling_rate=0.01)
WRONG = {
    "--delta 0:": replace(GIVEN, delta=0.0),
    "--delta -0.1:": replace(GIVEN, delta=-0.1),
    "--delta nan:": replace(GIVEN, delta=math.nan),
    "--delta 1:": replace(GIVEN, delta=1.0),
    "--epsilon 0:": replace(GIVEN, epsilon=0.0),
    "--epsilon nan:": replace(GIVEN, epsilon=math.nan),
    "--epsilon inf:": replace(GIVEN, epsilon=math.inf),
    "--noise-multiplier 0:": replace(GIVEN, epsilon=None, noise_multiplier=0.0),
    "--steps 0:": replace(GIVEN, steps=0),
    "--participations 0:": replace(GIVEN, participations=0),
    "--restart-every 0:": replace(GIVEN, noise="tree", restart_every=0),
    "--adaptive-overhead 1:": replace(GIVEN, adaptive_overhead=1.0),
    "--version-overhead 0.9:": replace(GIVEN, version_overhead=0.9),
    "--sampling-rate 0:": replace(GIVEN, sampling_rate=0.0),
    "--sampling-rate 1.5:": replace(GIVEN, sampling_rate=1.5),
    "--noise pink:": replace(GIVEN, noise="pink"),
    "--by guess:": replace(SAMPLED, by="guess"),
    "--participations: not used with --sampling-rate": replace(SAMPLED, participations=1),
    "--separation: not used with --sampling-rate": replace(SAMPLED, separation=3),
    "--noise: not used with --sampling-rate": replace(SAMPLED, noise="independent"),
    "--no-honaker and --restart-every: not used with --sampling-rate": replace(
        SAMPLED, honaker=False, restart_every=3
    ),
    "--population: not used with --sampling-rate": replace(SAMPLED, population=9, buffer_size=3),
    "--by: not used without --sampling-rate": replace(GIVEN, by="rdp"),
    "--restart-every: not used without --noise tree": replace(GIVEN, restart_every=3),
    "--no-honaker: not used without --noise tree": replace(GIVEN, noise="independent", honaker=False),
    "--population: not used without --buffer-size": replace(GIVEN, population=5),
    "all four were given": replace(GIVEN, noise_multiplier=1.0, delta=1e-6),
    "noise_multiplier and steps were left open": Question(epsilon=2.0),
    "--separation: give it": Question(epsilon=2.0, noise_multiplier=9.0, participations=2),
}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_or_unused_options_are_refused(said):
    with pytest.raises(td.ConfigError) as raised:
        answer(WRONG[said])
    assert said in str(raised.value)


@pytest.mark.parametrize("noise", ["blt", "tree"])
def test_plan_checks_that_there_are_enough_clients(noise):
    given = replace(GIVEN, participations=2, separation=40, noise=noise, buffer_size=50)
    assert answer(replace(given, population=2500)).population == 2500
    with pytest.raises(td.ConfigError, match="need 5,000 contributions, but 2,499 clients may make 2 each"):
        answer(replace(given, population=2499))
    with pytest.raises(td.ConfigError, match=r"separation: in 40 steps .* there are 1,999 clients"):
        answer(replace(given, population=1999, participations=4))


def test_kinds_of_noise_are_compared():
    found = compared(replace(GIVEN, restart_every=32))
    assert list(found) == ["blt", "tree", "independent"]
    assert [one.memory for one in found.values()] == [3, 6, 0]
    for kind, one in found.items():
        tree = {"restart_every": 32} if kind == "tree" else {}
        assert one == answer(replace(GIVEN, noise=kind, **tree))
    long = compared(Question(epsilon=2.0, steps=20_000))
    assert isinstance(long["blt"], td.ConfigError)
    assert long["tree"].prefix_noise < long["independent"].prefix_noise
    for wrong, said in [
        (replace(GIVEN, noise="tree"), "--noise: --compare"),
        (SAMPLED, "--sampling-rate: --compare"),
        (replace(GIVEN, delta=0.0), "--delta 0"),
        (replace(GIVEN, population=3, buffer_size=5), "need 500 contributions"),
    ]:
        with pytest.raises(td.ConfigError, match=said):
            compared(wrong)


def test_plan_on_the_command_line(cli):
    def planned(question):
        code, out, err = cli("privacy", "plan", *question.split(), "--json")
        assert code == 0, err
        return json.loads(out)

    tree = "--participations 4 --separation 512 --noise tree"
    found = planned(f"--epsilon 2 --steps 2048 {tree} --buffer-size 10 --population 5120")
    assert found["noise_multiplier"] == pytest.approx(19.59249, rel=1e-5)
    assert found["sensitivity"] == pytest.approx(8)
    assert found["prefix_step"] == 2047
    assert found["population"] == 5120
    sampled = planned("--noise-multiplier 1 --steps 2000 --sampling-rate 5e-4")
    assert sampled["epsilon"] == pytest.approx(0.913268, abs=1e-4)
    assert sampled["participations"] is None
    assert planned(f"--noise-multiplier 20 --epsilon 2 {tree}")["steps"] >= 2048
    found = planned(f"--noise-multiplier 19.59249 --epsilon 2 --steps 2048 {tree}")
    assert found["delta"] == pytest.approx(1e-7, rel=1e-4)
    assert found["worked_out"] == "delta"
    both = planned("--epsilon 2 --steps 20000 --compare --no-honaker")
    assert "constants for at most 16384" in both["blt"]["error"]
    assert both["tree"]["memory"] == 15
    for wrong in (
        "--epsilon 2",
        "--epsilon 2 --steps 5 --noise-multiplier 1 --delta 1e-6",
        "--epsilon 2 --steps 5 --noise pink",
        "--epsilon -2 --steps 5",
        "--epsilon 2 --steps 5 --delta 0",
        "--epsilon 8 --noise-multiplier 6",
        "--epsilon 2 --steps 5 --by rdp",
        "--noise-multiplier 3 --epsilon 2 --participations 2",
    ):
        code, _, err = cli("privacy", "plan", *wrong.split())
        assert code == 2, wrong
        assert err.count("\n") == 1, err


@pytest.mark.parametrize("sought", ["--epsilon 8 --steps 2000", "--noise-multiplier 6 --steps 2048"])
def test_tables_fit_into_80_columns(cli, monkeypatch, sought):
    monkeypatch.setenv("COLUMNS", "80")
    options = "--participations 4 --separation 400 --buffer-size 100 --population 250000"
    for more in ("", "--compare", "--adaptive-overhead 1.02 --version-overhead 1.1"):
        code, out, err = cli("privacy", "plan", *f"{sought} {options} {more}".split())
        assert code == 0, err
        assert "…" not in out
        assert max(map(len, out.splitlines())) <= 80
    code, out, _ = cli("privacy", "plan", *sought.split(), "--compare")
    for word in ("blt", "tree", "independent", "sensitivity", "prefix noise", "memory"):
        assert word in out


@pytest.mark.parametrize(("separation", "said"), [(80, ", of which 40 steps have room for 1"), (10, "")])
def test_a_separation_in_which_the_participations_do_not_fit_is_told(separation, said):
    found = answer(Question(epsilon=8.0, steps=40, participations=4, separation=separation, noise="tree"))
    assert found.mode == f"participation: at most 4, {separation} steps apart{said}"
