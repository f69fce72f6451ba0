"""Attach to EoH of LLM4AD 1.0: its threads, prompts, selection, survival, profilers and files stay.

LLM4AD makes one candidate at a time, in each of its sampler threads: prompt, reply, evaluation and registration follow
each other in one thread. Here each of these steps leaves a note in that thread, so that operator, parents and score of
a candidate are known without looking at any text. What is replaced is the model, the place where programs are
evaluated (`isolate`), and the counting: LLM4AD does not count replies that it cannot read, nor anything without a
profiler, and could ask for ever.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from typing import Any

from ttc_esopt.scaffolds.hosts import llm4ad_files
from ttc_esopt.scaffolds.hosts.client import HostError
from ttc_esopt.scaffolds.hosts.llm4ad_run import HOST, OPERATORS, Run
from ttc_esopt.scaffolds.hosts.llm4ad_sample import Leave

SUPPORTED = "EoH of LLM4AD 1.0 (and of its wheel 1.11)"
# A subclass that has its own of these goes its own ways, which we could not count.
_OURS = ("run", "_sample_evaluate_register", "_continue_loop", "_multi_threaded_sampling")
_NEEDED = (
    *(f"EoH.{name}" for name in _OURS), *(f"EoHPrompt.get_prompt_{operator}" for operator in OPERATORS),
    "EoHSampler.get_thought_and_function", "Population.survival", "SecureEvaluator._modify_program_code",
    "TextFunctionProgramConverter.function_to_program", "LLM.draw_sample", "EoHProfiler.register_population",
)  # fmt: skip
_PARAMETERS = (
    "llm", "evaluation", "profiler", "max_generations", "max_sample_nums", "pop_size", "num_samplers", "num_evaluators",
)  # fmt: skip

_OTHERS = (
    "funsearch", "hillclimb", "lhns", "llamea", "mcts_ahd", "meoh", "mles", "moead", "nsga2", "partevo", "randsample",
    "reevo",
)  # fmt: skip


class _Here(threading.local):
    """Notes of one sampler thread."""

    def __init__(self) -> None:
        self.asked: tuple[str, list[Any]] | None = None  # operator and parents of the prompt that was made last
        self.candidate: Any = None
        self.idle = 0  # rounds of the host's loop without a request


def patch(module: Any, attachment: Any) -> None:
    """Hook of llm4ad.method.eoh.eoh."""
    attachment.require(HOST, module, _NEEDED)
    attachment.require_parameters(HOST, module.EoH.__init__, _PARAMETERS)
    here = _Here()
    for operator in OPERATORS:
        _note_prompts(module.EoHPrompt, operator, here, attachment)
    _note_functions(module.EoHSampler, here, attachment)
    _patch_loop(module, here, attachment)


def patch_resume(module: Any, attachment: Any) -> None:
    """Hook of llm4ad.method.eoh.resume: a stored score of 0 is a score."""
    attachment.require(HOST, module, ["_get_all_samples_and_scores"])

    def _get_all_samples_and_scores(path: str, get_algorithm: bool = True) -> tuple:
        stored = llm4ad_files.samples(path)
        functions = [sample["function"] for sample in stored]
        scores = [llm4ad_files.score_of(sample) for sample in stored]
        found = (functions, scores, llm4ad_files.last_sample(path))
        return (*found, [sample.get("algorithm") for sample in stored]) if get_algorithm else found

    attachment.replace(module, "_get_all_samples_and_scores", _get_all_samples_and_scores)


def refuse(module: Any, attachment: Any) -> None:
    """Hook of the other methods' packages: they would run as if we were not there, and ask the user's own API."""
    for name, found in list(vars(module).items()):
        if inspect.isclass(found) and "run" in vars(found) and found.__module__.startswith(f"{module.__name__}."):
            attachment.replace(found, "__init__", _refusal(name))


def _refusal(name: str) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        raise HostError(f"Expected {SUPPORTED}, got its method {name}: use EoH, or `ttc-esopt serve`.")

    return __init__


HOOKS = {"llm4ad.method.eoh.eoh": patch, "llm4ad.method.eoh.resume": patch_resume}
HOOKS |= {f"llm4ad.method.{other}": refuse for other in _OTHERS}


def _note_prompts(prompts: Any, operator: str, here: _Here, attachment: Any) -> None:
    name = f"get_prompt_{operator}"
    original = getattr(prompts, name).__func__

    @functools.wraps(original)
    def get_prompt(cls: Any, task_prompt: str, *args: Any, **kwargs: Any) -> Any:
        prompt = original(cls, task_prompt, *args, **kwargs)
        chosen: Any = []
        if operator != "i1":
            chosen = args[0] if args else kwargs.get("indivs", kwargs.get("indi"))
        here.asked = (operator, list(chosen) if isinstance(chosen, (list, tuple)) else [chosen])
        return prompt

    attachment.replace(prompts, name, classmethod(get_prompt))


def _note_functions(sampler: Any, here: _Here, attachment: Any) -> None:
    def get_thought_and_function(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        thought, function = original(self, *args, **kwargs)
        if here.candidate is not None:
            here.candidate.thought, here.candidate.function = thought, function
        return thought, function

    original = attachment.replace(sampler, "get_thought_and_function", get_thought_and_function)


def _patch_loop(module: Any, here: _Here, attachment: Any) -> None:
    loop = module.EoH
    signature = inspect.signature(loop.__init__)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in _OURS:
            if getattr(type(self), name) is not getattr(loop, name):
                raise HostError(f"Expected {SUPPORTED}, but {type(self).__name__} has its own {name}.")
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        attachment.met(HOST)
        run = Run(attachment.client, module, here, values)
        values["llm"] = _model(module.LLM, run)
        init(*given.args, **given.kwargs)
        run.built(self)
        self._ttc_esopt = run

    def run_to_the_end(self: Any) -> None:
        self._ttc_esopt.run(run)

    def _sample_evaluate_register(self: Any, prompt: Any) -> None:
        self._ttc_esopt.sample(sample, prompt)

    def _continue_loop(self: Any) -> bool:
        return self._ttc_esopt.goes_on(goes_on)

    def _multi_threaded_sampling(self: Any, fn: Any, *args: Any, **kwargs: Any) -> None:
        def until_told_to_leave(*args: Any, **kwargs: Any) -> None:
            with contextlib.suppress(Leave):
                fn(*args, **kwargs)

        threads(self, until_told_to_leave, *args, **kwargs)
        if fn == self._iteratively_init_population:
            self._ttc_esopt.join()

    init = attachment.replace(loop, "__init__", __init__)
    run = attachment.replace(loop, "run", run_to_the_end)
    sample = attachment.replace(loop, "_sample_evaluate_register", _sample_evaluate_register)
    goes_on = attachment.replace(loop, "_continue_loop", _continue_loop)
    threads = attachment.replace(loop, "_multi_threaded_sampling", _multi_threaded_sampling)


def _model(base: type, run: Run) -> Any:
    """The host's kind of model. It holds nothing of interest, since the profiler writes all of it into its log."""

    class TtcEsopt(base):
        def draw_sample(self, prompt: Any, *args: Any, **kwargs: Any) -> str:
            return run.draw(prompt)

    return TtcEsopt()
