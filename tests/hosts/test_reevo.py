"""ReEvo's double with our model: who is asked for what, what is told, and what becomes of hostile programs."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from reevo_user import double, program

from ttc_esopt.evaluation import landlock, seccomp
from ttc_esopt.scaffolds.hosts import reevo as adapter
from ttc_esopt.scaffolds.hosts.client import HostError, Stopped


@pytest.fixture
def host(tmp_path, monkeypatch):
    with double(tmp_path, monkeypatch) as run:
        yield run


def by_operator(client):
    return Counter(one["operator"] for one in client.candidates)


def results(client, operator="i1"):
    return [one["result"] for one in client.candidates if one["operator"] == operator]


def test_mutation_is_a_batch_of_the_best_program_and_the_plan_is_what_happens(host, tmp_path):
    client = host(directions=3, replies_per_direction=2, given={"max_fe": 18})
    # a seed function, 4 initial programs, rounds of 2 + 6
    assert client.plan["steps"] == 2 == len(client.batches) and client.plan["largest_batch"] == 3
    assert by_operator(client) == {"i1": 4, "e1": 4, "m1": 12, "reflection": 6}
    assert client.plan["candidates"] == 20 and client.plan["host_candidates"] == 4 + 4 * 4
    assert (client.plan["host"], client.plan["problem"], client.plan["function"]) == ("ReEvo", "toy", "grow_v2")
    assert Path(client.plan["folder"]) == tmp_path / "outputs" / "ttc_esopt"
    assert [one["objective"] for one in client.given_seeds] == [100.0]
    best = 100.0
    for one in client.candidates:
        parents = [parent["objective"] for parent in one["asks"][0]["parents"]]
        assert len(parents) == {"i1": 0, "e1": 2, "m1": 1, "reflection": 0}[one["operator"]]
        assert (one["batch"] is not None) == (one["operator"] == "m1")
        if one["operator"] == "reflection":
            assert one["result"] is None
            continue
        if one["operator"] == "m1":  # the best program before the batch, since replies only get better here
            first = min(other["result"]["id"] for other in client.candidates if other["batch"] == one["batch"])
            before = [other["result"] for other in client.candidates[:first] if other["result"] is not None]
            assert parents == [min(result["objective"] for result in before)]
        assert one["result"]["failure"] is None
        best = min(best, one["result"]["objective"])
    assert sorted(client.told) == [0, 1, 2] and client.told[2][0][0]["objective"] == best
    assert f"* {best:.0f}" in client.best and client.finished == [None]
    assert client.batches[0]["worst"] > client.batches[1]["worst"]
    assert (tmp_path / "outputs" / "validation.txt").read_text().split("\n")[-2] == str(-10 * best)  # eval.py -1 val


def test_with_the_hosts_numbers_and_parser_nothing_is_added(host):
    def odd(operator, prompt, number):  # the host's parser takes the first fence, ours the last one of the name
        return program(9) + program(50 - number) if operator != "reflection" else ""

    client = host(odd, directions="host", parser="host")
    assert client.plan["candidates"] == client.plan["host_candidates"] == 4 + 4
    assert all(one["result"]["objective"] == 9 for one in client.candidates if one["operator"] != "reflection")
    assert [one["n"] for one in client.batches] == [2] * len(client.batches)


def test_a_client_for_mutation_alone_leaves_the_users_own_client_the_rest(host):
    client = host(given={"mutation": adapter.Client, "key": "sk", "llm_mutation": {"_target_": adapter.TARGET}})
    assert by_operator(client) == {"m1": client.plan["candidates"]} and len(client.batches) == client.plan["steps"]
    assert all(result["failure"] is None for result in results(client, "m1"))
    assert any("your own client" in line for line in client.plan["lines"])


def test_another_client_for_mutation_gives_way_and_that_is_said(host):
    def other():
        return sys.modules["utils.llm_client.base"].BaseClient("remote")

    client = host(given={"mutation": other})
    assert by_operator(client)["m1"] > 0 and any("llm_mutation (remote) is not used" in line for line in client.lines)


def test_failures_have_our_words_and_nothing_is_left_running(host):
    left = "import subprocess, time\nsubprocess.Popen(['sleep', '300.25'], start_new_session=True)\n"
    replies = {
        "reply": "No program today.",
        "syntax": "```python\ndef grow_v2(x):\n    return x *\n```",
        "exception": "```python\ndef grow_v2(x):\n    return 1 / 0\n```",
        "timeout": f"```python\n{left}def grow_v2(x):\n    time.sleep(300)\n```",
        "crash": "```python\nimport os\ndef grow_v2(x):\n    os.kill(os.getpid(), 9)\n```",
        "output": "```python\nimport os\ndef grow_v2(x):\n    os.write(1, b'\\xff\\xfe'), os._exit(0)\n```",
        "nonfinite": "```python\ndef grow_v2(x):\n    return float('nan')\n```",
        "memory": "```python\ndef grow_v2(x):\n    return len(bytearray(1 << 32))\n```",
        "name": "```python\ndef grow(x):\n    return x\n```",
    }
    texts = [*replies.values(), program(3)]

    def writer(operator, prompt, number):
        return texts[number] if operator == "i1" else program(number)

    client = host(writer, given={"init_pop_size": len(texts), "max_fe": 5, "timeout": 3}, memory_mb=512)
    found = results(client)
    assert [result["failure"] for result in found] == [*replies, None], found
    assert [result["objective"] for result in found] == [None] * len(replies) + [3.0]
    assert client.lines[-1].startswith(f"{len(texts)} candidates, 1 of them valid. Failed: 1 ")
    assert "'grow_v2'" in found[-2]["detail"] and "/tmp" not in found[-2]["detail"]
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"sleep\x00300.25" in read(path)]


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_programs_see_no_secrets_and_the_interpreter_is_the_running_one(host, monkeypatch, tmp_path):
    monkeypatch.setenv("MY_API_KEY", "sk-12345")
    monkeypatch.setenv("TTC_ESOPT_HOST", "{}")
    monkeypatch.setenv("PATH", "/nowhere")
    body = "    print([name for name in os.environ if 'ESOPT' in name])\n    return 2"
    seen = f"```python\nimport os\ndef grow_v2(x):\n{body}\n```"
    client = host(lambda *_: seen, given={"max_fe": 5})
    assert all(result["objective"] == 2 for result in results(client))
    for path in [*(tmp_path / "outputs").glob("*stdout*"), tmp_path / "outputs" / "validation.txt"]:
        first, *rest = path.read_text().splitlines()
        assert first == f"running None {os.path.dirname(sys.executable)}" and rest[0] in ("[]", "100.0")
    assert not list((tmp_path / "checkout").rglob("gpt.py"))  # nothing that another run could overwrite


@pytest.mark.skipif(not (landlock.version() and seccomp.machine_supported()), reason="no sandbox here")
def test_in_the_sandbox_programs_write_nowhere_and_start_nothing(host, tmp_path):
    victim = tmp_path / "victim"
    bad = [
        f"```python\ndef grow_v2(x):\n    open({str(victim)!r}, 'w')\n    return 1\n```",
        "```python\nimport os\ndef grow_v2(x):\n    os.system('true')\n    return 1\n```",
        program(3),
        program(4),
    ]
    client = host(lambda operator, prompt, number: bad[number % 4], sandbox="auto", given={"max_fe": 5})
    assert [result["objective"] for result in results(client)] == [None, None, 3, 4]
    assert not victim.exists() and not any("limits only" in line for line in client.lines)


@pytest.mark.skipif(not (landlock.version() and seccomp.machine_supported()), reason="no sandbox here")
def test_a_problem_that_the_sandbox_breaks_falls_back_or_is_refused(host, tmp_path):
    script = tmp_path / "checkout" / "problems" / "toy" / "eval.py"
    script.write_text(script.read_text().replace("import os\n", "import os\nos.makedirs('made', exist_ok=True)\n"))
    script.write_text(script.read_text().replace("import gpt\n", "os.system('true')\nimport gpt\n"))
    with pytest.raises(HostError, match="--sandbox required"):
        host(sandbox="required")
    client = host(sandbox="auto")
    assert any("limits only" in line for line in client.lines) and client.finished == [None]


@pytest.mark.parametrize(
    ("fault", "hint"),
    [("import no_such_module", "install the module there"),
     ("raise AttributeError('`np.float_` was removed in the NumPy 2.0 release. Use `np.float64`')", "numpy<2"),
     ("raise ValueError('data')", "stdout0.txt")],
)  # fmt: skip
def test_a_seed_function_that_fails_says_what_is_missing(host, tmp_path, fault, hint):
    script = tmp_path / "checkout" / "problems" / "toy" / "eval.py"
    script.write_text(f"{fault}\n{script.read_text()}")
    with pytest.raises(HostError, match="seed function of toy") as caught:
        host()
    assert hint in str(caught.value)


def test_a_run_of_invalid_programs_ends_with_counts_and_the_reason(host):
    with pytest.raises(HostError, match="All individuals are invalid") as caught:
        host(lambda operator, prompt, number: "I would rather not.")
    assert "4 candidates, 0 of them valid. Failed: 4 reply. The most frequent reason (4 times)" in str(caught.value)
    assert caught.value.exit_code == 1


def test_a_run_that_ends_early_keeps_its_best_program(host):
    def fading(operator, prompt, number):
        return program(50 - number) if operator == "i1" else "I would rather not."

    client = host(fading, given={"max_fe": 50})
    assert "* 47" in client.best and "ReEvo ended early" in client.finished[0] == client.lines[-1]


def test_more_is_better_where_the_host_says_so(host):
    problem = {"problem_name": "toy", "problem_type": "toy", "obj_type": "max", "problem_size": 1, "func_name": "grow"}
    client = host(given={"problem": problem, "max_fe": 5})
    assert [result["objective"] for result in results(client)] == [-50, -49, -48, -47]


def test_an_interrupt_ends_the_run_once_what_was_asked_for_is_scored(host):
    seen = []

    def before(client):
        client.stop_at = (1, "m1")
        seen.append(client)

    with pytest.raises(Stopped, match="stopped by the test"):
        host(before=before, given={"max_fe": 50})
    (client,) = seen
    told = [one["result"] for one in client.candidates if one["operator"] != "reflection"]
    assert len(told) == 4 + 2 + 2 and None not in told  # the batch was scored, and nothing was asked for after it
    assert sorted(client.told) == [0, 1] and not client.finished


def test_steps_that_are_all_taken_leave_mutation_to_the_model_as_it_is(host):
    client = host(before=lambda client: setattr(client, "steps_left", 1), given={"max_fe": 13}, directions=2)
    assert len(client.batches) == 1
    assert {one["batch"] for one in client.candidates if one["operator"] == "m1"} == {0, None}


@pytest.mark.parametrize("algorithm", ["eoh", "ael"])
def test_other_algorithms_of_the_checkout_are_refused(host, algorithm):
    with pytest.raises(HostError, match="Expected algorithm=reevo"):
        host(given={"algorithm": algorithm})


def test_settings_that_cannot_be_are_refused_before_anything_is_asked(host):
    for given, options, words in (
        ({"init_pop_size": 0}, {}, "init_pop_size >= 1"),
        ({}, {"continue": "/tmp"}, "--continue"),
        ({}, {"directions": "host", "replies_per_direction": 3}, "--replies-per-direction 3 divides"),
        ({}, {"arm": "esopt", "es_operators": ["m2"]}, "--es-operators"),
    ):
        with pytest.raises(HostError, match=words):
            host(given=given, **options)


def test_another_version_and_another_project_are_told_apart(host, tmp_path, monkeypatch):
    checkout = tmp_path / "checkout"
    text = (checkout / "reevo.py").read_text()
    (checkout / "reevo.py").write_text(text.replace("def mutate(", "def mutate_elitist("))
    with pytest.raises(HostError, match=r"has no ReEvo.mutate. Supported"):
        host()
    (checkout / "reevo.py").unlink()
    with pytest.raises(SystemExit, match="a key is needed"):  # its own init_client is untouched
        host()


def test_two_programs_of_one_length_in_one_second_are_not_mixed_up(host):
    client = host(lambda operator, prompt, number: program(10 + number), given={"init_pop_size": 9, "max_fe": 5})
    assert [result["objective"] for result in results(client)] == [10 + n for n in range(9)]
