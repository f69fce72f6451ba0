"""Symmetric constant-weight admissible sets: candidate words, the greedy choice by priority, and the expansion.

A word of n letters 0, 1, 2 is a row of n / 3 groups of three letters. Up to rotation there are seven groups that may
occur (`GROUPS`), so a candidate is a row of group numbers whose letters have w non-zero ones together. It stands for
all words that rotations of its groups give; a set of candidates is kept if the words they stand for are admissible:
of any two each has a non-zero letter where the other has 0, and for any three there is a place where the letters are
0, 1 and 2, or 0, 0 and 1, or 0, 0 and 2, in any order.

That three candidates together are forbidden is a matter of single groups: it must be possible in all of them. So every
pair of chosen candidates forbids a set of group numbers in each group, and a word is out if all its groups are in
these sets. With a byte per group that is one operation on 64-bit integers.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
from numba import njit

GROUPS = ((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 2), (0, 2, 1), (1, 1, 1), (2, 2, 2))
_WEIGHTS = np.array([sum(letter > 0 for letter in group) for group in GROUPS])
_ROTATIONS = [sorted({group[k:] + group[:k] for k in range(3)}) for group in GROUPS]
_GOOD = {(0, 0, 1), (0, 0, 2), (0, 1, 2)}
LONGEST = 24  # letters: eight groups, a byte for each

_compiled = njit(cache=True, nogil=True)


@lru_cache(maxsize=8)
def candidates(n: int, w: int) -> np.ndarray:
    """All candidates, the last group changing fastest: uint8 array (candidates, n / 3) of group numbers, read-only.

    Raises
    ------
    ValueError
        n is no multiple of three from 3 to 24, or w is none of 1 to n.
    """
    if n % 3 or not 3 <= n <= LONGEST or not 1 <= w <= n:
        raise ValueError(f"expected n = 3, 6 ... {LONGEST} and w = 1 ... n, got {n} and {w}")
    rows, weights = np.zeros((1, 0), np.uint8), np.zeros(1, np.int64)
    numbers = np.arange(len(GROUPS), dtype=np.uint8)
    for left in range(n - 3, -1, -3):
        rows = np.hstack([np.repeat(rows, len(numbers), axis=0), np.tile(numbers, len(rows))[:, None]])
        weights = np.repeat(weights, len(numbers)) + np.tile(_WEIGHTS, len(weights))
        possible = (weights <= w) & (weights + left >= w)
        rows, weights = rows[possible], weights[possible]
    rows.flags.writeable = False
    return rows


@lru_cache(maxsize=4)
def words(n: int, w: int) -> tuple[tuple[int, ...], ...]:
    """The letters of every candidate, in the order of `candidates`."""
    letters = np.array(GROUPS)[candidates(n, w)].reshape(-1, n)
    return tuple(map(tuple, letters.tolist()))


def choose(n: int, w: int, scores: np.ndarray) -> np.ndarray:
    """Choose greedily by score; of equal ones the first candidate, and NaN before everything as in `numpy.argmax`.

    Parameters
    ----------
    scores : float64 array, one per candidate

    Returns
    -------
    int64 array
        Numbers of the chosen candidates, in the order in which they were chosen.
    """
    key = np.where(np.isnan(scores), np.inf, scores)
    order = np.lexsort((~np.isnan(scores), -key))  # stable; NaN comes before infinity
    present, same_weight, forbidden = _tables()
    return _choose(candidates(n, w), order, present, same_weight, forbidden)


def size(n: int, w: int, chosen: np.ndarray) -> int:
    """How many words the chosen candidates stand for."""
    rotations = np.array([len(each) for each in _ROTATIONS])
    return int(rotations[candidates(n, w)[chosen]].prod(axis=1).sum())


def expand(n: int, w: int, chosen: np.ndarray) -> np.ndarray:
    """The words that the chosen candidates stand for: int8 array (size, n)."""
    found = [np.zeros((0, n), np.int8)]
    for row in candidates(n, w)[chosen].tolist():
        product = itertools.product(*(_ROTATIONS[number] for number in row))
        found.append(np.array(list(product), np.int8).reshape(-1, n))
    return np.concatenate(found)


@lru_cache(maxsize=1)
def _tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per group number its bit; the bits of those of equal weight; per two the bits of those they forbid: uint64."""
    numbers = range(len(GROUPS))
    same_weight = [sum(1 << b for b in numbers if _WEIGHTS[a] == _WEIGHTS[b]) for a in numbers]
    forbidden = [[sum(1 << c for c in numbers if _bad(a, b, c)) for b in numbers] for a in numbers]
    return tuple(np.array(table, np.uint64) for table in ([1 << a for a in numbers], same_weight, forbidden))


def _bad(a: int, b: int, c: int) -> bool:
    """Whether the three groups can be turned so that none of their three places tells them apart."""
    triples = itertools.product(_ROTATIONS[a], _ROTATIONS[b], _ROTATIONS[c])
    return any(not any(tuple(sorted(place)) in _GOOD for place in zip(*triple, strict=True)) for triple in triples)


@_compiled
def _choose(rows, order, present, same_weight, forbidden):
    """Go through the candidates in their order; keep each that no mask of the ones kept so far rules out.

    A mask holds the group numbers that remain possible; a candidate that has none of them is out. Every two candidates
    kept have a mask, and so has every single one: words of equal weight are in conflict only if their groups have equal
    weights one by one.
    """
    groups = rows.shape[1]
    kept = np.empty(64, np.int64)
    masks = np.empty(1024, np.uint64)
    count, filled = 0, 0
    for number in order:
        row = rows[number]
        word = np.uint64(0)
        for g in range(groups):
            word |= present[row[g]] << np.uint64(8 * g)
        out = False
        for start in range(0, filled, 64):
            block = masks[start : min(start + 64, filled)]
            hits = 0
            for k in range(block.size):
                hits += (block[k] & word) == 0
            if hits:
                out = True
                break
        if out:
            continue
        if count == kept.size:
            kept = np.concatenate((kept, np.empty(count, np.int64)))
        if filled + count + 1 > masks.size:
            masks = np.concatenate((masks, np.empty(masks.size + count, np.uint64)))
        mask = np.uint64(0)
        for g in range(groups):
            mask |= same_weight[row[g]] << np.uint64(8 * g)
        masks[filled] = ~mask
        filled += 1
        for k in range(count):
            other = rows[kept[k]]
            mask = np.uint64(0)
            for g in range(groups):
                mask |= forbidden[row[g], other[g]] << np.uint64(8 * g)
            masks[filled] = ~mask
            filled += 1
        kept[count] = number
        count += 1
    return kept[:count].copy()
