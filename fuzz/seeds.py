#!/usr/bin/env python3
"""Makes the first inputs of each fuzz target from the golden files: fuzz/seeds.py, from the root of the project.

The same inputs each time; files of the corpus with other names are left alone. Large inputs are left out: a fuzzer gets nowhere with them.
"""

import gzip
import hashlib
import json
import pathlib
import re
import struct
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
CORPUS = ROOT / "fuzz" / "corpus"
LARGEST = 8 << 10


def pack(data: bytes) -> bytes:
    """The packing of zeros that tests/fuzzed/src/zeros.rs undoes."""
    packed = bytearray()
    position = 0
    while position < len(data):
        byte = data[position]
        packed.append(byte)
        position += 1
        if byte == 0:
            run = 0
            while run < 0xFFFF and position + run < len(data) and data[position + run] == 0:
                run += 1
            packed += run.to_bytes(2, "little")
            position += run
    return bytes(packed)


def put(target: str, data: bytes) -> None:
    if len(data) > LARGEST:
        return
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{hashlib.sha256(data).hexdigest()[:16]}").write_bytes(data)


def main() -> None:
    for path in sorted((GOLDEN / "array_record").glob("*.gz")):
        packed = pack(gzip.decompress(path.read_bytes()))
        for flag in b"\0\1":
            put("array_record", bytes([flag]) + packed)
    for path in sorted((GOLDEN / "tfrecord").glob("*.tfrecord*")):
        for flag in (0, 1, 13):
            put("tfrecord", bytes([flag]) + path.read_bytes())
    for path in sorted((GOLDEN / "example").glob("*.*example")):
        record = path.read_bytes()
        put("example", record)
        for choice in range(6):
            put("columns", bytes([choice]) + record)
    for path in sorted(GOLDEN.rglob("*.json")):
        text = path.read_bytes()
        if path.name == "features.json":
            put("schema", b"\0" + text)
        elif path.name == "dataset_info.json":
            put("schema", b"\1" + text)
    for path in sorted((GOLDEN / "tfds").glob("*.json")):
        golden = json.loads(path.read_text())
        for name, text in golden.get("files", {}).items() if isinstance(golden.get("files"), dict) else ():
            flag = b"\1" if name == "dataset_info.json" else b"\0"
            if name in ("dataset_info.json", "features.json") and isinstance(text, str):
                put("schema", flag + text.encode())
    for path in sorted((ROOT / "jobs").rglob("*.toml")):
        if path.name != "Cargo.toml":
            put("documents", b"\3" + path.read_bytes())
    put("documents", b"\2" + b'{"format":1,"order_version":1}')
    for sources, flag in ((("catalog/src/entry.rs", "catalog/src/manifest.rs"), None), (("loader/src/state.rs",), 2)):
        for source in sources:
            for text in re.findall(r'r#"(\{.*?\})"#', (ROOT / source).read_text(), re.S):
                for choice in (0, 1, 2) if flag is None else (flag,):
                    put("documents", bytes([choice]) + text.encode())
    for choice, texts in enumerate(
        (
            ("group_size:1,zstd:3,window_log:20", "transpose:true,brotli:6,pad_to_block_boundary:true", "snappy", "uncompressed"),
            ("train", "train[:80%]", "train[3:-2]+test[50%:]", "all", "train[1shard:]", "train[:10%](pct1_dropremainder)"),
            ("/a/b", "s3://bucket/key", "file:///a%20b", "gs://b", "https://host:1/a?b#c", "memory://a"),
            ("cifar10", "name/config:1.2.3", "name@tag", "name@log=7"),
            ("64MiB", "1.5G", "10 KB", "18446744073709551615"),
        )
    ):
        for text in texts:
            put("texts", bytes([choice]) + text.encode())
    for colour, bits, channels in ((0, 8, 1), (2, 8, 3), (4, 8, 2), (6, 8, 4), (0, 16, 1), (2, 16, 3), (3, 8, 1), (0, 1, 1), (3, 4, 1)):
        for interlaced in (0, 1):
            width, height = 5, 6
            header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)
            row = (width * channels * bits + 7) // 8
            rows = b"".join(bytes([y % 5]) + bytes((7 * x * y) % 256 for x in range(row)) for y in range(height + 8 * interlaced))
            palette = bytes(range(48)) if colour == 3 else b""
            for choice in (16, 17, 19, 24, 27):
                put("png", bytes([choice]) + header + bytes([len(palette)]) + palette + rows)
            put("png", b"\3" + picture(header, palette, rows))
    for name in ("mnist", "fashion_mnist"):
        for path in sorted((GOLDEN / name).glob("*-ubyte*")):
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            items = int.from_bytes(data[4:8], "big")
            item = (len(data) - (16 if data[3] == 3 else 8)) // max(items, 1)
            head = data[:4] + (2).to_bytes(4, "big") + data[8 : 16 if data[3] == 3 else 8]
            put("raw", b"\0" + head + data[len(head) : len(head) + 2 * item])
    put("raw", b"\1" + bytes([3]) + bytes(range(256)) * 12)
    put("raw", b"\2" + bytes([3, 7]) + bytes(range(256)) * 12)
    for name in ("cifar10", "cifar100"):
        for path in sorted((GOLDEN / name).glob("*.tar.gz")):
            put("tar", pack(gzip.decompress(path.read_bytes())[:4096]))
    put("tar", pack(ustar(b"folder/file.bin", b"contents") + ustar(b"b" * 99, b"") + bytes(1024)))


def picture(header: bytes, palette: bytes, rows: bytes) -> bytes:
    """A PNG file. Source: the PNG specification, third edition, "Datastream structure"."""
    chunks = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    file = b"\x89PNG\r\n\x1a\n"
    for kind, data in chunks:
        if data or kind != b"PLTE":
            file += len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
    return file


def ustar(name: bytes, data: bytes) -> bytes:
    """A member of a tar archive. Source: POSIX.1-2001, pax, "ustar Interchange Format"."""
    header = bytearray(512)
    header[: len(name)] = name
    header[100:108] = b"0000644\0"
    header[124:136] = b"%011o\0" % len(data)
    header[136:148] = b"00000000000\0"
    header[156] = ord("0")
    header[257:265] = b"ustar\x0000"
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data + bytes(-len(data) % 512)


if __name__ == "__main__":
    main()
