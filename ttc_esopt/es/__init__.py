"""The evolution-strategies core: noise, sigma schedule, reward shaping, optimizer, history (no model, no problem)."""

from ttc_esopt.es.history import History
from ttc_esopt.es.noise import VERSION, NoiseKind, tensor_fingerprint
from ttc_esopt.es.optimizer import ARMS, ESOptimizer, ESParams, Step
from ttc_esopt.es.schedule import SigmaSchedule
from ttc_esopt.es.shaping import centred_ranks, zscore

__all__ = [
    "ARMS",
    "VERSION",
    "ESOptimizer",
    "ESParams",
    "History",
    "NoiseKind",
    "SigmaSchedule",
    "Step",
    "centred_ranks",
    "tensor_fingerprint",
    "zscore",
]
