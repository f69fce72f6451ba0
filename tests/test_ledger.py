"""The books of a run that somebody else drives: directions are dealt, scores come in any order, steps follow."""

import threading

import pytest
from stand_in import StandInEngine

from ttc_esopt.attached.desk import Desk
from ttc_esopt.attached.ledger import Ledger, Reading
from ttc_esopt.candidates import batch_rewards, key
from ttc_esopt.engines.base import Request, Sampling
from ttc_esopt.errors import ConfigurationError, DataError
from ttc_esopt.runfolder import RunFolder
from ttc_esopt.settings import resolve

READING = Reading("select_next_node")


@pytest.fixture
def books(tmp_path):
    """Makes ledgers on one engine; the folder and the engine are its attributes."""
    desks = []

    def make(steps=3, said=None, reading=READING, timeout=0.0, **settings):
        values = {"arm": "esopt", "directions": 4, "sigma": 0.1, "alpha": 0.1} | settings
        make.engine = StandInEngine()
        folder = RunFolder.create(tmp_path / f"run{len(desks)}", resolve(values), "test")
        desks.append(Desk(make.engine))
        make.folder = folder
        say = said.append if said is not None else print
        return Ledger(folder, desks[-1], steps=steps, reading=reading, batch_timeout=timeout, say=say)

    yield make
    for desk in desks:
        desk.close()


def ask(n=1, **more):
    return [{"prompt": f"write {i}", **more} for i in range(n)]


def score(ledger, replies, objective=float):
    return ledger.tell([{"id": reply["id"], "objective": objective(i)} for i, reply in enumerate(replies)])


def test_a_batch_is_dealt_in_order_and_its_last_score_moves_the_model(books):
    ledger = books()
    before = books.engine.fingerprint()
    batch = ledger.open_batch(4, generation=1, operator="m1")
    replies = ledger.generate("m1", 1, ask(4), batch)
    assert len({reply["direction"] for reply in replies}) == 4 and {reply["sigma"] for reply in replies} == {0.1}
    assert score(ledger, replies[:3])["step"] is None and books.engine.fingerprint() == before
    answer = ledger.tell([{"id": replies[3]["id"], "objective": None, "failure": "timeout"}])
    assert answer["step"]["taken"] and books.engine.fingerprint() == answer["step"]["fingerprint"] != before
    record = books.folder.history.read()[0]
    assert record["seeds"] == [reply["direction"] for reply in replies] and record["candidates"] == [0, 1, 2, 3]
    lines = books.folder.samples.read()
    assert record["rewards"] == batch_rewards("default", lines, {}, None)


def test_streamed_scores_in_any_order_and_of_other_operators_in_between(books):
    ledger = books()
    ledger.tell([{"id": ledger.generate("e1", 1, ask())[0]["id"], "objective": 2.0}])
    replies = [ledger.generate("m1", 1, ask(), "stream")[0] for _ in range(4)]
    other = ledger.generate("e1", 1, ask())[0]
    extra = ledger.generate("m1", 1, ask(), "stream")[0]
    assert other["direction"] is None and extra["direction"] is None  # all are dealt, and none is scored
    for i in (2, 0, 3):
        ledger.tell([{"id": replies[i]["id"], "objective": [2.0, 5.0, 1.0, 1.0][i]}])
    ledger.tell([{"id": extra["id"], "objective": 4.0}, {"id": other["id"], "objective": 5.0}])
    assert ledger.tell([{"id": replies[1]["id"], "objective": 5.0}])["step"]["taken"]
    record, lines = books.folder.history.read()[0], books.folder.samples.read()
    assert record["candidates"] == [2, 6, 1, 3] or sorted(record["candidates"]) == [1, 2, 3, 6]
    batch = [lines[order] for order in record["candidates"]]
    assert [line["direction"] for line in batch] == record["seeds"]
    orders = {line["order"] for line in batch}
    known = {key(line["objective"]) for line in batch if line["copy_of"] is not None and line["copy_of"] not in orders}
    assert known == {2.0, 5.0}
    assert record["rewards"] == batch_rewards("default", batch, known, None)
    assert ledger.generate("m1", 1, ask(), "stream")[0]["sigma"] < 0.1  # the next batch


def test_what_has_no_score_in_time_is_left_out_of_the_step(books):
    ledger = books(timeout=0.05)
    replies = ledger.generate("m1", 1, ask(4), "stream")
    score(ledger, replies[:3])
    threading.Event().wait(0.06)
    ledger.tend()
    record = books.folder.history.read()[0]
    assert record["seeds"] == [reply["direction"] for reply in replies[:3]] and record["discarded"] == 1
    ledger.tell([{"id": replies[3]["id"], "objective": 9.0}])  # late, but no error
    assert len(books.folder.history.read()) == 1 and len(books.folder.samples.read()) == 4


def test_fewer_than_two_scores_are_no_step_and_the_schedule_stays(books):
    said = []
    ledger = books(said=said, timeout=0.01)
    first = ledger.generate("m1", 1, ask(4), "stream")
    score(ledger, first[:1])
    threading.Event().wait(0.02)
    ledger.tend()
    assert not books.folder.history.read() and any("no step" in line for line in said)
    assert ledger.generate("m1", 1, ask(), "stream")[0]["direction"] == first[0]["direction"]


def test_rewards_may_be_told_in_place_of_objectives(books):
    ledger = books(reading=Reading())
    replies = ledger.generate("chat", 0, ask(4), "stream")
    step = ledger.tell([{"id": reply["id"], "reward": [0.0, 1.0, 0.0, 1.0][i]} for i, reply in enumerate(replies)])
    assert step["step"]["taken"] and books.folder.history.read()[0]["rewards"] == [0.0, 1.0, 0.0, 1.0]


def test_what_fails_beside_told_rewards_gets_less_than_any(books):
    ledger = books(reading=Reading())
    replies = ledger.generate("chat", 0, ask(4), "stream")
    ledger.tell([{"id": replies[0]["id"], "objective": None, "failure": "timeout"}])
    ledger.tell([{"id": reply["id"], "reward": -500.0 - 10 * i} for i, reply in enumerate(replies[1:])])
    rewards = books.folder.history.read()[0]["rewards"]
    assert rewards[1:] == [-500.0, -510.0, -520.0] and rewards[0] < -520.0


def test_replies_per_direction_share_it(books):
    ledger = books(replies_per_direction=2)
    replies = ledger.generate("m1", 1, ask(8), ledger.open_batch(4, generation=1, operator="m1"))
    assert [r["direction"] for r in replies[::2]] == [r["direction"] for r in replies[1::2]]
    score(ledger, replies)
    assert [len(row) for row in books.folder.history.read()[0]["rewards"]] == [2] * 4


def test_asking_again_keeps_the_direction_and_changes_the_reply(books):
    ledger = books()
    first = ledger.generate("m1", 1, ask(4), ledger.open_batch(4, generation=1, operator="m1"))
    again = ledger.again(first[1]["id"], {"prompt": "other", "parents": [{"code": "x", "objective": 7.0}]})
    assert again["direction"] == first[1]["direction"] and again["id"] == first[1]["id"]
    score(ledger, first)
    line = books.folder.samples.read()[1]
    assert line["calls"] == 2 and line["parent_objectives"] == [7.0] and line["reply"] == again["text"]


def test_frozen_deals_slots_and_takes_no_step(books):
    ledger = books(arm="frozen")
    replies = ledger.generate("m1", 1, ask(4), ledger.open_batch(4, generation=1, operator="m1"))
    assert {reply["direction"] for reply in replies} == {None}
    assert score(ledger, replies)["step"] is None and not books.folder.history.read()
    assert all(line["reward"] is not None for line in books.folder.samples.read())


def test_after_the_last_step_there_are_no_directions(books):
    ledger = books(steps=1)
    score(ledger, ledger.generate("m1", 1, ask(4), "stream"))
    assert ledger.open_batch(4, generation=2, operator="m1") is None
    assert ledger.generate("m1", 2, ask(), "stream")[0]["direction"] is None


def test_the_same_score_twice_is_no_error_another_one_is(books):
    ledger = books()
    reply = ledger.generate("e1", 1, ask())[0]
    ledger.tell([{"id": reply["id"], "objective": 1.0}])
    assert ledger.tell([{"id": reply["id"], "objective": 1.0}])["repeated"] == 1
    with pytest.raises(DataError, match="another score"):
        ledger.tell([{"id": reply["id"], "objective": 2.0}])
    with pytest.raises(DataError, match="got 99"):
        ledger.tell([{"id": 99, "objective": 2.0}])
    other = ledger.generate("e1", 1, ask())[0]
    with pytest.raises(DataError, match="another score"):  # and then none of the list counts
        ledger.tell([{"id": other["id"], "objective": 3.0}, {"id": reply["id"], "objective": 2.0}])
    assert len(books.folder.samples.read()) == 1
    ledger.tell([{"id": other["id"], "objective": float("nan")}])
    assert books.folder.samples.read()[1]["failure"] == "nonfinite"


def test_a_batch_holds_no_more_than_its_directions(books):
    ledger = books()
    batch = ledger.open_batch(3, generation=1, operator="m1")
    with pytest.raises(ConfigurationError, match="directions left"):
        ledger.generate("m1", 1, ask(4), batch)
    with pytest.raises(ConfigurationError, match="at most 4"):
        ledger.open_batch(5, generation=1, operator="m1")


def test_a_ledger_on_a_folder_with_steps_goes_on_where_it_was(books):
    ledger = books()
    score(ledger, ledger.generate("m1", 1, ask(4), "stream"))
    desk = Desk(books.engine)
    again = Ledger(books.folder, desk, steps=3, reading=READING)
    reply = again.generate("m1", 1, ask(), "stream")[0]
    assert again.state()["step"] == 1 and 0 < reply["sigma"] < 0.1 and reply["id"] >= 4
    desk.close()


def test_a_late_score_of_a_reply_from_before_a_restart_finds_nobody(books):
    ledger = books()
    replies = ledger.generate("chat", 0, ask(2), "stream")
    ledger.tell([{"id": replies[0]["id"], "objective": 1.0}])
    desk = Desk(books.engine)
    again = Ledger(books.folder, desk, steps=3, reading=READING, first_id=1_000_000)
    new = again.generate("chat", 0, ask(), "stream")[0]
    assert new["id"] == 1_000_000
    with pytest.raises(DataError, match=f"got {replies[1]['id']}"):
        again.tell([{"id": replies[1]["id"], "objective": 2.0}])
    desk.close()


def test_requests_of_several_threads_are_written_together_and_steps_come_between():
    engine = StandInEngine()
    desk = Desk(engine)
    results = {}

    def one(i):
        results[i] = desk.generate([Request(f"p{i}", seed=i)], Sampling())[0].text

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 and engine.calls < 8
    alone = StandInEngine().generate([Request("p3", seed=3)], Sampling())[0].text
    assert results[3] == alone

    desk.close()


def test_a_request_that_the_engine_refuses_fails_alone():
    class Picky(StandInEngine):
        def generate(self, requests, sampling, progress=None):
            if any(request.prompt == "bad" for request in requests):
                raise ValueError("too long")
            return super().generate(requests, sampling, progress)

    desk, results = Desk(Picky()), {}

    def one(prompt):
        try:
            results[prompt] = desk.generate([Request(prompt, seed=1)], Sampling())[0].finish
        except ValueError as error:
            results[prompt] = str(error)

    threads = [threading.Thread(target=one, args=(prompt,)) for prompt in ("a", "bad", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {"a": "stop", "bad": "too long", "b": "stop"}

    def fail(engine):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        desk.do(fail)
    assert len(desk.do(lambda engine: engine.fingerprint())) == 16
    desk.close()
