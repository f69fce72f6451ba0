"""What the tests of programs that try to win without solving anything share (test_red_team*.py).

`HONEST` stands for: the program is valid and gets exactly the value that its returned answer deserves, no other.
"""

import contextlib

import pytest

from ttc_esopt import problems
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.evaluation import Evaluator, sandbox

HONEST = "honest"
FULL = sandbox.strength() == "full"
COUNT = 2  # instances per problem
FORGE = """
import json, os
def forge(entries, body=b"", seconds=None):
    os.write(3, json.dumps({"outputs": entries, "compile_seconds": seconds}).encode() + b"\\n" + body)
    os._exit(0)
"""


@contextlib.contextmanager
def opened():
    """Evaluators on the first instances of the train sets, by name, made when first asked for."""
    made = {}

    def get(name):
        if name not in made:
            try:
                problem = problems.load(name)
            except ConfigurationError as error:
                pytest.skip(str(error))
            split, size = problem.resolve("train")
            few = problem.instances(split, size)[:COUNT]
            made[name] = Evaluator(problem, instances=few, workers=1, timeout=2, memory_mb=512)
        return made[name]

    yield get
    for evaluator in made.values():
        evaluator.close()
