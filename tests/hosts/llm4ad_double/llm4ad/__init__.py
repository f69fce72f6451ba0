"""A small stand-in for LLM4AD 1.0: the modules, names and habits of its EoH that the adapter relies on."""

__version__ = "1.0.0"
