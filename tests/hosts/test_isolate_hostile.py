"""Programs that will not end, leave processes behind or forge results: each is ended, and the host goes on."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import pytest
from isolated import MODES, alive, confined, nothing_is_left, outcome, outcomes, program, soon  # noqa: F401

LOOPS = {
    "a loop": "while True: pass",
    "a loop that catches everything": "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    "deaf": """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM, signal.SIGXCPU):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(60)
    """,
    "all signals blocked": "signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())\ntime.sleep(60)",
    "a thread that goes on": """
        import threading
        threading.Thread(target=time.sleep, args=(60,)).start()
        threading.Event().wait()
    """,
}


@pytest.mark.parametrize("mode", MODES)
def test_what_runs_too_long_is_ended(mode):
    start = time.monotonic()
    found = outcomes(*map(program, LOOPS.values()), timeout=0.7, processes=len(LOOPS), mode=mode)
    assert [one.failure for one in found] == ["timeout"] * len(LOOPS)
    assert "0.7 s" in found[0].detail and found[0].seconds >= 0.7
    assert time.monotonic() - start < 6


def test_a_loop_at_module_level_ends_too():
    assert outcome("while True: pass", timeout=0.5).failure == "timeout"


# Ends its parent's group and session twice over, and would stay for ever.
DAEMON = """
    import subprocess
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", "import time, signal\\n"
                     "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\ntime.sleep(60)", {mark!r}])
        os._exit(0)
    time.sleep(0.5)
"""


@pytest.mark.parametrize("mode", ["limits", "off"])
@pytest.mark.parametrize("end", ["return 5", "time.sleep(60)", "os._exit(1)"])
def test_no_descendant_outlives_its_evaluation(mode, end):
    mark = uuid.uuid4().hex
    found = outcome(program(DAEMON.format(mark=mark) + f"\n    {end}"), mode=mode, timeout=2)
    assert alive(mark) == []
    assert found.value == (5 if end == "return 5" else None)


@pytest.mark.parametrize("mode", ["limits", "off"])
def test_a_fork_on_its_way_back_does_not_answer_for_the_program(mode):
    assert outcome(program("return 1 if os.fork() else 2"), mode=mode).value == 1


FORBIDDEN = {
    "a fork": "os.fork()",
    "a fork bomb": "while True:\n  try: os.fork()\n  except BaseException: pass",
    "a program": "import subprocess\nsubprocess.run(['true'])",
    "a socket": "import socket\nsocket.socket()",
    "a signal to the host": "os.kill(os.getppid(), 9)",
    "ptrace": "import ctypes\nctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)",
}


@confined
def test_what_the_sandbox_forbids_is_called_so():
    found = outcomes(*map(program, FORBIDDEN.values()))
    assert {name: one.failure for name, one in zip(FORBIDDEN, found, strict=True)} == dict.fromkeys(
        FORBIDDEN, "forbidden"
    )


# A program can say any number that it likes, as it shares its process with the problem; it can do no more than that.
FORGED = {
    "too much": ("while True: os.write(n, b'x' * 65536)", "output"),
    "too much on one line": ("os.write(n, b'{\"value\": ' + b'1' * 40000 + b'}\\n')\nos._exit(0)", "crash"),
    "no JSON": ("os.write(n, b'\\xff\\xfe\\n')\nos._exit(0)", "crash"),
    "no object": ("os.write(n, b'[1]\\n')\nos._exit(0)", "shape"),
    "deep": ("os.write(n, b'[' * 30000 + b'\\n')\nos._exit(0)", "crash"),
    "text": ('os.write(n, b\'{"value": "1"}\\n\')\nos._exit(0)', "shape"),
    "not finite": ("os.write(n, b'{\"value\": NaN}\\n')\nos._exit(0)", "nonfinite"),
    "huge": ("os.write(n, b'{\"value\": 1e999}\\n')\nos._exit(0)", "nonfinite"),
    "a fault of ours": ('os.write(n, b\'{"fault": "x"}\\n\')\nos._exit(0)', "shape"),
    "an unknown word": ('os.write(n, b\'{"failure": "sabotage"}\\n\')\nos._exit(0)', "exception"),
    "a long detail": (
        'os.write(n, b\'{"failure": "crash", "detail": "\' + b\'x\' * 30000 + b\'"}\\n\')\nos._exit(0)',
        "crash",
    ),
}


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_forged_results_are_judged_like_others(mode):
    find = "n = max(int(n) for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')\n"
    find += "        and os.readlink(f'/proc/self/fd/{n}').startswith('pipe:'))\n"
    found = outcomes(*(program(find + text) for text, _ in FORGED.values()), mode=mode, timeout=5)
    for name, one, (_, failure) in zip(FORGED, found, FORGED.values(), strict=True):
        assert (name, one.value, one.failure) == (name, None, failure)
        assert len(one.detail) < 2500


SCRIPT = """
    import os, sys, time
    from ttc_esopt.scaffolds.hosts.isolate import Isolation, evaluate
    def sleeps(code):
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", os.environ["MARK"]])
    print("begun", flush=True)
    try:
        evaluate(sleeps, ["", ""], timeout=60, processes=2, isolation=Isolation(mode="off"))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_evaluations_end_with_the_hosts_interest_in_them(number, tmp_path):
    mark = uuid.uuid4().hex
    environment = {**os.environ, "MARK": mark, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as host:
        host.stdout.readline()
        assert soon(lambda: len(alive(mark)) == 2)
        host.send_signal(number)
        said = host.stdout.read()
    assert said == ("interrupted\n" if number == signal.SIGINT else "")
    assert soon(lambda: alive(mark) == [] and not list(tmp_path.glob("ttc-esopt-*")))


def test_ctrl_c_that_the_host_handles_itself_does_not_reach_evaluations():
    script = """
        import os, signal, threading, time
        from ttc_esopt.scaffolds.hosts.isolate import Isolation, evaluate
        os.setsid()
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        def slow(code):
            time.sleep(0.6)
            return 4
        def terminal():  # sends to the whole foreground group, and again, as impatient users do
            for _ in range(5):
                time.sleep(0.1)
                os.killpg(0, signal.SIGINT)
        threading.Thread(target=terminal).start()
        print([o.value for o in evaluate(slow, [""] * 2, timeout=9, processes=2, isolation=Isolation())], len(seen) > 0)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[4, 4] True\n"
