"""Looks at this machine and installation: what is there, what it means for a run, and what is broken."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ttc_esopt import __version__, models
from ttc_esopt.errors import TtcEsoptError

PACKAGES = ("torch", "transformers", "numpy", "numba", "scipy", "safetensors", "gguf", "accelerate")


@dataclass(frozen=True)
class Finding:
    """One line of the report; `broken` means that a run would fail."""

    name: str
    detail: str
    broken: bool = False


def examine() -> list[Finding]:
    """All findings; never raises: a check that fails is a finding."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python, _packages, _machine, _torch, _kernels, _cache, _models, _sandbox,
    )  # fmt: skip
    findings = []
    for check in checks:
        try:
            findings.extend(check())
        except Exception as error:  # whatever is broken on this machine is what this command is there to tell
            findings.append(Finding(check.__name__.strip("_"), f"{type(error).__name__}: {error}", broken=True))
    return findings


def _python() -> Iterator[Finding]:
    old = sys.version_info < (3, 11)
    yield Finding("python", f"{platform.python_version()} ({sys.executable})" + (", 3.11 or later needed" * old), old)
    other = sys.platform != "linux"
    yield Finding("system", platform.platform() + ", only Linux can run candidates safely" * other, other)


def _packages() -> Iterator[Finding]:
    found = [f"ttc-esopt {__version__}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding("package", f"{package} is not installed", broken=True)
    yield Finding("versions", ", ".join(found))


def _machine() -> Iterator[Finding]:
    yield Finding("cores", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(facts[key].split()[0]) / 2**20 for key in ("MemTotal", "MemAvailable"))
    yield Finding("memory", f"{free:.1f} of {total:.1f} GiB free")


def _torch() -> Iterator[Finding]:
    import torch

    from ttc_esopt.engines.place import default_threads

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding("device", f"cuda: {', '.join(names)}")
        yield Finding("dtype", "auto is bfloat16 on CUDA")
        return
    yield Finding("device", f"cpu, {default_threads()} thread(s) unless told otherwise")
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0].split()
    native = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags]
    advice = "auto is float32 on the CPU; "
    if native:
        advice += f"this one multiplies bfloat16 natively ({', '.join(native)}): dtype bfloat16 may be faster, "
        advice += "at rounding errors of 0.4 %"
    else:
        advice += "keep it: bfloat16 is several times slower on this one"
    yield Finding("dtype", advice)


def _kernels() -> Iterator[Finding]:
    import numpy as np

    from ttc_esopt.es import noise

    out = np.empty(1 << 22, np.float32)
    noise.fill(out[:8], 1, "doctor")
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        noise.fill(out, 1, "doctor")
        seconds.append(time.perf_counter() - begin)
    speed = out.size / min(seconds)
    sane = abs(float(out.mean())) < 0.01 and abs(float(out.std()) - 1) < 0.01
    detail = f"version {noise.VERSION}, compiled, {speed / 1e9:.1f}e9 values/s on one thread"
    yield Finding("noise", detail if sane else "the compiled kernels give no unit normal values", not sane)


def _cache() -> Iterator[Finding]:
    folder = models.cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Finding("cache", f"{folder} cannot be written: {error} (set TTC_ESOPT_CACHE)", broken=True)
        return
    yield Finding("cache", f"{folder}, {shutil.disk_usage(folder).free / 2**30:.1f} GiB free on its disk")


def _models() -> Iterator[Finding]:
    for model in models.installed(hashes=True):
        if model.state == "ok":
            yield Finding("model", f"{model.name}: installed, {model.bytes / 1e6:.0f} MB, hashes match")
        elif model.state == "absent":
            yield Finding("model", f"{model.name}: not installed (ttc-esopt models pull {model.name})")
        else:
            mend = f"mend it by: ttc-esopt models pull {model.name}"
            yield Finding("model", f"{model.name}: {model.state}; {mend}", broken=True)


def _sandbox() -> Iterator[Finding]:
    from ttc_esopt.evaluation import sandbox

    try:
        yield Finding("sandbox", f"{sandbox.strength()}: {', '.join(sandbox.sandbox_layers())}")
        if missing := sandbox.advice():
            yield Finding("stronger", "; ".join(missing))
    except TtcEsoptError as error:
        yield Finding("sandbox", str(error), broken=True)
