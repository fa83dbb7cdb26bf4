"""Makes the benchmark's input: a full-size archive in CIFAR-10's layout. Deterministic.

    python data.py TARGET.tar.gz FASHION_MNIST_FOLDER [IMAGES_A_BATCH]

Fashion-MNIST pictures at 32x32x3 with a random tint and ground, and with noise of two kinds, so that the PNG of one is about
as large (2.2 kB) as the PNG of a real CIFAR-10 picture. Beside the archive, TARGET.json has the counts, label sums and
pixel sums that every contender has to reproduce.
"""
import gzip
import io
import json
import os
import sys
import tarfile

import numpy as np

NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()
MEMBERS = (
    "data_batch_1.bin batches.meta.txt data_batch_3.bin data_batch_4.bin test_batch.bin readme.html data_batch_5.bin "
    "data_batch_2.bin"
).split()


def fashion(folder, kind):
    """Pictures u8[n, 28, 28] and labels u8[n]."""

    def read(name, header_bytes):
        with gzip.open(os.path.join(folder, name)) as file:
            return np.frombuffer(file.read(), np.uint8, offset=header_bytes)

    return read(f"{kind}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28), read(f"{kind}-labels-idx1-ubyte.gz", 8)


def upsampling():
    """The matrix f32[32, 28] of bilinear interpolation with pixel centres aligned."""
    position = np.clip((np.arange(32) + 0.5) * 28 / 32 - 0.5, 0, 27)
    low = np.minimum(position.astype(int), 26)
    matrix = np.zeros((32, 28), np.float32)
    matrix[np.arange(32), low] = 1 - (position - low)
    matrix[np.arange(32), low + 1] = position - low
    return matrix


def cifar_like(pictures, generator):
    """u8[n, 28, 28] to u8[n, 32, 32, 3]."""
    matrix = upsampling()
    out = np.empty((len(pictures), 32, 32, 3), np.uint8)
    for start in range(0, len(pictures), 2000):
        part = pictures[start : start + 2000].astype(np.float32)
        grey = np.matmul(np.matmul(matrix, part), matrix.T)
        n = len(part)
        tint = generator.uniform(0.35, 1.0, (n, 1, 1, 3)).astype(np.float32)
        ground = generator.uniform(0, 120, (n, 1, 1, 3)).astype(np.float32)
        image = grey[..., None] * tint + ground
        image += 4.0 * generator.standard_normal((n, 32, 32, 1), np.float32)  # the same in all channels
        image += 1.2 * generator.standard_normal((n, 32, 32, 3), np.float32)
        out[start : start + n] = np.clip(image, 0, 255)
    return out


def rows(images, labels):
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels[:, None], planes], axis=1).astype(np.uint8).tobytes()


def main():
    target, folder = sys.argv[1:3]
    batch = int(sys.argv[3]) if len(sys.argv) > 3 else 10_000
    generator = np.random.default_rng(1)
    files, facts = {}, {"train": {}, "test": {}}
    for split, kind, names in (("train", "train", [f"data_batch_{i}.bin" for i in range(1, 6)]), ("test", "t10k", ["test_batch.bin"])):
        pictures, labels = fashion(folder, kind)
        take = np.arange(batch * len(names)) % len(pictures)  # a small source is used again, with other tint and noise
        images, labels = cifar_like(pictures[take], generator), labels[take]
        facts[split] = {"images": len(images), "label_sum": int(labels.sum()), "pixel_sum": int(images.sum(dtype=np.int64))}
        for i, name in enumerate(names):
            files[name] = rows(images[i * batch : (i + 1) * batch], labels[i * batch : (i + 1) * batch])
    files["batches.meta.txt"] = ("\n".join(NAMES) + "\n\n").encode()
    files["readme.html"] = b"<html></html>\n"
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    with tarfile.open(target + ".part", "w:gz", compresslevel=6) as tar:
        for name in MEMBERS:
            info = tarfile.TarInfo("cifar-10-batches-bin/" + name)
            info.size = len(files[name])
            tar.addfile(info, io.BytesIO(files[name]))
    with open(target + ".json", "w") as file:
        json.dump(facts, file, indent=1)
    os.replace(target + ".part", target)
    print(f"{target}: {os.path.getsize(target):,} bytes, {facts}")


if __name__ == "__main__":
    main()
