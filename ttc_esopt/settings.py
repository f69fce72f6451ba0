"""The settings of a run: one frozen dataclass that checks itself, and the layers that fill it.

Layers, later ones win: defaults < preset < what the model is known to need < --config TOML < command-line flags. The
resolved values are saved in `run.toml`, so that a run can be resumed or repeated from its folder alone. Each field is
a TOML key and, with dashes, a flag of `ttc-esopt run`; its help text stands here and nowhere else.

Presets: `paper` holds the published rules (arXiv 2608.17310 and its code): full one-sided noise, z-scores, its reward
rules, constant alpha, a parent drawn for each child. `default` differs where docs/differences.md says so.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ttc_esopt.engines.base import Sampling
from ttc_esopt.engines.replica_units import default_work_unit
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.es.noise import ROUNDINGS, NoiseKind
from ttc_esopt.es.optimizer import ARMS, ESParams
from ttc_esopt.es.schedule import KINDS as SCHEDULES

OPERATORS = ("e1", "e2", "m1", "m2")
WORDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
LARGEST_BUDGET = 1_000_000
TABLES = ("settings", "run", "versions", "model", "result")  # of a run.toml
# A started reply is one function: it ends where the fence closes or the next thing at the margin begins. Small models
# go on with variants and example calls until their tokens are used up, and a broken variant would spoil the reply.
ENDS_OF_STARTED_REPLY = ("```", "\ndef ", "\nclass ", "\n#", "\nprint(", "\nif __name__")
CHOICES = {
    "scaffold": ("eoh", "sample"),
    "arm": tuple(ARMS),
    "preset": ("default", "paper"),
    "init": ("both", "model", "seeds"),
    "sigma_schedule": tuple(SCHEDULES),
    "alpha_schedule": ("sigma", "constant"),
    "reward": ("default", "paper"),
    "shaping": ("zscore", "ranks"),
    "rounding": tuple(ROUNDINGS),
    "delta": ("auto", "device", "host", "replay"),
    "on_cap": ("stop", "pull-back"),
    "engine": ("auto", "transformers", "vllm"),
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "protocol": ("published", "corrected"),
    "evaluate_on": ("here", "ray"),
    "sandbox": ("auto", "required"),
}


def _opt(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run does; equal settings, engine and machine give equal runs.

    Raises
    ------
    ConfigurationError
        On a value outside its range, naming the flag.
    """

    problem: str = _opt("tsp_construct", "the problem to design a heuristic for")
    problem_args: str = _opt("", "arguments of another framework's problem class, such as timeout=60,n_instance=8")
    instances: str = _opt("", "instance files to search on instead of the train set, separated by colons")
    data: str = _opt("", "folder of published instance sets that no seed rebuilds (else TTC_ESOPT_DATA)")
    protocol: str = _opt("published", "published (quirks included), or corrected where the published one distorts")
    mode: str = _opt("", "bpp_aco: sample (as published) or aco (a real ant colony)")
    scaffold: str = _opt("eoh", "what drives the model: eoh (population, e1 e2 m1 m2) or sample (independent i1)")
    model: str = _opt("smollm2-135m", "a model of `models list`, a folder in Hugging Face format, or a hub id")
    init_from: str = _opt("", "start from the tuned model that the run in this folder ended with")
    rollback: bool = _opt(False, "with --init-from: from the weights of that run's best batch instead of its last")
    arm: str = _opt("frozen", "frozen, noise (perturb, no step), shuffled (rewards permuted) or esopt")
    preset: str = _opt("default", "default, or paper for the published rules")
    budget: int = _opt(1000, "candidates in all, the initial population included")
    budget_excludes_init: bool = _opt(False, "do not count the initial population, as published")
    max_tokens_total: int = _opt(0, "stop after the batch that passes this many written tokens (0: no limit)")
    max_minutes: float = _opt(0.0, "stop after the batch that passes this many minutes (0: no limit); resume goes on")
    seed: int = _opt(0, "seed of parents, directions and sampling streams")
    # search
    population: int = _opt(0, "candidates kept (0: 4 below a budget of 400, else 10)")
    offspring: int = _opt(0, "children of one e1 or e2 call (0: as many as the population)")
    init: str = _opt("both", "initial population: the model's own i1 replies, the problem's seeds, or both")
    init_candidates: int = _opt(0, "i1 replies in the initial population (0: as many as the population)")
    operators: str = _opt("e1,e2,m1,m2", "operators of a generation, in this order (scaffold eoh)")
    common_parent: bool = _opt(True, "one parent for all children of an m1 or m2 call, so that directions compare")
    distinct_parents: bool = _opt(True, "e1 and e2 get two different parents where the population has two")
    common_seeds: bool = _opt(False, "the same sampling stream for every direction of a batch")
    # evolution strategies
    es_operators: str = _opt("m1,m2", "operators whose calls are batches of directions (scaffold sample: always i1)")
    directions: int = _opt(10, "directions per batch (G)")
    replies_per_direction: int = _opt(1, "replies per direction (K), rewards averaged")
    sigma: float = _opt(1e-3, "perturbation radius at the first step; S0:S_END sets the last step's too")
    sigma_end: float = _opt(0.0, "perturbation radius at the last step")
    sigma_schedule: str = _opt("cosine", "cosine, linear or constant")
    alpha: float = _opt(5e-4, "step size")
    alpha_schedule: str = _opt("sigma", "sigma (alpha falls with sigma; no step at sigma 0) or constant, as published")
    antithetic: bool = _opt(False, "directions in mirrored pairs, +eps and -eps (an even number of directions)")
    noise: str = _opt(
        "lowrank:1",
        "full, or lowrank[:R]: all directions of a batch in one pass, base untouched; +rademacher behind: values +-1",
    )
    rounding: str = _opt(
        "nearest", "of 16-bit weights: nearest, or stochastic (right on average; no effect on float32)"
    )
    scope: str = _opt(
        "auto",
        "perturbed tensors: all, linear, lora[:R] (full noise on factors of rank R beside linear layers), or auto "
        "(full noise: all, low rank: linear)",
    )
    delta: str = _opt(
        "auto", "where the weights' copy and the sum of the steps lie: device, host, replay (summed anew), or auto"
    )
    diagnostics: bool = _opt(False, "measure after each step how far the model has gone (diagnostics.jsonl)")
    cap_kl: float = _opt(0.0, "stop when KL to the beginning passes this, nats per token (0: no cap)")
    cap_distance: float = _opt(0.0, "stop when the weights' RMS distance from the beginning passes this (0: no cap)")
    on_cap: str = _opt("stop", "at a cap: stop, or pull-back (the step that passes it is taken back, the run goes on)")
    reward: str = _opt("default", "default (invalid < known objective < new, by rank) or paper")
    shaping: str = _opt("zscore", "zscore or ranks (centred, ties averaged)")
    # sampling
    temperature: float = _opt(1.0, "sampling temperature (0: greedy)")
    top_p: float = _opt(0.98, "nucleus sampling")
    top_k: int = _opt(0, "keep the k most likely tokens (0: all)")
    min_p: float = _opt(0.0, "drop tokens below this share of the most likely one's probability")
    presence_penalty: float = _opt(0.0, "subtracted from the logits of tokens already written")
    repetition_penalty: float = _opt(1.0, "divides the logits of tokens already written")
    max_tokens: int = _opt(768, "tokens per reply at most")
    prefill: bool = _opt(False, "start the reply with fence and signature, and end it with the function")
    chat_template: bool = _opt(True, "use the model's chat template (--no-chat-template: raw prompt)")
    chat_template_args: str = _opt("{}", "JSON object for the chat template, such as '{\"enable_thinking\": false}'")
    # machine
    engine: str = _opt("auto", "where the model lives: transformers, vllm, or auto (vLLM on CUDA if installed)")
    tensor_parallel: int = _opt(1, "processes (cards) that share one copy of the model (vllm)")
    engine_args: str = _opt("", 'further arguments of vLLM as JSON, for example {"gpu_memory_utilization": 0.8}')
    device: str = _opt("auto", "auto, cpu, cuda, cuda:1 ...")
    dtype: str = _opt("auto", "auto, float32, bfloat16 or float16")
    threads: int = _opt(0, "threads of the engine on a CPU (0: the engine's choice)")
    replicas: int = _opt(1, "copies of the model that write at once, placed by Ray (1: this process alone, no Ray)")
    work_unit: int = _opt(0, "directions handed to a replica at a time (0: with replicas 1 for full noise, else 4)")
    ray_address: str = _opt("", "Ray cluster to join: auto or HOST:PORT (else a Ray of its own on this machine)")
    batch_size: int = _opt(32, "sequences written at once at most")
    workers: int = _opt(0, "evaluation processes (0: one per core)")
    evaluate_on: str = _opt("here", "where programs are evaluated: here, or ray (on all nodes of a Ray cluster)")
    eval_timeout: float = _opt(0.0, "seconds for one evaluation (0: the problem's own limit)")
    memory_mb: int = _opt(1024, "memory that a candidate may allocate, in MiB")
    sandbox: str = _opt("auto", "auto (what this machine offers), or required (refuse less than full isolation)")

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigurationError(
                    f"Expected {name} to be one of {', '.join(allowed)}, got {value} ({flag(name)})."
                )
        at_least = {
            "budget": 1, "max_tokens_total": 0, "max_minutes": 0, "population": 0, "offspring": 0,
            "replicas": 1, "work_unit": 0, "tensor_parallel": 1, "init_candidates": 0, "directions": 2, "threads": 0,
            "batch_size": 1, "workers": 0, "eval_timeout": 0, "memory_mb": 64, "cap_kl": 0, "cap_distance": 0,
        }  # fmt: skip
        for name, least in at_least.items():
            value = getattr(self, name)
            if not value >= least or value == float("inf"):
                raise ConfigurationError(f"Expected {name} >= {least}, got {value} ({flag(name)}).")
        if self.budget > LARGEST_BUDGET:
            raise ConfigurationError(f"Expected budget <= {LARGEST_BUDGET}, got {self.budget} (--budget).")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigurationError(f"Expected device auto, cpu or cuda[:N], got {self.device} (--device).")
        if self.replicas > 1 and ":" in self.device:
            raise ConfigurationError(
                f"Expected device auto, cpu or cuda with {self.replicas} replicas, which Ray places, got {self.device} "
                "(--device, --replicas)."
            )
        for name, known in (("operators", OPERATORS), ("es_operators", (*OPERATORS, "m3"))):  # some hosts have m3
            for operator in self.list_of(name):
                if operator not in known:
                    raise ConfigurationError(f"Expected {name} among {','.join(known)}, got {operator} ({flag(name)}).")
        if not self.list_of("operators"):
            raise ConfigurationError(f"Expected at least one operator ({flag('operators')}).")
        if self.rollback and not self.init_from:
            raise ConfigurationError(
                "Expected a run to start from with --rollback (--init-from DIR); a stopped run goes back with "
                "`ttc-esopt resume DIR --rollback`."
            )
        word, colon, rank = self.scope.partition(":")
        numbered = rank.isascii() and rank.isdigit() and 1 <= int(rank) <= 1024
        if self.scope not in ("auto", "all", "linear", "lora") and not (word == "lora" and colon and numbered):
            raise ConfigurationError(
                f"Expected scope auto, all, linear, lora or lora:R with R in 1 .. 1024, got {self.scope} (--scope)."
            )
        if self.on_cap == "pull-back" and not (self.cap_kl or self.cap_distance):
            raise ConfigurationError("Expected a cap with --on-cap pull-back (--cap-kl, --cap-distance).")
        if NoiseKind.parse(self.noise).kind == "lowrank" and self.scope not in ("auto", "linear"):
            raise ConfigurationError("Low-rank noise is for linear layers: --scope linear, or --noise full.")
        json_object(self.engine_args or "{}", "--engine-args")
        if self.engine == "transformers" and (self.tensor_parallel != 1 or self.engine_args):
            told = "--tensor-parallel" if self.tensor_parallel != 1 else "--engine-args"
            raise ConfigurationError(f"Expected --engine vllm where {told} is given, got --engine transformers.")
        self.sampling()  # the sampling and the ES values check themselves
        self.es_params(steps=1)

    @property
    def measures(self) -> bool:
        """Whether the model is measured after each step."""
        return self.arm in ("esopt", "shuffled") and bool(self.diagnostics or self.cap_kl or self.cap_distance)

    def idle(self) -> list[str]:
        """What was asked for and has no effect beside the other settings, as lines for people."""
        lines = []
        asked = [flag(name) for name in ("diagnostics", "cap_kl", "cap_distance") if getattr(self, name)]
        if asked and not self.measures:
            lines.append(f"note: {', '.join(asked)}: without effect, as arm {self.arm} takes no steps to measure")
        if self.ray_address and self.replicas == 1 and self.evaluate_on == "here":
            lines.append(
                "note: --ray-address: without effect, as the only replica is in this process and programs are "
                "evaluated here (--replicas, --evaluate-on)"
            )
        return lines

    def list_of(self, name: str) -> tuple[str, ...]:
        """A comma-separated setting as a tuple."""
        return tuple(part.strip() for part in getattr(self, name).split(",") if part.strip())

    def template_args(self) -> dict:
        """The chat-template arguments as a dict; raises ConfigurationError when they are no JSON object."""
        return json_object(self.chat_template_args, "--chat-template-args")

    def sampling(self) -> Sampling:
        """The engine's sampling parameters."""
        return Sampling(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p,
            presence_penalty=self.presence_penalty, repetition_penalty=self.repetition_penalty,
            max_tokens=self.max_tokens, stop=ENDS_OF_STARTED_REPLY if self.prefill else (),
            chat_template=self.chat_template, chat_template_args=self.template_args(),
        )  # fmt: skip

    def es_words(self) -> str:
        """The ES part in one line, for people."""
        return (
            f"sigma {self.sigma:g} to {self.sigma_end:g} ({self.sigma_schedule}), alpha {self.alpha:g} "
            f"({self.alpha_schedule}), noise {self.noise}, rewards {self.reward}"
            f"{', mirrored pairs' if self.antithetic else ''}"
        )

    def sampling_words(self) -> str:
        """How replies are sampled in one line, for people."""
        return (
            f"sampling: temperature {self.temperature:g}, top-p {self.top_p:g}, {self.max_tokens} tokens per reply, "
            f"prefill {'on' if self.prefill else 'off'}"
        )

    def es_params(self, steps: int) -> ESParams:
        """The ES part for a run of `steps` batches."""
        return ESParams(
            sigma=self.sigma, sigma_end=self.sigma_end, sigma_schedule=self.sigma_schedule, alpha=self.alpha,
            alpha_schedule=self.alpha_schedule, directions=self.directions,
            replies_per_direction=self.replies_per_direction, steps=steps, shaping=self.shaping, arm=self.arm,
            seed=self.seed, antithetic=self.antithetic,
        )  # fmt: skip


FIELDS = {f.name: f for f in dataclasses.fields(Settings)}

PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "noise": "lowrank:1", "reward": "default", "alpha_schedule": "sigma", "common_parent": True,
        "distinct_parents": True, "init": "both", "budget_excludes_init": False,
    },
    "paper": {
        "noise": "full", "reward": "paper", "alpha_schedule": "constant", "common_parent": False,
        "distinct_parents": False, "population": 10, "init": "model", "budget_excludes_init": True,
    },
}  # fmt: skip


def flag(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def resolve(given: dict[str, Any], model_defaults: dict[str, Any] | None = None) -> Settings:
    """Settings from the values that were given (flags over TOML), the preset and the model's own needs.

    Raises ConfigurationError for an unknown key, a wrong type or a value out of range.
    """
    check_types(given)
    given = dict(given)
    if "sigma" in given:  # S0 or S0:S_END
        given |= parse_sigma(given["sigma"])
    preset = PRESETS.get(given.get("preset", "default"), {})
    if preset is PRESETS["paper"] and given.get("scaffold") == "sample":
        preset = {**preset, "directions": 20}
    values = {**preset, **(model_defaults or {}), **given}
    if values.get("sigma_schedule") == "constant" and "sigma_end" not in given:
        values["sigma_end"] = values.get("sigma", FIELDS["sigma"].default)
    values = {name: float(value) if FIELDS[name].type == "float" else value for name, value in values.items()}
    settings = Settings(**values)
    population = settings.population or (4 if settings.budget < 400 else 10)
    unit = default_work_unit(NoiseKind.parse(settings.noise)) if settings.replicas > 1 else 0
    return dataclasses.replace(
        settings,
        work_unit=settings.work_unit or unit,
        population=population,
        offspring=settings.offspring or population,
        init_candidates=settings.init_candidates or population,
        noise=str(NoiseKind.parse(settings.noise)),
    )


def json_object(text: str, option: str) -> dict[str, Any]:
    """A JSON object as a dict; raises ConfigurationError for anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigurationError(f"Expected a JSON object, got {text} ({option}).")
    return value


def check_types(given: dict[str, Any]) -> None:
    """Raise ConfigurationError for a key that is no setting or a value of the wrong type."""
    for name, value in given.items():
        if name not in FIELDS:
            close = difflib.get_close_matches(name, FIELDS, n=1)
            hint = f"; did you mean {close[0]}?" if close else "; `ttc-esopt run --help` lists them"
            raise ConfigurationError(f"Unknown setting {name}{hint}")
        kind = str(FIELDS[name].type)
        allowed = {"str": str, "int": int, "float": (int, float), "bool": bool}[kind]
        if name == "sigma":
            allowed = (int, float, str)  # S0 or S0:S_END
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind != "bool"):
            raise ConfigurationError(f"Expected {name} as {WORDS[kind]}, got {value!r} ({flag(name)}).")
        if isinstance(value, int) and abs(value) >= 1 << 64:
            raise ConfigurationError(f"Expected {name} below 2^64, got a larger number ({flag(name)}).")
        if name in ("problem", "model") and not value:
            raise ConfigurationError(f"Expected a {name}, got an empty name ({flag(name)}).")


def parse_sigma(text: Any) -> dict[str, float]:
    """`S0` or `S0:S_END` as settings."""
    first, colon, last = str(text).partition(":")
    try:
        parsed = {"sigma": float(first)}
        if colon:
            parsed["sigma_end"] = float(last)
    except ValueError:
        raise ConfigurationError(f"Expected a number or START:END, got {text} (--sigma).") from None
    return parsed


def read_toml(path: Path) -> dict[str, Any]:
    """Settings from a TOML file: keys at the top, or under [settings] as in a run's `run.toml`.

    Raises ConfigurationError when the file is missing or is no TOML.
    """
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror} (--config).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error} (--config).") from None
    if "settings" not in document:
        return document
    for name in document:
        if name not in TABLES:
            raise ConfigurationError(f"{path}: {name} stands beside [settings]; move it into that table (--config).")
    if not isinstance(document["settings"], dict):
        raise ConfigurationError(f"{path}: expected a table [settings] (--config).")
    return dict(document["settings"])
