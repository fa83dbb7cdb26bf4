"""Writes tars in ILSVRC 2012's layout, for benchmarks: `python bench/imagenet_tars.py FOLDER [NUM_PICTURES]`.

The pictures are those of `tests/golden/imagenet2012`, grown to 106 KB on average by bytes behind their end, which no decoder looks at:
the sizes and the layout are ImageNet's, the pixels are not. The same arguments give the same bytes.
"""

import io
import random
import sys
import tarfile
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "tests/golden/imagenet2012"
MEAN_BYTES = 106_000
CLASSES = 20


def pictures():
    """Plain JPEGs, and the names of the classes."""
    found = []
    with tarfile.open(GOLDEN / "ILSVRC2012_img_val.tar") as archive:
        for member in archive:
            found.append(archive.extractfile(member).read())
    names = [line.strip(' ",') for line in synsets().replace("\n", " ").split(",")]
    return found, [name for name in names if name.startswith("n")]


def synsets():
    text = (Path(__file__).parent.parent / "jobs/src/recipes/imagenet2012.toml").read_text()
    start = text.index("names = [") + len("names = [")
    return text[start : text.index("]", start)]


def add(archive, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def main():
    folder = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 8_500
    folder.mkdir(parents=True, exist_ok=True)
    found, classes = pictures()
    chance = random.Random(2012)
    noise = chance.randbytes(1 << 20)
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w", format=tarfile.USTAR_FORMAT) as outer:
        for index in range(CLASSES):
            name, buffer = classes[index * len(classes) // CLASSES], io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as inner:
                for number in range(index, count, CLASSES):
                    picture = found[number % len(found)]
                    size = max(len(picture), int(chance.gauss(MEAN_BYTES, MEAN_BYTES / 3)))
                    start = chance.randrange(len(noise) // 2)
                    add(inner, f"{name}_{number}x.JPEG", picture + noise[start : start + size - len(picture)])
            add(outer, f"{name}.tar", buffer.getvalue())


if __name__ == "__main__":
    main()
