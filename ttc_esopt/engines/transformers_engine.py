"""The engine on Hugging Face transformers, for CPU and CUDA by the same code.

What is guaranteed: the same list of requests on the same machine with the same settings (model, weights, dtype, device,
threads, batch size) gives the same replies. How requests are batched depends on that list alone, and the random numbers
of a request depend on nothing but its seed.

What is not: a reply does not change through the random stream of its neighbours, but the last bits of its logits depend
on the shape of the batch (matrix libraries pick other summation orders for other shapes), on padding and on the
number of threads. Where two tokens are all but equally likely, or a random number falls on their border, the
same request alone and in a batch may part ways from there on. In float32 that is rare, in bfloat16 it is not.
"""

from __future__ import annotations

import contextlib
import inspect
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ttc_esopt import models
from ttc_esopt.engines.adapters import Grown, Lora, lora_rank
from ttc_esopt.engines.base import SHARD_SIZE, Reply, Request, Sampling, expect
from ttc_esopt.engines.cache import new_cache, packed, select
from ttc_esopt.engines.chat import end_tokens
from ttc_esopt.engines.divergence import divergences
from ttc_esopt.engines.export import stored_names, unloaded, write
from ttc_esopt.engines.lowrank import LoraForward, LowRankForward, Nudge, RowFactors
from ttc_esopt.engines.measures import drift, measured
from ttc_esopt.engines.place import default_threads, delta_place, device_of, fit_beside
from ttc_esopt.engines.sampling import choose, stream_key, uniforms
from ttc_esopt.engines.scopes import adapters_of, linear_modules, packed_modules, resolve_scope
from ttc_esopt.engines.texts import Texts
from ttc_esopt.engines.weights import Weights
from ttc_esopt.errors import EngineError
from ttc_esopt.es.noise import NoiseKind

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class _Row:
    """One request on its way to a reply."""

    index: int
    request: Request
    ids: list[int]  # prompt and prefill
    key: int  # of the sampling stream
    limit: int  # longest reply that the settings and the context allow
    new: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""


class TransformersEngine:
    """An `Engine`: see `ttc_esopt.engines.load_engine` for the parameters.

    Full noise rewrites the weights from their base, one direction after another. Low-rank noise leaves them alone:
    every row of a batch runs under its own direction (`LowRankForward`); so does every row with scope `lora`, where
    full noise moves factors beside the weights (`LoraForward`).
    """

    def __init__(
        self,
        model: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        noise: NoiseKind,
        scope: str = "auto",
        threads: int | None = None,
        batch_size: int = 32,
        rounding: str = "nearest",
        delta: str = "auto",
    ) -> None:
        expect(threads is None or threads >= 1, "threads >= 1", threads, "--threads")
        expect(batch_size >= 1, "batch_size >= 1", batch_size, "--batch-size")
        self.name, self.noise, self.batch_size = str(model), noise, batch_size
        self._began: str | None = None  # fingerprint before steps of other runs were taken, if any were
        self.device = device_of(device)
        expect(dtype == "auto" or dtype in DTYPES, f"dtype auto, {', '.join(DTYPES)}", dtype, "--dtype")
        if dtype == "auto":
            dtype = "float32" if self.device.type == "cpu" else "bfloat16"
        self.threads = threads or default_threads()
        torch.set_num_threads(self.threads)
        self.model, self.tokenizer, self.source, unexpected = _load(models.resolve(model), DTYPES[dtype], self.device)
        self._left_out = unloaded(self.model, stored_names(self.source), unexpected) if self.source else []
        self.dtype, self.rounding = dtype, rounding
        self.adapters = adapters_of(self.model, noise, scope, DTYPES[dtype])
        self.delta, _ = delta_place(delta, self.device.type, lambda: fit_beside(self.model, self.device))
        self.weights = self._weights(noise, scope)
        named = linear_modules(self.model) | packed_modules(self.model)
        moving = {*self.weights.names, *self.weights.packed}
        self._linear = {name: module for name, module in named.items() if name in moving}
        accepted = inspect.signature(self.model.forward).parameters
        self._cache_word = "cache" if "cache" in accepted else "past_key_values"  # renamed in transformers 5
        self._accepts = {word for word in ("position_ids", "logits_to_keep") if word in accepted}
        self.texts = Texts(self.name, self.tokenizer)
        self._ends = end_tokens(self.model, self.tokenizer)
        self._context = getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30

    # -- writing -----------------------------------------------------------------------------------------------------

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Reply]:
        """Replies in the order of the requests; empty (finish "length", 0 tokens) where the prompt fills the context.

        Raises
        ------
        EngineError
            The model has no chat template and one is asked for, or a prompt is empty.
        """
        torch.set_num_threads(self.threads)  # global to the process: another engine may have changed it
        rows = [self._row(i, request, sampling) for i, request in enumerate(requests)]
        with torch.inference_mode():
            if self.batched:
                self._write_all(rows, [row.request.nudge for row in rows], sampling, progress)
            else:
                self._write_by_direction(rows, sampling, progress)
        return [Reply(row.text, len(row.ids), len(row.new), row.finish) for row in rows]

    def _write_by_direction(self, rows: list[_Row], sampling: Sampling, progress: Callable | None) -> None:
        groups: dict[Nudge | None, list[_Row]] = {None: []}  # the unperturbed ones first, on weights as they are
        for row in rows:
            groups.setdefault(row.request.nudge, []).append(row)
        try:
            for nudge, group in groups.items():
                if nudge is not None:
                    self.weights.perturb(*nudge)
                self._write_all(group, [None] * len(group), sampling, progress)
        finally:
            if len(groups) > 1:
                self.weights.restore()

    def _write_all(
        self, rows: list[_Row], nudges: list[Nudge | None], sampling: Sampling, progress: Callable | None
    ) -> None:
        """In batches of rows of like length, so that little is padded; ties keep the order of the requests."""
        for row in rows:
            row.finish = "" if row.limit else "length"  # no room: an empty reply
        order = sorted((i for i, row in enumerate(rows) if row.limit), key=lambda i: len(rows[i].ids))
        for start in range(0, len(order), self.batch_size):
            part = order[start : start + self.batch_size]
            self._write([rows[i] for i in part], [nudges[i] for i in part], sampling, progress)

    def _write(
        self, rows: list[_Row], nudges: list[Nudge | None], sampling: Sampling, progress: Callable | None
    ) -> None:
        """Write the replies of one batch."""
        places: dict[tuple, int] = {}  # the same prompt for the same direction is read once
        keys = [(row.request.direction, nudge, *row.ids) for row, nudge in zip(rows, nudges, strict=True)]
        source = [places.setdefault(key, len(places)) for key in keys]
        first = [source.index(place) for place in range(len(places))]
        batch = _Batch(self, [rows[i].ids for i in first], [nudges[i] for i in first], max(row.limit for row in rows))
        ends = self._ends | self.texts.special(sampling.stop)
        with batch.lowrank:
            logits = batch.prefill()
            if len(first) < len(rows):
                batch.select(source)
                logits = logits[source]
            for position in range(max(row.limit for row in rows)):
                numbers = uniforms([row.key for row in rows], position)
                tokens = choose(logits, numbers, sampling, batch.generated(position))
                if progress is not None:
                    progress(len(rows))
                chosen = zip(rows, tokens.tolist(), strict=True)
                finished = [self._push(row, token, ends, sampling.stop) for row, token in chosen]
                if all(finished):
                    return
                if any(finished):
                    keep = packed(finished)
                    rows = [rows[i] for i in keep]
                    tokens = tokens[keep]
                    batch.select(keep)
                logits = batch.decode(tokens, position)

    def _row(self, index: int, request: Request, sampling: Sampling) -> _Row:
        ids = self.texts.ids(index, request, sampling)
        room = max(0, self._context - len(ids))
        return _Row(index, request, ids, stream_key(request.seed), min(sampling.max_tokens, room))

    def _push(self, row: _Row, token: int, ends: set[int], stops: tuple[str, ...]) -> bool:
        """Append a token to a reply; true if the reply is finished."""
        row.new.append(token)
        if token in ends:
            row.text, row.finish = self.texts.text(row.ids, row.new[:-1]), "stop"
        elif stops and (cut := self.texts.cut(row.ids, row.new, stops)) is not None:
            row.text, row.finish = cut, "stop"
        elif len(row.new) >= row.limit:
            row.text, row.finish = self.texts.text(row.ids, row.new), "length"
        return bool(row.finish)

    def divergence(self, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> list[float]:
        """See `Engine.divergence`."""
        return divergences(self, requests, replies, sampling)

    def drift(self, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> float:
        """See `Engine.drift`."""
        return drift(self, requests, replies, sampling)

    def measure(self, steps: Sequence[tuple[Sequence[int], Sequence[float]]], sigma: float) -> dict:
        """See `Engine.measure`."""
        with torch.inference_mode():
            return measured(self.weights, steps, sigma)

    @property
    def batched(self) -> bool:
        """Whether rows of one batch may run under different directions."""
        return self.noise.kind == "lowrank" or lora_rank(self.weights.scope) is not None

    def rows(self, nudges: Sequence[Nudge | None]) -> RowFactors:
        """What lets every row of a batch run under its own direction."""
        if isinstance(self.adapters, Lora) and lora_rank(self.weights.scope) is not None:
            return LoraForward(self.adapters, self.weights, nudges)
        return LowRankForward(self._linear, self.noise, nudges, DTYPES[self.dtype])

    # -- weights -----------------------------------------------------------------------------------------------------

    def _weights(self, noise: NoiseKind, scope: str) -> Weights:
        return Weights.of(self.model, noise, scope, self.rounding, self.delta, self.adapters)

    def step(self, directions: Sequence[int], coefficients: Sequence[float]) -> None:
        """One ES step: see `Weights.step`."""
        with torch.inference_mode():
            self.weights.step(directions, coefficients)

    def rewind(self, steps: Sequence[tuple[Sequence[int], Sequence[float]]]) -> None:
        """See `Engine.rewind`."""
        with torch.inference_mode():
            self.weights.rewind(steps)

    def adopt(self, noise: NoiseKind, scope: str, steps: Sequence[tuple[Sequence[int], Sequence[float]]]) -> None:
        """See `Engine.adopt`; raises EngineError once the model has moved, or for factors beside other ones."""
        if self.weights.touched:
            raise EngineError("Expected a model that has not moved yet: steps of another run come first.")
        self._began = self._began or self.fingerprint()
        rank = lora_rank(resolve_scope(noise, scope))
        if rank and self.adapters is None:
            self.adapters = adapters_of(self.model, noise, scope, DTYPES[self.dtype])
        elif rank and not (isinstance(self.adapters, Lora) and self.adapters.rank == rank):
            raise EngineError(
                f"The other run moved factors of scope {scope}, this one has others (--scope): write that model out "
                "(`ttc-esopt export DIR --out MODEL`) and begin with it (--model)."
            )
        with torch.inference_mode():
            self._weights(noise, scope).rewind(steps)
        if isinstance(self.adapters, Grown):
            self.adapters.keep()
        self.weights = self._weights(self.noise, self.weights.scope)

    def fingerprint(self) -> str:
        """64-bit sum over all live tensors, 16 hexadecimal digits."""
        return self.weights.fingerprint()

    def sha256(self) -> str:
        """SHA-256 over all live tensors, 64 hexadecimal digits."""
        return self.weights.sha256()

    def export(self, folder: Path, shard_size: str = SHARD_SIZE) -> None:
        """Write the live model (in its dtype) and its tokenizer as a folder that transformers loads.

        Factors of scope `lora` are merged: live = round(base + A B^T). Tensors of the checkpoint that the model class
        left out are copied from it.

        Raises
        ------
        EngineError
            The model is quantized: what moved is not a part of its packed values.
        """
        if packed_modules(self.model):
            raise EngineError(
                "A quantized model cannot be written with its steps in it; a patch can: "
                "`ttc-esopt export DIR --patch FILE`."
            )
        lora = self.adapters if isinstance(self.adapters, Lora) else None
        before = {name: self.weights.live[name].detach().clone() for name in lora.factors} if lora else {}
        try:
            if lora:
                with torch.inference_mode():
                    lora.merge({name: self.weights.live[name].detach() for name in lora.factors})
            with models.quiet():
                write(self.model, self.tokenizer, folder, self.source, self._left_out, shard_size)
        finally:
            for name, tensor in before.items():
                self.weights.live[name].detach().copy_(tensor)

    def describe(self) -> dict:
        """Plain values that belong into the record of a run."""
        import transformers

        frozen = self.weights.frozen + self._left_out
        return {
            "engine": "transformers",
            "model": self.name,
            "dtype": self.dtype,
            "device": str(self.device),
            "device_name": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "threads": self.threads,
            "batch_size": self.batch_size,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "moving_parameters": self.weights.moving,
            "frozen_tensors": len(frozen),
            "frozen_first": ", ".join(frozen[:3]) or None,
            "noise": str(self.noise),
            "scope": self.weights.scope,
            "rounding": self.rounding,
            "delta": self.delta,
            "base_fingerprint": self._began,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "numpy": np.__version__},
        }

    def peak(self) -> dict[str, float]:
        """See `Engine.peak`."""
        found = {"peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}
        if self.device.type == "cuda":
            found["gpu_peak_mb"] = round(torch.cuda.max_memory_allocated(self.device) / 2**20, 1)
        return found

    def close(self) -> None:
        """Give the memory back."""
        self.model = self.weights = self.tokenizer = self.adapters = None
        self._linear = {}
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


class _Batch:
    """Device state of one batch: cache, attention mask, positions, generated tokens, directions.

    Parameters
    ----------
    engine : TransformersEngine
    prompts : list of token lists
    nudges : one (direction, sigma) or None per prompt
    limit : int
        Most tokens that any reply may get.
    """

    def __init__(
        self, engine: TransformersEngine, prompts: list[list[int]], nudges: list[Nudge | None], limit: int
    ) -> None:
        self.engine, device = engine, engine.device
        self.longest = max(map(len, prompts))
        pads = [self.longest - len(ids) for ids in prompts]
        filler = engine.tokenizer.pad_token_id or 0  # masked: any token will do
        self.ids = torch.tensor([[filler] * pad + ids for pad, ids in zip(pads, prompts, strict=True)], device=device)
        self.mask = torch.ones(len(prompts), self.longest + limit, dtype=torch.long, device=device)
        for row, pad in enumerate(pads):
            self.mask[row, :pad] = 0
        self.lengths = torch.tensor([len(ids) for ids in prompts], device=device)
        self.tokens = torch.zeros(len(prompts), limit, dtype=torch.long, device=device)
        self.cache = new_cache(engine.model.config)
        self.lowrank = engine.rows(nudges)

    def prefill(self) -> torch.Tensor:
        """Read the prompts; logits of the next token, (b, vocabulary)."""
        mask = self.mask[:, : self.longest]
        return self._forward(self.ids, mask, (mask.cumsum(-1) - 1).clamp_min(0))

    def decode(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """Append one token (b,), the reply's `position`-th, to every row; logits of the next one."""
        self.tokens[:, position] = tokens
        return self._forward(
            tokens[:, None], self.mask[:, : self.longest + position + 1], (self.lengths + position)[:, None]
        )

    def generated(self, count: int) -> torch.Tensor:
        """The first `count` tokens of every reply, (b, count)."""
        return self.tokens[:, :count]

    def select(self, rows: list[int]) -> None:
        """Keep these rows, in this order; a row may come several times."""
        index = torch.tensor(rows, device=self.mask.device)
        self.mask, self.lengths, self.tokens = self.mask[index], self.lengths[index], self.tokens[index]
        select(self.cache, index)
        self.lowrank.select(rows)

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        engine = self.engine
        self.lowrank.columns = ids.shape[1]
        optional = {"position_ids": positions, "logits_to_keep": 1}
        given = {word: value for word, value in optional.items() if word in engine._accepts}
        given[engine._cache_word] = self.cache
        output = engine.model(input_ids=ids, attention_mask=mask, use_cache=True, **given)
        return output.logits[:, -1]


def _load(where: Path | str, dtype: torch.dtype, device: torch.device):
    """Model, tokenizer, folder and unused tensor names of a local folder (without a network) or of a hub id."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import cached_file

    local = isinstance(where, Path)
    with contextlib.ExitStack() as stack:
        stack.enter_context(models.quiet())
        if local:
            stack.enter_context(models.local_only())
        try:
            tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=local)
            config = AutoConfig.from_pretrained(where, local_files_only=local)
            quantized = getattr(config, "quantization_config", None) is not None
            model, facts = AutoModelForCausalLM.from_pretrained(
                where, dtype=dtype, local_files_only=local, output_loading_info=True,
                device_map={"": device} if quantized else None,  # some packed formats cannot be moved afterwards
            )  # fmt: skip
            source = where if local else Path(cached_file(where, "config.json", local_files_only=True)).parent
        except Exception as error:  # OSError, ValueError, KeyError, ImportError, safetensors' own: whatever it says
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise EngineError(f"The model {where} could not be loaded: {said}") from error
    model = (model if quantized else model.to(device)).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model, tokenizer, source, set(facts["unexpected_keys"])
