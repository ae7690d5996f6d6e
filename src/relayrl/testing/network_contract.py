"""The kernel contract as code that can be run on any network, RelayRL's or yours.

In a test of yours:

    def test_my_kernel_keeps_the_contract():
        check_network(MyKernel, spaces.Box(-1, 1, (4,)), spaces.Discrete(2)).raise_if_failed()

What a kernel is, is in `relayrl.models.networks.network_factory`. Each check states one fact, which is its function's
docstring, about the networks that the factory makes for an actor and for a critic. A check is skipped where one that it
builds on has failed. The
suite knows nothing of pytest, and leaves no files.
"""

from __future__ import annotations

from dataclasses import dataclass

from relayrl.data.trees import Space
from relayrl.errors import ConfigError, RelayRLError
from relayrl.models.networks.network_factory import NetworkFactory
from relayrl.testing.checks import kernel_checks as checks
from relayrl.testing.checks import kernel_path_checks as paths
from relayrl.testing.checks import network_export_checks as exports
from relayrl.testing.checks.network_bench import NetworkBench
from relayrl.testing.contract_report import Check, CheckResult, ContractReport, Outcome, run_in_order

__all__ = ["CHECKS", "Check", "CheckResult", "NetworkReport", "Outcome", "check_kernel", "check_network"]

RAISED = (
    RelayRLError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a kernel under test may raise and have reported; anything else is passed on."""


@dataclass(frozen=True, slots=True)
class NetworkReport(ContractReport):
    """All checks of one kernel, in the order in which they ran."""

    def raise_if_failed(self) -> None:
        """Raise `ConfigError` with all failures in its message."""
        if self.failures:
            raise ConfigError("outside the kernel contract:\n" + "\n".join(map(str, self.failures)))


_MADE = ("makes_modules",)
_SHAPED = (*_MADE, "takes_any_leading_axes")
_REPEATABLE = (*_SHAPED, "outputs_are_float32", "outputs_are_finite", "same_rows_same_outputs")
_RUNNABLE = (*_REPEATABLE, "rows_are_independent", "evaluation_mode_changes_nothing", "networks_share_nothing")
_LEARNABLE = (*_RUNNABLE, "same_generator_same_parameters", "outputs_follow_the_parameters")
_EXPORTABLE = (*_RUNNABLE, "acts_and_learns_as_the_module")

CHECKS = (
    Check(checks.makes_modules),
    Check(checks.takes_any_leading_axes, _MADE),
    Check(checks.outputs_are_float32, _SHAPED),
    Check(checks.outputs_are_finite, _SHAPED),
    Check(checks.same_rows_same_outputs, _SHAPED),
    Check(checks.rows_are_independent, _REPEATABLE),
    Check(checks.evaluation_mode_changes_nothing, _REPEATABLE),
    Check(checks.networks_share_nothing, _MADE),
    Check(checks.same_generator_same_parameters, (*_MADE, "networks_share_nothing")),
    Check(checks.gradients_reach_all_parameters, _SHAPED),
    Check(checks.gradients_reach_the_input, _SHAPED),
    Check(checks.values_features_with_actions, (*_SHAPED, "networks_share_nothing")),
    Check(checks.outputs_follow_the_parameters, (*_REPEATABLE, "same_generator_same_parameters")),
    Check(checks.can_be_copied, (*_REPEATABLE, "outputs_follow_the_parameters")),
    Check(checks.state_dict_round_trip, _REPEATABLE),
    Check(paths.acts_and_learns_as_the_module, _LEARNABLE),
    Check(exports.leaves_as_onnx, _EXPORTABLE),
    Check(exports.leaves_as_torchscript, _EXPORTABLE),
)
"""All checks, in the order in which they run; what a check needs comes before it."""


def check_network(
    factory: NetworkFactory, observation_space: Space, action_space: Space, *, seed: int = 0
) -> NetworkReport:
    """Run all checks on networks that `factory` makes for these spaces."""
    bench = NetworkBench(factory, observation_space, action_space, seed)
    return NetworkReport(run_in_order(CHECKS, lambda check: _run(check, bench)))


def _run(check: Check[NetworkBench], bench: NetworkBench) -> CheckResult:
    try:
        broken = check.run(bench)
    except RAISED as error:
        broken = f"{type(error).__name__}: {error}"
    return check.found(broken)


check_kernel = check_network
"""The old name, for one release."""
