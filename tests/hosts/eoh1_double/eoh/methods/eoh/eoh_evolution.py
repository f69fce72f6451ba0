"""Prompts, and what is read from replies."""

import re

from ...llm.interface_LLM import InterfaceLLM


class Evolution:
    def __init__(
        self, api_endpoint, api_key, model_LLM, llm_use_local, llm_local_url, debug_mode, prompts, **kwargs
    ):  # fmt: skip
        self.prompt_task = prompts.get_task()
        self.prompt_func_name = prompts.get_func_name()
        self.prompt_func_outputs = prompts.get_func_outputs()
        self.debug_mode = debug_mode
        self.interface_llm = InterfaceLLM(
            api_endpoint, api_key, model_LLM, llm_use_local, llm_local_url, debug_mode
        )  # fmt: skip

    def get_prompt_i1(self):
        return f"{self.prompt_task} Write {self.prompt_func_name}."

    def get_prompt_e1(self, indivs):
        shown = "".join(f"\n{one['algorithm']}\n{one['code']}" for one in indivs)
        return f"{self.prompt_task} Write another {self.prompt_func_name}.{shown}"

    def get_prompt_e2(self, indivs):
        return self.get_prompt_e1(indivs) + "\nUse what they share."

    def get_prompt_m1(self, indiv1):
        return self.get_prompt_e1([indiv1]) + "\nVary it."

    def get_prompt_m2(self, indiv1):
        return self.get_prompt_e1([indiv1]) + "\nChange its numbers."

    def get_prompt_m3(self, indiv1):
        return f"Make this simpler.\n{indiv1['code']}"

    def _get_alg(self, prompt_content):
        for _ in range(5):
            response = self.interface_llm.get_response(prompt_content)
            algorithm = re.findall(r"\{(.+?)\}", response)
            code = re.findall(r"def .+ return", response, re.DOTALL)
            if algorithm and code:
                break
        return [f"{code[0]} {', '.join(self.prompt_func_outputs)}", algorithm[0]]

    def _work(self, prompt_content):
        if self.debug_mode:
            input()
        return self._get_alg(prompt_content)

    def i1(self):
        return self._work(self.get_prompt_i1())

    def e1(self, parents):
        return self._work(self.get_prompt_e1(parents))

    def e2(self, parents):
        return self._work(self.get_prompt_e2(parents))

    def m1(self, parents):
        return self._work(self.get_prompt_m1(parents))

    def m2(self, parents):
        return self._work(self.get_prompt_m2(parents))

    def m3(self, parents):
        return self._work(self.get_prompt_m3(parents))
