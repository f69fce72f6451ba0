"""The vLLM engine beside the transformers engine: the same history is the same model, and writes the same."""

import json
import shutil

import pytest
import transformers
from safetensors.torch import load_file, save_file
from two_ranks import STEPS

from ttc_esopt.engines.base import Request, Sampling
from ttc_esopt.errors import ConfigurationError, EngineError

GREEDY = Sampling(temperature=0, max_tokens=24)
LONG = "the quick brown fox jumps over the lazy dog " * 8  # two blocks of the prefix cache
SIGMA = 0.05


def requests(directions=(None, 7, 8, 9)):
    return [
        Request(prompt, 1, direction=direction, sigma=0 if direction is None else SIGMA)
        for prompt in (LONG, "import numpy")
        for direction in directions
    ]


def texts(engine, wanted, sampling=GREEDY):
    return [reply.text for reply in engine.generate(wanted, sampling)]


def alike(ours, oracle, wanted=None):
    wanted = wanted or requests()
    assert ours.fingerprint() == oracle.fingerprint()
    written = texts(ours, wanted)
    assert written == texts(oracle, wanted)
    return written


@pytest.mark.parametrize("noise", ["lowrank:1", "lowrank:2", "full"])
def test_the_same_history_is_the_same_model_and_writes_the_same(opened, noise):
    ours, oracle = opened(noise), opened(noise, "transformers")
    first = alike(ours, oracle)
    assert len(set(first[:4])) == 4  # directions differ
    for step in STEPS:
        ours.step(*step)
        oracle.step(*step)
        assert alike(ours, oracle) != first
    assert ours.sha256() == oracle.sha256()
    ours.rewind(STEPS[:1])
    oracle.rewind(STEPS[:1])
    alike(ours, oracle)
    ours.rewind([])
    assert alike(ours, opened(noise, "transformers")) == first


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_the_weights_are_the_same(opened, dtype):
    ours, oracle = opened("full", dtype=dtype), opened("full", "transformers", dtype=dtype)
    for step in STEPS:
        ours.step(*step)
        oracle.step(*step)
    assert ours.fingerprint() == oracle.fingerprint()
    before = ours.sha256()
    texts(ours, requests())  # perturbs and restores
    assert ours.sha256() == before == oracle.sha256()


def test_more_directions_than_adapters_fit_at_once(opened):
    ours, oracle = opened(batch_size=3), opened("lowrank:1", "transformers")
    alike(ours, oracle, requests((None, *range(20, 29))))
    ours.step(*STEPS[0])
    oracle.step(*STEPS[0])
    alike(ours, oracle, requests((*range(20, 29), None)))


def test_a_model_whose_embedding_is_not_tied(opened, tmp_path):
    from tiny_model import make_tiny_model

    folder = make_tiny_model(tmp_path, head_dim=32, tied=False)
    ours, oracle = opened("full", model=folder), opened("full", "transformers", model=folder)
    ours.step(*STEPS[0])
    oracle.step(*STEPS[0])
    alike(ours, oracle)


@pytest.mark.parametrize("family", ["Qwen2", "Qwen3", "Gemma3"])
def test_models_of_other_families(opened, folder, tmp_path, family):
    """Biases on q, k and v; norms of heads; four norms a layer and a scaled embedding."""
    shutil.copytree(folder, tmp_path / "model")  # for its tokenizer
    old = json.loads((folder / "config.json").read_text())
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim", "initializer_range")
    shape = {name: old[name] for name in names} | {
        "num_attention_heads": 2 if family == "Qwen2" else 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0, "tie_word_embeddings": True,
    }  # fmt: skip
    config = getattr(transformers, "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config")
    getattr(transformers, f"{family}ForCausalLM")(config(**shape)).save_pretrained(tmp_path / "model")
    for noise in ("lowrank:1", "full"):
        ours, oracle = opened(noise, model=tmp_path / "model"), opened(noise, "transformers", model=tmp_path / "model")
        for step in STEPS:
            ours.step(*step)
            oracle.step(*step)
        alike(ours, oracle)


def test_steps_of_another_run_come_first(opened):
    from ttc_esopt.es.noise import NoiseKind

    ours, oracle = opened(), opened("lowrank:1", "transformers")
    for engine in (ours, oracle):
        engine.adopt(NoiseKind.parse("full"), "all", STEPS[:1])
        engine.step(*STEPS[1])
    alike(ours, oracle)
    assert ours.describe()["base_fingerprint"] == oracle.describe()["base_fingerprint"]
    with pytest.raises(EngineError, match="has not moved yet"):
        ours.adopt(NoiseKind.parse("full"), "all", STEPS[:1])


def flat(figures):
    return {key: value for key, value in figures.items() if key != "below"} | figures["below"]


def test_how_far_the_model_has_gone(opened):
    ours, oracle = opened(), opened("lowrank:1", "transformers")
    for engine in (ours, oracle):
        for step in STEPS:
            engine.step(*step)
    assert flat(ours.measure(STEPS, 0.01)) == pytest.approx(flat(oracle.measure(STEPS, 0.01)))


def test_an_export_is_read_by_both_engines(opened, tmp_path):
    ours = opened()
    for step in STEPS:
        ours.step(*step)
    ours.export(tmp_path / "out")
    wanted = requests((None,))
    for engine in ("transformers", "vllm"):
        again = opened(engine=engine, model=tmp_path / "out")
        assert again.fingerprint() == ours.fingerprint()
        assert texts(again, wanted) == texts(ours, wanted)


def test_a_checkpoint_may_store_a_tied_head_of_its_own(opened, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    stored = load_file(tmp_path / "model" / "model.safetensors")
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"].clone()
    save_file(stored, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    ours, oracle = opened("full", model=tmp_path / "model"), opened("full", "transformers", model=tmp_path / "model")
    for step in STEPS:
        ours.step(*step)
        oracle.step(*step)
    written = alike(ours, oracle)
    ours.export(tmp_path / "out")
    again = opened("full", "transformers", model=tmp_path / "out")
    assert again.fingerprint() == ours.fingerprint() and texts(again, requests()) == written


def test_replies_depend_on_the_seed_of_the_request_alone(opened):
    ours = opened()
    sampling = Sampling(temperature=1, top_p=0.9, top_k=50, max_tokens=20)
    wanted = [Request("a b", seed, direction=d, sigma=0.01) for seed in (1, 2) for d in (5, 6)]
    first = texts(ours, wanted, sampling)
    assert texts(ours, wanted[::-1], sampling)[::-1] == first and len(set(first)) > 1


def test_stop_strings_ends_and_limits(opened):
    ours, oracle = opened(), opened(engine="transformers")
    prompt = [Request("import numpy", 1, prefill="import")]
    text = texts(oracle, prompt)[0]
    stop = text[8:11]
    stopped = Sampling(temperature=0, max_tokens=24, stop=(stop,))
    (reply,), (expected,) = ours.generate(prompt, stopped), oracle.generate(prompt, stopped)
    assert (reply.text, reply.finish) == (expected.text, "stop")  # vLLM may look a token later: bytes of one character
    full = [Request("a b c " * 400, 1)]
    assert ours.generate(full, GREEDY)[0].finish == "length" and ours.generate(full, GREEDY)[0].tokens == 0
    told = []
    ours.generate(requests(), GREEDY, told.append)
    assert sum(told) == sum(reply.tokens for reply in ours.generate(requests(), GREEDY))


def test_an_interruption_leaves_nothing_running_and_the_weights_as_they_were(opened):
    ours = opened("full")
    before = ours.sha256()

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ours.generate(requests(), GREEDY, stop)
    assert ours.sha256() == before
    assert texts(ours, requests()) == texts(opened("full", "transformers"), requests())


def test_the_record_says_what_it_was(opened):
    told = opened().describe()
    assert told["engine"] == "vllm" and told["scope"] == "linear" and told["parameters"] == 106560
    assert set(told["versions"]) == {"vllm", "torch", "transformers", "numpy"}
    assert opened().peak()["peak_mb"] > 100


def test_wrong_settings_are_said_in_a_sentence(opened):
    with pytest.raises(ConfigurationError, match="--scope"):
        opened("full", scope="lora:4")
    with pytest.raises(ConfigurationError, match="--device"):
        opened(device="cuda:1")
    with pytest.raises(EngineError, match="vLLM could not load"):
        opened(args={"no_such_argument": 1})
