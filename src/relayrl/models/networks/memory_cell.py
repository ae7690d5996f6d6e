"""Recurrent cells: one step for acting and export, whole sequences in one fused call for learning.

What a cell remembers is one row of numbers, so that nobody outside needs to know its kind: an LSTM's is `[h | c]`, a GRU's `h`.
Both ways of running it have the same parameters and give the same numbers; tests hold them to each other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from relayrl.models.network_settings import MemoryKind, MemorySettings

FORGET_BIAS = 1.0
"""An LSTM begins by remembering (Jozefowicz et al., 2015)."""


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
        size = self.num_outputs
        input_weight, recurrent_weight, input_bias, recurrent_bias = self.layer.all_weights[0]
        own = linear(inputs, input_weight, input_bias)
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
