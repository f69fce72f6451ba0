"""Evaluating programs that a model wrote: each in a sandboxed process of its own, scored from what it returned."""

from ttc_esopt.evaluation.evaluator import PATIENCE, Evaluator
from ttc_esopt.evaluation.notice import say_when_compiling
from ttc_esopt.evaluation.outcome import Outcome
from ttc_esopt.evaluation.sandbox import sandbox_layers

__all__ = ["PATIENCE", "Evaluator", "Outcome", "sandbox_layers", "say_when_compiling"]
