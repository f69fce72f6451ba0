"""Modules shaped like those of a vLLM worker, of any tensor-parallel degree and rank, filled from a Hugging Face model.

Class names and attributes are those that `ttc_esopt.engines.views` looks at; nothing can be computed with them.
"""

import re
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

FUSED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
PAD = 64


class LinearBase(nn.Module):
    def __init__(self, rank, degree):
        super().__init__()
        self.tp_rank, self.tp_size = rank, degree

    def hold(self, **tensors):
        for name, tensor in tensors.items():
            setattr(self, name, nn.Parameter(tensor.clone(), requires_grad=False))


class ColumnParallelLinear(LinearBase):
    pass


class ReplicatedLinear(LinearBase):
    pass


class MergedColumnParallelLinear(ColumnParallelLinear):
    pass


class QKVParallelLinear(ColumnParallelLinear):
    pass


class RowParallelLinear(LinearBase):
    pass


class VocabParallelEmbedding(nn.Module):
    def __init__(self, weight, rank, degree):
        super().__init__()
        rows = weight.shape[0]
        padded = -(-rows // PAD) * PAD
        per = padded // degree
        first, last = min(rank * per, rows), min((rank + 1) * per, rows)
        self.org_vocab_size, self.tp_rank, self.tp_size = rows, rank, degree
        self.shard_indices = SimpleNamespace(org_vocab_start_index=first, org_vocab_end_index=last)
        held = torch.zeros(per, weight.shape[1], dtype=weight.dtype)
        held[: last - first] = weight[first:last]
        self.weight = nn.Parameter(held, requires_grad=False)


class RoutedExperts(nn.Module):
    """Gate and up of all experts under each other, and down; with `pad` values of padding in both sizes.

    `gates`, `ups` (experts, I, H) and `downs` (experts, H, I) are those of the checkpoint, as are `biases`: of gates
    and ups (experts, I), of downs (experts, H). With "SWIGLUOAI" gate and up alternate. Biases of downs are on rank 0.
    """

    def __init__(self, gates, ups, downs, rank, degree, pad=0, transposed=False, activation="SILU", biases=None):
        super().__init__()
        experts, whole, hidden = gates.shape
        inner = whole // degree
        part = slice(rank * inner, (rank + 1) * inner)

        def both(gate, up):  # (experts, I, ...) each, of which a part is here
            held = torch.zeros(experts, 2, inner + pad, *gate.shape[2:], dtype=gate.dtype)
            if activation == "SWIGLUOAI":
                mixed = torch.stack([gate[:, part], up[:, part]], dim=2).flatten(1, 2)
                held.flatten(1, 2)[:, : 2 * inner] = mixed
            else:
                held[:, 0, :inner], held[:, 1, :inner] = gate[:, part], up[:, part]
            return held.flatten(1, 2)

        w13 = functional.pad(both(gates, ups), (0, pad))
        w2 = functional.pad(downs[:, :, part], (0, pad, 0, pad))
        self.w13_weight = nn.Parameter(w13, requires_grad=False)
        self.w2_weight = nn.Parameter(w2, requires_grad=False)
        if biases is not None:
            self.w13_bias = nn.Parameter(both(biases[0], biases[1]), requires_grad=False)
            self.w2_bias = nn.Parameter(functional.pad(biases[2] * (rank == 0), (0, pad)), requires_grad=False)
        self.activation = SimpleNamespace(name=activation)
        self.global_num_experts, self.is_fused_checkpoint_transposed = experts, transposed
        self.moe_config = SimpleNamespace(
            hidden_dim_unpadded=hidden, intermediate_size_per_partition_unpadded=inner, tp_rank=rank, tp_size=degree,
            num_logical_experts=experts,
        )  # fmt: skip


EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight")
WORDS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


class Plain(nn.Module):
    def __init__(self, tensors):
        super().__init__()
        for name, tensor in tensors.items():
            setattr(self, name, nn.Parameter(tensor.clone(), requires_grad=False))


def worker_model(tensors, heads, kv_heads, degree, rank):
    """The model of one rank.

    Parameters
    ----------
    tensors : dict of str to torch.Tensor
        A checkpoint.
    heads, kv_heads : int
    """
    root = nn.Module()
    root.packed_modules_mapping = FUSED
    layers: dict[str, dict[str, torch.Tensor]] = {}
    stacks: dict[str, dict[str, dict[int, torch.Tensor]]] = {}
    for name, tensor in tensors.items():
        if told := EXPERT.fullmatch(name):
            stack, number, word = told.groups()
            stacks.setdefault(stack, {}).setdefault(WORDS.get(word, word), {})[int(number)] = tensor
            continue
        layer, _, leaf = name.rpartition(".")
        layers.setdefault(layer, {})[leaf] = tensor
    for layer, held in layers.items():
        parent, _, last = layer.rpartition(".")
        fused = next((key for key, parts in FUSED.items() if last in parts), None)
        if fused is not None and last != FUSED[fused][0]:
            continue
        if fused is not None:
            parts = [layers[f"{parent}.{part}"] for part in FUSED[fused]]
            _put(root, f"{parent}.{fused}", _fused(fused, parts, heads, kv_heads, degree, rank))
        elif last in ("o_proj", "down_proj"):
            module = RowParallelLinear(rank, degree)
            width = held["weight"].shape[1] // degree
            module.hold(**held | {"weight": held["weight"][:, rank * width : (rank + 1) * width].contiguous()})
            _put(root, layer, module)
        elif last in ("embed_tokens", "lm_head"):
            _put(root, layer, VocabParallelEmbedding(held["weight"], rank, degree))
        elif last in ("gate", "shared_expert_gate"):
            module = ReplicatedLinear(rank, degree)
            module.hold(**held)
            module.output_partition_sizes = [held["weight"].shape[0]]
            _put(root, layer, module)
        else:
            _put(root, layer, Plain(held))
    for stack, parts in stacks.items():
        gates, ups, downs = (torch.stack([parts[w][i] for i in sorted(parts[w])]) for w in ("w1", "w3", "w2"))
        _put(root, f"{stack}.routed_experts", RoutedExperts(gates, ups, downs, rank, degree, pad=rank))
    return root


def _fused(fused, parts, heads, kv_heads, degree, rank):
    module = (QKVParallelLinear if fused == "qkv_proj" else MergedColumnParallelLinear)(rank, degree)
    replicas = 1
    if fused == "qkv_proj":
        replicas = module.num_kv_head_replicas = max(1, degree // kv_heads)
    blocks, sizes = [], []
    for i, part in enumerate(parts):
        shared = replicas if i else 1
        count = part["weight"].shape[0] * shared // degree
        first = rank // shared * count
        blocks.append({leaf: tensor[first : first + count] for leaf, tensor in part.items()})
        sizes.append(count)
    module.output_partition_sizes = sizes
    module.hold(**{leaf: torch.cat([block[leaf] for block in blocks]) for leaf in parts[0]})
    return module


def _put(root, path, module):
    *parents, last = path.split(".")
    for name in parents:
        if not hasattr(root, name):
            root.add_module(name, nn.Module())
        root = getattr(root, name)
    root.add_module(last, module)
