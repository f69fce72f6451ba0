"""The hosts that we know, and how an unknown version of one is told apart."""

from __future__ import annotations

import os
from types import ModuleType

from ttc_esopt.scaffolds.hosts import eoh1, eoh2, llm4ad, reevo
from ttc_esopt.scaffolds.hosts.attachment import SUPPORTED, Attachment, Hook
from ttc_esopt.scaffolds.hosts.client import HostError


def _eoh(module: ModuleType, attachment: Attachment) -> None:
    """Refuse a package `eoh` that is neither generation; each has its own hooks for what it is patched in."""
    first = any(os.path.exists(os.path.join(folder, "utils", "getParas.py")) for folder in module.__path__)
    if first or hasattr(module, "BaseProblem"):
        return
    names = ", ".join(sorted(name for name in vars(module) if not name.startswith("_"))) or "nothing"
    raise HostError(f"Expected EoH 0.1 or 0.2, but {module.__file__} offers {names}. {SUPPORTED}")


HOOKS: dict[str, Hook] = {"eoh": _eoh, **eoh1.HOOKS, **eoh2.HOOKS, **llm4ad.HOOKS, **reevo.HOOKS}
