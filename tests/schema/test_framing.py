import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.errors import SchemaError
from rl_insight.schema import frame, read_frames
from rl_insight.schema.framing import MAX_PAYLOAD_BYTES

PAYLOADS = st.lists(st.binary(max_size=40), max_size=5)


def read_until_error(stream):
    found = []
    try:
        for payload in read_frames(io.BytesIO(stream)):
            found.append(payload)  # noqa: PERF402 - a list() would lose what came before the error
    except SchemaError as error:
        return found, error
    return found, None


@given(PAYLOADS)
def test_frames_are_read_as_they_were_written(payloads):
    assert read_until_error(b"".join(map(frame, payloads))) == (payloads, None)


@given(payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=5), data=st.data())
def test_a_truncated_tail_loses_only_the_last_frame(payloads, data):
    stream = b"".join(map(frame, payloads))
    cut = data.draw(st.integers(1, len(frame(payloads[-1])) - 1))
    found, error = read_until_error(stream[:-cut])
    assert found == payloads[:-1]
    assert "truncated" in str(error)


@given(payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=5), data=st.data())
def test_one_flipped_bit_is_found_and_everything_before_it_is_read(payloads, data):
    damaged = data.draw(st.integers(0, len(payloads) - 1))
    frames = [bytearray(frame(payload)) for payload in payloads]
    bit = data.draw(st.integers(0, 8 * len(frames[damaged]) - 1))
    frames[damaged][bit // 8] ^= 1 << bit % 8
    found, error = read_until_error(b"".join(frames))
    assert found == payloads[:damaged]
    assert error is not None


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"\x00", "truncated: .* frame header at byte 13"),
        (b"JSON{}{}{}{}", "not a frame: .* at byte 13, found b'JSON'"),
        (struct.pack("<4sII", b"RLI1", 2**32 - 1, 0), "too large: the frame at byte 13 claims 4294967295"),
        (struct.pack("<4sII", b"RLI1", MAX_PAYLOAD_BYTES, 0) + b"x", "truncated: .* the frame at byte 13"),
        (struct.pack("<4sII", b"RLI1", 1, 0) + b"x", "corrupt: the checksum of the frame at byte 13"),
    ],
)
def test_a_bad_frame_is_named_with_its_place(tail, message):
    frames = read_frames(io.BytesIO(frame(b"a") + tail))
    assert next(frames) == b"a"
    with pytest.raises(SchemaError, match=message):
        next(frames)


def test_a_payload_that_no_reader_takes_is_not_framed():
    with pytest.raises(SchemaError, match="too large"):
        frame(bytes(MAX_PAYLOAD_BYTES + 1))
