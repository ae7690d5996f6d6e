"""A plugin of pytest: the tests run with the kernels in the file that `KERNELS_UNDER_TEST` names."""

import importlib.util
import os
import sys

import relayrl.compiled

NAME = "relayrl.compiled._kernels"
specification = importlib.util.spec_from_file_location(NAME, os.environ["KERNELS_UNDER_TEST"])
sys.modules[NAME] = relayrl.compiled._kernels = importlib.util.module_from_spec(specification)
specification.loader.exec_module(relayrl.compiled._kernels)

from relayrl.compiled import loader  # noqa: E402 - it looks for the kernels when it is imported

assert loader.kernels() is relayrl.compiled._kernels, loader.missing()
