"""A run whose numbers are no longer finite stops with a clear error and keeps its last good state, whatever the algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from relayrl.algorithms.registry import algorithms
from relayrl.engines.local.local_engine import LocalEngine, RunInterrupted
from relayrl.engines.runs.run_directory import RunDirectory
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.errors import TrainingDivergedError
from relayrl.training.files.checkpoints import CheckpointStore

QUICK = {
    "trainer.time_horizon": 16,
    "trainer.max_steps": 320,
    "trainer.summary_freq": 64,
    "trainer.checkpoint_interval": 64,
    "environment.num_envs": 2,
    "environment.options": {"continuous_actions": True},
    "network.hidden_sizes": (8,),
    "evaluation.episodes": 0,
    "statistics.tensorboard": False,
}
PARAMS = {"train_pi_iters": 2, "train_vf_iters": 2, "learning_starts": 16, "batch_size": 8, "update_interval": 16}
ABSURD = {"pi_lr": 1e25, "vf_lr": 1e25, "max_grad_norm": None, "actor_lr": 1e25, "critic_lr": 1e25}


def settings_for(algo: str, **params: Any) -> RunSettings:
    fields = algorithms()[algo].params.model_fields
    own = {name: value for name, value in (PARAMS | {"train_iters": 1} | params).items() if name in fields}
    return build_run_settings("native:simple_spread", None, QUICK | {"algo": algo, "params": own}, [])


def engine_for(settings: RunSettings, path: Path, *, resume: bool = False) -> LocalEngine:
    directory = RunDirectory(path)
    if not resume:
        directory.create(settings)
    engine = LocalEngine(settings, directory)
    assert not resume or engine.resume()
    return engine


@pytest.mark.parametrize("algo", sorted(set(algorithms()) - {"bc"}))  # which does not collect: test_bc_runs
def test_a_diverged_run_says_so_and_keeps_its_last_good_state(algo: str, tmp_path: Path) -> None:
    updates: list[Any] = []
    with pytest.raises(RunInterrupted):
        engine_for(settings_for(algo), tmp_path / "a").run(updates.append, lambda: len(updates) == 2)
    kept = CheckpointStore(tmp_path / "a" / "checkpoints", 5).load_newest()[0]
    broken = engine_for(settings_for(algo, **ABSURD), tmp_path / "a", resume=True)
    with pytest.raises(
        TrainingDivergedError, match=r"(loss became|not finite).*; the last good checkpoint is "
    ) as caught:
        broken.run(lambda _: None)
    step, state = CheckpointStore(tmp_path / "a" / "checkpoints", 5).load_newest()
    assert step >= kept
    assert f"step_{step:012d}.ckpt" in str(caught.value)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors(state) if tensor.is_floating_point())


@pytest.mark.parametrize("algo", ["ppo", "matd3"])
def test_a_run_that_diverges_before_its_first_interval_keeps_where_it_began(algo: str, tmp_path: Path) -> None:
    settings = settings_for(algo, **ABSURD)
    settings = settings.model_copy(
        update={"trainer": settings.trainer.model_copy(update={"checkpoint_interval": 10_000})}
    )
    with pytest.raises(TrainingDivergedError, match=r"the last good checkpoint is .*step_000000000000.ckpt"):
        engine_for(settings, tmp_path / "a").run(lambda _: None)
    updates: list[Any] = []
    with pytest.raises(RunInterrupted):
        engine_for(settings_for(algo), tmp_path / "a", resume=True).run(updates.append, lambda: len(updates) == 2)
    assert updates[0].num_env_steps > 0


def test_a_run_that_begins_with_numbers_that_are_not_finite_says_that_nothing_came_before(tmp_path: Path) -> None:
    updates: list[Any] = []
    with pytest.raises(RunInterrupted):
        engine_for(settings_for("ppo"), tmp_path / "a").run(updates.append, lambda: bool(updates))
    store = CheckpointStore(tmp_path / "a" / "checkpoints", 5)
    step, state = store.load_newest()
    for tensor in tensors(state):
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
    engine = engine_for(settings_for("ppo"), tmp_path / "b")
    engine.init_from(store.save(step + 1, state))
    with pytest.raises(TrainingDivergedError, match=r"not finite.*; it began so: there is no checkpoint before it"):
        engine.run(lambda _: None)


def tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [found for part in tree.values() for found in tensors(part)] if isinstance(tree, dict) else []
