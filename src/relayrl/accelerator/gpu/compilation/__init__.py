"""Triton's compiler: started beside other work, and given all kernels of a run at once."""
