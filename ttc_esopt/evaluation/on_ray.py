"""An evaluator whose programs are run on the nodes of a Ray cluster, handed out by joblib's Ray backend.

A worker process on a node is a driver in small: it keeps an ordinary `Evaluator`, whose sandboxed child runs the
program. So what a program can reach on a node, its time limit and its outcome are those of an evaluation here. Where
workers are lost, all are started anew on the nodes that are left, and what the lost ones had is evaluated again.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ttc_esopt.engines.replica_cluster import Cluster
from ttc_esopt.errors import ConfigurationError, EngineError, EvaluationError
from ttc_esopt.evaluation.evaluator import Evaluator
from ttc_esopt.evaluation.outcome import Outcome
from ttc_esopt.problems import Problem, load

TRIES = 3  # workers that may be lost over one program
PATIENCE = 120.0  # seconds to try to start workers: Ray takes some to see that a node is gone
KEPT = 2  # evaluators that a worker keeps at a time: that of the search, and that of the set at hand
_AT_LEAST = 2  # processors of a Ray of its own; joblib uses no backend for one
# Workers take no processors: replicas hold all of them, and are idle while programs are evaluated. What takes nothing
# at all is put on any node by chance, so they take a MiB.
_ACTORS = {"num_cpus": 0, "memory": 1 << 20, "scheduling_strategy": "SPREAD"}
_BACKEND = "ttc-esopt-ray"

_kept: OrderedDict[str, Evaluator] = OrderedDict()  # of this process, if it is a worker
_crews: dict[tuple[str, int], _Crew] = {}  # of this process, if it is the driver


def evaluated(task: tuple[str, Any, str]) -> Outcome:
    """Run in a worker: what becomes of one program.

    Parameters
    ----------
    task : digest and reference of an evaluator's configuration, and the program. One argument, since joblib's Ray
        backend would keep a longer one in the cluster's memory as long as its workers
    """
    digest, reference, code = task
    if digest not in _kept:
        import ray

        made = pickle.loads(ray.get(reference))  # from the driver, which is trusted
        problem = load(made.pop("problem"), **made.pop("options"))
        made["instances"] = pickle.loads(made["instances"])  # whose classes the problem's file may have brought
        while len(_kept) >= KEPT:
            _kept.popitem(last=False)[1].close()
        _kept[digest] = Evaluator(problem, workers=1, **made)
    _kept.move_to_end(digest)
    return _kept[digest].evaluate([code])[0]


def tidied() -> None:
    """Run in a worker, before Ray kills it: end its evaluators, which leaves no folders behind."""
    while _kept:
        _kept.popitem()[1].close()


def _register(joblib: Any) -> None:
    """Joblib's Ray backend, but one that gives the loss of a worker as the result of its task.

    As it is, one loss throws away what all other workers have found.
    """
    from ray.exceptions import RayError
    from ray.util.joblib.ray_backend import RayBackend

    class Patient(RayBackend):
        def retrieve_result_callback(self, out: Any) -> Any:
            return [out] if isinstance(out, RayError) else super().retrieve_result_callback(out)

    joblib.register_parallel_backend(_BACKEND, Patient)


class _Crew:
    """The workers of all evaluators of this process that ask for the same ones; they end with the last of those."""

    def __init__(self, address: str, workers: int) -> None:
        try:
            import joblib
        except ImportError:
            raise ConfigurationError(
                "Evaluation on Ray needs joblib, which is not installed: pip install 'ttc-esopt[ray]' (--evaluate-on)."
            ) from None
        self._joblib = joblib
        self.users = 0
        self._cluster = Cluster(address, cores=_AT_LEAST)
        self.ray = self._cluster.ray
        self._wanted = workers
        self._parallel: Any = None

    @property
    def jobs(self) -> int:
        """How many programs are run at a time."""
        most = self._cluster.processors()
        return min(self._wanted, most) if self._wanted else most

    def run(self, tasks: Sequence[tuple[str, Any, str]]) -> list[Outcome]:
        """Outcomes in the order of the tasks; raises EvaluationError where `TRIES` workers were lost over one."""
        found: dict[int, Outcome] = {}
        left, lost = list(range(len(tasks))), None
        for _ in range(TRIES):
            try:
                results = self._at_work()(self._joblib.delayed(evaluated)(tasks[i]) for i in left)
            except BaseException:  # they may be at something still
                self._end()
                raise
            found |= {i: one for i, one in zip(left, results, strict=True) if isinstance(one, Outcome)}
            lost = next((one for one in results if not isinstance(one, Outcome)), None)
            if lost is None:
                return [found[i] for i in range(len(tasks))]
            left = [i for i in left if i not in found]
            self._end()
        cause = (str(lost).strip().splitlines() or [""])[0]
        raise EvaluationError(
            f"{len(left)} programs could not be evaluated on the cluster, each was tried {TRIES} times: "
            f"{type(lost).__name__}: {cause[:200]}. Nothing that was written is lost: go on with `ttc-esopt resume`, "
            "best without the machine at fault, or with --evaluate-on here."
        )

    def close(self) -> None:
        if self._parallel is not None:
            with suppress(Exception):
                self._parallel(self._joblib.delayed(tidied)() for _ in range(self._parallel.n_jobs))  # one for each
        self._end()
        self._cluster.close()

    def _at_work(self) -> Any:
        """The workers, started where there are none."""
        until = time.monotonic() + PATIENCE
        while self._parallel is None:
            _register(self._joblib)
            with self._joblib.parallel_config(backend=_BACKEND, ray_remote_args=_ACTORS):
                # All at once: the backend deals in turn, and would wait for the slowest worker if it dealt on demand.
                parallel = self._joblib.Parallel(n_jobs=max(_AT_LEAST, self.jobs), batch_size=1, pre_dispatch="all")
            try:
                self._parallel = parallel.__enter__()
            except self.ray.exceptions.RayError:  # on a node of which Ray does not know yet that it is gone
                if time.monotonic() > until:
                    raise
                time.sleep(1.0)
        return self._parallel

    def _end(self) -> None:
        parallel, self._parallel = self._parallel, None
        if parallel is not None:
            with suppress(Exception):  # a Ray that has died cannot end well
                parallel.__exit__(None, None, None)


class RayEvaluator(Evaluator):
    """An `Evaluator` whose programs are run on a Ray cluster; outcomes and their order are the same.

    `workers` counts processes in the whole cluster (None: one per processor of each node). The cluster is joined, or
    a Ray started on this machine, when the first program is to be evaluated. `solutions` runs its one program here.

    Parameters
    ----------
    problem, given : see `Evaluator`
    address : see `Cluster`

    Raises
    ------
    ConfigurationError
        See `Evaluator`; also later, where Ray or joblib is not installed, or the sandbox of a node is weaker than
        required.
    EngineError
        Later: no cluster answers.
    """

    def __init__(self, problem: Problem, *, address: str = "", workers: int | None = None, **given: Any) -> None:
        super().__init__(problem, workers=workers, **given)
        self._place = address, workers or 0
        self._crew: _Crew | None = None
        self._sent: tuple[str, Any] | None = None
        self._made = {
            "problem": problem.spec, "options": problem.chosen, "seed": self.seed, "timeout": self.timeout,
            "memory_mb": self._config["memory_mb"], "lenient": self.lenient, "compile": self.compile,
            "sandbox": given.get("sandbox", "auto"), "layers": self._config["layers"],
        }  # fmt: skip

    def close(self) -> None:
        """End what runs here, and the workers if no other evaluator has them."""
        super().close()
        crew, self._crew, self._sent = self._crew, None, None
        if crew is not None:
            crew.users -= 1
            if not crew.users:
                del _crews[self._place]
                crew.close()

    def _fresh(self, codes: Sequence[str], done: Callable[[str, Outcome], None]) -> None:
        crew = self._joined()
        if crew.jobs < _AT_LEAST:
            super()._fresh(codes, done)
            return
        if self._sent is None:
            made = pickle.dumps({**self._made, "instances": pickle.dumps(self.instances, protocol=5)}, protocol=5)
            self._sent = hashlib.sha256(made).hexdigest(), crew.ray.put(made)
        try:
            outcomes = crew.run([(*self._sent, code) for code in codes])
        except crew.ray.exceptions.RayError as error:  # not of a worker, but of the whole
            raise EngineError(f"The Ray cluster is gone: {str(error).strip()[:200]} (--ray-address).") from None
        for code, outcome in zip(codes, outcomes, strict=True):
            done(code, outcome)

    def _joined(self) -> _Crew:
        if self._crew is None:
            if self._place not in _crews:
                _crews[self._place] = _Crew(*self._place)
            self._crew = _crews[self._place]
            self._crew.users += 1
        return self._crew
