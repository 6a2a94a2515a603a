"""What a config for a Flower grid may say."""

import numpy as np
import pytest
from local_nodes import START

import tardigrad as td
from tardigrad.data.evaluation import Evaluator
from tardigrad.errors import ConfigError
from tardigrad.experiments.runs.simulation_assembly import training_parts
from tardigrad.flower.grid_run import assemble_nodes, check_nodes_can_run
from tardigrad.flower_grid.named_arrays import ArraysModule
from tardigrad.learning.local import Trainer
from tardigrad.learning.profile import Profile
from tardigrad.privacy.keys import NoiseKeys


def assembled(arrays=None, **keywords):
    settings = td.Config(**{"buffer": {"size": 2}, "stop": {"steps": 5}} | keywords)
    assembly = assemble_nodes(settings, ArraysModule(arrays or START), range(4))
    check_nodes_can_run(assembly.config)
    return assembly


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"data": "digits"}, "data: the ClientApp brings its own"),
        ({"model": "mlp"}, "model: the ClientApp brings its own"),
        ({"head": "regression"}, "head: the ClientApp brings its own"),
        ({"local": {"lr": 0.5}}, "local.lr: the ClientApp trains"),
        ({"encoding": "int8"}, "whole arrays"),
        ({"broadcast": "bfloat16"}, "whole arrays"),
        ({"secure": {"masks": False}}, "ClientApps do not mask"),
        ({"adversaries": "sign_flip"}, "adversaries: they are clients of a simulation"),
        ({"privacy": {"kind": "local", "epsilon": 5.0}}, "'local' has clients add noise"),
        ({"privacy": {"kind": "poisson", "epsilon": 5.0}}, "real ones are not"),
        ({"pace": {"kind": "arrivals"}}, "'arrivals' decides when nodes turn up"),
        ({"algorithm": "defedavg"}, "'queued' decides when nodes turn up"),
        ({"algorithm": "weight_prediction"}, "set algorithm.expected_staleness"),
        ({"algorithm": "masfl"}, "local.steps: the step sizes of masfl follow"),
        ({"algorithm": "ca2fl", "buffer": {"size": 2, "weights": "examples"}}, "use 'equal'"),
    ],
)
def test_what_nodes_decide_or_are_not_told_is_refused(keywords, said):
    with pytest.raises(ConfigError, match=said):
        assembled(**keywords)


def test_a_simulation_may_have_adversaries_unless_they_poison_examples():
    """What a ClientApp trains in a simulation (`simulate`) has the layers of every other simulation."""

    def parts(adversaries):
        config = td.Config(adversaries=adversaries, buffer={"size": 2}, stop={"steps": 5})
        assembly = assemble_nodes(config, ArraysModule(START), range(4))
        return assembly, training_parts(assembly, 0, _Untrained(), _Unevaluated())

    assembly, _ = parts("sign_flip")
    assert [layer.name for layer in assembly.aggregator(NoiseKeys()).layers] == ["adversaries"]
    with pytest.raises(ConfigError, match="those of an app are its own"):
        parts("backdoor")


class _Untrained(Trainer):
    def __init__(self):
        self.profile = Profile(on=False)


class _Unevaluated(Evaluator):
    def __init__(self):
        pass


def test_statistics_do_not_go_with_privacy():
    arrays = START | {"norm.running_var": np.ones(2, np.float32)}
    with pytest.raises(ConfigError, match=r"'norm\.running_var' follows the nodes' data"):
        assembled(
            arrays, privacy={"kind": "participation", "epsilon": 5.0, "participations": 3, "separation": 1}
        )


def test_all_nodes_train_by_default():
    assert assembled().config.pace.concurrency == 4


def test_the_population_is_kept_with_the_config():
    assert assembled().config.service.population == 4
