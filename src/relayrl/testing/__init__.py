"""Contract suites for parts of your own, toy environments whose every number is known, and example trajectories.

    from relayrl.testing import check_environment

The names in this module are public; its modules are not. Nothing else in the package imports them.
"""

from typing import TYPE_CHECKING

from relayrl.lazy_names import lazy_names

if TYPE_CHECKING:
    from relayrl.testing.action_worlds import FollowSignal as FollowSignal
    from relayrl.testing.contract_report import CheckResult as CheckResult
    from relayrl.testing.contract_report import ContractReport as ContractReport
    from relayrl.testing.env_contract import check_environment as check_environment
    from relayrl.testing.goal_worlds import PointReach as PointReach
    from relayrl.testing.memory_worlds import RecallCue as RecallCue
    from relayrl.testing.multi_agent_worlds import DyingAgents as DyingAgents
    from relayrl.testing.multi_agent_worlds import HiddenSign as HiddenSign
    from relayrl.testing.multi_agent_worlds import MaskedBandit as MaskedBandit
    from relayrl.testing.multi_agent_worlds import MatrixGame as MatrixGame
    from relayrl.testing.multi_agent_worlds import TakingTurns as TakingTurns
    from relayrl.testing.network_contract import check_kernel as check_kernel
    from relayrl.testing.network_contract import check_network as check_network
    from relayrl.testing.sink_contract import check_sink as check_sink
    from relayrl.testing.trajectory_examples import difference as difference
    from relayrl.testing.trajectory_examples import example_trajectories as example_trajectories
    from relayrl.testing.vector_worlds import Herd as Herd
    from relayrl.testing.vector_worlds import TorchCounting as TorchCounting
    from relayrl.testing.worlds import CountingWorld as CountingWorld
    from relayrl.testing.worlds import Crash as Crash
    from relayrl.testing.worlds import Crashing as Crashing
    from relayrl.testing.worlds import NestedSpaces as NestedSpaces
    from relayrl.testing.worlds import RandomWalk as RandomWalk
    from relayrl.testing.worlds import Slow as Slow


_HOMES = {
    # contract suites
    "check_environment": "relayrl.testing.env_contract",
    "check_sink": "relayrl.testing.sink_contract",
    "check_network": "relayrl.testing.network_contract",
    "check_kernel": "relayrl.testing.network_contract",  # the old name, for one release
    "ContractReport": "relayrl.testing.contract_report",
    "CheckResult": "relayrl.testing.contract_report",
    # example data
    "example_trajectories": "relayrl.testing.trajectory_examples",
    "difference": "relayrl.testing.trajectory_examples",
    # toy environments
    "CountingWorld": "relayrl.testing.worlds",
    "RandomWalk": "relayrl.testing.worlds",
    "NestedSpaces": "relayrl.testing.worlds",
    "Slow": "relayrl.testing.worlds",
    "Crashing": "relayrl.testing.worlds",
    "Crash": "relayrl.testing.worlds",
    "FollowSignal": "relayrl.testing.action_worlds",
    "PointReach": "relayrl.testing.goal_worlds",
    "RecallCue": "relayrl.testing.memory_worlds",
    "DyingAgents": "relayrl.testing.multi_agent_worlds",
    "TakingTurns": "relayrl.testing.multi_agent_worlds",
    "MatrixGame": "relayrl.testing.multi_agent_worlds",
    "MaskedBandit": "relayrl.testing.multi_agent_worlds",
    "HiddenSign": "relayrl.testing.multi_agent_worlds",
    "Herd": "relayrl.testing.vector_worlds",
    "TorchCounting": "relayrl.testing.vector_worlds",
}
__all__ = [*_HOMES]

if not TYPE_CHECKING:  # so that a name that does not exist is an error to type checkers
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
