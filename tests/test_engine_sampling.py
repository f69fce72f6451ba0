import math

import numpy as np
import pytest
import torch

from ttc_esopt.engines import Request, Sampling
from ttc_esopt.engines.sampling import choose, stream_key, uniforms
from ttc_esopt.errors import ConfigurationError

NONE = torch.zeros(1, 0, dtype=torch.long)


def distribution(logits, s: Sampling, seen=()):
    """The filtered distribution of one row, step by step on the whole vocabulary: (token ids, probabilities)."""
    x = [float(v) for v in logits]
    for token in set(seen):
        x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
        x[token] -= s.presence_penalty
    x = [v / s.temperature for v in x]
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))[: s.top_k or None]
    weights = [math.exp(x[i] - x[order[0]]) for i in order]
    p = [w / sum(weights) for w in weights]
    kept, mass = [], 0.0
    for q in p:
        if mass >= s.top_p or q < s.min_p * p[0]:
            break
        kept.append(q)
        mass += q
    return order[: len(kept)], [q / sum(kept) for q in kept]


SETTINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.3, top_p=0.9),
    Sampling(temperature=3.0, top_p=0.97),
    Sampling(temperature=1.0, top_k=5),
    Sampling(temperature=2.0, top_k=300),
    Sampling(temperature=1.5, top_k=40, top_p=0.8, min_p=0.02),
    Sampling(temperature=1.0, min_p=0.1),
    Sampling(temperature=5.0, min_p=0.001),
    Sampling(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.7, top_p=0.95),
]


@pytest.mark.parametrize("vocabulary", [50, 700])
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_tokens_are_the_inverse_cumulative_of_the_filtered_distribution(sampling, vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    for trial in range(20):
        logits = torch.randn(4, vocabulary, generator=generator) * 2
        seen = torch.randint(0, vocabulary, (4, 6), generator=generator)
        numbers = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        numbers[0] = 0.0 if trial % 2 else 1 - 2**-53
        tokens = choose(logits, numbers, sampling, seen).tolist()
        for row in range(4):
            ids, p = distribution(logits[row], sampling, seen[row].tolist())
            edges = np.cumsum(p)
            rank = ids.index(tokens[row])
            low, high = (0.0 if rank == 0 else edges[rank - 1]), edges[rank]
            assert low - 1e-5 <= numbers[row] <= high + 1e-5


def test_sampled_frequencies_match_the_filtered_distribution():
    sampling = Sampling(temperature=0.9, top_p=0.8)
    logits = torch.linspace(-2, 2, 12)
    ids, p = distribution(logits, sampling)
    draws = 20000
    numbers = uniforms([stream_key(5)], 0) + [uniforms([stream_key(5)], k)[0] for k in range(1, draws)]
    tokens = choose(logits.expand(draws, -1), numbers, sampling, NONE.expand(draws, 0)).tolist()
    assert set(tokens) == set(ids)
    for token, share in zip(ids, p, strict=True):
        assert abs(tokens.count(token) / draws - share) < 5 * math.sqrt(share / draws)


def test_a_row_is_sampled_alike_alone_and_among_others():
    logits = torch.randn(7, 900, generator=torch.Generator().manual_seed(3)) * 3
    numbers = uniforms([stream_key(s) for s in range(7)], 4)
    for sampling in SETTINGS:
        together = choose(logits, numbers, sampling, NONE.expand(7, 0)).tolist()
        alone = [choose(logits[i : i + 1], numbers[i : i + 1], sampling, NONE).item() for i in range(7)]
        assert together == alone


def test_equal_logits_rank_by_token_id():
    logits = torch.zeros(1, 1000)
    assert choose(logits, [0.0], Sampling(temperature=1, top_k=3), NONE).item() == 0
    assert choose(logits, [0.5], Sampling(temperature=1, top_k=3), NONE).item() == 1
    assert choose(logits, [0.7505], Sampling(temperature=1), NONE).item() == 750


def test_temperature_zero_takes_the_likeliest_token_after_penalties():
    logits = torch.tensor([[1.0, 3.0, 2.5]])
    seen = torch.tensor([[1]])
    assert choose(logits, [0.9], Sampling(temperature=0), NONE).item() == 1
    assert choose(logits, [0.9], Sampling(temperature=0, presence_penalty=1), seen).item() == 2
    assert choose(logits, [0.9], Sampling(temperature=0, repetition_penalty=1.5), seen).item() == 2


def test_the_stream_is_uniform_and_depends_on_seed_and_position_alone():
    numbers = np.array([uniforms([stream_key(seed)], k)[0] for seed in range(200) for k in range(100)])
    assert abs(numbers.mean() - 0.5) < 0.01 and abs(numbers.var() - 1 / 12) < 0.002
    assert len(set(numbers.tolist())) == numbers.size
    assert uniforms([stream_key(1), stream_key(2)], 7)[1] == uniforms([stream_key(2)], 7)[0]


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"min_p": 2}, {"max_tokens": 0},
        {"repetition_penalty": 0}, {"presence_penalty": math.nan}, {"stop": "text"}, {"stop": ("",)},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(setting):
    with pytest.raises(ConfigurationError, match="Expected .* got"):
        Sampling(**setting)


def test_a_negative_sigma_is_refused():
    with pytest.raises(ConfigurationError, match="sigma >= 0, got -1"):
        Request("x", 1, direction=1, sigma=-1)
