"""Programs and profiles the tests of profiling share; and a reader of pprof that shares nothing with ours.

`pprof_class` is made from field numbers of google/pprof's profile.proto by the protobuf library, which does all of the reading.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from sits.telemetry.profile.profile import Frame, Labels, Profile, Sample

MAIN, HANDLE, PARSE, LOADS = (
    Frame("main", "server.py", 3),
    Frame("handle", "server.py", 14),
    Frame("parse", "http.py", 7),
    Frame("loads", "json/__init__.py", 346),
)

PROFILE = Profile(
    (
        Sample((MAIN, HANDLE, PARSE, LOADS), 30_000_000, 3, Labels("http", "parse", "aa")),
        Sample((MAIN, HANDLE, PARSE), 10_000_000, 1, Labels("http", "parse", "bb")),
        Sample((MAIN, HANDLE), 20_000_000, 2, Labels("model", "llm_generate", "aa")),
        Sample((MAIN,), 10_000_000, 1),
    ),
    process="worker-0",
    wall_ns=1_700_000_000_000_000_000,
    duration_ns=10_000_000_000,
    period_ns=10_000_000,
    elsewhere_ns=5_000_000,
)

SPIN = """
import sys, threading, time, zlib

def python(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(i * i for i in range(2000))

def compressing(seconds):
    blob = bytes(range(256)) * 4096
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        zlib.compress(blob)

python(0.3)
compressing(0.3)
thread = threading.Thread(target=python, args=(0.3,), name="other")
thread.start()
thread.join()
print(__name__, sys.argv[1:])
"""


def slow_and_others(share_slow=0.8):
    """Stacks of 40 slow requests (traces s0..) and 200 others (r0..): the slow ones wait for a lock more often."""
    samples = []
    for group, count, share in (("s", 40, share_slow), ("r", 200, 0.3)):
        for number in range(count):
            for turn in range(10):
                leaf = "lock" if turn < 10 * share else "work"
                samples.append(
                    Sample((Frame("main"), Frame(leaf)), 10**7, 1, Labels("http", "x", f"{group}{number}"))
                )
    return Profile(tuple(samples))


def pprof_class():
    """The message class of `perftools.profiles.Profile`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="profile.proto", package="perftools.profiles", syntax="proto3"
    )
    shapes = {
        "ValueType": [("type", 1, "int64"), ("unit", 2, "int64")],
        "Label": [("key", 1, "int64"), ("str", 2, "int64"), ("num", 3, "int64"), ("num_unit", 4, "int64")],
        "Sample": [("location_id", 1, "*uint64"), ("value", 2, "*int64"), ("label", 3, "*Label")],
        "Mapping": [("id", 1, "uint64"), ("memory_start", 2, "uint64"), ("filename", 5, "int64")],
        "Line": [("function_id", 1, "uint64"), ("line", 2, "int64")],
        "Location": [("id", 1, "uint64"), ("mapping_id", 2, "uint64"), ("address", 3, "uint64"), ("line", 4, "*Line")],
        "Function": [
            ("id", 1, "uint64"),
            ("name", 2, "int64"),
            ("system_name", 3, "int64"),
            ("filename", 4, "int64"),
            ("start_line", 5, "int64"),
        ],
        "Profile": [
            ("sample_type", 1, "*ValueType"),
            ("sample", 2, "*Sample"),
            ("mapping", 3, "*Mapping"),
            ("location", 4, "*Location"),
            ("function", 5, "*Function"),
            ("string_table", 6, "*string"),
            ("drop_frames", 7, "int64"),
            ("keep_frames", 8, "int64"),
            ("time_nanos", 9, "int64"),
            ("duration_nanos", 10, "int64"),
            ("period_type", 11, "ValueType"),
            ("period", 12, "int64"),
            ("comment", 13, "*int64"),
            ("default_sample_type", 14, "int64"),
        ],
    }  # fmt: skip
    kinds = descriptor_pb2.FieldDescriptorProto
    plain = {"int64": kinds.TYPE_INT64, "uint64": kinds.TYPE_UINT64, "string": kinds.TYPE_STRING}
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            one = message.field.add(name=field, number=number)
            one.label = kinds.LABEL_REPEATED if kind.startswith("*") else kinds.LABEL_OPTIONAL
            one.type = plain.get(kind.lstrip("*"), kinds.TYPE_MESSAGE)
            if one.type == kinds.TYPE_MESSAGE:
                one.type_name = f".perftools.profiles.{kind.lstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))
