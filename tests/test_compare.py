"""`compare` on small made-up run folders: what is compared, what is refused, what is printed."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from ttc_esopt.candidates import blank
from ttc_esopt.cli.main import main
from ttc_esopt.comparable import IGNORABLE
from ttc_esopt.compare import compare, compare_summaries
from ttc_esopt.errors import ConfigurationError
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.settings import resolve
from ttc_esopt.statistics import Summary

BASELINE = [6.60, 6.58, 6.62, 6.57, 6.61, 6.59, 6.63]
CANDIDATE = [6.51, 6.50, 6.55, 6.49, 6.50, 6.54, 6.52]


def made(path, value, seed=1, *, arm="frozen", reference=7.0, finished=True, lines=20, valid=8, tokens=50, test=True,
         failed=False, versions=None, fingerprint="0123456789abcdef", host=None, own_sets=(), **settings):  # fmt: skip
    """A run folder as a search leaves it."""
    given = {"problem": "tsp_construct", "budget": lines, "seed": seed, "arm": arm, **settings}
    folder = RunFolder.create(path, resolve(given), "ttc-esopt run")
    folder.note_model({"engine": "transformers"}, fingerprint)
    if host:
        folder.note_host({"name": host})
    written = [blank(order, 0, "i1") | {"reply": f"{path.name} {order}", "tokens": tokens} for order in range(lines)]
    for line in written:
        line |= {"objective": value + line["order"]} if line["order"] < valid else {"failure": "reply"}
    folder.samples.append(*written)
    rows = [{"name": "nearest_neighbour", "train": 7.1, "val": 7.2, "test": reference if test else None}]
    best = {"train": value - 0.1, "val": value, "test": value if test and not failed else None}
    folder.write_best(
        "def f(): pass",
        {"order": 0, "objective": best["train"], "val": best["val"], "test": best["test"], "size": 50,
         "own_sets": list(own_sets), "chosen_on": "val", "rows": [*rows, {"name": "best found", **best}]},
    )  # fmt: skip
    if finished:
        folder.note_result({"fingerprint": "00", "sha256": "00"})
    if versions:
        folder.document["versions"] |= versions
        folder.note_result(folder.document.get("result", {}))
    return path


def side(root, name, values, first_seed=1, **more):
    return [made(root / f"{name}{i}", value, first_seed + i, **more) for i, value in enumerate(values)]


@pytest.fixture
def runs(tmp_path):
    return side(tmp_path, "a", BASELINE), side(tmp_path, "b", CANDIDATE, arm="esopt")


@pytest.fixture
def ttc(monkeypatch, capsys):
    """The command in this process: what it prints on both streams, and its exit code."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ttc-esopt", "compare", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return SimpleNamespace(returncode=code, **capsys.readouterr()._asdict())

    return call


# what is compared


def test_runs_with_equal_seeds_are_pairs_and_the_best_chosen_on_val_is_compared_on_test(runs):
    result = compare(*runs)
    (one,) = result.settings
    assert (one.key.problem, one.key.split, one.key.size, one.key.method) == ("tsp_construct", "test", 50, "eoh")
    assert one.baseline.values == BASELINE and one.candidate.values == CANDIDATE
    assert one.statistics.primary.name == "wilcoxon" and one.statistics.primary.p_two_sided == 2 / 2**7
    assert one.p_holm == 2 / 2**7 and one.verdict == "better" and one.notes == []
    assert result.differences == {"arm": (["frozen"], ["esopt"])}
    assert result.tally.better == 1 and result.aggregate is None and result.notes == []


def test_the_other_way_round_it_is_worse(runs):
    assert compare(*reversed(runs)).settings[0].verdict == "worse"


def test_settings_are_never_mixed_and_make_a_family(tmp_path):
    baseline = side(tmp_path, "a", BASELINE) + side(tmp_path, "c", BASELINE, lines=40)
    baseline += side(tmp_path, "e", BASELINE, scaffold="sample")
    candidate = side(tmp_path, "b", CANDIDATE, arm="esopt") + side(tmp_path, "d", BASELINE, arm="esopt", lines=40)
    candidate += side(tmp_path, "f", [x + 0.5 for x in BASELINE], arm="esopt", scaffold="sample")
    result = compare(baseline, candidate)
    by = {(one.key.method, one.key.budget): one for one in result.settings}
    assert set(by) == {("eoh", "20 candidates"), ("eoh", "40 candidates"), ("sample", "20 candidates")}
    assert [by[key].verdict for key in sorted(by)] == ["better", "not shown", "worse"]
    assert (result.tally.better, result.tally.tie, result.tally.worse, result.tally.of) == (1, 1, 1, 3)
    assert by["eoh", "20 candidates"].p_holm == pytest.approx(3 * 2 / 2**7)
    assert result.aggregate.settings == 3 and result.aggregate.low <= result.aggregate.iqm <= result.aggregate.high
    assert "7 of 7 pairs are equal" in by["eoh", "40 candidates"].notes[0]


def test_without_a_test_set_values_are_those_of_the_search_set_and_it_says_so(tmp_path):
    result = compare(side(tmp_path, "a", BASELINE, test=False), side(tmp_path, "b", CANDIDATE, test=False, arm="noise"))
    (one,) = result.settings
    assert one.key.split == "train" and one.baseline.values[0] == pytest.approx(6.5)
    assert "no test set" in " ".join(one.notes)


def test_other_seeds_are_no_pairs_and_seeds_that_stand_twice_cannot_be(tmp_path):
    apart = compare(side(tmp_path, "a", BASELINE), side(tmp_path, "b", CANDIDATE, 100, arm="esopt")).settings[0]
    assert apart.statistics.pairs is None and apart.statistics.primary.name == "permutation"
    partly = compare(side(tmp_path, "c", BASELINE), side(tmp_path, "d", CANDIDATE, 3, arm="esopt")).settings[0]
    assert partly.statistics.pairs.n == 5 and partly.statistics.primary.name == "permutation"
    assert "only 5 seeds are on both sides" in " ".join(partly.notes)
    same = [made(tmp_path / f"s{i}", value) for i, value in enumerate(BASELINE)]
    twice = compare(same, side(tmp_path, "e", CANDIDATE, arm="esopt")).settings[0]
    assert twice.statistics.pairs is None and "seed 1 stands for several runs" in " ".join(twice.notes)


def test_valid_replies_are_counted(tmp_path):
    result = compare(
        side(tmp_path, "a", BASELINE, valid=5), side(tmp_path, "b", CANDIDATE, arm="esopt"), ks=(1, 16, 21)
    )
    one = result.settings[0]
    assert one.baseline.mean_at_k == pytest.approx(5 / 20) and one.candidate.mean_at_k == pytest.approx(8 / 20)
    assert one.baseline.pass_at_k == pytest.approx({1: 0.25, 16: 1.0, 21: None})


def test_a_comparison_that_cannot_show_anything_says_so(tmp_path):
    result = compare(side(tmp_path, "a", BASELINE[:3]), side(tmp_path, "b", CANDIDATE[:3], arm="esopt"))
    (one,) = result.settings
    assert one.verdict == "too few runs"
    assert "too few to claim anything" in one.notes[0] and "of 3 pairs cannot go below p = 0.25" in one.notes[1]
    baseline = side(tmp_path, "c", BASELINE[:6]) + side(tmp_path, "d", BASELINE[:6], lines=40)
    candidate = side(tmp_path, "e", CANDIDATE[:6], arm="esopt") + side(
        tmp_path, "f", CANDIDATE[:6], lines=40, arm="esopt"
    )
    family = compare(baseline, candidate)
    assert "Holm's correction over 2 settings asks for p < 0.025" in family.notes[0]
    assert {setting.verdict for setting in family.settings} == {"not shown"}


def test_equal_settings_on_both_sides_are_told(tmp_path):
    result = compare(side(tmp_path, "a", BASELINE), side(tmp_path, "b", CANDIDATE, 50))
    assert result.notes == ["both sides have the same settings: only the seeds differ"]


def test_a_tuned_start_is_what_is_compared_and_no_other_model(tmp_path):
    a = side(tmp_path, "a", BASELINE)
    b = side(tmp_path, "b", CANDIDATE)
    for number, path in enumerate(b):
        file = path / "run.toml"
        text = file.read_text().replace('init_from = ""', f'init_from = "/runs/{number}"')
        file.write_text(
            text.replace("[model]", '[model]\nbase_fingerprint = "0123456789abcdef"').replace(
                'fingerprint = "0123456789abcdef"\n\n', f'fingerprint = "{number:016x}"\n\n'
            )
        )
    found = compare(a, b)
    assert len(found.settings) == 1 and set(found.differences) == {"init_from"}
    assert any("counted nowhere" in note for note in found.notes)
    other = side(tmp_path, "c", BASELINE)
    (other[0] / "run.toml").write_text((b[0] / "run.toml").read_text())
    with pytest.raises(ConfigurationError, match="differ in init_from"):
        compare(a, other)


# what is refused, and the word that lets it pass


@pytest.mark.parametrize(
    ("word", "candidate", "message"),
    [
        ("budget", {"lines": 40}, "budget 20 candidates against 40 candidates"),
        ("budget", {"lines": 18, "budget": 20}, "spent 20 candidates a run, the candidate 18"),
        ("data", {"protocol": "corrected"}, "protocol published against corrected"),
        ("data", {"own_sets": ["test 50"]}, "instances none against test 50"),
        ("data", {"reference": 7.5}, "nearest_neighbour has 7 on test"),
        ("evaluator", {"versions": {"ttc-esopt": "9.9"}}, "against ttc-esopt 9.9"),
        ("evaluator", {"memory_mb": 512}, "against ttc-esopt 0.1.0, 512 MiB"),
        ("method", {"scaffold": "sample"}, "method eoh against sample"),
        ("method", {"host": "EoH 0.2"}, "method eoh against EoH 0.2"),
        ("model", {"fingerprint": "ff"}, "against smollm2-135m ff"),
        ("unfinished", {"finished": False}, "b0 is not finished: 20 candidates, and no result"),
    ],
)
def test_what_does_not_match_is_refused_unless_the_flag_names_it(tmp_path, word, candidate, message):
    left = side(tmp_path, "a", BASELINE)
    right = side(tmp_path, "b", CANDIDATE, arm="esopt", **candidate)
    with pytest.raises(ConfigurationError, match=f"--ignore {word}") as refused:
        compare(left, right)
    assert message in str(refused.value)
    result = compare(left, right, ignore=[word])
    assert result.ignored == [word] and len(result.settings) == 1
    others = set(IGNORABLE) - {word}
    with pytest.raises(ConfigurationError, match=f"--ignore {word}"):
        compare(left, right, ignore=others)


@pytest.mark.parametrize("change", [{"problem": "kp_construct"}, {"test": False}])
def test_problems_and_sets_are_never_mixed(tmp_path, change):
    left, right = side(tmp_path, "a", BASELINE), side(tmp_path, "b", CANDIDATE, **change)
    with pytest.raises(ConfigurationError, match="these are never compared"):
        compare(left, right, ignore=set(IGNORABLE))


def test_runs_of_one_side_differ_in_the_seed_alone(tmp_path):
    left = side(tmp_path, "a", BASELINE)
    right = side(tmp_path, "b", CANDIDATE, arm="esopt") + side(tmp_path, "c", CANDIDATE, 20, arm="noise")
    with pytest.raises(ConfigurationError, match=r"differ in arm: esopt .*noise .*--ignore settings"):
        compare(left, right)
    assert compare(left, right, ignore=["settings"]).settings[0].statistics.candidate.n == 14


def test_a_run_without_a_value_is_not_left_out_in_silence(tmp_path):
    left = side(tmp_path, "a", BASELINE)
    right = [*side(tmp_path, "b", CANDIDATE, arm="esopt"), made(tmp_path / "x", 6.5, 99, arm="esopt", failed=True)]
    with pytest.raises(ConfigurationError, match="invalid on the test set.*--ignore failed"):
        compare(left, right)
    result = compare(left, right, ignore=["failed"])
    assert "1 of 8 candidate runs have no value" in result.notes[0] and result.settings[0].statistics.candidate.n == 7


def test_equal_tokens_in_place_of_equal_candidates(tmp_path):
    left = side(tmp_path, "a", BASELINE, lines=40, tokens=25)
    right = side(tmp_path, "b", CANDIDATE, arm="esopt")
    with pytest.raises(ConfigurationError, match="--ignore budget"):
        compare(left, right)
    assert compare(left, right, budget_in="tokens").settings[0].baseline.tokens == 1000
    more = side(tmp_path, "c", CANDIDATE, arm="esopt", tokens=60)
    with pytest.raises(ConfigurationError, match="spent 1000 tokens a run, the candidate 1200.*within 5 %"):
        compare(left, more, budget_in="tokens")


def test_a_run_that_ended_at_its_token_limit_has_ended_where_tokens_are_the_budget(tmp_path):
    more = {"finished": False, "max_tokens_total": 1000}
    left, right = side(tmp_path, "a", BASELINE, **more), side(tmp_path, "b", CANDIDATE, arm="esopt", **more)
    assert len(compare(left, right, budget_in="tokens").settings) == 1
    with pytest.raises(ConfigurationError, match="--ignore unfinished"):
        compare(left, right)


def test_no_run_counts_twice(tmp_path, runs):
    left, right = runs
    with pytest.raises(ConfigurationError, match="a0 is given twice"):
        compare([*left, left[0]], right)
    with pytest.raises(ConfigurationError, match="a0 is given twice"):
        compare(left, [*right, left[0]])
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in left[0].iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigurationError, match="same candidates"):
        compare([*left, copy], right)


def test_folders_that_hold_no_run_or_a_damaged_one_are_named(tmp_path, runs):
    left, right = runs
    with pytest.raises(ConfigurationError, match="nowhere is nothing of that name"):
        compare([tmp_path / "nowhere"], right)
    with pytest.raises(ConfigurationError, match="is a file"):
        compare([left[0] / "run.toml"], right)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="holds no run"):
        compare([tmp_path / "empty"], right)
    with open(left[0] / "samples.jsonl", "a") as file:
        file.write('{"order": 20, "obj')
    with pytest.raises(ConfigurationError, match="a0 cannot be compared: samples.jsonl: 1 line"):
        compare(left, right)


def test_a_run_toml_with_values_of_another_kind_is_damaged(runs):
    left, right = runs
    text = (left[0] / "run.toml").read_text()
    (left[0] / "run.toml").write_text(text.replace("population = 4", "population = [4]"))
    with pytest.raises(ConfigurationError, match="run.toml is damaged: Expected population"):
        compare(left, right)


def test_problem_files_compare_wherever_they_lie(tmp_path):
    left = side(tmp_path, "a", BASELINE, problem="/here/shop.py:Shop")
    right = side(tmp_path, "b", CANDIDATE, problem="/there/shop.py:Shop", arm="esopt")
    result = compare(left, right)
    assert result.settings[0].key.problem == "shop.py:Shop" and "problem" in result.differences


# as a command


def test_the_command_prints_a_table_and_one_json(ttc, runs):
    done = ttc("--baseline", *runs[0], "--candidate", *runs[1])
    assert done.returncode == 0, done.err
    words = ["tsp_construct test 50, eoh, 20 candidates", "wilcoxon", "0.0156", "better", "Pass@10"]
    words += ["arm frozen -> esopt", "1 better, 0 tie, 0 worse of 1"]
    assert [word for word in words if word not in done.out] == []
    done = ttc("--json", "--candidate", *runs[1], f"--baseline={runs[0][0]}", *runs[0][1:], "--k", "1,4")
    found = json.loads(done.out)
    (one,) = found["settings"]
    assert one["baseline"]["mean"] == pytest.approx(6.6) and one["candidate"]["n"] == 7
    assert one["decides"] == "wilcoxon" and one["p_holm"] == 2 / 2**7 and one["verdict"] == "better"
    assert set(one["candidate"]["pass_at_k"]) == {"1", "4"} and one["shift"]["low"] <= one["shift"]["estimate"]
    assert one["student"]["p"] < 0.001 and one["welch"]["p"] < 0.001 and one["a12"] == 1.0
    assert found["family"] == {"size": 1, "correction": "holm", "alpha": 0.05}


def test_many_settings_get_a_row_each(ttc, tmp_path):
    budgets = (20, 22, 24, 26)
    left = [path for n in budgets for path in side(tmp_path, f"a{n}-", BASELINE[:2], lines=n)]
    right = [path for n in budgets for path in side(tmp_path, f"b{n}-", CANDIDATE[:2], lines=n, arm="esopt")]
    done = ttc("--baseline", *left, "--candidate", *right)
    assert done.returncode == 0, done.err
    rows = [line for line in done.out.splitlines() if line.startswith("tsp_construct test 50")]
    assert len(rows) == 4 and all("too few runs" in row for row in rows)
    assert "gain across 4 settings" in done.out and "4 better, 0 tie, 0 worse of 4" in done.out


@pytest.mark.parametrize(
    ("arguments", "p", "t"),
    [
        (("6.5517,0.0729,20", "6.5007,0.0868,20"), "0.0257", "-2.0121"),
        (("40.1562,0.0024,20", "40.1578,0.0017,20", "--maximise"), "0.0099", "2.4329"),
        (("-40.1562,0.0024,20", "-40.1578,0.0017,20"), "0.0099", "-2.4329"),
    ],
)
def test_the_published_tests_are_reproduced(ttc, arguments, p, t):
    done = ttc("--summary", *arguments)
    row = next(line.split() for line in done.out.splitlines() if line.startswith("t-test, equal variance"))
    assert row[-3:] == [t, "38", p]
    found = json.loads(ttc("--summary", *arguments, "--json").out)
    assert f"{found['student']['p']:.4f}" == p and found["notes"] == []


def test_summaries_from_python():
    found = compare_summaries(Summary(1.0, 0.1, 3), Summary(0.5, 0.1, 3))
    assert found.student.p < 0.01 and "too few to claim anything" in found.notes()[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Expected --baseline DIR... and --candidate DIR..., or --summary."),
        (("--baseline", "a"), "Expected --baseline DIR... and --candidate DIR..."),
        (("--baseline", "a", "--candidate", "b"), "a is nothing of that name"),
        (("--baseline", "a", "--candidate", "b", "--ignore", "seeds"), "Expected one of budget, data"),
        (("--baseline", "a", "--candidate", "b", "--budget-in", "hours"), "Expected one of candidates, tokens"),
        (("--baseline", "a", "--candidate", "b", "--k", "x"), "--k"),
        (("--baseline", "a", "--candidate", "b", "--maximise"), "--maximise is for --summary"),
        (("--summary", "1,1,3", "1,1"), "Expected MEAN,SD,N such as 6.55,0.07,20, got 1,1"),
        (("--summary", "1,1,3", "1,1,3", "--baseline", "a"), "either --summary or run folders"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(ttc, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = ttc(*arguments)
    assert done.returncode == 2 and message in done.err and "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_the_command_starts_neither_torch_nor_numba():
    code = (
        "import sys; sys.argv[1:] = ['compare', '--summary', '1,1,3', '2,1,3']; from ttc_esopt.cli.main import main; "
    )
    code += "main(); assert not {'torch', 'numba'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Welch" in done.stdout, done.stderr
