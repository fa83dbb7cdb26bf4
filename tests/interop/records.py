"""Random records for ArrayRecord files: bytes, `tf.train.Example`, messages of every wire type."""

BLOCK = 64 * 1024


def varint(value):
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded + bytes([value]))


def field(number, wire_type, value):
    return varint(number << 3 | wire_type) + value


def delimited(number, value):
    return field(number, 2, varint(len(value)) + value)


def size(generator):
    """Mostly small; sometimes around a block boundary."""
    if generator.random() < 0.05:
        return max(0, generator.randrange(1, 3) * BLOCK + generator.randrange(-300, 300))
    return generator.choice([0, 1, 2, generator.randrange(100), generator.randrange(3000)])


def any_bytes(generator):
    length = size(generator)
    return generator.choice([generator.randbytes(length), (b"pattern %d " % length * (length // 8 + 1))[:length]])


def example(generator):
    """A serialized `tf.train.Example`: bytes, floats, integers under a few names, packed or not."""
    entries = b""
    for name in generator.sample(["image", "label", "weights", "text", "id", "empty"], generator.randrange(6)):
        kind = generator.randrange(4)
        if kind == 0:
            values = b"".join(delimited(1, any_bytes(generator)) for _ in range(generator.randrange(3)))
            feature = delimited(1, values)
        elif kind == 1:
            feature = delimited(2, delimited(1, generator.randbytes(4 * generator.randrange(20))))
        elif kind == 2:
            numbers = [generator.randrange(2 ** generator.choice([1, 7, 20, 64])) for _ in range(generator.randrange(20))]
            packed = delimited(1, b"".join(map(varint, numbers)))
            unpacked = b"".join(field(1, 0, varint(number)) for number in numbers)
            feature = delimited(3, generator.choice([packed, unpacked]))
        else:
            feature = b""
        entries += delimited(1, delimited(1, name.encode()) + delimited(2, feature))
    return delimited(1, entries)


def message(generator, depth=0):
    """Every wire type, groups, nesting; now and then what has another encoding than the shortest, or breaks off."""
    encoded = b""
    for _ in range(generator.choice([0, 1, 2, 5])):
        number = generator.choice([1, 2, 3, 15, 16, 2047, 2**29 - 1])
        kind = generator.randrange(9)
        if kind <= 1:
            encoded += field(number, 0, varint(generator.randrange(2 ** generator.choice([1, 2, 3, 7, 8, 14, 35, 63, 64]))))
        elif kind == 2:
            encoded += field(number, 1, generator.randbytes(8))
        elif kind == 3:
            encoded += field(number, 5, generator.randbytes(4))
        elif kind == 4:
            encoded += delimited(number, any_bytes(generator))
        elif kind == 5 and depth < 6:
            encoded += field(number, 3, message(generator, depth + 1)) + field(number, 4, b"")
        elif kind <= 7 and depth < 6:
            encoded += delimited(number, message(generator, depth + 1))
        elif generator.random() < 0.1:
            encoded += generator.choice(
                [
                    field(number, 0, b"\x80\x00"),  # a longer varint than needed
                    b"\x88\x00\x01",  # a longer tag than needed
                    field(number, 2, b"\x83\x00abc"),  # a longer length than needed
                    field(number, 0, b"\xff" * 9 + b"\x02"),  # more than 64 bits
                    field(number, 3, b""),  # a group without an end
                    field(number, 4, b""),  # an end without a group
                    field(number, 6, b""),
                    field(0, 0, b"\x00"),
                    delimited(number, b"")[:-1] + varint(generator.randrange(300)),  # cut short, perhaps
                ]
            )
    return encoded


def deep(generator):
    """Submessages and groups beyond the depth to which they are taken apart."""
    encoded = field(1, 0, varint(generator.randrange(300)))
    for _ in range(generator.choice([98, 99, 100, 101, 102, 150])):
        if generator.random() < 0.3:
            encoded = field(2, 3, encoded) + field(2, 4, b"")
        else:
            encoded = delimited(generator.choice([1, 3]), encoded)
    return encoded


def mixed(generator):
    return generator.choice([any_bytes, example, message, message, deep])(generator)


KINDS = {"bytes": any_bytes, "examples": example, "messages": message, "mixed": mixed}
