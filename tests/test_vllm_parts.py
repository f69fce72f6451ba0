"""What the vLLM engine has of its own for experts on CPUs and for types, with stand-ins for vLLM's modules."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
import transformers
from tiny_model import make_tiny_model
from torch import nn
from worker_modules import RoutedExperts

from ttc_esopt.engines.views import Piece
from ttc_esopt.engines.vllm_experts import keep_experts_live, refuse_packed
from ttc_esopt.engines.wide import narrowed
from ttc_esopt.errors import EngineError
from ttc_esopt.es.shard import Shard

FUSED = "vllm.model_executor.layers.fused_moe"


def stand_in(monkeypatch, without=""):
    """The modules of vLLM that are changed, less one name; the class of the kernel, and what would be changed."""
    kernel = type("Experts", (), {"process_weights_after_loading": "pack", "apply": "packed"})
    held = {
        f"{FUSED}.experts.cpu_moe": {"CPUUnquantizedExperts": kernel},
        f"{FUSED}.unquantized_fused_moe_method": {"select_unquantized_moe_backend": "choose"},
        "vllm.lora.model_manager": {"is_supported_lora_module": "supports"},
    }
    modules = {}
    for path, names in held.items():
        words = path.split(".")
        for count in range(1, len(words) + 1):
            name = ".".join(words[:count])
            if name not in modules:
                modules[name] = ModuleType(name)
                monkeypatch.setitem(sys.modules, name, modules[name])
                if count > 1:
                    setattr(modules[".".join(words[: count - 1])], words[count - 1], modules[name])
        for name, value in names.items():
            if name != without:
                setattr(modules[path], name, value)
    if hasattr(kernel, without):
        delattr(kernel, without)
    return kernel, [modules[path] for path in held]


def state(kernel, modules):
    return {**vars(kernel)}, [{**vars(module)} for module in modules]


@pytest.mark.parametrize(
    "name",
    [
        "CPUUnquantizedExperts", "select_unquantized_moe_backend", "is_supported_lora_module", "apply",
        "process_weights_after_loading",
    ],
)  # fmt: skip
def test_a_release_with_other_names_is_left_as_it_is_and_its_experts_are_refused(monkeypatch, name):
    parts = stand_in(monkeypatch, without=name)
    before = state(*parts)
    live = keep_experts_live()
    assert not live and state(*parts) == before
    dense, sparse = nn.Linear(2, 2), nn.Module()
    sparse.add_module("experts", RoutedExperts(*torch.ones(3, 2, 4, 4), 0, 1))
    refuse_packed(dense, live)
    refuse_packed(sparse, True)
    with pytest.raises(EngineError, match=r"version 0.32 has them \(experts\).*--engine transformers"):
        refuse_packed(sparse, live)


def test_experts_of_gpt_oss_on_cpus_compute_what_those_of_transformers_do(monkeypatch):
    kernel, _ = stand_in(monkeypatch)
    assert keep_experts_live()
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        vocab_size=9, hidden_size=12, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, head_dim=6, num_local_experts=4, num_experts_per_tok=2, pad_token_id=0,
    )  # fmt: skip
    theirs = transformers.GptOssForCausalLM(config).model.layers[0].mlp.experts
    for tensor in theirs.parameters():
        tensor.data.normal_(std=3)  # far enough for values that are cut off
    chosen, shares = torch.tensor([[0, 3], [1, 0], [3, 2], [2, 1], [0, 1]]), torch.rand(5, 2)
    states, output = torch.randn(5, 12), torch.full((5, 12), 9.0)
    ours = kernel()
    ours.w1_bias, ours.w2_bias = theirs.gate_up_proj_bias, theirs.down_proj_bias
    with torch.inference_mode():
        w1, w2 = theirs.gate_up_proj.transpose(1, 2), theirs.down_proj.transpose(1, 2)
        ours.apply(output, states, w1, w2, shares, chosen, SimpleNamespace(name="SWIGLUOAI"))
        assert torch.allclose(output, theirs(states, chosen, shares), rtol=1e-4, atol=1e-3)
    with pytest.raises(NotImplementedError, match="got RELU2"):
        ours.apply(output, states, w1, w2, shares, chosen, SimpleNamespace(name="RELU2"))


def pieces(dtype, *names, **others):
    held = dict.fromkeys(names, dtype) | others
    return {n: Piece(torch.full((2,), 1 / 3, dtype=d), Shard.whole((2,)), False, n) for n, d in held.items()}


def test_what_transformers_keeps_in_float32_and_vllm_does_not_is_refused(tmp_path):
    """The norms of gpt-oss in float16; what is held in float32 for no reason of theirs is narrowed."""
    config = {"model_type": "gpt_oss", "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 9, "num_local_experts": 2}))
    half = pieces(torch.float16, "model.norm.weight", "model.embed_tokens.weight")
    with pytest.raises(EngineError, match="model.norm.weight in float32.*model of float16, got float16.*--dtype"):
        narrowed(half, torch.float16, tmp_path)
    assert narrowed(pieces(torch.bfloat16, *half), torch.bfloat16, tmp_path)[1] == []
    assert narrowed(pieces(torch.float32, *half), torch.float32, tmp_path)[1] == []
    made, shown = narrowed(pieces(torch.float32, *half), torch.float16, tmp_path)
    assert [made[name].tensor.dtype for name in half] == [torch.float32, torch.float16] and len(shown) == 1


def test_of_a_model_that_transformers_has_no_class_for_nothing_is_kept(tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "of_another_time"}))
    made, shown = narrowed(pieces(torch.bfloat16, "a", b=torch.float32), torch.bfloat16, folder)
    assert {name: piece.tensor.dtype for name, piece in made.items()} == dict.fromkeys("ab", torch.bfloat16)
    assert len(shown) == 1


def test_a_class_that_cannot_be_made_is_refused(tmp_path, monkeypatch):
    def fail(config):
        raise ImportError("needs another package")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_config", fail)
    folder = make_tiny_model(tmp_path / "model")
    assert len(narrowed(pieces(torch.float32, "a"), torch.float32, folder)[0]) == 1
    with pytest.raises(EngineError, match="which tensors it keeps in float32, got ImportError: needs.*--dtype float32"):
        narrowed(pieces(torch.bfloat16, "a"), torch.bfloat16, folder)
