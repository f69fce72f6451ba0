"""Where an engine works: the device, and how many threads of it."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from ttc_esopt.engines.base import expect
from ttc_esopt.errors import ConfigurationError


def default_threads() -> int:
    """Threads for torch: OMP_NUM_THREADS where it is set, else the usable cores, at most 8.

    Reading prompts is bound by arithmetic and gains from every core; writing replies is bound by memory, which a few
    cores use up. With idle threads that sleep (see `load_engine`), more threads than free cores cost little.
    """
    told = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(told)) if told.isdigit() else min(8, len(os.sched_getaffinity(0)))


def device_of(text: str) -> torch.device:
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    expect(device is not None and device.type in ("cpu", "cuda"), "device auto, cpu or cuda[:N]", text, "--device")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise ConfigurationError(f"Expected a device of this machine, got {text!r}: no such CUDA device (--device).")
    return device


def delta_place(wanted: str, device: str, fits: Callable[[], bool] | None) -> tuple[str, str]:
    """Where base and delta lie, and what "auto" chose by (empty where there was nothing to choose).

    Parameters
    ----------
    wanted : "auto", or the place itself
    device : its type, "cpu" or "cuda"
    fits : whether they fit on the device beside all else that it is to hold, asked where it matters; None: an engine
        that fills the device with its cache
    """
    if wanted != "auto" or device == "cpu":
        return ("device" if wanted == "auto" else wanted), ""
    if fits is None:
        return "host", "vLLM's cache takes what is free on the card"
    if fits():
        return "device", "they fit beside the weights"
    return "host", "beside the weights they do not fit"


def fit_beside(model: torch.nn.Module, device: torch.device) -> bool:
    """Whether base and delta of a loaded model, all of it moving, leave a fifth of a CUDA device free.

    A run asks its memory plan instead, which knows what moves and how much the cache takes.
    """
    moved = sum(p.numel() * (p.element_size() + 4) for p in model.parameters())
    free, total = torch.cuda.mem_get_info(device)
    return moved <= free - total / 5
