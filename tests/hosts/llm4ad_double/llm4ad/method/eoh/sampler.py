"""A description in braces on one line, and the body of a function."""

from __future__ import annotations

import re

from ...base import SampleTrimmer


class EoHSampler:
    def __init__(self, llm, template_program):
        self.llm = llm
        self._template_program = template_program

    def get_thought_and_function(self, prompt):
        response = self.llm.draw_sample(prompt)
        thoughts = re.findall(r"\{.*?\}", response)
        code = SampleTrimmer.trim_preface_of_function(response)
        function = SampleTrimmer.sample_to_function(code, self._template_program)
        return thoughts[0] if thoughts else None, function
