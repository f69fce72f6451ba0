"""The part of LLM4AD that a task sees."""
