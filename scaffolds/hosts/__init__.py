"""Attaching to somebody else's framework: what runs inside the host's own process.

Everything here is standard library only and imports neither torch nor numba: the host may fork, spawn or pickle as it
likes, and may live in another environment than the engine, which it reaches over a socket (`client`).
"""
