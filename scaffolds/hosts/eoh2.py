"""EoH 0.2 (classes EoH, LLMConfig, BaseProblem): its operators ask our engine, m1 and m2 in batches of directions.

What stays the host's own: prompts, selection, survival, files, log, its parser if asked for. What is replaced: the
model behind `InterfaceLLM`, and `Evolution.get_algorithm`, which makes the offspring of one generation. It generates in
the host's own process and evaluates each program in a forked child (`isolate`): nothing is pickled, a script needs no
main guard, and no program survives its time.

`EOH.run` hands its list of drawn operators over and afterwards pairs it with the offspring; the list is therefore
rewritten in place where a generation of ours has other numbers.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from types import ModuleType
from typing import Any

from ttc_esopt.scaffolds.hosts import populations
from ttc_esopt.scaffolds.hosts.attachment import Attachment
from ttc_esopt.scaffolds.hosts.client import Client
from ttc_esopt.scaffolds.hosts.eoh2_run import Model, Run

HOST = "EoH 0.2"
LOOP = ("EOH.run", "EOH._init_population", "EOH._save_checkpoint", "EOH._flush_samples", "Evolution", "setup_logger")
EVOLUTION = (
    "Evolution.get_algorithm", "Evolution.evaluate_seeds", "Evolution._generate", "Evolution._call_llm",
    "Evolution._extract", "Evolution._prepend_imports", "Evolution._is_duplicate", "InterfaceLLM",
)  # fmt: skip


def patch_evolution(module: ModuleType, attachment: Attachment) -> None:
    """Hook of eoh.eoh.evolution: no network, and nothing is asked before a candidate is wanted."""
    attachment.require(HOST, module, EVOLUTION)
    attachment.replace(module, "InterfaceLLM", lambda *args, **kwargs: Model(attachment.client))


def patch_loop(module: ModuleType, attachment: Attachment) -> None:
    """Hook of eoh.eoh.eoh: the loop, its files and its offspring."""
    attachment.require(HOST, module, LOOP)
    attachment.require_parameters(HOST, module.EOH.__init__, ("config", "problem"))
    attachment.met(HOST)
    client = attachment.client
    attachment.replace(module, "Evolution", _evolution(module.Evolution))
    loop = module.EOH
    begin, run = loop.__init__, loop.run
    init_population, save, set_up = loop._init_population, loop._save_checkpoint, module.setup_logger

    def __init__(self: Any, config: Any, problem: Any) -> None:
        config = _configured(config, client)
        self._attached = Run(client, config, problem)
        begin(self, config, problem)
        self.evolution.attached, self._attached.loop = self._attached, self
        self._attached.begin()

    def _init_population(self: Any, t0: float) -> tuple[list, int]:
        population, k = init_population(self, t0)
        return self._attached.initial(population), k

    def _save_checkpoint(self: Any, population: list, gen: int) -> None:
        self._attached.saved(population, gen)  # first, so that a kill in between leaves a generation that we know
        save(self, population, gen)

    def run_to_the_end(self: Any) -> None:
        try:
            run(self)
        except RuntimeError:
            if self._attached.valid or not self._attached.failures:
                raise
            client.finish("no valid candidate")
            raise self._attached.nothing_valid() from None
        client.finish()

    def setup_logger(log_path: str, debug: bool = False) -> logging.Logger:
        return _appending(set_up, log_path, debug) if client.options["continue"] else set_up(log_path, debug)

    for name, value in (("__init__", __init__), ("_init_population", _init_population), ("run", run_to_the_end),
                        ("_save_checkpoint", _save_checkpoint)):  # fmt: skip
        attachment.replace(loop, name, value)
    attachment.replace(module, "setup_logger", setup_logger)


HOOKS = {"eoh.eoh.evolution": patch_evolution, "eoh.eoh.eoh": patch_loop}


def _configured(config: Any, client: Client) -> Any:
    """The host's settings, with our model named in its log, and with the population to go on from."""
    llm = replace(config.llm, api_endpoint="ttc-esopt", api_key=None, model=client.options["model"])
    config = replace(config, llm=llm)
    folder = client.options["continue"]
    if folder:
        k, path = populations.last_population(folder)
        config = replace(config, use_seed=False, use_continue=True, continue_path=str(path), continue_id=k)
    return config


def _appending(set_up: Any, log_path: str, debug: bool) -> logging.Logger:
    """The host's logger, whose file goes on where it was instead of being emptied."""
    before = open(log_path, encoding="utf-8").read() if os.path.exists(log_path) else ""  # noqa: SIM115
    logger = set_up(log_path, debug)
    for handler in [one for one in logger.handlers if isinstance(one, logging.FileHandler)]:
        handler.close()
        with open(log_path, "w", encoding="utf-8") as file:
            file.write(before)
        after = logging.FileHandler(log_path, mode="a", encoding="utf-8")
        after.setLevel(handler.level)
        after.setFormatter(handler.formatter)
        logger.handlers[logger.handlers.index(handler)] = after
    return logger


def _evolution(base: type) -> type:
    class Evolution(base):
        """The host's own, with offspring made by `attached` (a `Run`)."""

        attached: Run
        collecting: list[str] | None = None

        def get_algorithm(self, population: list, operators: list) -> tuple[list, list]:
            return self.attached.get_algorithm(population, operators)

        def evaluate_seeds(self, seeds: list) -> list:
            return self.attached.evaluate_seeds(seeds)

        def _call_llm(self, prompt: str) -> tuple:
            if self.collecting is None:
                return super()._call_llm(prompt)
            self.collecting.append(prompt)
            return None, None

        def drafted(self, population: list, operator: str) -> tuple[Any, str]:
            """Parents and prompt as the host draws them, without asking."""
            self.collecting = []
            try:
                parents, _, _ = self._generate(population, operator)
                return parents, self.collecting[0]
            finally:
                self.collecting = None

    return Evolution
