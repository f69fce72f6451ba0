"""TensorBoard event files, read back."""

from __future__ import annotations

import struct
import sys

import pytest
from report_folders import make_run, make_study

from ttc_esopt.errors import ConfigurationError
from ttc_esopt.tensorboard import write_events


def events(folder):
    """Tag -> [(step, value, seconds)] of the one event file in a folder; histograms as their number of values."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events.out.tfevents.*")
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):  # length, its checksum, the event, its checksum
        (size,) = struct.unpack("<Q", data[at : at + 8])
        event = Event.FromString(data[at + 12 : at + 12 + size])
        at += size + 16
        for value in event.summary.value:
            number = value.histo.num if value.HasField("histo") else value.simple_value
            found.setdefault(value.tag.replace("_", " "), []).append((event.step, number, event.wall_time))
    return found


def test_the_course_of_a_run_can_be_read_back(tmp_path):
    run = make_run(tmp_path / "demo")
    found = events(write_events([run], tmp_path / "tb") / "demo")
    best = found["objective/best"]
    assert [value for _, value, _ in best] == sorted((value for _, value, _ in best), reverse=True)
    assert best[-1][0] == 120 and best[-1][1] == pytest.approx(6.5459, abs=1e-3)
    assert best[-1][2] == pytest.approx(120 * 2.8, rel=0.01)  # the steps' lines stand at the end of this file
    assert len(found["candidates/valid share"]) == 117
    assert [step for step, _, _ in found["es/sigma"]] == list(range(8))
    assert found["es/alpha"][0][1] == pytest.approx(0.003)
    assert found["es/expected update RMS"][2][1] == 0 and found["es/expected update RMS"][1][1] > 0
    low, mean, high = (found[f"rewards/{name}"][3][1] for name in ("min", "mean", "max"))
    assert low < mean < high
    assert [number for _, number, _ in found["rewards/distribution"]] == [10] * 8


def test_a_study_has_a_folder_for_each_run(tmp_path):
    study = make_study(tmp_path / "study", seeds=1, candidates=20)
    out = write_events([study], tmp_path / "tb")
    assert "objective/best" in events(out / "tsp_construct" / "frozen" / "seed-1")
    assert not (out / "kp_construct" / "esopt" / "seed-1").exists()


def test_bad_usage_is_one_helpful_sentence(tmp_path, monkeypatch):
    run = make_run(tmp_path / "demo", candidates=20)
    write_events([run], tmp_path / "tb")
    with pytest.raises(ConfigurationError, match="without event files"):
        write_events([run], tmp_path / "tb")
    with pytest.raises(ConfigurationError, match="holds no run"):
        write_events([tmp_path / "tb"], tmp_path / "other")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ttc-esopt\[tensorboard\]'"):
        write_events([run], tmp_path / "new")
