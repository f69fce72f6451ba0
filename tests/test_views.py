"""Fused, cut and padded parameters under checkpoint names: noise, steps, fingerprints are those of the whole model."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.core_model_loading import revert_weight_conversion
from worker_modules import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    VocabParallelEmbedding,
    worker_model,
)

from ttc_esopt.engines.views import compare, header, views_of
from ttc_esopt.engines.weights import Weights
from ttc_esopt.errors import EngineError
from ttc_esopt.es.noise import NoiseKind

SHAPE = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),  # biases on q, k and v
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)),  # norms of heads
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SHAPE | {"num_local_experts": 3, "intermediate_size": 16})),
    # experts beside a shared one
    "qwen2 moe": lambda: Qwen2MoeForCausalLM(Qwen2MoeConfig(**SHAPE | EXPERTS, shared_expert_intermediate_size=16)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, tie_word_embeddings=True)),  # four norms a layer
}
KINDS = ["full", "lowrank:1", "lowrank:2"]


def whole(name, dtype=torch.float32):
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def checkpoint(model):
    """Its tensors as `save_pretrained` writes them."""
    kept = {}
    for name, tensor in model.state_dict().items():
        if not any(tensor.data_ptr() == other.data_ptr() for other in kept.values()):
            kept[name] = tensor
    return revert_weight_conversion(model, kept)


def weights_of(views, kind, scope):
    pieces = views.pieces
    names = [n for n, p in pieces.items() if p.linear or scope == "all"]
    return Weights(
        {n: p.tensor for n, p in pieces.items()}, names, kind, scope, {n: p.shard for n, p in pieces.items()}
    )


def ranks(tensors, degree, kind, scope):
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    models = [worker_model(tensors, 4, 2, degree, rank) for rank in range(degree)]
    return [weights_of(views_of(model, shapes, rank), kind, scope) for rank, model in enumerate(models)]


def assembled(parts, name):
    """The whole tensor from the blocks of all ranks; replicas must agree."""
    out = None
    for part in parts:
        shard, live = part.shards[name], part.live[name]
        if out is None:
            out = torch.full(shard.shape, torch.nan, dtype=live.dtype)
        matrix = out.view(shard.shape[0], -1)
        block = matrix[shard.row : shard.row + shard.rows, shard.column : shard.column + shard.columns]
        held = live.reshape(shard.rows, shard.columns)
        assert torch.equal(block, held) or block.isnan().all()
        block.copy_(held)
    assert not out.isnan().any()
    return out


def same(parts, unsharded):
    total = sum(int(part.fingerprint(), 16) for part in parts) & (1 << 64) - 1
    assert f"{total:016x}" == unsharded.fingerprint()
    for name, tensor in unsharded.live.items():
        assert torch.equal(assembled(parts, name), tensor), name


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_sharded_and_fused_equals_unsharded_by_checkpoint_names(name, degree, kind):
    model, kind = whole(name), NoiseKind.parse(kind)
    unsharded = Weights.of(model, kind, "auto")
    parts = ranks(checkpoint(model), degree, kind, unsharded.scope)
    assert all(set(part.names) == set(unsharded.names) for part in parts)
    same(parts, unsharded)
    for weights in (unsharded, *parts):
        if kind.kind == "full":
            weights.perturb(7, 0.01)
    same(parts, unsharded)
    for weights in (unsharded, *parts):
        weights.restore()
        weights.step([7, 8], [0.01, -0.02])
        weights.step([9], [0.5])
    same(parts, unsharded)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(list(MODELS)), st.sampled_from([1, 2, 4]), st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(0, 2**52 - 1), st.floats(-1, 1, width=32)), min_size=1, max_size=4),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)  # fmt: skip
def test_any_step_is_the_same_on_any_number_of_ranks(name, degree, kind, pairs, dtype):
    model, kind = whole(name, dtype), NoiseKind.parse(kind)
    unsharded = Weights.of(model, kind, "auto")
    parts = ranks(checkpoint(model), degree, kind, unsharded.scope)
    for weights in (unsharded, *parts):
        weights.step(*zip(*pairs, strict=True))
    same(parts, unsharded)


def test_replicas_of_key_heads_have_the_same_noise_and_count_once():
    tensors = checkpoint(whole("llama"))
    parts = ranks(tensors, 4, NoiseKind.parse("full"), "all")
    name = "model.layers.0.self_attn.k_proj.weight"
    for part in parts:
        part.perturb(3, 0.1)
    assert torch.equal(parts[0].live[name], parts[1].live[name])
    assert not torch.equal(parts[0].live[name], parts[2].live[name])
    assert [part.shards[name].counted for part in parts] == [True, False, True, False]


def test_padding_of_the_vocabulary_is_never_perturbed():
    tensors = checkpoint(whole("llama"))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for rank in (0, 1):
        model = worker_model(tensors, 4, 2, 2, rank)
        weights = weights_of(views_of(model, shapes, rank), NoiseKind.parse("full"), "all")
        weights.perturb(3, 0.1)
        embedding = model.model.embed_tokens
        held = embedding.shard_indices.org_vocab_end_index - embedding.shard_indices.org_vocab_start_index
        assert (embedding.weight[held:] == 0).all() and embedding.weight.shape[0] == 64
    assert held == 99 - 64


def test_writing_to_a_piece_changes_the_model():
    tensors = checkpoint(whole("llama"))
    model = worker_model(tensors, 4, 2, 1, 0)
    views = views_of(model, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    views.pieces["model.layers.0.self_attn.k_proj.weight"].tensor.fill_(5)
    fused = model.model.layers.get_submodule("0").self_attn.qkv_proj.weight
    assert (fused[32:48] == 5).all() and not (fused[:32] == 5).any() and not (fused[48:] == 5).any()


def shapes_and_model():
    tensors = checkpoint(whole("llama"))
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}, worker_model(tensors, 4, 2, 1, 0)


def test_an_empty_parameter_is_refused_by_name():
    shapes, model = shapes_and_model()
    fused = model.model.layers.get_submodule("1").mlp.gate_up_proj
    fused.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    with pytest.raises(EngineError, match=r"layers.1.mlp.gate_up_proj.weight holds no values"):
        views_of(model, shapes)


def test_packed_codes_are_refused_by_name():
    shapes, model = shapes_and_model()
    layer = model.model.layers.get_submodule("0").mlp.down_proj
    layer.weight = torch.nn.Parameter(torch.zeros(32, 6, dtype=torch.int32), requires_grad=False)
    with pytest.raises(EngineError, match=r"layers.0.mlp.down_proj.weight.*packed, quantized"):
        views_of(model, shapes)


def test_a_parameter_that_the_checkpoint_does_not_cover_is_refused_by_name():
    shapes, model = shapes_and_model()
    del shapes["model.layers.0.self_attn.v_proj.weight"]
    with pytest.raises(EngineError, match=r"covers 1536 of 2048 values of model.layers.0.self_attn.qkv_proj.weight"):
        views_of(model, shapes)
    shapes, model = shapes_and_model()
    del shapes["model.norm.weight"]
    with pytest.raises(EngineError, match=r"No tensor of the checkpoint was found for the parameter model.norm.weight"):
        views_of(model, shapes)


def test_a_tied_tensor_has_the_name_of_the_models_first_one_whatever_the_checkpoint_stores():
    tensors = checkpoint(whole("qwen3"))
    model = worker_model(tensors, 4, 2, 1, 0)
    model.add_module("lm_head", VocabParallelEmbedding(tensors["model.embed_tokens.weight"], 0, 1))
    model.lm_head.weight = model.model.embed_tokens.weight
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    views = views_of(model, shapes | {"lm_head.weight": shapes["model.embed_tokens.weight"]})
    assert views.tied == ["lm_head.weight"] and "model.embed_tokens.weight" in views.pieces
    full = NoiseKind.parse("full")
    assert weights_of(views, full, "all").fingerprint() == Weights.of(whole("qwen3"), full, "all").fingerprint()


@pytest.mark.parametrize("degree", [2, 4])
def test_the_convolution_of_a_gated_delta_net_is_cut_by_its_parts(degree):
    whole = torch.randn(32, 1, 4)
    unsharded = Weights({"mixer.conv1d.weight": whole.clone()}, ["mixer.conv1d.weight"], NoiseKind.parse("full"), "all")
    unsharded.step([3], [0.5])
    parts = []
    for rank in range(degree):
        model = nn.Module()
        model.add_module("mixer", nn.Module())
        model.mixer.key_dim, model.mixer.value_dim = 8, 16
        layer = ColumnParallelLinear(rank, degree)
        layer.hold(weight=torch.cat([part.chunk(degree)[rank] for part in whole.split([8, 8, 16])]))
        layer.output_partition_sizes = [32 // degree]
        model.mixer.add_module("conv1d", layer)
        parts.append(weights_of(views_of(model, {"mixer.conv1d.weight": (32, 1, 4)}, rank), unsharded.kind, "all"))
        parts[-1].step([3], [0.5])
    assert sum(int(part.fingerprint(), 16) for part in parts) & (1 << 64) - 1 == int(unsharded.fingerprint(), 16)


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_weights_that_a_checkpoint_has_the_other_way_round(degree):
    """As GPT-2's are: the one that is not square says so for all."""
    tensors = {"up.weight": torch.randn(12, 16), "same.weight": torch.randn(16, 16)}
    unsharded = Weights({n: t.clone() for n, t in tensors.items()}, list(tensors), NoiseKind.parse("full"), "all")
    unsharded.step([3], [0.5])
    total = 0
    for rank in range(degree):
        model = nn.Module()
        for name, tensor in tensors.items():
            layer = ColumnParallelLinear(rank, degree)
            layer.input_size, layer.output_size = tensor.shape
            layer.hold(weight=tensor.T.chunk(degree)[rank].contiguous())
            layer.output_partition_sizes = [16 // degree]
            model.add_module(name.removesuffix(".weight"), layer)
        views = views_of(model, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, rank)
        assert not any(piece.linear for piece in views.pieces.values())  # nor are they to transformers
        part = weights_of(views, unsharded.kind, "all")
        part.step([3], [0.5])
        total += int(part.fingerprint(), 16)
        assert torch.equal(model.up.weight, unsharded.live["up.weight"].T.chunk(degree)[rank])
    assert total & (1 << 64) - 1 == int(unsharded.fingerprint(), 16)


def test_tensors_that_the_model_does_not_hold_are_listed():
    shapes, model = shapes_and_model()
    assert views_of(model, shapes | {"mtp.fc.weight": (4, 4)}).unused == ["mtp.fc.weight"]


def fused(parts, sizes, degree, rank, replicas=1):
    """A model whose one layer is fused of checkpoint tensors; `sizes` are rows of the whole layers inside it."""
    model = nn.Module()
    model.packed_modules_mapping = {"fused": [name.removesuffix(".weight") for name in parts]} if len(parts) > 1 else {}
    layer = (QKVParallelLinear if replicas > 1 else MergedColumnParallelLinear)(rank, degree)
    if replicas > 1:
        layer.num_kv_head_replicas = replicas
    rows = torch.cat(list(parts.values())).split(sizes)
    held = []
    for i, block in enumerate(rows):
        share = replicas if i else 1
        held.append(block[rank // share * (count := block.shape[0] * share // degree) :][:count])
    layer.output_partition_sizes = [block.shape[0] for block in held]
    layer.hold(weight=torch.cat(held))
    model.add_module("fused" if len(parts) > 1 else next(iter(parts)).removesuffix(".weight"), layer)
    return model


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("heights", "sizes", "replicas"),
    [
        ({"in_proj_qkv.weight": 32, "in_proj_z.weight": 16}, (8, 8, 16, 16), 1),  # a gated delta-net
        ({"in_proj_qkv.weight": 24, "in_proj_z.weight": 8}, (8, 8, 8, 8), 1),  # all of one size
        ({"qkv_proj.weight": 64}, (32, 16, 16), 1),  # fused in the checkpoint
        ({"qkv_proj.weight": 64}, (32, 16, 16), 2),  # ... with two copies of each key head
    ],
)  # fmt: skip
def test_a_checkpoint_tensor_may_span_several_layers(heights, sizes, replicas, degree, kind):
    replicas, kind = min(replicas, degree), NoiseKind.parse(kind)
    torch.manual_seed(0)
    tensors = {name: torch.randn(rows, 12) for name, rows in heights.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    models = [fused(tensors, sizes, degree, rank, replicas) for rank in range(degree)]
    parts = [weights_of(views_of(model, shapes, rank), kind, "linear") for rank, model in enumerate(models)]
    unsharded = Weights({name: tensor.clone() for name, tensor in tensors.items()}, list(tensors), kind, "linear")
    for weights in (unsharded, *parts):
        if kind.kind == "full":
            weights.perturb(5, 0.1)
            weights.restore()
        weights.step([7, 8], [0.1, -0.2])
    total = sum(int(part.fingerprint(), 16) for part in parts) & (1 << 64) - 1
    assert f"{total:016x}" == unsharded.fingerprint()
    for part in parts:
        for key, shard in part.shards.items():
            whole = unsharded.live[shard.name or key]
            assert torch.equal(part.live[key], whole[shard.row : shard.row + shard.rows])


def test_what_does_not_add_up_is_refused():
    model = fused({"a.weight": torch.zeros(8, 3), "b.weight": torch.zeros(8, 3)}, (6, 10), 1, 0)
    model.fused.output_partition_sizes = [3, 3, 10]
    with pytest.raises(EngineError, match="a.weight"):
        views_of(model, {"a.weight": (8, 3), "b.weight": (8, 3)})


def test_a_vector_that_a_loader_cuts_is_found_by_its_rank(tmp_path):
    """As the decay rates of a gated delta-net are; the comparison with the file says whether it is cut in order."""
    save_file({"mixer.A_log": torch.arange(8.0)}, tmp_path / "model.safetensors")
    model = worker_model({"mixer.A_log": torch.arange(4.0, 8.0)}, 1, 1, 1, 0)
    pieces = views_of(model, header(tmp_path), rank=1).pieces
    assert pieces["mixer.A_log"].shard.row == 4
    compare(pieces, tmp_path)
    pieces["mixer.A_log"].tensor.copy_(torch.tensor([4.0, 6.0, 5.0, 7.0]))
    with pytest.raises(EngineError, match="another order"):
        compare(pieces, tmp_path)


def test_a_model_may_rename_what_the_checkpoint_holds():
    class Mapper:
        def map_name(self, name):
            return name.replace("model.language_model.", "language_model.model.")

    model = torch.nn.Module()
    model.hf_to_vllm_mapper = Mapper()
    inner = worker_model({"language_model.model.norm.weight": torch.ones(4)}, 1, 1, 1, 0)
    model.add_module("language_model", inner.language_model)
    views = views_of(model, {"model.language_model.norm.weight": (4,)})
    assert list(views.pieces) == ["model.language_model.norm.weight"]


@pytest.mark.parametrize("sharded", [False, True])
def test_values_are_compared_with_the_files(tmp_path, sharded):
    model = whole("llama")
    model.save_pretrained(tmp_path, **({"max_shard_size": "20KB"} if sharded else {}))
    assert (tmp_path / "model.safetensors.index.json").exists() == sharded
    shapes = header(tmp_path)
    assert shapes == {name: tuple(tensor.shape) for name, tensor in checkpoint(model).items()}
    for rank in range(2):
        pieces = views_of(worker_model(checkpoint(model), 4, 2, 2, rank), shapes, rank).pieces
        compare(pieces, tmp_path)
    wrong = pieces["model.layers.1.mlp.up_proj.weight"].tensor
    wrong.copy_(wrong.flip(0))
    with pytest.raises(EngineError, match=r"layers.1.mlp.up_proj.weight is stored in another order"):
        compare(pieces, tmp_path)


def test_a_folder_without_safetensors_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(EngineError, match="Expected safetensors files"):
        header(tmp_path)
