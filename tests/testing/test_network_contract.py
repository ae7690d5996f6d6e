"""Every check of the kernel contract is failed by one network that breaks this rule and no other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from relayrl.errors import ConfigError
from relayrl.models.network_settings import Activation, NetworkSettings
from relayrl.models.networks.mlp import MLP
from relayrl.models.networks.network_factory import BuiltInNetworks
from relayrl.models.networks.observation_encoder import ObservationEncoder
from relayrl.testing.network_contract import CHECKS, Outcome, check_network

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
BROKEN: dict[str, Any] = {}


def breaks(check: str) -> Callable[[Any], Any]:
    """File a broken kernel under the check that must find it."""

    def file(kernel: Any) -> Any:
        BROKEN[check] = kernel
        return kernel

    return file


class Plain(nn.Module):
    """A kernel that keeps the contract."""

    def __init__(self, encoder: Any, num_outputs: int, output_gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(encoder.num_features, 8), nn.Linear(8, num_outputs)
        for layer, gain in ((self.inner, 1.0), (self.outer, output_gain)):
            nn.init.orthogonal_(layer.weight, gain, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.outer(torch.sin(self.inner(features)))


@breaks("makes_modules")
def gives_a_function(encoder, num_outputs, output_gain, generator):
    return lambda features: features[..., :num_outputs]


@breaks("takes_any_leading_axes")
class TakesRowsOnly(Plain):
    def forward(self, features):
        return super().forward(features).reshape(len(features), -1)


@breaks("outputs_are_float32")
class IsTooExact(Plain):
    def forward(self, features):
        return super().forward(features).double()


@breaks("outputs_are_finite")
class DividesByZero(Plain):
    def forward(self, features):
        return super().forward(features) + math.inf


@breaks("same_rows_same_outputs")
class Dreams(Plain):
    def forward(self, features):
        return super().forward(features) + torch.rand(1)


@breaks("rows_are_independent")
class NormalisesTheBatch(Plain):
    def forward(self, features):
        outputs = super().forward(features)
        return outputs - outputs.reshape(-1, outputs.shape[-1]).mean(0)


@breaks("evaluation_mode_changes_nothing")
class BehavesWhenWatched(Plain):
    def forward(self, features):
        return super().forward(features) * (2.0 if self.training else 1.0)


class Thrifty:
    def __init__(self) -> None:
        self.made: dict[int, nn.Module] = {}

    def __call__(self, encoder, num_outputs, output_gain, generator):
        return self.made.setdefault(num_outputs, Plain(encoder, num_outputs, output_gain, generator))


BROKEN["networks_share_nothing"] = Thrifty()


@breaks("same_generator_same_parameters")
class DrawsElsewhere(Plain):
    def __init__(self, encoder, num_outputs, output_gain, generator):
        super().__init__(encoder, num_outputs, output_gain, generator)
        nn.init.normal_(self.outer.weight)


@breaks("gradients_reach_the_input")
class HidesItsInput(Plain):
    def forward(self, features):
        return super().forward(features.detach())


@breaks("values_features_with_actions")
class KnowsItsInputByHeart(Plain):
    def __init__(self, encoder, num_outputs, output_gain, generator):
        super().__init__(ObservationEncoder(OBSERVATIONS), num_outputs, output_gain, generator)


@breaks("gradients_reach_all_parameters")
class KeepsASpareLayer(Plain):
    def __init__(self, encoder, num_outputs, output_gain, generator):
        super().__init__(encoder, num_outputs, output_gain, generator)
        self.spare = nn.Parameter(torch.zeros(3))


@breaks("outputs_follow_the_parameters")
class RemembersItsWeights(Plain):
    """Looks through pointers that it took on the first call."""

    memory = None

    def forward(self, features):
        if self.memory is None:
            self.memory = [p.data for p in self.parameters()]
        inner, inner_bias, outer, outer_bias = self.memory
        hidden = torch.sin(features @ inner.T + inner_bias)
        # The gradients are right, and the values are the old ones.
        return hidden @ outer.T + outer_bias + (live := super().forward(features)) - live.detach()


@breaks("can_be_copied")
class HoldsOnToItself(Plain):
    def __init__(self, encoder, num_outputs, output_gain, generator):
        super().__init__(encoder, num_outputs, output_gain, generator)
        self.run = lambda features: Plain.forward(self, features)

    def forward(self, features):
        return self.run(features)


@breaks("state_dict_round_trip")
class HidesANumber(Plain):
    def __init__(self, encoder, num_outputs, output_gain, generator):
        super().__init__(encoder, num_outputs, output_gain, generator)
        self.offset = torch.rand(1, generator=generator)

    def forward(self, features):
        return super().forward(features) + self.offset


@breaks("acts_and_learns_as_the_module")
class ActsOtherwise(Plain):
    def forward(self, features):
        return super().forward(features) * (2.0 if torch.is_inference_mode_enabled() else 1.0)


@breaks("leaves_as_onnx")
class UsesWhatOnnxLacks(Plain):
    def forward(self, features):
        return super().forward(features) + torch.special.bessel_j0(features[..., :1].detach())


@breaks("leaves_as_torchscript")
class FoolsTheTracer(Plain):
    def forward(self, features):
        is_scripted = torch.jit.is_tracing() and not torch.onnx.is_in_onnx_export()
        return super().forward(features) * (2.0 if is_scripted else 1.0)


def test_every_check_is_broken_by_a_kernel() -> None:
    assert set(BROKEN) == {check.name for check in CHECKS}


@pytest.mark.parametrize("check", BROKEN)
def test_a_broken_kernel_is_found(check):
    report = check_network(BROKEN[check], OBSERVATIONS, ACTIONS)
    assert [failure.name for failure in report.failures] == [check], str(report)


def test_a_frozen_batch_size_is_found() -> None:
    class CountsItsRows(Plain):
        def forward(self, features):
            return super().forward(features) + torch.zeros(*(int(n) for n in features.shape[:-1]), 1)

    failures = check_network(CountsItsRows, OBSERVATIONS, ACTIONS).failures
    assert {failure.name for failure in failures} == {"leaves_as_onnx", "leaves_as_torchscript"}


SPACES = {
    "vector": (spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))),
    "image": (spaces.Box(0, 255, (20, 20, 3), "uint8"), spaces.Discrete(3)),
    "nested": (
        spaces.Dict({"n": spaces.Discrete(4, start=-1), "x": spaces.Box(-1, 1, (2,))}),
        spaces.MultiDiscrete([2, 3]),
    ),
}


@pytest.mark.parametrize(
    "kernel", [Plain, BuiltInNetworks(NetworkSettings(hidden_sizes=(8,)))], ids=["own", "built in"]
)
@pytest.mark.parametrize("name", SPACES)
def test_good_kernels_pass(name, kernel):
    report = check_network(kernel, *SPACES[name])
    report.raise_if_failed()
    assert {check.outcome for check in report.checks} == {Outcome.PASSED}


class HalvedMLP(MLP):
    """Derived from the built-in network, with another forward pass."""

    def __init__(self, encoder, num_outputs, output_gain, generator):
        super().__init__((encoder.num_features, 8, num_outputs), Activation.TANH, output_gain, generator)

    def forward(self, features):
        return 0.5 * super().forward(features)


def test_a_kernel_derived_from_the_built_in_one_passes() -> None:
    assert check_network(HalvedMLP, OBSERVATIONS, ACTIONS).passed


def test_a_last_layer_of_zeros_is_fine() -> None:
    class BeginsAtZero(Plain):
        def __init__(self, encoder, num_outputs, output_gain, generator):
            super().__init__(encoder, num_outputs, output_gain, generator)
            nn.init.zeros_(self.outer.weight)

    assert check_network(BeginsAtZero, OBSERVATIONS, ACTIONS).passed


def test_failures_are_raised_with_what_was_seen() -> None:
    with pytest.raises(
        ConfigError, match=r"(?s)outside the kernel contract.*outputs_are_float32: actor: torch.float64"
    ):
        check_network(IsTooExact, OBSERVATIONS, ACTIONS).raise_if_failed()


def test_what_a_kernel_raises_is_a_finding() -> None:
    class Stumbles(Plain):
        def forward(self, features):
            raise ValueError("ouch")

    report = check_network(Stumbles, OBSERVATIONS, ACTIONS)
    assert report.of("takes_any_leading_axes").explanation == "ValueError: ouch"
    assert report.of("leaves_as_onnx").outcome is Outcome.NOT_RUN


def test_every_check_states_a_fact_and_comes_after_what_it_needs() -> None:
    names = [check.name for check in CHECKS]
    assert all(check.fact != check.name and "\n" not in check.fact for check in CHECKS)
    assert all(names.index(need) < names.index(check.name) for check in CHECKS for need in check.needs)
