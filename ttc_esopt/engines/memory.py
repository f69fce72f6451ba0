"""What a model will take before it is loaded: weights, base, delta and key-value cache, against what the device has.

Base and delta may lie on the host, or delta nowhere (`--delta`); what that changes is said, and `auto` chooses by it.

From the configuration alone: the model is built without its values (torch's meta device), so that parameters, tied
tensors and the tensors that noise of a scope moves are counted by the code that will move them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ttc_esopt import models
from ttc_esopt.engines import resolved
from ttc_esopt.engines.adapters import lora_rank
from ttc_esopt.engines.place import delta_place, device_of
from ttc_esopt.engines.scopes import linear_modules, resolve_scope
from ttc_esopt.engines.weights import BLOCK
from ttc_esopt.errors import EngineError
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.settings import Settings

PROMPT = 1024  # tokens of a prompt, as a guess
HOST = "host memory"
BLOCKS = 16 * BLOCK + (100 << 20)  # of base and delta on their way, and of noise in the making; bytes, at most
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
    factors : int
        Low-rank directions of a whole batch.
    delta_at : str
        `device`, `host` (base and delta there) or `replay` (base there, delta nowhere).
    why : str
        What `auto` chose by; empty where the user chose, or there is nothing to choose.
    host_free, host_total : int
        Of the host.
    share : int
        Devices that share the model: all numbers but the host's are of one.
    base_spare, delta_spare : int
        What pinned tensors take on the host beyond their values.
    """

    weights: int
    base: int
    delta: int
    cache: int
    free: int
    total: int
    where: str
    factors: int = 0
    delta_at: str = "device"
    why: str = ""
    host_free: int = 0
    host_total: int = 0
    share: int = 1
    base_spare: int = 0
    delta_spare: int = 0

    @property
    def apart(self) -> bool:
        """Whether base and delta lie elsewhere than the weights."""
        return self.where != HOST and self.delta_at != "device" and bool(self.base + self.delta)

    @property
    def model(self) -> int:
        """On the device, all but cache and factors, which smaller batches shrink."""
        return self.weights + (BLOCKS if self.apart else self.base + self.delta)

    @property
    def batch(self) -> int:
        """On the device, while writing."""
        return self.cache + self.factors

    @property
    def beside(self) -> int:
        """On the host, where that is not the device."""
        return sum(size for _, size in self._moved()) * self.share if self.apart else 0

    def _moved(self) -> list[tuple[str, int]]:
        moved = [("base", self.base), ("delta", self.delta)]
        if self.apart:
            moved.append(("pinned in powers of two", self.base_spare + self.delta_spare))
        return moved

    def text(self) -> str:
        """For people."""
        moved = self._moved()
        parts = [("weights", self.weights), *([("blocks", BLOCKS)] if self.apart else moved),
                 ("factors", self.factors), ("cache, about", self.cache)]  # fmt: skip
        text = (
            f"memory in {self.where}: {_gib(self.model + self.batch)} GiB ({_listed(parts)}); {_gib(self.free)} of "
            f"{_gib(self.total)} are free"
        )
        if self.apart:
            each = f" for each of {self.share} cards" if self.share > 1 else ""
            text += (
                f"; in {HOST}: {_gib(self.beside)} GiB ({_listed(moved)}{each}); {_gib(self.host_free)} of "
                f"{_gib(self.host_total)} are free"
            )
        if self.delta_at == "replay" and self.base:
            text += "; delta is summed anew whenever weights are written"
        return f"{text} (--delta {self.delta_at}: {self.why})" if self.why else text

    def check(self) -> str | None:
        """A warning where it may not fit.

        Raises
        ------
        EngineError
            Weights, base, delta and factors alone are more than the device, or the host beside it, has.
        """
        if self.model + self.factors > self.total or (self.apart and self.beside > self.host_total):
            raise EngineError(f"The model does not fit. {self.text()}. {self.advice()}")
        narrow = self.model + self.batch > self.free or (self.apart and self.beside > self.host_free)
        return f"this may not fit: {self.advice()}" if narrow else None

    def advice(self) -> str:
        """What makes it smaller."""
        ways = ["--dtype bfloat16 halves weights and base"] if self.weights and self.delta <= self.weights else []
        if self.base and self.where != HOST and not self.apart:
            ways.append("--delta host keeps base and delta in host memory")
        if self.delta:
            ways.append("--delta replay needs no room for delta")
        if self.base:
            ways.append("--noise lowrank:1 --scope linear moves fewer tensors")
            ways.append("--arm frozen needs neither base nor delta")
        if self.factors > self.weights:
            ways.append("a smaller rank of --noise needs smaller factors")
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
    linear = [tuple(module.weight.shape) for module in linear_modules(model).values()]
    scope = resolve_scope(kind, s.scope)
    rank = lora_rank(scope)
    edges = sum(rows + columns for rows, columns in linear)
    held = sum(floats.values()) + (rank or 0) * edges
    if rank:
        moved = [rank * edge for shape in linear for edge in shape]
    else:
        moved = list(floats.values()) if scope == "all" else [rows * columns for rows, columns in linear]
    moving, size = sum(moved), SIZES[dtype]
    steps = s.arm in ("esopt", "shuffled") or bool(s.init_from)
    rewritten = s.arm != "frozen" and kind.kind == "full"
    columns = (kind.rank if kind.kind == "lowrank" else rank or 0) if s.arm != "frozen" else 0
    free, total, place = _room(device)
    host_free, host_total = (free, total) if place == HOST else _room(torch.device("cpu"))[:2]
    share = s.tensor_parallel if resolved(s.engine, s.device) == "vllm" and device.type == "cuda" else 1
    based = steps or rewritten
    plan = MemoryPlan(
        weights=size * held // share, base=size * moving // share if based else 0,
        base_spare=_spare(size * count // share for count in moved) if based else 0,
        delta=4 * moving // share if steps else 0,
        delta_spare=_spare(4 * count // share for count in moved) if steps else 0,
        share=share, cache=size * _per_token(config) * _rows(s) * (PROMPT + s.max_tokens),
        free=free, total=total, where=place, factors=size * columns * edges * _rows(s),
        host_free=host_free, host_total=host_total,
    )  # fmt: skip
    return placed(plan, s.delta, greedy=resolved(s.engine, s.device) == "vllm")


def placed(plan: MemoryPlan, wanted: str, greedy: bool = False) -> MemoryPlan:
    """The plan with base and delta where they are wanted, or where `delta_place` puts them by its numbers.

    A `greedy` engine fills the device with its cache.
    """
    device = "cuda" if plan.where != HOST and plan.base + plan.delta else "cpu"  # without them nothing is to choose
    fits = None if greedy else lambda: plan.model + plan.batch <= plan.free
    place, why = delta_place(wanted, device, fits)
    kept = {"delta": 0, "delta_spare": 0} if place == "replay" else {}
    return replace(plan, delta_at=place, why=why, **kept)


def delta_place_of(settings: Settings, dtype: str = "auto") -> str:
    """Where a run keeps base and delta: as the settings say, or as its memory plan chooses."""
    if settings.delta != "auto" or device_of(settings.device).type == "cpu":  # no plan is needed
        return delta_place(settings.delta, "cpu", lambda: True)[0]
    plan = memory_plan(settings, dtype)
    return plan.delta_at if plan else "auto"


def _rows(s: Settings) -> int:
    """Replies that are written at once, at most."""
    if NoiseKind.parse(s.noise).kind == "full" and s.arm != "frozen" and lora_rank(s.scope) is None:
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
    return free, total, HOST


def _spare(sizes: Iterable[int]) -> int:
    """What torch adds to pinned tensors of these sizes: it makes each a power of two."""
    return sum((1 << (size - 1).bit_length()) - size for size in sizes if size)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}" if size < 2**30 else f"{size / 2**30:.1f}"


def _listed(parts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {_gib(size)}" for name, size in parts if size)
