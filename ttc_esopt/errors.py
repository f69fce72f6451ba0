"""Errors, named by the boundary that failed.

Every message is one sentence (or two) that says what was expected, what came, and which flag or file mends it.
A bad candidate is data and never raises one of these: it becomes an `Outcome` with a failure word.
"""


class TtcEsoptError(Exception):
    """Base of all errors of this package; `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigurationError(TtcEsoptError):
    """A wrong option, TOML key or combination of settings."""

    exit_code = 2


class DataError(TtcEsoptError):
    """A file (run folder, instance file, model folder) is missing, broken or does not match."""


class EngineError(TtcEsoptError):
    """The model could not be loaded, could not generate, or holds tensors that cannot be perturbed."""


class EvaluationError(TtcEsoptError):
    """The evaluation machinery itself failed (never: a candidate failed)."""


class RewardError(TtcEsoptError):
    """A reward is NaN or infinite; the message names the candidate."""
