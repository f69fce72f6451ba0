"""The history file: append-only, exact, and proof against being killed at any byte."""

import json
import math
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttc_esopt.errors import DataError
from ttc_esopt.es.history import History

RECORDS = [{"t": 0, "sigma": 0.1, "seeds": [1, 2**52 - 1]}, {"t": 1, "note": "é\n"}, {"t": 2, "z": [-0.0, 1e-300]}]


def written(path, records=RECORDS):
    with History(path) as history:
        for record in records:
            history.append(record)
    return path


def test_records_come_back_exactly_one_compact_line_each(tmp_path):
    path = written(tmp_path / "history.jsonl")
    assert History(path).read() == RECORDS
    lines = path.read_text().splitlines()
    assert lines[0] == '{"seeds":[1,4503599627370495],"sigma":0.1,"t":0}' and len(lines) == 3


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
def test_floats_come_back_bit_for_bit(tmp_path, value):
    path = tmp_path / "h.jsonl"
    path.unlink(missing_ok=True)
    (back,) = History(written(path, [{"x": value}])).read()
    assert back["x"] == value and math.copysign(1, back["x"]) == math.copysign(1, value)


def test_an_absent_file_holds_nothing_and_reading_does_not_create_it(tmp_path):
    assert History(tmp_path / "none.jsonl").read() == []
    assert not (tmp_path / "none.jsonl").exists()


def test_cut_at_any_byte_it_reads_the_whole_records_and_goes_on_to_the_same_bytes(tmp_path):
    path = written(tmp_path / "history.jsonl")
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = data[:cut].count(b"\n")
        assert History(path).read() == RECORDS[:whole]
        written(path, RECORDS[whole:])
        assert path.read_bytes() == data


@pytest.mark.parametrize("torn", [b"\0\0\0\0", b'{"t":3', b'{"t":3}', b"garbage\n", b"\xff\xfe\n", b"[1]\n"])
def test_a_torn_last_line_is_ignored_and_cut_off_before_appending(tmp_path, torn):
    path = written(tmp_path / "history.jsonl")
    data = path.read_bytes()
    path.write_bytes(data + torn)
    assert History(path).read() == RECORDS
    written(path, [{"t": 3}])
    assert path.read_bytes() == data + b'{"t":3}\n'


def test_a_broken_line_in_the_middle_is_an_error_with_its_number_and_nothing_is_cut(tmp_path):
    path = written(tmp_path / "history.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{broken\n" + lines[2])
    before = path.read_bytes()
    with pytest.raises(DataError, match="line 2"):
        History(path).read()
    with pytest.raises(DataError, match="line 2"):
        History(path).append({"t": 3})
    assert path.read_bytes() == before


def test_every_record_is_on_the_disk_before_append_returns(tmp_path, monkeypatch):
    path, seen = tmp_path / "history.jsonl", []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (real(fd), seen.append(path.read_bytes())))
    with History(path) as history:
        history.append({"t": 0})
        assert seen[-1] == b'{"t":0}\n'
        history.append({"t": 1})
        assert seen[-1] == b'{"t":0}\n{"t":1}\n'


def test_a_full_disk_leaves_no_half_record(tmp_path, monkeypatch):
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        history.append({"t": 0})
        real = os.write

        def full(fd, data):
            if len(data) > 3:
                return real(fd, bytes(data[:3]))
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(DataError, match="No space left"):
            history.append({"t": 1, "more": "x"})
        monkeypatch.setattr(os, "write", real)
        assert path.read_bytes() == b'{"t":0}\n'
        history.append({"t": 1})
    assert [record["t"] for record in History(path).read()] == [0, 1]


def test_values_that_json_cannot_hold_are_refused(tmp_path):
    with History(tmp_path / "history.jsonl") as history:
        with pytest.raises(ValueError, match="not JSON compliant"):
            history.append({"x": math.nan})
        history.append({"x": 1})
    assert json.loads((tmp_path / "history.jsonl").read_text()) == {"x": 1}


def test_a_folder_that_does_not_exist_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="nosuch"):
        History(tmp_path / "nosuch" / "history.jsonl").append({"t": 0})
