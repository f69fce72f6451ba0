"""Evolution strategies that move a language model while it searches for heuristics (test-time compute).

This file imports nothing heavy: evaluation children import the package, and they must never load torch.
"""

__version__ = "0.1.0"
