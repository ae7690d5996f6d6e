"""Two learning rates with two seeds each, as a sweep: `python examples/sweep_learning_rate.py SCRATCH_DIR`.

Kill it at any moment and start it again: what is done is not repeated, what was cut off goes on from its checkpoint.
"""

import sys
from pathlib import Path

import relayrl

SWEEP = {
    "env": "CartPole-v1",
    "algo": "ppo",
    "settings": {"trainer": {"max_steps": 2048}, "evaluation": {"episodes": 5}},
    "seeds": [1, 2],
    "grid": {"pi_lr": [1.0e-3, 1.0e-2]},
    "concurrency": 2,
}

report = relayrl.sweep(SWEEP, sweep_dir=Path(sys.argv[1]))
for trial in report.trials:
    print(f"pi_lr {trial.settings['pi_lr']:g}: {trial.state.value}, return {trial.value}, by seed {dict(trial.values)}")
print("best settings:", report.best_settings)

# The best was chosen on seeds 1 and 2; what it is worth, another seed says.
run = relayrl.train(config=report.best_settings, seed=3, run_dir=Path(sys.argv[1]) / "report", progress=False)
print("with seed 3:", run.result.mean_return)
