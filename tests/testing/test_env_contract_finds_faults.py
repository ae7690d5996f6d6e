"""Every check of the environment contract is failed by one toy environment that breaks this rule and no other."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from relayrl.envs.environment_contract import VectorReset, VectorStep, new_env_ids
from relayrl.testing.env_contract import CHECKS, Outcome, check_environment
from relayrl.testing.toy_environments import Herd

BROKEN: dict[str, Callable[[], Herd]] = {}


def breaks(check: str, **options: Any) -> Callable[[type[Herd]], type[Herd]]:
    """File a broken herd under the check that must find it."""

    def file(herd: type[Herd]) -> type[Herd]:
        BROKEN[check] = lambda: herd(**options)
        return herd

    return file


def with_group(result: Any, name: str, **changes: Any) -> Any:
    return replace(result, groups={**result.groups, name: replace(result.groups[name], **changes)})


@breaks("runs")
class RaisesInStepThree(Herd):
    num_steps = 0

    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        self.num_steps += 1
        if self.num_steps == 3:
            raise RuntimeError("three")
        return super().step(actions)


@breaks("ids_are_unique_and_stable")
class RenamesWorlds(Herd):
    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        result = super().reset(seed=seed, env_ids=env_ids)
        self.env_ids = new_env_ids(self.num_envs)
        return result


@breaks("groups_name_every_agent_once")
class MisfilesAGroup(Herd):
    def __init__(self) -> None:
        super().__init__()
        self.groups["dog"] = replace(self.groups["dog"], name="wolf")


@breaks("results_cover_every_group")
class SpeaksOfStrangers(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        result = super().step(actions)
        return replace(result, groups={**result.groups, "cat": result.groups["dog"]})


@breaks("arrays_are_of_the_declared_device")
class GivesTensors(Herd):
    def _observe(self) -> VectorReset:
        result = super()._observe()
        return with_group(result, "dog", obs=torch.tensor(result.groups["dog"].obs))


@breaks("shapes_are_right")
class GivesRewardsAnAxis(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        result = super().step(actions)
        return with_group(result, "dog", reward=result.groups["dog"].reward[..., None])


@breaks("dtypes_are_right")
class GivesDoubleRewards(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        result = super().step(actions)
        return with_group(result, "dog", reward=result.groups["dog"].reward.astype(np.float64))


@breaks("observations_lie_in_their_spaces", noise_scale=100.0)
class LeavesItsSpace(Herd):
    pass


@breaks("rewards_are_finite")
class PaysIdleLanesInfinity(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        idle = ~self._active()["sheep"]
        result = super().step(actions)
        return with_group(
            result, "sheep", reward=np.where(idle, np.inf, result.groups["sheep"].reward).astype(np.float32)
        )


@breaks("masks_fit_the_actions")
class GivesIntegerMasks(Herd):
    def _observe(self) -> VectorReset:
        result = super()._observe()
        return with_group(result, "sheep", action_mask=result.groups["sheep"].action_mask.astype(np.int8))


@breaks("masks_allow_an_action")
class ForbidsEverything(Herd):
    def _observe(self) -> VectorReset:
        result = super()._observe()
        allowed = result.groups["sheep"].action_mask & (self._step_of != 3)[:, None, None]
        return with_group(result, "sheep", action_mask=allowed)


@breaks("state_fits_its_space")
class GivesAStateOutsideItsSpace(Herd):
    def _observe(self) -> VectorReset:
        result = super()._observe()
        return replace(result, state=result.state + 100.0)


@breaks("final_state_is_given_where_episodes_end")
class ForgetsHowEpisodesEnded(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        return replace(super().step(actions), final_state=None)


@breaks("someone_acts")
class LetsNobodyAct(Herd):
    def _active(self) -> dict[str, Any]:
        return {name: active & (self._step_of != 3)[:, None] for name, active in super()._active().items()}


@breaks("final_rows_are_the_ended_lanes")
class ListsFinalRowsBackwards(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        result = super().step(actions)
        final = result.groups["dog"].final
        if final is None:
            return result
        extra = replace(
            final, env=np.repeat(final.env, 2), agent=np.repeat(final.agent, 2), obs=np.repeat(final.obs, 2, 0)
        )
        return with_group(result, "dog", final=extra)


@breaks("lanes_end_at_most_once")
class EndsASheepTwice(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        again = self._step_of == 2  # step 3 follows
        result = super().step(actions)
        sheep = result.groups["sheep"]
        terminated = sheep.terminated | (again[:, None] & [True, False])
        env, agent = np.nonzero(terminated | sheep.truncated)
        if not env.size:
            return result
        obs = np.zeros((env.size, 2), np.float32)
        final = replace(_some_final(result), env=env, agent=agent, obs=obs, action_mask=None)
        return with_group(result, "sheep", terminated=terminated, final=final)


def _some_final(result: VectorStep) -> Any:
    from relayrl.envs.environment_contract import FinalObservations

    return result.groups["sheep"].final or FinalObservations(np.zeros(0), np.zeros(0), np.zeros((0, 2)))


@breaks("ended_lanes_stay_idle")
class LetsTheDeadAct(Herd):
    def _active(self) -> dict[str, Any]:
        active = super()._active()
        once_alive = np.arange(self.num_envs) % 3 < 2
        active["sheep"][:, 0] |= once_alive & (self._step_of == 4)
        return active


@breaks("episode_over_ends_every_lane")
class ForgetsToEndTheDog(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        result = super().step(actions)
        return with_group(result, "dog", truncated=np.zeros((self.num_envs, 1), bool), final=None)


@breaks("an_episode_begins_where_one_ends")
class ResetsOneStepLate(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        result = super().step(actions)
        for name, group in result.groups.items():
            if group.final is not None:
                group.obs[group.final.env, group.final.agent] = group.final.obs
            result = with_group(result, name, obs=group.obs)
        return result


@breaks("final_shows_the_ended_episode", noise_scale=0.0)
class LosesTheLastObservation(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        result = super().step(actions)
        for name, group in result.groups.items():
            if group.final is not None:
                seen = group.obs[group.final.env, group.final.agent]
                result = with_group(result, name, final=replace(group.final, obs=seen))
        return result


@breaks("observation_can_be_asked_again")
class ForgetsWhatItShowed(Herd):
    def build_observation(self) -> VectorReset:
        result = self._observe()
        return with_group(result, "dog", obs=np.zeros_like(result.groups["dog"].obs))


@breaks("same_seed_same_trajectory")
class BringsItsOwnEntropy(Herd):
    def _draw(self, envs: Any) -> None:
        super()._draw(envs)
        self._noise[envs] = np.random.default_rng().random(len(envs))


@breaks("seeded_reset_begins_again")
class CountsItsSeededResets(Herd):
    num_resets = 0

    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        if seed is not None and env_ids is None:
            seed, self.num_resets = seed + self.num_resets, self.num_resets + 1
        return super().reset(seed=seed, env_ids=env_ids)


@breaks("environments_do_not_depend_on_their_number")
class MixesItsNumberIntoTheSeed(Herd):
    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        return super().reset(seed=None if seed is None else seed + self.num_envs, env_ids=env_ids)


@breaks("idle_actions_are_ignored")
class ListensToTheDead(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        return with_group(super().step(actions), "sheep", reward=np.asarray(actions["sheep"], np.float32))


@breaks("partial_reset_shows_the_others_unchanged")
class BlanksTheOthers(Herd):
    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        result = super().reset(seed=seed, env_ids=env_ids)
        if env_ids is not None:
            others = [b for b, env_id in enumerate(self.env_ids) if env_id not in env_ids]
            result.groups["sheep"].obs[others] = 0.0
        return result


@breaks("partial_reset_leaves_the_others_alone")
class DisturbsTheOthers(Herd):
    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        result = super().reset(seed=seed, env_ids=env_ids)
        if env_ids is not None:
            self._drawn += 1
        return result


@breaks("seeded_partial_reset_begins_as_a_full_one")
class IgnoresTheSeedOfAPartialReset(Herd):
    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        return super().reset(seed=seed if env_ids is None else None, env_ids=env_ids)


@breaks("state_is_plain_arrays")
class SavesAnObject(Herd):
    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "noise": np.array([object()])}


@breaks("state_round_trip")
class ForgetsToSaveItsGenerator(Herd):
    def get_state(self) -> dict[str, Any]:
        return {name: array for name, array in super().get_state().items() if name != "drawn"}


@breaks("wrong_shape_is_refused")
class RepeatsMissingActions(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        shapes = {"sheep": (self.num_envs, 2), "dog": (self.num_envs, 1, 2)}
        return super().step({name: np.resize(array, shapes[name]) for name, array in actions.items()})


@breaks("missing_group_is_refused")
class MakesUpMissingActions(Herd):
    def step(self, actions: Mapping[str, Any]) -> VectorStep:
        return super().step({"sheep": np.zeros((self.num_envs, 2), np.int64), **actions})


@breaks("unknown_id_is_refused")
class OverlooksUnknownIds(Herd):
    def reset(self, *, seed: int | None = None, env_ids: Sequence[uuid.UUID] | None = None) -> VectorReset:
        known = None if env_ids is None else [env_id for env_id in env_ids if env_id in self.env_ids]
        return super().reset(seed=seed, env_ids=known)


@breaks("can_be_closed_twice")
class ClosesOnce(Herd):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_a_broken_environment_fails_exactly_the_check_of_its_fault(check: str) -> None:
    report = check_environment(lambda n: BROKEN[check](), num_steps=20)
    assert [failure.name for failure in report.failures] == [check], str(report)


@pytest.mark.parametrize("noise_scale", [0.0, 1.0])
def test_the_unbroken_environment_fails_nothing(noise_scale: float) -> None:
    report = check_environment(lambda n: Herd(noise_scale=noise_scale), num_steps=20)
    assert report.failures == ()


def test_no_check_is_skipped_where_there_is_everything_to_look_at() -> None:
    report = check_environment(lambda n: Herd(noise_scale=0.0), num_steps=20)
    assert {check.outcome for check in report.checks} == {Outcome.PASSED}
