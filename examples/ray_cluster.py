"""The same run in this process and on Ray with two collectors: the same parameters, bit for bit. Needs `relayrl[ray]`.

python examples/ray_cluster.py [RUN_DIR]
"""

import sys
import tempfile
from pathlib import Path

import relayrl

SMALL = {"num_envs": 4, "time_horizon": 32, "evaluation.episodes": 2}
ON_RAY = {**SMALL, "engine": "ray", "workers": 2, "cluster.object_store_mb": 100}


def main() -> None:
    base = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    local = relayrl.train("CartPole-v1", steps=2_048, run_dir=base / "local", settings=SMALL, progress=False)
    on_ray = relayrl.train("CartPole-v1", steps=2_048, run_dir=base / "ray", settings=ON_RAY, progress=False)
    print(f"local {local.result.parameter_hash:.16}")
    print(f"ray   {on_ray.result.parameter_hash:.16}")
    assert on_ray.result.parameter_hash == local.result.parameter_hash


if __name__ == "__main__":
    main()
