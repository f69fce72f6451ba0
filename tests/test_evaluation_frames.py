"""The bytes that a child sends: faithful for honest ones, refused for all others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttc_esopt.evaluation.frames import BadFrame, Failure, clean, decode, encode, encode_failure


def test_arrays_come_back_with_their_bits_types_and_shapes():
    arrays = [np.arange(6).reshape(2, 3), np.array([np.nan, -0.0, 1e300]), np.array(3), np.zeros((0, 4))]
    back = decode(b"".join(encode(arrays))).outputs
    assert [a.dtype for a in back] == [a.dtype for a in arrays]
    assert [a.shape for a in back] == [a.shape for a in arrays]
    assert [a.tobytes() for a in back] == [a.tobytes() for a in arrays]
    assert all(a.flags.aligned for a in back)


def test_arrays_that_are_not_contiguous_come_back_as_seen():
    array = np.arange(12).reshape(3, 4).T[::2]
    assert np.array_equal(decode(b"".join(encode([array]))).outputs[0], array)


@pytest.mark.parametrize("array", [np.array([None]), np.array(["x"]), np.array([1j]), np.array([1], dtype=np.int32)])
def test_only_two_types_are_sent(array):
    with pytest.raises(ValueError, match="int64 or float64"):
        encode([array])


def test_a_failure_comes_back_on_one_clean_line():
    frame = decode(encode_failure("exception", "a\x00b\nc\x1b"))
    assert (frame.failure, frame.outputs) == (Failure("exception", "a?b c?"), ())


def test_single_instances_can_fail_and_compilation_is_told():
    frame = decode(b"".join(encode([np.array([1.0]), Failure("shape", "a\nb")], compile_seconds=1.5)))
    assert frame.outputs[0] == 1.0 and frame.outputs[1] == Failure("shape", "a b")
    assert frame.failure is None and frame.compiled and frame.compile_seconds == 1.5
    assert not decode(b"".join(encode([]))).compiled


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"{}",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'{"failure": "exception"}\n',
        b'{"failure": "exception", "detail": 3}\n',
        b'{"failure": "timeout", "detail": ""}\n',
        b'{"failure": ["exception"], "detail": ""}\n',
        b'{"failure": "exception", "detail": ""}\nmore',
        b'{"failure": "exception", "detail": "", "outputs": []}\n',
        b'{"outputs": [["int64", [2]]], "compile_seconds": null}\n' + bytes(15),
        b'{"outputs": [["int64", [2]]], "compile_seconds": null}\n' + bytes(17),
        b'{"outputs": [["int64", [true]]], "compile_seconds": null}\n' + bytes(8),
        b'{"outputs": [["int64", [1.0]]], "compile_seconds": null}\n' + bytes(8),
        b'{"outputs": [["int64", 1]], "compile_seconds": null}\n' + bytes(8),
        b'{"outputs": [["int64", [1], 1]], "compile_seconds": null}\n' + bytes(8),
        b'{"outputs": [[[], [1]]], "compile_seconds": null}\n' + bytes(8),
        b'{"outputs": [["int64", [1, 1, 1, 1, 1]]], "compile_seconds": null}\n' + bytes(8),
        b'{"outputs": [["int64", [1' + b"0" * 5000 + b']]], "compile_seconds": null}\n',
        b'{"outputs": [["int64", [NaN]]], "compile_seconds": null}\n',
        b'{"outputs": []}\n',
        b'{"outputs": [], "compile_seconds": -1}\n',
        b'{"outputs": [], "compile_seconds": NaN}\n',
        b'{"outputs": [], "compile_seconds": "1"}\n',
        b'{"outputs": [{"failure": "timeout", "detail": ""}], "compile_seconds": null}\n',
        b"[" * 200_000 + b"\n",
    ],
)
def test_anything_else_is_refused(data):
    with pytest.raises(BadFrame):
        decode(data)


@given(st.binary(max_size=200))
def test_random_bytes_never_break_the_reader(data):
    """They are refused, or are what an honest child may send: hypothesis writes such a thing when it has seen one."""
    try:
        frame = decode(data)
    except BadFrame:
        return
    if frame.failure is not None:
        assert decode(encode_failure(frame.failure.word, frame.failure.detail)) == frame
    else:
        assert all(isinstance(one, Failure) or one.nbytes <= len(data) for one in frame.outputs)


@given(st.text(max_size=3000) | st.text(st.characters(categories=["Cs", "Cc"]), max_size=50))
def test_clean_text_is_one_printable_line_that_can_be_encoded(text):
    cleaned = clean(text)
    assert len(cleaned) <= 500 and cleaned.isprintable()
    cleaned.encode()
