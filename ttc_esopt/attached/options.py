"""What a user chooses for a host: settings of ours on one side, what the host's process is told on the other."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ttc_esopt import models
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.settings import check_types, flag, resolve
from ttc_esopt.tuned import settled

HOST_OPTIONS = ("directions", "parser", "sandbox", "trust_objectives", "continue_from", "seeds")
PARSERS = ("ours", "host")
SANDBOXES = ("auto", "required", "off")
MEMORY = 4096  # MiB; a host's problem may need more than our own do


def host_options(
    given: dict[str, Any],
    *,
    directions: int | str | None = None,
    parser: str = "ours",
    sandbox: str = "auto",
    trust_objectives: bool = False,
    continue_from: str | Path | None = None,
    seeds: Sequence[str | Path] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings to resolve when the host's plan is known, and `Client.options`.

    Raises
    ------
    ConfigurationError, DataError
        A value is none that is allowed, or there is no such model or folder.
    """
    if sandbox == "auto":  # a settings file may ask for more
        sandbox = given.get("sandbox", sandbox)
    for name, value, allowed in (("parser", parser, PARSERS), ("sandbox", sandbox, SANDBOXES)):
        if value not in allowed:
            raise ConfigurationError(f"Expected {name} {', '.join(allowed)}, got {value!r} ({flag(name)}).")
    if directions is not None and directions != "host":
        try:
            given = {**given, "directions": int(directions)}
        except ValueError:
            raise ConfigurationError(f"Expected a number or host, got {directions!r} (--directions).") from None
    check_types(given)
    given = settled(dict(given))
    name = given.get("model", "smollm2-135m")
    if name not in models.REGISTRY:
        found = models.resolve(name)
        if isinstance(found, Path):
            given["model"] = str(found.resolve())
    settings = resolve(given, models.defaults(name))
    if settings.measures:
        raise ConfigurationError("Only `run` and `solve` measure steps (--diagnostics, --cap-kl, --cap-distance).")
    if seeds and continue_from is not None:
        raise ConfigurationError("Expected --seeds for a new run; --continue goes on from a population that is there.")
    if directions == "host" and settings.replies_per_direction > 1:
        raise ConfigurationError(
            "The host's own numbers have one reply per direction: --replies-per-direction 1, or --directions G."
        )
    if continue_from is not None and not Path(continue_from).exists():
        raise ConfigurationError(f"No such folder: {continue_from} (--continue).")
    options = {
        "arm": settings.arm, "directions": "host" if directions == "host" else settings.directions,
        "replies_per_direction": settings.replies_per_direction, "parser": parser,
        "es_operators": list(settings.list_of("es_operators")), "common_parent": settings.common_parent,
        "prefill": settings.prefill and parser != "host", "sandbox": sandbox,
        "memory_mb": given.get("memory_mb", MEMORY), "seed": settings.seed,
        "continue": os.path.abspath(continue_from) if continue_from is not None else None,
        "trust_objectives": trust_objectives, "seeds": [_seed(Path(file)) for file in seeds or ()],
        "model": Path(name).name,
    }  # fmt: skip
    return given, options


def _seed(file: Path) -> dict[str, str]:
    """A heuristic of the user's.

    Raises
    ------
    ConfigurationError
        The file cannot be read, or is no Python.
    """
    try:
        code = file.read_text()
        ast.parse(code)
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigurationError(f"Expected a Python program, got {file}: {error} (--seeds).") from None
    return {"description": f"The heuristic of {file.name}.", "code": code}
