"""Problems of other frameworks, searched by our own scaffolds: EoH (0.1 and 0.2), LLM4AD, ReEvo and its relatives.

`HostProblem` is what the rest of the package sees. It knows a problem from its description, a plain dictionary: only a
process of its own (`describe`) and the evaluation processes ever load what the user's file says, so that nothing of a
host (its imports, its print-outs, its global state) comes into this one.
"""

from ttc_esopt.problems.hosts.problem import HostProblem, is_host, open_host

__all__ = ["HostProblem", "is_host", "open_host"]
