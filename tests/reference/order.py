"""A slow, plain twin of ORDER.md: the permutation, the stream, how it is dealt to hosts, and what pipelines make of it.

It shares no code with the Rust crate; `python3 tests/reference/order.py` prints the vectors that are kept in
`tests/golden/order/vectors.json` (add `--check FILE` to compare instead). Python 3.9 or later, standard library only.
"""

import hashlib
import json
import math
import struct
import sys

MASK32 = (1 << 32) - 1
MASK64 = (1 << 64) - 1


# --- Permutation ------------------------------------------------------------------------------------------------------


def chacha20_blocks(key, blocks):
    """The ChaCha20 key stream for a zero nonce, from block 0 (RFC 8439, section 2.3)."""
    stream = b""
    for counter in range(blocks):
        start = list(struct.unpack("<4I", b"expand 32-byte k")) + list(struct.unpack("<8I", key)) + [counter, 0, 0, 0]
        words = start[:]

        def quarter(a, b, c, d):
            for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                words[x] = (words[x] + words[y]) & MASK32
                words[z] ^= words[x]
                words[z] = (words[z] << by | words[z] >> (32 - by)) & MASK32

        for _ in range(10):
            for at in range(4):
                quarter(at, 4 + at, 8 + at, 12 + at)
            for at in range(4):
                quarter(at, 4 + (at + 1) % 4, 8 + (at + 2) % 4, 12 + (at + 3) % 4)
        stream += struct.pack("<16I", *((w + s) & MASK32 for w, s in zip(words, start)))
    return stream


def num_rounds(n):
    return 32 if n < 1 << 8 else 12 if n < 1 << 16 else 8


def sides(n):
    a = math.isqrt(n - 1) + 1 if n > 1 else 1
    b = -(-n // a)
    if a % 2 == 1 and b % 2 == 1:
        b += 1
    return a, b


def round_keys(seed, epoch, n, tag=b"shuffle\0"):
    key = struct.pack("<QQQ", seed, epoch, n) + tag
    rounds = num_rounds(n)
    stream = chacha20_blocks(key, -(-rounds // 8))
    return struct.unpack("<%dQ" % rounds, stream[: 8 * rounds])


def mix(x, key):
    z = (x * 0x9E3779B97F4A7C15 + key) & MASK64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK64
    return z ^ z >> 31


class Permutation:
    def __init__(self, seed, epoch, n, tag=b"shuffle\0"):
        self.n = n
        if n:
            self.a, self.b = sides(n)
            self.keys = round_keys(seed, epoch, n, tag)

    def once(self, x):
        left, right = divmod(x, self.b)
        for number, key in enumerate(self.keys):
            if number % 2 == 0:
                left = (left + (mix(right, key) * self.a >> 64)) % self.a
            else:
                right = (right + (mix(left, key) * self.b >> 64)) % self.b
        return left * self.b + right

    def apply(self, x):
        assert 0 <= x < self.n
        x = self.once(x)
        while x >= self.n:
            x = self.once(x)
        return x


# --- Stream and dealing -----------------------------------------------------------------------------------------------


def index_at(order, seed, n, position):
    """The index, in the opened dataset of `n` records, of a position of the endless stream."""
    epoch, offset = divmod(position, n)
    return offset if order == "source" else Permutation(seed, epoch, n).apply(offset)


def global_batches(n, size, drop_remainder, position, epochs):
    """The runs of positions [start, end) of the global batches from `position` to the end of epoch `epochs - 1`."""
    end = n * epochs
    while position < end:
        end_of_epoch = (position // n + 1) * n
        stop = min(position + size, end_of_epoch)
        if stop - position == size or not drop_remainder:
            yield position, stop
        position = stop


def share(start, stop, hosts, host):
    """The positions of one host in a global batch: runs in the order of hosts, sizes that differ by at most one."""
    each, more = divmod(stop - start, hosts)
    first = start + host * each + min(host, more)
    return range(first, first + each + (host < more))


def host_batches(order, seed, n, batch, hosts, host, drop_remainder, epochs, position=0):
    for start, stop in global_batches(n, batch * hosts, drop_remainder, position, epochs):
        yield [index_at(order, seed, n, at) for at in share(start, stop, hosts, host)]


# --- Pipelines --------------------------------------------------------------------------------------------------------


def random_words(seed, stage, position, count):
    """The first 64-bit words that a random transform draws for a sample position."""
    key = struct.pack("<QQ", seed, position) + hashlib.sha256(stage.encode()).digest()[:8] + b"random\0\0"
    return struct.unpack("<%dQ" % count, chacha20_blocks(key, -(-count // 8))[: 8 * count])


def windowed(n, window, seed, epoch):
    """Offsets in the parent of one epoch under a shuffle on two levels."""
    full = n // window
    outer = Permutation(seed, epoch, full)
    for place in range(-(-n // window)):
        number = outer.apply(place) if place < full else place
        size = min(window, n - number * window)
        inner = Permutation(seed, epoch * (full + 1) + number, size, b"window\0\0")
        for offset in range(size):
            yield number * window + inner.apply(offset)


def mixed(weights, count):
    """The source of each position of a mixture, one after the other."""
    taken = {}

    def choose(first, end):
        if end - first == 1:
            return first
        middle = first + -(-(end - first) // 2)
        left, whole = sum(weights[first:middle]), sum(weights[first:end])
        q = taken.get((first, end), 0)
        taken[first, end] = q + 1
        before, after = -(-q * left // whole), -(-(q + 1) * left // whole)
        return choose(first, middle) if after > before else choose(middle, end)

    return [choose(0, len(weights)) for _ in range(count)]


def changing(weights, changes, streams, stream, count):
    """The sources of the outputs of a virtual stream of a mixture whose weights change; of random access with one stream."""
    out, number = [], 0
    for (_, weights), following in zip([(0, weights)] + changes, changes + [(None, None)]):
        end = count if following[0] is None else min(count, -(-max(0, following[0] - stream) // streams))
        out += mixed(weights, max(0, end - number))
        number = max(number, end)
    return out


def merged(ends):
    """Stream and number of each output of streams that have so many, in rounds."""
    return [(v, j) for j in range(max(ends, default=0)) for v in range(len(ends)) if j < ends[v]]


def dealt_outputs(ends, hosts, batch, drop_remainder):
    """For each host its batches of outputs of the merged stream."""
    outputs, size = merged(ends), hosts * batch
    steps = [(s, min(s + size, len(outputs))) for s in range(0, len(outputs), size)]
    if drop_remainder:
        steps = [(s, t) for s, t in steps if t - s == size]
    return [[[outputs[k] for k in range(s, t) if k % hosts == h] for s, t in steps] for h in range(hosts)]


def packed(packing, bins, row, lengths):
    """The rows of packed sequences: for each row the parts [sequence, start, end] in it."""
    if packing == "concat_then_split":
        rows, room = [[]], row
        for number, length in enumerate(lengths):
            start = 0
            while start < length:
                if room == 0:
                    rows.append([])
                    room = row
                end = min(length, start + room)
                rows[-1].append([number, start, end])
                room -= end - start
                start = end
        return [parts for parts in rows if parts]
    out, open_rows = [], []
    for number, length in enumerate(lengths):
        left = [row - sum(end - start for _, start, end in parts) - length for parts in open_rows]
        fits = [at for at in range(len(open_rows)) if left[at] >= 0]
        if fits:
            at = min(fits, key=lambda at: (left[at], at)) if packing == "best_fit" else fits[0]
        else:
            if len(open_rows) == bins:
                out += open_rows
                open_rows = []
            open_rows.append([])
            at = len(open_rows) - 1
        open_rows[at].append([number, 0, length])
    return out + open_rows


# --- Vectors ----------------------------------------------------------------------------------------------------------


def vectors():
    key = bytes(range(32))
    permutations = []
    for n in (1, 2, 3, 4, 5, 6, 7, 9, 10, 16, 25, 100, 255, 256, 257, 1000):
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (42, 3), (2**64 - 1, 2**40)):
            permutation = Permutation(seed, epoch, n)
            values = [permutation.apply(x) for x in range(min(n, 24))]
            permutations.append({"n": n, "seed": seed, "epoch": epoch, "first": values})
    at = []
    for n in (50_000, 60_000, 65_535, 65_536, 65_537, 1_281_167, 2**32 - 1, 2**32, 10**12 + 39, 2**62 + 1, 2**63 - 25, 2**63):
        for seed, epoch in ((0, 0), (42, 7)):
            permutation = Permutation(seed, epoch, n)
            places = (0, 1, 2, n // 3, n // 2, n - 2, n - 1)
            at.append({"n": n, "seed": seed, "epoch": epoch, "at": [[x, permutation.apply(x)] for x in places]})
    dealt = []
    for n in (0, 1, 3, 10, 23):
        for batch, hosts in ((4, 1), (2, 2), (4, 2), (4, 3), (1, 4)):
            for drop_remainder in (False, True):
                rows = [
                    list(host_batches("prep", 7, n, batch, hosts, host, drop_remainder, 2)) for host in range(hosts)
                ]
                dealt.append(
                    {"n": n, "seed": 7, "batch": batch, "hosts": hosts, "drop_remainder": drop_remainder, "epochs": 2, "batches": rows}
                )
    resumed = []
    for position, batch, hosts, drop_remainder in ((0, 3, 2, False), (8, 3, 2, False), (20, 5, 1, False), (20, 5, 1, True), (23, 4, 1, False), (30, 2, 3, True)):
        rows = [
            list(host_batches("prep", 7, 23, batch, hosts, host, drop_remainder, 2, position)) for host in range(hosts)
        ]
        resumed.append(
            {"n": 23, "seed": 7, "position": position, "batch": batch, "hosts": hosts, "drop_remainder": drop_remainder, "epochs": 2, "batches": rows}
        )
    randoms = [
        {"seed": seed, "stage": stage, "position": position, "words": ["%016x" % w for w in random_words(seed, stage, position, 10)]}
        for seed, stage, position in ((0, "flip", 0), (42, "flip", 1000), (42, "random_resized_crop", 1000), (2**64 - 1, "", 2**63 - 1))
    ]
    windows = [
        {"n": n, "window": window, "seed": seed, "epochs": [list(windowed(n, window, seed, epoch)) for epoch in (0, 1)]}
        for n, window, seed in ((1, 1, 0), (10, 3, 7), (12, 4, 7), (5, 9, 7), (40, 1, 3), (100, 16, 2**63))
    ]
    mixtures = [
        {"weights": weights, "sources": mixed(weights, 60)}
        for weights in ([1], [1, 1], [3, 1], [1, 2, 3], [9995, 5], [5, 1, 1, 1, 7], [1, 2**32, 2**31])
    ]
    changes = [
        {"weights": weights, "changes": changed, "streams": streams,
         "sources": [changing(weights, changed, streams, stream, 40) for stream in range(streams)]}
        for weights, changed in (
            ([1, 1], [(3, [3, 1])]),
            ([1, 1], [(0, [3, 1])]),
            ([5, 2, 1], [(10, [1, 1, 6]), (10, [1, 2, 3]), (47, [9, 1, 1])]),
        )
        for streams in (1, 3, 4)
    ]
    ends = [[0], [3], [2, 0, 3], [5, 5, 5, 5], [7, 1, 4, 4, 2], [1, 2, 3, 4, 5, 6]]
    outputs = [
        {"ends": e, "hosts": hosts, "batch": batch, "drop_remainder": drop, "batches": dealt_outputs(e, hosts, batch, drop)}
        for e in ends
        for hosts, batch, drop in ((1, 4, False), (2, 2, False), (2, 2, True), (3, 1, False), (4, 2, False))
    ]
    lengths = [5, 9, 3, 8, 2, 10, 1, 1, 1, 6, 4, 7]
    rows = [
        {"packing": packing, "bins": bins, "row": 10, "lengths": lengths[:count], "rows": packed(packing, bins, 10, lengths[:count])}
        for packing, bins in (("first_fit", 1), ("first_fit", 2), ("best_fit", 2), ("best_fit", 3), ("concat_then_split", 1))
        for count in (0, 1, 5, 12)
    ]
    return {
        "made_by": "tests/reference/order.py",
        "order_version": 1,
        "chacha20": {"key": key.hex(), "stream": chacha20_blocks(key, 2).hex()},
        "round_keys": [
            {"n": n, "seed": 42, "epoch": 3, "keys": ["%016x" % k for k in round_keys(42, 3, n)]} for n in (10, 50_000, 2**40)
        ],
        "sides": [[n, *sides(n)] for n in (1, 2, 3, 4, 5, 7, 9, 10, 25, 26, 10**6, 2**32 + 1, 2**62, 2**63 - 1, 2**63)],
        "permutations": permutations,
        "at": at,
        "dealt": dealt,
        "resumed": resumed,
        "random": randoms,
        "windows": windows,
        "mixtures": mixtures,
        "changes": changes,
        "outputs": outputs,
        "packed": rows,
    }


def main():
    made = vectors()
    if len(sys.argv) == 3 and sys.argv[1] == "--check":
        with open(sys.argv[2], encoding="utf-8") as file:
            if json.load(file) != made:
                sys.exit("the vectors differ from " + sys.argv[2])
        return
    lines = []
    for name, value in made.items():
        if isinstance(value, list):
            rows = ",\n    ".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append("  %s: [\n    %s\n  ]" % (json.dumps(name), rows))
        else:
            lines.append("  %s: %s" % (json.dumps(name), json.dumps(value)))
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
