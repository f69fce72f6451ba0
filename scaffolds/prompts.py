"""Prompts in the usual frame of the field: task, parents with description and code, instruction, signature, format.

The wording is ours. With `prefill` the reply is started for the model with the code fence and the signature, which
small models need: the prompt then is as short as can be, asks for code alone, and ends with the code to be varied. For
SmolLM2-135M that matters more than the sampling settings: with the instruction behind the code, or with a task of
several sentences, most replies are no valid program.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc_esopt.problems.base import Problem
from ttc_esopt.scaffolds.base import Individual

INSTRUCTIONS = {
    "i1": "Design a heuristic for this task.",
    "e1": "Design a new heuristic whose idea is entirely different from those above.",
    "e2": "Find the idea that the heuristics above share, then design a new one that builds on it in another form.",
    "m1": "Design a modified version of this heuristic: change its form so that it makes better choices.",
    "m2": "Find the numeric parameters of this heuristic, and give a version with other values of them.",
}
SHORT_INSTRUCTIONS = {
    "i1": "Complete this function.",
    "e1": "Write a new function that works differently from these functions.",
    "e2": "Write a new function that combines the ideas of these functions.",
    "m1": "Write a modified version of this function that makes better choices.",
    "m2": "Write this function again with other numbers.",
}


# What the instructions and the format call what is to be written.
_WORDS = {
    "function": ("function", "functions", "this function"),
    "functions": ("function", "functions", "these functions"),
    "class": ("class", "classes", "this class"),
}


def signature(problem: Problem) -> str:
    """The `def` line of the problem's template, as it stands there (up to the colon that opens the body)."""
    start = problem.template.index(f"def {problem.function}")
    body = problem.template.index(":\n", start)
    return problem.template[start : body + 1]


def code_block(code: str) -> str:
    """Code in a python fence."""
    return f"```python\n{code.strip()}\n```"


def show_parents(parents: Sequence[Individual]) -> str:
    """The parents' descriptions and code, numbered when there are several."""
    blocks = []
    for number, parent in enumerate(parents, start=1):
        title = "A heuristic for it" if len(parents) == 1 else f"Heuristic {number}"
        idea = f" ({parent.description})" if parent.description else ""
        blocks.append(f"{title}{idea}:\n{code_block(parent.code)}")
    return "\n\n".join(blocks)


def build_prompt(problem: Problem, operator: str, parents: Sequence[Individual], prefill: bool) -> str:
    """The user message for one request of `operator` (i1, e1, e2, m1, m2)."""
    task = problem.task.strip()
    template = code_block(problem.template)
    words = _WORDS[problem.kind]
    if prefill:
        shown = [code_block(parent.code) for parent in parents] or [template]
        short = SHORT_INSTRUCTIONS[operator].replace("functions", words[1]).replace("function", words[0])
        return "\n".join([f"{task}\n\n{short} Answer with the code only.", *shown])
    parts = [task, show_parents(parents)] if parents else [task]
    parts += [
        INSTRUCTIONS[operator],
        "First describe the idea of your heuristic in one sentence inside braces, such as {the idea}. "
        f"Then give the code in a Python code block that implements {words[2]}:\n{template}",
        "Give no other explanations.",
    ]
    return "\n\n".join(parts)


def build_prefill(problem: Problem) -> str:
    """The start of a reply: fence, imports and signature.

    It ends at the colon, because tokenizers join the line break and the indentation that follow into one token.
    """
    opening = problem.opening or f"{problem.imports}\n\n{signature(problem)}"
    return f"```python\n{opening}"
