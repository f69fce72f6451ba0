"""What a model will take before it is loaded: weights, base, delta and key-value cache, against what the device has.

From the configuration alone: the model is built without its values (torch's meta device), so that parameters, tied
tensors and the tensors that noise of a scope moves are counted by the code that will move them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from ttc_esopt import models
from ttc_esopt.engines.place import device_of
from ttc_esopt.engines.weights import linear_modules, resolve_scope
from ttc_esopt.errors import EngineError
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.settings import Settings

PROMPT = 1024  # tokens of a prompt, as a guess
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes, and where they are to lie.

    Attributes
    ----------
    weights, base, delta : int
        Live tensors; their copy; float32 sums of the steps.
    cache : int
        Keys and values of a whole batch, with prompts of a guessed length.
    free, total : int
        Of the device.
    where : str
        `host memory`, or the CUDA device.
    """

    weights: int
    base: int
    delta: int
    cache: int
    free: int
    total: int
    where: str

    @property
    def model(self) -> int:
        """All but the cache, which smaller batches shrink."""
        return self.weights + self.base + self.delta

    def text(self) -> str:
        """For people."""
        parts = (("weights", self.weights), ("base", self.base), ("delta", self.delta), ("cache, about", self.cache))
        listed = ", ".join(f"{name} {_gib(size)}" for name, size in parts if size)
        return (
            f"memory in {self.where}: {_gib(self.model + self.cache)} GiB ({listed}); {_gib(self.free)} of "
            f"{_gib(self.total)} are free"
        )

    def check(self) -> str | None:
        """A warning where it may not fit.

        Raises
        ------
        EngineError
            Weights, base and delta alone are more than the device has.
        """
        if self.model > self.total:
            raise EngineError(f"The model does not fit. {self.text()}. {self.advice()}")
        return f"this may not fit: {self.advice()}" if self.model + self.cache > self.free else None

    def advice(self) -> str:
        """What makes it smaller."""
        ways = ["--dtype bfloat16 halves weights and base"] if self.weights and self.delta <= self.weights else []
        if self.base:
            ways.append("--noise lowrank:1 --scope linear moves fewer tensors")
            ways.append("--arm frozen needs neither base nor delta")
        if self.cache:
            ways.append("--batch-size and --max-tokens bound the cache")
        return "; ".join(ways) + "."


def memory_plan(settings: Settings, dtype: str = "auto") -> MemoryPlan | None:
    """The plan of a run; None where the model's configuration cannot be had yet.

    Parameters
    ----------
    dtype : of the weights where the run has one already; "auto": the device's
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    s = settings
    if s.model in models.REGISTRY and models.check(s.model) != "ok":
        return None
    device = device_of(s.device)
    dtype = s.dtype if s.dtype != "auto" else dtype
    if dtype == "auto":
        dtype = "float32" if device.type == "cpu" else "bfloat16"
    try:
        where = models.resolve(s.model)
        local = isinstance(where, Path)
        with models.quiet(), models.local_only() if local else contextlib.nullcontext(), torch.device("meta"):
            config = AutoConfig.from_pretrained(where, local_files_only=local)
            model = AutoModelForCausalLM.from_config(config)
            model.tie_weights()
    except Exception:  # whatever is wrong with the model, loading it will say
        return None
    kind = NoiseKind.parse(s.noise)
    tensors = {id(tensor): (name, tensor) for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    floats = {name: tensor.numel() for name, tensor in tensors.values() if tensor.is_floating_point()}
    moving = sum(floats.values())
    if resolve_scope(kind, s.scope) == "linear":
        moving = sum(module.weight.numel() for module in linear_modules(model).values())
    size = SIZES[dtype]
    steps = s.arm in ("esopt", "shuffled") or bool(s.init_from)
    rewritten = s.arm != "frozen" and kind.kind == "full"
    free, total, place = _room(device)
    return MemoryPlan(
        weights=size * sum(floats.values()), base=size * moving if steps or rewritten else 0,
        delta=4 * moving if steps else 0, cache=size * _per_token(config) * _rows(s) * (PROMPT + s.max_tokens),
        free=free, total=total, where=place,
    )  # fmt: skip


def _rows(s: Settings) -> int:
    """Replies that are written at once, at most."""
    if NoiseKind.parse(s.noise).kind == "full" and s.arm != "frozen":
        batch = s.replies_per_direction
    else:
        batch = s.directions * s.replies_per_direction
    return min(s.batch_size, max(batch, s.offspring))


def _per_token(config: object) -> int:
    """Numbers in the cache for one token of one row."""
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    width = getattr(text, "hidden_size", None)
    if not heads or not width:
        return 0
    pairs = getattr(text, "num_key_value_heads", None) or heads
    return 2 * text.num_hidden_layers * pairs * (getattr(text, "head_dim", None) or width // heads)


def _room(device: torch.device) -> tuple[int, int, str]:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return free, total, str(device)
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free, total = (int(facts[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    return free, total, "host memory"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}" if size < 2**30 else f"{size / 2**30:.1f}"
