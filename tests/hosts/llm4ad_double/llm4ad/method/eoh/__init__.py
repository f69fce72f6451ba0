"""EoH of the stand-in."""

from .eoh import EoH
from .profiler import EoHProfiler

__all__ = ["EoH", "EoHProfiler"]
