class InterfaceLLM:
    def __init__(self, api_endpoint, api_key, model, use_local, local_url, timeout=60):
        raise RuntimeError("LLM API check failed: this double reaches no network.")

    def get_response(self, prompt_content):
        raise NotImplementedError
