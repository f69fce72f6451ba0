"""The page about a study, from made-up folders, and its place on the command line."""

from __future__ import annotations

import sys

import pytest
from report_folders import make_run, make_study
from test_report import Page

from ttc_esopt.cli.main import main
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.report import write_study_report


@pytest.fixture
def ttc(monkeypatch, capsys):
    """The command in this process: its exit code and what it printed."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ttc-esopt", "report", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def page_of(study):
    return Page(write_study_report(study, study.parent / "study.html").read_text(encoding="utf-8"))


def test_a_study_page_says_what_can_be_claimed_and_shows_every_run(tmp_path):
    page = page_of(make_study(tmp_path / "study", seeds=2, candidates=40))
    for text in (
        "pilot", "Does moving the model", "two CPU cores", "11 of 12", "nothing can be claimed from this study",
        "shuffled against frozen", "No difference can be claimed", "too few runs", "sign-flip", "Not compared.",
        "kp_construct esopt seed 2", "Published figures beside ours", "6.481", "the paper, table 2", "Anytime curves",
        "tsp_construct: against tokens", "kp_construct: valid share", "Area under the curve", "1 to 40", "not started",
        "tsp_construct/frozen/seed-1", "tsp_construct, esopt, seed 2", "Repeat this study", "study.toml --out NEW",
    ):  # fmt: skip
        assert text in page.text, text
    assert not {tag for tag, _ in page.tags} & {"script", "img", "a", "iframe"}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    dashes = {attributes["stroke-dasharray"] for _, attributes in page.tags if "stroke-width" in attributes
              and "stroke-dasharray" in attributes}  # fmt: skip
    assert len(dashes) >= 3


def test_six_seeds_can_show_a_difference(tmp_path, monkeypatch):
    monkeypatch.setattr("ttc_esopt.report.study.MOST_DETAILS", 0)  # charts of 36 runs take their time
    page = page_of(make_study(tmp_path / "study", seeds=6, candidates=20, missing=0))
    assert "nothing can be claimed" not in page.text and "wilcoxon" in page.text
    assert "too few runs" not in page.text and "p (Holm)" in page.text
    assert sum(attributes.get("class") == "drawing" for _, attributes in page.tags) == 8


def test_a_study_that_has_only_begun_or_is_damaged_gives_a_page(tmp_path):
    study = make_study(tmp_path / "study", seeds=1, candidates=20, missing=6)
    page = page_of(study)
    assert "0 of 6" in page.text and "no valid candidate so far" in page.text
    run = make_run(study / "tsp_construct" / "esopt" / "seed-1", candidates=20, evil=True)
    (run / "run.toml").write_text("[[[")
    with open(run / "samples.jsonl", "a") as file:
        file.write('{"order": 20, "ope')
    page = page_of(study)
    assert "run.toml is damaged" in page.text and "1 line could not be read" in page.text
    assert not {tag for tag, _ in page.tags} & {"script", "img"}


def test_report_of_a_folder_knows_a_study(tmp_path, ttc):
    study = make_study(tmp_path / "study", seeds=1, candidates=20)
    code, out, _ = ttc(study)
    assert code == 0 and out.splitlines()[-1] == f"report: {study / 'report.html'}"
    assert (study / "figures" / "anytime.csv").is_file() and "Anytime curves" in (study / "report.html").read_text()
    code, _, err = ttc(study, study / "tsp_construct" / "frozen" / "seed-1", "--out", tmp_path / "x.html")
    assert code == 2 and "give it alone" in err


def test_report_of_runs_asks_for_a_file_where_there_are_several(tmp_path, ttc):
    first, second = make_run(tmp_path / "a", 20), make_run(tmp_path / "b", 20)
    assert ttc(first)[:2] == (0, f"report: {first / 'report.html'}\n")
    code, _, err = ttc(first, second)
    assert code == 2 and "--out" in err
    code, _, err = ttc(first, "--watch", "--out", tmp_path / "x.html")
    assert code == 2 and "--watch writes no file" in err


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="holds no study"):
        write_study_report(tmp_path, tmp_path / "x.html")
