"""Attaching to runs of other frameworks: the engine's side.

`ledger` keeps candidates, batches of directions, steps and the run folder; `desk` owns the engine; `session` is one
host's run from its announcement to its end; `service` and `http_server` are two ways to reach it.
"""
