"""Where the worlds' next episodes begin, worked out ahead of time for all of them in one batched call.

When a few worlds of many end, beginning just those would cost as many array calls as beginning all. An episode's beginning is
a function of `(key, episode)`, so a second `Worlds` holds the next one of every world; ending worlds take theirs, and all are
renewed when a world comes back for another. What is given does not depend on when it was worked out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relayrl.envs.native.array_namespace import XArray
from relayrl.envs.native.native_worlds import Blueprint, Worlds
from relayrl.envs.native.random_streams import uniforms


class EpisodeBeginnings:
    """Begins episodes in some of `num_worlds` worlds."""

    def __init__(self, blueprint: Blueprint, num_worlds: int) -> None:
        self._blueprint = blueprint
        self._num_worlds = num_worlds
        self._ahead: Worlds | None = None
        self._episode_ahead = blueprint.xp.from_host(np.full(num_worlds, -1, np.int64))
        self._none_ahead = blueprint.xp.from_host(np.array(-1, np.int64))
        self._upcoming: dict[str, XArray] = {}
        self.draw_dense = uniforms
        """What draws the numbers of all worlds' beginnings; a device may have a faster one of the same bits."""

    def expect(self, upcoming: Mapping[str, XArray], changed: XArray) -> None:
        """Options `[B]` of the episodes that begin next; `changed` `[B]` marks worlds that get others than before."""
        self._upcoming = dict(upcoming)
        self._blueprint.xp.copy_where(self._episode_ahead, self._none_ahead, changed)

    def begin(self, worlds: Worlds, where: XArray, count: int, keys: XArray, episodes: XArray) -> None:
        """Let the `count` worlds that `where` `[B]` bool marks begin their `episodes` `[B]`; `keys` `[B]` are the streams."""
        xp, num_draws = self._blueprint.xp, self._blueprint.num_draws
        if count == self._num_worlds:
            self._prepare(worlds)
            worlds.begin(uniforms(xp, keys, episodes, num_draws))
            return
        if self._ahead is None:
            self._ahead = self._blueprint.build(self._num_worlds)
        if xp.count_true((self._episode_ahead != episodes) & where):
            upcoming = episodes + 1
            xp.copy_where(upcoming, episodes, where)
            self._prepare(self._ahead)
            self._ahead.begin(uniforms(xp, keys, upcoming, num_draws))
            self._episode_ahead = upcoming
        worlds.place(xp, where, self._ahead)

    def begin_dense(self, worlds: Worlds, where: XArray, keys: XArray, episodes: XArray) -> None:
        """The same without asking the device how many worlds `where` marks: beginnings of all worlds are worked out anew."""
        xp = self._blueprint.xp
        if self._ahead is None:
            self._ahead = self._blueprint.build(self._num_worlds)
        self._ahead.begin(self.draw_dense(xp, keys, episodes, self._blueprint.num_draws))
        worlds.place(xp, where, self._ahead)

    def _prepare(self, worlds: Worlds) -> None:
        for name, values in self._upcoming.items():
            self._blueprint.xp.copy(worlds.parameters[name], values)

    def forget(self) -> None:
        """Work everything out anew: the keys or the counters of some worlds were changed."""
        self._episode_ahead[...] = -1
