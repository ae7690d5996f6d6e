"""What to do with objects and names of libraries that speak another language: shimmy has an adapter for most of them."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from typing import Any

_INSTALL = "pip install shimmy"
_BY_PACKAGE = {
    "dm_control": ("DmControlCompatibilityV0(env)", "dm-control"),
    "bsuite": ("BSuiteCompatibilityV0(env)", "bsuite"),
    "meltingpot": ("MeltingPotCompatibilityV0(env=env)", "meltingpot"),
    "dmlab2d": ("MeltingPotCompatibilityV0(env=env)", "meltingpot"),
    "pyspiel": ("OpenSpielCompatibilityV0(env=game)", "openspiel"),
    "open_spiel": ("OpenSpielCompatibilityV0(env=game)", "openspiel"),
    "gym": ("GymV26CompatibilityV0(env=env)", "gym-v26"),
    "dm_env": ("DmControlCompatibilityV0(env)", "dm-control"),
}
"""shimmy's adapter of objects of a package, and the extra that installs both; the first that an object derives from counts."""
_BY_ID = {
    "dm_control/": ("dm_control", "dm-control"),
    "bsuite/": ("bsuite", "bsuite"),
    "meltingpot/": ("meltingpot", "meltingpot"),
    "GymV21Environment-v0": ("gym", "gym-v21"),
    "GymV26Environment-v0": ("gym", "gym-v26"),
}
"""What Gymnasium ids that shimmy registers begin with: the package that they need, and the extra that installs it."""


def object_hint(built: Any) -> str | None:
    """How an environment of another library becomes one that RelayRL runs; None where nobody knows."""
    packages = {base.__module__.partition(".")[0] for base in type(built).__mro__}
    for package, (adapter, extra) in _BY_PACKAGE.items():
        if package in packages:
            return f"return shimmy.{adapter} from your factory ({_INSTALL}[{extra}])"
    return None


def register_for(env_id: str) -> None:
    """Have shimmy register its ids with Gymnasium, where `env_id` may be one of them and shimmy is installed."""
    if any(env_id.startswith(prefix) for prefix in _BY_ID) and importlib.util.find_spec("shimmy") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ids that were registered before
            importlib.import_module("shimmy.registration").register_gymnasium_envs()


def id_hint(env_id: str) -> str | None:
    """What an unknown id needs in order to be known; None where nobody knows."""
    if importlib.util.find_spec("shimmy") is None:
        return None  # whoever knows packages by their ids names it
    for prefix, (package, extra) in _BY_ID.items():
        if env_id.startswith(prefix):
            have = [name for name in ("shimmy", package) if importlib.util.find_spec(name) is not None]
            missing = f", which {' and '.join(have)} alone cannot make" if have else ""
            return f"{env_id} is one of shimmy's compatibility environments{missing}: {_INSTALL}[{extra}]"
    return None
