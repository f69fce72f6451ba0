"""Programs of ours that become the body of one function, by the host's own reading."""

from __future__ import annotations

import llm4ad_user
import pytest
from llm4ad_user import TEMPLATE

from ttc_esopt.scaffolds.hosts.llm4ad_text import CannotSplice, as_reply

host = llm4ad_user.host


@pytest.mark.parametrize(
    "code",
    [
        "def value(a, b):\n    return a + 2 * b\n",
        "def value(p, q=2):\n  if p:\n    return p + 2 * q\n",
        "value = lambda x, y: x + 2 * y\n",
        "from math import *\ndef value(a, b):\n    return sqrt(a * a) + 2 * floor(b)\n",
        "import math as m\ndef value(a, b):\n    '''Text.\n    '''\n    # why\n    return m.fsum([a, b, b])\n",
        "a = 2\ndef twice(x):\n    return a * x\ndef value(a, b):\n    return a + twice(b)\n",
        "def value(*numbers):\n    return numbers[0] + 2 * numbers[1]\n",
        "def value(a, b, c=2):\n    return a + c * b\n",
        "class Two:\n    n = 2\n\ndef value(a, b):\n    text = f'''{a}\n{b}'''.split()\n"
        "    return float(text[0]) + Two.n * b\n",
        "import functools\n@functools.lru_cache\ndef f(n):\n    return n and 2 + f(n - 1)\n"
        "def value(a, b):\n    return a + f(int(b))\n",
        "def value(a, b):\n    def keep(f):\n        return f\n    @keep\n    def g(x):\n        return 2 * x\n"
        "    return a + g(b)\n",
        "def keep(f):\n    return lambda *given: f(*given) + 8\n@keep\ndef value(a, b):\n    return a\n",
        "@njit\ndef value(a, b):\n    @keep\n    def g(x):\n        return 2 * x\n    return a + g(b)\n"
        "keep = lambda f: f\n",
        "def value(a, b):\n    @(lambda f: lambda x: 2 * f(x))\n    def g(x):\n        return x\n    return a + g(b)\n",
        "def value(a, b):\n    sep = '\x0c\u2028'\n    return a + len(sep) * b\n",
    ],
)
def test_a_program_means_the_same_inside_one_function(host, code):
    class Says(host.base.LLM):
        def draw_sample(self, prompt, *args, **kwargs):
            return as_reply(code, "an {idea}\nof mine", TEMPLATE)

    thought, function = host.method.eoh.sampler.EoHSampler(Says(), TEMPLATE).get_thought_and_function("")
    assert thought == "{an (idea) of mine}"
    convert = host.base.TextFunctionProgramConverter
    program = str(convert.function_to_program(function, convert.text_to_program(TEMPLATE)))
    namespace: dict = {}
    exec(program, namespace)
    assert namespace["value"](3.0, 4.0) == 11.0
    again = as_reply(program, None, TEMPLATE)  # what is stored can be read again
    exec(again.partition("\n")[2], namespace)
    assert namespace["value"](3.0, 4.0) == 11.0


def test_programs_that_cannot_be_moved_are_refused():
    with pytest.raises(CannotSplice, match="global variables"):
        as_reply("n = 0\ndef value(a, b):\n    global n\n    n += 1\n    return n\n", None, TEMPLATE)
    with pytest.raises(CannotSplice, match="from os import"):
        as_reply("from os import *\ndef value(a, b):\n    return a\n", None, TEMPLATE)
