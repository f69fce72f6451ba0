"""One text per operator."""

from __future__ import annotations


class EoHPrompt:
    @classmethod
    def get_prompt_i1(cls, task_prompt, template_function):
        return f"{task_prompt}\nWrite:\n{template_function}"

    @classmethod
    def get_prompt_e1(cls, task_prompt, indivs, template_function):
        return cls._with(task_prompt, indivs, "Write a different one")

    @classmethod
    def get_prompt_e2(cls, task_prompt, indivs, template_function):
        return cls._with(task_prompt, indivs, "Write one with the same idea")

    @classmethod
    def get_prompt_m1(cls, task_prompt, indi, template_function):
        return cls._with(task_prompt, [indi], "Modify it")

    @classmethod
    def get_prompt_m2(cls, task_prompt, indi, template_function):
        return cls._with(task_prompt, [indi], "Change its parameters")

    @classmethod
    def _with(cls, task_prompt, indivs, wish):
        return "\n".join([task_prompt, *(f"{one.algorithm}\n{one}" for one in indivs), wish])
