"""The remote model: out of reach in tests."""


class InterfaceLLM:
    def __init__(self, api_endpoint, api_key, model_LLM, llm_use_local, llm_local_url, debug_mode):
        if (llm_local_url if llm_use_local else api_key) in (None, "xxx"):
            exit()
        self.get_response("1+1=?")

    def get_response(self, prompt_content):
        raise ConnectionError("the double has no network")
