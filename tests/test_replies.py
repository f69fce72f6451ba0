"""The reply parser: what it accepts, what it keeps, and that no text makes it raise or hang."""

from __future__ import annotations

import ast
import json
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc_esopt.scaffolds.replies import parse_reply

CORPUS = Path(__file__).parents[2] / "shared" / "conformance" / "replies.json"
CASES = json.loads(CORPUS.read_text())["cases"] if CORPUS.is_file() else []
SIGNATURE = "```python\nimport numpy as np\ndef f(x):\n    "


def names(code: str) -> list[str]:
    return [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]


def run(code: str, *arguments: object) -> object:
    space: dict = {}
    exec(compile(code, "reply", "exec"), space)
    return space["f"](*arguments)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_each_known_reply_yields_its_known_outcome(case):
    got = parse_reply(case["reply"], case["function"], prefill=case.get("prefill", ""))
    assert got.ok == (case["outcome"] == "ok"), got
    if not got.ok:
        assert got.reason and got.code is None and got.failure in ("reply", "syntax", "name")
        return
    compile(got.code, "reply", "exec")
    if case.get("description") is not None:
        assert got.description == case["description"]
    assert case.get("must_contain", "") in got.code
    assert "must_not_contain" not in case or case["must_not_contain"] not in got.code


def test_helpers_are_taken_by_statement_and_only_when_needed():
    got = parse_reply(
        "{a}\n```python\nimport os\nSCALE = 3\ndef f(x):\n    return 0\ndef g(x):\n    return SCALE * x\n```\n"
        "Now better:\n```python\ndef f(x):\n    return g(x) + 1\n```\nUsage:\n```python\nx = 2\nprint(f(x))\n```",
        "f",
    )
    assert run(got.code, 2) == 7
    assert names(got.code) == ["g", "f"]
    assert "os" not in got.code and "print" not in got.code and "x = 2" not in got.code


def test_a_local_name_of_the_function_does_not_pull_in_an_example():
    got = parse_reply("```\ny = undefined()\n```\n```\ndef f(x):\n    y = x + 1\n    return y\n```", "f")
    assert "undefined" not in got.code and run(got.code, 1) == 2


def test_a_helper_before_a_future_import_still_compiles():
    got = parse_reply(
        "```\nimport math\n```\n```\nfrom __future__ import annotations\ndef f(x: Any):\n    return math.floor(x)\n```",
        "f",
    )
    assert run(got.code, 1.5) == 1


def test_example_code_after_the_function_is_dropped_and_what_it_needs_is_kept():
    got = parse_reply(
        "```\ndef f(x):\n    return helper(x)\ndef helper(x):\n    return x * RATE\nRATE = 2\n"
        "import antigravity_of_some_kind\ndata = [1, 2]\nif __name__ == '__main__':\n    print(f(data))\n```",
        "f",
    )
    assert run(got.code, 4) == 8
    assert "antigravity" not in got.code and "data" not in got.code


def test_a_later_rebinding_of_the_function_is_kept():
    got = parse_reply(
        "```\ndef twice(g):\n    return lambda x: 2 * g(x)\ndef f(x):\n    return x\nf = twice(f)\n```", "f"
    )
    assert run(got.code, 4) == 8


@pytest.mark.parametrize(
    "reply",
    [
        "Sure! ```python\ndef f(x):\n    return x + 1```",
        "Sure: ```python def f(x): return x + 1```",
        "```python def f(x):\n    return x + 1\n```",
        "<code>\ndef f(x):\n    return x + 1\n</code>",
        "python\ndef f(x):\n    return x + 1",
        "```\npython\ndef f(x):\n    return x + 1\n```",
        "```\nHere it is.\n\ndef f(x):\n    return x + 1\n\nIt's done, isn't it?\n```",
        "def f(x):\n    return x + 1\n```\nThat's all.",
        "1. Code:\n\n   def f(x):\n       return x + 1\n\n   as you see.",
        "````python\ndef f(x):\n    '''\n    ```\n    f(1)\n    ```\n    '''\n    return x + 1\n````",
        "```python\ndef f(x):\n    '''\n```\n    f(1)\n```\n    '''\n    return x + 1\n```\nIt adds one.",
        "def f(x):\n    '''\n```\nf(1)\n```\n'''\n    return x + 1\n\nIt adds one.",
        "~~~ {.python}\ndef f(x):\n    return x + 1\n```\nMixed fences.",
        '```python\ndef f(x):\n    return x + 1\n```\n```text\nf(1) -> 2\n```\n```json\n{"f": 1}\n```',
        "```python\ndef f(x:\n```\nOops:\n```python\ndef f(x):\n    return x + 1\n```",
        "```python\ndef f(x):\n    return x + 1\n\ndef unfinished(",
        "f: object = lambda x: x + 1",
        "<thinking>def f(x): return 0</thinking>def f(x): return x + 1",
        "import numpy as np\n\n\n@staticmethod\ndef f(x):\n    return x + 1\nDone",
    ],
)
def test_unusual_layouts_of_the_same_program_are_read(reply):
    got = parse_reply(reply, "f")
    assert got.ok, got
    assert run(got.code, 1) == 2


@pytest.mark.parametrize(
    ("reply", "failure", "word"),
    [
        ("", "reply", "empty"),
        ("<think>all of it", "reply", "thinking"),
        ("You should return to the depot.", "reply", "no Python program"),
        ("```\ndef g(x): return x\n```", "name", "no function named f"),
        ("```\nclass A:\n    def f(self): return 1\n```", "name", "no function named f"),
        ("class A:\n    x = (\n\n    def f(self):\n        return 1\n", "syntax", "never closed"),
        ("```\nasync def f(x): return x\n```", "name", "async"),
        ("```\ndef f(x):\n    y = 1\n    z = y + (\n```", "syntax", "never closed"),
        ("def f(x):\n    return x\n    return ]", "syntax", "unmatched"),
        ("```\nreturn f(x)\n```", "syntax", "outside function"),
        ("def f(x):\n" + "    x += 1\n" * 10_000, "reply", "longer than"),
        ("def f(x): return " + "-" * 30_000 + "1", "syntax", "MemoryError"),
        ("def f(x): return x" + ".a" * 20_000, "syntax", "RecursionError"),
    ],
)
def test_a_rejection_has_a_word_and_a_sentence(reply, failure, word):
    got = parse_reply(reply, "f")
    assert not got.ok and got.code is None
    assert got.failure == failure and word in got.reason and got.reason.endswith(".")


def test_kind_class_wants_a_class():
    reply = "{idea}\n```\nimport numpy as np\nclass Solver:\n    def solve(self):\n        return np.zeros(1)\n```"
    assert parse_reply(reply, "Solver", kind="class").ok
    rejected = parse_reply("def Solver(): return 1", "Solver", kind="class")
    assert rejected.failure == "name" and "a plain class" in rejected.reason


def test_truncated_is_passed_on_and_named_in_the_reason():
    cut = parse_reply("{idea}\n```python\ndef f(x):\n    y = x + (", "f", truncated=True)
    assert cut.truncated and not cut.ok and "token limit" in cut.reason
    whole = parse_reply("{idea}\n```python\ndef f(x):\n    if x:\n        return 1", "f", truncated=True)
    assert whole.truncated and whole.ok and "return 1" in whole.code


@pytest.mark.parametrize(
    ("reply", "description"),
    [
        ("{idea}", "idea"),
        ("{first\n  line}", "first line"),
        ("I put {x} in a set.\n{Take the nearest}", "Take the nearest"),
        ("**{Take the nearest}**", "Take the nearest"),
        ("\\frac{a}{b} then {Take the nearest}", "Take the nearest"),
        ("{Use {a, {b}} first} and {more}", "Use {a, {b}} first"),
        ("{ {idea}", "idea"),
        ("{never closed", "never closed"),
        ("Take the nearest node.\nThen repeat.", "Take the nearest node. Then repeat."),
        ("Here is the code:", None),
        ("", None),
        ("{}", None),
        ("{1, 2}", None),
    ],
)
def test_the_description_stands_in_the_braces_outside_the_code(reply, description):
    got = parse_reply(reply + "\n```python\ndef f(x):\n    return {1: {2: x}}\n```\n", "f")
    if description is not None or not reply.startswith("{"):
        assert got.description == description


def test_braces_before_the_code_come_before_braces_after_it():
    code = "\n```\ndef f(x): return x\n```\n"
    assert parse_reply("Idea: {near}" + code + "{far}", "f").description == "near"
    assert parse_reply("Code:" + code + "{far}", "f").description == "far"
    assert parse_reply("Code:" + code + "It returns its argument.", "f").description == "It returns its argument."


def test_a_prefilled_reply_is_continued():
    got = parse_reply("y = np.abs(x)\n    return y\n```\nThe {absolute value}.", "f", prefill=SIGNATURE)
    assert run(got.code, -2) == 2 and got.description == "absolute value"
    started = parse_reply("nearest}\n```\ndef f(x): return x\n```", "f", prefill="{Take the ")
    assert started.description == "Take the nearest"


@pytest.mark.parametrize("fence", ["```python\n", ""])
def test_a_model_that_starts_again_keeps_the_prefilled_imports(fence):
    got = parse_reply(fence + "def f(x):\n    return np.sqrt(x)\n```\n", "f", prefill=SIGNATURE)
    assert run(got.code, 4.0) == 2.0
    assert got.code.count("def f") == 1 and "import numpy as np" in got.code


def test_a_second_version_after_a_continuation_wins():
    reply = "return 1\n```\nBetter:\n```python\ndef f(x):\n    return np.sqrt(x)\n```"
    got = parse_reply(reply, "f", prefill=SIGNATURE)
    assert "return 1" not in got.code and run(got.code, 4.0) == 2.0


def test_no_warning_of_model_written_code_is_shown():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse_reply("def f(x):\n    assert (x, 'y')\n    return '\\d' is 1", "f").ok


HOSTILE = {
    "braces": "{" * 200_000,
    "pairs of braces": "{a}" * 66_000,
    "backticks": "`" * 200_000,
    "fences": "```\n" * 20_000,
    "opened fences": "```python\ndef f(x):\n" * 10_000,
    "tildes": "~" * 200_000 + "`",
    "a fence and spaces": "```" + " " * 200_000 + "x`",
    "unclosed strings": '```python\nx="""\n' * 12_000,
    "signatures": "def f(x):\n" * 20_000,
    "versions": "def f(x): return 1\n" * 3_000,
    "decorators": "@a\n" * 20_000,
    "tags": "<think></think>" * 13_000,
    "paragraphs": "import x y\n\n" * 16_000,
    "brackets": "def f(x): return " + "(" * 200_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_replies_take_bounded_time(text):
    start = time.process_time()
    parse_reply(text, "f")
    parse_reply(text, "f", prefill=SIGNATURE)
    assert time.process_time() - start < 30  # about two seconds each on a quiet machine; quadratic would be minutes


PARTS = st.sampled_from(
    [
        "```",
        "```python\n",
        "~~~\n",
        "\n",
        "    ",
        "\t",
        "{",
        "}",
        "<think>",
        "</think>",
        '"""',
        "'",
        "(",
        ")",
        "\\",
        "\0",
        "\r",
    ]
    + [
        "def f(x):\n",
        "    return x\n",
        "f = lambda: 0\n",
        "class f:\n",
        "import numpy as np\n",
        "print(f(1))\n",
        ";",
        "#",
        "@",
        "\ud800",
    ]
)


def check(text: str, **options: object) -> None:
    got = parse_reply(text, "f", **options)
    assert got.ok == (got.code is not None) == (got.reason is None)
    if got.ok:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(got.code, "reply", "exec")


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.lists(st.one_of(PARTS, st.text(max_size=5)), max_size=40).map("".join)), st.booleans())
def test_any_text_is_accepted_or_rejected_without_a_crash(text, truncated):
    check(text, truncated=truncated)
    check(text, prefill=SIGNATURE)
    check(text, kind="class", prefill="{")


REPLIES = [case["reply"] for case in CASES] or ["{idea}\n```python\ndef f(x):\n    return x\n```"]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(REPLIES), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20), PARTS), max_size=4))
def test_damaged_replies_are_accepted_or_rejected_without_a_crash(reply, edits):
    for position, length, part in edits:
        reply = reply[:position] + part + reply[position + length :]
    check(reply)
    check(reply, prefill=SIGNATURE)
