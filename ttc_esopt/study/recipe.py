"""The recipe of a study: a TOML file, checked as a whole.

`read_recipe` checks everything that the file itself can show; whether each run's settings fit together, and whether
problems, models and files are there, is checked by `ttc_esopt.study.plan`. Paths in a recipe are relative to it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from ttc_esopt import problems
from ttc_esopt.comparable import IGNORABLE
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.settings import FIELDS, PRESETS, check_types, flag

COPY = "study.toml"  # the recipe in the study's folder
LOCK = ".lock"  # held while the study is at work; holds its name
TAKEN = ("cells", "figures", "logs")  # folders beside those of the problems
OF_THE_GRID = ("problem", "seed")  # settings that the grid fills
FOLDERS = ("data", "init_from")  # settings that hold a path; `problem`, `model` and `instances` are told apart below
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table", list: "a list"}


@dataclass(frozen=True)
class Arm:
    """One arm of a study.

    Attributes
    ----------
    name : str
    settings : dict
        What differs from the study's settings.
    against : tuple of str
        Arms that it is compared with.
    equal_tokens_to : str or None
        The arm whose runs write as many tokens.
    ignore : tuple of str
        What may differ in its comparisons.
    """

    name: str
    settings: dict[str, Any]
    against: tuple[str, ...] = ()
    equal_tokens_to: str | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Published:
    """A published figure, to stand beside ours; mean and best as published (scores, if `maximised`)."""

    problem: str
    arm: str
    mean: float
    split: str = "train"
    size: int | None = None
    sd: float | None = None
    best: float | None = None
    n: int | None = None
    maximised: bool = False
    source: str = ""


@dataclass(frozen=True)
class Cell:
    """One run of the grid: where it goes, and what `ttc_esopt.runner.settings_of` takes."""

    problem: str
    arm: str
    seed: int
    folder: Path
    given: dict[str, Any]

    @property
    def name(self) -> str:
        """Of its files of settings and output."""
        return f"{self.problem}-{self.arm}-{self.seed}"

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.problem} {self.arm} seed {self.seed}"


@dataclass(frozen=True)
class Recipe:
    """A study as its file says; `problems` maps labels (folder names) to problems, in order."""

    name: str
    about: str
    hardware: str
    baseline: str | None
    seeds: tuple[int, ...]
    problems: dict[str, str]
    settings: dict[str, Any]
    problem_settings: dict[str, dict[str, Any]]
    arms: dict[str, Arm]
    ignore: tuple[str, ...]
    published: tuple[Published, ...]
    path: Path
    text: str = field(repr=False)

    def cells(self, out: Path) -> list[Cell]:
        """All runs, seed by seed, so that a study that is stopped has whole repeats."""
        found = []
        for seed in self.seeds:
            for label, problem in self.problems.items():
                for arm in self.arms.values():
                    layers = (self.settings, self.problem_settings.get(label, {}), arm.settings)
                    given = {"threads": 1, **self._placed(_layered(layers, f"arm {arm.name}"))}
                    given |= {"problem": self._place_of_problem(problem), "seed": seed}
                    found.append(Cell(label, arm.name, seed, out / label / arm.name / f"seed-{seed}", given))
        return found

    def pairs(self) -> list[tuple[Arm, Arm]]:
        """Arms to be compared: (candidate, baseline)."""
        return [(arm, self.arms[other]) for arm in self.arms.values() for other in arm.against]

    def tokens_like(self, arm: Arm) -> str:
        """The arm that says, in the end, how many tokens runs of this one write: itself as a rule."""
        while arm.equal_tokens_to is not None:
            arm = self.arms[arm.equal_tokens_to]
        return arm.name

    @property
    def has_paths(self) -> bool:
        """Whether it names files or folders relative to itself, so that a copy elsewhere does not find them."""
        tables = [self.settings, *self.problem_settings.values(), *(arm.settings for arm in self.arms.values())]
        return any(self._placed(dict(table)) != table for table in tables) or any(
            self._place_of_problem(name) != name for name in self.problems.values()
        )

    @property
    def folder(self) -> Path:
        """Where its results go, if nobody says otherwise."""
        return Path("runs") / self.name

    def _placed(self, given: dict[str, Any]) -> dict[str, Any]:
        """Paths as seen from the current folder."""
        for name in FOLDERS:
            if given.get(name):
                given[name] = self._beside(given[name])
        if given.get("instances"):
            given["instances"] = os.pathsep.join(self._beside(part) for part in given["instances"].split(os.pathsep))
        if given.get("model") and is_folder(self.path.parent / given["model"]):
            given["model"] = self._beside(given["model"])
        return given

    def _place_of_problem(self, name: str) -> str:
        file, colon, rest = name.rpartition(":")
        if colon and file.endswith(".py"):
            return f"{self._beside(file)}:{rest}"
        folder = not colon and name not in problems.names() and is_folder(self.path.parent / name)
        return self._beside(name) if folder else name

    def _beside(self, path: str) -> str:
        return str(self.path.parent / path)


def is_folder(path: Path) -> bool:
    """Whether it is one; a name that no file system takes is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def read_recipe(path: Path | str) -> Recipe:
    """Read and check a recipe.

    Raises
    ------
    ConfigurationError
        The file cannot be read or is no recipe; the message names the place in it.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode()
        document = tomllib.loads(text.removeprefix("\ufeff"))  # some editors write a mark of byte order
    except OSError as error:
        raise ConfigurationError(f"Cannot read the recipe {path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}.") from None
    try:
        return _recipe(document, path, text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _recipe(document: dict[str, Any], path: Path, text: str) -> Recipe:
    kinds = {
        "name": str, "about": str, "hardware": str, "baseline": str, "seeds": list, "problems": list, "ignore": list,
        "settings": dict, "problem": dict, "arms": dict, "published": list,
    }  # fmt: skip
    if stray := next((name for name in document if name in FIELDS and name not in kinds), None):
        raise ConfigurationError(
            f"Expected {stray} in the table [settings]; a file with the settings of one run is for "
            "`ttc-esopt run --config`."
        )
    _only(document, kinds, "the recipe")
    for name, kind in kinds.items():
        if name in document:
            _of_kind(document[name], kind, name)
    folder = path.resolve().parent.name
    name = document.get("name") or (folder if path.name == COPY else path.stem)
    _folder_name(name, "name")
    labels = _problems(document.get("problems", []))
    of_problems = document.get("problem", {})
    _only(of_problems, labels, "[problem]")
    shared = _settings(document.get("settings", {}), "[settings]")
    of_problems = {label: _settings(table, f"[problem.{label}]") for label, table in of_problems.items()}
    arms, baseline = _arms(document.get("arms", {}), document.get("baseline"))
    recipe = Recipe(
        name, document.get("about", ""), document.get("hardware", ""), baseline, _seeds(document.get("seeds", [])),
        labels, shared, of_problems, arms, _ignored(document.get("ignore", []), "ignore"),
        tuple(_published(one, number) for number, one in enumerate(document.get("published", []), 1)), path, text,
    )  # fmt: skip
    for number, one in enumerate(recipe.published, 1):
        _known(one.problem, labels, f"problem of [[published]] number {number}")
        _known(one.arm, arms, f"arm of [[published]] number {number}")
    names: dict[str, Cell] = {}
    for cell in recipe.cells(Path()):
        if other := names.get(cell.name):
            raise ConfigurationError(
                f"Expected files of different names, {cell.title} and {other.title} would both have {cell.name}: "
                "rename an arm."
            )
        names[cell.name] = cell
    return recipe


def _seeds(given: list) -> tuple[int, ...]:
    for seed in given:
        _of_kind(seed, int, "each of seeds")
        if not 0 <= seed < 1 << 64:
            raise ConfigurationError(f"Expected seeds from 0 to below 2^64, got {seed}.")
        if given.count(seed) > 1:
            raise ConfigurationError(f"Expected each seed once, got {seed} {given.count(seed)} times.")
    if not given:
        raise ConfigurationError("Expected seeds, such as seeds = [1, 2, 3, 4, 5].")
    return tuple(given)


def _problems(given: list) -> dict[str, str]:
    labels: dict[str, str] = {}
    for name in given:
        _of_kind(name, str, "each of problems")
        last = name.rpartition(":")[2] if ":" in name else Path(name).name
        label = _folder_name(last, "a problem's name")
        if label in labels:
            raise ConfigurationError(f"Expected each problem once, got {label} for {labels[label]} and {name}.")
        if label in TAKEN:
            raise ConfigurationError(f"Expected a problem's name other than {', '.join(TAKEN)}, got {label}.")
        labels[label] = name
    if not labels:
        raise ConfigurationError('Expected problems, such as problems = ["tsp_construct"].')
    return labels


def _arms(tables: dict[str, Any], baseline: str | None) -> tuple[dict[str, Arm], str | None]:
    if not tables:
        raise ConfigurationError("Expected at least one arm, such as [arms.frozen].")
    explicit: dict[str, list[str]] = {}
    for name, table in tables.items():
        _folder_name(name, "an arm's name")
        _of_kind(table, dict, f"[arms.{name}]")
        if "against" in table:
            explicit[name] = [table["against"]] if isinstance(table["against"], str) else table["against"]
            _of_kind(explicit[name], list, f"against in [arms.{name}]")
            for other in explicit[name]:
                _known_arm(other, tables, f"against in [arms.{name}]")
                if other == name or explicit[name].count(other) > 1:
                    raise ConfigurationError(f"Expected against in [arms.{name}] to name other arms once, got {other}.")
                if name in explicit.get(other, []):
                    raise ConfigurationError(f"{name} and {other} are each compared with the other: drop one against.")
    baseline = baseline if baseline is not None or "frozen" not in tables else "frozen"
    if baseline is not None:
        _known_arm(baseline, tables, "baseline")
    equal: dict[str, str] = {}
    for name, table in tables.items():
        if "equal_tokens_to" in table:
            equal[name] = _known_arm(table["equal_tokens_to"], tables, f"equal_tokens_to in [arms.{name}]")
            if "max_tokens_total" in table:
                raise ConfigurationError(f"[arms.{name}] has both equal_tokens_to and max_tokens_total: drop one.")
    for name in equal:
        chain = [name]
        while (following := equal.get(chain[-1])) is not None:
            if following in chain:
                raise ConfigurationError(f"equal_tokens_to goes round in a circle: {' -> '.join([*chain, following])}.")
            chain.append(following)
    arms = {}
    for name, table in tables.items():
        against = explicit.get(name)
        if against is None:
            usual = None if name == baseline else equal.get(name) or baseline
            if usual is None and baseline is None and len(tables) > 1:
                raise ConfigurationError("Expected baseline, the arm that the others are compared with.")
            against = [usual] if usual is not None and name not in explicit.get(usual, []) else []
        own = {key: value for key, value in table.items() if key not in ("against", "equal_tokens_to", "ignore")}
        words = _ignored(table.get("ignore", []), f"ignore in [arms.{name}]")
        extra = ("against", "equal_tokens_to", "ignore")
        arms[name] = Arm(name, _settings(own, f"[arms.{name}]", extra), tuple(against), equal.get(name), words)
    return arms, baseline


def _settings(table: Any, where: str, more: Sequence[str] = ()) -> dict[str, Any]:
    _of_kind(table, dict, where)
    for name in OF_THE_GRID:
        if name in table:
            raise ConfigurationError(f"Expected no {name} in {where}: that is what {name}s at the top is for.")
    device = table.get("device", "auto")
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigurationError(f"Expected device auto, cpu or cuda in {where}, got {device}: GPUs are shared out.")
    _only(table, [*FIELDS, *more], where)
    try:
        check_types(table)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    return dict(table)


def _layered(layers: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """Settings from layers, later ones win, by the rules of --config and flags."""
    given: dict[str, Any] = {}
    for layer in layers:
        for name, value in PRESETS.get(layer.get("preset", ""), {}).items():
            if name not in layer and given.get(name, value) != value:
                raise ConfigurationError(
                    f"{where}: preset {layer['preset']} sets {name} to {value}, a table above sets it to "
                    f"{given[name]}: give {name} beside the preset ({flag(name)})."
                )
        if "sigma" in layer or "sigma_schedule" in layer:
            given.pop("sigma_end", None)  # an end belongs to its own schedule
        given |= layer
    return given


def _published(table: Any, number: int) -> Published:
    where = f"[[published]] number {number}"
    _of_kind(table, dict, where)
    known = {one.name: one for one in fields(Published)}
    _only(table, known, where)
    for name, one in known.items():
        if name not in table:
            if one.default is MISSING:
                raise ConfigurationError(f"Expected {name} in {where}.")
            continue
        kind = {"str": str, "bool": bool, "int | None": int}.get(str(one.type), float)
        _of_kind(table[name], kind, f"{name} in {where}")
    if table.get("split", "train") not in ("train", "val", "test"):
        raise ConfigurationError(f"Expected split train, val or test in {where}, got {table['split']}.")
    return Published(**table)


def _ignored(words: Any, where: str) -> tuple[str, ...]:
    _of_kind(words, list, where)
    for word in words:
        if not isinstance(word, str) or word not in IGNORABLE:
            raise ConfigurationError(f"Expected {where} among {', '.join(IGNORABLE)}, got {word!r}.")
    return tuple(words)


def _known(name: str, there: Mapping[str, Any], where: str) -> None:
    if name not in there:
        raise ConfigurationError(f"Expected a {where} that the recipe has, got {name!r}{_near(name, there)}")


def _known_arm(name: Any, tables: Mapping[str, Any], where: str) -> str:
    _of_kind(name, str, where)
    if name not in tables:
        raise ConfigurationError(f"Expected an arm as {where}, got {name!r}{_near(name, tables)}")
    return name


def _only(table: Mapping[str, Any], known: Iterator[str] | Sequence[str] | Mapping[str, Any], where: str) -> None:
    for name in table:
        if name not in known:
            raise ConfigurationError(f"Unknown key {name} in {where}{_near(name, known)}")


def _near(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(known)}." if len(known) < 16 else "."


def _of_kind(value: Any, kind: type, where: str) -> None:
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise ConfigurationError(f"Expected {where} as {_KINDS[kind]}, got {value!r}.")


def _folder_name(name: str, where: str) -> str:
    if not re.fullmatch(r"\w[\w.+-]{0,99}", name, re.ASCII):
        raise ConfigurationError(
            f"Expected {where} that can be a folder's (ASCII letters, digits, . _ + -, at most 100), got {name!r}."
        )
    return name
