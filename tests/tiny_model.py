"""A random Llama of 0.1 M parameters with a tokenizer of its own, made on the spot: no network, loads in a second."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if mood is defined %}{{ mood }}{% endif %}{% endif %}"
)
TEXT = ["def f(x): return x + 1", "the quick brown fox jumps over the lazy dog", "import numpy as np", "a b c 0.1 0.25"]


def make_tiny_model(
    folder: Path, *, tied: bool = True, seed: int = 0, context: int = 512, scale: float = 0.3, **config: int
) -> Path:
    """Write the model as a Hugging Face folder and return it; `scale` makes its distributions far from uniform.

    `config` changes the shape of the Llama.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    fast.chat_template = TEMPLATE
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2} | config
    config = LlamaConfig(
        vocab_size=len(fast), intermediate_size=96, num_hidden_layers=2, max_position_embeddings=context,
        tie_word_embeddings=tied, bos_token_id=None, eos_token_id=0, pad_token_id=0, initializer_range=scale, **shape,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
