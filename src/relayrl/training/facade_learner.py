"""The facade's learner: `construction` for the groups of its registered agents.

The same args, params, groups and kernel give the same parameters. Not here: feeding it with trajectories (`facade_trainer`),
and carrying over what was learned when an agent joins (`facade_growth`).
"""

from __future__ import annotations

from collections.abc import Mapping

from relayrl.algorithms.critic_sight import StateOffer
from relayrl.algorithms.registry import AlgorithmEntry
from relayrl.config.settings import Settings
from relayrl.training.construction import GroupPlan, Learner, LearnerPlan, build_learner
from relayrl.training.facade_args import PolicyGroup, TrainerArgs
from relayrl.training.facade_kernels import Kernel, PairKernels, kernels_for_one_policy


def make_learner(
    entry: AlgorithmEntry,
    args: TrainerArgs,
    params: Settings,
    groups: Mapping[str, PolicyGroup],
    kernel: Kernel | None,
) -> Learner:
    """A fresh learner for `groups`."""
    offer = None if args.state_space is None else StateOffer(args.state_space)
    # Trajectories come one environment at a time, so replay holds the steps of one environment after another.
    plan = LearnerPlan(entry, params, args.seed, num_envs=1, max_steps=args.max_steps, state=offer)
    plans = [_plan(group, args, params, kernel) for group in groups.values()]
    learner = build_learner(plan, plans)
    for own in plans:
        if isinstance(own.kernels, PairKernels):
            own.kernels.require_used(entry.name)
    return learner


def _plan(group: PolicyGroup, args: TrainerArgs, params: Settings, kernel: Kernel | None) -> GroupPlan:
    return GroupPlan(
        group.name,
        group.observation_space,
        group.action_space,
        len(group.agent_ids),
        args.network,
        params,
        kernels_for_one_policy(kernel, args.network),
    )
