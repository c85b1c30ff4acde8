"""Laws of protocol buffers as bytes: what is written is read, as others read it; whatever is read is read once, and ends."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.app.otlp.rpc_status import retry_after_s
from sits.core.errors import ConfigError
from sits.telemetry.otlp.counting import more_than
from sits.telemetry.profile import pprof
from sits.telemetry.protobuf_wire import bytes_field, fields_of, integer_field, signed, take, varint

INTEGERS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers(1, 2**29 - 1)


class Once(bytes):
    """Bytes that fail whoever looks at one of them for the third time."""

    def __init__(self, _: bytes) -> None:
        self.looked = [0] * len(self)

    def __getitem__(self, key):
        if isinstance(key, int) and key < len(self):
            self.looked[key] += 1
            assert self.looked[key] <= 2, f"byte {key} is read again and again"
        return super().__getitem__(key)


@given(INTEGERS)
def test_an_integer_comes_back(value):
    made = varint(value)
    told, end = take(made, 0)
    assert (signed(told), end) == (value, len(made))


@given(st.lists(st.tuples(NUMBERS, INTEGERS.filter(bool) | st.binary(max_size=20))))
def test_fields_come_back_in_their_order(pairs):
    made = b"".join(
        integer_field(field, value) if isinstance(value, int) else bytes_field(field, value)
        for field, value in pairs
    )
    assert list(fields_of(made)) == pairs


@given(st.text(max_size=20), st.integers(-(2**31), 2**31 - 1))
def test_the_library_reads_it_and_writes_the_same(name, number):
    descriptors = pytest.importorskip("google.protobuf.descriptor_pb2")
    theirs = descriptors.FieldDescriptorProto(name=name, number=number)
    mine = (bytes_field(1, name.encode()) if name else b"") + integer_field(3, number)
    assert descriptors.FieldDescriptorProto.FromString(mine) == descriptors.FieldDescriptorProto(
        **({"name": name} if name else {}), **({"number": number} if number else {})
    )
    assert dict(fields_of(theirs.SerializeToString())).get(3, 0) == number


@pytest.mark.parametrize("length", [-1, -10, -11, -12, -(2**63), 2**63 - 1, 2**40])
def test_a_length_that_leads_back_or_beyond_is_an_error_and_no_loop(length):
    told = b"\x0a" + varint(length) + b"\0" * 8
    with pytest.raises(ValueError, match="beyond the end"):
        list(fields_of(Once(told)))
    for body in (told, gzip.compress(told)):
        with pytest.raises(ConfigError, match="beyond the end"):
            pprof.decode(body)
    assert retry_after_s(Once(told)) == 0
    assert not more_than(Once(told), 9)


@pytest.mark.parametrize("byte", [b"\x80", b"\xff"])
def test_a_number_without_end_is_read_for_ten_bytes(byte):
    told = Once(byte * 10 + b"\0" * 90)
    told.looked[10:] = [2] * 90
    with pytest.raises(ValueError, match="has no end"):
        take(told, 0)
    assert not more_than(Once(byte * 100), 0)
    with pytest.raises(ValueError, match="cut off"):
        take(byte * 9, 0)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_once_or_refused(told):
    for read in (lambda body: list(fields_of(body)), lambda body: more_than(body, 10**6), retry_after_s):
        try:
            read(Once(told))
        except ValueError:
            continue
