"""The layers of the sandbox: which are found, what their sum is called, and what each one alone stops."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.evaluation import Evaluator, bubblewrap, sandbox
from ttc_esopt.problems import load

PROBLEM = load("tsp_construct")
HERE = sandbox.found().layers
FULL = ("seccomp", "landlock")
# Mixes of layers that machines have; what is not listed does not exist there.
MIXES = {
    "all": sandbox.KERNEL_LAYERS,
    "bubblewrap, no Landlock": ("seccomp", "bubblewrap"),
    "bubblewrap, no filter": ("landlock", "bubblewrap"),
    "namespaces": ("seccomp", "landlock", "namespaces"),
    "kernel": FULL,
    "nothing": (),
}


def program(text):
    """A program that runs `text` in every call and then takes the first node."""
    body = textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
    return (
        "import os, sys\n"
        "def select_next_node(current_node, destination_node, unvisited_nodes, distance_matrix):\n"
        f"{body}\n    return int(unvisited_nodes[0])\n"
    )


def needs(*layers):
    return pytest.mark.skipif(not set(layers) <= set(HERE), reason=f"needs {' and '.join(layers)}")


@pytest.fixture(scope="module", params=MIXES)
def mixed(request):
    """The layers of a mix, and an evaluator that has no others."""
    layers = MIXES[request.param]
    if not set(layers) <= set(HERE):
        pytest.skip(f"needs {' and '.join(layers)}")
    with Evaluator(
        PROBLEM, instances=PROBLEM.instances("train", 50)[:1], workers=1, timeout=5, layers=layers
    ) as shared:
        yield layers, shared


@pytest.fixture
def machine(monkeypatch):
    """Has this machine offer the given layers only."""

    def offer(*layers):
        missing = {layer: f"there is no {layer}" for layer in sandbox.KERNEL_LAYERS if layer not in layers}
        monkeypatch.setattr(sandbox, "found", lambda: sandbox.Found(layers, missing))

    return offer


@pytest.mark.parametrize(
    ("layers", "used", "strength"),
    [
        ((), (), "limits"),
        (("seccomp",), ("seccomp",), "limits"),
        (("landlock",), ("landlock",), "limits"),
        (("seccomp", "namespaces"), ("seccomp", "namespaces"), "limits"),
        (("seccomp", "landlock"), ("seccomp", "landlock"), "full"),
        (("seccomp", "bubblewrap"), ("seccomp", "bubblewrap"), "full"),
        (("landlock", "bubblewrap"), ("landlock", "bubblewrap"), "limits"),
        (("namespaces", "bubblewrap"), ("namespaces",), "limits"),  # nothing would guard what the zygote may write
        (sandbox.KERNEL_LAYERS, ("seccomp", "landlock", "bubblewrap"), "full"),
    ],
)
def test_what_a_machine_offers_has_a_name(machine, layers, used, strength):
    machine(*layers)
    assert (sandbox.usable(), sandbox.strength()) == (used, strength)
    assert (sandbox.warning() is None) == (strength == "full")
    if strength == "full":
        sandbox.require()
    else:
        with pytest.raises(ConfigurationError):
            sandbox.require()


def test_a_weak_machine_is_refused_with_the_way_to_mend_it(machine):
    machine("seccomp")
    with pytest.raises(ConfigurationError) as caught:
        Evaluator(PROBLEM, sandbox="required")
    assert caught.value.exit_code == 2
    for words in ("--sandbox required", "there is no landlock", "there is no bubblewrap", "apt install bubblewrap"):
        assert words in str(caught.value)


def test_layers_left_out_by_the_caller_count_as_missing():
    with pytest.raises(ConfigurationError, match="switched off|no seccomp"):
        Evaluator(PROBLEM, sandbox="required", layers=())


def test_the_warning_says_what_programs_could_do(machine):
    machine()
    assert "change your files and reach the network" in sandbox.warning()
    machine("seccomp")
    assert "can read your files on" in sandbox.warning() and "\n" not in sandbox.warning()


def test_advice_names_each_missing_layer(machine):
    machine(*sandbox.KERNEL_LAYERS)
    assert sandbox.advice() == []
    machine("seccomp", "landlock", "namespaces")
    assert sandbox.advice() == ["there is no bubblewrap"]
    machine()
    assert len(sandbox.advice()) == 4 and "max_user_namespaces" in sandbox.advice()[-1]


def test_advice_names_the_package_where_bubblewrap_is_not_installed(monkeypatch):
    missing = {"bubblewrap": bubblewrap.NOT_INSTALLED}
    monkeypatch.setattr(sandbox, "found", lambda: sandbox.Found(("seccomp", "landlock", "namespaces"), missing))
    assert sandbox.advice() == ["bubblewrap is not installed (apt install bubblewrap, dnf install bubblewrap)"]


def test_the_doctor_names_the_strength_and_what_would_add_to_it(machine):
    from ttc_esopt import doctor

    machine("seccomp", "landlock")
    findings = list(doctor._sandbox())
    assert findings[0].detail.startswith("full: ") and not findings[0].broken
    assert findings[1].name == "stronger" and "there is no bubblewrap" in findings[1].detail


def test_without_bubblewrap_on_the_path_it_is_called_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bubblewrap.fault() == "bubblewrap is not installed"
    with pytest.raises(FileNotFoundError):
        bubblewrap.command(["true"], read=[], write=[], environment={})


def test_a_bubblewrap_that_fails_is_not_used(monkeypatch, tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert "bubblewrap" not in sandbox.usable()
    assert "uid map: Permission denied" in sandbox.found().missing["bubblewrap"]


def test_nothing_of_the_users_environment_but_paths_is_passed_on(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "here:/there")
    environment = sandbox.environment()
    assert "HF_TOKEN" not in environment
    assert environment["PYTHONPATH"] == f"{Path.cwd() / 'here'}:/there"


def test_every_mix_of_layers_gives_the_same_value(mixed):
    outcome = mixed[1].evaluate([program("pass")])[0]
    assert outcome.valid, outcome
    assert outcome.objective == pytest.approx(6.0512422977317115)


OUT_OF_REACH = {
    "the zygote's memory": "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "the zygote's environment": "open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "the zygote's descriptors": "os.open(f'/proc/{os.getppid()}/fd/0', os.O_RDONLY)",
    "the first process's environment": "open('/proc/1/environ', 'rb').read()",
    "the first process's descriptors": "os.open('/proc/1/fd/0', os.O_RDONLY)",
    "what the user wrote": "open({secret!r}).read()",
    "the folder for all": "os.listdir('/tmp')",
    "a file for all": "open('/tmp/ttc-esopt-left-behind', 'w')",
    "shared memory": "open('/dev/shm/ttc-esopt-left-behind', 'w')",
    "a terminal": "import fcntl; fcntl.ioctl(0, 0x5412, b'x')",
    "its own name for all": "os.symlink('/etc/passwd', 'link')",
    "a folder": "os.mkdir('folder')",
    "a pipe with a name": "os.mkfifo('fifo')",
    "a handle on its parent": "os.pidfd_open(os.getppid())",
    "memory of the system's own kind": "os.memfd_create('x')",
    "all descriptors": "os.dup2(1, 100)",
    "a core file": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (1, 1))",
}


@pytest.mark.parametrize("name", OUT_OF_REACH)
def test_out_of_reach_of_a_candidate_wherever_the_sandbox_is_full(mixed, name, tmp_path):
    layers, evaluator = mixed
    if sandbox.strength(layers) != "full":
        pytest.skip("the mix is weaker")
    secret = tmp_path / "secret"
    secret.write_text("x")
    if name == "the folder for all" and "landlock" not in layers:
        pytest.skip("an empty folder of bubblewrap's")
    outcome = evaluator.evaluate([program(OUT_OF_REACH[name].replace("{secret!r}", repr(str(secret))))])[0]
    assert outcome.failure in ("exception", "forbidden"), outcome
    assert evaluator.evaluate([program("pass")])[0].valid


def test_a_candidate_has_no_capabilities_but_reading(mixed):
    code = program(
        """
        held = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
        if int(held["CapEff"], 16) & ~4 or int(held["CapPrm"], 16) & ~4: raise ValueError(held["CapEff"])
        if held["NoNewPrivs"].strip() != "1": raise ValueError
        """
    )
    outcome = mixed[1].evaluate([code])[0]
    assert outcome.valid, outcome


def test_a_bomb_of_threads_ends_soon(mixed):
    code = program(
        """
        import threading, time
        threading.stack_size(1 << 16)
        while True: threading.Thread(target=time.sleep, args=(60,)).start()
        """
    )
    outcome = mixed[1].evaluate([code])[0]
    assert outcome.failure in ("forbidden", "memory", "exception") and outcome.seconds < 4, outcome


@needs("bubblewrap", "seccomp")
def test_under_bubblewrap_there_is_no_other_process_device_or_folder():
    code = program(
        """
        others = [name for name in os.listdir("/proc") if name.isdigit()]
        if len(others) > 2: raise ValueError(f"{len(others)} processes")
        if [line for line in open("/proc/net/dev") if ":" in line and "lo:" not in line]: raise ValueError("network")
        mine = {path.split("/")[2] for path in [*sys.path, os.getcwd()] if path.startswith("/tmp/")}
        if set(os.listdir("/tmp")) - mine - {"cache"}: raise ValueError("files")
        """
    )
    with Evaluator(PROBLEM, workers=1, layers=("seccomp", "bubblewrap")) as evaluator:
        outcome = evaluator.evaluate([code])[0]
    assert outcome.valid, outcome


@needs("bubblewrap", "seccomp")
def test_a_users_own_problem_is_found_under_bubblewrap(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\nfrom ttc_esopt.problems.tsp_construct import TspConstruct\n"
        "class Mine(TspConstruct):\n    note = (Path(__file__).parent / 'note').read_text()\n"
    )
    (tmp_path / "note").write_text("x")
    problem = load(f"{tmp_path / 'mine.py'}:Mine")
    with Evaluator(problem, workers=1) as evaluator:
        assert evaluator.evaluate([program("pass")])[0].valid


@needs("bubblewrap", "seccomp")
def test_no_process_under_bubblewrap_outlives_a_closed_evaluator():
    evaluator = Evaluator(PROBLEM, workers=1)
    with evaluator:
        assert evaluator.evaluate([program("pass")])[0].valid
        (process,) = evaluator._all
        group = process.popen.pid
        assert Path(f"/proc/{group}/cmdline").read_bytes().split(b"\0")[0].endswith(b"bwrap")
    deadline = time.monotonic() + 5
    while _exists(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _exists(group)


def _exists(group):
    """Whether the first process of a group runs (it ends last; one that nobody has waited for yet has ended)."""
    try:
        return Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@needs("bubblewrap", "seccomp")
def test_zygotes_live_on_when_the_thread_that_started_them_ends():
    with Evaluator(PROBLEM, workers=2) as evaluator:
        assert all(outcome.valid for outcome in evaluator.evaluate([program("pass"), program("pass; pass")]))
        first = {process.popen.pid for process in evaluator._all}
        assert evaluator.evaluate([program("pass; pass; pass")])[0].valid
        assert {process.popen.pid for process in evaluator._all} == first


@needs("namespaces")
def test_namespaces_leave_no_network_device_but_the_loopback():
    code = (
        "import os\nfrom ttc_esopt.evaluation import namespaces\nuser = os.getuid()\nnamespaces.enter()\n"
        "assert os.getuid() == user\nprint(*namespaces.network_devices())"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name for name in answer.stdout.split() if name.startswith(("eth", "en", "wl"))}


def test_all_ends_with_the_parent_though_another_process_holds_its_pipes():
    script = (
        "import os, time\nfrom ttc_esopt.evaluation import Evaluator\nfrom ttc_esopt.problems import load\n"
        "with Evaluator(load('tsp_construct'), workers=1) as e:\n"
        " e.evaluate(['x = 1'])\n (process,) = e._all\n"
        " if os.fork() == 0: time.sleep(20); os._exit(0)\n"
        " print(process.popen.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        group = int(parent.stdout.readline())
        assert _exists(group)
        holder = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        parent.kill()
        deadline = time.monotonic() + 8
        while _exists(group) and time.monotonic() < deadline:
            time.sleep(0.05)
        gone = not _exists(group)
        for pid in map(int, holder):
            if pid != group:
                os.kill(pid, 9)
    assert gone
