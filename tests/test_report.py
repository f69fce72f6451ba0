"""The HTML report: one safe, self-contained page from any run folder, whole, killed early or damaged."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_folders import make_run

from ttc_esopt.charts import _thinned
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.report import tables, write_report
from ttc_esopt.report.costs import ledger
from ttc_esopt.report.lineage import difference, lineage
from ttc_esopt.rundata import read_run


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
    assert len(charts) == 10 and all(len(attributes["aria-label"]) > 20 for attributes in charts)
    drawings = [attributes for tag, attributes in page.tags if tag == "svg" and attributes.get("class") != "swatch"]
    assert len(drawings) == 10


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
    swatches = [attributes for _, attributes in page.tags if attributes.get("stroke-width") == "3"]
    assert len(swatches) == 2 and len({one["stroke-dasharray"] for one in swatches}) == 2  # not by colour alone


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


def test_code_differences_from_parent_to_child_are_shown_escaped(tmp_path):
    run = make_run(tmp_path / "demo", evil=True)
    page = page_of(run)
    kinds = [attributes.get("class") for tag, attributes in page.tags if tag == "span"]
    assert kinds.count("add") >= 1 and kinds.count("del") >= 1
    assert "What changed from parent to child" in page.text and "alert(1)" in page.text
    assert "script" not in {tag for tag, _ in page.tags}


def test_a_seed_that_is_the_best_is_called_one(tmp_path):
    run = make_run(tmp_path / "demo", candidates=20)
    (run / "best.json").write_text('{"order": 1, "objective": 6.0}')
    page = page_of(run)
    assert "a seed heuristic of the problem" in page.text
    assert sum(attributes.get("class") == "seed" for _, attributes in page.tags) == 1


def test_a_long_or_wide_difference_is_cut(tmp_path):
    long = "\n".join(f"x = {i}" for i in range(3000))
    found = difference(1, long, long.replace("= ", "= 1") + "y" * 10_000)
    assert found.cut and len(found.rows) <= 400
    assert max(len(text) for _, text in difference(1, "x", "y" * 10_000).rows) <= 301
    assert difference(1, "same", "same").rows == []


def test_a_parent_that_is_its_own_ancestor_ends_the_lineage(tmp_path):
    run = make_run(tmp_path / "demo", candidates=20)
    (run / "best.json").write_text('{"order": 50, "objective": 1.0}')
    with open(run / "samples.jsonl", "a") as file:
        for order, parents in ((50, [51, 50]), (51, [50, 999])):
            line = {"order": order, "objective": 1.0, "parents": parents, "reply": "x", "code": f"x = {order}"}
            file.write(json.dumps(line) + "\n")
    found = lineage(read_run(run))
    assert [one.line["order"] for one in found] == [51, 50]
    assert [[d.parent for d in one.differences] for one in found] == [[50], [51]]


def test_operators_count_what_beat_the_parent_and_everything_before(tmp_path):
    run = read_run(make_run(tmp_path / "demo", candidates=20))
    run.samples = [
        {"order": 0, "operator": "seed", "reply": None, "objective": 5.0, "parent_objectives": []},
        {"order": 1, "operator": "m1", "reply": "", "objective": 4.0, "parent_objectives": [5.0, 4.5]},
        {"order": 2, "operator": "m1", "reply": "", "objective": 4.000000001, "parent_objectives": [4.0]},
        {"order": 3, "operator": "m1", "reply": "", "objective": 4.4, "parent_objectives": [4.5], "copy_of": 1},
        {"order": 4, "operator": "m1", "reply": "", "objective": None, "parent_objectives": [4.5]},
    ]
    rows = dict(tables.operators([run]))
    assert rows["seed"] == [["1", "1", "1", "–", "0", "5.0000"]]
    assert rows["m1"] == [["4", "3", "2", "2", "1", "4.0000"]]


def test_costs_add_up_and_flops_are_an_estimate(tmp_path):
    run = read_run(make_run(tmp_path / "demo"))
    book = ledger(run)
    assert sum(cost.written for cost in book.operators.values()) == book.total.written == 117 * 150
    assert book.total.seconds == pytest.approx({"generate": 120 * 2.5, "evaluate": 36, "step": 8 * 0.4})
    assert book.flops(book.total) == 2 * 135e6 * (120 * 200 + 117 * 150)
    assert book.total.per(book.total.valid) == pytest.approx(book.total.elapsed / book.total.valid)
    page = page_of(run.path)
    assert "FLOPs (estimate)" in page.text and "2 × parameters" in page.text


def test_both_commands_that_repeat_a_run_are_there(tmp_path):
    run = make_run(tmp_path / "demo run")
    text = page_of(run).text
    assert f"ttc-esopt run --config '{run}/run.toml' --out NEW" in text and "--esopt --seed 1 --out demo" in text
    with open(run / "run.toml", "a") as file:
        file.write('\n[run.host]\nname = "EoH"\n')
    assert "--out NEW" not in page_of(run).text


def test_a_large_run_makes_a_modest_page(tmp_path):
    path = write_report([make_run(tmp_path / "demo", candidates=1000)], tmp_path / "report.html")
    assert path.stat().st_size < 1_000_000


def test_a_cloud_of_dots_is_thinned_but_keeps_its_ends():
    dots = [(i, (i * 7919) % 10_007) for i in range(10_000)]
    kept = _thinned(dots)
    assert len(kept) <= 3002 and {min(y for _, y in dots), max(y for _, y in dots)} <= {y for _, y in kept}


def test_a_device_is_not_replaced(tmp_path):
    with pytest.raises(ConfigurationError, match="something else"):
        write_report([make_run(tmp_path / "demo", candidates=5)], Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("size", [1.7e308, 1e200, 1e151, -1.7e308])
def test_numbers_whose_squares_are_none_count_as_absent(tmp_path, size):
    run = make_run(tmp_path / "demo", candidates=20)
    lines = [json.loads(row) for row in (run / "samples.jsonl").read_text().splitlines()]
    lines[3]["objective"] = size
    (run / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "history.jsonl").write_text(
        json.dumps({"t": 0, "rewards": [[size, size]], "weights": [size], "alpha": 1.0, "taken": True, "from": 10**400})
    )
    assert write_report([run], tmp_path / "page.html").is_file()


def test_files_of_endless_brackets_are_damaged_files(tmp_path):
    run = make_run(tmp_path / "demo", candidates=20)
    (run / "best.json").write_text("[" * 100_000)
    assert "best.json is damaged" in write_report([run], tmp_path / "page.html").read_text()
