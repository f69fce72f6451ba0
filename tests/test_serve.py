"""A model behind HTTP: replies in the shapes that hosts read, directions per request, scores that come back, limits."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import EOH, HELLO, TOKEN, Recording, lines, serving


@pytest.fixture
def served(tmp_path):
    with serving(tmp_path) as start:
        yield start


# -- the two languages -----------------------------------------------------------------------------------------------


def test_eoh_gets_its_content_and_its_probe_is_no_candidate(served):
    client = served()
    assert client.ok("/completions", {**EOH, "prompt": "1+1=?"}) == {"content": ["2"]}
    assert client.engine.requests == []
    one = client.ok("/completions", EOH)
    assert len(one["content"]) == 1 and "def select_next_node" in one["content"][0]
    two = client.ok("/completions", {**EOH, "repeat_prompt": 2})
    assert len(two["content"]) == 2 and [said["id"] for said in two["esopt"]] == [1, 2]
    assert client.engine.requests[0].prompt == "Write a function." and client.engine.samplings[0].chat_template


def test_eoh_parameters_that_are_set_are_obeyed(served):
    client = served()
    client.ok("/completions", {**EOH, "params": {"do_sample": False, "top_p": 0.5, "top_k": 7, "max_new_tokens": 9}})
    sampling = client.engine.samplings[0]
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0, 0.5, 7, 9)


def test_a_chat_completion_has_the_shape_of_openai(served):
    client = served()
    status, reply, headers = client.send("POST", "/v1/chat/completions", {**HELLO, "model": "gpt-x", "seed": 5})
    assert status == 200 and reply["object"] == "chat.completion" and reply["model"] == "gpt-x"
    choice = reply["choices"][0]
    assert choice["message"]["role"] == "assistant" and "def select_next_node" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop" and choice["index"] == 0
    usage = reply["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    said = reply["esopt"]
    assert said == choice["esopt"] and said["sigma"] == 0.05
    assert headers["X-Esopt-Id"] == str(said["id"]) and headers["X-Esopt-Direction"] == str(said["direction"])
    assert headers["X-Esopt-Sigma"] == "0.05"
    assert client.engine.requests[0].seed == 5 and client.engine.requests[0].direction == said["direction"]


def test_system_messages_turns_and_parts_reach_the_engine_as_a_chat(served):
    client = served()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    client.ok("/v1/chat/completions", {"messages": [
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "name": "x"}, {"role": "user", "content": "more"},
    ]})  # fmt: skip
    assert client.engine.requests[0].prompt == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "ab"},
        {"role": "assistant", "content": ""}, {"role": "user", "content": "more"},
    ]  # fmt: skip


def test_sampling_is_the_requests_and_the_rest_the_servers(served):
    client = served()
    client.ok("/v1/chat/completions", {**HELLO, "temperature": 0.25, "top_p": 0, "stop": "END", "max_tokens": 5000,
                                       "user": "x", "frequency_penalty": 0, "tools": [], "response_format":
                                       {"type": "text"}})  # fmt: skip
    client.ok("/v1/chat/completions", {**HELLO, "max_completion_tokens": 7, "max_tokens": 9, "stop": ["a", "b"]})
    first, second = client.engine.samplings
    assert (first.temperature, first.stop, first.max_tokens) == (0.25, ("END",), 64) and first.top_p < 1e-3
    assert (second.temperature, second.max_tokens, second.stop) == (0.8, 7, ("a", "b"))


def test_raw_completions_pass_the_chat_template_by(served):
    client = served()
    reply = client.ok("/v1/completions", {"prompt": ["one", "two"], "n": 2, "seed": 1})
    assert reply["object"] == "text_completion" and len(reply["choices"]) == 4
    assert [request.prompt for request in client.engine.requests] == ["one", "one", "two", "two"]
    assert not any(sampling.chat_template for sampling in client.engine.samplings)
    seeds = [request.seed for request in client.engine.requests]
    assert seeds[0] == seeds[2] == 1 and seeds[1] == seeds[3] != 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_comes_in_chunks_and_says_the_same(served, path):
    client = served()
    body = {**HELLO, "prompt": "x", "n": 2, "seed": 3}
    whole = client.ok(path, {**body})
    status, text, headers = client.send("POST", path, {**body, "stream": True, "stream_options":
                                                       {"include_usage": True}})  # fmt: skip
    assert status == 200 and headers["Content-Type"] == "text/event-stream"
    events = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
    assert events[-1] == "[DONE]" and text.endswith("\n\n")
    chunks = [json.loads(event) for event in events[:-1]]
    assert len({chunk["id"] for chunk in chunks}) == 1 and chunks[-1]["choices"] == [] and chunks[-1]["usage"]
    said, ends = {0: "", 1: ""}, {}
    for chunk in chunks[:-1]:
        choice = chunk["choices"][0]
        piece = choice["delta"].get("content", "") if "chat" in path else choice["text"]
        said[choice["index"]] += piece
        if choice["finish_reason"]:
            ends[choice["index"]] = choice["esopt"]["id"]
    # the first two got directions 0 and 1 of the batch, the others 2 and none, and the seeds were the same
    assert len(ends) == 2 and headers["X-Esopt-Id"] == "2,3"
    assert all("def select_next_node" in text for text in said.values()) and len(whole["choices"]) == 2


def test_models_and_health(served):
    client = served(token=TOKEN)
    assert client.send("GET", "/health")[:2] == (200, {"status": "ok"})
    rows = client.send("GET", "/v1/models", headers={"X-Api-Key": TOKEN})[1]["data"]
    assert [row["id"] for row in rows] == ["tiny", "tiny:frozen"]


# -- directions ------------------------------------------------------------------------------------------------------


def test_every_request_has_a_direction_of_its_own_until_the_batch_is_dealt(served):
    client = served()
    said = [client.ok("/v1/chat/completions", HELLO)["esopt"] for _ in range(5)]
    assert len({one["direction"] for one in said[:3]}) == 3 and [one["direction"] for one in said[3:]] == [None, None]
    assert [one["sigma"] for one in said] == [0.05] * 3 + [0.0] * 2
    batch = client.state()["batch"]
    assert batch == {"directions": 3, "candidates": 3, "dealt": 3, "scored": 0}


def test_concurrent_requests_share_engine_calls_and_no_direction(served):
    client = served(directions=8)
    client.engine.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(client.ok, "/v1/chat/completions", HELLO) for _ in range(8)]
        time.sleep(0.5)
        client.engine.gate.set()
        replies = [future.result() for future in futures]
    assert len({reply["esopt"]["direction"] for reply in replies}) == 8
    assert len({reply["esopt"]["id"] for reply in replies}) == 8 and len(client.engine.sizes) < 8


@pytest.mark.parametrize(
    ("headers", "model", "directed"),
    [({"X_Esopt": "off"}, "m", False), ({}, "m:frozen", False), ({"X_Esopt": "on"}, "m:frozen", True),
     ({}, "m:esopt", True), ({}, "m", True)],
)  # fmt: skip
def test_a_request_says_whether_it_wants_a_direction(served, headers, model, directed):
    client = served()
    reply = client.ok("/v1/chat/completions", {**HELLO, "model": model}, **headers)
    assert (reply["esopt"]["direction"] is not None) is directed


def test_only_prompts_that_match_get_directions_unless_the_request_says_so(served):
    client = served(es_match=re.compile("modified|parameters"))
    mutation = {**EOH, "prompt": "Write a modified version."}
    assert client.ok("/completions", EOH)["esopt"][0]["direction"] is None
    assert client.ok("/completions", mutation)["esopt"][0]["direction"] is not None
    assert client.ok("/completions", EOH, X_Esopt="on")["esopt"][0]["direction"] is not None
    assert client.ok("/completions", mutation, X_Esopt="off")["esopt"][0]["direction"] is None
    assert client.ok("/v1/chat/completions", HELLO)["esopt"]["direction"] is None


def test_the_frozen_arm_perturbs_nothing_and_records_the_same_lines(served):
    client = served(arm="frozen")
    for _ in range(3):
        said = client.ok("/v1/chat/completions", HELLO)["esopt"]
        assert said["direction"] is None and said["sigma"] == 0
        client.ok("/es/tell", {"id": said["id"], "objective": 1.0})
    assert len(lines(client)) == 3 and client.state()["steps_taken"] == 0


# -- scores ----------------------------------------------------------------------------------------------------------


def test_a_complete_batch_of_rewards_moves_the_model(served):
    client = served()
    before = client.engine.fingerprint()
    ids = [client.ok("/v1/chat/completions", HELLO)["esopt"]["id"] for _ in range(3)]
    assert client.ok("/es/tell", {"id": ids[0], "reward": 1})["step"] is None
    answer = client.ok("/es/tell", [{"id": ids[1], "reward": 0.5}, {"id": f"esopt-{ids[2]}", "reward": -3}])
    assert answer["told"] == ids[1:] and answer["step"]["taken"]
    assert client.engine.fingerprint() == answer["step"]["fingerprint"] != before
    state = client.state()
    assert (state["step"], state["steps_taken"], state["batch"]) == (1, 1, None) and 0 < state["sigma"] < 0.05
    assert lines(client, "history")[0]["rewards"] == [1, 0.5, -3]


def test_objectives_are_minimised(served):
    client = served()
    ids = [client.ok("/completions", EOH)["esopt"][0]["id"] for _ in range(3)]
    client.ok("/es/tell", [{"id": ids[0], "objective": 7.0}, {"id": ids[1], "objective": 5.0},
                           {"id": ids[2], "objective": None}])  # fmt: skip
    weights = lines(client, "history")[0]["weights"]
    assert weights[1] > weights[0] > weights[2]
    assert client.state()["best"] == 5.0


@pytest.mark.parametrize("value", [None, "failure", "timeout", float("nan"), float("inf"), 10**400])
def test_what_is_no_number_is_an_invalid_candidate(served, value):
    client = served()
    id = client.ok("/completions", EOH)["esopt"][0]["id"]
    client.ok("/es/tell", {"id": id, "objective": value, "detail": "it failed", "seconds": 2})
    line = lines(client)[0]
    expected = {None: "exception", "failure": "exception", "timeout": "timeout"}
    assert line["objective"] is None and line["detail"] == "it failed"
    assert line["failure"] == (expected[value] if isinstance(value, str | None) else "nonfinite")


def test_a_score_finds_its_candidate_by_the_program(served):
    client = served()
    texts = [client.ok("/completions", EOH)["content"][0] for _ in range(3)]
    programs = [re.search("```python\n(.*?)```", text, re.S)[1] for text in texts]
    assert len(set(programs)) == 3
    spaced = programs[1].replace("\n", "\r\n") + "\n\n"
    assert client.ok("/es/tell", {"code": spaced, "objective": 4.0})["told"] == [1]
    assert client.ok("/es/tell", {"code": programs[1], "objective": 4})["repeated"] == [1]
    assert "told objective 4 before, now objective 5" in client.wrong(
        "/es/tell", {"code": programs[1], "objective": 5}, 409)  # fmt: skip
    assert "holds that code" in client.wrong("/es/tell", {"code": "def something_else(): pass", "objective": 1}, 404)
    assert lines(client)[0]["code"] == spaced


def test_a_program_that_was_written_twice_is_scored_twice(served):
    client = served()
    for _ in range(2):
        client.ok("/completions", {**EOH, "params": {"do_sample": True}}, X_Esopt="off")
    texts = [client.ok("/v1/chat/completions", {**HELLO, "seed": 9})["choices"][0]["message"]["content"]
             for _ in range(2)]  # fmt: skip
    assert texts[0] == texts[1]
    program = re.search("```python\n(.*?)```", texts[0], re.S)[1]
    assert client.ok("/es/tell", {"code": program, "objective": 4})["told"] == [2]
    assert client.ok("/es/tell", {"code": program, "objective": 4})["told"] == [3]
    assert client.ok("/es/tell", {"code": program, "objective": 4})["repeated"] == [3]


def test_a_list_with_one_wrong_score_tells_nothing(served):
    client = served()
    id = client.ok("/completions", EOH)["esopt"][0]["id"]
    assert "id 99" in client.wrong("/es/tell", [{"id": id, "objective": 1}, {"id": 99, "objective": 1}], 404)
    assert client.state()["candidates"] == 0
    assert "before" in client.wrong("/es/tell", [{"id": id, "objective": 1}, {"id": id, "objective": 2}], 409)
    assert client.state()["candidates"] == 0
    assert client.ok("/es/tell", {"id": id, "objective": 1})["told"] == [id]


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ({"objective": 1}, "id or the code"),
        ({"id": 0}, "objective"),
        ({"id": 0, "objective": "7"}, "failure"),
        ({"id": 0, "objective": True}, "number"),
        ({"id": 0, "objective": [1]}, "number"),
        ({"id": 1.5, "objective": 1}, "whole number"),
        ({"id": "x", "objective": 1}, "whole number"),
        ({"id": True, "objective": 1}, "whole number"),
        ({"id": 0, "score": 1}, "score"),
        ({"id": 0, "objective": 1, "seconds": -1}, "seconds"),
        ({"id": 0, "objective": 1, "failure": "bored"}, "failure"),
        ({"code": 7, "objective": 1}, "code"),
        ({"code": "x", "objective": 1}, "8 characters"),
        ("hello", "object"),
        ([], "1 to"),
        ([[]], "object"),
    ],
)
def test_a_score_that_is_not_understood_is_one_sentence(served, score, message):
    client = served()
    client.ok("/completions", EOH)
    assert message in client.wrong("/es/tell", score)
    assert client.state()["candidates"] == 0


def test_rewards_and_objectives_are_not_mixed(served):
    client = served()
    ids = [client.ok("/completions", EOH)["esopt"][0]["id"] for _ in range(2)]
    client.ok("/es/tell", {"id": ids[0], "reward": 1})
    assert "rewards as before" in client.wrong("/es/tell", {"id": ids[1], "objective": 1})
    client.ok("/es/tell", {"id": ids[1], "reward": None})


def test_a_batch_that_waits_too_long_steps_without_the_missing_scores(served):
    client = served(timeout=0.3)
    ids = [client.ok("/completions", EOH)["esopt"][0]["id"] for _ in range(3)]
    client.ok("/es/tell", [{"id": ids[0], "objective": 1}, {"id": ids[1], "objective": 2}])
    time.sleep(0.4)
    assert client.ok("/completions", EOH)["esopt"][0]["direction"] is not None
    assert client.state()["step"] == 1 and len(lines(client, "history")[0]["seeds"]) == 2
    assert client.ok("/es/tell", {"id": ids[2], "objective": 3})["told"] == [ids[2]]  # late, but on the record


def test_after_the_last_step_there_are_no_directions(served):
    client = served(steps=1, directions=2)
    for _ in range(2):
        said = client.ok("/completions", EOH)["esopt"][0]
        client.ok("/es/tell", {"id": said["id"], "objective": said["id"]})
    assert client.ok("/completions", EOH)["esopt"][0]["direction"] is None


def test_operator_and_parent_are_recorded(served):
    client = served()
    id = client.ok("/completions", EOH, X_Esopt_Operator="m1", X_Esopt_Parent="6.5")["esopt"][0]["id"]
    client.ok("/es/tell", {"id": id, "objective": 6.0})
    line = lines(client)[0]
    assert line["operator"] == "m1" and line["parent_objectives"] == [6.5]


def test_replies_without_a_program_are_invalid_at_once_if_a_function_is_named(served):
    engine = Recording()
    engine.base[0] = -10.0  # never a program
    client = served(function="select_next_node", engine=engine, directions=2)
    said = client.ok("/completions", EOH)["esopt"][0]
    assert said["failure"] == "reply" and lines(client)[0]["failure"] == "reply"
    assert client.ok("/es/tell", {"id": said["id"], "objective": None})["repeated"] == [said["id"]]
    client.ok("/completions", EOH)
    assert client.state()["step"] == 1


def test_a_started_reply_is_sent_whole_with_its_fence_closed(served):
    engine = Recording()
    engine.base[0] = -10.0
    start = "```python\ndef f():\n    return "
    client = served(start=start, engine=engine)
    assert client.ok("/completions", EOH)["content"] == [start + "I would rather not.\n```"]
    assert engine.requests[0].prefill == start
