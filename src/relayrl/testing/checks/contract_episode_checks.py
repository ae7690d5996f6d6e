"""Checks of the environment contract about lives and ends: who acts, who has ended, and how the next episode begins.

Each check is one fact about a `Workbench`; it returns what is wrong, or None. `env_contract` says in which order they run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relayrl.data.trees import Array, index, leaves
from relayrl.envs.environment_contract import GroupObservation, VectorReset, VectorStep
from relayrl.testing.checks.contract_recording import Recording, Workbench, result_difference


class NothingToSee(Exception):  # noqa: N818 - no error: the check could not look at what it is about
    """A check had nothing to look at; the message says why."""


def someone_acts(bench: Workbench) -> str | None:
    """in every environment at least one lane acts at any time, but for the one step that a reset may take"""
    for moment, result in bench.recording.moments():
        acts = _acts(result)
        if isinstance(result, VectorStep):
            acts |= result.episode_over
        if not acts.all():
            return f"{moment}: nobody acts in environment {int(np.argmin(acts))}"
    return None


def _acts(result: VectorReset | VectorStep) -> Array:
    """[B] whether any lane of an environment acts next."""
    active: Array = np.concatenate([group.active for group in result.groups.values()], axis=1)
    return np.asarray(active.any(axis=1))


def final_rows_are_the_ended_lanes(bench: Workbench) -> str | None:
    """final has one row for each lane that ended in the step, sorted, and none besides"""
    for t, step in enumerate(bench.recording.steps, start=1):
        for name, group in step.groups.items():
            ended = np.argwhere(group.terminated | group.truncated)
            given = np.zeros((0, 2), int) if group.final is None else np.stack([group.final.env, group.final.agent], 1)
            if not np.array_equal(ended, given):
                return f"step {t}, group {name!r}: lanes {ended.tolist()} ended, final is about {given.tolist()}"
    return None


def final_shows_the_ended_episode(bench: Workbench) -> str | None:
    """what an ended lane saw last is not the first observation of the episode after"""
    firsts = bench.firsts
    suspects: dict[int, list[bool]] = {}
    for t, b in bench.recording.ends():
        if _same_first(firsts, b) and not _looks_always_alike(bench.recording, b):
            suspects.setdefault(b, []).append(_final_equals(bench.recording.steps[t - 1], firsts[0], b))
    if not suspects:
        raise NothingToSee("no episode ended in an environment that always begins alike and then changes")
    for b, looks_first in suspects.items():
        if all(looks_first):
            return f"in environment {b} final always shows what every episode begins with"
    return None


def lanes_end_at_most_once(bench: Workbench) -> str | None:
    """a lane ends at most once in an episode, but for lost lives"""
    for name, group in bench.recording.groups.items():
        ended = np.zeros((bench.num_envs, group.num_agents), bool)
        for t, step in enumerate(bench.recording.steps, start=1):
            ends = step.groups[name].terminated | step.groups[name].truncated
            if (ended & ends).any():
                b, n = np.argwhere(ended & ends)[0]
                return f"step {t}: {group.agent_ids[n]} in environment {b} ends again"
            ended = (ended | ends) & ~step.episode_over[:, None] & ~_lost_lives(bench.recording, step, name)
    return None


def _lost_lives(recording: Recording, step: VectorStep, name: str) -> Array:
    """[B, N] lanes of only agents that ended and act again at once."""
    got, is_alone = step.groups[name], sum(group.num_agents for group in recording.groups.values()) == 1
    return (got.terminated & got.active & ~step.episode_over[:, None]) & is_alone


def ended_lanes_stay_idle(bench: Workbench) -> str | None:
    """a lane that has ended does not act again before the next episode"""
    for name, group in bench.recording.groups.items():
        ended = np.zeros((bench.num_envs, group.num_agents), bool)
        for t, step in enumerate(bench.recording.steps, start=1):
            got = step.groups[name]
            ended = (ended | got.terminated | got.truncated) & ~step.episode_over[:, None]
            ended &= ~_lost_lives(bench.recording, step, name)
            if (ended & got.active).any():
                b, n = np.argwhere(ended & got.active)[0]
                return f"step {t}: {group.agent_ids[n]} in environment {b} acts after its end"
    return None


def episode_over_ends_every_lane(bench: Workbench) -> str | None:
    """when an episode is over, every lane that acted in it has ended"""
    for name, group in bench.recording.groups.items():
        acted = bench.recording.first.groups[name].active.copy()
        ended = np.zeros_like(acted)
        for t, step in enumerate(bench.recording.steps, start=1):
            got, over = step.groups[name], step.episode_over[:, None]
            ended |= got.terminated | got.truncated
            forgotten = acted & ~ended & over
            if forgotten.any():
                b, n = np.argwhere(forgotten)[0]
                return f"step {t}: the episode of environment {b} is over, {group.agent_ids[n]} has not ended"
            acted, ended = (acted & ~over) | got.active, ended & ~over
    return None


def an_episode_begins_where_one_ends(bench: Workbench) -> str | None:
    """in the step that ends an episode, obs is the first observation of the next; in the one after, where a reset takes one"""
    ends = list(bench.recording.ends())
    if not ends:
        raise NothingToSee(f"no episode ended in {bench.num_steps} steps; more steps (--steps, num_steps) may show one")
    firsts = bench.firsts
    stale: dict[int, list[bool]] = {}
    for t, b in ends:
        step = bench.recording.steps[t - 1]
        shown = step if _acts(step)[b] else next(iter(bench.recording.steps[t : t + 1]), None)
        if shown is None:
            continue  # The recording ends on the step that the reset takes.
        if _same_first(firsts, b):
            found = result_difference(_sight(shown), _sight(firsts[0]), np.array([b]))
            if found:
                return f"step {t}: environment {b} is over and should show a first observation: {found}"
        else:
            stale.setdefault(b, []).append(_final_equals(step, shown, b))
    for b, shows_last in stale.items():
        if all(shows_last):
            return f"environment {b} shows the last observation of the ended episode instead of the first of the next"
    return None


def _same_first(firsts: list[Any], b: int) -> bool:
    """Whether environment `b` looks alike at the beginning under all seeds."""
    return all(result_difference(_sight(firsts[0]), _sight(other), np.array([b])) is None for other in firsts[1:])


def _looks_always_alike(recording: Recording, b: int) -> bool:
    """Whether no observation of environment `b` can be told from a first one."""
    first, where = _sight(recording.first), np.array([b])
    return all(result_difference(_sight(step), first, where) is None for step in recording.steps)


def _sight(result: Any) -> VectorReset:
    """Observations and who acts on them, without masks, which may be drawn at random where observations are not."""
    return VectorReset({name: GroupObservation(got.obs, got.active) for name, got in result.groups.items()})


def without_results(step: VectorReset | VectorStep) -> VectorReset:
    """What was seen, without what came of the action."""
    groups = {name: GroupObservation(got.obs, got.active, got.action_mask) for name, got in step.groups.items()}
    return VectorReset(groups, step.state)


def _final_equals(step: VectorStep, result: Any, b: int) -> bool:
    """Whether every lane of environment `b` that ended in `step` saw last what `result` shows it."""
    for name, group in step.groups.items():
        if group.final is None:
            continue
        for k in np.flatnonzero(group.final.env == b):
            last, now = index(group.final.obs, k), index(result.groups[name].obs, (b, int(group.final.agent[k])))
            if not all(np.array_equal(x, y) for (_, x), (_, y) in zip(leaves(last), leaves(now), strict=True)):
                return False
    return True
