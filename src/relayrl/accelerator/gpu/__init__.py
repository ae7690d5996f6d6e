"""The GPU's accelerator: Triton kernels that act, differentiate and step policies whose parts they know exactly.

Nothing here is imported before a run is built on a CUDA device. The reference of every formula is elsewhere (`algorithms`,
`models`, `envs.native`); tests hold the kernels to it in Triton's interpreter, `benchmarks/gpu_kernels.py` on a device.
Sums have a fixed order and no kernel adds atomically: the same inputs give the same bits on the same GPU.
"""
