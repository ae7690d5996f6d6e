"""What goes into the facade's policies and what leaves: kernels of the caller's, and model modules."""

from __future__ import annotations

import pytest
import torch
from test_facade import ACT_DIM, OBS_DIM, assert_same_as_live, make_trainer, train
from torch import nn

from relayrl.errors import ConfigError, UnknownNameError


def test_a_pair_of_modules_is_a_kernel(tmp_path):
    pair = nn.Linear(OBS_DIM, ACT_DIM), nn.Sequential(nn.Linear(OBS_DIM, 4), nn.ReLU(), nn.Linear(4, 1))
    given = pair[0].weight.detach().clone()
    trainer = make_trainer("ppo", tmp_path, kernel=pair)
    assert torch.equal(trainer.policies["agent"].actor.weight, given)
    train(trainer)
    assert not torch.equal(trainer.policies["agent"].actor.weight, given)
    assert torch.equal(pair[0].weight, given)
    assert_same_as_live(trainer.acquire_model(), trainer.policies["agent"])


@pytest.mark.parametrize(
    ("algo", "pair", "message"),
    [
        ("ppo", (nn.Linear(OBS_DIM, 7), nn.Linear(OBS_DIM, 1)), r"actor gives \[2, 7\]"),
        ("ppo", (nn.Linear(9, ACT_DIM), nn.Linear(OBS_DIM, 1)), r"actor does not take \[2, 3\]"),
        ("td3", (nn.Linear(OBS_DIM, ACT_DIM), nn.Linear(OBS_DIM, 1)), r"critic does not take \[2, 5\]"),
        (
            "td3",
            (nn.Linear(OBS_DIM, ACT_DIM), nn.Linear(OBS_DIM + ACT_DIM, 1)),
            "has 1 critics, and this algorithm learns",
        ),
        ("ddpg", (nn.Linear(OBS_DIM, ACT_DIM), (nn.Linear(OBS_DIM + ACT_DIM, 1),) * 2), "ddpg has 1 critics a policy"),
        ("mappo", (nn.Linear(OBS_DIM, ACT_DIM), nn.Linear(OBS_DIM, 1)), r"critic does not take \[2, 7\]"),
    ],
)
def test_modules_that_do_not_fit_are_refused(algo, pair, message, tmp_path):
    trainer = make_trainer(algo, tmp_path, kernel=pair)
    with pytest.raises(ConfigError, match=message):
        _ = trainer.policies


@pytest.mark.parametrize("algo", ["ppo", "mappo", "td3"])
def test_critics_are_built_in_where_none_is_given(algo, tmp_path):
    trainer = make_trainer(algo, tmp_path, kernel=(nn.Linear(OBS_DIM, ACT_DIM), None))
    train(trainer)
    for name, model in trainer.acquire_models().items():
        assert_same_as_live(model, trainer.policies[name])


def test_twin_critics_of_the_callers_value_features_and_actions(tmp_path):
    critics = nn.Linear(OBS_DIM + ACT_DIM, 1), nn.Linear(OBS_DIM + ACT_DIM, 1)
    trainer = make_trainer("td3", tmp_path, kernel=(nn.Linear(OBS_DIM, ACT_DIM), critics))
    own = trainer._learned().trainer._algorithm.groups["agent"].q.critics
    assert [torch.equal(mine.weight, given.weight) for mine, given in zip(own, critics, strict=True)] == [True, True]
    train(trainer)
    assert not torch.equal(own[0].weight, critics[0].weight)
    assert_same_as_live(trainer.acquire_model(), trainer.policies["agent"])


@pytest.mark.parametrize("algo", ["ppo", "td3", "sac"])
def test_model_modules_act_as_the_policy_does(algo, tmp_path):
    trainer = make_trainer(algo, tmp_path)
    train(trainer)
    policy, module = trainer.policies["agent"], trainer.acquire_model("onnx")
    assert_same_as_live(module, policy)
    assert (module.metadata.env, module.metadata.algo) == ("line", algo)
    assert module.metadata.policy_version == trainer.policy_version
    assert module.path.read_bytes() == module.content
    script = trainer.acquire_model("torchscript")
    obs = torch.randn(5, OBS_DIM, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(script.script()(obs)[0], policy.distribution(policy.features(obs)))
    assert script.save(tmp_path / "elsewhere" / "model.pt").read_bytes() == script.content


def test_model_modules_say_which_way_they_are_run(tmp_path):
    trainer = make_trainer("ppo", tmp_path)
    with pytest.raises(ConfigError, match=r"use script\(\)"):
        trainer.acquire_model("torchscript").actor()
    with pytest.raises(ConfigError, match=r"use actor\(\)"):
        trainer.acquire_model("onnx").script()
    with pytest.raises(UnknownNameError, match="did you mean 'onnx'"):
        trainer.acquire_model("onxx")
