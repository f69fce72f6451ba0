"""KL with vLLM: close below the transformers engine's exact values, of the weights that it is said to be of."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from stand_in import Quiet, StandInEngine
from test_vllm_engine import LONG, STEPS, requests, texts
from test_vllm_runs import ttc, wide  # noqa: F401
from two_ranks import ARGS

from ttc_esopt import problems, scaffolds
from ttc_esopt.engines import vllm_divergence, vllm_worker
from ttc_esopt.engines.base import Request, Sampling
from ttc_esopt.engines.vllm_divergence import Law, lower_bound
from ttc_esopt.engines.vllm_engine import VllmEngine
from ttc_esopt.errors import EngineError
from ttc_esopt.evaluation import Evaluator
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.search import Search
from ttc_esopt.settings import resolve

SAMPLING = Sampling(temperature=1, max_tokens=24)
ALL = {"max_logprobs": -1}
ROUNDING = 2e-6  # nats per token: float32 logarithms
PROMPTS = (LONG, "import numpy")


def asked(directions=(7, 8, 9), sigma=0.02):
    return [Request(prompt, 1, direction=one, sigma=sigma) for prompt in PROMPTS for one in directions]


def written(engine):
    """One reply of the unperturbed model to each prompt."""
    return texts(engine, [Request(prompt, 1) for prompt in PROMPTS], SAMPLING)


def values(engine, replies, directions=(7, 8, 9), sigma=0.02):
    along = [reply for reply in replies for _ in directions]
    return engine.divergence(asked(directions, sigma), along, SAMPLING)


def drift(engine, replies):
    return engine.drift([Request(prompt, 1) for prompt in PROMPTS], replies, SAMPLING)


@pytest.mark.parametrize("noise", ["lowrank:2", "full"])
def test_with_all_tokens_it_is_exact_and_with_fewer_a_bound_from_below(opened, noise):
    oracle = opened(noise, "transformers")
    replies = written(oracle)
    exact = np.array(values(oracle, replies))
    assert exact.min() > 100 * ROUNDING and len(set(exact)) == 6
    found = {}
    for most in (4, 64, 256, -1):
        ours = opened(noise, args={"max_logprobs": most})
        before = ours.sha256()
        found[most] = np.array(values(ours, replies))
        assert ours.sha256() == before
        ours.close()
    assert found[-1] == pytest.approx(exact, rel=1e-4, abs=ROUNDING)
    for fewer, more in ((4, 64), (64, 256), (256, -1)):
        assert (found[fewer] < found[more] + ROUNDING).all()
    assert (found[4] > 0).all() and (found[4] < 0.9 * exact).all()  # much is merged there
    assert (found[256] > 0.9 * exact).all()


@pytest.mark.parametrize("noise", ["lowrank:1", "full"])
def test_sigma_0_is_exactly_0_beside_others(opened, noise):
    ours = opened(noise)
    replies = written(ours)
    mixed = [Request(LONG, 1, direction=7), Request(LONG, 1, direction=7, sigma=0.02), Request(LONG, 1)]
    first, second, third = ours.divergence(mixed, replies[:1] * 3, SAMPLING)
    assert first == third == 0 and second > 0
    assert ours.divergence([], [], SAMPLING) == []


@pytest.mark.parametrize("noise", ["lowrank:1", "full"])
def test_after_steps_both_engines_know_how_far_the_model_has_gone(opened, noise):
    ours, oracle = opened(noise, args=ALL), opened(noise, "transformers")
    replies = written(oracle)
    assert drift(ours, replies) == pytest.approx(0, abs=ROUNDING)
    last = 0.0
    for step in STEPS:
        for engine in (ours, oracle):
            engine.step(*step)
        found = drift(ours, replies)
        assert found == pytest.approx(drift(oracle, replies), rel=1e-4, abs=ROUNDING)
        assert found > last + 100 * ROUNDING
        assert values(ours, replies) == pytest.approx(values(oracle, replies), rel=1e-4, abs=ROUNDING)
        assert ours.fingerprint() == oracle.fingerprint()
        last = found
    assert ours.sha256() == oracle.sha256() and texts(ours, requests()) == texts(oracle, requests())
    for engine in (ours, oracle):
        engine.rewind(STEPS[:1])
    assert drift(ours, replies) == pytest.approx(drift(oracle, replies), rel=1e-4, abs=ROUNDING)


def test_the_beginning_is_that_after_steps_of_another_run(opened):
    from ttc_esopt.es.noise import NoiseKind

    ours, oracle = opened(args=ALL), opened("lowrank:1", "transformers")
    replies = written(oracle)
    for engine in (ours, oracle):
        engine.adopt(NoiseKind.parse("full"), "all", STEPS[:1])
        engine.step(*STEPS[1])
    assert drift(ours, replies) == pytest.approx(drift(oracle, replies), rel=1e-4, abs=ROUNDING)


def test_more_directions_than_adapters_fit_at_once(opened):
    ours, oracle = opened(batch_size=3, args=ALL), opened("lowrank:1", "transformers")
    replies, many = written(oracle), tuple(range(20, 29))
    assert values(ours, replies, many) == pytest.approx(values(oracle, replies, many), rel=1e-4, abs=ROUNDING)


def test_what_stands_in_the_prefix_cache_is_not_left_out(opened, monkeypatch):
    ours, oracle = opened(args=ALL), opened("lowrank:1", "transformers")
    replies = written(oracle)
    texts(ours, [Request(prompt, 1) for prompt in PROMPTS])
    texts(ours, asked())
    assert values(ours, replies) == pytest.approx(values(oracle, replies), rel=1e-4, abs=ROUNDING)
    original = ours._vllm.SamplingParams
    reading = SimpleNamespace(SamplingParams=lambda **given: original(**given, skip_reading_prefix_cache=False))
    monkeypatch.setattr(ours, "_vllm", reading)
    with pytest.raises(EngineError, match="prefix cache"):
        values(ours, replies)


def test_without_a_salt_of_its_own_the_beginning_would_be_read_later(opened, monkeypatch):
    """Keys and values of the weights at the beginning, taken for those of now."""
    oracle = opened("full", "transformers")
    oracle.step(*STEPS[0])
    prompt = [Request(LONG, 1)]

    def afterwards():
        ours = opened("full")
        ours.step(*STEPS[0])
        ours.drift(prompt, ["a b c"], SAMPLING)
        found = texts(ours, prompt)
        ours.close()
        return found

    assert afterwards() == texts(oracle, prompt)
    monkeypatch.setattr(VllmEngine, "_salt", lambda self, nudge: "the same")
    assert afterwards() != texts(oracle, prompt)


def test_with_adapters_at_the_head_the_laws_of_a_prompt_cannot_be_had(opened, monkeypatch):
    monkeypatch.setattr(vllm_worker, "bare_heads", lambda model: None)
    ours = opened()
    with pytest.raises(EngineError, match="broadcast"):
        values(ours, written(ours))


@pytest.mark.parametrize("method", ["drift", "divergence"])
def test_an_interruption_leaves_nothing_running_and_the_weights_as_they_were(opened, monkeypatch, method):
    ours, oracle = opened("full"), opened("full", "transformers")
    for engine in (ours, oracle):
        engine.step(*STEPS[0])
    replies = written(oracle)
    calls = []

    def law(*given):
        calls.append(given)
        if len(calls) == (1 if method == "drift" else 3):  # at the beginning; under the first direction
            raise KeyboardInterrupt
        return original(*given)

    original = Law.of
    monkeypatch.setattr(vllm_divergence.Law, "of", law)
    with pytest.raises(KeyboardInterrupt):
        {"drift": drift, "divergence": values}[method](ours, replies)
    assert ours.sha256() == oracle.sha256()
    assert texts(ours, requests()) == texts(oracle, requests())


def test_replies_fill_the_context_and_none_is_empty(opened):
    ours = opened("full")
    told = Request("a b c " * 20, 1, direction=7, sigma=0.02)
    assert ours.divergence([told], ["a b c " * 1000], SAMPLING)[0] > 0
    with pytest.raises(EngineError, match="at least one token"):
        ours.divergence([told], [""], SAMPLING)
    with pytest.raises(EngineError, match="leaves room"):
        ours.drift([Request("a b c " * 1000, 1)], ["a"], SAMPLING)


def listed(laws, most, drawn):
    """The likeliest tokens as vLLM tells them: the drawn one first, then the likeliest ones, in one flat list."""
    first = np.argsort(-laws, axis=1, kind="stable")[:, :most]
    tokens = np.concatenate([drawn[:, None], first], axis=1)
    logs = np.log(np.take_along_axis(laws, tokens, 1))
    starts = [0, *(np.arange(len(laws)) * tokens.shape[1])]  # nothing is told of the prompt's first token
    return SimpleNamespace(start_indices=starts, token_ids=tokens.ravel().tolist(), logprobs=logs.ravel().tolist())


@pytest.mark.parametrize("spread", [1e-4, 0.1, 1, 8])
def test_merging_tokens_never_makes_it_larger_or_negative(spread):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 4, (40, 300))
    moved = logits + spread * rng.normal(size=logits.shape)
    pair = p, q = [np.exp(one) / np.exp(one).sum(1, keepdims=True) for one in (logits, moved)]
    exact = float((p * np.log(p / q)).sum(1).mean())
    drawn = rng.integers(0, 300, 40)
    found = [lower_bound(*(Law.of(listed(one, most, drawn), 40, 300) for one in pair)) for most in (1, 10, 100, 300)]
    assert found[-1] == pytest.approx(exact, rel=1e-9, abs=1e-12)
    assert found[0] >= 0 and all(few <= more + ROUNDING for few, more in zip(found, found[1:], strict=False))


@pytest.mark.parametrize("on_cap", ["stop", "pull-back"])
def test_a_run_minds_its_cap_of_kl(opened, wide, tmp_path, monkeypatch, on_cap):  # noqa: F811
    ours = opened(model=wide, args={"max_model_len": 2048})
    monkeypatch.setattr(ours, "generate", StandInEngine().generate)  # a random model writes nothing worth a step
    problem = problems.load("tsp_construct")
    given = {
        "arm": "esopt", "budget": 48, "population": 4, "init_candidates": 4, "directions": 4, "sigma": 0.05,
        "alpha": 0.2, "seed": 3, "cap_kl": 1e-6, "on_cap": on_cap, "model": str(wide),
    }  # fmt: skip
    folder = RunFolder.create(tmp_path / "run", resolve(given), "test")
    began = ours.fingerprint()
    folder.note_model(ours.describe(), began)
    with Evaluator(problem) as evaluator:
        search = Search(folder, problem, scaffolds.build(problem, folder.settings), ours, evaluator, Quiet())
        search.run()
    lines, records = folder.diagnostics.read(), folder.history.read()
    assert lines and all(line["kl"] > 1e-6 for line in lines)
    if on_cap == "stop":
        assert "above 1e-06 (--cap-kl)" in search.stopped and len(lines) == 1
        assert ours.fingerprint() == records[-1]["fingerprint"] != began
    else:
        assert search.stopped is None and not any(record["taken"] for record in records)
        assert ours.fingerprint() == began


def test_a_probe_has_a_column_of_kl(wide, tmp_path):  # noqa: F811
    out = tmp_path / "probe"
    said = ttc(
        "probe", "--engine", "vllm", "--engine-args", json.dumps(ARGS | {"max_model_len": 2048}), "--problem",
        "tsp_construct", "--model", wide, "--sigmas", "0.01,0.05", "--directions", "2", "--replies", "2",
        "--max-tokens", "8", "--out", out,
    )  # fmt: skip
    assert "KL" in said
    none, low, high = (rung["divergence"] for rung in json.loads((out / "probe.json").read_text())["rungs"])
    assert none == 0 and 0 < low < high
