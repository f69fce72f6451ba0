"""Programs that misbehave: each gets its failure word, hurts nobody else, and the run goes on."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ttc_esopt.evaluation import Evaluator
from ttc_esopt.evaluation.sandbox import KERNEL_LAYERS
from ttc_esopt.problems import load

PROBLEM = load("tsp_construct")
NEAREST = PROBLEM.baselines["nearest_neighbour"]


def body(text):
    """A program whose function runs `text` and then chooses the nearest node."""
    return (
        "import numpy as np\n"
        "def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):\n"
        + textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
        + "\n    return unvisited_nodes[0]\n"
    )


@pytest.fixture(scope="module")
def evaluator():
    with Evaluator(PROBLEM, workers=1, timeout=2, memory_mb=512) as shared:
        yield shared


HOSTILE = {
    "endless loop when called": (body("while True: pass"), "timeout"),
    "endless loop at module level": ("while True: pass\n" + NEAREST, "timeout"),
    "sleeps": (body("import time; time.sleep(60)"), "timeout"),
    "endless loop that catches everything": (
        "def select_next_node(*a):\n while True:\n  try:\n   while True: pass\n  except BaseException: pass",
        "timeout",
    ),
    "ignores SIGTERM, SIGINT and SIGXCPU, then loops": (
        body(
            """
            import signal
            for s in (signal.SIGTERM, signal.SIGINT, signal.SIGXCPU, signal.SIGALRM, signal.SIGHUP):
                signal.signal(s, signal.SIG_IGN)
            while True: pass
            """
        ),
        "timeout",
    ),
    "patches the clock, then loops": (body("import time; time.monotonic = lambda: 0.0\nwhile True: pass"), "timeout"),
    "fills the disk": (
        body("for i in range(4000): open(f'f{i}', 'wb').write(bytes(4 << 20))\nwhile True: pass"),
        "output",
    ),
    "fills the folder": (body("for i in range(4000): open(f'f{i}', 'wb').close()\nwhile True: pass"), "output"),
    "forges arrays of a size that no machine has": (
        "import os\n"
        "entries = b','.join([b'[\"int64\",[0,67108864,67108864,67108864]]'] * 64)\n"
        "os.write(3, b'{\"compile_seconds\":null,\"outputs\":[' + entries + b']}\\n')\n"
        "os._exit(0)",
        "forbidden",
    ),
    "sys.exit": (body("import sys; sys.exit(0)"), "crash"),
    "os._exit": (body("import os; os._exit(0)"), "crash"),
    "os._exit at module level": ("import os; os._exit(3)", "crash"),
    "KeyboardInterrupt": (body("raise KeyboardInterrupt"), "crash"),
    "reads address 0": (body("import ctypes; ctypes.string_at(0)"), "crash"),
    "aborts": (body("import os; os.abort()"), "crash"),
    "kills itself": (body("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "crash"),
    "3 GB of numpy": (body("x = np.ones(400_000_000)"), "memory"),
    "a list without end": (body("x = []\nwhile True: x.append(bytes(10_000_000))"), "memory"),
    "keeps all memory": (
        "x = []\nfor n in 10**7, 10**5, 10**3, 10:\n"
        " try:\n  while True: x.append(bytes(n))\n except MemoryError: pass\nwhile True: x.append([])",
        "memory",
    ),
    "raises its limits": (
        body(
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)\n"
            "x = np.ones(400_000_000)"
        ),
        "exception",
    ),
    "prints without end": (body("while True: print('x' * 1000)"), "output"),
    "writes 2 MiB to stderr": (body("import os; os.write(2, b'x' * (2 << 20))"), "output"),
    "deep recursion": (body("def f(n): return f(n + 1)\nf(0)"), "exception"),
    "endless recursion into the C stack": (
        body("import sys; sys.setrecursionlimit(10**9)\ndef f(): return sorted([1], key=lambda _: f())\nf()"),
        "crash",
    ),
    "division by zero": (body("1 / 0"), "exception"),
    "error that cannot be printed": (
        body("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E"),
        "exception",
    ),
    "missing module": ("import surely_not_there\n" + NEAREST, "exception"),
    "torch": ("import torch\n" + NEAREST, "exception"),
    "returns NaN": ("def select_next_node(*a): return float('nan')", "shape"),
    "returns a string": ("def select_next_node(*a): return '1'", "shape"),
    "returns None": ("def select_next_node(*a): pass", "shape"),
    "returns a float": ("def select_next_node(*a): return 1.0", "shape"),
    "returns True": ("def select_next_node(*a): return True", "shape"),
    "returns a one-element array": ("def select_next_node(c, d, u, m): return u[:1]", "shape"),
    "returns a gigabyte of text": ("def select_next_node(*a): return 'x' * 100_000_000", "shape"),
    "returns a huge integer": ("def select_next_node(*a): return 10 ** 5000", "infeasible"),
    "returns a negative node": ("def select_next_node(*a): return -1", "infeasible"),
    "returns a node that does not exist": ("def select_next_node(*a): return 50", "infeasible"),
    "returns the first node for ever": ("def select_next_node(*a): return 1", "infeasible"),
    "lies with __index__": (
        "class L:\n def __index__(self): return 1\n def __eq__(self, o): return True\n __hash__ = None\n"
        "def select_next_node(*a): return L()",
        "infeasible",
    ),
    "an int that claims to be every other int": (
        "class L(int):\n def __index__(self): return 7\n def __eq__(self, o): return True\n"
        " def __lt__(self, o): return True\n __le__ = __gt__ = __ge__ = __lt__\n __hash__ = int.__hash__\n"
        "def select_next_node(*a): return L(3)",
        "infeasible",
    ),
    "__index__ returns no int": (
        "class L:\n def __index__(self): return 'x'\ndef select_next_node(*a): return L()",
        "shape",
    ),
    "no such function": ("def other(*a): return 1", "name"),
    "function is a number": ("select_next_node = 3", "name"),
    "wrong number of arguments": ("def select_next_node(a): return 1", "exception"),
    "syntax error": ("def select_next_node(:\n  return", "syntax"),
    "null byte": (NEAREST + "\0", "syntax"),
    "lone surrogate": ("x = '\ud800'\n" + NEAREST, "syntax"),
    "nested too deeply to compile": ("x = " + "(" * 5000 + ")" * 5000, "syntax"),
    "prose": ("Here is my heuristic, enjoy!", "syntax"),
    "nothing": (" \n", "reply"),
}
# Only where the kernel can say no.
FORBIDDEN = {
    "fork": "import os\npid = os.fork()",
    "surviving grandchild": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)",
    "subprocess": "import subprocess; subprocess.run(['true'])",
    "os.system": "import os; os.system('true')",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "multiprocessing": "import multiprocessing as m\np = m.Process(target=print); p.start()",
    "socket": "import socket; socket.socket()",
    "unix socket": "import socket; socket.socket(socket.AF_UNIX)",
    "kills its parent": "import os; os.kill(os.getppid(), 9)",
    "stops its parent": "import os; os.kill(os.getppid(), 19)",
    "signals its group": "import os; os.kill(0, 9)",
    "signals everybody": "import os; os.kill(-1, 0)",
    "leaves its session": "import os; os.setsid()",
    "leaves its group": "import os; os.setpgid(0, os.getppid())",
    "raw vfork": "import ctypes; ctypes.CDLL(None).vfork()",
    "ptrace": "import ctypes, os; ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)",
    "fork in a thread": "import os, threading\nt = threading.Thread(target=os.fork); t.start(); t.join()",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_gets_its_word_and_the_next_one_its_value(evaluator, name):
    code, word = HOSTILE[name]
    outcome = evaluator.evaluate([code])[0]
    assert (outcome.valid, outcome.objective, outcome.failure) == (False, None, word), outcome
    assert outcome.seconds < 5
    assert evaluator.evaluate([f"# after {name!r}\n{NEAREST}"])[0].objective == pytest.approx(7.0043697989867315)


PROBE = "from ttc_esopt.evaluation.sandbox import kernel_layers; print(kernel_layers())"
LAYERS_HERE = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True).stdout


def needs(layer):
    return pytest.mark.skipif(layer not in LAYERS_HERE, reason=f"this kernel has no {layer}")


needs_seccomp, needs_landlock = needs("seccomp"), needs("landlock")


@needs_seccomp
@pytest.mark.parametrize("name", FORBIDDEN)
def test_an_attempt_to_leave_the_process_is_forbidden(evaluator, name):
    outcome = evaluator.evaluate([body(FORBIDDEN[name])])[0]
    assert outcome.failure == "forbidden", outcome


@needs_seccomp
@pytest.mark.parametrize("layers", [KERNEL_LAYERS, ("seccomp",)])
@pytest.mark.parametrize(
    "attempt",
    [
        "open({path!r}, 'w')",
        "open({path!r}, 'a')",
        "__import__('os').open({path!r}, 0o1000)",
        "__import__('os').mkdir({path!r})",
        "__import__('os').unlink({old!r})",
        "__import__('os').rename({old!r}, {path!r})",
        "__import__('os').link({old!r}, {path!r})",
        "__import__('os').symlink({old!r}, {path!r})",
        "__import__('os').truncate({old!r}, 0)",
        "__import__('os').chmod({old!r}, 0o777)",
        "__import__('os').utime({old!r})",
        "np.save({path!r}, np.ones(3))",
    ],
)
def test_files_outside_the_scratch_folder_cannot_be_changed(evaluator, tmp_path, layers, attempt):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("kept")
    before = old.stat()
    code = body(attempt.format(path=str(new), old=str(old)))
    outcome = evaluator.evaluate([code])[0] if layers == KERNEL_LAYERS else one_off(code, layers)
    assert outcome.failure == "exception", outcome
    assert old.read_text() == "kept" and old.stat().st_mtime_ns == before.st_mtime_ns
    assert not os.path.lexists(new)


_ONE_OFF = {}


def one_off(code, layers):
    """An evaluator with fewer kernel layers, kept for the module."""
    if layers not in _ONE_OFF:
        _ONE_OFF[layers] = Evaluator(PROBLEM, workers=1, timeout=2, layers=layers)
    return _ONE_OFF[layers].evaluate([code])[0]


@pytest.fixture(scope="module", autouse=True)
def close_one_offs():
    yield
    while _ONE_OFF:
        _ONE_OFF.popitem()[1].close()


@needs_landlock
def test_home_and_the_environment_of_other_processes_cannot_be_read(evaluator, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    for path in (secret, f"/proc/{os.getpid()}/environ", "/etc/shadow"):
        detail = evaluator.evaluate([body(f"open({str(path)!r}).read()")])[0].detail
        assert detail.startswith(("PermissionError", "FileNotFoundError")), detail  # the latter under bubblewrap
    home = body(f"import os; os.listdir({str(Path.home())!r})")
    assert evaluator.evaluate([home])[0].detail.startswith(("PermissionError", "FileNotFoundError"))


def test_the_users_environment_is_not_inherited(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    code = body("import os\nif 'HF_TOKEN' in os.environ: raise ValueError")
    with Evaluator(PROBLEM, workers=1) as fresh:
        assert fresh.evaluate([code])[0].valid


@needs_landlock
def test_the_scratch_folder_can_be_used_and_is_empty_for_the_next_program(evaluator):
    code = body(
        """
        import os, tempfile
        if len(unvisited_nodes) == 49 and not os.path.exists("note"):
            assert os.listdir() == []
            with open("note", "w") as f: f.write("x")
            with tempfile.NamedTemporaryFile() as f: f.write(b"x")
            assert os.listdir() == ["note"]
        """
    )
    for number in (1, 2):
        outcome = evaluator.evaluate([f"# {number}\n{code}"])[0]
        assert outcome.valid, outcome


def test_without_kernel_layers_a_surviving_grandchild_is_found_and_killed(tmp_path):
    note = tmp_path / "pid"
    code = body(
        f"""
        import os, time
        if current_node == 0:
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    open({str(note)!r}, "w").write(str(os.getpid()))
                    time.sleep(60)
                os._exit(0)
            while not os.path.exists({str(note)!r}) or not open({str(note)!r}).read(): time.sleep(0.01)
        """
    )
    assert one_off(code, ()).failure == "forbidden"
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_arguments_that_are_spoilt_change_nothing_for_others(evaluator):
    code = body("distance_matrix[:] = 0\nunvisited_nodes.sort()")
    assert evaluator.evaluate([code])[0].valid
    assert evaluator.evaluate(["# again\n" + NEAREST])[0].objective == pytest.approx(7.0043697989867315)


def test_patches_of_numpy_do_not_reach_the_next_program_nor_the_score(evaluator):
    patch = "import numpy as np, builtins\nnp.linalg.norm = np.sort = lambda *a, **k: 0.0\nbuiltins.sum = None\n"
    outcome = evaluator.evaluate([patch + NEAREST])[0]
    assert not outcome.valid or outcome.objective > 5
    assert evaluator.evaluate(["# next\n" + NEAREST])[0].objective == pytest.approx(7.0043697989867315)


FORGED = {
    "garbage": "b'garbage' * 10",
    "an objective": """b'{"objective": 0.0, "valid": true}\\n'""",
    "other word": """b'{"failure": "fine", "detail": ""}\\n'""",
    "no arrays": """b'{"outputs": [], "compile_seconds": null}\\n'""",
    "a pickle": "__import__('pickle').dumps(print)",
    "deep JSON": "b'[' * 100000 + b'\\n'",
    "negative shape": """b'{"outputs": [["int64", [-1, -50]]], "compile_seconds": null}\\n' + bytes(400)""",
    "object array": """b'{"outputs": [["object", [1]]], "compile_seconds": null}\\n' + bytes(8)""",
    "huge shape": """b'{"outputs": [["int64", [9999999, 9999999]]], "compile_seconds": null}\\n' + bytes(8)""",
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_result_is_noticed(evaluator, name):
    code = body(f"import os\nos.write(3, {FORGED[name]})\nos._exit(0)")
    assert evaluator.evaluate([code])[0].failure == "forbidden"


@pytest.mark.parametrize(
    ("tour", "word"), [("[0] * 50", "infeasible"), ("list(range(49))", "shape"), ("[0] + [49] * 49", "infeasible")]
)
def test_a_forged_tour_is_checked_like_any_other(evaluator, tour, word):
    code = body(
        f"""
        import os, json
        t = np.array({tour}, dtype="int64")
        head = {{"outputs": [["int64", [len(t)]]] * 64, "compile_seconds": None}}
        os.write(3, json.dumps(head).encode() + b"\\n" + t.tobytes() * 64)
        os._exit(0)
        """
    )
    assert evaluator.evaluate([code])[0].failure == word


def test_details_cannot_carry_control_characters(evaluator):
    detail = evaluator.evaluate([body(r"raise ValueError('\x1b[31mred\n\r\ud800' + 'x' * 9999)")])[0].detail
    assert detail.isprintable() and len(detail) <= 500 and detail.startswith("ValueError: ?[31mred")


def test_the_detail_of_an_exception_names_type_message_and_line(evaluator):
    outcome = evaluator.evaluate([body("x = 1\nraise ValueError('too far')")])[0]
    assert outcome.detail == "ValueError: too far (line 4)"


def _alive(pids):
    def running(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    return [pid for pid in pids if running(pid)]


def _descendants(pid):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                found += [int(entry.name), *_descendants(int(entry.name))]
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_survives_a_parent_that_is_killed(number):
    script = (
        "from ttc_esopt.evaluation import Evaluator\nfrom ttc_esopt.problems import load\n"
        "e = Evaluator(load('tsp_construct'), workers=2)\n"
        "with e: e.evaluate(['while True: pass', 'while 1: pass'])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while len(family := _descendants(parent.pid)) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(family) >= 4
    time.sleep(0.2)
    parent.send_signal(number)
    parent.wait(10)
    while _alive(family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(family)
