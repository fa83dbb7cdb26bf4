#!/usr/bin/env python3
"""Makes the small source archives in this folder from real Fashion-MNIST pictures.

    python3 make_fixtures.py FOLDER_WITH_FASHION_MNIST

FOLDER_WITH_FASHION_MNIST holds the four files of Fashion-MNIST (Debian's package `dataset-fashion-mnist`
carries them; `apt-get download` and `dpkg-deb -x` unpack it without root). Needs numpy. The same input gives the
same records; the compressed bytes depend on the zlib in use.

What comes out, and which of Fashion-MNIST's pictures went in:

    cifar10/cifar-10-binary.tar.gz       5 x 60 train, 60 test, 32x32 colour    train 0..300,     test 0..60
    cifar100/cifar-100-binary.tar.gz     100 train, 40 test, 32x32 colour       train 1000..1100, test 1000..1040
    mnist/, fashion_mnist/, kmnist/      120 train, 40 test, 28x28 grey         train 2000 + 200 k .., test 2000 + 100 k ..
"""
import gzip
import io
import os
import sys
import tarfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))

CIFAR10_NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()

# The order in which the members lie in the archive that the University of Toronto serves.
CIFAR10_MEMBERS = (
    "data_batch_1.bin batches.meta.txt data_batch_3.bin data_batch_4.bin test_batch.bin readme.html data_batch_5.bin "
    "data_batch_2.bin"
).split()

CIFAR100_COARSE = """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1
vehicles_2""".split()

CIFAR100_FINE = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy
porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel
streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm""".split()


def fashion(folder, kind):
    """Pictures u8[n, 28, 28] and labels u8[n] of `train` or `t10k`."""

    def read(name, header_bytes):
        with gzip.open(os.path.join(folder, name)) as file:
            return np.frombuffer(file.read(), np.uint8, offset=header_bytes)

    images = read(f"{kind}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
    return images, read(f"{kind}-labels-idx1-ubyte.gz", 8)


def coloured(pictures, seed):
    """u8[n, 28, 28] to u8[n, 32, 32, 3]: resized by bilinear interpolation, tinted, on a coloured ground.

    Only integer arithmetic decides the result, so that every machine makes the same pictures.
    """
    # Sample positions in 1/64 of a source pixel.
    position = np.clip((np.arange(32) * 2 + 1) * 28 - 32, 0, 27 * 64 - 1)
    low, weight = position // 64, position % 64
    source = pictures.astype(np.int64)
    rows = source[:, low, :] * (64 - weight)[None, :, None] + source[:, low + 1, :] * weight[None, :, None]
    grey = rows[:, :, low] * (64 - weight) + rows[:, :, low + 1] * weight  # 0 .. 255 * 4096
    random = np.random.RandomState(seed)
    tint = random.randint(90, 256, (len(pictures), 1, 1, 3))
    ground = random.randint(0, 100, (len(pictures), 1, 1, 3))
    colour = (grey[..., None] * tint) // (4096 * 255)
    return np.clip(colour + ground, 0, 255).astype(np.uint8)


def cifar_rows(labels, images):
    """One record a row: label bytes, then the planes of red, green and blue."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.concatenate([labels.reshape(len(images), -1), planes], axis=1).astype(np.uint8).tobytes()


def write_gzip(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as out:
        out.write(data)


def write_archive(path, folder, members):
    """A tar.gz of a folder and its members, in the order given."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:

        def add(name, data=None):
            info = tarfile.TarInfo(name)
            info.mtime, info.uid, info.gid = 1244155293, 2156, 1103
            if data is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                info.size, info.mode = len(data), 0o644
                tar.addfile(info, io.BytesIO(data))

        add(folder)
        for name, data in members:
            add(f"{folder}/{name}", data)
    write_gzip(path, raw.getvalue())


def make_cifar10(train, test):
    images, labels = train[0][:300], train[1][:300]
    images = coloured(images, 10)
    files = {f"data_batch_{i + 1}.bin": cifar_rows(labels[60 * i : 60 * i + 60], images[60 * i : 60 * i + 60]) for i in range(5)}
    files["test_batch.bin"] = cifar_rows(test[1][:60], coloured(test[0][:60], 11))
    # The real file ends with an empty line.
    files["batches.meta.txt"] = ("\n".join(CIFAR10_NAMES) + "\n\n").encode()
    files["readme.html"] = b'<meta HTTP-EQUIV="REFRESH" content="0; url=http://www.cs.toronto.edu/~kriz/cifar.html">\n'
    path = os.path.join(HERE, "cifar10", "cifar-10-binary.tar.gz")
    write_archive(path, "cifar-10-batches-bin", [(name, files[name]) for name in CIFAR10_MEMBERS])


def make_cifar100(train, test):
    def part(source, start, count, seed):
        # Every fine label comes up in `train`; the coarse one is any fixed function of it.
        fine = (np.arange(count) * 37 + 5) % 100
        return cifar_rows(np.stack([fine * 7 % 20, fine], axis=1), coloured(source[0][start : start + count], seed))

    path = os.path.join(HERE, "cifar100", "cifar-100-binary.tar.gz")
    write_archive(
        path,
        "cifar-100-binary",
        [
            ("train.bin", part(train, 1000, 100, 20)),
            ("fine_label_names.txt", ("\n".join(CIFAR100_FINE) + "\n").encode()),
            ("coarse_label_names.txt", ("\n".join(CIFAR100_COARSE) + "\n").encode()),
            ("test.bin", part(test, 1000, 40, 21)),
        ],
    )


def make_idx(name, train, test, number):
    for kind, (images, labels), start, count in (
        ("train", train, 2000 + 200 * number, 120),
        ("t10k", test, 2000 + 100 * number, 40),
    ):
        images, labels = images[start : start + count], labels[start : start + count]
        header = np.array([0x803, count, 28, 28], ">u4").tobytes()
        write_gzip(os.path.join(HERE, name, f"{kind}-images-idx3-ubyte.gz"), header + images.tobytes())
        header = np.array([0x801, count], ">u4").tobytes()
        write_gzip(os.path.join(HERE, name, f"{kind}-labels-idx1-ubyte.gz"), header + labels.tobytes())


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    train, test = fashion(sys.argv[1], "train"), fashion(sys.argv[1], "t10k")
    make_cifar10(train, test)
    make_cifar100(train, test)
    for number, name in enumerate(["mnist", "fashion_mnist", "kmnist"]):
        make_idx(name, train, test, number)


if __name__ == "__main__":
    main()
