"""Kernels run in Triton's interpreter, on tensors of the host: the variable must be set before Triton is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
