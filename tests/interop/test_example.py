"""Google's Protocol Buffers on one side, our parser of tf.train.Example on the other: random messages, whole and damaged.

TensorFlow's messages are described here, so that TensorFlow is not needed. `example_json` is an example program of `prep-formats`.
"""
import json
import os
import random
import struct
import subprocess

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

ROUNDS = int(os.environ.get("PREP_INTEROP_ROUNDS", "40"))
RECORDS = 250


def messages():
    """The classes of Example and SequenceExample. Source: `example.proto` and `feature.proto` in TensorFlow, `core/example`."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")

    def message(name, fields=(), maps=(), oneof=None):
        new = file.message_type.add(name=name)
        if oneof:
            new.oneof_decl.add(name=oneof)
        for number, (field, kind, repeated) in enumerate(fields, start=1):
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = new.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".t.{kind}"
            else:
                added.type = kind
            if oneof:
                added.oneof_index = 0
        for field, entry, value in maps:
            inner = new.nested_type.add(name=entry)
            inner.options.map_entry = True
            inner.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
            inner.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_OPTIONAL, type_name=f".t.{value}")
            new.field.add(name=field, number=1, type=kinds.TYPE_MESSAGE, label=kinds.LABEL_REPEATED, type_name=f".t.{name}.{entry}")

    message("BytesList", [("value", kinds.TYPE_BYTES, True)])
    message("FloatList", [("value", kinds.TYPE_FLOAT, True)])
    message("Int64List", [("value", kinds.TYPE_INT64, True)])
    lists = [("bytes_list", "BytesList", False), ("float_list", "FloatList", False), ("int64_list", "Int64List", False)]
    message("Feature", lists, oneof="kind")
    message("Features", maps=[("feature", "FeatureEntry", "Feature")])
    message("FeatureList", [("feature", "Feature", True)])
    message("FeatureLists", maps=[("feature_list", "FeatureListEntry", "FeatureList")])
    message("Example", [("features", "Features", False)])
    message("SequenceExample", [("context", "Features", False), ("feature_lists", "FeatureLists", False)])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ["Example", "SequenceExample"]
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in names]


Example, SequenceExample = messages()


def float_text(value):
    """The bits of a float; Python does not keep those of a NaN."""
    return "nan" if value != value else struct.pack(">f", value).hex()


def feature(message):
    kind = message.WhichOneof("kind")
    if kind == "bytes_list":
        return {"bytes": [value.hex() for value in message.bytes_list.value]}
    if kind == "int64_list":
        return {"int64": [str(value) for value in message.int64_list.value]}
    if kind == "float_list":
        return {"float": [float_text(value) for value in message.float_list.value]}
    return {}


def features(message):
    return {name: feature(value) for name, value in message.feature.items()}


def decoded(kind, record):
    """What Protocol Buffers find, or None where they refuse."""
    try:
        if kind == "example":
            return features(Example.FromString(record).features)
        message = SequenceExample.FromString(record)
    except DecodeError:
        return None
    lists = message.feature_lists.feature_list.items()
    return {
        "context": features(message.context),
        "feature_lists": {name: [feature(step) for step in steps.feature] for name, steps in lists},
    }


def without_nans(value):
    """Our answer with all NaNs alike."""
    if isinstance(value, list):
        return [without_nans(item) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("float"), list) and all(isinstance(bits, str) for bits in value["float"]):
        return {"float": [float_text(struct.unpack(">f", bytes.fromhex(bits))[0]) for bits in value["float"]]}
    return {key: without_nans(item) for key, item in value.items()}


class Maker:
    """Writes messages as no library would: parts in any order and number, packed and not, unknown fields, long varints."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def varint(self, value):
        out = bytearray()
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
        for _ in range(self.random.choice([0, 0, 0, 0, 0, 1, 3])):
            if len(out) < 10:
                out[-1] |= 0x80
                out.append(0)
        return bytes(out)

    def field(self, number, content):
        return self.varint(number << 3 | 2) + self.varint(len(content)) + content

    def unknown(self, chance):
        """A field that no message has, or a known number with another wire type."""
        if self.random.random() >= chance:
            return b""
        number = self.random.choice([1, 2, 3, 4, 5, 7, 15, 16, 1000, 2**29 - 1])
        wire = self.random.choice([0, 1, 5] if number < 4 else [0, 1, 2, 3, 5])
        if wire == 2:
            return self.field(number, self.random.randbytes(self.random.randrange(5)))
        if wire == 3:
            return self.varint(number << 3 | 3) + self.unknown(0.5) + self.varint(number << 3 | 4)
        content = {0: self.varint(self.random.getrandbits(self.random.randrange(1, 64))), 1: bytes(8), 5: bytes(4)}
        return self.varint(number << 3 | wire) + content[wire]

    def several(self, most, make):
        return b"".join(make() for _ in range(self.random.randrange(most)))

    def integer(self):
        bits = self.random.choice([7, 20, 64])
        return self.random.choice([self.random.getrandbits(bits), 2**64 - 1 - self.random.getrandbits(8)])

    def list_part(self, kind):
        out = self.unknown(0.04)
        if kind == 1:
            return out + self.several(3, lambda: self.field(1, self.random.randbytes(self.random.randrange(6))))
        if kind == 2:
            if self.random.random() < 0.5:
                length = 4 * self.random.randrange(4) + (self.random.random() < 0.02)
                return out + self.field(1, self.random.randbytes(length))
            return out + self.several(3, lambda: self.varint(1 << 3 | 5) + self.random.randbytes(4))
        if self.random.random() < 0.5:
            return out + self.field(1, self.several(20, lambda: self.varint(self.integer())))
        return out + self.several(3, lambda: self.varint(1 << 3) + self.varint(self.integer()))

    def feature(self):
        out = b""
        for _ in range(self.random.choice([0, 1, 1, 1, 1, 1, 2, 3])):
            kind = self.random.randrange(1, 4)
            out += self.unknown(0.04) + self.field(kind, self.several(3, lambda: self.list_part(kind)))
        return out + self.unknown(0.03)

    def name(self):
        if self.random.random() < 0.03:
            return b"\xff\xfe"
        names = [b"a", b"b", b"", b"label", "é".encode(), b"x" * self.random.randrange(130)]
        return self.random.choice(names)

    def entry(self, value):
        counts = [0, 1, 1, 1, 1, 1, 1, 2]
        parts = [self.field(1, self.name()) for _ in range(self.random.choice(counts))]
        parts += [self.field(2, value()) for _ in range(self.random.choice(counts))]
        if self.random.random() < 0.2:
            self.random.shuffle(parts)
        return b"".join(self.unknown(0.03) + part for part in parts) + self.unknown(0.02)

    def fields(self, most, number, make):
        return self.several(most, lambda: self.unknown(0.05) + self.field(number, make()))

    def features(self):
        return self.fields(5, 1, lambda: self.entry(self.feature))

    def feature_lists(self):
        return self.fields(4, 1, lambda: self.entry(lambda: self.fields(4, 1, self.feature)))

    def example(self):
        return self.fields(3, 1, self.features)

    def sequence(self):
        return self.fields(3, 1, self.features) + self.fields(3, 2, self.feature_lists)

    def record(self, kind):
        """A message; two of five are cut or have bytes changed."""
        record = bytearray(self.example() if kind == "example" else self.sequence())
        chance = self.random.random()
        if chance < 0.6 or not record:
            return bytes(record)
        if chance < 0.75:
            return bytes(record[: self.random.randrange(len(record))])
        for _ in range(self.random.choice([1, 1, 2, 4])):
            record[self.random.randrange(len(record))] = self.random.choice([self.random.getrandbits(8), 0, 255, 0x80, 0x0A, 0x12])
        return bytes(record)


def crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = crc_table()


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(record):
    """A TFRecord frame, written here for the second time in the project."""
    length = struct.pack("<Q", len(record))
    return length + masked_crc(length) + record + masked_crc(record)


@pytest.mark.parametrize("kind", ["example", "sequence"])
def test_random_messages_mean_what_protocol_buffers_say(kind, tmp_path):
    program = os.environ.get("PREP_EXAMPLE_JSON")
    if not program:
        pytest.exit("set PREP_EXAMPLE_JSON to the example program of prep-formats", returncode=2)
    maker = Maker(7)
    path = tmp_path / "x.tfrecord"
    num_good = num_bad = 0
    for _ in range(ROUNDS):
        records = [maker.record(kind) for _ in range(RECORDS)]
        path.write_bytes(b"".join(map(framed, records)))
        arguments = [] if kind == "example" else ["sequence"]
        done = subprocess.run([program, path, *arguments], capture_output=True, text=True, check=True)
        rows = [json.loads(row) for row in done.stdout.splitlines()]
        assert len(rows) == RECORDS
        for record, row in zip(records, rows, strict=True):
            wanted = decoded(kind, record)
            if wanted is None:
                num_bad += 1
                assert list(row) == ["error"] and isinstance(row["error"], str), record.hex()
            else:
                num_good += 1
                assert without_nans(row) == wanted, record.hex()
    # Both kinds came up.
    assert min(num_good, num_bad) > ROUNDS * RECORDS // 10
