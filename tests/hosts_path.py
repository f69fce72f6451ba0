"""Doubles of hosts and their problems for tests outside tests/hosts."""

import sys
from pathlib import Path

_HOSTS = Path(__file__).parent / "hosts"
PROBLEM_DOUBLES = _HOSTS / "problem_doubles"
sys.path.insert(0, str(_HOSTS))

from eoh2_user import DOUBLE, user_script  # noqa: E402

__all__ = ["DOUBLE", "PROBLEM_DOUBLES", "user_script"]
