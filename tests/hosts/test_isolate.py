"""Evaluating programs for a host: numbers, failures and their reasons, what may be read, and weaker machines."""

import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import types

import numpy as np
import pytest
from isolated import MODES, Problem, confined, nothing_is_left, outcome, outcomes, program  # noqa: F401

from ttc_esopt.evaluation import sandbox
from ttc_esopt.scaffolds.hosts import isolate
from ttc_esopt.scaffolds.hosts.client import HostError
from ttc_esopt.scaffolds.hosts.isolate import Isolation, Outcome, evaluate, settle


@pytest.mark.parametrize("mode", MODES)
def test_outcomes_come_in_the_order_of_the_programs(mode):
    codes = [program(f"time.sleep({0.2 - 0.05 * n})\nreturn {n}") for n in range(4)]
    assert [one.value for one in outcomes(*codes, processes=-1, mode=mode)] == [0, 1, 2, 3]
    assert outcomes() == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", 1),
        ("-0.5", -0.5),
        ("True", 1),
        ("np.float32(0.5)", 0.5),
        ("np.int64(7)", 7),
        ("np.array([2.5])", 2.5),
        ("2**60 + 1", 2**60 + 1),
        ("__import__('fractions').Fraction(1, 4)", 0.25),
    ],
)
def test_numbers_of_any_kind_become_plain_ones(value, expected):
    found = outcome(program(f"import numpy as np\nreturn {value}"))
    assert found == Outcome(expected, None, "", found.seconds) and type(found.value) in (int, float)


FAILURES = {
    "a name that is not there": ("return x", "exception", "NameError"),
    "None": ("return None", "exception", "the problem's evaluate returned None"),
    "not a number": ("return 'much'", "shape", "evaluate returned str, not a number"),
    "an array": ("import numpy as np\nreturn np.ones(3)", "shape", "ndarray"),
    "a complex number": ("return 1j", "shape", "complex"),
    "not finite": ("return float('nan')", "nonfinite", "nan"),
    "minus infinity": ("return -float('inf')", "nonfinite", "-inf"),
    "an integer that no float holds": ("return 10**400", "nonfinite", "inf"),
    "sys.exit": ("sys.exit(3)", "crash", "SystemExit: 3"),
    "os._exit": ("os._exit(3)", "crash", "ended itself with exit status 3"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", "crash", "KeyboardInterrupt"),
    "reads address 0": ("import ctypes\nctypes.string_at(0)", "crash", "Segmentation fault"),
    "kills itself": ("os.kill(os.getpid(), signal.SIGKILL)", "crash", "signal 9"),
    "recursion": ("f()", "exception", "RecursionError"),
    "an exception whose text raises": (
        "class E(Exception):\n  def __str__(self): raise E\nraise E",
        "exception",
        "E",
    ),
    "an exception with text that is no Unicode": ("raise ValueError('\\ud800')", "exception", "ValueError"),
}


@pytest.mark.parametrize("mode", MODES)
def test_failures_have_a_word_and_a_reason(mode):
    problem = Problem(swallow=False)
    found = outcomes(*(program(text) for text, _, _ in FAILURES.values()), problem=problem, mode=mode)
    for name, one, (_, failure, words) in zip(FAILURES, found, FAILURES.values(), strict=True):
        assert (name, one.value, one.failure) == (name, None, failure)
        assert words in one.detail and len(one.detail) < 2500, name
        one.detail.encode()


def test_code_that_does_not_compile_is_a_syntax_failure_even_if_the_host_swallows_it():
    for problem in (Problem(), Problem(swallow=False)):
        found = outcome("def f(:\n", problem=problem)
        assert found.failure == "syntax" and "SyntaxError: invalid syntax" in found.detail


def test_what_is_evaluated_need_not_be_python():
    assert evaluate(len, ["int main() {"], timeout=5, processes=1, isolation=Isolation())[0].value == 12


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["logged", "printed"])
def test_an_exception_that_the_host_swallows_is_told_if_it_is_logged_or_printed(mode, how):
    log = logging.getLogger("a host")
    log.setLevel(logging.INFO)  # the record is below it: nobody would see it
    found = outcome(program("return {}['capacity']"), problem=Problem(log=log, show=how == "printed"), mode=mode)
    assert found.failure == "exception" and "evaluate returned None" in found.detail
    assert "KeyError: 'capacity'" in found.detail and "in f" in found.detail


@confined
def test_an_exception_that_the_host_only_swallows_is_found_by_running_again():
    assert "KeyError: 'capacity'" in outcome(program("return {}['capacity']")).detail
    handled = "try: {}['inner']\nexcept KeyError: pass\nreturn None"
    assert outcome(program(handled)).detail.startswith("the problem's evaluate returned None")


@confined
def test_a_second_run_that_does_not_end_costs_little():
    marked = program("time.sleep(30 if sys.gettrace() else 0)\nraise ValueError")
    found = outcome(marked, timeout=30)
    assert found.failure == "exception" and found.seconds < 1


@pytest.mark.parametrize("mode", ["auto", "limits"])
def test_memory_is_limited(mode):
    for problem in (Problem(swallow=False), Problem(log=logging.getLogger())):
        for text in ("return len(bytes(3 << 30))", "x = []\nwhile True: x.append(bytes(1 << 20))"):
            assert outcome(program(text), problem=problem, mode=mode, memory_mb=256).failure == "memory"


@confined
def test_files_are_written_in_the_scratch_folder_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").write_text("7")
    inside = "import tempfile\nwith tempfile.NamedTemporaryFile('w+') as t: t.write('x')\nreturn 1"
    relative = "return int(open('data.txt').read())"
    outside = f"open({str(tmp_path / 'made')!r}, 'w').write('x')\nreturn 1"
    overwrite = "open('data.txt', 'w').write('9')\nreturn 1"
    found = outcomes(*map(program, (inside, relative, outside, overwrite)))
    assert [one.value for one in found] == [1, 7, None, None]
    assert "PermissionError" in found[2].detail
    assert (tmp_path / "data.txt").read_text() == "7" and not (tmp_path / "made").exists()


@confined
def test_what_lies_elsewhere_is_readable_only_if_named(tmp_path):
    (tmp_path / "data.txt").write_text("7")
    code = program(f"return int(open({str(tmp_path / 'data.txt')!r}).read())")
    assert outcome(code).failure == "exception"
    assert outcome(code, read=(str(tmp_path),)).value == 7


@confined
def test_data_beside_the_problems_module_is_readable(tmp_path, monkeypatch):
    (tmp_path / "own_problem.py").write_text(
        "import os\nclass P:\n def evaluate(self, code):\n  here = os.path.dirname(__file__)\n"
        "  return float(open(os.path.join(here, 'data.txt')).read())\n"
    )
    (tmp_path / "data.txt").write_text("7")
    monkeypatch.syspath_prepend(tmp_path)
    import own_problem

    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    for function in (own_problem.P().evaluate, functools.partial(own_problem.P.evaluate, own_problem.P())):
        assert evaluate(function, [""], timeout=5, processes=1, isolation=Isolation())[0].value == 7


@confined
def test_a_home_that_is_the_current_folder_is_not_opened(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("data.txt", ".secret", "letters/one.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("7")
    codes = [program(f"return int(open({name!r}).read())") for name in ("data.txt", ".secret", "letters/one.txt")]
    assert [one.value for one in outcomes(*codes)] == [7, None, None]


@confined
def test_a_scratch_folder_is_not_filled_without_end():
    code = program("import tempfile\nfor n in range(4000): open(f'{tempfile.gettempdir()}/{n}', 'w')\ntime.sleep(60)")
    assert outcome(code).failure == "output"


@pytest.mark.parametrize("mode", MODES)
def test_open_files_keys_and_the_terminal_stay_with_the_host(mode, monkeypatch, tmp_path):
    monkeypatch.setenv("TTC_ESOPT_HOST", "secret-1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-2")
    monkeypatch.setenv("hf_token", "secret-3")
    monkeypatch.setenv("HARMLESS", "kept")
    ours, theirs = socket.socketpair()
    high = os.dup2(ours.fileno(), 150)
    text = """
        links = []
        for n in os.listdir('/proc/self/fd'):
            try: links.append(os.readlink(f'/proc/self/fd/{n}'))
            except OSError: pass
        left = [link for link in links if link != '/dev/null' and not link.startswith(('pipe:', '/proc/'))]
        pipes = sum(link.startswith('pipe:') for link in links)
        with open('/proc/self/environ', 'rb') as file: shown = file.read()
        leaked = [name for name in os.environ if os.environ[name].startswith('secret')]
        assert not left and pipes == 2 and not leaked, (links, leaked)
        assert b'secret-' not in shown and os.environ['HARMLESS'] == 'kept'
        assert sys.stdin.read() == '' and print('x' * 100_000) is None
        assert os.getsid(0) == os.getpid() and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        return 1
    """
    try:
        found = outcome(program(text), problem=Problem(swallow=False), mode=mode)
        assert found.value == 1, found.detail
    finally:
        os.close(high)
        ours.close()
        theirs.close()


def test_keys_that_were_there_from_the_start_cannot_be_read_back():
    script = """
        from ttc_esopt.scaffolds.hosts.isolate import Isolation, evaluate
        def shown(code):
            return open("/proc/self/environ").read().count("sk-12345")
        assert shown("") == 1
        print(evaluate(shown, [""], timeout=5, processes=1, isolation=Isolation())[0].value)
    """
    environment = {**os.environ, "DEEPSEEK_API_KEY": "sk-12345"}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == "0\n"


def test_a_hosts_log_file_does_not_get_into_the_result(tmp_path):
    log = logging.getLogger("a host with a file")
    handler = logging.FileHandler(tmp_path / "run_log.txt")
    log.addHandler(handler)
    try:
        problem = Problem(log=log)
        log.setLevel(logging.DEBUG)
        found = outcome("import logging\n" + program("raise ValueError('seen')"), problem=problem, mode="off")
        assert "ValueError: seen" in found.detail
    finally:
        log.removeHandler(handler)
        handler.close()
    assert (tmp_path / "run_log.txt").read_text() == ""


def test_random_numbers_depend_on_the_program_alone():
    text = "import random, numpy as np\nreturn random.random() + np.random.random()"
    np.random.seed(1)
    first, other, again = outcomes(program(text), program(text + " # other"), program(text))
    np.random.seed(2)
    assert first.value == again.value == outcome(program(text), mode="off").value != other.value


def test_the_hosts_own_state_is_what_it_was(monkeypatch):
    calls = []
    outcome(program("return 1"), problem=types.SimpleNamespace(evaluate=lambda code: calls.append(code) or 1))
    assert calls == []
    before = [signal.getsignal(number) for number in signal.valid_signals()], signal.pthread_sigmask(0, [])
    log, mask = logging.getLogger("kept"), logging.Logger.debug
    log.addHandler(logging.NullHandler())
    outcomes(program("return 1"), program("while True: pass"), timeout=0.3)
    assert before == ([signal.getsignal(number) for number in signal.valid_signals()], signal.pthread_sigmask(0, []))
    assert log.handlers and logging.Logger.debug is mask


def test_many_threads_evaluate_at_once():
    results = {}

    def work(k):
        codes = [program(f"return {10 * k + n}") for n in range(3)] + [program("while True: pass")]
        results[k] = [one.value for one in outcomes(*codes, timeout=1.5)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: [10 * k, 10 * k + 1, 10 * k + 2, None] for k in range(6)}


def test_a_host_that_ignores_its_children_gets_its_outcomes():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert outcome(program("return 3")).value == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.fixture
def machine(monkeypatch):
    """Has this machine offer the given layers only."""

    def offer(*layers):
        monkeypatch.setattr(isolate, "_offered", lambda: frozenset(layers) & frozenset(sandbox.found().layers))

    return offer


def test_a_machine_without_kernel_layers_still_limits(machine):
    machine()
    assert outcome(program("return 1")).value == 1
    assert outcome(program("return len(bytes(3 << 30))"), problem=Problem(swallow=False)).failure == "memory"
    assert "read and change your files" in settle(Problem().evaluate, program("return 1"), Isolation(), 5)[1]
    with pytest.raises(HostError, match="--sandbox required.*no system-call filters.*and no Landlock"):
        outcome(program("return 1"), mode="required")


@confined
@pytest.mark.parametrize(("layer", "can"), [("seccomp", "read your files"), ("landlock", "reach the network")])
def test_one_layer_alone_protects_as_far_as_it_goes(machine, layer, can, tmp_path):
    machine(layer)
    writes = outcome(program(f"open({str(tmp_path / 'made')!r}, 'w')\nreturn 1"))
    forks = outcome(program("if os.fork() == 0: os._exit(0)\nreturn 1"))
    assert writes.failure == "exception" and not (tmp_path / "made").exists()
    assert forks.failure == ("forbidden" if layer == "seccomp" else None)
    assert can in settle(Problem().evaluate, None, Isolation(), 5)[1]


@confined
def test_a_full_sandbox_in_which_the_problem_works_is_kept_in_silence():
    for isolation in (Isolation(), Isolation(mode="required"), Isolation(mode="off")):
        assert settle(Problem().evaluate, program("return 1"), isolation, 5) == (isolation, None)


@confined
def test_a_problem_that_needs_processes_gets_the_strongest_that_works(machine):
    template = program("if os.fork() == 0: os._exit(0)\nreturn 1")
    settled, sentence = settle(Problem().evaluate, template, Isolation(), 5)
    assert settled == Isolation(mode="limits")
    assert "forbidden" in sentence and "limits on memory" in sentence and "\n" not in sentence
    with pytest.raises(HostError, match="--sandbox required.*forbidden.*--sandbox auto"):
        settle(Problem().evaluate, template, Isolation(mode="required"), 5)


@confined
def test_a_problem_that_needs_much_memory_falls_back_to_a_limit_on_time():
    # more than earlier tests in this process have left free, which the child may take without asking the system
    template = program("import numpy as np\nreturn len(np.zeros(1 << 32, np.uint8))")
    settled, sentence = settle(Problem().evaluate, template, Isolation(memory_mb=64), 5)
    assert settled.mode == "off" and "only a limit on time" in sentence


def test_a_template_that_never_works_is_reported_and_the_sandbox_stays():
    settled, sentence = settle(Problem().evaluate, program("return {}['x']"), Isolation(), 5)
    assert settled == Isolation() and "fails, with and without the sandbox" in sentence
    assert settle(Problem().evaluate, None, Isolation(mode="off"), 5) == (Isolation(mode="off"), None)


def test_wrong_settings_are_refused():
    with pytest.raises(HostError, match="Expected one of auto, required, limits, off, got 'none'"):
        Isolation(mode="none")
    with pytest.raises(HostError, match="--memory-mb"):
        Isolation(memory_mb=0)
