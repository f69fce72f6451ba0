"""One run of LLM4AD's EoH under our engine: what is announced, drawn, evaluated, told and continued.

`llm4ad` holds what is patched into the host; its notes of one thread are the `here` of this module.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ttc_esopt.scaffolds.hosts import isolate, llm4ad_files, populations
from ttc_esopt.scaffolds.hosts.client import Client, HostError, Stopped
from ttc_esopt.scaffolds.hosts.llm4ad_budget import Budget, version
from ttc_esopt.scaffolds.hosts.llm4ad_sample import (
    Candidate,
    Evaluations,
    Leave,
    free_numpy_in_forks,
    inside,
    objective_of,
)
from ttc_esopt.scaffolds.hosts.llm4ad_text import CannotSplice, as_reply, description_of
from ttc_esopt.scaffolds.hosts.run import OURS, HostRun, draws, restore_draws
from ttc_esopt.scaffolds.hosts.templates import prefill_of

HOST = "EoH of LLM4AD"
OPERATORS = ("i1", "e1", "e2", "m1", "m2")
NO_TIMEOUT = 600.0  # seconds for a program where the host would wait for ever
_IDLE_ROUNDS = 100  # of the host's loop without a request, after which nothing more is expected of it
Json = dict[str, Any]


class Run(HostRun):
    """What the patched methods of one `EoH` object share; objectives are minimised, the host's scores negated.

    Parameters
    ----------
    module : llm4ad.method.eoh.eoh
    here : notes of the calling thread
    values : the arguments of `EoH`
    """  # fmt: skip

    def __init__(self, client: Client, module: Any, here: Any, values: Json) -> None:
        self._evaluation, self._profiler, self._user_llm = (values[n] for n in ("evaluation", "profiler", "llm"))
        limit = self._evaluation.timeout_seconds
        super().__init__(client, self._objective(), NO_TIMEOUT if limit is None else limit, 1)
        self._module, self._here = module, here
        self._slots = threading.Semaphore(values["num_evaluators"])
        self._evaluators = values["num_evaluators"]
        self._lock, self._reporting = threading.Lock(), threading.Lock()
        free_numpy_in_forks()
        self._drawn = self._active = self._told = self._valid = 0
        self._fault: BaseException | None = None
        self._leaving = self._cut = False
        self.eoh: Any = None
        self._folder = llm4ad_files.log_folder(self._profiler)
        self._continued: tuple[int, Path] | None = None
        if client.options["continue"]:
            generation, path = populations.last_population(client.options["continue"])
            self._continued = generation, Path(path)
            if Path(path).parent.name == "population":
                self._folder = str(Path(path).parent.parent.resolve())
                llm4ad_files.go_on(self._profiler, self._folder, generation)

    def built(self, eoh: Any) -> None:
        """The host's object is ready."""
        self.eoh = eoh
        self._in_process = self.options["sandbox"] == "off" and not getattr(self._evaluation, "safe_evaluate", True)
        eoh._evaluation_executor = Evaluations(self, eoh._evaluation_executor)
        used = {"e1": True, "e2": eoh._use_e2_operator, "m1": eoh._use_m1_operator, "m2": eoh._use_m2_operator}
        self._operators = [operator for operator in OPERATORS if used.get(operator)]

    # the run

    def run(self, original: Callable[[Any], None]) -> None:
        """The host's `run`, announced before and reported after."""
        self._begin()
        try:
            original(self.eoh)
        except BaseException:
            self._leaving = True  # the threads are still there
            raise
        finally:
            with contextlib.suppress(Exception):  # what the user's own model holds; the host only knows ours
                self._user_llm.close()
        if self._fault:
            raise self._fault
        self._report()
        stopped = self.client.stopping if self._cut else None
        has_given_up = not self.eoh._resume_mode and len(self.eoh._population) < self.eoh._selection_num
        if has_given_up and self._profiler is not None:
            self._profiler.finish()
        self.client.finish(self.client.stopping)
        if stopped:
            raise Stopped(stopped)
        if not self._valid and not len(self.eoh._population):
            raise self.nothing_valid()

    def _begin(self) -> None:
        eoh, population = self.eoh, self.eoh._population
        self._es = self.es_operators(self._operators)
        self._drawn = eoh._tot_sample_nums  # of a run that the script resumes by itself
        if self._continued and eoh._resume_mode:
            raise HostError("The script resumes a run by itself; let either it or --continue choose the population.")
        if eoh._resume_mode and not len(population):  # LLM4AD fills it again only after a full generation
            generation = population.generation
            population.survival()
            population._generation = generation
        lines = []
        if not self._in_process:
            self.settle(self._evaluation.template_program)
            if not getattr(self._evaluation, "safe_evaluate", True):
                lines.append(
                    "safe_evaluate=False is not followed: programs run in processes of their own (unless --sandbox off)"
                )
        members = self._members() if self._continued else []
        answer = self.client.hello(self._plan(lines))
        if members:
            population._population = members[: eoh._pop_size]
            population._generation = self._continued[0]
            eoh._resume_mode = True
            state = answer.get("state") or {}
            self._drawn = self._told = state.get("samples", self._drawn)
            restore_draws(state or None)
        self.generation = population.generation
        eoh._tot_sample_nums = self._drawn
        if len(population) and not answer["ours"]:
            self.client.seeds([self._as_told(one) for one in population.population if _is_valid(one)])

    def _members(self) -> list[Any]:
        """The population to go on from, as the host's objects, evaluated again."""
        generation, path = self._continued
        self._drawn = llm4ad_files.last_sample(self._folder)
        for name, there, limit in (
            ("max_generations", generation, self.eoh._max_generations),
            ("max_sample_nums", self._drawn, self.eoh._max_sample_nums),
        ):
            if limit is not None and there >= limit:
                raise HostError(f"Nothing is left to do: {there} of {limit} are there ({name} in the script).", 0)
        members = []
        stored = populations.read_population(path)
        for one in stored:
            try:
                function = self._function(one["code"], description_of(one["description"]))
            except (CannotSplice, SyntaxError) as error:
                raise HostError(f"A heuristic in {path} is none that LLM4AD can go on from: {error}") from None
            function.score = -one["objective"]
            members.append(function)
        if not self.options["trust_objectives"]:
            fresh = [outcome.value for outcome in self.outcomes([self._code(one) for one in members])]
            populations.check_objectives([one["objective"] for one in stored], fresh, path)
        return members

    def join(self) -> None:
        """Heuristics beside those that the model wrote in the beginning, as members of the host's population."""
        population, least = self.eoh._population, self.eoh._selection_num
        there = len(population) + len(population._next_gen_pop)
        with self._ours():
            found = self.openings()
            short = not self._cut and there + len(found) < least
            found += self.spares([self._evaluation.template_program], 1) if short else []
            members = [self._function(one["code"], one["description"]) for one in found]
            for function, one in zip(members, found, strict=True):
                function.score, function.ttc_esopt_code = -one["objective"], one["code"]
            if members and there + len(members) < least:  # LLM4AD wants several, and draws with replacement
                members += members[-1:] * (least - there - len(members))
            population._next_gen_pop += members
            self._valid += len(found)

    def _function(self, code: str, description: str) -> Any:
        """A heuristic as the host's object, by the host's own reading."""

        class Says:
            def draw_sample(self, prompt: str) -> str:
                return text

        text = as_reply(code, description, self.eoh._template_program_str)
        thought, function = self._module.EoHSampler(Says(), self.eoh._template_program_str).get_thought_and_function("")
        if function is None:
            raise CannotSplice("its function cannot be read")
        function.algorithm = thought
        return function

    def _plan(self, lines: Sequence[str]) -> Json:
        """What is announced; `lines` are put among the host's own."""
        limit = "" if self._evaluation.timeout_seconds is not None else " (timeout_seconds is None)"
        where = "in the host's process" if self._in_process else f"{self._timeout:g} s each{limit}"
        budget = Budget.of(
            self.eoh, operators=self._operators, es=self._es, options=self.options, drawn=self._drawn,
            generation=self.eoh._population.generation if self._continued is None else self._continued[0],
            begins=self._continued is None and not self.eoh._resume_mode,
        )  # fmt: skip
        continued = self._continued and {"generation": self._continued[0], "path": str(self._continued[1])}
        return {
            **budget.plan(),
            "host": HOST,
            "version": version(self._module),
            "problem": type(self._evaluation).__name__,
            "folder": os.path.join(self._folder, OURS),
            "function": self.eoh._function_to_evolve_name,
            "kind": "function",
            "prefill": prefill_of(self.eoh._template_program_str),
            "lines": [*budget.lines(), *lines, f"evaluations: up to {self._evaluators} at once, {where}"],
            "continued": continued,
        }

    # one sample

    def sample(self, original: Callable[[Any, Any], None], prompt: Any) -> None:
        """The host's `_sample_evaluate_register`: one reply from its prompt to its registration, counted and told."""
        with self._lock:
            if self._is_over():
                raise Leave
            self._drawn += 1
            self._active += 1
        self._here.idle, self._here.candidate = 0, None
        try:
            try:
                original(self.eoh, prompt)
            finally:
                self._tell()
            with self._ours():
                self._report()
        finally:
            with self._lock:
                self._active -= 1
                self.eoh._tot_sample_nums = self._drawn

    def goes_on(self, original: Callable[[Any], bool]) -> bool:
        """The host's `_continue_loop`, which also ends what would spin without asking for anything."""
        here = self._here
        here.idle += 1
        with self._lock:
            if self._is_over():
                return False
            spins = here.idle > _IDLE_ROUNDS and not self._active
            if spins and self._fault is None:
                self._fault = HostError(
                    "LLM4AD's loop goes on without asking the model: no heuristic of its population can be selected "
                    "(debug_mode=True shows its error).", 1
                )  # fmt: skip
        if here.idle > 3:
            time.sleep(0.02)
        return not spins and original(self.eoh)

    def _is_over(self) -> bool:
        eoh = self.eoh
        limit = eoh._max_sample_nums
        if eoh._population.generation == 0 and not eoh._resume_mode:
            limit = min(limit, eoh._initial_sample_nums_max)
        if self._fault or self._leaving or self._drawn >= limit:
            return True
        self._cut = self._cut or bool(self.client.stopping)
        return self._cut

    def draw(self, prompt: Any) -> str:
        """A reply, in the form that the host reads."""
        with self._ours():
            operator, parents = self._here.asked or ("other", [])
            self._here.asked = None
            population = self.eoh._population
            ask = {"prompt": prompt, "parents": [_as_parent(self._as_told(one)) for one in parents]}
            scores = [one.score for one in population.population if _is_valid(one)]
            if scores:
                ask["worst"] = 0 - float(min(scores))
            batch = "stream" if operator in self._es else None
            reply = self.client.generate(operator, population.generation, [ask], batch=batch)[0]
            candidate = self._here.candidate = Candidate(reply)
            if self.host_parser:
                return reply["text"]
            if not reply["ok"]:
                candidate.failure, candidate.detail = reply["failure"], reply["detail"]
                return ""
            try:
                return as_reply(reply["code"], reply["description"], self.eoh._template_program_str)
            except CannotSplice as error:
                candidate.detail = str(error)
                return ""

    def evaluate(self, program: Any) -> tuple[float | None, float]:
        """Score (maximised, as the host has it) and seconds of a program of this thread."""
        with self._ours():
            candidate = self._here.candidate
            candidate.program = str(program)
            if candidate.function is not None:
                candidate.function.ttc_esopt_code = candidate.program
            with self._slots:
                outcome = inside(self.eoh, program) if self._in_process else self.outcomes([candidate.program])[0]
            candidate.outcome = outcome
            return None if outcome.value is None else 0 - outcome.value, outcome.seconds

    def _objective(self) -> Callable[[str], Any]:
        def objective(text: str) -> Any:
            return objective_of(self.eoh, text)

        objective.__wrapped__ = self._evaluation.evaluate_program  # whose modules and data may be read
        return objective

    def outcomes(self, codes: Sequence[str]) -> list[isolate.Outcome]:
        """Evaluate programs. Other than EoH's own, LLM4AD's objectives are not rounded."""
        return isolate.evaluate(
            self._evaluate, codes, timeout=self._timeout, processes=self._evaluators, isolation=self._isolation
        )

    def _tell(self) -> None:
        """Tell what became of this thread's candidate, whichever way it left the host."""
        candidate, self._here.candidate = self._here.candidate, None
        if candidate is None or self._fault:
            return
        outcome = candidate.outcome or isolate.Outcome(None, candidate.failure, candidate.detail, 0.0)
        result = {
            "id": candidate.reply["id"], "objective": outcome.value, "failure": outcome.failure,
            "detail": outcome.detail, "seconds": outcome.seconds,
        }  # fmt: skip
        if candidate.program is not None or self.host_parser:
            result |= {"code": candidate.program, "description": description_of(candidate.thought)}
        with self._ours():
            self.client.tell([result])
        with self._lock:
            self._told += 1
            self._valid += outcome.value is not None
            self.count(outcome)

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        """What goes wrong in here is no bad sample, as which the host would take it, but the end of the run."""
        try:
            yield
        except (Exception, HostError, Stopped) as error:
            self._fault = self._fault or error
            raise Leave from error

    # populations

    def _report(self) -> None:
        """Save and tell a new generation, once."""
        with self._reporting:
            population = self.eoh._population
            with population._lock:
                generation, members = population.generation, list(population.population)
            if generation <= self.generation:
                return
            if isinstance(self._profiler, self._module.EoHProfiler):
                self._profiler.register_population(population)
            llm4ad_files.save_population(self._folder, generation, members)
            self.generation = generation
            told = [self._as_told(one) for one in members if _is_valid(one)]
            self.client.generation(generation, told, {"samples": self._told, **draws()})

    def _as_told(self, function: Any) -> Json:
        objective = 0 - float(function.score) if _is_valid(function) else None
        return {"description": description_of(function.algorithm), "code": self._code(function), "objective": objective}

    def _code(self, function: Any) -> str:
        """The program that was evaluated for it: the host's object has only the function."""
        code = getattr(function, "ttc_esopt_code", None)
        if code is None:
            convert = self._module.TextFunctionProgramConverter.function_to_program
            code = function.ttc_esopt_code = str(convert(function, self.eoh._template_program))
        return code


def _as_parent(told: Json) -> Json:
    return {"code": told["code"], "objective": told["objective"]}


def _is_valid(function: Any) -> bool:
    return function.score is not None and math.isfinite(function.score)
