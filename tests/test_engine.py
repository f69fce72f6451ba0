import json
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import transformers
from tiny_model import make_tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from ttc_esopt import engines
from ttc_esopt.engines import Reply, Request, Sampling, load_engine
from ttc_esopt.engines.cache import BLOCK, GrowingLayer, packed
from ttc_esopt.engines.lowrank import LowRankForward
from ttc_esopt.errors import ConfigurationError, EngineError
from ttc_esopt.es import noise
from ttc_esopt.es.noise import NoiseKind

FULL, LOW, LOW3 = NoiseKind("full"), NoiseKind(), NoiseKind("lowrank", 3)
GREEDY = Sampling(temperature=0, max_tokens=24)
WARM = Sampling(temperature=1.0, top_p=0.95, max_tokens=24)
PROMPTS = ["the quick brown", "def f(x):", "a", "import numpy as np and the lazy dog jumps over it 0.25", "fox fox"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def engine_of(folder, kind=LOW, **settings):
    return load_engine(str(folder), noise=kind, device="cpu", **{"threads": 1, **settings})


@pytest.fixture(scope="module")
def low(folder):
    return engine_of(folder)


def requests(sigma=0.0, count=10):
    return [
        Request(PROMPTS[i % 5], seed=100 + i, direction=None if i % 4 == 3 else 7 * i + 1, sigma=sigma)
        for i in range(count)
    ]


def test_greedy_replies_are_those_of_transformers_generate(folder, low):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    replies = low.generate([Request(prompt, seed=1) for prompt in PROMPTS], GREEDY)
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = model.generate(**chat, max_new_tokens=24, do_sample=False)[0, chat["input_ids"].shape[1] :]
        assert reply.text == tokenizer.decode(output, skip_special_tokens=True)
        assert (reply.tokens, reply.prompt_tokens) == (len(output), chat["input_ids"].shape[1])


@pytest.mark.parametrize("kind", [FULL, LOW, LOW3], ids=str)
def test_the_same_requests_give_the_same_replies(folder, kind):
    engine = engine_of(folder, kind)
    first = engine.generate(requests(0.02), WARM)
    assert engine.generate(requests(0.02), WARM) == first
    assert engine_of(folder, kind).generate(requests(0.02), WARM) == first


def test_replies_do_not_depend_on_the_batch_size_or_the_order_of_the_requests(folder, low):
    asked = requests(0.02)
    together = low.generate(asked, WARM)
    assert [low.generate([request], WARM)[0] for request in asked] == together
    assert engine_of(folder, batch_size=3).generate(asked, WARM) == together
    assert low.generate(asked[::-1], WARM)[::-1] == together
    assert len({reply.text for reply in together}) > 5


@pytest.mark.parametrize("rank", [1, 3])
def test_a_low_rank_batch_equals_rewriting_the_weights(folder, rank):
    model = AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)
    engine = engine_of(folder, NoiseKind("lowrank", rank))
    ids = torch.randint(3, 300, (4, 9), generator=torch.Generator().manual_seed(0))
    nudges = [(1, 0.05), None, (2**63 + 5, 0.02), (1, 0.01)]
    lowrank = LowRankForward(engine._linear, NoiseKind("lowrank", rank), nudges, torch.float32)
    lowrank.columns = 9
    with torch.inference_mode(), lowrank:
        together = engine.model(ids).logits
    base = {name: p.detach().clone() for name, p in model.named_parameters()}
    for row, nudge in enumerate(nudges):
        for name in engine.weights.names:
            eps = np.zeros(base[name].shape, np.float32)
            if nudge:
                noise.fill_lowrank(eps, nudge[0], name, rank)
            model.get_parameter(name).copy_(base[name] + (nudge[1] if nudge else 0) * torch.from_numpy(eps))
        torch.testing.assert_close(together[row], model(ids[row : row + 1]).logits[0], rtol=1e-3, atol=1e-3)
    assert (together[0] - engine.model(ids).logits[0]).abs().max() > 0.1


@pytest.mark.parametrize("family", ["Qwen3_5Text", "Qwen3Next"])
def test_layers_that_carry_a_state_along_lose_finished_rows_too(folder, tmp_path, family):
    """A gated delta-net beside attention: replies of a batch, in which some end early, are those of one at a time."""
    old = json.loads((folder / "config.json").read_text())
    shape = {name: old[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    if family == "Qwen3Next":
        shape |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        shape |= {"shared_expert_intermediate_size": 32}
    config = getattr(transformers, f"{family}Config")(
        **shape, num_attention_heads=2, num_key_value_heads=2, head_dim=32, eos_token_id=0, pad_token_id=0,
        bos_token_id=None, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
        linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, initializer_range=0.3,
    )  # fmt: skip
    shutil.copytree(folder, tmp_path / "model")  # for its tokenizer
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    model = engine_of(tmp_path / "model")
    prompts = ["def f(x):", "import numpy as np " * 3, "the quick brown fox"]
    wanted = [Request(p, 1, direction=d, sigma=0.05) for p in prompts for d in (1, 2)]
    whole = [reply.text for reply in model.generate(wanted, Sampling(temperature=0, max_tokens=12))]
    stop = (whole[0][3:6],)  # some end at it
    sampling = Sampling(temperature=0, max_tokens=12, stop=stop)
    together = model.generate(wanted, sampling)
    assert len({reply.tokens for reply in together}) > 1 and len({reply.text for reply in together}) > 3
    assert [reply.text for reply in together] == [model.generate([one], sampling)[0].text for one in wanted]


def test_low_rank_and_full_noise_leave_the_weights_as_they_were(folder):
    for kind in (LOW, FULL):
        engine = engine_of(folder, kind)
        engine.step([3], [0.01])
        before = engine.sha256()
        engine.generate(requests(0.05), WARM)
        assert engine.sha256() == before


def test_full_noise_is_undone_when_writing_fails(folder):
    engine = engine_of(folder, FULL)
    before = engine.sha256()

    def fail(_):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        engine.generate([Request("a", 1, direction=5, sigma=0.5)], GREEDY, progress=fail)
    assert engine.sha256() == before


def test_sigma_zero_and_no_direction_are_the_unperturbed_model(low):
    plain = low.generate([Request("the dog", 5)], WARM)
    assert low.generate([Request("the dog", 5, direction=9, sigma=0.0)], WARM) == plain
    assert low.generate([Request("the dog", 5, direction=9, sigma=0.1)], WARM) != plain


@pytest.mark.parametrize("kind", [FULL, LOW], ids=str)
def test_a_direction_writes_what_the_model_moved_along_it_writes(folder, kind):
    engine = engine_of(folder, kind)
    asked = [Request(prompt, 3, direction=42, sigma=0.03) for prompt in PROMPTS]
    nudged = engine.generate(asked, GREEDY)
    engine.step([42], [0.03])
    assert engine.generate([Request(prompt, 3) for prompt in PROMPTS], GREEDY) == nudged


def test_a_stop_string_ends_the_reply_and_is_cut_off(low):
    whole = low.generate([Request("the quick brown", 8)], WARM)[0]
    assert len(whole.text) > 12
    stop = whole.text[6:9]
    stopping = Sampling(temperature=1.0, top_p=0.95, stop=("never~", stop))
    reply = low.generate([Request("the quick brown", 8)], stopping)[0]
    assert reply.text == whole.text[: whole.text.index(stop)]
    assert reply.finish == "stop" and reply.tokens < whole.tokens


def test_a_special_token_given_as_stop_string_ends_the_reply(low):
    plain = low.generate(requests(), Sampling(temperature=3.0, max_tokens=150))
    stopping = low.generate(requests(), Sampling(temperature=3.0, max_tokens=150, stop=("<|user|>", "<|assistant|>")))
    assert sum(reply.finish == "stop" for reply in stopping) > sum(reply.finish == "stop" for reply in plain)
    for before, after in zip(plain, stopping, strict=True):
        assert before.text.startswith(after.text) and before.tokens >= after.tokens


def test_the_end_token_and_the_token_limit_end_a_reply(low):
    replies = low.generate(requests(count=30), Sampling(temperature=2.5, max_tokens=200))
    assert {reply.finish for reply in replies} == {"stop", "length"}
    for reply in replies:
        assert (reply.tokens == 200) if reply.finish == "length" else (reply.tokens <= 200)
        assert "<|end|>" not in reply.text


def test_the_context_limits_prompt_and_reply(tmp_path):
    engine = engine_of(make_tiny_model(tmp_path, context=40))
    reply = engine.generate([Request("fox " * 10, 1)], Sampling(temperature=0, max_tokens=500))[0]
    assert reply.finish == "length" and reply.tokens == 40 - reply.prompt_tokens
    long, short = engine.generate([Request("fox " * 100, 1), Request("fox", 1)], GREEDY)
    assert (long.text, long.tokens, long.finish) == ("", 0, "length") and short.tokens > 0


def test_the_prefill_goes_before_the_reply_and_is_not_repeated(low):
    whole = low.generate([Request("the dog", 1)], GREEDY)[0]
    rest = low.generate([Request("the dog", 1, prefill=whole.text[:10])], GREEDY)[0]
    assert rest.prompt_tokens > whole.prompt_tokens and not rest.text.startswith(whole.text[:10])
    raw = Sampling(temperature=0, max_tokens=24, chat_template=False)
    joined = low.generate([Request("<|user|>the dog<|assistant|>" + whole.text[:10], 1)], raw)[0]
    assert joined == rest


def test_chat_template_arguments_reach_the_template(low):
    mood = Sampling(temperature=0, max_tokens=24, chat_template_args={"mood": "the lazy"})
    started = low.generate([Request("a", 1, prefill="the lazy")], GREEDY)
    assert low.generate([Request("a", 1)], mood) == started


def test_a_model_without_a_chat_template_says_so(folder, tmp_path):
    engine = engine_of(make_tiny_model(tmp_path))
    engine.tokenizer.chat_template = None
    with pytest.raises(EngineError, match="no chat template"):
        engine.generate([Request("a", 1)], GREEDY)


def test_progress_counts_every_token_once(low):
    counts = []
    replies = low.generate(requests(0.02), WARM, progress=counts.append)
    assert sum(counts) == sum(reply.tokens for reply in replies)


def test_no_requests_give_no_replies(low):
    assert low.generate([], GREEDY) == []


def test_equal_prompts_are_read_once(low, monkeypatch):
    seen = []
    forward = low.model.forward

    def spy(**given):
        seen.append(tuple(given["input_ids"].shape))
        return forward(**given)

    monkeypatch.setattr(low.model, "forward", spy)
    same = [Request("the dog", i) for i in range(6)]
    low.generate(same, WARM)
    assert seen[0][0] == 1 and seen[1] == (6, 1)
    seen.clear()
    low.generate([Request("the dog", i, direction=1 + i // 3, sigma=0.01) for i in range(6)], WARM)
    assert seen[0][0] == 2 and seen[1] == (6, 1)


def test_other_dtypes_work(folder):
    for dtype in ("bfloat16", "float16"):
        engine = engine_of(folder, dtype=dtype)
        replies = engine.generate(requests(0.02), WARM)
        engine.step([1], [0.01])
        assert len(replies) == 10 and engine.describe()["dtype"] == dtype
        assert isinstance(replies[0], Reply)


def test_the_description_holds_plain_values(low):
    import json

    facts = json.loads(json.dumps(low.describe()))
    assert facts["engine"] == "transformers" and facts["noise"] == "lowrank:1" and facts["scope"] == "linear"
    assert facts["parameters"] > facts["moving_parameters"] > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "llama"}, "engine of auto, transformers, vllm, got 'llama'"),
        ({"device": "tpu"}, "device auto, cpu or cuda"),
        ({"dtype": "int8"}, "got 'int8'"),
        ({"threads": 0}, "threads >= 1"),
        ({"batch_size": 0}, "batch_size >= 1"),
        ({"scope": "all"}, "scope linear for low-rank"),
    ],
)
def test_wrong_settings_are_refused(folder, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        load_engine(str(folder), **{"noise": LOW, "device": "cpu", **settings})


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_missing_cuda_device_is_refused(folder):
    with pytest.raises(ConfigurationError, match="no such CUDA device"):
        load_engine(str(folder), noise=LOW, device="cuda")


def test_a_folder_that_is_no_model_is_an_engine_error(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineError, match="could not be loaded"):
        load_engine(str(tmp_path), noise=LOW)


def test_a_cache_layer_keeps_the_states_of_the_rows_it_keeps():
    layer, generator = GrowingLayer(), torch.Generator().manual_seed(0)
    parts = [torch.randn(5, 2, n, 4, generator=generator) for n in (3, 1, BLOCK, 1)]
    for part in parts:
        keys, values = layer.update(part, part + 1)
    whole = torch.cat(parts, 2)
    assert torch.equal(keys, whole) and torch.equal(values, whole + 1) and layer.get_seq_length() == whole.shape[2]
    keep = packed([False, True, False, False, True])
    assert keep == [0, 3, 2]
    layer.batch_select_indices(torch.tensor(keep))
    layer.batch_select_indices(torch.tensor([0, 2, 2, 1]))
    expected = whole[[0, 2, 2, 3]]
    assert torch.equal(layer.keys, expected) and torch.equal(layer.values, expected + 1)
    more = torch.randn(4, 2, 1, 4, generator=generator)
    assert torch.equal(layer.update(more, more)[0], torch.cat([expected, more], 2))


@pytest.mark.parametrize("finished", [[True, False], [False, True], [True, True, False, False], [False] * 3])
def test_packing_keeps_every_unfinished_row_once(finished):
    assert sorted(packed(finished)) == [i for i, done in enumerate(finished) if not done]


@pytest.mark.parametrize(
    ("installed", "cuda", "device", "expected"),
    [
        (True, True, "auto", "vllm"), (True, True, "cuda", "vllm"), (True, True, "cuda:1", "transformers"),
        (True, True, "cpu", "transformers"), (True, False, "auto", "transformers"),
        (False, True, "auto", "transformers"),
    ],
)  # fmt: skip
def test_auto_takes_vllm_on_cuda_where_it_is_installed(monkeypatch, installed, cuda, device, expected):
    monkeypatch.setattr(engines, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert engines.resolved("auto", device) == expected
    assert engines.resolved("transformers", device) == "transformers"


def test_what_only_vllm_takes_is_refused_by_the_other_engine(folder):
    for further, flag in (({"tensor_parallel": 2}, "--tensor-parallel"), ({"engine_args": "{}"}, "--engine-args")):
        with pytest.raises(ConfigurationError, match=flag):
            load_engine(str(folder), engine="transformers", noise=LOW, **further)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is here")
def test_where_vllm_is_not_installed_the_message_says_how(folder):
    with pytest.raises(ConfigurationError, match=r"pip install 'ttc-esopt\[vllm\]'.*--engine"):
        load_engine(str(folder), engine="vllm", noise=LOW)


@pytest.mark.model
def test_the_real_model_knows_the_capital_of_france():
    engine = load_engine("smollm2-135m", noise=LOW, device="cpu", threads=1)
    reply = engine.generate([Request("What is the capital of France?", 1)], Sampling(temperature=0))[0]
    assert reply == Reply("The capital of France is Paris.", 37, 8, "stop")
    assert engine.describe()["parameters"] == 134_515_008
    asked = [Request("Write a Python function that adds two numbers.", s, direction=s, sigma=6e-3) for s in range(1, 5)]
    sampling = Sampling(temperature=0.7, top_p=0.95, max_tokens=24)
    assert engine.generate(asked, sampling) == engine.generate(asked, sampling)
