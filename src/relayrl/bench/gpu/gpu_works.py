"""The work of each GPU row: what we train with which settings, beside which program, and what is asked of the ratio.

Sizes are those of the table in benchmarks/RESULTS.md; `tiny` gives a work that a CPU does in seconds, to see that it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

DISCRETE = {"environment.options.continuous_actions": False}
SYNTHETIC = "relayrl.bench.gpu.synthetic_environments"


@dataclass(frozen=True)
class Program:
    """A program of benchmarks/gpu beside which ours is measured, and its arguments."""

    script: str
    arguments: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """The package that it is written in."""
        return self.script.partition("_")[0]


@dataclass(frozen=True)
class GpuWork:
    """One row: `num_iterations` rollouts and updates, of which the first `num_warm_up` are not timed."""

    title: str
    env: str
    algo: str
    num_envs: int
    rollout: int
    num_iterations: int
    target: float
    peer: Program | None = None
    """None: our own run on the CPU."""
    settings: dict[str, Any] = field(default_factory=dict)
    is_tf32: bool = True
    """Whether ours may round what it multiplies to tf32, as JAX and the torch programs do."""
    num_warm_up: int = 3
    num_cpu_iterations: int = 0
    """Iterations of our own run on the CPU, warm-up included, where that is what the row is beside."""
    episodes: int = 0
    """Episodes of the final evaluation; 0: the return is that of training episodes."""

    @property
    def num_steps(self) -> int:
        """Environment steps of a run."""
        return self.num_envs * self.rollout * self.num_iterations

    @property
    def num_warm_up_steps(self) -> int:
        """Environment steps before the clock starts."""
        return self.num_envs * self.rollout * self.num_warm_up

    def tiny(self) -> GpuWork:
        """The same with 8 environments, two timed iterations and small batches."""
        settings = {**self.settings}
        if "params.batch_size" in settings:
            settings |= {"params.batch_size": 32, "params.learning_starts": 16, "params.update_interval": 8}
        peer = self.peer and replace(self.peer, arguments=(*self.peer.arguments, "--tiny"))
        num_iterations = self.num_warm_up + 2
        return replace(
            self,
            num_envs=8,
            num_iterations=num_iterations,
            num_cpu_iterations=num_iterations if self.num_cpu_iterations else 0,
            episodes=min(1, self.episodes),
            settings=settings,
            peer=peer,
        )

    def on_cpu(self) -> GpuWork:
        """What of it our own run on the CPU does."""
        return replace(self, num_iterations=self.num_cpu_iterations, episodes=0)

    def run_settings(self, device: str) -> dict[str, Any]:
        """What `relayrl.train` is given, as dotted paths."""
        steps = self.num_steps
        settings = {
            "trainer.time_horizon": self.rollout,
            "trainer.summary_freq": max(1, steps // 5),
            "trainer.checkpoint_interval": 2 * steps,
            "evaluation.episodes": self.episodes,
            "statistics.tensorboard": False,
            **self.settings,
        }
        if device != "cpu":
            settings |= {"device": device, "tf32": self.is_tf32}
            if self.env.startswith(SYNTHETIC):
                settings["environment.options.device"] = device
        return settings


def _ppo(rate: float, **network: Any) -> dict[str, Any]:
    """CleanRL's and PureJaxRL's settings of PPO: 4 epochs of 4 minibatches, everything clipped, nothing normalised.

    All that a preset or generic settings would say otherwise is said here.
    """
    params = {
        "train_pi_iters": 4,
        "train_vf_iters": 4,
        "num_minibatches": 4,
        "pi_lr": rate,
        "vf_lr": rate,
        "gamma": 0.99,
        "lam": 0.95,
        "clip_ratio": 0.2,
        "value_clip": 0.2,
        "entropy_coef": 0.01,
        "max_grad_norm": 0.5,
        "target_kl": None,
        "lr_schedule": "linear",
        "normalize_returns": False,
    }
    network = {"activation": "tanh", "normalize_observations": False, "log_std_init": 0.0, **network}
    return {f"params.{name}": value for name, value in params.items()} | {
        f"network.{name}": value for name, value in network.items()
    }


def _cart_pole(num_envs: int, rollout: int, num_iterations: int) -> GpuWork:
    sizes = ("--num-envs", num_envs, "--rollout", rollout, "--iterations", num_iterations)
    return GpuWork(
        f"PPO native:CartPole, {num_envs:,} × {rollout}",
        "native:CartPole",
        "ppo",
        num_envs,
        rollout,
        num_iterations,
        target=4.0,
        peer=Program("jax_ppo_cartpole.py", tuple(map(str, sizes))),
        settings=_ppo(2.5e-3, hidden_sizes=(64, 64)),
    )


def _replay(algo: str, **params: Any) -> GpuWork:
    learning = {
        "batch_size": 32_768,
        "buffer_size": 1_000_000,
        "learning_starts": 32_768,
        "update_interval": 4_096,
        "train_iters": 4,
        "actor_lr": 1e-3,
        "critic_lr": 1e-3,
        "gamma": 0.98,
        "tau": 0.02,
        **params,
    }
    return GpuWork(
        f"{algo.upper()} native:Pendulum, 4,096 environments, batch 32,768",
        "native:Pendulum",
        algo,
        num_envs=4_096,
        rollout=1,
        num_iterations=1_200,
        target=20.0,
        num_warm_up=16,
        num_cpu_iterations=28,
        episodes=100,
        settings={f"params.{name}": value for name, value in learning.items()}
        | {"network.hidden_sizes": (256, 256), "network.activation": "relu"},
    )


WORKS: dict[str, GpuWork] = {
    "cartpole_large": _cart_pole(16_384, 32, 100),
    "cartpole_float32": replace(
        _cart_pole(16_384, 32, 100),
        title="PPO native:CartPole, 16,384 × 32, near float32 beside tf32",
        target=1.3,
        is_tf32=False,
    ),
    "cartpole_small": _cart_pole(4, 128, 200),
    "cartpole_medium": _cart_pole(2_048, 32, 200),
    "ippo_spread": GpuWork(
        "IPPO native:simple_spread, 4,096 × 128",
        "native:simple_spread",
        "ippo",
        4_096,
        128,
        num_iterations=40,
        target=3.0,
        peer=Program("jax_ippo_spread.py"),
        # Without the value's clip, which is in units of reward: with it, a critic does not come down to returns of −25 in time.
        settings={**_ppo(2.5e-3, hidden_sizes=(64, 64)), **DISCRETE, "params.value_clip": None},
    ),
    # Two layers before the cell: JaxMARL has one before and one behind it, which is as much work. Minibatches are whole lanes
    # on both sides. The value is not clipped, as in ippo_spread.
    "mappo_rnn_spread": GpuWork(
        "MAPPO-RNN native:simple_spread, 4,096 × 128, GRU 128",
        "native:simple_spread",
        "mappo",
        4_096,
        128,
        num_iterations=10,
        target=10.0,
        peer=Program("jax_mappo_rnn_spread.py", ("--iterations", "4")),
        settings=_ppo(
            2e-3,
            hidden_sizes=(128, 128),
            activation="relu",
            memory={"kind": "gru", "size": 128, "sequence_length": 128},
        )
        | {**DISCRETE, "params.value_clip": None},
        num_warm_up=2,
    ),
    "td3_pendulum": _replay("td3"),
    "sac_pendulum": _replay("sac", temperature_lr=1e-3),
    "cnn": GpuWork(
        "PPO on 84×84×4 images, 1,024 × 32, Nature's encoder",
        f"{SYNTHETIC}:moving_square",
        "ppo",
        1_024,
        32,
        num_iterations=20,
        target=2.0,
        peer=Program("torch_ppo_image.py"),
        settings=_ppo(2.5e-4, hidden_sizes=(), encoder="nature_cnn", encoder_size=512, activation="relu")
        | {"deterministic": False},  # as the program's convolutions are
    ),
    "wide": GpuWork(
        "PPO, 3×128 relu, 17 observations, 6 continuous actions, 8,192 × 32",
        f"{SYNTHETIC}:regulator",
        "ppo",
        8_192,
        32,
        num_iterations=60,
        target=2.0,
        peer=Program("torch_ppo_continuous.py"),
        settings=_ppo(1e-3, hidden_sizes=(128, 128, 128), activation="relu"),
    ),
}
STARTUP = "startup"
STARTUP_WORK = replace(
    _cart_pole(16_384, 32, 5), title="process start to the first update, PPO native:CartPole, 16,384 × 32"
)
STARTUP_BUDGET_S = 5.0
NAMES = (*WORKS, STARTUP)
