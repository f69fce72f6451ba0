"""ReEvo's `eval.py`, run so that a hostile program ends when its time is over, and takes nothing with it.

ReEvo writes each program to one `gpt.py` beside `eval.py`, where two runs overwrite each other and Python may take the
compiled file of the program before; starts whatever `python` the PATH names; waits without limit for a first line of
output; and at the timeout ends one process, not those that it has started. Here each program has a `gpt.py` of its own
in front of `sys.path`, and a process of ours between ReEvo and `eval.py` that ends everything below it.

This file is also that process: it is started by its path, since the interpreter may not have this package installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import locale
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import Any

TRUSTED, LIMITS, FULL = "trusted", "limits", "full"  # how a program is confined; the seed function is the user's own
_GRACE = 10.0  # seconds in which a process of ours ends everything below it
_LARGEST_FILE = 16 << 20  # bytes, the output included
_NO_SANDBOX = "This kernel has no Landlock or no system-call filter."


def environment() -> dict[str, str]:
    """This process's environment without what a program has no business to see."""
    from ttc_esopt.scaffolds.hosts.candidate import is_secret  # not where this file is started by its path

    kept = {name: value for name, value in os.environ.items() if not is_secret(name)}
    kept |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    kept.setdefault("OMP_NUM_THREADS", "1")  # there is a program per core already
    return kept


class Evaluation:
    """One running `eval.py`; ReEvo uses it as it would a `subprocess.Popen`.

    Attributes
    ----------
    seconds, timeout : it ran, and might have run
    timed_out : whether it was ended at the timeout
    status : exit status; 128 and more: ended by a signal
    folder : where its `gpt.py` is
    output : path of the file that it writes to, to be made readable at the end
    """

    def __init__(self, process: subprocess.Popen, folder: str, timeout: float | None, done: Any) -> None:
        self.folder, self.timeout = folder, timeout
        self._process, self._done = process, done
        self._began = time.monotonic()
        self.seconds, self.timed_out, self.status = 0.0, False, 0
        self.output: str | None = None
        self._thread = threading.Thread(target=self._watch, name="evaluation", daemon=True)
        self._thread.start()

    def communicate(self, timeout: float | None = None) -> tuple:
        """Wait for the end, which the timeout given at the start brings about."""
        self._thread.join()
        if self.output is not None:
            _make_readable(self.output)
        if self.timed_out:
            raise subprocess.TimeoutExpired("eval.py", self.timeout or 0)
        return None, None

    def kill(self) -> None:
        """Nothing is left to end after `communicate`."""

    def _watch(self) -> None:
        process = self._process
        try:
            try:
                self.status = process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                self.timed_out = True
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.status = process.wait(_GRACE)
            self.seconds = time.monotonic() - self._began
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
            self._done()


@dataclass
class Evaluator:
    """Starts evaluations, at most one per core at a time, each with the whole timeout for itself.

    Attributes
    ----------
    root : ReEvo's checkout
    memory_mb : what one program may use
    mode : `LIMITS` or `FULL` for programs of a model
    """

    root: str
    memory_mb: int = 4096
    mode: str = LIMITS
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def __post_init__(self) -> None:
        self._free = threading.BoundedSemaphore(self.cores)

    def start(
        self, script: str, arguments: list[str], code: str, output: Any, *, timeout: float | None,
        mode: str | None = None, errors: Any = subprocess.STDOUT,
    ) -> Evaluation:  # fmt: skip
        """Run `script` with `arguments` on a program, once a core is free; `output` is an open file."""
        self._free.acquire()
        try:
            folder = tempfile.mkdtemp(prefix="ttc-esopt-program-")
            with open(os.path.join(folder, "gpt.py"), "w", encoding="utf-8", errors="replace") as file:
                file.write(code + "\n")
            import ttc_esopt

            job = {
                "script": script, "arguments": arguments, "root": self.root, "folder": folder,
                "mode": mode or self.mode, "memory": self.memory_mb << 20, "package": list(ttc_esopt.__path__)[0],
                "cpu_seconds": int(60 + 8 * (timeout or 3600)), "parent": os.getpid(),
            }  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, "-u", os.path.abspath(__file__), json.dumps(job)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment(), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._free.release()
            raise
        return Evaluation(process, folder, timeout, self._free.release)

    def works(self, script: str, arguments: list[str], code: str, *, timeout: float | None, mode: str) -> str:
        """Try a program that is known to be sound under `mode`; "" if it works, else the last line of its output."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            evaluation = self.start(script, arguments, code, output, timeout=timeout, mode=mode)
            try:
                evaluation.communicate()
            except subprocess.TimeoutExpired:
                return f"no result after {timeout:g} s"
            output.seek(0)
            text = output.read().strip()
        if evaluation.status or "Traceback" in text:
            return text.rpartition("\n")[2] or f"status {evaluation.status}"
        return ""


def _make_readable(path: str) -> None:
    """Replace bytes that are no text: ReEvo reads the file as text and would end with an exception."""
    encoding = locale.getpreferredencoding(False)
    with open(path, "rb") as file:
        content = file.read()
    try:
        content.decode(encoding)
    except UnicodeDecodeError:
        with open(path, "w", encoding="ascii") as file:
            file.write(content.decode("ascii", "replace").replace("\ufffd", "?"))


# what follows runs in the process between ReEvo and eval.py, and in its child


class _Ended(BaseException):
    """ReEvo, or its end, ended this evaluation."""


def _end(number: int, frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def main() -> None:
    """Start `eval.py` in a child and wait; then end whatever the child left behind."""
    job = json.loads(sys.argv[1])
    sandbox = _sandbox(job["package"])
    from ttc_esopt.evaluation import children  # importable from here on

    signal.signal(signal.SIGTERM, _end)
    status = 128 + signal.SIGTERM
    try:
        sandbox.adopt_orphans()
        sandbox.prctl(1, signal.SIGTERM)  # at ReEvo's end
        if os.getppid() != job["parent"]:
            raise _Ended
        child = os.fork()
        if child == 0:
            _evaluate(job, sandbox)
            return
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except _Ended:
        pass
    children.end_orphans(_GRACE / 2)
    shutil.rmtree(job["folder"], ignore_errors=True)
    os._exit(status if status >= 0 else 128 - status)


def _evaluate(job: dict[str, Any], sandbox: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    folder, script = job["folder"], job["script"]
    if job["mode"] == FULL:
        from ttc_esopt.evaluation import landlock, seccomp

        if not (landlock.version() and seccomp.machine_supported()):
            sys.exit(_NO_SANDBOX)
        limits = sandbox.Limits(job["memory"], job["cpu_seconds"], descriptors=256)
        read = [*landlock.readable(), job["root"], os.getcwd()]
        sandbox.enter(os.getppid(), folder, limits, ("seccomp", "landlock"), read, folder=os.getcwd())
    else:
        sandbox.detach(os.getppid())
        if job["mode"] == LIMITS:
            # Not the address space: what reserves much and uses little (CUDA) is to work without the full sandbox.
            for what, limit in (
                (resource.RLIMIT_DATA, job["memory"]),
                (resource.RLIMIT_CPU, job["cpu_seconds"]),
                (resource.RLIMIT_FSIZE, _LARGEST_FILE),
            ):
                hard = resource.getrlimit(what)[1]
                limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.setrlimit(what, (limit, limit))
    sys.argv = [script, *job["arguments"]]
    sys.path[:1] = [folder, os.path.dirname(script)]
    sys.path.append(job["root"])
    runpy.run_path(script, run_name="__main__")


def _sandbox(package: str) -> Any:
    """The module, whether this interpreter has our package or not."""
    if importlib.util.find_spec("ttc_esopt") is None:
        spec = importlib.util.spec_from_file_location(
            "ttc_esopt", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["ttc_esopt"] = module
        spec.loader.exec_module(module)
    return importlib.import_module("ttc_esopt.evaluation.sandbox")


if __name__ == "__main__":
    main()
