"""Recurrent cells: one step for acting and export, whole sequences in one fused call for learning, whole lanes on a device.

What a cell remembers is one row of numbers, so that nobody outside needs to know its kind: an LSTM's is `[h | c]`, a GRU's `h`.
All ways of running it have the same parameters and give the same numbers; tests hold them to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from relayrl.models.network_settings import MemoryKind, MemorySettings

FORGET_BIAS = 1.0
"""An LSTM begins by remembering (Jozefowicz et al., 2015)."""


@dataclass(frozen=True, slots=True)
class MemoryStarts:
    """Where lanes begin with a given memory instead of going on with theirs: no gradient goes back across a start."""

    slot: Tensor
    """[T, L] int64: which of `given` a row begins with; −1: the lane goes on. Every lane starts on its first row."""
    given: Tensor
    """[K, L, M]."""

    def lanes(self, where: Tensor | None) -> MemoryStarts:
        """Those of some lanes; of all for None."""
        return self if where is None else MemoryStarts(self.slot[:, where], self.given[:, where])

    def entered(self, t: int, memory: Tensor) -> Tensor:
        """[L, M] what is remembered before row `t`, after which the lanes that go on remember `memory`."""
        slot = self.slot[t, :, None]
        given = self.given.gather(0, slot.clamp(min=0).expand(-1, self.given.shape[-1])[None])[0]
        return torch.where(slot >= 0, given, memory)


@dataclass(frozen=True, slots=True)
class UnrolledLanes:
    """What a cell makes of rows of lanes."""

    outputs: Tensor
    """[T, L, H]."""
    before: Tensor
    """[T, L, M] what was remembered before each row."""
    after: Tensor
    """[L, M] and after the last one."""


class MemoryCell(nn.Module):
    """One layer of LSTM (Hochreiter & Schmidhuber, 1997) or GRU (Cho et al., 2014); orthogonal weights."""

    def __init__(self, num_inputs: int, memory: MemorySettings, generator: torch.Generator) -> None:
        super().__init__()
        self.kind, self.num_outputs = memory.kind, memory.size
        is_lstm = memory.kind is MemoryKind.LSTM
        self.width = 2 * memory.size if is_lstm else memory.size
        self.layer: nn.LSTM | nn.GRU = (nn.LSTM if is_lstm else nn.GRU)(num_inputs, memory.size)
        input_weight, recurrent_weight, input_bias, recurrent_bias = self.layer.all_weights[0]
        for weight in (input_weight, recurrent_weight):
            for gate in weight.detach().chunk(len(weight) // memory.size):
                nn.init.orthogonal_(gate, generator=generator)
        for bias in (input_bias, recurrent_bias):
            nn.init.zeros_(bias)
        if is_lstm:
            input_bias.detach()[memory.size : 2 * memory.size] = FORGET_BIAS

    def step(self, inputs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[..., H] outputs of `inputs` [..., I] with `memory` [..., M], and the memory after."""
        input_weight, _, input_bias, _ = self.layer.all_weights[0]
        return self._advance(linear(inputs, input_weight, input_bias), memory)

    def _advance(self, own: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """`step` of inputs that went through the input's weights already."""
        size = self.num_outputs
        _, recurrent_weight, _, recurrent_bias = self.layer.all_weights[0]
        recalled = linear(memory[..., :size], recurrent_weight, recurrent_bias)
        if self.kind is MemoryKind.GRU:
            # r = σ(W_r x + U_r h);  z = σ(W_z x + U_z h);  n = tanh(W_n x + r ⊙ U_n h);  h′ = n + z ⊙ (h − n)
            reset, update = (own + recalled)[..., : 2 * size].sigmoid().chunk(2, -1)
            new = (own[..., 2 * size :] + reset * recalled[..., 2 * size :]).tanh()
            hidden = new + update * (memory - new)
            return hidden, hidden
        # i, f, o = σ(W x + U h);  g = tanh(W_g x + U_g h);  c′ = f ⊙ c + i ⊙ g;  h′ = o ⊙ tanh(c′)
        entry, forget, candidate, exit_ = (own + recalled).chunk(4, -1)
        cell = forget.sigmoid() * memory[..., size:] + entry.sigmoid() * candidate.tanh()
        hidden = exit_.sigmoid() * cell.tanh()
        return hidden, torch.cat([hidden, cell], -1)

    def unroll(self, inputs: Tensor, batch_sizes: Tensor, memory: Tensor) -> Tensor:
        """[R, H] outputs of sequences that begin with `memory` [C, M].

        Rows are packed: those of all sequences at their first step, then at their second, …; `batch_sizes[s]` sequences, the
        longest first, have a step `s`.
        """
        packed = PackedSequence(inputs, batch_sizes)
        parts = [part.contiguous()[None] for part in memory.split(self.num_outputs, -1)]  # type: ignore[no-untyped-call]
        outputs: PackedSequence = self.layer(packed, tuple(parts) if len(parts) == 2 else parts[0])[0]
        return outputs.data

    def unroll_lanes(self, inputs: Tensor, starts: MemoryStarts) -> UnrolledLanes:
        """The same for lanes side by side, `inputs` [T, L, I], whose memories start anew where `starts` says. The number of
        sequences is not asked for, so that the loop can be captured in a CUDA graph."""
        input_weight, _, input_bias, _ = self.layer.all_weights[0]
        memory = starts.given[0]
        outputs, before = [], []
        for t, own in enumerate(linear(inputs, input_weight, input_bias)):
            before.append(starts.entered(t, memory))
            seen, memory = self._advance(own, before[-1])
            outputs.append(seen)
        return UnrolledLanes(torch.stack(outputs), torch.stack(before), memory)
