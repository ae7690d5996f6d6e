"""Policies that are exported again and again from a template: the file acts as the policy does, whatever was learned."""

import numpy as np
import pytest
import torch

from relayrl.extend import make_run_parts
from relayrl.models.exports.export import metadata_of
from relayrl.models.exports.exported import ExportedActor
from relayrl.models.exports.onnx_template import OnnxTemplate

RUNS = {
    "discrete": ("CartPole-v1", "ppo", {}),
    "gaussian, normalised": ("Pendulum-v1", "ppo", {"network.normalize_observations": True}),
    "squashed": ("Pendulum-v1", "sac", {}),
    "deterministic": ("Pendulum-v1", "td3", {}),
    "central critic": ("native:simple_spread", "mappo", {}),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_filled_template_is_the_policy_after_every_change(tmp_path, run):
    env, algo, settings = RUNS[run]
    parts = make_run_parts(env, algo=algo, settings=settings)
    parts.close()
    name, policy = next(iter(parts.policies.items()))
    template = OnnxTemplate(policy)
    generator = torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)
    for version in range(3):
        group = parts.env.groups[name]
        metadata = metadata_of(policy, env=env, algo=algo, group=name, version=version, masked=group.masks_actions)
        path = tmp_path / f"{version}.onnx"
        path.write_bytes(template.filled(metadata))
        exported = ExportedActor(path)
        assert exported.metadata.policy_version == version
        assert not exported.has_value
        obs = rng.normal(size=(5, *policy.observation_space.shape)).astype(np.float32)
        with torch.no_grad():
            expected = policy.distribution(policy.features(torch.from_numpy(obs))).numpy()
        np.testing.assert_allclose(exported.distribution(obs), expected, atol=1e-4)
        with torch.no_grad():  # whatever learning does: parameters move, and biases that began alike differ
            for parameter in policy.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    assert template._model is not None, "it was traced anew each time"
