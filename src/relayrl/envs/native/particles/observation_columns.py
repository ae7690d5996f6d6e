"""How scenarios write observations: the columns of `[B, N, O]` handed out in order, as views with the world axis last."""

from __future__ import annotations

from relayrl.envs.native.array_namespace import ArrayNamespace, XArray
from relayrl.envs.native.particles.geometry import nearest


class ObservationColumns:
    """Views of one group's observations, from the first column to the last."""

    def __init__(self, xp: ArrayNamespace, observation: XArray) -> None:
        self._xp = xp
        self._observation = observation
        self._next = 0

    def vectors(self, count: int) -> XArray:
        """[2, N, count, B]: the next `count` points or velocities."""
        num_worlds, num_agents = self._observation.shape[:2]
        columns = self._cut(2 * count).reshape(num_worlds, num_agents, count, 2)
        return self._xp.permute(columns, (3, 1, 2, 0))

    def vector(self) -> XArray:
        """[2, N, B]: the next point or velocity."""
        return self.vectors(1)[:, :, 0]

    def numbers(self, count: int) -> XArray:
        """[count, N, B]: the next `count` numbers."""
        return self._xp.permute(self._cut(count), (2, 1, 0))

    def _cut(self, width: int) -> XArray:
        columns = self._observation[:, :, self._next : self._next + width]
        self._next += width
        return columns


def write_nearest(xp: ArrayNamespace, columns: XArray, vectors: XArray, distance: XArray, limit: int | None) -> None:
    """Write `vectors` `[2, N, K, B]`, or those of the `limit` nearest bodies; slots beyond K stay zero."""
    if limit is None:
        xp.copy_envs_first(columns, vectors)
    else:
        order = nearest(xp, distance, limit)
        xp.copy_envs_first(columns[:, :, : order.shape[1]], xp.take_along(vectors, order[None], 2))
