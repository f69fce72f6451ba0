"""Ant colonies for the travelling salesman and for capacitated vehicle routing: compiled, one thread, no GIL.

The rules are the published ones. Every ant builds a solution by drawing its next node with probability proportional to
pheromone times heuristic among the nodes that are allowed; then the pheromone evaporates and every ant leaves
1 / (the cost of its solution) on its edges. A colony's random numbers are a function of its stream number alone: word j
of stream s is mix(mix(s) + (j + 1) * 0x9E3779B97F4A7C15), with `mix` as in the noise of the ES core. Sums are taken in
a fixed order, so that equal inputs give equal solutions on every machine.

A colony sees one matrix of distances and reports lengths in another one: instance files measure lengths in rounded or
geographical units, while heuristics and pheromone live in the unit square.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

ITERATIONS, ANTS, DECAY = 100, 30, 0.9
TSP_FLOOR = np.float32(1e-9)  # of the heuristic
CVRP_OFFSET, CVRP_PHEROMONE_FLOOR = 1e-9, 1e-10
LANES = 8
STRETCH = 8  # blocks that are walked through without a look whether the end is reached

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_U11, _U27, _U30, _U31 = (np.uint64(n) for n in (11, 27, 30, 31))
_TO_UNIT = 2.0**-53

_compiled = njit(cache=True, nogil=True, error_model="numpy")
_inlined = njit(cache=True, nogil=True, error_model="numpy", inline="always")


class Routes(NamedTuple):
    """What a vehicle-routing colony found: the least cost of any ant, charges included, and the shortest routes."""

    charged: float
    routes: list[list[int]]


def tsp_colony(
    seen: np.ndarray,
    heuristic: np.ndarray,
    lengths: np.ndarray,
    stream: int,
    *,
    iterations: int = ITERATIONS,
    ants: int = ANTS,
) -> np.ndarray:
    """The shortest tour that a colony finds, in float32 as published.

    Parameters
    ----------
    seen : float64 (n, n), distances by which pheromone is left; n >= 2
    heuristic : float64 (n, n), finite in float32; values below 1e-9 are taken for 1e-9
    lengths : float64 (n, n), what the length of a tour is measured in
    stream : number of the random stream, 0 <= stream < 2^64

    Returns
    -------
    int64 (n,)
    """
    desire = np.maximum(np.ascontiguousarray(heuristic, dtype=np.float32), TSP_FLOOR)
    _tame(desire, 1e20)
    seen = np.ascontiguousarray(seen, dtype=np.float32)
    lengths = np.ascontiguousarray(lengths, dtype=np.float64)
    return _tsp(seen, desire, lengths, np.uint64(stream), iterations, ants, np.float32(DECAY))


def cvrp_colony(
    seen: np.ndarray,
    heuristic: np.ndarray,
    lengths: np.ndarray,
    demands: np.ndarray,
    capacity: float,
    stream: int,
    *,
    idle: tuple[float, float] = (0.0, 0.0),
    iterations: int = ITERATIONS,
    ants: int = ANTS,
) -> Routes:
    """The shortest routes that a colony finds, in float64 as published.

    The published colony moves all ants until the last one is home. An ant that is home sooner stays at the depot, and
    each step that it waits is charged (the publication's matrices have ones on the diagonal).

    Parameters
    ----------
    seen : float64 (n + 1, n + 1), distances by which pheromone is left; row 0 is the depot
    heuristic : float64 (n + 1, n + 1), finite; 1e-9 is added, and what is then below 1e-9 is taken for 1e-9
    lengths : float64 (n + 1, n + 1), what the length of routes is measured in
    demands : float64 (n + 1,), none above `capacity`, 0 for the depot
    capacity : of each vehicle
    stream : number of the random stream, 0 <= stream < 2^64
    idle : charge for each step that an ant waits at the depot, in the units of `seen` and of `lengths`

    Returns
    -------
    The least cost of any ant, charges included, and the routes of the ant that drove the shortest way.

    Raises
    ------
    ValueError
        A demand is negative or above the capacity, or the depot has one.
    """
    demands = np.ascontiguousarray(demands, dtype=np.float64)
    if demands[0] != 0 or not ((demands >= 0) & (demands <= capacity)).all():
        raise ValueError("Expected no demand at the depot and demands from 0 up to the capacity elsewhere.")
    desire = np.maximum(np.ascontiguousarray(heuristic, dtype=np.float64) + CVRP_OFFSET, CVRP_OFFSET)
    _tame(desire, 1e200)
    seen = np.ascontiguousarray(seen, dtype=np.float64)
    lengths = np.ascontiguousarray(lengths, dtype=np.float64)
    order = np.concatenate([[0], 1 + np.argsort(demands[1:], kind="stable")])
    square = np.ix_(order, order)
    charged, path = _cvrp(
        *(seen[square], desire[square], lengths[square], demands[order], float(capacity), np.uint64(stream)),
        *(iterations, ants, DECAY, float(idle[0]), float(idle[1])),
    )
    path = order[path]
    ends = np.flatnonzero(path == 0)
    return Routes(charged, [path[a + 1 : b].tolist() for a, b in zip(ends[:-1], ends[1:], strict=True)])


def _tame(desire: np.ndarray, limit: float) -> None:
    """Clear the diagonal and scale rows with huge entries: the odds within a row stay, and no sum overflows."""
    np.fill_diagonal(desire, 0.0)
    huge = desire.max(axis=1, initial=0.0) > limit
    desire[huge] /= desire.dtype.type(limit)


@_inlined
def _mix(x):
    x = (x ^ (x >> _U30)) * _MIX_1
    x = (x ^ (x >> _U27)) * _MIX_2
    return x ^ (x >> _U31)


@_inlined
def _unit(word):
    """A float64 in [0, 1) from a word."""
    return np.float64(_mix(word) >> _U11) * _TO_UNIT


@intrinsic
def _lane_sums(typing_context, weights, node, open_, blocks, lanes):
    """lanes[l] = sum over b < blocks of weights[node, 8 b + l] * open_[8 b + l], in the order of b.

    Written as vector instructions, since the compiler must not reorder sums and leaves such a loop scalar.
    """

    def generate(context, builder, signature, arguments):
        table, mask, sums = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 4))
        number = signature.args[0].dtype
        vector, aligned = ir.VectorType(context.get_value_type(number), LANES), number.bitwidth // 8
        width = cgutils.unpack_tuple(builder, table.shape, 2)[1]
        row = builder.gep(table.data, [builder.mul(arguments[1], width)])
        total = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES))
        with cgutils.for_range(builder, arguments[3]) as loop:
            first = builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
            left, right = (
                builder.load(builder.bitcast(builder.gep(data, [first]), vector.as_pointer()), align=aligned)
                for data in (row, mask.data)
            )
            builder.store(builder.fadd(builder.load(total), builder.fmul(left, right)), total)
        builder.store(builder.load(total), builder.bitcast(sums.data, vector.as_pointer()), align=aligned)
        return context.get_dummy_value()

    return types.void(weights, types.int64, open_, types.int64, lanes), generate


def _make_draw(number):
    one = number(1)

    @_inlined
    def draw(weights, node, shut, open_, blocks, lanes, unit):
        """A node drawn with probability proportional to weights[node] * open_.

        Closes `shut`, the node that is left, whose own weight must be 0: closing the new one just before its row is
        summed would keep the processor waiting for that write.

        First a lane (nodes l, l + 8, l + 16 ... are lane l) in three halvings, then a node along the lane. There is
        nothing for the processor to guess in that: wrong guesses would cost more than all of the arithmetic.
        """
        _lane_sums(weights, node, open_, blocks, lanes)
        open_[shut] = 0
        pair_0, pair_1 = lanes[0] + lanes[1], lanes[2] + lanes[3]
        pair_2, pair_3 = lanes[4] + lanes[5], lanes[6] + lanes[7]
        half = pair_0 + pair_1
        total = half + (pair_2 + pair_3)
        mark = number(unit) * total
        right = np.int64(mark >= half)
        mark -= half * number(right)
        lane = 4 * right
        pair = pair_2 * number(right) + pair_0 * (one - number(right))
        right = np.int64(mark >= pair)
        mark -= pair * number(right)
        lane += 2 * right
        single = lanes[lane]
        right = np.int64(mark >= single)
        mark -= single * number(right)
        lane += right
        chosen = lane
        for first in range(0, blocks, STRETCH):
            for b in range(first, min(first + STRETCH, blocks)):
                mark -= weights[node, lane + LANES * b] * open_[lane + LANES * b]
                chosen += LANES * np.int64(mark >= 0)
            if mark < 0:
                break
        if chosen >= LANES * blocks:  # rounding led past the last node
            for j in range(LANES * blocks):
                if open_[j] > 0:
                    chosen = j
        return chosen

    return draw


_draw_32, _draw_64 = _make_draw(np.float32), _make_draw(np.float64)


@_compiled
def _tsp(seen, desire, lengths, stream, iterations, ants, decay):
    n = seen.shape[0]
    blocks = (n + LANES - 1) // LANES
    pheromone = np.ones((n, n), np.float32)
    weights = np.zeros((n, LANES * blocks), np.float32)
    open_ = np.zeros(LANES * blocks, np.float32)
    lanes = np.empty(LANES, np.float32)
    tours = np.empty((ants, n), np.int64)
    best_tour = np.zeros(n, np.int64)
    best = np.inf
    state = _mix(stream)
    for _ in range(iterations):
        for i in range(n):
            for j in range(n):
                weights[i, j] = pheromone[i, j] * desire[i, j]
                pheromone[i, j] *= decay
        for ant in range(ants):
            state += _GOLDEN
            node = min(np.int64(_unit(state) * n), n - 1)
            open_[:n] = 1
            tours[ant, 0] = node
            for step in range(1, n):
                state += _GOLDEN
                node = _draw_32(weights, node, node, open_, blocks, lanes, _unit(state))
                tours[ant, step] = node
            cost = np.float32(0)
            length = 0.0
            last = tours[ant, n - 1]
            for step in range(n):
                node = tours[ant, step]
                cost += seen[node, last]
                length += lengths[last, node]
                last = node
            if length < best:
                best = length
                best_tour[:] = tours[ant]
            if cost > 0:
                deposit = np.float32(1) / cost
                last = tours[ant, n - 1]
                for step in range(n):
                    node = tours[ant, step]
                    pheromone[node, last] += deposit
                    pheromone[last, node] += deposit
                    last = node
    return best_tour


@_compiled
def _cvrp(seen, desire, lengths, demands, capacity, stream, iterations, ants, decay, idle_seen, idle_lengths):
    """Customers must be sorted by demand: those that still fit are then the first ones."""
    n = seen.shape[0]
    blocks = n // LANES + 1
    nowhere = n  # a column of zeros, closed in place of the depot
    pheromone = np.ones((n, n))
    weights = np.zeros((n, LANES * blocks))
    unserved = np.zeros(LANES * blocks)
    open_ = np.zeros(LANES * blocks)  # unserved and fitting, and the depot
    lanes = np.empty(LANES)
    paths = np.zeros((ants, 2 * n), np.int64)
    steps = np.empty(ants, np.int64)
    costs = np.empty(ants)
    true = np.empty(ants)
    best_path = np.zeros(2 * n, np.int64)
    best_steps = 0
    best = best_true = np.inf
    state = _mix(stream)
    for _ in range(iterations):
        for i in range(n):
            for j in range(n):
                weights[i, j] = pheromone[i, j] * desire[i, j]
                pheromone[i, j] *= decay
        longest = 0
        for ant in range(ants):
            unserved[:n] = 1
            open_[:n] = 1
            left = n - 1
            last_unserved = fits = n - 1  # customers after them are served; or do not fit
            node = step = 0
            room = capacity
            cost = length = 0.0
            while left > 0:
                while demands[fits] > room:
                    open_[fits] = 0
                    fits -= 1
                last = node
                state += _GOLDEN
                node = _draw_64(weights, last, last if last > 0 else nowhere, open_, blocks, lanes, _unit(state))
                if node > 0:
                    room -= demands[node]
                    left -= 1
                    unserved[node] = 0
                else:
                    room = capacity
                    while unserved[last_unserved] == 0:
                        last_unserved -= 1
                    fits = last_unserved
                    open_[:] = unserved
                step += 1
                paths[ant, step] = node
                cost += seen[last, node]
                length += lengths[last, node]
            step += 1
            paths[ant, step] = 0
            steps[ant] = step
            costs[ant] = cost + seen[node, 0]
            true[ant] = length + lengths[node, 0]
            longest = max(longest, step)
        for ant in range(ants):
            waits = longest - steps[ant]
            best = min(best, true[ant] + waits * idle_lengths)
            if true[ant] < best_true:
                best_true = true[ant]
                best_steps = steps[ant]
                best_path[:] = paths[ant]
            cost = costs[ant] + waits * idle_seen
            if cost > 0:
                deposit = 1.0 / cost
                for step in range(steps[ant]):
                    pheromone[paths[ant, step], paths[ant, step + 1]] += deposit
        for i in range(n):
            for j in range(n):
                pheromone[i, j] = max(pheromone[i, j], CVRP_PHEROMONE_FLOOR)
    return best, best_path[: best_steps + 1]
