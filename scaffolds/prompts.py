"""Prompts in the usual frame of the field: task, parents with description and code, instruction, signature, format.

The wording is ours. With `prefill` the reply is started for the model with the code fence and the signature, so the
prompt asks for code alone; without it the prompt asks for one sentence in braces first, then the code.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttc_esopt.problems.base import Problem
from ttc_esopt.scaffolds.base import Individual

INSTRUCTIONS = {
    "i1": "Design a heuristic for this task.",
    "e1": "Write a new heuristic whose idea is entirely different from that of the given heuristics.",
    "e2": "Find the idea that the given heuristics share, and write a new heuristic that builds on it in another form.",
    "m1": "Write a modified version of the given heuristic: change its form so that it makes better choices.",
    "m2": "Find the numeric parameters of the given heuristic and write it again with other values of them.",
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
        title = "The heuristic" if len(parents) == 1 else f"Heuristic {number}"
        idea = f" ({parent.description})" if parent.description else ""
        blocks.append(f"{title}{idea}:\n{code_block(parent.code)}")
    return "\n\n".join(blocks)


def build_prompt(problem: Problem, operator: str, parents: Sequence[Individual], prefill: bool) -> str:
    """The user message for one request of `operator` (i1, e1, e2, m1, m2)."""
    task, instruction = problem.task.strip(), INSTRUCTIONS[operator]
    template = code_block(problem.template)
    if prefill:
        # code stands last: a small model goes on from what it read last (valid replies: 9 of 16 this way, 1 of 12
        # with the instruction after the code)
        shown = show_parents(parents) if parents else f"The function to complete:\n{template}"
        return f"{task}\n\n{instruction} Answer with the code only.\n\n{shown}"
    parts = [task, show_parents(parents)] if parents else [task]
    parts += [
        instruction,
        "First describe the idea of your heuristic in one sentence inside braces, such as {the idea}. "
        f"Then give the code in a Python code block that implements this function:\n{template}",
        "Give no other explanations.",
    ]
    return "\n\n".join(parts)


def build_prefill(problem: Problem) -> str:
    """The start of a reply: fence, imports, signature and the first indentation but one space.

    The last space is left to the model, because tokenizers join it with the word that follows.
    """
    return f"```python\n{problem.imports}\n\n{signature(problem)}\n   "
