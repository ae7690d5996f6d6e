"""Environments whose pictures can be counted: every frame has the colour of its step."""

import gymnasium
import numpy as np

EPISODE_STEPS = 5


class Coloured(gymnasium.Env):
    """Step t of 5 is drawn in the grey 40 t; the last frame, which no policy sees, in 200."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - Gymnasium's

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        return self._seen(), 1.0, self.t == EPISODE_STEPS, False, {}

    def _seen(self):
        return np.array([self.t / EPISODE_STEPS, 0.0], np.float32)

    def render(self):
        return np.full((16, 24, 3), 40 * self.t, np.uint8)


class Undrawable(Coloured):
    """Has no pictures, and must not be played when somebody asks for one."""

    metadata = {"render_modes": []}  # noqa: RUF012
    num_steps = 0

    def __init__(self) -> None:
        super().__init__()

    def step(self, action):
        Undrawable.num_steps += 1
        return super().step(action)


class WithoutLibrary(Coloured):
    """What draws it is not installed."""

    def render(self):
        raise ModuleNotFoundError("No module named 'painter'; pip install painter")


class OneLicence(Coloured):
    """A simulator of which one may run at a time."""

    num_open = 0

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        if OneLicence.num_open:
            raise RuntimeError("no licence left")
        OneLicence.num_open += 1

    def close(self):
        OneLicence.num_open -= 1
