"""A double of EoH 0.2: its module paths, names, signatures, draws and files; the content is ours and small."""

from .config import LLMConfig as LLMConfig
from .problem import BaseProblem as BaseProblem
from .run import EoH as EoH
