"""One option per setting for commands that start a search: names, defaults and help stand in `Settings` alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.models import REGISTRY
from ttc_esopt.problems.hosts.arguments import joined
from ttc_esopt.settings import FIELDS, PRESETS, flag, read_toml


def given_settings(
    config: Path | None, esopt: bool, flags: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """What a user gave: the file's settings, and over them the flags that are not None.

    Raises
    ------
    ConfigurationError
        File and flags contradict one another.
    """
    given = read_toml(config) if config else {}
    typed = {name: value for name, value in flags.items() if value not in (None, [])}
    if "problem_args" in typed:
        typed["problem_args"] = joined(typed["problem_args"])
    if esopt:
        if typed.get("arm", "esopt") != "esopt":
            raise ConfigurationError(f"--esopt means --arm esopt, but --arm {typed['arm']} is given too.")
        typed["arm"] = "esopt"
    for name, value in PRESETS.get(typed.get("preset", ""), {}).items():
        if name not in typed and given.get(name, value) != value:
            raise ConfigurationError(
                f"{config} sets {name} to {given[name]}, the preset {typed['preset']} to {value}: "
                f"take {name} out of the file, or give {flag(name)}."
            )
    if ":" in typed.get("sigma", "") and "sigma_end" in typed:
        raise ConfigurationError(f"--sigma {typed['sigma']} sets the end already, --sigma-end is given too.")
    if "sigma" in typed or "sigma_schedule" in typed:
        given.pop("sigma_end", None)  # the file's end belongs to the file's schedule
    if "model" in given and typed.get("model", given["model"]) != given["model"]:
        say(f"note: sigma, alpha and sampling are those of {config}, not of {typed['model']}")
    return given | typed


def with_settings(
    body: Callable[..., None],
    help: str,
    fixed: Sequence[tuple[str, Any, Any]],
    without: Collection[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> Callable[..., None]:
    """`body` as a command with the options `fixed` (name, type, typer's option) and one for each setting.

    Parameters
    ----------
    body : called with keyword arguments; settings that were not given are None
    help : text of --help
    fixed : the command's own arguments and options
    without : settings that are not for the user to give
    defaults : what --help says of a setting's default where the command has its own
    """
    kinds = {"str": str, "int": int, "float": float, "bool": bool}
    parameters = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=o, annotation=k) for n, k, o in fixed]
    for name, one in FIELDS.items():
        if name in without:
            continue
        kind = str if name == "sigma" else kinds[str(one.type)]
        declared = [f"{flag(name)}/--no-{name.replace('_', '-')}" if kind is bool else flag(name)]
        text = f"{one.metadata['help']} [default: {defaults.get(name) or _default(name)}]"
        if name == "problem_args":
            kind, declared, text = list[str], ["--problem-arg", flag(name)], f"{text}; may be given several times"
        option = typer.Option(None, *declared, help=text, show_default=False)
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)
        )

    def command(**values: Any) -> None:
        body(**values)

    command.__doc__ = help
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _default(name: str) -> str:
    """A setting's default for --help, and where a known model has its own."""
    own = [f"{model}: {entry.defaults[name]}" for model, entry in REGISTRY.items() if name in entry.defaults]
    return "; ".join([str(FIELDS[name].default) or "none", *own])
