"""Contract suites for parts of your own, toy environments whose every number is known, and example trajectories.

    from relayrl.testing import check_environment

The names in this module are public; its modules are not. Nothing else in the package imports them.
"""

from typing import TYPE_CHECKING

from relayrl.lazy_names import lazy_names

if TYPE_CHECKING:
    from relayrl.testing.action_environments import FollowSignal as FollowSignal
    from relayrl.testing.contract_report import CheckResult as CheckResult
    from relayrl.testing.contract_report import ContractReport as ContractReport
    from relayrl.testing.env_contract import check_environment as check_environment
    from relayrl.testing.games.kuhn_poker import KuhnPoker as KuhnPoker
    from relayrl.testing.games.kuhn_poker import kuhn_exploitability as kuhn_exploitability
    from relayrl.testing.games.kuhn_poker import kuhn_mixture as kuhn_mixture
    from relayrl.testing.games.kuhn_poker import kuhn_strategy as kuhn_strategy
    from relayrl.testing.goal_environments import PointReach as PointReach
    from relayrl.testing.memory_environments import RecallCue as RecallCue
    from relayrl.testing.multi_agent_environments import DyingAgents as DyingAgents
    from relayrl.testing.multi_agent_environments import HiddenSign as HiddenSign
    from relayrl.testing.multi_agent_environments import MaskedBandit as MaskedBandit
    from relayrl.testing.multi_agent_environments import MatrixGame as MatrixGame
    from relayrl.testing.multi_agent_environments import TakingTurns as TakingTurns
    from relayrl.testing.network_contract import check_kernel as check_kernel
    from relayrl.testing.network_contract import check_network as check_network
    from relayrl.testing.sink_contract import check_sink as check_sink
    from relayrl.testing.toy_environments import CountingEnv as CountingEnv
    from relayrl.testing.toy_environments import Crash as Crash
    from relayrl.testing.toy_environments import Crashing as Crashing
    from relayrl.testing.toy_environments import NestedSpaces as NestedSpaces
    from relayrl.testing.toy_environments import RandomWalk as RandomWalk
    from relayrl.testing.toy_environments import Slow as Slow
    from relayrl.testing.trajectory_examples import difference as difference
    from relayrl.testing.trajectory_examples import example_trajectories as example_trajectories
    from relayrl.testing.vector_environments import Herd as Herd
    from relayrl.testing.vector_environments import TorchCounting as TorchCounting


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
    "CountingEnv": "relayrl.testing.toy_environments",
    "RandomWalk": "relayrl.testing.toy_environments",
    "NestedSpaces": "relayrl.testing.toy_environments",
    "Slow": "relayrl.testing.toy_environments",
    "Crashing": "relayrl.testing.toy_environments",
    "Crash": "relayrl.testing.toy_environments",
    "FollowSignal": "relayrl.testing.action_environments",
    "PointReach": "relayrl.testing.goal_environments",
    "RecallCue": "relayrl.testing.memory_environments",
    "DyingAgents": "relayrl.testing.multi_agent_environments",
    "TakingTurns": "relayrl.testing.multi_agent_environments",
    "MatrixGame": "relayrl.testing.multi_agent_environments",
    "MaskedBandit": "relayrl.testing.multi_agent_environments",
    "HiddenSign": "relayrl.testing.multi_agent_environments",
    "Herd": "relayrl.testing.vector_environments",
    "TorchCounting": "relayrl.testing.vector_environments",
    # games that are solved
    "KuhnPoker": "relayrl.testing.games.kuhn_poker",
    "kuhn_strategy": "relayrl.testing.games.kuhn_poker",
    "kuhn_mixture": "relayrl.testing.games.kuhn_poker",
    "kuhn_exploitability": "relayrl.testing.games.kuhn_poker",
}
_MOVED = {"CountingWorld": "relayrl.testing.CountingEnv"}
__all__ = [*_HOMES]

if not TYPE_CHECKING:  # so that a name that does not exist is an error to type checkers
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, _MOVED)
