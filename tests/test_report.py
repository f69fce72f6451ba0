"""The HTML report: one safe, self-contained page from any run folder, whole, killed early or damaged."""

from __future__ import annotations

import json
import math
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.report import write_report

CODE = "import numpy as np\n\n\ndef f(x):\n    # weigh the way home\n    return np.argmin(x - 0.2 * x.mean())\n"
EVIL = "</code></pre><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}\x1b[2J\ud800 $\\frac{"


def make_run(folder: Path, candidates: int = 120, seed: int = 1, best: float = 6.5, evil: bool = False) -> Path:
    """A run folder as `run` leaves it, with made-up numbers."""
    folder.mkdir(parents=True)
    samples, steps, timings = [], [], []
    lowest, at = 7.0044, None
    for order in range(candidates):
        written = order >= 3
        valid = not written or (order * (7 + seed)) % 10 < 3 + 4 * order / candidates
        objective = round(best + 0.9 * math.exp(-order / 40) + 0.05 * ((order * 13 + seed) % 9), 5) if valid else None
        copy = order % 6 == 0 and written and valid
        samples.append(
            {
                "order": order,
                "generation": order // 30,
                "operator": ("i1", "e1", "m1", "m2")[order % 4] if written else "seed",
                "parents": [max(0, order - 7), max(0, order - 11)][: order % 3] if written else [],
                "parent_objectives": [],
                "direction": order * 17 if order % 4 > 1 else None,
                "reply_index": 0,
                "sigma": 0.006,
                "sampling_seed": order,
                "prompt_tokens": 200,
                "tokens": 150 if written else 0,
                "finish": "stop",
                "description": EVIL if evil else f"Weigh distance and the way home, version {order}.",
                "code": CODE + (EVIL if evil else ""),
                "objective": objective,
                "failure": None if valid else ("reply", "exception", "infeasible", EVIL)[order % (4 if evil else 3)],
                "detail": "" if valid else EVIL,
                "reply": f"```python\n{CODE}```" if written else None,
                "copy_of": 2 if copy else None,
                "reward": None if objective is None else -objective,
            }  # fmt: skip
        )
        timings.append({"order": order, "generate": 2.5, "evaluate": 0.3})
        if objective is not None and objective < lowest:
            lowest, at = objective, order
    for t in range(candidates // 15):
        rewards = [-7.2 + 0.05 * t + 0.04 * ((i * 7 + t) % 5) for i in range(10)]
        steps.append(
            {
                "t": t,
                "operator": "m1",
                "orders": [t, t + 9],
                "rewards": rewards,
                "sigma": 0.003 * (1 + math.cos(math.pi * t / max(1, candidates // 15 - 1))),
                "alpha": 0.003,
                "taken": t != 2,
                "skipped": "equal rewards" if t == 2 else None,
            }
        )
        timings.append({"t": t, "step": 0.4})
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    (folder / "timings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timings))
    (folder / "run.toml").write_text(
        f'[settings]\nproblem = "tsp_construct"\nscaffold = "eoh"\nmodel = "smollm2-135m"\narm = "esopt"\n'
        f"budget = {candidates}\nseed = {seed}\nsigma = 0.006\n\n[run]\n"
        f'command = "ttc-esopt run --problem tsp_construct --esopt --seed {seed} --out demo"\n'
        '\n[versions]\nttc-esopt = "0.1.0"\n\n[model]\nfingerprint = "0123456789abcdef"\ndtype = "float32"\n'
    )
    rows = [
        {"name": "nearest neighbour", "train": 7.0044, "val": 7.01, "test": 7.0},
        {"name": "best found", "train": lowest, "val": lowest + 0.02, "test": lowest + 0.03},
    ]
    scores = {"order": at, "operator": "m1", "objective": lowest, "val": lowest + 0.02, "test": lowest + 0.03,
              "description": EVIL if evil else "Weigh distance and the way home.", "rows": rows,
              "reference": {"nearest neighbour": 7.0044}}  # fmt: skip
    (folder / "best.json").write_text(json.dumps(scores))
    (folder / "best.py").write_text(CODE, encoding="utf-8")
    return folder


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails on tags that are not closed in order."""

    VOID = {"meta", "link", "br", "img", "path", "use", "rect"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data


def page_of(*runs: Path) -> Page:
    return Page(write_report(runs, runs[0].parent / "report.html").read_text(encoding="utf-8"))


def test_a_run_gives_headline_charts_tables_code_lineage_and_command(tmp_path):
    page = page_of(make_run(tmp_path / "demo"))
    for text in (
        "tsp_construct", "smollm2-135m", "esopt", "120 of 120", "Baseline: nearest neighbour", "7.0044", "Valid share",
        "Best objective", "Sigma", "Reward spread", "Failures by kind", "infeasible", "By operator", "m2", "Lineage",
        "Weigh distance and the way home.", "np.argmin", "--esopt --seed 1 --out demo", "0123456789abcdef", "7 of 8",
    ):  # fmt: skip
        assert text in page.text, text
    charts = [attributes for tag, attributes in page.tags if tag == "div" and attributes.get("role") == "img"]
    assert len(charts) == 4 and all(len(attributes["aria-label"]) > 20 for attributes in charts)
    assert sum(tag == "svg" for tag, _ in page.tags) == 4


def test_the_page_is_self_contained_and_its_ids_are_unique(tmp_path):
    page = page_of(make_run(tmp_path / "demo"))
    for tag, attributes in page.tags:
        assert tag not in ("script", "img", "iframe", "object", "form")
        for key in ("href", "src", "data"):
            assert attributes.get(key, "#").startswith(("#", "data:,")), (tag, attributes)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "http://" not in text and "https://" not in text and "@import" not in text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"][1:] for _, attributes in page.tags if attributes.get("href", "").startswith("#")]
    assert set(targets) <= set(ids)


def test_model_written_text_is_never_markup(tmp_path):
    run = make_run(tmp_path / "demo <b>$x", evil=True)
    (run / "best.py").unlink()
    page = page_of(run, make_run(tmp_path / "other", seed=2))
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "b"}
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert "alert(1)" in page.text and "{{ 7 * 7 }}" in page.text
    assert "\x1b" not in page.text


def test_several_runs_are_overlaid_with_a_column_each(tmp_path):
    first, second = make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run", seed=2, best=6.3)
    page = page_of(first, second)
    headers = page.text.count("a/run"), page.text.count("b/run")
    assert headers[0] >= 5 and headers[1] >= 5
    assert sum(attributes.get("class") == "differs" for _, attributes in page.tags) >= 1
    assert sum(attributes.get("class") == "swatch" for _, attributes in page.tags) == 2


@pytest.mark.parametrize(
    "missing", ["run.toml", "samples.jsonl", "history.jsonl", "timings.jsonl", "best.json", "best.py"]
)
@pytest.mark.parametrize("how", ["absent", "empty", "torn", "junk"])
def test_a_folder_with_a_missing_or_damaged_file_still_gives_a_page(tmp_path, missing, how):
    run = make_run(tmp_path / "demo", candidates=40)
    file = run / missing
    data = file.read_bytes()
    if how == "absent":
        file.unlink()
    else:
        file.write_bytes(
            {"empty": b"", "torn": data[: len(data) * 2 // 3], "junk": b"\xff\x00[[[\n{\n5\n\n" + data[:100]}[how]
        )
    page = page_of(run)
    assert "demo" in page.text and "Repeat this run" in page.text


def test_a_run_killed_at_once_gives_a_page(tmp_path):
    run = tmp_path / "demo"
    run.mkdir()
    (run / "run.toml").write_text('[settings]\nproblem = "tsp_construct"\n')
    page = page_of(run)
    assert "No candidate so far." in page.text and "No valid heuristic so far." in page.text


def test_a_torn_last_line_is_counted_and_the_rest_is_shown(tmp_path):
    run = make_run(tmp_path / "demo", candidates=40)
    with open(run / "samples.jsonl", "a") as file:
        file.write('{"order": 40, "operator": "m1", "repl')
    page = page_of(run)
    assert "samples.jsonl: 1 line could not be read" in page.text and "40 of 40" in page.text


def test_values_of_unexpected_kinds_count_as_absent(tmp_path):
    run = make_run(tmp_path / "demo", candidates=20)
    odd = [
        {"order": 20, "objective": float("nan"), "parents": 5, "operator": None, "tokens": "many", "reply": 7},
        {"order": 21, "objective": 10**400, "parents": [[21], "x", 21, 99], "failure": ["list"]},
        {"order": "22", "objective": 1.0},
        [1, 2],
    ]
    with open(run / "samples.jsonl", "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in odd)
    (run / "history.jsonl").write_text(
        '{"t": "x", "rewards": [[1, null], "a"], "sigma": "big"}\n{"t": 1, "rewards": []}\n'
    )
    (run / "best.json").write_text(
        '{"order": 21, "objective": "low", "reference": [1], "rows": [5, {"name": 3}], "val": true}'
    )
    assert "demo" in page_of(run).text


def test_the_same_run_gives_the_same_bytes(tmp_path):
    run = make_run(tmp_path / "demo", candidates=40)
    first = write_report([run], tmp_path / "one.html").read_bytes()
    assert write_report([run], tmp_path / "deep" / "two.html").read_bytes() == first
    assert not list(tmp_path.glob(".*.tmp"))


def test_bad_usage_is_one_helpful_sentence(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match="holds no run"):
        write_report([tmp_path], tmp_path / "report.html")
    with pytest.raises(ConfigurationError, match="at least one run folder"):
        write_report([], tmp_path / "report.html")
    run = make_run(tmp_path / "demo", candidates=20)
    with pytest.raises(ConfigurationError, match="--out"):
        write_report([run], run / "run.toml" / "report.html")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ttc-esopt\[report\]'"):
        write_report([run], tmp_path / "report.html")
