"""What LLM4AD keeps on disk: its log folder, the samples and populations in it, and going on in the same folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def log_folder(profiler: Any) -> str:
    """Where the host's files go; without a profiler, a new folder beside the user."""
    given = getattr(profiler, "_log_dir", None)
    return os.path.abspath(given or time.strftime("llm4ad_%Y%m%d_%H%M%S"))


def samples(folder: str) -> list[dict[str, Any]]:
    """All stored samples, in order; without the list of the best."""
    found: list[dict[str, Any]] = []
    place = Path(folder) / "samples"
    files = {int(m[1]): path for path in place.glob("*.json") if (m := re.match(r"samples_(\d+)~", path.name))}
    for _, path in sorted(files.items()):
        found += json.loads(path.read_text(encoding="utf-8"))
    return found


def score_of(sample: dict[str, Any]) -> float:
    """The host's score of a stored sample. LLM4AD's own reader takes a score of 0 for an invalid one."""
    return float("-inf") if sample["score"] is None else sample["score"]


def last_sample(folder: str) -> int:
    """The highest number of a stored sample, 0 if there is none."""
    return max((sample["sample_order"] for sample in samples(folder)), default=0)


def go_on(profiler: Any, folder: str, generation: int) -> None:
    """Have a profiler that was made for a new folder write into that of an earlier run, with its numbering."""
    if profiler is None:
        return
    made = getattr(profiler, "_log_dir", None)
    if made is not None and os.path.abspath(made) != folder:
        for empty in (os.path.join(made, "population"), made):
            with contextlib.suppress(OSError):  # it is used, or was never made
                os.rmdir(empty)
    profiler._log_dir = folder
    if hasattr(profiler, "_ckpt_dir"):
        profiler._ckpt_dir = os.path.join(folder, "population")
    os.makedirs(os.path.join(folder, "population"), exist_ok=True)
    stored = samples(folder)
    best = max((score_of(sample) for sample in stored), default=float("-inf"))
    values = {"_num_samples": last_sample(folder), "_cur_gen": generation, "_cur_best_program_score": best}
    for name, value in values.items():
        if hasattr(profiler, name):  # 1.11 counts in the class
            setattr(profiler if name in vars(profiler) else type(profiler), name, value)


def save_population(folder: str, generation: int, members: Iterable[Any]) -> None:
    """Write what EoHProfiler writes, where the user's profiler does not; only such a run can be continued."""
    path = Path(folder) / "population" / f"pop_{generation}.json"
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = [{"algorithm": one.algorithm, "function": str(one), "score": one.score} for one in members]
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_text(json.dumps(content, indent=4), encoding="utf-8")
    unfinished.replace(path)
