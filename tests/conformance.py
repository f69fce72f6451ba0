"""Published programs, values and instance sets, where their folder lies beside the repository; and rules of seeds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
VALUES, DATA = SHARED / "conformance", SHARED / "data" / "ahd"
needs_values = pytest.mark.skipif(not (VALUES / "expected.json").is_file(), reason="the published values are not here")
needs_sets = pytest.mark.skipif(not DATA.is_dir(), reason="the published sets are not here")


def published(problem: str) -> dict[str, tuple[str, dict]]:
    """Of every published program: its name, its code and what is expected of it."""
    spec = importlib.util.spec_from_file_location("published_heuristics", VALUES / "heuristics.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected = json.loads((VALUES / "expected.json").read_text())[problem]
    return {name: (code, expected[name]) for name, code in module.SETTINGS[problem].items()}


def check_seeds(problem) -> None:
    """Seeds look like what the prompt shows and are short; their descriptions are one sentence."""
    for seed in problem.seeds:
        assert seed.code.startswith(problem.template.partition('"""')[0].rstrip())
        assert seed.description.count(".") == 1 and seed.description.endswith(".")
        assert len(seed.code.splitlines()) <= 10
