"""What agents do, decoded: one group's actions `[B, N, …]` become forces `[2, N, B]` and messages `[C, N, B]`.

Discrete: `action % 5` is the move, `action // 5` the word (the action itself where the agent cannot move). Continuous: five
numbers for the moves (stay, left, right, down, up), then the message, all clipped to [0, 1].
"""

from __future__ import annotations

import numpy as np

from relayrl.envs.environment_contract import AgentGroup
from relayrl.envs.native.array_namespace import ArrayNamespace, DTypeName, XArray
from relayrl.envs.native.compiled_steps import step_kernels
from relayrl.envs.native.particles.layout import NUM_MOVES, AgentBody

_DIRECTIONS = np.array([[0, -1, 1, 0, 0], [0, 0, 0, -1, 1]])  # [2, move]


class GroupControls:
    """Decodes the actions of one group, whose members have equal abilities, into views of the world's arrays."""

    def __init__(
        self,
        xp: ArrayNamespace,
        dtype: DTypeName,
        group: AgentGroup,
        body: AgentBody,
        force: XArray,
        message: XArray | None,
        *,
        continuous: bool,
    ) -> None:
        """`force` [2, N, B] and `message` [C, N, B] are where the results go; None for those who do not speak."""
        self._xp = xp
        self._dtype = dtype
        self._body = body
        self._force = force if body.moves else None
        self._message = message
        self.apply = self._apply_continuous if continuous else self._apply_discrete
        if continuous:
            num_worlds = force.shape[-1]
            self._clipped = xp.zeros((num_worlds, group.num_agents, *(group.action_space.shape or ())), "float32")
        self._kernels = step_kernels(xp, dtype) if type(self) is GroupControls and message is None else None
        self._moves = xp.from_host((_DIRECTIONS * body.acceleration).astype(dtype))
        if message is not None:
            self._words = xp.from_host(np.arange(message.shape[0], dtype=np.int64)[:, None, None])

    def _apply_discrete(self, action: XArray) -> None:
        """`action` [B, N] int64."""
        xp = self._xp
        action = xp.permute(action, (1, 0))
        if self._force is not None:
            move = action % NUM_MOVES if self._body.speaks else action
            xp.take(self._moves, move.reshape(-1), 1, self._force.reshape(2, -1))
            action = action // NUM_MOVES if self._body.speaks else action
        if self._message is not None:
            xp.copy(self._message, xp.equal(self._words, action))

    def _apply_continuous(self, action: XArray) -> None:
        """`action` [B, N, A] float32."""
        xp = self._xp
        if self._kernels is not None and self._force is not None:
            worlds, agents, width = action.shape
            by_x, by_y = self._force
            seen = np.ascontiguousarray(action, np.float32)
            self._kernels.decode_moves(agents, worlds, width, seen, self._body.acceleration, by_x, by_y)
            return
        xp.clip(action, 0.0, 1.0, self._clipped)
        columns = xp.permute(self._clipped, (2, 1, 0))
        if self._force is not None:
            xp.subtract(columns[2], columns[1], out=self._force[0])
            xp.subtract(columns[4], columns[3], out=self._force[1])
            xp.multiply(self._force, self._body.acceleration, out=self._force)
            columns = columns[NUM_MOVES:]
        if self._message is not None:
            xp.copy(self._message, columns)
