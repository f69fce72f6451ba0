"""Programs that try to win by tricks on the machinery that runs them: what comes of each is written down."""

import textwrap

import numpy as np
import pytest
import red_team
from red_team import COUNT, FORGE, HONEST

pytestmark = pytest.mark.skipif(not red_team.FULL, reason="this machine has no full sandbox")


@pytest.fixture(scope="module")
def evaluators():
    with red_team.opened() as get:
        yield get


def judge(evaluator, code, expected, honest):
    """Evaluate; `honest` is a program that gives the same answers without any trick."""
    outcome = evaluator.evaluate([code])[0]
    assert outcome.seconds < 8, outcome
    if expected == HONEST:
        assert outcome.valid and not outcome.alarm, outcome
        assert outcome.objective == pytest.approx(evaluator.evaluate([honest])[0].objective, rel=1e-12), outcome
    else:
        assert not outcome.valid and outcome.failure in expected.split("|"), outcome
    again = evaluator.evaluate([honest + f"\n# after {len(code)}"])[0]
    assert again.valid, again
    return outcome


# --- travelling salesman: each program then takes the nearest node ----------------------------------------------------

FIRST = "def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):\n"
NEAREST = FIRST + "    return int(unvisited_nodes[0])\n"


def trick(text, module=""):
    """Run `module` once and `text` in every call."""
    return (
        "import numpy as np\n"
        + textwrap.dedent(module)
        + "\n"
        + FIRST
        + textwrap.indent(textwrap.dedent(text).strip("\n") or "pass", "    ")
        + "\n    return int(unvisited_nodes[0])\n"
    )


BEST = "np.arange(50, dtype='int64')"
TOUR = '["int64", [50]]'

TRICKS = {
    # patching what judges
    "patches the problem's score in its class": (
        trick("", "import ttc_esopt.problems.tsp_construct as m\nm.TspConstruct.score = lambda *a: 0.0"), HONEST),
    "patches the driver": (
        trick("", "import ttc_esopt.problems.tsp_construct as m\nm.construct = lambda *a: np.arange(50)[::-1].copy()"),
        "infeasible"),
    "patches run by way of the stack": (
        trick("", "import sys\nf = sys._getframe()\nwhile f and 'problem' not in f.f_locals: f = f.f_back\n"
                  "type(f.f_locals['problem']).run = lambda *a: np.zeros(50, 'int64')"), "infeasible"),
    "patches run to return what score would": (
        trick("", "import ttc_esopt.problems.tsp_construct as m\nm.TspConstruct.run = lambda *a: np.array([0.0])"),
        "shape"),
    "patches the encoder": (
        trick("", "import ttc_esopt.evaluation.child as c\nc.encode = lambda *a, **k: [b'{\"objective\": 0}\\n']"),
        "forbidden"),
    "patches the encoder to send two frames": (
        trick("", "import ttc_esopt.evaluation.child as c\nold = c.encode\n"
                  "c.encode = lambda *a, **k: old(*a, **k) * 2"),
        "forbidden"),
    "patches the evaluator's module": (
        trick("", "import ttc_esopt.evaluation.evaluator as e\ne.Evaluator._score = lambda *a: 0.0"), HONEST),
    "empties sys.modules": (trick("", "import sys\nfor k in list(sys.modules): del sys.modules[k]"), "exception"),
    "replaces numpy in sys.modules": (
        trick("", "import sys, types\nsys.modules['numpy'] = types.ModuleType('numpy')"), f"{HONEST}|exception"),
    "replaces builtins": (
        trick("", "import builtins\nbuiltins.len = lambda x: 50\nbuiltins.isinstance = lambda *a: True"),
        f"{HONEST}|exception|shape|crash"),
    "stops the clock": (
        trick("while True: pass", "import time\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0"),
        "timeout"),
    "an import hook": (
        trick("", "import sys\nclass H:\n def find_spec(self, *a): raise SystemExit\nsys.meta_path.insert(0, H())"),
        HONEST),
    # the stack and the heap
    "reads the stack for instances": (
        trick("", "import sys\nf = sys._getframe()\nwhile f: seen = dict(f.f_locals); f = f.f_back"), HONEST),
    "spoils the instances through the heap": (
        trick("", "import gc\nfor o in gc.get_objects() + [r for t in gc.get_objects() for r in gc.get_referents(t)]:\n"
                  " if type(o) is np.ndarray and o.shape == (50, 2):\n"
                  "  try: o[:] = 0.5\n  except ValueError: pass"), "any"),
    "calls the problem's own score until it likes it": (
        trick("", "import ttc_esopt.problems as p\nproblem = p.load('tsp_construct')\n"
                  "x = problem.instances('train', 50)[0]\nproblem.score(x, np.arange(50))"), HONEST),
    "finds the answer to send in the caller and swaps it": (
        trick("import sys\nf = sys._getframe(1)\nwhile f:\n for v in list(f.f_locals.values()):\n"
              "  if type(v) is np.ndarray and v.shape == (50,) and v.flags.writeable: v[:] = 0\n f = f.f_back"), "any"),
    "a trace function": (trick("", "import sys\nsys.settrace(lambda *a: None)"), HONEST),
    "a profile function that raises": (
        trick("", "import sys\ndef p(*a): raise KeyboardInterrupt\nsys.setprofile(p)"), "crash|exception"),
    "an audit hook that forbids everything": (
        trick("", "import sys\ndef h(*a): raise RuntimeError('no')\nsys.addaudithook(h)"), f"{HONEST}|exception|crash"),
    # ends and forged frames
    "exits at the end by atexit": (trick("", "import atexit, os\natexit.register(os._exit, 0)"), HONEST),
    "an atexit handler with a frame of its own": (
        trick("", FORGE + f"import atexit\natexit.register(forge, [{TOUR}] * 2, {BEST}.tobytes() * 2)"), HONEST),
    "__del__ that exits": (
        trick("", "import os\nclass D:\n def __del__(self): os._exit(0)\nd = D()\ndel d"), "crash"),
    "__del__ that forges": (
        trick("", FORGE + f"class D:\n def __del__(self): forge([{TOUR}], b'')\nd = D(); del d"), "forbidden"),
    "a whole forged frame of true tours": (
        trick("", FORGE + f"forge([{TOUR}] * 2, {BEST}.tobytes() * 2)"), "as sent"),
    "a forged frame of too few tours": (trick("", FORGE + f"forge([{TOUR}], {BEST}.tobytes())"), "forbidden"),
    "a forged frame of too many tours": (
        trick("", FORGE + f"forge([{TOUR}] * 3, {BEST}.tobytes() * 3)"), "forbidden"),
    "a forged frame of floats": (
        trick("", FORGE + f"forge([['float64', [50]]] * 2, {BEST}.astype(float).tobytes() * 2)"), "shape"),
    "a forged frame of 50 x 1": (
        trick("", FORGE + f"forge([['int64', [50, 1]]] * 2, {BEST}.tobytes() * 2)"), "shape"),
    "a forged frame of no numbers": (trick("", FORGE + "forge([['int64', [0]]] * 2)"), "shape"),
    "a forged frame of empty arrays of many dimensions": (
        trick("", FORGE + "forge([['int64', [0, 67108864, 67108864]]] * 2)"), "forbidden"),
    "a forged frame of another type": (
        trick("", FORGE + "forge([['int32', [50]]] * 2, bytes(400))"), "forbidden"),
    "a forged frame of bools for lengths": (
        trick("", FORGE + "forge([['int64', [True]]] * 2, bytes(16))"), "forbidden"),
    "a forged frame with an endless time": (
        trick("", FORGE + f"forge([{TOUR}] * 2, {BEST}.tobytes() * 2, 1e300)"), "forbidden"),
    "a forged frame with NaN for a time": (
        trick("", FORGE + f"forge([{TOUR}] * 2, {BEST}.tobytes() * 2, float('nan'))"), "forbidden"),
    "a forged tour with node 0 twice": (
        trick("", FORGE + f"t = {BEST}; t[7] = 0\nforge([{TOUR}] * 2, t.tobytes() * 2)"), "infeasible"),
    "a forged tour of huge numbers": (
        trick("", FORGE + f"forge([{TOUR}] * 2, ({BEST} + 2**62).tobytes() * 2)"), "infeasible"),
    "a forged tour of negative nodes": (
        trick("", FORGE + f"forge([{TOUR}] * 2, (-{BEST}).tobytes() * 2)"), "infeasible"),
    "failures per instance that nobody asked for": (
        trick("", FORGE + f"forge([{{'failure': 'infeasible', 'detail': ''}}, {TOUR}], {BEST}.tobytes())"),
        "infeasible"),
    "a failure word that only the outside may use": (
        trick("", FORGE + "forge([{'failure': 'timeout', 'detail': ''}] * 2)"), "forbidden"),
    "writes into the result pipe first": (trick("", "import os\nos.write(3, b'x')"), "forbidden"),
    "closes the result pipe": (trick("", "import os\nos.close(3)"), "crash"),
    "a result of 70 MiB": (trick("", "import os\nfor _ in range(70): os.write(3, bytes(1 << 20))"), "output"),
    # time, memory, recursion
    "catches its end": (
        trick("", "import signal\nfor s in range(1, 32):\n try: signal.signal(s, lambda *a: None)\n"
                  " except (OSError, ValueError): pass\nwhile True:\n try:\n  while True: pass\n"
                  " except BaseException: pass"), "timeout"),
    "a timer that interrupts the driver": (
        trick("", "import signal\nsignal.signal(signal.SIGALRM, lambda *a: 1 / 0)\n"
                  "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nwhile True: pass"), "exception|crash"),
    "memory by mmap": (trick("import mmap\nx = [mmap.mmap(-1, 1 << 28) for _ in range(20)]"), "exception|memory"),
    "all descriptors": (trick("import os\nwhile True: os.dup(1)"), "exception"),
    "recursion in __repr__": (
        trick("class R(Exception):\n    def __str__(self): return str(self)\nraise R"), "exception"),
    "a message without end": (
        trick("class E(Exception):\n    def __str__(self): return 'x' * (1 << 28)\nraise E"), "exception|memory"),
    # left for the next one
    "threads that outlive the call": (
        trick("", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()"), HONEST),
}  # fmt: skip


@pytest.mark.parametrize("name", TRICKS)
def test_a_trick_gains_nothing(evaluators, name):
    code, expected = TRICKS[name]
    evaluator = evaluators("tsp_construct")
    if expected in ("any", "as sent"):
        # Its own copy of things is the program's to spoil; what comes back is a tour like any other, or a failure.
        outcome = evaluator.evaluate([code])[0]
        tours = [np.arange(50)] * COUNT
        worst = np.mean([evaluator.problem.score(i, t) for i, t in zip(evaluator.instances, tours, strict=True)])
        if expected == "as sent":
            assert outcome.valid and outcome.objective == pytest.approx(worst)
        elif outcome.valid:
            assert outcome.objective > 5.5 and not outcome.alarm
        else:
            assert outcome.failure in ("infeasible", "exception", "shape")
        return
    if "|" in expected and HONEST in expected:
        outcome = evaluator.evaluate([code])[0]
        expected = HONEST if outcome.valid else expected.replace(f"{HONEST}|", "")
    judge(evaluator, code, expected, NEAREST)


LYING = {
    "__int__ alone": ("class L:\n def __int__(self): return 1", "shape"),
    "__float__ alone": ("class L:\n def __float__(self): return 1.0", "shape"),
    "__array__ alone": ("class L:\n def __array__(self, *a, **k): return np.array(1)", "shape"),
    "__index__ that changes": (
        "class L:\n n = 0\n def __index__(self):\n  L.n += 1\n  return L.n", f"{HONEST}|infeasible"),
    "__index__ that raises": ("class L:\n def __index__(self): raise SystemExit", "crash"),
    "__hash__ and __eq__ that lie": (
        "class L(int):\n def __eq__(self, o): return True\n def __hash__(self): return 1\n", "infeasible"),
    "a subclass of ndarray": (
        "class A(np.ndarray):\n def __eq__(self, o): return True\n def __index__(self): return 1\n"
        "L = lambda: np.zeros(3, 'int64').view(A)", "shape|infeasible"),
    "a 0-d array of a node not there": ("L = lambda: np.array(77)", "infeasible"),
    "a 0-d array of float": ("L = lambda: np.array(1.0)", "shape"),
    "a generator": ("def L(): yield 1", "shape"),
    "a memory map": ("L = lambda: np.memmap('m', 'int64', 'w+', shape=(1,))", "shape|exception"),
    "a pickle trap": (
        "class L:\n def __reduce__(self): return (print, ())\n def __getattr__(self, n): return 1", "shape"),
    "a class that is its own type": (
        "class L:\n @property\n def __class__(self): return int\n def __int__(self): return 1", "shape"),
    "a Fraction": ("from fractions import Fraction\nL = lambda: Fraction(1)", "shape"),
    "an unsigned node out of range": ("L = lambda: np.uint64(2**64 - 1)", "infeasible"),
}  # fmt: skip


@pytest.mark.parametrize("name", LYING)
def test_an_object_that_lies_is_taken_at_its_first_word_or_refused(evaluators, name):
    module, expected = LYING[name]
    code = f"import numpy as np\n{module}\n{FIRST}    return L()\n"
    evaluator = evaluators("tsp_construct")
    outcome = evaluator.evaluate([code])[0]
    if HONEST in expected and outcome.valid:
        assert outcome.objective > 5.5
    else:
        assert outcome.failure in expected.split("|"), outcome


LEFT_BEHIND = {
    "a file": ("open('left', 'w').write('x')", "import os\nassert os.listdir() == []"),
    "a hidden file": ("open('.left', 'w').write('x')", "import os\nassert os.listdir() == []"),
    "a variable of the environment": (
        "import os\nos.environ['LEFT'] = 'x'", "import os\nassert 'LEFT' not in os.environ"),
    "an attribute of a module": ("np.left = 1", "assert not hasattr(np, 'left')"),
    "a name in builtins": (
        "import builtins\nbuiltins.left = 1", "import builtins\nassert not hasattr(builtins, 'left')"),
    "a module": ("import sys\nsys.modules['left'] = sys", "import sys\nassert 'left' not in sys.modules"),
    "an instance that was spoilt": (
        "import gc\nfor t in gc.get_objects():\n for o in gc.get_referents(t):\n"
        "  if type(o) is np.ndarray and o.shape == (50, 2) and o.flags.writeable: o[:] = 0",
        ""),
    "an open file of another number": (
        "import os\nos.dup2(os.open('left', os.O_CREAT | os.O_RDWR), 50)",
        "import os\nassert set(os.listdir('/proc/self/fd')) <= {'0', '1', '2', '3', '4'}"),
    "a seed": ("np.random.seed(1)\nimport random\nrandom.seed(1)",
               "assert np.random.rand() != np.random.RandomState(1).rand()"),
    "a limit": ("import resource\nresource.getrlimit(resource.RLIMIT_AS)", "x = np.ones(10_000_000)"),
    "a handler of a signal": (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "import signal\nassert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL"),
    "a locked file": (
        "import fcntl\nfcntl.flock(open('left', 'w'), fcntl.LOCK_EX)", "import os\nassert os.listdir() == []"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_nothing_is_left_for_the_next_program(evaluators, name):
    first, second = LEFT_BEHIND[name]
    evaluator = evaluators("tsp_construct")
    evaluator.evaluate([trick("", first)])
    outcome = evaluator.evaluate([trick("", second + f"\n# after {name}")])[0]
    assert outcome.valid, outcome
    assert outcome.objective == pytest.approx(evaluator.evaluate([NEAREST])[0].objective)
