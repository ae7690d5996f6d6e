"""Settings for an environment without a preset of its own, by the kind of problem it poses.

The classes' defaults are upstream's, and dear: 80 passes over every batch. A run that names nothing else gets what learns well
at sensible cost on problems of its kind instead. The kinds that fit are layers, later ones on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from relayrl.engines.settings.run_settings import merged
from relayrl.models.network_settings import ImageAxes

if TYPE_CHECKING:
    from relayrl.engines.settings.run_settings import RunSettings
    from relayrl.envs.environment_contract import AgentGroup, VectorEnvironment

PARTICLES = ("mpe2:", "vmas:", "native:simple_")
"""Names of the particle family: short episodes, in which what an agent does now is paid for soon."""


class ProblemKind(Enum):
    """What decides which settings suit a problem, in the order of the layers."""

    VECTOR = "vector"
    DISCRETE = "discrete"
    IMAGE = "image"
    MEMORY = "memory"
    PARTICLES = "particles"


def problem_kinds(
    env: str, groups: Mapping[str, AgentGroup], *, has_memory: bool, image_layout: ImageAxes = ImageAxes.AUTO
) -> list[ProblemKind]:
    """The kinds that fit an environment and a policy; every problem is at least a vector."""
    from gymnasium import spaces

    from relayrl.data.trees import space_leaves
    from relayrl.models.networks.observation_encoder import LeafEncoding

    parts = [leaf for group in groups.values() for _, leaf in space_leaves(group.observation_space)]
    leaves = [LeafEncoding(leaf) for leaf in parts]
    fits = {
        ProblemKind.VECTOR: True,
        ProblemKind.DISCRETE: all(isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) for leaf in parts)
        and not has_memory,
        ProblemKind.IMAGE: any(leaf.image_layout(image_layout) is not None for leaf in leaves),
        ProblemKind.MEMORY: has_memory,
        ProblemKind.PARTICLES: env.startswith(PARTICLES),
    }
    return [kind for kind, is_fitting in fits.items() if is_fitting]


def preset_for(settings: RunSettings, env: VectorEnvironment) -> tuple[dict[str, Any], list[ProblemKind]]:
    """What suits the kind of problem that an environment without a preset is, and the kinds that it fits."""
    network = settings.network
    has_memory = network.memory is not None
    kinds = problem_kinds(settings.env, env.groups, has_memory=has_memory, image_layout=network.image_layout)
    values = generic_preset(settings.algo, kinds)
    if env.num_envs > 1:  # a vector environment of its own number
        values.get("environment", {}).pop("num_envs", None)
    return values, kinds


def one_env(settings: RunSettings) -> VectorEnvironment:
    """One environment of a run, to look at."""
    from relayrl.envs.environment_registry import make_vector

    environment = settings.environment_here
    one = environment.model_copy(update={"num_envs": 1, "workers": min(environment.workers, 1)})
    return make_vector(settings.env, one, own_number=True)


def generic_preset(algo: str, kinds: list[ProblemKind]) -> dict[str, Any]:
    """The layers of an algorithm for these kinds; empty for algorithms of plug-ins."""
    text = (resources.files("relayrl.engines.settings") / "generic_presets.yaml").read_text()
    layers: dict[str, dict[str, Any]] = yaml.safe_load(text).get(algo, {})
    return merged(*(layers.get(kind.value, {}) for kind in kinds))
