"""Engines: where a model lives, writes replies under directions, and takes ES steps.

Importing this package loads no torch; `load_engine` does.
"""

from __future__ import annotations

import os

from ttc_esopt.engines.base import Engine, Reply, Request, Sampling
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es.noise import NoiseKind

ENGINES = ("auto", "transformers")

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
) -> Engine:
    """Load a model into an engine.

    Parameters
    ----------
    model : str
        A registry name (fetched if absent), a local Hugging Face folder, or a hub id.
    engine : str
        "transformers", or "auto" (the same, as long as there is one engine).
    device : str
        "cpu", "cuda", "cuda:1", or "auto": CUDA where there is one.
    dtype : str
        "float32", "bfloat16", "float16", or "auto": float32 on the CPU, bfloat16 on CUDA.
    noise : NoiseKind
    scope : str
        Tensors that move: "all", "linear", or "auto" (all for full noise, linear for low-rank noise).
    threads : int, optional
        Threads of torch's CPU operations in this process; None for OMP_NUM_THREADS, else the usable cores (at most 8).
    batch_size : int
        Most replies written at the same time.

    Raises
    ------
    ConfigurationError
        Unknown engine, device, dtype or scope, or settings that do not go together.
    DataError, EngineError
        The model cannot be found, fetched, loaded or perturbed.
    """
    if engine not in ENGINES:
        raise ConfigurationError(f"Expected an engine of {', '.join(ENGINES)}, got {engine!r} (--engine).")
    # Threads that wait by spinning make torch ten times slower as soon as another process wants one of the cores. It is
    # read once, when torch's OpenMP library is loaded: no effect where the caller has imported torch before.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from ttc_esopt.engines.transformers_engine import TransformersEngine

    return TransformersEngine(
        model, device=device, dtype=dtype, noise=noise, scope=scope, threads=threads, batch_size=batch_size
    )
