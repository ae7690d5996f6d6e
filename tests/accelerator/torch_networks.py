"""What `CompiledTapes` does, by torch: the reference of its tests. Rows that share parts are laid out."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from relayrl.models.networks.shared_rows import OwnColumns, SharedRows, laid_out, with_own


class TorchNetworks:
    """Networks with the same inputs, differentiated by autograd."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._outputs: list[torch.Tensor] = []

    def forward(self, x: np.ndarray | SharedRows) -> list[np.ndarray]:
        rows = torch.from_numpy(laid_out(x))
        self._outputs = [module(rows) for module in self._modules]
        return [output.detach().numpy() for output in self._outputs]

    def backward(self, gradients: Sequence[np.ndarray]) -> None:
        self._zero()
        for output, gradient in zip(self._outputs, gradients, strict=True):
            output.backward(torch.from_numpy(gradient))

    def regress(self, x: np.ndarray | SharedRows, target: np.ndarray, share: np.ndarray):
        outputs = self.forward(x)
        errors = [output - torch.from_numpy(target) for output in self._outputs]
        loss = sum(0.5 * (error.square() * torch.from_numpy(share)).sum() for error in errors)
        self._zero()
        loss.backward()
        return outputs, float(loss.detach())

    def min_q(self, x: np.ndarray | SharedRows, own: OwnColumns, share: np.ndarray):
        rows, numbers = torch.from_numpy(laid_out(x)), torch.from_numpy(own.numbers).requires_grad_()
        seen = rows.scatter(1, torch.from_numpy(own.columns), numbers)
        lowest = torch.stack([module(seen)[:, 0] for module in self._modules]).amin(0)
        gradient = torch.autograd.grad((lowest * torch.from_numpy(share)).sum(), numbers)[0]
        assert np.array_equal(laid_out(with_own(x, own)), seen.detach().numpy())
        return lowest.detach().numpy(), gradient.numpy()

    def _zero(self) -> None:
        for module in self._modules:
            for parameter in module.parameters():
                parameter.grad.zero_()
