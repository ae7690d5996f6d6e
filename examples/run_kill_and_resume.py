"""Kill a run with SIGKILL and resume it: the parameters are those of a run that nobody disturbed.

`python examples/run_kill_and_resume.py SCRATCH_DIR`
"""

import subprocess
import sys
import time
from pathlib import Path

import relayrl

SETTINGS = ["--steps", "8192", "--seed", "1", "--set", "checkpoint_interval=1024", "--set", "evaluation.episodes=2"]
TRAIN = [sys.executable, "-m", "relayrl", "train"]


def main(folder: Path) -> None:
    """One calm run, one that is killed after its first checkpoint, and their hashes."""
    calm, killed = folder / "calm", folder / "killed"
    subprocess.run([*TRAIN, "CartPole-v1", *SETTINGS, "--quiet", "--run-dir", str(calm)], check=True)

    process = subprocess.Popen([*TRAIN, "CartPole-v1", *SETTINGS, "--quiet", "--run-dir", str(killed)])
    while process.poll() is None and not list(killed.glob("checkpoints/step_*.ckpt")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    print("killed; what it had saved:", *sorted(path.name for path in killed.glob("checkpoints/*")))

    run = relayrl.train(run_dir=killed, resume=True, progress=False)
    print(f"resumed to step {run.result.num_env_steps:,}")
    assert run.result.parameter_hash == relayrl.load_run(calm).result.parameter_hash
    print("same parameters, bit for bit")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/kill-and-resume"))
