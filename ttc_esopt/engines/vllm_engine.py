"""The vLLM engine: vLLM writes, evolution strategies move its weights in place.

    engine = load_engine("Qwen/Qwen3-8B", engine="vllm", noise=NoiseKind.parse("lowrank:1"))

Low-rank directions are LoRA adapters made in memory, all of a batch in one call of vLLM; full directions rewrite the
weights from their base one after another. Steps are taken in place on every rank, from seeds and coefficients alone,
and the arithmetic is that of the other engine: the same history gives the same fingerprint (`views`, `weights`).

What a reply was computed with is never in doubt: vLLM's prefix cache goes by tokens and does not know of changed
weights, so every request carries a `cache_salt` of direction, sigma and weight version, every adapter has a name and
number of its own, and weights are written only while no request runs. A request without a direction that is written
beside others has an adapter of zeros: on CPUs vLLM gives such a request the adapter of the last slot.

Departures from the transformers engine: replies are sampled by vLLM's own sampler (seeded by the request), so texts
differ between the engines; vLLM's repetition penalty counts the prompt too; of the law of a token vLLM tells the
likeliest part, so that divergences are close lower bounds (`vllm_divergence`).
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ttc_esopt.engines.adapters import lora_rank
from ttc_esopt.engines.base import SHARD_SIZE, Reply, Request, Sampling, expect
from ttc_esopt.engines.place import default_threads, delta_place
from ttc_esopt.engines.texts import Texts
from ttc_esopt.engines.vllm_divergence import LIKELIEST, divergences, drift
from ttc_esopt.engines.vllm_setup import (
    CONTEXT,
    Job,
    config_of,
    context_of,
    ends_of,
    final_only,
    folder_of,
    imported,
    is_recurrent,
    let_it_look_at_llvmlite,
    said,
)
from ttc_esopt.errors import ConfigurationError, EngineError, TtcEsoptError
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.settings import json_object

DTYPES = ("float32", "bfloat16", "float16")
CACHE_ON_CPU = 1 << 30  # bytes of keys and values
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, as vLLM allows
WORKER = "ttc_esopt.engines.vllm_worker.EsWorker"

Steps = Sequence[tuple[Sequence[int], Sequence[float]]]


class VllmEngine:
    """An `Engine`: see `ttc_esopt.engines.load_engine` for the parameters.

    Parameters
    ----------
    tensor_parallel : int
        Processes (on GPUs: cards) that share one copy of the model.
    engine_args : str or dict
        Further arguments of vLLM's `LLM`, as a JSON object.
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
        tensor_parallel: int = 1,
        engine_args: str | dict[str, Any] = "",
        rounding: str = "nearest",
        delta: str = "auto",
    ) -> None:
        expect(batch_size >= 1, "batch_size >= 1", batch_size, "--batch-size")
        expect(tensor_parallel >= 1, "tensor_parallel >= 1", tensor_parallel, "--tensor-parallel")
        expect(dtype == "auto" or dtype in DTYPES, f"dtype auto, {', '.join(DTYPES)}", dtype, "--dtype")
        further = engine_args if isinstance(engine_args, dict) else json_object(engine_args or "{}", "--engine-args")
        if lora_rank(scope) is not None:
            raise ConfigurationError("Scope lora keeps factors beside the model: use --engine transformers (--scope).")
        if noise.kind == "lowrank":
            expect(noise.rank <= RANKS[-1], f"a noise rank <= {RANKS[-1]} with vLLM", noise.rank, "--noise")
        self.name, self.noise, self.batch_size, self.tensor_parallel = str(model), noise, batch_size, tensor_parallel
        vllm, self.device = imported(device, tensor_parallel, threads or default_threads())
        self.folder = folder_of(model)
        self.delta, _ = delta_place(delta, self.device, fits=None)
        self.rounding = rounding
        self.dtype = dtype if dtype != "auto" else "float32" if self.device == "cpu" else "bfloat16"
        config = config_of(self.folder)
        given = {
            "model": str(self.folder), "dtype": self.dtype, "tensor_parallel_size": tensor_parallel,
            "worker_extension_cls": WORKER, "max_num_seqs": batch_size, "seed": 0,
            "max_model_len": context_of(config), "max_logprobs": LIKELIEST,
        }  # fmt: skip
        if tensor_parallel > 1:  # on this machine, also inside Ray, which would be asked for more cards
            given["distributed_executor_backend"] = "mp"
        if self.device == "cpu":
            let_it_look_at_llvmlite()
            # A seeded request whose prompt is read in several parts fails there: a CPU generator cannot be wound back.
            most = (given | further)["max_model_len"]
            given |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(CONTEXT, most)}
            given |= {"enforce_eager": True, "kv_cache_memory_bytes": CACHE_ON_CPU}
            if is_recurrent(config):  # its states are cached only where prompts are read in parts
                given["enable_prefix_caching"] = False
        if noise.kind == "lowrank" and self.device == "cuda" and self.dtype == "float32":
            raise ConfigurationError("vLLM's adapters on CUDA have 16 bits: --dtype bfloat16, or --noise full.")
        if noise.kind == "lowrank":
            slots = batch_size + 1  # one for the adapter of zeros
            rank = next(rank for rank in RANKS if rank >= noise.rank)
            given |= {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": rank}
        try:
            self._llm = vllm.LLM(**(given | further))
        except Exception as error:  # whatever vLLM says: unknown architectures, memory, arguments
            raise EngineError(f"vLLM could not load {model}: {said(error)}") from error
        self._vllm, self._core = vllm, self._llm.llm_engine
        self.texts = Texts(self.name, self._llm.get_tokenizer())
        self.context = (given | further)["max_model_len"]
        self.vocabulary = self._core.model_config.get_vocab_size()
        most = self._core.model_config.max_logprobs  # -1: no limit
        self.likeliest = min(self.vocabulary, most if most >= 0 else self.vocabulary)  # tokens told of a law
        self._ends = ends_of(self.folder, self.texts.tokenizer)
        self._began: str | None = None
        self._version = 0
        self._numbers, self._adapters = itertools.count(1), {}
        try:
            ranks = self._call("es_attach", str(self.folder), str(noise), scope, rounding, self.delta)
        except BaseException:
            self.close()
            raise
        self._facts = ranks[0] | {key: sum(rank[key] for rank in ranks) for key in ("parameters", "moving_parameters")}
        self._new_version()

    # -- writing -----------------------------------------------------------------------------------------------------

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Reply]:
        """See `Engine.generate`."""
        prompts = [self.texts.ids(i, request, sampling) for i, request in enumerate(requests)]
        replies = [Reply("", len(ids), 0, "length") for ids in prompts]  # where there is no room for more

        def asked(i: int, ids: list[int]) -> Job:
            def take(output: Any) -> None:
                replies[i] = self._reply(ids, output.outputs[0], sampling.stop)
                if progress is not None:
                    progress(replies[i].tokens)

            return Job(ids, requests[i].nudge, self._parameters(requests[i], ids, sampling), take)

        self.work([asked(i, ids) for i, ids in enumerate(prompts) if len(ids) < self.context])
        return replies

    def work(self, jobs: Sequence[Job]) -> None:
        """Do these jobs under their nudges: low-rank ones together, full ones one nudge after another."""
        if self.noise.kind == "lowrank":
            self._run(jobs)
            return
        groups: dict[tuple[int, float] | None, list[Job]] = {None: []}  # the unperturbed ones first
        for job in jobs:
            groups.setdefault(job.nudge, []).append(job)
        try:
            for nudge, group in groups.items():
                if nudge is not None:
                    self._call("es_perturb", *nudge)
                self._run(group)
        finally:
            if len(groups) > 1:
                self._call("es_restore")

    def _run(self, jobs: Sequence[Job]) -> None:
        """Do these jobs at the same time."""
        mixed = self.noise.kind == "lowrank" and any(job.nudge is not None for job in jobs)
        running: dict[str, Job] = {}
        try:
            for job in jobs:
                key = str(next(self._numbers))
                running[key] = job
                self._core.add_request(
                    key, {"prompt_token_ids": job.tokens, "cache_salt": self._salt(job.nudge)}, job.parameters,
                    **({"lora_request": self._adapter(job.nudge)} if mixed else {}),
                )  # fmt: skip
            while self._core.has_unfinished_requests():
                for output in self._core.step():
                    if output.finished and output.request_id in running:
                        self._check_version(output.outputs[0])
                        running.pop(output.request_id).take(output)
        except (TtcEsoptError, KeyboardInterrupt):
            raise
        except Exception as error:  # whatever vLLM says
            raise EngineError(f"vLLM failed in the middle of a reply: {said(error)}") from error
        finally:
            if running:  # interrupted: nothing may run on when weights are written next
                self._core.abort_request(list(running))
                while self._core.has_unfinished_requests():
                    self._core.step()

    def _parameters(self, request: Request, prompt: list[int], sampling: Sampling) -> Any:
        s = sampling
        return self._vllm.SamplingParams(
            temperature=s.temperature, top_p=s.top_p, top_k=s.top_k or -1, min_p=s.min_p,
            presence_penalty=s.presence_penalty, repetition_penalty=s.repetition_penalty,
            max_tokens=min(s.max_tokens, self.context - len(prompt)), stop=list(s.stop) or None,
            stop_token_ids=sorted(self._ends | self.texts.special(s.stop)), seed=request.seed & (1 << 63) - 1,
            output_kind=final_only(),
        )  # fmt: skip

    def _reply(self, prompt: list[int], output: Any, stops: tuple[str, ...]) -> Reply:
        new = list(output.token_ids)
        tail = new[-1:] and new[-1] in self._ends | self.texts.special(stops)
        text = self.texts.text(prompt, new[:-1] if tail else new)
        cut = self.texts.before(text, stops)
        finish = "length" if output.finish_reason == "length" else "stop"
        return Reply(text if cut is None else cut, len(prompt), len(new), finish)

    # -- what a reply was computed with ------------------------------------------------------------------------------

    def _salt(self, nudge: tuple[int, float] | None) -> str:
        """What the prefix cache tells weights apart by."""
        told = "base" if nudge is None else f"{nudge[0]}:{nudge[1].hex()}"
        return f"{self._version}:{told}"

    def _adapter(self, nudge: tuple[int, float] | None) -> Any:
        """The adapter of a direction: name and number are never used again for another one, or for other weights."""
        from vllm.lora.request import LoRARequest

        salt = self._salt(nudge)
        if salt not in self._adapters:
            told = salt.partition(":")[2]
            self._adapters[salt] = LoRARequest(f"es:{salt}", next(self._numbers), f"es:{told}")
        return self._adapters[salt]

    def _new_version(self) -> None:
        """Other weights from now on."""
        self._version += 1
        self._adapters.clear()
        tell = getattr(self._core.engine_core, "set_weight_version", None)
        if tell is not None:  # releases from 0.32 on
            tell(str(self._version))

    def _check_version(self, output: Any) -> None:
        for span in getattr(output, "weight_versions", None) or []:
            if span.version != str(self._version):
                raise EngineError(f"vLLM wrote with weights {span.version}, expected {self._version}.")

    def _call(self, method: str, *args: Any) -> list[Any]:
        """One result of each rank. Nothing is called while requests run: they would see weights change."""
        if self._core.has_unfinished_requests():
            raise EngineError(f"Expected no running request before {method}.")
        try:
            return self._llm.collective_rpc(method, args=args)
        except TtcEsoptError:
            raise
        except Exception as error:  # of a worker in a process of its own
            raise EngineError(f"vLLM's worker failed in {method}: {said(error)}") from error

    # -- weights -----------------------------------------------------------------------------------------------------

    def step(self, directions: Sequence[int], coefficients: Sequence[float]) -> None:
        """One ES step on every rank: see `Weights.step`."""
        self._call("es_step", list(directions), list(coefficients))
        self._new_version()

    def rewind(self, steps: Steps) -> None:
        """See `Engine.rewind`."""
        self._call("es_rewind", plain(steps))
        self._new_version()

    def adopt(self, noise: NoiseKind, scope: str, steps: Steps) -> None:
        """See `Engine.adopt`; raises EngineError once the model has moved."""
        if any(self._call("es_moved")):
            raise EngineError("Expected a model that has not moved yet: steps of another run come first.")
        self._began = self._began or self.fingerprint()
        self._call("es_adopt", str(noise), scope, plain(steps))
        self._new_version()

    def fingerprint(self) -> str:
        """64-bit sum over all live tensors, 16 hexadecimal digits."""
        return f"{sum(int(part, 16) for part in self._call('es_fingerprint')) & (1 << 64) - 1:016x}"

    def sha256(self) -> str:
        """SHA-256 over all live tensors, 64 hexadecimal digits."""
        if self.tensor_parallel == 1 and (told := self._call("es_sha256")[0]):
            return told
        from ttc_esopt.engines.vllm_export import gathered
        from ttc_esopt.engines.weights import sha256_of

        with self._saved() as files:
            return sha256_of(gathered(files))

    def export(self, folder: Path, shard_size: str = SHARD_SIZE) -> None:
        """Write the live model (in its dtype) with all else that the source folder holds."""
        from transformers import AutoTokenizer

        from ttc_esopt.engines.vllm_export import export

        tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)  # vLLM's writes its own class
        with self._saved() as files:
            export(files, self.folder, folder, self._facts["tied"], shard_size, tokenizer)

    @contextlib.contextmanager
    def _saved(self) -> Iterator[list[Path]]:
        """Every rank's blocks as files."""
        with tempfile.TemporaryDirectory() as scratch:
            self._call("es_save", scratch)
            yield sorted(Path(scratch).glob("*.safetensors"))

    # -- how far it goes ---------------------------------------------------------------------------------------------

    def divergence(self, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> list[float]:
        """A lower bound: see `Engine.divergence` and `vllm_divergence`."""
        return divergences(self, requests, replies, sampling)

    def drift(self, requests: Sequence[Request], replies: Sequence[str], sampling: Sampling) -> float:
        """A lower bound: see `Engine.drift` and `vllm_divergence`."""
        return drift(self, requests, replies, sampling)

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """The weights as they were at the beginning, for a while: a version of their own, as are those afterwards."""
        try:
            self._call("es_beginning")
            self._new_version()
            yield
        finally:
            self._call("es_restore")
            self._new_version()

    def measure(self, steps: Steps, sigma: float) -> dict:
        """See `Engine.measure`."""
        from ttc_esopt.engines.measures import figures

        return figures(self._call("es_measure", plain(steps[-2:]), sigma))

    # -- the record --------------------------------------------------------------------------------------------------

    def describe(self) -> dict:
        """Plain values that belong into the record of a run."""
        import numpy as np
        import torch
        import transformers

        return {
            "engine": "vllm",
            "model": self.name,
            "dtype": self.dtype,
            "device": self.device,
            "device_name": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
            "tensor_parallel": self.tensor_parallel,
            "batch_size": self.batch_size,
            "parameters": self._facts["parameters"],
            "moving_parameters": self._facts["moving_parameters"],
            "noise": str(self.noise),
            "scope": self._facts["scope"],
            "rounding": self.rounding,
            "delta": self.delta,
            "max_logprobs": self.likeliest,
            "frozen_tensors": len(self._facts["unused"]),
            "base_fingerprint": self._began,
            "versions": {
                "vllm": self._vllm.__version__, "torch": torch.__version__,
                "transformers": transformers.__version__, "numpy": np.__version__,
            },
        }  # fmt: skip

    def peak(self) -> dict[str, float]:
        """See `Engine.peak`; the sum over the processes that hold the model."""
        parts = self._call("es_peak")
        found = {key: round(sum(part[key] for part in parts), 1) for key in parts[0]}
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return found | {"peak_mb": max(found["peak_mb"], round(own, 1))}

    def close(self) -> None:
        """Give the memory back and end vLLM's processes."""
        with contextlib.suppress(Exception):
            self._core.engine_core.shutdown()
        self._llm = self._core = None
        import gc

        gc.collect()
        with contextlib.suppress(Exception):
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()


def plain(steps: Steps) -> list[list[list]]:
    """Steps as lists of numbers, which pass between processes."""
    return [[list(directions), list(coefficients)] for directions, coefficients in steps]
