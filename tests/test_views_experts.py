"""Stacks of experts under checkpoint names; the experts of whole models are in test_views.py."""

import contextlib

import pytest
import torch
from safetensors.torch import save_file
from test_views import MODELS, weights_of
from tiny_model import make_tiny_model
from torch import nn
from worker_modules import RoutedExperts

from ttc_esopt.engines import load_engine
from ttc_esopt.engines.views import compare, header, views_of
from ttc_esopt.engines.vllm_export import gathered
from ttc_esopt.engines.vllm_worker import EsWorker
from ttc_esopt.engines.weights import Weights
from ttc_esopt.errors import EngineError
from ttc_esopt.es.noise import NoiseKind


def stack_of(degree, rank, pad=0, transposed=False, mixed=False, experts=3, inner=8, hidden=12):
    """A model whose one layer is a stack of experts, and its tensors by themselves; those of gpt-oss have biases."""
    torch.manual_seed(0)
    gates, ups, downs = (torch.randn(experts, inner, hidden) for _ in range(3))
    downs = downs.transpose(1, 2).contiguous()
    model = nn.Module()
    model.add_module("mlp", nn.Module())
    biases = (torch.randn(experts, inner), torch.randn(experts, inner), torch.randn(experts, hidden)) if mixed else None
    activation = "SWIGLUOAI" if mixed else "SILU"
    model.mlp.add_module(
        "experts", RoutedExperts(gates, ups, downs, rank, degree, pad, transposed, activation, biases)
    )  # fmt: skip
    return model, gates, ups, downs, biases


def checkpoint_of(transposed, mixed):
    """The tensors of `stack_of` as a checkpoint has them."""
    _, gates, ups, downs, biases = stack_of(1, 0, mixed=mixed)

    def both(gate, up):
        return torch.stack([gate, up], dim=2).flatten(1, 2) if mixed else torch.cat([gate, up], dim=1)

    tensors = {"mlp.experts.gate_up_proj": both(gates, ups), "mlp.experts.down_proj": downs}
    if transposed or mixed:
        tensors = {name: tensor.transpose(1, 2).contiguous() for name, tensor in tensors.items()}
    if mixed:
        tensors |= {"mlp.experts.gate_up_proj_bias": both(*biases[:2]), "mlp.experts.down_proj_bias": biases[2]}
    return tensors


def taken_apart(degree, pad, transposed, mixed, tmp_path):
    """Tensors of a checkpoint, the models of all ranks, and the pieces of each, compared with the file."""
    tensors = checkpoint_of(transposed, mixed)
    save_file(tensors, tmp_path / "model.safetensors")
    models = [stack_of(degree, rank, pad, transposed, mixed)[0] for rank in range(degree)]
    views = [views_of(model, header(tmp_path), rank) for rank, model in enumerate(models)]
    for view in views:
        compare(view.pieces, tmp_path)
    return tensors, models, views


@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("transposed, mixed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_stacks_of_the_checkpoint_have_their_own_names_and_indices(degree, transposed, mixed, pad, tmp_path):
    tensors, models, views = taken_apart(degree, pad, transposed, mixed, tmp_path)
    full = NoiseKind.parse("full")
    unsharded = Weights(tensors, list(tensors), full, "all")
    parts = [weights_of(view, full, "all") for view in views]
    for weights in (unsharded, *parts):
        weights.perturb(5, 0.1)
        weights.step([7, 8], [0.1, -0.2])
    total = sum(int(part.fingerprint(), 16) for part in parts) & (1 << 64) - 1
    assert f"{total:016x}" == unsharded.fingerprint()
    for model in models:
        w13, w2 = model.mlp.experts.w13_weight, model.mlp.experts.w2_weight
        padding = w13[:, 16 // degree :] if mixed else w13.unflatten(1, (2, -1))[:, :, 8 // degree :]
        assert padding.eq(0).all() and w13[:, :, 12:].eq(0).all() and w2[:, 12:].eq(0).all()
    if mixed:  # ranks are summed: what is added after the product is on the first, and stays zero elsewhere
        first, *others = [model.mlp.experts.w2_bias for model in models]
        assert torch.equal(first[:, :12], unsharded.live["mlp.experts.down_proj_bias"]) and first[:, 12:].eq(0).all()
        assert all(bias.eq(0).all() for bias in others)
    next(iter(views[-1].pieces.values())).tensor.add_(1)
    with pytest.raises(EngineError, match="another order"):
        compare(views[-1].pieces, tmp_path)


@pytest.mark.parametrize("transposed, mixed", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("degree", [1, 2])
def test_what_ranks_save_is_the_checkpoint(degree, transposed, mixed, tmp_path):
    """Pieces may be transposed views, and parts of one storage: neither can be written as it is."""
    tensors, _, views = taken_apart(degree, 3 * (degree - 1), transposed, mixed, tmp_path)
    for rank, view in enumerate(views):
        worker = EsWorker()
        worker.es_rank, worker.es_shapes, worker.es_pieces = rank, header(tmp_path), view.pieces
        worker.es_save(str(tmp_path))
    saved = dict(gathered(sorted(tmp_path.glob("rank*"))))
    assert saved.keys() == tensors.keys() and all(torch.equal(saved[name], tensors[name]) for name in tensors)


def test_biases_that_every_rank_would_add_are_refused():
    model, shapes = stack_of(2, 1, mixed=True)[0], {n: tuple(t.shape) for n, t in checkpoint_of(False, True).items()}
    views_of(model, shapes, 1)
    with pytest.raises(EngineError, match="down_proj_bias of shape"):
        views_of(model, shapes | {"mlp.experts.down_proj_bias": (3, 11)}, 1)
    model.mlp.experts.w2_bias.data.fill_(1)
    with pytest.raises(EngineError, match="zeros for the biases of down projections on rank 1.*--tensor-parallel 1"):
        views_of(model, shapes, 1)


def test_experts_of_which_a_part_is_elsewhere_are_refused():
    model = stack_of(1, 0)[0]
    model.mlp.experts.global_num_experts = 6
    with pytest.raises(EngineError, match="3 of 6 experts.*expert_parallel"):
        views_of(model, {"mlp.experts.gate_up_proj": (6, 16, 12), "mlp.experts.down_proj": (6, 12, 8)})


def test_a_stack_that_the_checkpoint_holds_otherwise_is_refused_by_name():
    model = stack_of(1, 0)[0]
    with pytest.raises(EngineError, match=r"mlp.experts.w13_weight to hold .* mlp.experts.2.gate_proj.weight"):
        views_of(model, {"mlp.experts.2.gate_proj.weight": (4, 12)})
    with pytest.raises(EngineError, match=r"covers 96 of 576 values of mlp.experts.w13_weight"):
        views_of(model, {"mlp.experts.2.gate_proj.weight": (8, 12)})
    with pytest.raises(EngineError, match=r"for the parameter mlp.experts.w13_weight"):
        views_of(model, {"mlp.input_linear.weight": (3, 16, 12)})


@pytest.mark.parametrize("name", ["mixtral", "qwen2 moe"])
def test_the_transformers_engine_and_its_exports_go_by_the_names_of_the_checkpoint(tmp_path, name):
    folder, out = make_tiny_model(tmp_path / "model"), tmp_path / "out"  # for its tokenizer
    MODELS[name]().save_pretrained(folder)
    full = NoiseKind.parse("full")
    with contextlib.closing(load_engine(str(folder), engine="transformers", noise=full, threads=1)) as engine:
        shapes = {name: tuple(tensor.shape) for name, tensor in engine.weights.live.items()}
        assert set(engine.weights.names) == set(shapes) and shapes == header(folder)
        before = engine.fingerprint()
        engine.weights.perturb(3, 0.1)
        engine.weights.restore()
        assert engine.weights.sha256() == engine.sha256() and engine.fingerprint() == before
        engine.step([7, 8], [0.1, -0.2])
        engine.export(out)
        after = engine.fingerprint()
    assert header(out) == shapes and after != before
    with contextlib.closing(load_engine(str(out), engine="transformers", noise=full, threads=1)) as again:
        assert again.fingerprint() == after
