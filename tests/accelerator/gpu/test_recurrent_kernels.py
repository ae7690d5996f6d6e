"""The time loops of the GPU's kernels are those of the cells, step by step, with starts; gradients are autograd's."""

import pytest
import torch

from relayrl.accelerator.gpu.mlp_tiles import Precision
from relayrl.accelerator.gpu.recurrent.fused_cells import fused_unroll, is_known_cell
from relayrl.models.network_settings import MemorySettings
from relayrl.models.networks.memory_cell import MemoryCell, MemoryStarts


def _cell(kind, size, num_inputs=3):
    generator = torch.Generator().manual_seed(0)
    cell = MemoryCell(num_inputs, MemorySettings(kind=kind, size=size), generator)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return cell


def _lanes(cell, num_steps, num_lanes, num_given, generator):
    """Inputs, and starts of which some are mid-way, some with another memory than zeros."""
    inputs = torch.randn(num_steps, num_lanes, 3, generator=generator)
    slot = torch.randint(-3, num_given, (num_steps, num_lanes), generator=generator).clamp(min=-1)
    slot[0] = torch.randint(0, num_given, (num_lanes,), generator=generator)
    given = torch.randn(num_given, num_lanes, cell.width, generator=generator)
    given[0] = 0.0
    return inputs, MemoryStarts(slot, given)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("size", "num_steps", "num_lanes"), [(8, 4, 5), (40, 3, 19)])
def test_unrolls_as_steps_do(kind, size, num_steps, num_lanes):
    cell = _cell(kind, size)
    g = torch.Generator().manual_seed(1)
    inputs, starts = _lanes(cell, num_steps, num_lanes, 3, g)
    inputs.requires_grad_()
    found = fused_unroll(cell, inputs, starts, Precision.NEAR_FLOAT32)
    expected = cell.unroll_lanes(inputs, starts)
    for name in ("outputs", "before", "after"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-5)
    weight = torch.randn(expected.outputs.shape, generator=g)
    wanted = [inputs, *cell.parameters()]
    own, reference = (torch.autograd.grad((made.outputs * weight).sum(), wanted) for made in (found, expected))
    for ours, theirs in zip(own, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_the_reference_is_torchs_own_layer_over_each_sequence(kind):
    cell = _cell(kind, 6)
    inputs, starts = _lanes(cell, 12, 4, 3, torch.Generator().manual_seed(2))
    made = cell.unroll_lanes(inputs, starts)
    weight = torch.randn(made.outputs.shape, generator=torch.Generator().manual_seed(3))
    expected, total = torch.empty_like(made.outputs), torch.zeros(())
    for lane in range(4):
        first = [t for t in range(12) if starts.slot[t, lane] >= 0]
        for begin, end in zip(first, [*first[1:], 12], strict=True):
            memory = starts.given[starts.slot[begin, lane], lane]
            seen = cell.unroll(inputs[begin:end, lane], torch.ones(end - begin, dtype=torch.int64), memory[None])
            expected[begin:end, lane] = seen.detach()
            total = total + (seen * weight[begin:end, lane]).sum()
    torch.testing.assert_close(made.outputs, expected, rtol=1e-5, atol=1e-6)
    own = torch.autograd.grad((made.outputs * weight).sum(), list(cell.parameters()))
    for ours, theirs in zip(own, torch.autograd.grad(total, list(cell.parameters())), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_without_a_gradient_the_loop_keeps_nothing_for_one():
    cell = _cell("lstm", 8)
    inputs, starts = _lanes(cell, 3, 5, 2, torch.Generator().manual_seed(4))
    with torch.no_grad():
        found = fused_unroll(cell, inputs, starts, Precision.NEAR_FLOAT32)
    torch.testing.assert_close(found.outputs, cell.unroll_lanes(inputs, starts).outputs, rtol=1e-5, atol=1e-5)
    assert not found.outputs.requires_grad


def test_other_cells_are_left_to_the_reference():
    class Own(MemoryCell):
        pass

    assert is_known_cell(_cell("gru", 8))
    assert not is_known_cell(Own(3, MemorySettings(size=8), torch.Generator()))
    hooked, frozen = _cell("gru", 8), _cell("lstm", 8)
    hooked.layer.register_forward_hook(lambda *_: None)
    frozen.layer.weight_hh_l0.requires_grad_(False)
    assert not is_known_cell(hooked)
    assert not is_known_cell(frozen)
