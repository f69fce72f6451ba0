"""The memory plan: what it counts is what the engine then holds; what cannot fit is refused with numbers and advice."""

import dataclasses
import json
import re
import weakref

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_model import make_tiny_model
from transformers import AutoTokenizer

from ttc_esopt import models
from ttc_esopt.engines import Request, Sampling, load_engine, vllm_export
from ttc_esopt.engines.memory import MemoryPlan, delta_place_of, memory_plan, placed
from ttc_esopt.engines.place import delta_place
from ttc_esopt.errors import EngineError
from ttc_esopt.es.noise import NoiseKind
from ttc_esopt.es.shard import matrix
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.runner import say_memory
from ttc_esopt.settings import resolve

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 131072, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip


def bytes_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values() if tensor.is_floating_point())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("noise", ["full", "lowrank:1"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_plan_is_what_the_engine_holds_after_a_step(tmp_path, tied, noise, dtype):
    model = str(make_tiny_model(tmp_path / "model", tied=tied))
    plan = memory_plan(resolve({"model": model, "arm": "esopt", "noise": noise, "dtype": dtype, "device": "cpu"}))
    engine = load_engine(model, noise=NoiseKind.parse(noise), dtype=dtype, threads=1)
    engine.step([1, 2], (0.1, -0.1))
    held = engine.weights
    assert (plan.weights, plan.base, plan.delta) == (bytes_of(held.live), bytes_of(held.base), bytes_of(held.delta))
    assert plan.where == "host memory" and 0 < plan.free <= plan.total and plan.cache > 0


def test_arms_without_steps_hold_less(tmp_path):
    model = str(make_tiny_model(tmp_path / "model"))
    of = {
        (arm, noise): memory_plan(resolve({"model": model, "arm": arm, "noise": noise, "device": "cpu"}))
        for arm in ("frozen", "noise") for noise in ("full", "lowrank:1")
    }  # fmt: skip
    assert all(plan.delta == 0 for plan in of.values())
    assert [key for key, plan in of.items() if plan.base] == [("noise", "full")]
    engine = load_engine(model, noise=NoiseKind("full"), threads=1)
    engine.generate([Request("def f(x):", 1, direction=5, sigma=0.1)], Sampling(max_tokens=2))
    assert bytes_of(engine.weights.base) == of["noise", "full"].base and not engine.weights.delta


def test_an_8b_model_takes_what_the_page_of_engines_says(tmp_path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA_8B))
    given = {"model": str(tmp_path / "llama"), "arm": "esopt", "preset": "paper", "dtype": "float16", "device": "cpu"}
    plan = memory_plan(resolve(given))
    parameters = 8_030_261_248
    assert (plan.weights, plan.base, plan.delta) == (2 * parameters, 2 * parameters, 4 * parameters)
    linear = memory_plan(resolve(given | {"noise": "lowrank:1"}))
    assert linear.delta == 4 * 6_979_321_856
    assert plan.cache == 2 * 2 * 32 * 8 * 128 * 10 * (1024 + 768)  # children of e1, all at once
    small = dataclasses.replace(plan, total=24 << 30, free=23 << 30, where="cuda:0")
    with pytest.raises(EngineError, match=r"does not fit. memory in cuda:0: 62.* GiB .*--noise lowrank:1"):
        small.check()
    assert "may not fit" in dataclasses.replace(plan, total=80 << 30, free=50 << 30).check()
    assert dataclasses.replace(plan, total=80 << 30, free=79 << 30).check() is None


def pretended(monkeypatch, card, host=64 << 30):
    """A CUDA device of that many bytes, all of them free, in a host of that many."""
    monkeypatch.setattr("ttc_esopt.engines.memory.device_of", lambda text: torch.device("cuda:0"))
    rooms = {"cuda": (card, card, "cuda:0"), "cpu": (host, host, "host memory")}
    monkeypatch.setattr("ttc_esopt.engines.memory._room", lambda device: rooms[device.type])


def llama(tmp_path, **given):
    tmp_path.joinpath("config.json").write_text(json.dumps(LLAMA_8B))
    return resolve({"model": str(tmp_path), "arm": "esopt", "budget": 120, "device": "cuda", **given})


@pytest.mark.parametrize("noise", ["full", "lowrank:1"])
def test_a_card_of_24_gb_searches_with_8b_weights_because_base_and_delta_lie_on_the_host(tmp_path, monkeypatch, noise):
    pretended(monkeypatch, 24 << 30)
    plan = memory_plan(llama(tmp_path, noise=noise))
    assert plan.delta_at == "host" and plan.check() is None
    assert delta_place_of(llama(tmp_path, noise=noise)) == "host"
    moving = 8_030_261_248 if noise == "full" else 6_979_321_856
    assert (plan.base, plan.delta) == (2 * moving, 4 * moving)
    # pinned, a tensor is a power of two: those of 14336 columns or rows, and of 128256 rows, are none
    wide, vocabulary = 3 * 32 * 4096 * (16384 - 14336), 2 * 4096 * (2**17 - 128256) if noise == "full" else 0
    assert plan.beside == 6 * (moving + wide + vocabulary)
    frozen = memory_plan(llama(tmp_path, arm="frozen"))
    assert plan.model <= 1.02 * frozen.weights  # what ES adds on the card: blocks on their way
    said = r"memory in cuda:0: 1\d.*weights 15.0, .*; in host memory: .* \(--delta host: beside"
    assert re.search(said, plan.text())


def test_a_large_card_keeps_all_and_the_user_may_say_where(tmp_path, monkeypatch):
    pretended(monkeypatch, 139 << 30)
    plan = memory_plan(llama(tmp_path, noise="full"))
    assert plan.delta_at == "device" and not plan.beside and "they fit beside the weights" in plan.text()
    asked = memory_plan(llama(tmp_path, noise="full", delta="replay"))
    assert (asked.delta, asked.beside, asked.why) == (0, asked.base + asked.base_spare, "")
    assert "summed anew" in asked.text()


def test_a_host_that_is_too_small_is_refused_with_numbers_and_advice(tmp_path, monkeypatch):
    pretended(monkeypatch, 24 << 30, host=32 << 30)
    with pytest.raises(
        EngineError, match=r"in host memory: 49.5 GiB \(base 15.0, delta 29.9, pinned .* 4.\d\).*--delta replay"
    ):
        memory_plan(llama(tmp_path, noise="full")).check()
    assert memory_plan(llama(tmp_path, noise="full", delta="replay")).check() is None
    with pytest.raises(EngineError, match="--delta host keeps base and delta in host memory"):
        memory_plan(llama(tmp_path, noise="full", delta="device")).check()


def test_factors_of_scope_lora_are_all_that_moves(tmp_path, monkeypatch):
    pretended(monkeypatch, 24 << 30)
    plan = memory_plan(llama(tmp_path, noise="full", scope="lora:4"))
    numbers = 4 * 2_621_440
    assert (plan.delta, plan.base, plan.delta_at) == (4 * numbers, 2 * numbers, "device")
    assert plan.weights == 2 * (8_030_261_248 + numbers)


def test_what_is_not_there_yet_has_no_plan(tmp_path, monkeypatch):
    monkeypatch.setenv("TTC_ESOPT_CACHE", str(tmp_path / "empty"))
    assert memory_plan(resolve({"model": "smollm2-135m"})) is None
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert memory_plan(resolve({"model": str(tmp_path / "broken")})) is None
    assert not models.folder_of("smollm2-135m").exists()


def test_it_is_said_before_the_model_is_loaded(tmp_path, monkeypatch):
    model = str(make_tiny_model(tmp_path / "model"))
    folder = RunFolder.create(tmp_path / "run", resolve({"model": model, "arm": "esopt", "device": "cpu"}), "test")
    said = []
    say_memory(folder, said.append)
    assert len(said) == 1 and said[0].startswith("memory in host memory: ") and " are free" in said[0]
    monkeypatch.setattr("ttc_esopt.engines.memory._room", lambda device: (1 << 10, 1 << 12, "host memory"))
    with pytest.raises(EngineError, match="does not fit"):
        say_memory(folder, said.append)


def test_an_engine_that_fills_the_card_has_base_and_delta_on_the_host():
    plan = memory_plan_of_a_card(free=70 << 30)
    assert placed(plan, "auto").delta_at == "device"
    greedy = placed(plan, "auto", greedy=True)
    assert greedy.delta_at == "host" and "cache takes what is free" in greedy.text()
    assert placed(plan, "replay", greedy=True).delta_at == "replay"


def memory_plan_of_a_card(free):
    return MemoryPlan(
        weights=16 << 30, base=14 << 30, delta=28 << 30, cache=1 << 30, free=free, total=80 << 30, where="cuda",
        host_free=100 << 30, host_total=100 << 30,
    )  # fmt: skip


def test_engines_and_plans_choose_by_one_rule():
    assert delta_place("auto", "cpu", None) == ("device", "")
    assert delta_place("replay", "cpu", None) == ("replay", "")
    assert delta_place("auto", "cuda", None)[0] == "host" == placed(memory_plan_of_a_card(1 << 30), "auto").delta_at
    for fits, place in ((True, "device"), (False, "host")):
        chosen = delta_place("auto", "cuda", lambda fits=fits: fits)
        plan = placed(memory_plan_of_a_card((79 if fits else 50) << 30), "auto")
        assert chosen == (place, plan.why) and plan.delta_at == place


def test_factors_that_do_not_fit_are_refused():
    plan = dataclasses.replace(memory_plan_of_a_card(free=70 << 30), delta_at="host", factors=100 << 30)
    with pytest.raises(EngineError, match="smaller rank of --noise"):
        plan.check()


def test_cards_that_share_a_model_each_have_their_part_on_the_host():
    plan = dataclasses.replace(memory_plan_of_a_card(free=70 << 30), delta_at="host", share=4)
    assert plan.beside == 4 * (14 + 28 << 30) and "for each of 4 cards" in plan.text()
    with pytest.raises(EngineError, match="does not fit"):
        plan.check()


def test_blocks_of_two_ranks_become_a_checkpoint_one_shard_at_a_time(tmp_path, monkeypatch):
    source = make_tiny_model(tmp_path / "source", tied=False)
    (source / "README.md").write_text("of the source")
    (source / "LICENSE").write_text("of both")
    stored = load_file(source / "model.safetensors")
    left_out = "model.norm.weight"  # as if the engine had no copy of it
    for rank in range(2):
        blocks, places = {}, {}
        for name, tensor in stored.items():
            rows, columns = matrix(tuple(tensor.shape))
            half = rows // 2
            shape = list(tensor.shape)
            if name != left_out:
                blocks[name] = tensor.reshape(rows, columns)[rank * half : (rank + 1) * half].clone()
                places[name] = json.dumps([name, rank * half, half, 0, columns, shape, shape])
        save_file(blocks, tmp_path / f"rank{rank}.safetensors", metadata=places)
    earlier = []

    def save(tensors, file, metadata):
        assert not any(tensor() is not None for tensor in earlier)
        earlier.extend(weakref.ref(tensor) for tensor in tensors.values())
        save_file(tensors, file, metadata)

    monkeypatch.setattr("safetensors.torch.save_file", save)
    out, tokenizer = tmp_path / "out", AutoTokenizer.from_pretrained(source)
    vllm_export.export(sorted(tmp_path.glob("rank*")), source, out, [], "50KB", tokenizer)
    assert len(list(out.glob("model-*.safetensors"))) > 2 and (out / "LICENSE").exists()
    assert not (out / "README.md").exists()  # as `export` of the other engine has it
    one, other = (load_engine(str(folder), noise=NoiseKind(), threads=1) for folder in (source, out))
    assert one.fingerprint() == other.fingerprint()
    assert other.generate([Request("def f(x):", 1)], Sampling(max_tokens=4, temperature=0))
