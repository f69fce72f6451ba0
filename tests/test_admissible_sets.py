"""Admissible sets: the kernel against the published rule in plain Python, the sets against their definition."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttc_esopt.solvers.admissible_sets import GROUPS, candidates, choose, expand, size, words

SIZES = ((3, 2), (6, 4), (9, 6), (12, 7))
CODE = np.array([1, 4, 16])  # per letter: the sum of three codes says which letters they are
GOOD = [CODE[[0, 1, 2]].sum(), CODE[[0, 0, 1]].sum(), CODE[[0, 0, 2]].sum()]


def admissible(family):
    """The definition, for the words of a family."""
    zero, codes = family == 0, CODE[family]
    for a, b in itertools.combinations(range(len(family)), 2):
        if not ((zero[a] & ~zero[b]).any() and (~zero[a] & zero[b]).any()):
            return False
        if not np.isin(codes[a] + codes[b] + codes[b + 1 :], GOOD).any(axis=1).all():
            return False
    return True


def rotations(group):
    return {group[k:] + group[:k] for k in range(3)}


def bad(triple):
    """Whether three groups can be turned so that no place is good."""
    turned = itertools.product(*(rotations(GROUPS[number]) for number in triple))
    return any(
        all(sorted(place) not in ([0, 1, 2], [0, 0, 1], [0, 0, 2]) for place in zip(*groups, strict=True))
        for groups in turned
    )


BAD = {triple for triple in itertools.product(range(7), repeat=3) if bad(triple)}
WEIGHT = [sum(letter > 0 for letter in group) for group in GROUPS]


def published_choice(n, w, scores):
    """Largest score first; after each choice all that are in conflict leave."""
    rows = [tuple(row) for row in candidates(n, w).tolist()]
    left, scores, chosen = list(range(len(rows))), np.array(scores), []
    while left:
        best = left.pop(int(np.argmax(scores[left])))
        new = rows[best]

        def survives(child, new=new):
            if all(WEIGHT[x] == WEIGHT[y] for x, y in zip(new, child, strict=True)):
                return False
            return not any(all(triple in BAD for triple in zip(rows[old], new, child, strict=True)) for old in chosen)

        left = [i for i in left if survives(rows[i])]
        chosen.append(best)
    return chosen


def test_candidates_are_all_rows_of_the_weight_in_the_published_order():
    for n, w in (*SIZES, (9, 1), (6, 6)):
        rows = [row for row in itertools.product(range(7), repeat=n // 3) if sum(WEIGHT[x] for x in row) == w]
        assert [tuple(row) for row in candidates(n, w).tolist()] == rows
        assert words(n, w) == tuple(sum((GROUPS[x] for x in row), ()) for row in rows)
    assert [len(candidates(n, w)) for n, w in ((12, 7), (15, 10), (21, 15), (24, 17))] == [448, 2432, 68768, 435712]
    assert all(type(letter) is int for letter in words(6, 4)[0])


@pytest.mark.parametrize(("n", "w"), [(14, 7), (0, 0), (27, 20), (12, 13), (12, 0)])
def test_other_sizes_are_refused(n, w):
    with pytest.raises(ValueError, match="expected n = 3, 6"):
        candidates(n, w)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SIZES[1:]), st.integers(0, 2**32), st.sampled_from([2, 10, 10**6]))
def test_the_choice_is_the_published_one(instance, seed, levels):
    scores = np.random.default_rng(seed).integers(-levels, levels, len(candidates(*instance))).astype(float)
    scores[seed % len(scores)] = np.inf
    assert choose(*instance, scores).tolist() == published_choice(*instance, scores)


def test_not_a_number_comes_first_as_in_argmax():
    scores = np.zeros(len(candidates(9, 6)))
    scores[[3, 20]] = np.inf
    scores[[7, 40]] = np.nan
    scores[5] = -np.inf
    chosen = choose(9, 6, scores).tolist()
    assert chosen == published_choice(9, 6, scores)
    assert chosen[0] == 7


@pytest.mark.parametrize(("n", "w"), [(6, 4), (6, 3), (9, 6), (9, 5)])
def test_expanded_sets_are_admissible(n, w):
    chosen = choose(n, w, np.random.default_rng(n + w).random(len(candidates(n, w))))
    family = expand(n, w, chosen)
    assert family.dtype == np.int8 and family.shape == (size(n, w, chosen), n)
    assert len(np.unique(family, axis=0)) == len(family) and np.all(np.count_nonzero(family, axis=1) == w)
    assert admissible(family)


@pytest.mark.parametrize(("n", "w"), [(3, 2), (6, 4), (6, 3)])
def test_no_candidate_could_be_added(n, w):
    count = len(candidates(n, w))
    for seed in range(3):
        chosen = choose(n, w, np.random.default_rng(seed).random(count))
        family = expand(n, w, chosen)
        for other in set(range(count)) - set(chosen.tolist()):
            assert not admissible(np.vstack([family, expand(n, w, np.array([other]))]))


def test_no_choice_gives_an_empty_set():
    none = np.array([], dtype=np.int64)
    assert size(9, 6, none) == 0 and expand(9, 6, none).shape == (0, 9)
