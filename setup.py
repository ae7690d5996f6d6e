"""The compiled kernels. Everything else is in pyproject.toml.

They are optional: where there is no compiler, the package is installed without them and runs in NumPy.
"""

from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("src/relayrl/compiled")
HEADERS = sorted(str(path) for path in FOLDER.glob("*.h"))

setup(
    ext_modules=[
        Extension(
            "relayrl.compiled._kernels",
            sources=sorted(str(path) for path in FOLDER.glob("*.c")),
            depends=HEADERS,
            extra_compile_args=["-O3", "-std=gnu11", "-fno-math-errno", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
