"""How many runs of a study work at once, and on what; found out without importing torch."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass

from ttc_esopt.errors import ConfigurationError


@dataclass(frozen=True)
class Machine:
    """What a study's runs share.

    Attributes
    ----------
    cores : int
        Usable ones.
    gpus : tuple of str
        As CUDA_VISIBLE_DEVICES names them; empty: the runs work on the CPU.
    jobs : int
        Runs at once.
    workers : int
        Evaluation processes of a run that does not say how many.
    """

    cores: int
    gpus: tuple[str, ...]
    jobs: int
    workers: int

    def text(self, threads: int) -> str:
        """For people; `threads` are those of one run."""
        where = f"{len(self.gpus)} GPU{'s' * (len(self.gpus) > 1)}, " if self.gpus else ""
        on = "one GPU each" if self.gpus else f"{threads} thread{'s' * (threads > 1)} each"
        many = f"{self.jobs} runs at once, {on}" if self.jobs > 1 else f"one run at a time, {on.replace(' each', '')}"
        workers = f"{self.workers} evaluation process{'es' * (self.workers > 1)} a run"
        return f"{where}{self.cores} core{'s' * (self.cores > 1)}: {many}, {workers}"


def machine(threads: int, devices: Collection[str], jobs: int | None = None) -> Machine:
    """This machine, shared out.

    Parameters
    ----------
    threads : of the run that has most; 0: all cores
    devices : the runs' setting `device`
    jobs : runs at once; None: one per GPU, or as many as the cores have threads for

    Raises
    ------
    ConfigurationError
        jobs below 1.
    """
    cores = len(os.sched_getaffinity(0))
    found = () if set(devices) == {"cpu"} else gpus()
    if jobs is None:
        jobs = len(found) or max(1, cores // (threads or cores))
    if jobs < 1:
        raise ConfigurationError(f"Expected at least one job, got {jobs} (--jobs).")
    return Machine(cores, found, jobs, max(1, cores // jobs))


def gpus() -> tuple[str, ...]:
    """Visible CUDA devices (parts of a divided GPU count one each), as CUDA_VISIBLE_DEVICES names them."""
    try:
        if importlib.metadata.version("torch").endswith("+cpu"):
            return ()
    except importlib.metadata.PackageNotFoundError:
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [part.strip() for part in visible.split(",")]
        valid = [bool(re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", name)) for name in names]
        return tuple(names[: valid.index(False)] if False in valid else names)  # CUDA stops at the first bad one too
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return _listed(done.stdout) if done.returncode == 0 else ()


def _listed(text: str) -> tuple[str, ...]:
    """Devices of `nvidia-smi -L`: a GPU, or the parts it is divided into, which stand below it."""
    found: list[str] = []
    for kind, name in re.findall(r"\(UUID: ((?:GPU|MIG)-)([\w/-]+)\)", text):
        if kind == "MIG-" and found and found[-1].startswith("GPU-"):
            found.pop()
        found.append(kind + name)
    return tuple(found)
