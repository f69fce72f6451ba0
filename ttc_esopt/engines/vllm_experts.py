"""Experts of vLLM on CPUs, computed from weights that can be moved.

vLLM's kernel for CPUs reads a packed copy, in which the values of a row are no longer beside each other; the parameters
then hold that order. Here the packing is left out, and the experts are computed by torch from the parameters as they
are on a card. That is for trying and for tests: on a card nothing is changed.

Where adapters are on, vLLM asks for a kernel that gives experts adapters too, and CPUs have none. Experts get none here
either: low-rank noise leaves them alone (`scopes`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ttc_esopt.engines import experts
from ttc_esopt.errors import EngineError

ALPHA, LIMIT = 1.702, 7.0  # of swigluoai


def keep_experts_live() -> bool:
    """Turn the packing of experts off; whether that was done.

    Nothing is changed in releases where a part of it has another name: models without experts need none of it, and
    `refuse_packed` refuses those that have some.
    """
    try:  # all is looked up before anything is changed
        from vllm.lora import model_manager
        from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as method
        from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts as Experts

        choose, supports = method.select_unquantized_moe_backend, model_manager.is_supported_lora_module
        _ = Experts.process_weights_after_loading, Experts.apply
    except (ImportError, AttributeError):
        return False
    Experts.process_weights_after_loading = lambda self, layer: None
    Experts.apply = _apply

    def chosen(moe_config: Any) -> Any:
        wanted, moe_config.is_lora_enabled = moe_config.is_lora_enabled, False
        try:
            return choose(moe_config=moe_config)
        finally:
            moe_config.is_lora_enabled = wanted

    def supported(module_name: str, module: Any, *further: Any) -> bool:
        return type(module).__name__ != "MoERunner" and supports(module_name, module, *further)

    method.select_unquantized_moe_backend, model_manager.is_supported_lora_module = chosen, supported
    return True


def refuse_packed(model: nn.Module, live: bool) -> None:
    """Raise an EngineError where a model has experts and `keep_experts_live` knew no way (`live`)."""
    stacks = experts.stacks(model)
    if stacks and not live:
        raise EngineError(
            f"Expected experts of vLLM on CPUs as version 0.32 has them ({next(iter(stacks))}), got a release that "
            "packs or computes them in a way that is not known: use --engine transformers."
        )


def _apply(
    self: Any,
    output: torch.Tensor,
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: Any,
    *further: Any,
    **named: Any,
) -> None:
    """output (tokens, H) = sum over a token's experts of weight * w2 act(w1 x); arguments as vLLM has them."""
    on_input = named.get("apply_router_weight_on_input", False)  # is then done already
    output.zero_()
    for expert in topk_ids.unique().tolist():
        token, place = (topk_ids == expert).nonzero(as_tuple=True)
        bias = None if self.w1_bias is None else self.w1_bias[expert].to(w1.dtype)
        x = _activated(functional.linear(hidden_states[token], w1[expert], bias), activation.name)
        bias = None if self.w2_bias is None else self.w2_bias[expert].to(w2.dtype)
        y = functional.linear(x, w2[expert], bias)
        if not on_input:
            y = (y.float() * topk_weights[token, place, None]).to(y.dtype)
        output.index_add_(0, token, y)


def _activated(x: torch.Tensor, name: str) -> torch.Tensor:
    if name == "SWIGLUOAI":  # gate and up alternate
        gate, up = x[..., ::2].clamp(max=LIMIT), x[..., 1::2].clamp(-LIMIT, LIMIT)
        return (up + 1) * gate * torch.sigmoid(ALPHA * gate)
    gate, up = x.chunk(2, dim=-1)
    if name == "SILU":
        return functional.silu(gate) * up
    if name in ("GELU", "GELU_TANH"):
        return functional.gelu(gate, approximate="tanh" if name == "GELU_TANH" else "none") * up
    raise NotImplementedError(f"Expected experts with silu, gelu or swigluoai, got {name}.")
