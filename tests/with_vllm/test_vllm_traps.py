"""What goes wrong in silence without the cures of the vLLM engine: each cure is taken away, and must be missed."""

import pytest
from test_vllm_engine import GREEDY, LONG, SIGMA, STEPS, requests, texts

from ttc_esopt.engines.base import Request, Sampling
from ttc_esopt.engines.vllm_engine import VllmEngine
from ttc_esopt.errors import EngineError


def test_packed_weights_are_refused(opened, monkeypatch):
    """In float32 a CPU build packs linear weights away: noise would reach 27 of 100 parameters of this model."""
    import vllm._custom_ops as ops

    opened().close()  # the extension is imported, and has turned packing off
    monkeypatch.setattr(ops, "_supports_onednn", True)
    with pytest.raises(EngineError, match="holds no values"):
        opened()


def test_without_the_salt_the_prefix_cache_lies_after_a_step(opened, monkeypatch):
    prompt = [Request(LONG, 1)]
    oracle = opened("full", "transformers")
    ours = opened("full")
    texts(ours, prompt)
    for engine in (ours, oracle):
        engine.step([7], [SIGMA])
    assert texts(ours, prompt) == texts(oracle, prompt)
    ours.close()
    monkeypatch.setattr(VllmEngine, "_salt", lambda self, nudge: "the same")
    stale = opened("full")
    texts(stale, prompt)
    stale.step([7], [SIGMA])
    assert texts(stale, prompt) != texts(oracle, prompt)


def test_without_the_salt_the_prefix_cache_lies_between_directions(opened, monkeypatch):
    wanted = requests((7, 8))
    truth = texts(opened("full", "transformers"), wanted)
    assert texts(opened("full"), wanted) == truth
    monkeypatch.setattr(VllmEngine, "_salt", lambda self, nudge: "the same")
    assert texts(opened("full"), wanted) != truth


def test_within_a_direction_the_prefix_cache_is_used(opened):
    ours = opened("full")
    seen = []
    original = ours._reply
    ours._reply = lambda prompt, output, stops: original(prompt, output, stops)
    core = ours._core.step

    def step():
        outputs = core()
        seen.extend(output.num_cached_tokens for output in outputs if output.finished)
        return outputs

    ours._core.step = step
    texts(ours, [Request(LONG, 1, direction=7, sigma=SIGMA)])
    texts(ours, [Request(LONG, 2, direction=7, sigma=SIGMA)])
    assert seen[0] == 0 and seen[1] >= 32


def test_without_an_adapter_of_zeros_a_request_gets_the_last_one(opened, monkeypatch):
    directions = tuple(range(7, 11))
    wanted = requests((None, *directions))
    truth = texts(opened(engine="transformers"), wanted)
    assert texts(opened(batch_size=3), wanted) == truth
    original = VllmEngine._adapter
    monkeypatch.setattr(VllmEngine, "_adapter", lambda self, nudge: original(self, nudge) if nudge else None)
    assert texts(opened(batch_size=3), wanted) != truth


def test_prompts_that_are_read_in_parts_are_not_sampled_with_a_seed_on_a_cpu(opened):
    wanted = [Request(LONG + "a b c " * 20 + word, 1) for word in ("a", "b", "c")]
    sampling = Sampling(temperature=1, max_tokens=4)
    assert all(texts(opened("full"), wanted, sampling))
    parts = {"enable_chunked_prefill": True, "max_num_batched_tokens": 128}
    with pytest.raises(EngineError, match="offset"):
        texts(opened("full", args=parts), wanted, sampling)


def test_weights_are_not_written_while_requests_run(opened):
    ours = opened("full")
    ours._core.add_request(
        "left", {"prompt_token_ids": [1, 2, 3]}, ours._parameters(Request("a", 1), [1, 2, 3], GREEDY)
    )
    with pytest.raises(EngineError, match="no running request"):
        ours.step(*STEPS[0])


def test_a_reply_of_other_weights_is_noticed(opened):
    from vllm.outputs import CompletionOutput

    if "weight_versions" not in CompletionOutput.__dataclass_fields__:
        pytest.skip("this release does not say which weights wrote a reply")
    ours = opened("full")
    ours._core.engine_core.set_weight_version("other")
    with pytest.raises(EngineError, match="wrote with weights other"):
        texts(ours, [Request("a", 1)])
