"""What vLLM needs before it is there: its module and environment, and the model's folder; and what a request is."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ttc_esopt import models
from ttc_esopt.engines.chat import token_set
from ttc_esopt.errors import ConfigurationError, EngineError

CONTEXT = 8192  # tokens of prompt and reply, where the model allows more


class Job(NamedTuple):
    """One request: what is read, under which nudge (None: none), with which settings, and who takes what comes."""

    tokens: list[int]
    nudge: tuple[int, float] | None
    parameters: Any  # vLLM's SamplingParams
    take: Callable[[Any], None]  # given vLLM's RequestOutput as soon as it is there


def folder_of(model: str) -> Path:
    """The local folder of a model; one of the hub is fetched."""
    where = models.resolve(model)
    if isinstance(where, Path):
        return where
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(where, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]))
    except Exception as error:  # network, names, permissions: whatever the hub says
        raise EngineError(f"The model {model} could not be fetched: {said(error)}") from error


def imported(device: str, tensor_parallel: int, threads: int) -> tuple[Any, str]:
    """The module, and what it works on. What it reads from the environment is set before it is imported."""
    if tensor_parallel > 1 and "VLLM_CPU_OMP_THREADS_BIND" not in os.environ:
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // tensor_parallel)
        parts = [cores[i * share : (i + 1) * share] or cores[-1:] for i in range(tensor_parallel)]
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, part)) for part in parts)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    try:
        import vllm
        from vllm.platforms import current_platform
    except ImportError as error:
        raise ConfigurationError(
            f"vLLM cannot be imported ({error}): pip install 'ttc-esopt[vllm]' on a machine with CUDA; docs/vllm.md "
            "says how elsewhere (--engine)."
        ) from None
    kind = "cpu" if current_platform.is_cpu() else "cuda"
    if device.partition(":")[0] not in ("auto", kind) or device.partition(":")[2]:
        raise ConfigurationError(
            f"This vLLM works on {kind}, got {device} (--device); cards are chosen by CUDA_VISIBLE_DEVICES."
        )
    return vllm, kind


def let_it_look_at_llvmlite() -> None:
    """Keep vLLM from stumbling over llvmlite, which the compiled kernels use.

    On CPUs a worker reads the attributes of whatever is imported in its process, and llvmlite's library object gives a
    function where its attributes are asked for.
    """
    with contextlib.suppress(ImportError):
        from vllm.triton_utils import dispatcher

        def attributes(value: Any) -> dict[str, Any]:
            found = vars(value)
            return found if hasattr(found, "get") else {}

        dispatcher.vars = attributes


def said(error: Exception) -> str:
    """What an error of somebody else's comes to, in a line."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    lines = [line for line in lines if not line.startswith("For further information visit")]  # pydantic ends so
    return (lines or [type(error).__name__])[-1].partition(" [type=")[0]


def config_of(folder: Path) -> Any:
    """The model's configuration, or that of the part that writes text."""
    from transformers import AutoConfig

    with models.quiet():
        return AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config()


def context_of(config: Any) -> int:
    """Tokens of prompt and reply: what the model allows, at most CONTEXT."""
    return min(CONTEXT, getattr(config, "max_position_embeddings", None) or CONTEXT)


def is_recurrent(config: Any) -> bool:
    """Whether some layers carry a state along: gated delta-nets and the like."""
    return "linear_attention" in (getattr(config, "layer_types", None) or ())


def ends_of(folder: Path, tokenizer: Any) -> set[int]:
    """End tokens by generation settings, configuration and tokenizer."""
    told = [folder / name for name in ("generation_config.json", "config.json")]
    values = [json.loads(file.read_text()).get("eos_token_id") for file in told if file.exists()]
    return token_set(tokenizer.eos_token_id, *values)


def final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY
