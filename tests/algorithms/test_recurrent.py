"""Learning with a memory: sequences are what acting did, gradients go back through time, and it recalls what is gone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from relayrl.accelerator.live_actor import live_actor
from relayrl.algorithms.losses import LogLikelihood, Objective
from relayrl.algorithms.optimizer import FlatAdam
from relayrl.algorithms.registry import algorithms
from relayrl.algorithms.updates.recurrent_update import RecurrentUpdate, SequenceBatch
from relayrl.algorithms.updates.torch_update import Estimates
from relayrl.data.columns import Rollout
from relayrl.data.stacking import stack_trajectories
from relayrl.engines.settings.run_settings import RunSettings, build_run_settings
from relayrl.envs.environment_contract import VectorEnvironment
from relayrl.envs.environment_registry import make_vector
from relayrl.errors import ConfigError
from relayrl.extend import Assembly, assemble
from relayrl.models.acting.lane_memory import LaneMemory
from relayrl.models.exports.export import export_policy
from relayrl.models.exports.exported import ExportedActor, ExportFormat, PolicyMetadata
from relayrl.models.policy import parameter_hash
from relayrl.models.recurrent_policy import RecurrentActorCritic
from relayrl.runtime.collector import Collector
from relayrl.runtime.evaluation import evaluate

RECURRENT = ["reinforce", "ireinforce", "mareinforce", "ppo", "ippo", "mappo"]
RECURRENT += ["impala", "iimpala", "maimpala", "appo", "iappo", "maappo"]
SMALL = {
    "environment.num_envs": 3,
    "trainer.time_horizon": 13,
    "network.hidden_sizes": (8,),
    "trainer.max_steps": 10**6,
}
MEMORY = {"kind": "lstm", "size": 5, "sequence_length": 4}
QUICK = {"train_pi_iters": 2, "train_vf_iters": 2, "num_minibatches": 2}
ENVIRONMENTS = {
    "discrete": ("relayrl.testing.toy_environments:RecallCue", {}),
    "truncated": ("relayrl.testing.toy_environments:RandomWalk", {"horizon": 5}),
    "nested": ("relayrl.testing.toy_environments:NestedSpaces", {}),
    "dying agents": ("relayrl.testing.toy_environments:DyingAgents", {}),
    "turns": ("relayrl.testing.toy_environments:TakingTurns", {}),
    "masked": ("relayrl.testing.toy_environments:MaskedBandit", {}),
    "continuous": ("native:simple_spread", {"continuous_actions": True}),
}


def recurrent_update(policy: RecurrentActorCritic) -> RecurrentUpdate:
    adams = FlatAdam(policy.actor_parameters(), 1e-3, None), FlatAdam(policy.critic_parameters(), 1e-3, None)
    return RecurrentUpdate(policy, Objective(LogLikelihood(), 0.0), *adams)


def settings_for(algo: str, toy: str, **flags) -> RunSettings:
    env, options = ENVIRONMENTS[toy]
    known = algorithms()[algo].params.model_fields
    quick = {f"params.{name}": value for name, value in QUICK.items() if name in known}
    own = {"algo": algo, "environment.options": options, "network.memory": MEMORY}
    return build_run_settings(env, None, SMALL | quick | own | flags, [])


def start(settings: RunSettings) -> tuple[VectorEnvironment, Assembly, Collector]:
    env = make_vector(settings.env, settings.environment)
    parts = assemble(settings, env)
    with torch.no_grad():
        for policy in parts.policies.values():  # away from the nearly uniform initial policy
            generator = torch.Generator().manual_seed(1)
            for parameter in policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    rng = np.random.default_rng(0)
    recorded = {"records_logp": True, "records_states": parts.trainer.needs_states}
    collector = Collector(env, parts.actors, num_steps=parts.rollout_steps, seed=0, rng=rng, **recorded)
    return env, parts, collector


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("toy", ENVIRONMENTS)
def test_unrolling_gives_the_log_probabilities_that_acting_had(toy, kind):
    _, parts, collector = start(settings_for("ippo", toy, **{"network.memory": MEMORY | {"kind": kind}}))
    for block in range(3):  # the second and third go on with episodes of the one before
        for name, rollout in collector.collect(block).items():
            policy = parts.policies[name]
            assert isinstance(policy, RecurrentActorCritic)
            update = recurrent_update(policy)
            evaluation = update.evaluate(rollout, None)
            batch = update.batch(
                rollout, evaluation, Estimates(evaluation.logp, rollout.reward, rollout.reward), rollout.valid
            )
            assert isinstance(batch, SequenceBatch)
            assert len(batch.advantage) == rollout.valid.sum()
            packed = batch.packed()
            with torch.no_grad():
                outputs = policy.actor.unroll(
                    torch.from_numpy(packed.rows.features), packed.batch_sizes, packed.actor_memory
                )
                mask = None if packed.rows.mask is None else torch.from_numpy(packed.rows.mask)
                parameters = policy.distribution_of(outputs, mask)
                logp = policy.head.log_prob(parameters, torch.from_numpy(packed.rows.action)).numpy()
                value = policy.critic.unroll(
                    torch.from_numpy(packed.rows.features), packed.batch_sizes, packed.critic_memory
                )
            np.testing.assert_allclose(np.exp(logp - packed.rows.logp), 1.0, atol=1e-5)
            np.testing.assert_allclose(value.squeeze(-1), packed.rows.old_value, atol=1e-5)
            found = update.evaluate(replace(rollout, logp=None), None)
            np.testing.assert_allclose(found.logp[rollout.valid.ravel()], rollout.logp[rollout.valid], atol=1e-5)


def test_a_rollout_starts_where_the_one_before_stopped_and_every_episode_with_nothing():
    _, _, collector = start(settings_for("ppo", "truncated"))
    blocks = [collector.collect(0)["agent"] for _ in range(2)]
    memory = [np.array(block.memory) for block in blocks]
    begins = blocks[0].step() == 0
    assert begins.sum() > 3
    assert (memory[0][begins] == 0).all()
    assert (np.abs(memory[0][~begins]).max(-1) > 0).all()
    goes_on = blocks[1].step()[0] > 0
    assert goes_on.any()
    assert (np.abs(memory[1][0, goes_on]).max(-1) > 0).all()


def test_waiting_and_absent_agents_remember_nothing_new():
    _, _, collector = start(settings_for("ippo", "turns"))
    (rollout,) = collector.collect(0).values()
    waits = ~rollout.valid[:-1] & ~rollout.ended[:-1]
    assert waits.any()
    np.testing.assert_array_equal(rollout.memory[1:][waits], rollout.memory[:-1][waits])


def evaluated(parts: Assembly, rollout: Rollout):
    policy = parts.policies["agent"]
    return recurrent_update(policy).evaluate(rollout, None)


def test_what_was_cut_bootstraps_with_the_memory_after_its_last_step():
    _, parts, collector = start(settings_for("ppo", "truncated"))
    rollout = collector.collect(0)["agent"]
    policy, evaluation = parts.policies["agent"], evaluated(parts, rollout)
    assert (rollout.truncated & ~rollout.terminated)[:-1].any()
    for k, (step, lane) in enumerate(zip(rollout.successors.step, rollout.successors.lane, strict=True)):
        with torch.no_grad():
            before = torch.from_numpy(rollout.memory[step, lane])
            _, _, after = policy.step(torch.from_numpy(rollout.obs[step, lane]), None, before)
            value = policy.step(torch.from_numpy(rollout.successors.obs[k]), None, after)[1]
        assert evaluation.successor_value[k] == pytest.approx(float(value), abs=1e-5)


def test_memory_that_nobody_recorded_is_found_from_the_observations():
    _, parts, collector = start(settings_for("ppo", "truncated"))
    rollout = collector.collect(0)["agent"]
    recorded, found = evaluated(parts, rollout), evaluated(parts, replace(rollout, memory=None))
    np.testing.assert_allclose(found.actor_memory, recorded.actor_memory, atol=1e-5)
    np.testing.assert_allclose(found.critic_memory, recorded.critic_memory, atol=1e-5)


def test_another_policys_memory_is_refused():
    _, parts, collector = start(settings_for("ppo", "truncated"))
    rollout = collector.collect(0)["agent"]
    with pytest.raises(ConfigError, match="leave the memory column out"):
        evaluated(parts, replace(rollout, memory=rollout.memory[..., :3]))


def test_trajectories_stacked_again_are_evaluation_alike():
    _, parts, collector = start(settings_for("ppo", "truncated"))
    rollout = collector.collect(0)["agent"]
    stacked = stack_trajectories(list(rollout.trajectories()))
    want, got = evaluated(parts, rollout), evaluated(parts, stacked)
    by_lane = [want.value[rollout.valid].sum(), got.value[stacked.valid].sum()]
    assert by_lane[0] == pytest.approx(by_lane[1], rel=1e-5)


def test_gradients_go_back_to_the_first_step_of_a_sequence():
    _, parts, collector = start(settings_for("ppo", "discrete", **{"network.memory": MEMORY | {"sequence_length": 8}}))
    rollout, policy = collector.collect(0)["agent"], parts.policies["agent"]
    update = recurrent_update(policy)
    evaluation = update.evaluate(rollout, None)
    packed = update.batch(
        rollout, evaluation, Estimates(evaluation.logp, rollout.reward, rollout.reward), rollout.valid
    ).packed()
    features = torch.from_numpy(packed.rows.features).requires_grad_()
    outputs = policy.actor.unroll(features, packed.batch_sizes, packed.actor_memory)
    # The last packed row is the last step of the last among the longest sequences.
    outputs[-1].square().sum().backward()
    its_first, others_first = int(packed.batch_sizes[-1]) - 1, slice(0, int(packed.batch_sizes[-1]) - 1)
    assert len(packed.batch_sizes) == 6
    assert float(features.grad[its_first].abs().max()) > 1e-6
    assert float(features.grad[others_first].abs().max()) == 0.0


@pytest.mark.parametrize("toy", ["discrete", "dying agents", "masked", "nested", "continuous"])
@pytest.mark.parametrize("algo", RECURRENT)
def test_it_changes_its_policies_and_repeats(algo, toy):
    found = []
    for _ in range(2):
        env, parts, collector = start(settings_for(algo, toy, **{"network.normalize_observations": True}))
        before = {name: parameter_hash(policy) for name, policy in parts.policies.items()}
        for block in range(3):
            parts.trainer.receive(collector.collect(block))
            metrics = parts.trainer.advance()
            assert all(np.isfinite(number) for number in metrics.values()), metrics
        env.close()
        found.append({name: parameter_hash(policy) for name, policy in parts.policies.items()})
        assert all(found[-1][name] != before[name] for name in before) or toy == "masked"
    assert found[0] == found[1]


@pytest.mark.parametrize("toy", ["masked", "nested", "continuous"])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("algo", RECURRENT)
def test_its_exported_policy_remembers_as_the_live_one(algo, kind, toy, tmp_path):
    memory = {"network.memory": MEMORY | {"kind": kind}, "network.normalize_observations": True}
    env, parts, collector = start(settings_for(algo, toy, **memory))
    parts.trainer.receive(collector.collect(0))
    parts.trainer.advance()
    masked = toy == "masked"
    for name, policy in parts.policies.items():
        of = (policy.observation_space, policy.action_space)
        path = tmp_path / "model.onnx"
        exported = ExportedActor(
            export_policy(policy, PolicyMetadata("env", algo, name, 1, masked, *of), path, ExportFormat.ONNX)
        )
        actors = (exported, live_actor(policy))
        memories, generators = [LaneMemory(actor, 20) for actor in actors], [np.random.default_rng(1) for _ in actors]
        rng = np.random.default_rng(3)
        for step in range(50):  # 1,000 observations
            obs = stacked([policy.observation_space.sample() for _ in range(20)])
            mask = None
            if masked:
                mask = rng.random((20, policy.head.mask_width)) < 0.5
                mask[:, 0] = True
            both = zip(actors, memories, strict=True)
            distributions = [actor.step(obs, mask, memory.values)[0] for actor, memory in both]
            np.testing.assert_allclose(*distributions, rtol=1e-4, atol=1e-5)
            drawn = [m.decide(obs, mask, g).action for m, g in zip(memories, generators, strict=True)]
            np.testing.assert_allclose(*drawn, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(memories[0].values, memories[1].values, rtol=1e-4, atol=1e-5)
            for each in memories:
                each.forget(np.arange(20) % 7 == step % 7)
    env.close()


def stacked(rows):
    if isinstance(rows[0], dict):
        return {key: stacked([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(stacked(list(part)) for part in zip(*rows, strict=True))
    return np.stack([np.asarray(row) for row in rows])


@pytest.mark.parametrize("algo", RECURRENT)
def test_the_first_ratio_is_one(algo):
    _, parts, collector = start(
        settings_for(algo, "continuous", **{"params.num_minibatches": 1, "trainer.time_horizon": 60})
    )
    rollouts = collector.collect(0)
    for algorithm in parts.trainer._algorithms.values():
        algorithm._policy_passes = algorithm._value_passes = 1
    parts.trainer.receive(rollouts)
    assert parts.trainer.advance()["policy/kl"] == pytest.approx(0.0, abs=1e-8)


def test_several_rollouts_are_learned_from_at_once():
    _, parts, collector = start(settings_for("ppo", "discrete"))
    first = collector.collect(0)["agent"]
    algorithm = parts.trainer._algorithms["agent"]
    halves = [_rows(first, slice(0, 6)), _rows(first, slice(6, 13))]
    batches = [algorithm._prepare(half, None) for half in halves]
    joined = SequenceBatch.joined(batches)
    assert len(joined) == len(batches[0]) + len(batches[1])
    packed = joined.packed()
    assert len(packed.rows.advantage) == 13 * 3
    assert algorithm.update(halves, 0.0)["policy/gradient_steps"] > 0


def _rows(rollout: Rollout, rows: slice) -> Rollout:
    """Some rows of a rollout, as if it had been collected in two parts."""
    names = (
        "obs",
        "action",
        "reward",
        "terminated",
        "truncated",
        "valid",
        "failed",
        "policy_version",
        "logp",
        "memory",
    )
    columns = {name: np.array(getattr(rollout, name)[rows]) for name in names}
    again = replace(rollout, **columns)
    ended = again.ended.copy()
    ended[-1] = True
    step, lane = np.nonzero(ended)
    obs = np.zeros((len(step), *rollout.obs.shape[2:]), np.float32)
    return replace(again, successors=replace(rollout.successors, step=step, lane=lane, obs=obs))


def test_a_central_critic_remembers_from_rollout_to_rollout_and_in_a_saved_state():
    settings = settings_for("mappo", "continuous")
    env, parts, collector = start(settings)
    copy = assemble(settings, env)
    parts.trainer.receive(collector.collect(0))
    parts.trainer.advance()
    state = parts.trainer.state_dict()
    carried = next(iter(state["groups"].values()))["algorithm"]["gradients"]["carried_memory"]
    assert carried.shape == (9, 10)
    assert float(carried.abs().max()) > 0
    copy.trainer.load_state_dict(state)
    rollouts = collector.collect(1)
    hashes = []
    for each in (parts, copy):
        each.trainer.receive(rollouts)
        each.trainer.advance()
        hashes.append({name: parameter_hash(policy) for name, policy in each.policies.items()})
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("algo", sorted(set(algorithms()) - set(RECURRENT) - {"bc"}))
def test_learning_from_replay_refuses_a_memory_and_names_who_takes_it(algo):
    settings = settings_for(algo, "continuous")
    with pytest.raises(ConfigError, match="ppo, appo, impala, reinforce, or one of their i… and ma… forms"):
        assemble(settings, make_vector(settings.env, settings.environment))


RECALL = {
    "environment.num_envs": 16,
    "trainer.time_horizon": 32,
    "params.pi_lr": 5e-3,
    "params.vf_lr": 5e-3,
    "params.train_vf_iters": 4,
    "params.entropy_coef": 0.01,
}
PPO = {"params.train_pi_iters": 4, "params.num_minibatches": 4, "params.target_kl": None}
BASELINE = {"params.with_vf_baseline": True, "params.pi_lr": 1e-2, "params.entropy_coef": 0.0}


def recalled(algo: str, num_blocks: int, **flags) -> float:
    """The greedy mean return on RecallCue after training."""
    settings = settings_for(algo, "discrete", **(RECALL | flags))
    env = make_vector(settings.env, settings.environment)
    parts = assemble(settings, env)
    rng = np.random.default_rng(0)
    collector = Collector(env, parts.actors, num_steps=parts.rollout_steps, seed=0, rng=rng)
    for block in range(num_blocks):
        parts.trainer.receive(collector.collect(block))
        parts.trainer.advance()
    actors = {name: live_actor(policy) for name, policy in parts.policies.items()}
    return evaluate(env, actors, episodes=64, seed=7).mean_return


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_ppo_recalls_what_a_mlp_cannot(kind):
    memory = {"kind": kind, "size": 16, "sequence_length": 16}
    assert recalled("ppo", 20, **PPO, **{"network.memory": memory}) >= 0.95


def test_a_mlp_cannot_recall():
    assert recalled("ppo", 20, **PPO, **{"network.memory": None}) <= 0.75


def test_reinforce_recalls():
    memory = {"kind": "gru", "size": 16, "sequence_length": 16}
    assert recalled("reinforce", 60, **BASELINE, **{"network.memory": memory}) >= 0.95


def test_gradients_that_do_not_reach_the_cue_do_not_recall():
    """The broken variant: with sequences of one step, nothing teaches the memory to hold the cue."""
    memory = {"kind": "lstm", "size": 2, "sequence_length": 1}
    assert recalled("ppo", 20, **PPO, **{"network.memory": memory}) <= 0.8
