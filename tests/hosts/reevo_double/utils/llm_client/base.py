"""A client of the host-shaped double; it counts what it is asked."""


class BaseClient:
    def __init__(self, model, temperature=1.0):
        self.model, self.temperature = model, temperature
        self.asked = []

    def chat_completion(self, n, messages, temperature=None):
        raise NotImplementedError

    def multi_chat_completion(self, messages_list, n=1, temperature=None):
        replies = []
        for messages in messages_list:
            for _ in range(n):
                self.asked.append(messages)
                replies.append(f"```python\ndef grow_v2(x):\n    return x * {len(self.asked)}.5\n```")
        return replies
