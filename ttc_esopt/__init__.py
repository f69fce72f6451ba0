"""Evolution strategies that move a language model while it searches for heuristics (test-time compute).

This file imports nothing heavy: evaluation children import the package, and they must never load torch.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "attach":
        from ttc_esopt.attached.attach import attach

        return attach
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
