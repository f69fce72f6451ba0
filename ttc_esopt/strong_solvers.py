"""Strong solvers of the field, where they are installed: PyVRP for routing and tours, OR-Tools for knapsacks.

Both are optional (`pip install pyvrp ortools`); HiGHS, for bins, comes with SciPy. They only give values to compare
with. Every answer is checked by the independent checkers of `problems.files.solutions`; its value is the checkers', not
the solver's.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np

from ttc_esopt.problems.files import BppFile, CvrpFile, KpFile, TspFile
from ttc_esopt.problems.files.solutions import check_bpp, check_cvrp, check_kp, check_tsp
from ttc_esopt.solvers import bin_packing
from ttc_esopt.solvers.bounds import martello_toth_l2

MOST_ARCS = 200_000  # of the arc-flow program
_SCALE = 2**30  # distances with decimals are rounded to integers with the largest one at most here


class Answer(NamedTuple):
    """What a strong solver found.

    Attributes
    ----------
    solution : tour (int64 array), routes, bins or items; None where there is none
    value : length, cost, number of bins or value of the items; None where there is no solution
    optimal : whether the solver has proved that nothing is better
    solver : name and version of the solver; empty where it is missing
    reason : why there is no solution, in one sentence; empty where there is one
    """

    solution: Any
    value: int | float | None
    optimal: bool
    solver: str
    reason: str


def tsp(record: TspFile, seconds: float, seed: int = 0) -> Answer:
    """A tour by PyVRP (one vehicle), else by OR-Tools' routing.

    Parameters
    ----------
    record : the instance
    seconds : time limit
    seed : of PyVRP's random numbers; OR-Tools draws none
    """
    n = len(record.distances)
    if n < 4:
        return _found(check_tsp, record, np.arange(n), True, "every tour")
    pyvrp = _pyvrp()
    if not isinstance(pyvrp, Answer):
        routes = _pyvrp_routes(pyvrp, record.distances, None, None, seconds, seed)
        if routes is not None and len(routes) == 1:
            return _found(check_tsp, record, np.array([0, *routes[0]], dtype=np.int64), False, _version("pyvrp"))
    return _routing(record, seconds)


def cvrp(record: CvrpFile, seconds: float, seed: int = 0) -> Answer:
    """Routes by PyVRP, with as many vehicles as it likes.

    Parameters
    ----------
    record : the instance
    seconds : time limit
    seed : of PyVRP's random numbers
    """
    if len(record.demands) < 2:
        return _found(check_cvrp, record, [], True, "nothing to visit")
    pyvrp = _pyvrp()
    if isinstance(pyvrp, Answer):
        return pyvrp
    routes = _pyvrp_routes(pyvrp, record.distances, record.demands, record.capacity, seconds, seed)
    if routes is None:
        return _none(f"PyVRP found no feasible routes in {seconds:g} s.", _version("pyvrp"))
    return _found(check_cvrp, record, routes, False, _version("pyvrp"))


def bpp(record: BppFile, seconds: float, seed: int = 0) -> Answer:
    """Bins: filled by subset sums for a quarter of the time, then the arc-flow program by HiGHS (which SciPy brings).

    Parameters
    ----------
    record : the instance
    seconds : time limit
    seed : of the random orders
    """
    bound = martello_toth_l2(record.sizes, record.capacity)
    start = time.monotonic()
    bins = _full_bins(record, bound, start + seconds / 4, seed)
    if len(bins) <= bound:
        return _found(check_bpp, record, bins, True, "subset sums")
    packed, least = _arc_flow(record, start + seconds)
    if packed is not None and len(packed) < len(bins):
        bins = packed
    return _found(check_bpp, record, bins, len(bins) <= max(bound, least), _version("scipy"))


def kp(record: KpFile, seconds: float, seed: int = 0) -> Answer:
    """Items by OR-Tools' CP-SAT: exact for integers; decimals are rounded so that the choice stays feasible.

    Parameters
    ----------
    record : the instance
    seconds : time limit
    seed : of CP-SAT
    """
    cp_model = _cp_sat()
    if isinstance(cp_model, Answer):
        return cp_model
    whole = record.weights.dtype.kind in "iu" and record.values.dtype.kind in "iu"
    heavy, worth, room = record.weights, record.values, record.capacity
    if not whole:
        scale = _SCALE / max(float(room), 1e-300)
        heavy, room = np.ceil(np.minimum(heavy, 2.0 * room) * scale), math.floor(room * scale)
        worth = np.round(worth * (_SCALE / max(float(np.max(worth, initial=0.0)), 1e-300)))
    model = cp_model.CpModel()
    take = [model.new_bool_var("") for _ in range(len(heavy))]
    model.add(cp_model.LinearExpr.weighted_sum(take, [int(w) for w in heavy]) <= int(room))
    model.maximize(cp_model.LinearExpr.weighted_sum(take, [int(v) for v in worth]))
    solver, status = _solve(cp_model, model, seconds, seed)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return _none(f"OR-Tools found no items in {seconds:g} s.", _version("ortools"))
    chosen = [k for k, variable in enumerate(take) if solver.value(variable)]
    return _found(check_kp, record, chosen, whole and status == cp_model.OPTIMAL, _version("ortools"))


def _none(reason: str, solver: str = "") -> Answer:
    return Answer(None, None, False, solver, reason)


def _found(check: Any, record: Any, solution: Any, proven: bool, solver: str) -> Answer:
    return Answer(solution, check(record, solution), proven, solver, "")


def _version(package: str) -> str:
    from importlib.metadata import version

    return f"{package} {version(package)}"


def _pyvrp() -> Any:
    try:
        import pyvrp
    except ImportError:
        return _none("PyVRP is not installed (pip install pyvrp).")
    if not hasattr(pyvrp, "Location"):
        return _none(f"Expected PyVRP 0.14 or newer, got {_version('pyvrp')}.")
    return pyvrp


def _cp_sat() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        return _none("OR-Tools is not installed (pip install ortools).")
    return cp_model


def _integers(distances: np.ndarray) -> np.ndarray:
    """Distances as integers: as they are where they are whole and small enough, else scaled and rounded."""
    largest = float(distances.max(initial=0.0))
    if (distances == np.floor(distances)).all() and largest <= _SCALE:
        return distances.astype(np.int64)
    return np.round(distances * (_SCALE / largest)).astype(np.int64)


def _pyvrp_routes(
    pyvrp: Any, distances: np.ndarray, demands: np.ndarray | None, capacity: int | None, seconds: float, seed: int
) -> list[list[int]] | None:
    """Customers (from 1) of every route; demands None: one vehicle without a limit."""
    n = len(distances) - 1
    matrix = _integers(distances)
    loads = None if demands is None else demands.tolist()
    clients = [pyvrp.Client(k, delivery=[] if loads is None else [loads[k]]) for k in range(1, n + 1)]
    vehicle = pyvrp.VehicleType(1) if loads is None else pyvrp.VehicleType(n, capacity=[capacity])
    data = pyvrp.ProblemData(
        [pyvrp.Location(0, 0) for _ in range(n + 1)], clients, [pyvrp.Depot(0)], [vehicle], [matrix], [matrix * 0]
    )
    stop = pyvrp.stop.MaxRuntime(seconds)
    result = pyvrp.solve(data, stop, seed=seed, collect_stats=False, display=False)
    if not result.is_feasible():
        return None
    return [[visit.idx + 1 for visit in route if visit.is_client()] for route in result.best.routes()]


def _routing(record: TspFile, seconds: float) -> Answer:
    """A tour by OR-Tools' routing: a greedy start, then guided local search until the time is over."""
    try:
        from ortools.constraint_solver import pywrapcp, routing_enums_pb2
    except ImportError:
        return _none("Neither PyVRP nor OR-Tools is installed (pip install pyvrp).")
    matrix = _integers(record.distances).tolist()
    manager = pywrapcp.RoutingIndexManager(len(matrix), 1, 0)
    model = pywrapcp.RoutingModel(manager)
    model.SetArcCostEvaluatorOfAllVehicles(model.RegisterTransitMatrix(matrix))
    parameters = pywrapcp.DefaultRoutingSearchParameters()
    parameters.first_solution_strategy = routing_enums_pb2.FirstSolutionStrategy.PATH_CHEAPEST_ARC
    parameters.local_search_metaheuristic = routing_enums_pb2.LocalSearchMetaheuristic.GUIDED_LOCAL_SEARCH
    parameters.time_limit.FromMilliseconds(max(1, int(seconds * 1000)))
    answer = model.SolveWithParameters(parameters)
    if answer is None:
        return _none(f"OR-Tools found no tour in {seconds:g} s.", _version("ortools"))
    tour = []
    index = model.Start(0)
    while not model.IsEnd(index):
        tour.append(manager.IndexToNode(index))
        index = answer.Value(model.NextVar(index))
    return _found(check_tsp, record, np.array(tour, dtype=np.int64), False, _version("ortools"))


def _solve(cp_model: Any, model: Any, seconds: float, seed: int) -> tuple[Any, Any]:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    return solver, solver.solve(model)


def _arc_flow(record: BppFile, deadline: float) -> tuple[list[list[int]] | None, int]:
    """Bins (None: none found in time) and a lower bound, from paths 0 -> load -> load ..., larger items first."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    kinds, counts = (found[::-1] for found in np.unique(record.sizes, return_counts=True))
    if record.capacity > 10**6 or record.capacity * len(kinds) > MOST_ARCS:
        return None, 0
    tails, kind = _arcs(kinds.tolist(), counts.tolist(), record.capacity)
    m = len(tails)
    every, ones = np.arange(m), np.ones(m)
    heads = tails + kinds[kind]
    shape = (record.capacity + 1, m)
    flow = csr_array((np.r_[ones, -ones], (np.r_[heads, tails], np.r_[every, every])), shape=shape)[1:-1]
    packed = csr_array((ones, (kind, every)), shape=(len(kinds), m))
    answer = milp(
        (tails == 0).astype(float),
        constraints=[LinearConstraint(flow, 0, np.inf), LinearConstraint(packed, counts, np.inf)],
        integrality=ones,
        bounds=Bounds(0, np.inf),
        options={"time_limit": max(0.01, deadline - time.monotonic())},
    )
    dual = answer.mip_dual_bound
    least = math.ceil(dual - 1e-6) if dual is not None and math.isfinite(dual) else 0
    if answer.x is None:
        return None, least
    return _paths(record, kinds.tolist(), kind.tolist(), tails.tolist(), np.round(answer.x).astype(int).tolist()), least


def _arcs(kinds: list[int], counts: list[int], capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Loads before (tails) and kind of every arc; kinds come in descending order of size."""
    reached = np.zeros(capacity + 1, dtype=bool)
    reached[0] = True
    tails, kind = [], []
    for k, (size, count) in enumerate(zip(kinds, counts, strict=True)):
        before = reached.copy()  # loads with up to so many items of this kind
        used = np.zeros(capacity + 1, dtype=bool)
        for _ in range(min(count, capacity // size)):
            starts = np.flatnonzero(before[: capacity + 1 - size])
            used[starts] = True
            before = np.zeros(capacity + 1, dtype=bool)
            before[starts + size] = True
            reached |= before
        starts = np.flatnonzero(used)
        tails.append(starts)
        kind.append(np.full(len(starts), k))
    return np.concatenate(tails), np.concatenate(kind)


def _paths(record: BppFile, kinds: list[int], kind: list[int], tails: list[int], flow: list[int]) -> list[list[int]]:
    """Bins out of a flow: one path after the other from load 0 until it can go no further."""
    items = [np.flatnonzero(record.sizes == size).tolist() for size in kinds]
    leaving: dict[int, list[int]] = {}
    for tail, k, amount in zip(tails, kind, flow, strict=True):
        leaving.setdefault(tail, []).extend([k] * amount)
    bins = []
    while leaving.get(0):
        load, filling = 0, []
        while leaving.get(load):
            k = leaving[load].pop()
            load += kinds[k]
            if items[k]:  # the program may pack more items than there are
                filling.append(items[k].pop())
        if filling:
            bins.append(sorted(filling))
    return bins


def _full_bins(record: BppFile, bound: int, deadline: float, seed: int) -> list[list[int]]:
    """Bins opened by the largest item left and filled up as far as any others can: the best of many random orders.

    Which sums can be reached is kept in the bits of one integer, so capacities above a million only get the plain
    first-fit decreasing.
    """
    sizes = record.sizes.tolist()
    order = sorted(range(len(sizes)), key=lambda item: -sizes[item])
    best = bin_packing.groups(bin_packing.fit_decreasing(record.sizes, record.capacity, best=False))
    stream = np.random.default_rng(seed)
    while len(best) > bound and record.capacity <= 10**6 and time.monotonic() < deadline:
        left = sorted(order, key=lambda item: -sizes[item] * (1 + 0.3 * stream.random()))
        bins = []
        while left and len(bins) < len(best):
            first = max(left, key=lambda item: sizes[item])
            left.remove(first)
            filling = [first, *_fullest(sizes, left, record.capacity - sizes[first])]
            gone = set(filling)
            left = [item for item in left if item not in gone]
            bins.append(filling)
        if not left and len(bins) < len(best):
            best = bins
    return [sorted(items) for items in best]


def _fullest(sizes: list[int], items: list[int], room: int) -> list[int]:
    """Items that fill the room as far as possible, early ones rather than late ones."""
    within = (1 << (room + 1)) - 1
    reachable = [1]
    for item in reversed(items):
        reachable.append((reachable[-1] | reachable[-1] << sizes[item]) & within)
    total = reachable[-1].bit_length() - 1
    chosen = []
    for k, item in enumerate(items):
        rest = reachable[len(items) - k - 1]
        if total >= sizes[item] and rest >> (total - sizes[item]) & 1:
            chosen.append(item)
            total -= sizes[item]
    return chosen
