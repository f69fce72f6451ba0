"""Attach to EoH 0.1: its loop, prompts, selection, parser, files stay; replies and evaluations come through us.

Three names are replaced. The model's class, which would probe the network from its constructor; `InterfaceEC`, whose
`get_algorithm` then makes a whole batch at a time; and `EOH`, which announces the run and knows the generation. Parents
and prompts come out of the host's own code, run up to the point where it asks the model: edits and subclasses of it
hold. Where the host's parser is wanted, `get_offspring` runs to its end with us as its model and its problem, so that
its rules, its re-asks and its treatment of duplicates are not repeated here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from ttc_esopt.scaffolds.hosts.client import Client, HostError
from ttc_esopt.scaffolds.hosts.eoh1_run import HOST, Run
from ttc_esopt.scaffolds.hosts.isolate import Outcome
from ttc_esopt.scaffolds.hosts.run import individual, parents_of

Json = dict[str, Any]
SUPPORTED = 'EoH 0.1 (tag v0.1), method "eoh"'


def patch_parameters(module: Any, attachment: Any) -> None:
    """`ec_operator_weights` runs into a wrong attribute name of EoH; everything else stays its own."""
    attachment.require(HOST, module, ["Paras.set_paras", "Paras.set_ec"])

    def set_ec(self: Any) -> None:
        weights, self.ec_operator_weights = self.ec_operator_weights, None
        original(self)
        if weights is not None:
            self.ec_operator_weights = weights

    original = attachment.replace(module.Paras, "set_ec", set_ec)


def patch_methods(module: Any, attachment: Any) -> None:
    """Refuse the methods that have no loop of batches, before one of them asks its own model."""
    attachment.require(HOST, module, ["Methods.get_method"])

    def get_method(self: Any) -> Any:
        if self.paras.method != "eoh":
            raise HostError(f'Expected method = "eoh" in set_paras, got {self.paras.method!r}. Supported: {SUPPORTED}.')
        return original(self)

    original = attachment.replace(module.Methods, "get_method", get_method)


def patch_model(module: Any, attachment: Any) -> None:
    """No network, whatever endpoint, key or local address the script names."""
    attachment.require(HOST, module, ["InterfaceLLM", "Evolution._get_alg"])
    attachment.replace(module, "InterfaceLLM", _Unasked)


def patch_loop(module: Any, attachment: Any) -> None:
    """The loop and its operators."""
    needed = ["get_algorithm", "get_offspring", "_get_alg", "population_generation", "population_generation_seed"]
    attachment.require(HOST, module, ["EOH.run", *(f"InterfaceEC.{name}" for name in needed)])
    attachment.require_parameters(HOST, module.EOH.__init__, ["paras", "problem", "select", "manage"])
    attachment.require_parameters(HOST, module.InterfaceEC.__init__, ["pop_size", "interface_prob", "select", "n_p"])
    for name in ("get_algorithm", "get_offspring", "_get_alg"):
        attachment.require_parameters(HOST, getattr(module.InterfaceEC, name), ["pop", "operator"])
    operators = type("InterfaceEC", (Operators, module.InterfaceEC), {})
    decorate = getattr(sys.modules[module.InterfaceEC.__module__], "add_numba_decorator", None)
    own = {"client": attachment.client, "operators_class": operators, "decorate": staticmethod(decorate)}
    attachment.replace(module, "InterfaceEC", operators)
    attachment.replace(module, "EOH", type("EOH", (Loop, module.EOH), own))
    attachment.met(HOST)


HOOKS = {
    "eoh.utils.getParas": patch_parameters,
    "eoh.methods.methods": patch_methods,
    "eoh.methods.eoh.eoh_evolution": patch_model,
    "eoh.methods.eoh.eoh": patch_loop,
}


class Loop:
    """Goes before the host's `EOH`: checks and announces the run, and reports its end."""

    client: Client
    operators_class: type
    decorate: Any

    def __init__(self, paras: Any, problem: Any, select: Any, manage: Any, **kwargs: Any) -> None:
        super().__init__(paras, problem, select, manage, **kwargs)
        self.attached = self.operators_class.attached = Run(self.client, self, problem, self.decorate)
        self.manage = _Manage(manage, self.attached)
        self.attached.begin(paras.problem if isinstance(paras.problem, str) else type(problem).__name__)

    def run(self) -> None:
        try:
            super().run()
        finally:
            self.attached.forget_file()
        self.attached.announce()
        self.client.finish(self.client.stopping)


class _Manage:
    """The host's population management; the loop calls it once after each operator, which is how we count them."""

    def __init__(self, manage: Any, run: Run) -> None:
        self._manage, self._run = manage, run

    def population_management(self, *args: Any, **kwargs: Any) -> Any:
        population = self._manage.population_management(*args, **kwargs)
        self._run.managed(population)
        return population

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manage, name)


class _Unasked:
    """In place of the host's model: takes any settings, and must not be asked."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def get_response(self, prompt_content: str) -> str:
        raise HostError("EoH asked its own model while ttc-esopt is attached, outside of an operator.", 1)


class _Asked(Exception):
    """Leaves the host's code at the point where it asks the model."""


@dataclass
class _Turn:
    """One candidate on its way: what was asked, what came, what is to be evaluated, what became of it."""

    ask: Json | None = None
    given: list[Any] | None = None  # parents that the host is to take instead of drawing
    common: bool = False  # ... and to take again when it asks for another candidate than a duplicate
    batch: Any = None
    reply: Json | None = None
    unread: bool = False  # the reply was fetched together with others, and the host has not asked for it yet
    asked: int = 0
    parents: Any = None
    code: str | None = None
    description: str | None = None
    program: str | None = None
    why: Json = field(default_factory=dict)  # failure and detail, where nothing is to be evaluated
    outcome: Outcome | None = None


class _Exchange:
    """What the host's code talks to while it makes a candidate: its parent selection, its model and its problem.

    Attributes
    ----------
    turn : the candidate that is made; None: the host is only to say what it would ask
    asking : operator and generation
    chosen : the parents that were selected last
    captured : what the host would have asked
    fault : an error of ours, since the host takes every exception for a bad candidate
    """

    def __init__(self, run: Run, select: Any) -> None:
        self._run, self._select = run, select
        self.turn: _Turn | None = None
        self.asking: tuple[str, int] = ("", 0)
        self.chosen: list[Any] = []
        self.captured: Json = {}
        self.fault: Exception | None = None

    def begin(self, turn: _Turn | None) -> None:
        """The next candidate."""
        self.turn, self.chosen, self.fault = turn, [], None

    def parent_selection(self, pop: list[Json], m: int) -> list[Any]:
        """The host's own choice, or the one that was made when the replies of a batch were fetched."""
        turn = self.turn
        if turn is not None and turn.given:
            self.chosen = turn.given
            if not turn.common:
                turn.given = None
            return self.chosen
        try:
            self.chosen = list(self._select.parent_selection(pop, m))
        except Exception as error:
            self.fault = HostError(
                f"EoH cannot select parents from a population of {len(pop)}: {error} "
                f"({self._select.__name__.rpartition('.')[2]}; selection in set_paras)."
            )
            raise self.fault from error
        return self.chosen

    def get_response(self, prompt_content: str) -> str:
        """A reply for the candidate; asked again if the host asks again."""
        turn, client = self.turn, self._run.client
        ask = {"prompt": prompt_content, "parents": parents_of(self.chosen)}
        if turn is None:
            self.captured = ask
            raise _Asked
        try:
            if turn.unread:
                turn.unread = False
            elif turn.reply is None:
                turn.reply = client.generate(*self.asking, [ask], turn.batch)[0]
            else:
                turn.reply = {**client.again(turn.reply["id"], ask), "id": turn.reply["id"]}
        except Exception as error:
            self.fault = error
            raise
        turn.asked += 1
        return turn.reply["text"]

    def evaluate(self, code: str) -> float:
        """Only notes the program, as the host decorated it: it is evaluated later, isolated, with the others."""
        self.turn.program = code
        return 0.0

    def noting(self, read: Any) -> Any:
        """The host's parser `read`, with a note of what it found."""

        def read_and_note(prompt_content: str) -> Any:
            turn = self.turn
            if turn is not None:
                turn.code = turn.description = None
            found = read(prompt_content)
            if turn is not None:
                turn.code, turn.description = found
            return found

        return read_and_note


class Operators:
    """Goes before the host's `InterfaceEC`; `attached` is set on the class that is made of both."""

    attached: Run

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for operator in self.attached.loop.operators:
            if not hasattr(self.evol, operator):
                raise HostError(
                    f"Expected operators that EoH has (e1, e2, m1, m2, m3), got {operator!r} (ec_operators)."
                )
        self._exchange = self.select = self.evol.interface_llm = _Exchange(self.attached, self.select)
        self.evol._get_alg = self._exchange.noting(self.evol._get_alg)
        self.evol.debug_mode = False  # it would wait for the Enter key

    def population_generation(self) -> list[Json]:
        population = super().population_generation() + self.attached.joining()
        self.attached.require_somebody(population)
        return population

    def population_generation_seed(self, seeds: Any, n_p: Any) -> list[Json]:
        return self.attached.seeded(seeds)

    def get_algorithm(self, pop: list[Json], operator: str) -> tuple[list[Any], list[Json]]:
        run = self.attached
        generation, index = run.begin_operator()
        if index == 0:
            run.stop_here()
        if run.client.stopping or not run.is_drawn(generation, index):
            return [], []
        self._exchange.asking = (operator, generation)
        turns = self._new_turns(pop, operator, generation)
        if not run.one_by_one:
            self._ask_together(turns, pop)
        for turn in turns:
            if run.host_parser:
                self._read_as_host(turn, pop)
            else:
                self._read_as_ours(turn)
        self._evaluate(turns)
        offspring = [self._as_offspring(turn) for turn in turns]
        if self.debug:
            for one in offspring:
                print(f">>> check offsprings: \n {one}")
        return [turn.parents for turn in turns], offspring

    def _new_turns(self, pop: list[Json], operator: str, generation: int) -> list[_Turn]:
        """One for each candidate; those that get a direction first."""
        run = self.attached
        directions, count = run.size(operator)
        batch = None
        if directions:
            worst = max((one["objective"] for one in pop), default=None)
            batch = run.client.open_batch(directions, generation=generation, operator=operator, worst=worst)
        dealt = directions * run.options["replies_per_direction"] if batch is not None else 0
        common = bool(directions) and run.options["common_parent"] and not run.host_numbers
        return [_Turn(batch=batch if place < dealt else None, common=common) for place in range(count)]

    def _ask_together(self, turns: list[_Turn], pop: list[Json]) -> None:
        """Draw all parents first, then fetch all replies at once."""
        for turn in turns:
            if turn.common and turn is not turns[0]:
                turn.ask, turn.given = turns[0].ask, turns[0].given
            else:
                turn.ask, turn.given = self._prepare(pop)
            turn.unread, turn.parents = True, turn.given or None
        for batch in dict.fromkeys(turn.batch for turn in turns):
            part = [turn for turn in turns if turn.batch == batch]
            replies = self.attached.client.generate(*self._exchange.asking, [turn.ask for turn in part], batch)
            for turn, reply in zip(part, replies, strict=True):
                turn.reply = reply

    def _prepare(self, pop: list[Json]) -> tuple[Json, list[Any]]:
        """The host's own parents and prompt for one candidate."""
        exchange = self._exchange
        exchange.begin(None)
        try:
            super()._get_alg(pop, exchange.asking[0])
        except _Asked:
            return exchange.captured, exchange.chosen
        except Exception as error:
            raise exchange.fault or self._silent() from error
        raise self._silent()

    def _silent(self) -> HostError:
        operator = self._exchange.asking[0]
        return HostError(f"EoH does not ask its model for operator {operator!r}; does it without ttc-esopt?")

    def _read_as_host(self, turn: _Turn, pop: list[Json]) -> None:
        """Let the host read the reply, ask again, and look for duplicates; what it would evaluate is noted."""
        exchange, problem = self._exchange, self.interface_eval
        exchange.begin(turn)
        self.interface_eval = exchange
        try:
            turn.parents, _ = super().get_offspring(pop, exchange.asking[0])
        finally:
            self.interface_eval = problem
        if exchange.fault or turn.reply is None:
            raise exchange.fault or self._silent()
        if turn.program is None and turn.code is None:
            turn.why = {"failure": "reply", "detail": f"EoH found no description and code in {turn.asked} replies"}
        elif turn.program is None:
            turn.why = {
                "failure": "syntax",
                "detail": "EoH did not evaluate the program; could it decorate it for numba?",
            }

    def _read_as_ours(self, turn: _Turn) -> None:
        """Take what our parser found; nothing is asked twice."""
        reply = turn.reply
        if not reply["ok"]:
            turn.why = {"failure": reply["failure"], "detail": reply["detail"]}
            return
        turn.code, turn.description = reply["code"], reply["description"] or ""
        try:
            turn.program = self.attached.decorated(turn.code)
        except Exception as error:  # whatever the host's code does with a program that it cannot take
            turn.why = {"failure": "syntax", "detail": f"EoH could not decorate the program for numba: {error}"}

    def _evaluate(self, turns: list[_Turn]) -> None:
        run = self.attached
        runnable = [turn for turn in turns if turn.program is not None]
        for turn, outcome in zip(runnable, run.outcomes([turn.program for turn in runnable]), strict=True):
            turn.outcome = outcome
        run.client.tell(
            [run.result(turn.reply["id"], turn.code, turn.description, turn.outcome, **turn.why) for turn in turns]
        )

    def _as_offspring(self, turn: _Turn) -> Json:
        if turn.outcome is None or turn.outcome.value is None:
            turn.parents = None
            return individual(None, None, None)
        return individual(turn.description, turn.code, turn.outcome.value)
