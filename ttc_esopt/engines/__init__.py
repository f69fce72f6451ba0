"""Engines: where a model lives, writes replies under directions, and takes ES steps.

Importing this package loads no torch; `load_engine` does.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from ttc_esopt.engines.base import Engine, Reply, Request, Sampling
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es.noise import NoiseKind

ENGINES = ("auto", "transformers", "vllm")

__all__ = ["ENGINES", "Engine", "Reply", "Request", "Sampling", "load_engine"]


def load_engine(
    model: str,
    *,
    engine: str = "auto",
    device: str = "auto",
    dtype: str = "auto",
    noise: NoiseKind,
    scope: str = "auto",
    threads: int | None = None,
    batch_size: int = 32,
    rounding: str = "nearest",
    delta: str = "auto",
    tensor_parallel: int = 1,
    engine_args: str = "",
    replicas: int = 1,
    work_unit: int = 0,
    ray_address: str = "",
) -> Engine:
    """Load a model into an engine.

    Parameters
    ----------
    model : str
        A registry name (fetched if absent), a local Hugging Face folder, or a hub id.
    engine : str
        "transformers", "vllm", or "auto": vLLM on CUDA where it is installed, else transformers.
    device : str
        "cpu", "cuda", "cuda:1", or "auto": CUDA where there is one.
    dtype : str
        "float32", "bfloat16", "float16", or "auto": float32 on the CPU, bfloat16 on CUDA.
    noise : NoiseKind
    scope : str
        Tensors that move: "all", "linear", "lora[:R]" (full noise on factors beside linear layers), or "auto" (all for
        full noise, linear for low-rank noise).
    threads : int, optional
        Threads of torch's CPU operations in this process; None for OMP_NUM_THREADS, else the usable cores (at most 8).
    batch_size : int
        Most replies written at the same time.
    rounding : str
        Of 16-bit weights: "nearest" or "stochastic" (`ttc_esopt.es.noise`).
    delta : str
        Where the copy of the weights and the sum of the steps lie: "device", "host", "replay" (the copy on the host,
        the sum nowhere), or "auto": on the device where they fit. No bits depend on it.
    tensor_parallel : int
        Processes (on GPUs: cards) that share one copy of the model; vLLM only.
    engine_args : str
        Further arguments of vLLM, a JSON object.
    replicas : int
        Copies of the model that write at once, placed by Ray; 1: this process alone, without Ray.
    work_unit : int
        Directions that one replica is handed at a time (`ttc_esopt.engines.replica_units`); 0: whole calls with one
        replica, else the default of the noise.
    ray_address : str
        Of the Ray cluster to join; empty: a Ray of its own on this machine.

    Raises
    ------
    ConfigurationError
        Unknown engine, device, dtype or scope, or settings that do not go together.
    DataError, EngineError
        The model cannot be found, fetched, loaded or perturbed.
    """
    if engine not in ENGINES:
        raise ConfigurationError(f"Expected an engine of {', '.join(ENGINES)}, got {engine!r} (--engine).")
    given = {
        "device": device, "dtype": dtype, "noise": noise, "scope": scope, "threads": threads, "batch_size": batch_size,
        "rounding": rounding, "delta": delta,
    }  # fmt: skip
    of_vllm = {"tensor_parallel": tensor_parallel, "engine_args": engine_args}
    if replicas != 1 or work_unit:
        from ttc_esopt.engines.replicas import in_units

        return in_units(model, replicas, work_unit, ray_address, engine=engine, **given, **of_vllm)
    # Threads that wait by spinning make torch ten times slower as soon as another process wants one of the cores. It is
    # read once, when torch's OpenMP library is loaded: no effect where the caller has imported torch before.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if resolved(engine, device) == "vllm":
        from ttc_esopt.engines.vllm_engine import VllmEngine

        return VllmEngine(model, **given, **of_vllm)
    if tensor_parallel != 1 or engine_args:
        flag = "--tensor-parallel" if tensor_parallel != 1 else "--engine-args"
        raise ConfigurationError(f"Expected --engine vllm where {flag} is given, got the transformers engine.")
    from ttc_esopt.engines.transformers_engine import TransformersEngine

    return TransformersEngine(model, **given)


def resolved(engine: str, device: str = "auto") -> str:
    """The engine that "auto" comes to on this machine."""
    if engine != "auto":
        return engine
    if device.partition(":")[0] not in ("auto", "cuda") or find_spec("vllm") is None:
        return "transformers"
    import torch

    return "vllm" if torch.cuda.is_available() and ":" not in device else "transformers"
