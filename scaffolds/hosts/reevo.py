"""ReEvo, unmodified, with our model: under `ttc-esopt exec`, or as a client of one operator.

1. `ttc-esopt exec --esopt main.py problem=tsp_aco` in the root of a checkout. Our model takes the place of ReEvo's
   client, which need not be installed nor have a key: initial programs, crossover and reflections are written by the
   unperturbed model, and every mutation is a batch of directions. Clients that the user configured for crossover or
   reflections (`llm_client@llm_crossover=...`) keep their work; one for mutation does not, as that is what ES needs.
2. `llm_client@llm_mutation=esopt --config-dir FOLDER` (`python -m ttc_esopt.scaffolds.hosts.reevo --config` prints
   FOLDER) names our client for mutation alone. Then all other operators keep the user's own client, under
   `ttc-esopt exec` as well, and candidates of ours are the mutations. Without `exec`, `llm_mutation.base_url` names a
   running `ttc-esopt serve`.

In both, mutation's scores come from `ReEvo.evaluate_population`, and `eval.py` is run by `reevo_process`. Temperatures
of ReEvo's configuration are not used: those of the run are. Under `exec`, parents are drawn from a seeded stream.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ttc_esopt.scaffolds.hosts.attachment import Attachment
from ttc_esopt.scaffolds.hosts.client import HostError
from ttc_esopt.scaffolds.hosts.reevo_run import CROSSOVER, INITIAL, MUTATION, REFLECTION, Run
from ttc_esopt.scaffolds.hosts.served import Served

HOST = "ReEvo 0.1"
SUPPORTED = "ReEvo 0.1 (algorithm=reevo)"
TARGET = "ttc_esopt.scaffolds.hosts.reevo.Client"
_CLIENTS = {
    "generator_llm": INITIAL, "crossover_llm": CROSSOVER, "mutation_llm": MUTATION, "reflector_llm": REFLECTION,
    "short_reflector_llm": REFLECTION, "long_reflector_llm": REFLECTION,
}  # fmt: skip
_METHODS = (
    "init_population", "evaluate_population", "response_to_individual", "mark_invalid_individual", "_run_code",
    "short_term_reflection", "crossover", "mutate", "evolve",
)  # fmt: skip
_VALIDATION = 3600.0  # seconds, or 60 times the timeout of a candidate; ReEvo itself sets no limit

_attached: Attachment | None = None  # under `exec`: Hydra builds clients that have no other way to the engine


class Client:
    """What ReEvo calls a client: `llm_client@llm_mutation` may name it as `_target_`.

    Parameters
    ----------
    model, temperature : read by ReEvo for its log; sampling follows the settings of the run
    base_url : of `ttc-esopt serve`, where there is no `ttc-esopt exec`
    api_key : if the server wants one
    mutations : to ask the server for at a time, None: pop_size * mutation_rate
    """

    def __init__(
        self,
        model: str = "esopt",
        temperature: float = 1.0,
        base_url: str | None = None,
        api_key: str | None = None,
        mutations: int | None = None,
    ) -> None:
        self.model, self.temperature = model, temperature
        self.run: Run | None = None
        if _attached is not None:
            self.engine: Any = _attached.client
            return
        if not base_url:
            raise HostError(
                "Expected to run under `ttc-esopt exec --esopt main.py`, or the address of a running `ttc-esopt serve` "
                "(llm_mutation.base_url=http://127.0.0.1:8000/v1), but there is neither."
            )
        self.engine = Served(base_url, api_key, model, mutations)
        self.attachment = Attachment(self.engine, {"reevo": _patch_reevo})
        self.attachment.begin()

    def multi_chat_completion(self, messages_list: list[Any], n: int = 1, temperature: float | None = None) -> list:
        """Replies to several conversations, or `n` replies to one."""
        if self.run is None:
            raise HostError("Expected to be asked by ReEvo (algorithm=reevo), but another algorithm uses our client.")
        one = bool(messages_list) and isinstance(messages_list[0], dict)
        return self.run.write([messages_list] if one else messages_list, n)

    def chat_completion(self, n: int, messages: list[dict], temperature: float | None = None) -> list:
        """The same as objects with `message.content`."""
        replies = self.multi_chat_completion([messages], n, temperature)
        return [SimpleNamespace(message=SimpleNamespace(role="assistant", content=reply)) for reply in replies]


def _wrapped(owner: Any, name: str, attachment: Attachment) -> Callable:
    """Decorate a function that takes the original first; it takes its place."""

    def replace(function: Callable) -> Callable:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **values: Any) -> Any:
            try:
                return function(original, *args, **values)
            except HostError:
                if _attached is not None:  # else Hydra prints a traceback and hides the message's exit code
                    os.environ["HYDRA_FULL_ERROR"] = "1"
                raise

        attachment.replace(owner, name, call)
        return call

    return replace


def _patch_utils(module: ModuleType, attachment: Attachment) -> None:
    """`utils.utils` of a ReEvo checkout (many projects have a module of that name): its client is ours."""
    if not (hasattr(module, "init_client") and Path(module.__file__ or "").parents[1].joinpath("reevo.py").exists()):
        return
    attachment.replace(sys.modules[__name__], "_attached", attachment)

    @_wrapped(module, "init_client", attachment)
    def init_client(original: Callable, cfg: Any) -> Any:
        algorithm = cfg.get("algorithm", "reevo")
        if algorithm != "reevo":
            raise HostError(
                f"Expected algorithm=reevo, got {algorithm}, which ReEvo brings along in a form of its own that is not "
                "supported; the package of EoH itself is (run its script under ttc-esopt exec)."
            )
        return original(cfg) if (cfg.get("llm_mutation") or {}).get("_target_") == TARGET else Client()


def _patch_reevo(module: ModuleType, attachment: Attachment) -> None:
    attachment.require(HOST, module, [f"ReEvo.{name}" for name in _METHODS])
    attachment.require_parameters(HOST, module.ReEvo.__init__, ["cfg", "root_dir", "generator_llm", "mutation_llm"])
    attachment.met(HOST)
    host = module.ReEvo

    @_wrapped(host, "init_population", attachment)
    def init_population(original: Callable, self: Any) -> None:
        run = self._ttc_esopt = Run(self, attachment.client)
        run.begin(_take_over(self, run))
        run.operator = INITIAL
        try:
            original(self)
        except RuntimeError:
            if self.seed_ind.get("exec_success"):
                raise
            raise run.seed_fault() from None
        run.operator = REFLECTION
        run.saved(self.population)

    @_wrapped(host, "evaluate_population", attachment)
    def evaluate_population(original: Callable, self: Any, population: list[dict]) -> list[dict]:
        run = self._ttc_esopt
        population = original(self, population)
        run.evaluated(population)
        if len(population) == 1 and population[0] is self.seed_ind and self.seed_ind["exec_success"]:
            run.settle()
        return population

    @_wrapped(host, "response_to_individual", attachment)
    def response_to_individual(original: Callable, self: Any, response: str, *args: Any, **values: Any) -> dict:
        individual = original(self, response, *args, **values)
        self._ttc_esopt.read(individual, response)
        return individual

    @_wrapped(host, "_run_code", attachment)
    def _run_code(original: Callable, self: Any, individual: dict, response_id: int) -> Any:
        return self._ttc_esopt.start(individual, response_id)

    @_wrapped(host, "short_term_reflection", attachment)
    def short_term_reflection(original: Callable, self: Any, population: list[dict]) -> Any:
        run = self._ttc_esopt
        if run.generation:
            run.saved(self.population)
        run.generation += 1
        run.pairs = [list(population[i : i + 2]) for i in range(0, len(population), 2)]
        return original(self, population)

    for name, operator in (("crossover", CROSSOVER), ("mutate", MUTATION)):
        _wrapped(host, name, attachment)(functools.partial(_as_operator, operator))

    @_wrapped(host, "evolve", attachment)
    def evolve(original: Callable, self: Any) -> Any:
        run = self._ttc_esopt
        ended = None
        try:
            best = original(self)
        except RuntimeError as error:
            if type(error) is not RuntimeError:  # a subclass is no message of ReEvo's
                raise
            ended = f"ReEvo ended early: {error} {run.counts()}"
            if self.best_code_overall == self.seed_ind["code"]:
                run.engine.finish(ended)
                raise HostError(f"{ended} Nothing is better than the seed function.", 1) from None
            best = self.best_code_overall, self.best_code_path_overall
        if run.generation:
            run.saved(self.population)
        run.engine.say(ended or run.counts())
        run.engine.finish(ended)
        _confine_validation(run, best[0], attachment)
        return best


def _as_operator(operator: str, original: Callable, self: Any, *args: Any) -> Any:
    self._ttc_esopt.operator = operator
    try:
        return original(self, *args)
    finally:
        self._ttc_esopt.operator = REFLECTION


def _take_over(host: Any, run: Run) -> list[str]:
    """Put our client where it belongs; returns the operators that it writes."""
    if not isinstance(host.mutation_llm, Client):
        generator = host.generator_llm
        ours = generator if isinstance(generator, Client) else Client()
        if host.mutation_llm is not generator:
            run.engine.say(f"llm_mutation ({host.mutation_llm.model}) is not used: mutation is what directions are for")
        for name in _CLIENTS:
            if getattr(host, name) is generator:
                setattr(host, name, ours)
        host.mutation_llm = ours
    written = [name for name in _CLIENTS if isinstance(getattr(host, name), Client)]
    for name in written:
        getattr(host, name).run = run
    return list(dict.fromkeys(_CLIENTS[name] for name in written))


def _confine_validation(run: Run, code: str, attachment: Attachment) -> None:
    """ReEvo's main.py evaluates the best program once more, by the `python` of the PATH: make that ours, too."""
    original = subprocess.run

    def validate(command: Any, *args: Any, **values: Any) -> Any:
        known = isinstance(command, list) and len(command) == 5 and command[0] == "python"
        if not (known and os.path.abspath(command[1]).startswith(os.path.dirname(run.script))):
            return original(command, *args, **values)
        limit = max(_VALIDATION, 60.0 * run.host.cfg.timeout)
        evaluation = run.evaluator.start(
            command[1], list(command[2:]), code, values.get("stdout"), timeout=limit, errors=None
        )  # fmt: skip
        try:
            evaluation.communicate()
        except subprocess.TimeoutExpired:
            run.engine.say(f"the validation of the best program was ended after {limit:.0f} s")
        return subprocess.CompletedProcess(command, evaluation.status)

    attachment.replace(subprocess, "run", validate)


HOOKS = {"utils.utils": _patch_utils, "reevo": _patch_reevo}


def main() -> int:
    """Say how ReEvo is told of our client."""
    folder = Path(__file__).resolve().parent / "config"
    if sys.argv[1:] == ["--config"]:
        print(folder)
        return 0
    print(f"In a checkout of ReEvo:\n  python main.py --config-dir {folder} llm_client@llm_mutation=esopt ...")
    return 0 if not sys.argv[1:] else 2


if __name__ == "__main__":
    sys.exit(main())
