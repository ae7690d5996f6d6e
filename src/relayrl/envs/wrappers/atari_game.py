"""A game of the Arcade Learning Environment as agents learn it: `relayrl train ALE/Pong-v5`, stack `atari`.

One step is `frame_skip` frames of the game with one action. It shows the brighter of the last two frames, pixel by pixel, in
grey and `screen_size` pixels square: objects that the console draws in every other frame do not vanish. Numbers are those of
`gymnasium.wrappers.AtariPreprocessing`. An episode begins with 1 to `noop_max` frames of doing nothing.

With `life_loss`, losing a life ends what is learned from and not the game: the step is terminated and says `life_lost`, and
the next `reset` goes on with the game. With `fire`, the button is pressed where a game or a life waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from relayrl.data.trees import Array
from relayrl.envs.environment_contract import LIFE_LOST
from relayrl.envs.wrappers.area_resize import AreaResize
from relayrl.errors import ConfigError

_NOOP, _FIRE = 0, 1


class AtariGame(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The wrapper; the environment is one of ale-py's, with `frameskip=1`."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        noop_max: int = 30,
        frame_skip: int = 4,
        screen_size: int = 84,
        life_loss: bool = True,
        fire: bool = True,
    ) -> None:
        super().__init__(env)
        bare: Any = env.unwrapped
        game: Any = bare
        if env is not bare or not hasattr(game, "ale"):
            raise ConfigError(
                f"the wrappers 'atari' take a game of ale-py, such as ALE/Pong-v5, without other wrappers below them, not {env}"
            )
        if not isinstance(env.action_space, spaces.Discrete):
            raise ConfigError("the wrappers 'atari' need the game's buttons; leave out environment.options.continuous")
        if getattr(game, "_frameskip", None) != 1:
            raise ConfigError("the wrappers 'atari' skip frames themselves; leave out environment.options.frameskip")
        if min(frame_skip, screen_size) < 1 or noop_max < 0:
            raise ConfigError(
                f"the wrappers 'atari' need frame_skip and screen_size of at least 1 and noop_max of at least 0, "
                f"not {frame_skip}, {screen_size}, {noop_max}"
            )
        self._ale, self._actions = game.ale, list(game._action_set)
        self._noop_max, self._frame_skip, self._ends_with_life = noop_max, frame_skip, life_loss
        meanings = game.get_action_meanings()
        self._fires = fire and len(meanings) > _FIRE and meanings[_FIRE] == "FIRE"
        height, width = game.observation_space.shape[:2]
        self._resize = AreaResize((height, width), (screen_size, screen_size))
        self._screens = np.zeros((2, height, width), np.uint8)
        self._lives, self._goes_on, self._scored = 0, False, 0.0
        self.observation_space = spaces.Box(0, 255, (screen_size, screen_size), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        goes_on, self._goes_on = self._goes_on and seed is None, False
        self._scored = 0.0
        if not goes_on:
            self._begin(seed, options)
        if self._fires:
            self._scored, terminated, truncated = self._play(_FIRE)
            if terminated or truncated:
                self._begin(None, options)
        self._lives = self._ale.lives()
        return self._shown(), {"lives": self._lives}

    def _begin(self, seed: int | None, options: dict[str, Any] | None) -> None:
        self.env.reset(seed=seed, options=options)
        for _ in range(self.unwrapped.np_random.integers(1, self._noop_max + 1) if self._noop_max else 0):
            self._ale.act(self._actions[_NOOP])
            if self._ale.game_over():
                self.env.reset(options=options)
        self._screens[0] = 0
        self._ale.getScreenGrayscale(self._screens[1])

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated = self._play(int(action))
        reward, self._scored = reward + self._scored, 0.0  # what the button of a reset scored belongs to the game
        lives, before = self._ale.lives(), self._lives
        self._lives = lives
        info: dict[str, Any] = {"lives": lives}
        # Some games stay at no lives for a while before they are over.
        if self._ends_with_life and 0 < lives < before and not (terminated or truncated):
            terminated = self._goes_on = info[LIFE_LOST] = True
        return self._shown(), reward, terminated, truncated, info

    def _play(self, action: int) -> tuple[float, bool, bool]:
        """Frames with one action, until the game is over; keeps the last two."""
        ale, chosen, reward, terminated, truncated = self._ale, self._actions[action], 0.0, False, False
        for left in range(self._frame_skip - 1, -1, -1):
            reward += ale.act(chosen)
            terminated, truncated = ale.game_over(with_truncation=False), ale.game_truncated()
            is_last = left == 0 or terminated or truncated
            if is_last or left == 1:
                ale.getScreenGrayscale(self._screens[int(is_last)])
            if is_last:
                break
        return reward, bool(terminated), bool(truncated)

    def _shown(self) -> Array:
        screen = np.maximum(self._screens[0], self._screens[1]) if self._frame_skip > 1 else self._screens[1]
        return self._resize(screen, has_channels=False)

    def get_own_state(self) -> dict[str, Array]:
        """What the wrapper itself remembers."""
        numbers = np.array([self._lives, self._goes_on, self._scored])
        return {"screens": self._screens.copy(), "numbers": numbers}

    def set_own_state(self, state: Mapping[str, Array]) -> None:
        """Go on from `get_own_state`."""
        self._screens[...] = state["screens"]
        lives, goes_on, scored = state["numbers"].tolist()
        self._lives, self._goes_on, self._scored = int(lives), bool(goes_on), float(scored)
