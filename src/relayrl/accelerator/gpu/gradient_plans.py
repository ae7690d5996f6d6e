"""Which kernels find a gradient, and in blocks of which size: small networks in one launch, wide ones layer by layer.

Sizes of blocks are chosen here from the network's shape alone, never by measuring while running: a choice changes the order of
sums, and the same run must give the same bits again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import triton
from torch import Tensor

from relayrl.accelerator.gpu import persistent_gradients as persistent
from relayrl.accelerator.gpu.clipped_adam import reduce_partials
from relayrl.accelerator.gpu.gradient_terms import (
    MULTIPROCESSORS,
    NUM_POLICY_SUMS,
    NUM_VALUE_SUMS,
    HeadShape,
    Network,
    PolicyTerms,
    ValueTerms,
)
from relayrl.accelerator.gpu.mlp_tiles import MLPShape, Precision
from relayrl.accelerator.gpu.wide.layered_plan import LayeredNetwork

SMALL_WEIGHTS = 8_192
"""Padded weights up to which one program holds a network and its gradient in registers."""


class GradientPlan(ABC):
    """Finds gradients of a policy and a value over minibatches of so many rows."""

    @abstractmethod
    def policy(self, network: Network, rows: Tensor, head: HeadShape, terms: PolicyTerms) -> Tensor:
        """[4] loss, KL, entropy and share of clipped rows; writes the gradient."""

    @abstractmethod
    def value(self, network: Network, rows: Tensor, terms: ValueTerms) -> Tensor:
        """[1] the loss; writes the gradient."""


class PersistentPlan(GradientPlan):
    """One launch for small networks, of one or both."""

    def __init__(
        self,
        shapes: tuple[MLPShape, MLPShape],
        num_extra: int,
        num_rows: int,
        precision: Precision,
        device: torch.device,
        blocks: tuple[int, int, int, int] | None = None,
    ) -> None:
        """`num_extra` parameters lie behind the policy's; `blocks` are rows of a block, warps, programs and stages."""
        self.num_rows, self._precision = num_rows, precision.value
        # Of tf32x3 one program's tiles fill a multiprocessor's shared memory, of the others two programs' do.
        programs = MULTIPROCESSORS if precision is Precision.NEAR_FLOAT32 else 2 * MULTIPROCESSORS
        # Loads are few beside the products, which lose more by the registers of a pipeline than they gain.
        stages = 1 if precision is Precision.TF32 else 3
        self._block, self._warps, self._max_programs, self._stages = blocks or (64, 4, programs, stages)
        sizes = shapes[0].num_parameters + num_extra + NUM_POLICY_SUMS, shapes[1].num_parameters + NUM_VALUE_SUMS
        most = self._programs(1)[0]
        self.partials = torch.zeros((most, sizes[0]), device=device), torch.zeros((most, sizes[1]), device=device)
        self._sums = torch.zeros(NUM_POLICY_SUMS + NUM_VALUE_SUMS, device=device)

    def _programs(self, num_networks: int) -> tuple[int, int]:
        """Programs for each network, and blocks of rows for each program."""
        num_blocks = triton.cdiv(self.num_rows, self._block)
        steps = triton.cdiv(num_blocks, min(max(self._max_programs // num_networks, 1), num_blocks))
        return triton.cdiv(num_blocks, steps), steps

    def launch(
        self,
        policy: tuple[Network, HeadShape, PolicyTerms] | None,
        value: tuple[Network, ValueTerms] | None,
        rows: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The parts `[G, …]` of the gradients of one or both."""
        networks = (policy is not None) + (value is not None)
        programs, steps = self._programs(networks)
        parts = self.partials[0][:programs], self.partials[1][:programs]
        constants: dict[str, Any] = {"TRAINS": (policy is not None) + 2 * (value is not None), "STEPS": steps}
        pi_arguments: tuple[Any, ...] = (None,) * 12
        vf_arguments: tuple[Any, ...] = (None,) * 7
        if policy is not None:
            network, head, terms = policy
            columns = network.vector, network.features, *terms.arguments
            pi_arguments = *columns, parts[0], parts[0].stride(0), *terms.numbers
            constants |= {**network.shape.constants, **head.constants, **terms.constants}
        else:
            constants |= dict.fromkeys(("SIZES", "WIDTHS", "OFFSETS", "IS_TANH", "PARTS", "BEGINS", "STARTS"))
            constants |= dict.fromkeys(("HAS_MASK", "IS_CLIPPED"))
        if value is not None:
            critic, of_value = value
            columns = critic.vector, critic.features, of_value.old_value, of_value.target
            vf_arguments = *columns, parts[1], parts[1].stride(0), of_value.clip or 0.0
            constants |= critic.shape.prefixed_constants | {"IS_V_CLIPPED": of_value.clip is not None}
        else:
            constants |= dict.fromkeys(("V_SIZES", "V_WIDTHS", "V_OFFSETS", "IS_V_TANH", "IS_V_CLIPPED"))
        persistent.gradients_kernel[(networks * programs,)](
            *pi_arguments, *vf_arguments, rows, self.num_rows, programs, **constants, BLOCK=self._block,
            PRECISION=self._precision, num_warps=self._warps, num_stages=self._stages,
        )  # fmt: skip
        return parts

    def policy(self, network: Network, rows: Tensor, head: HeadShape, terms: PolicyTerms) -> Tensor:
        parts, sums = self.launch((network, head, terms), None, rows)[0], self._sums[:NUM_POLICY_SUMS]
        reduce_partials(parts, network.gradient, sums)
        return sums

    def value(self, network: Network, rows: Tensor, terms: ValueTerms) -> Tensor:
        parts, sums = self.launch(None, (network, terms), rows)[1], self._sums[NUM_POLICY_SUMS:]
        reduce_partials(parts, network.gradient, sums)
        return sums


class LayeredPlan(GradientPlan):
    """A few launches per layer, for any width."""

    def __init__(
        self,
        shapes: tuple[MLPShape, MLPShape],
        num_extra: int,
        num_rows: int,
        precision: Precision,
        device: torch.device,
    ) -> None:
        self._policy = LayeredNetwork(shapes[0], num_extra, num_rows, precision, device)
        self._value = LayeredNetwork(shapes[1], 0, num_rows, precision, device)

    def policy(self, network: Network, rows: Tensor, head: HeadShape, terms: PolicyTerms) -> Tensor:
        return self._policy.policy(network, rows, head, terms)

    def value(self, network: Network, rows: Tensor, terms: ValueTerms) -> Tensor:
        return self._value.value(network, rows, terms)


def gradient_plan(
    shapes: tuple[MLPShape, MLPShape], num_extra: int, num_rows: int, precision: Precision, device: torch.device
) -> GradientPlan:
    """The way that suits the networks' sizes."""
    is_small = max(shape.num_weights for shape in shapes) <= SMALL_WEIGHTS
    return (PersistentPlan if is_small else LayeredPlan)(shapes, num_extra, num_rows, precision, device)
