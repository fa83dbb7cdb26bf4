#!/usr/bin/env python3
"""Makes small archives laid out as the real downloads, and notes what TFDS's own builders make of them.

    python3 make.py archives    writes DATASET/ARCHIVE: pictures that are drawn here, texts that are made up here
    python3 make.py golden      writes DATASET[-CONFIG].json: what TFDS builds from them
    python3 make.py --check     builds again and compares, but writes nothing

Needs numpy and pillow for the archives; tensorflow-cpu, tensorflow-datasets, importlib_resources, opencv-python-headless and
tifffile for the rest. The builder classes are TFDS's; only their download addresses point at a local server. Fields of the output:

    versions           of the programs
    files              text of features.json, dataset_info.json and *.labels.txt
    splits.NAME        shards: file name, records; positions: in the order of the shards, key and features, each one of
                       {"ints": [..]}, {"floats": [..]}, {"text": ".."}, {"floats": COUNT, "sha256": of the float32, little-endian},
                       {"bytes": LENGTH, "sha256": of them}, {"png": [height, width, channels], "sha256": of the pixels},
                       {"jpeg": [height, width, channels], "pixels": BASE64}
"""
import hashlib
import io
import json
import os
import sys
import tarfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
import common

# (dataset, config) and the splits in TFDS's order.
CASES = [
    ("beans", None),
    ("eurosat", "all"),
    ("eurosat", "rgb"),
    ("food101", None),
    ("imagenette", "160px-v2"),
    ("imagenette", "full-size"),
    ("imdb_reviews", "plain_text"),
    ("oxford_iiit_pet", None),
    ("stl10", None),
    ("tf_flowers", None),
]


# -- archives ---------------------------------------------------------------------------------------------------------------


def picture(seed, height, width, quality=60, kind="JPEG"):
    """A smooth picture as the bytes of a file; another one for each seed."""
    from PIL import Image

    buffer = io.BytesIO()
    image = Image.fromarray(pixels(seed, height, width))
    if kind == "JPEG":
        image.save(buffer, "JPEG", quality=quality, optimize=True)
    else:
        image.save(buffer, kind)
    return buffer.getvalue()


def pixels(seed, height, width, channels=3):
    """uint8[height, width, channels]: a few waves."""
    import numpy as np

    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = []
    for _ in range(channels):
        fx, fy, phase, level = random.uniform(0, 6), random.uniform(0, 6), random.uniform(0, 7), random.uniform(60, 190)
        planes.append(level + 55 * np.sin(fx * x / width + fy * y / height + phase))
    return np.clip(np.rint(np.stack(planes, -1)), 0, 255).astype(np.uint8)


def write_tar(path, members, mode="w:gz"):
    """Members in the order given; a path that ends in `/` is a folder."""
    options = {"compresslevel": 9} if mode == "w:gz" else {}
    with tarfile.open(path, mode, format=tarfile.GNU_FORMAT, **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if name.endswith("/"):
                info.type = tarfile.DIRTYPE
                info.mode = 0o755
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def write_zip(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_STORED if name.endswith("/") else method
            archive.writestr(info, data)


def beans(folder):
    labels = ["angular_leaf_spot", "bean_rust", "healthy"]
    seed = 100
    for archive, split, count in (("train", "train", 6), ("validation", "validation", 3), ("test", "test", 3)):
        members = [(f"{split}/", b""), (f"{split}/.DS_Store", b"Bud1"), (f"{split}/notes.txt", b"none")]
        for number in range(count):
            label = labels[number % 3]
            seed += 1
            members.append((f"{split}/{label}/{label}_{split}.{number}.jpg", picture(seed, 500, 500, 20)))
            members.append((f"__MACOSX/{split}/{label}/._{label}_{split}.{number}.jpg", b"\0\5\x16\7"))
        write_zip(f"{folder}/{archive}.zip", members)


EUROSAT = "AnnualCrop Forest HerbaceousVegetation Highway Industrial Pasture PermanentCrop Residential River SeaLake".split()


def eurosat(folder):
    import numpy as np
    import tifffile

    members = [("2750/", b"")]
    for number, label in enumerate(EUROSAT[::-1]):
        members.append((f"2750/{label}/", b""))
        members.append((f"2750/{label}/{label}_{number + 1}.jpg", picture(200 + number, 64, 64, 50)))
    write_zip(f"{folder}/EuroSAT.zip", members, zipfile.ZIP_STORED)

    base = "ds/images/remote_sensing/otherDatasets/sentinel_2"
    members = [(f"{base}/", b""), (f"{base}/README.md", b"bands"), (f"{base}/tif/", b"")]
    # Both byte orders, several strips, compressed strips, differences of neighbours.
    kinds = [
        {"byteorder": "<"},
        {"byteorder": ">"},
        {"byteorder": "<", "rowsperstrip": 5},
        {"byteorder": "<", "compression": "zlib"},
        {"byteorder": "<", "compression": "zlib", "predictor": True},
        {"byteorder": ">", "compression": "zlib", "predictor": True, "rowsperstrip": 16},
    ]
    for number, kind in enumerate(kinds):
        label = EUROSAT[(3 * number) % 10]
        bands = pixels(220 + number, 64, 64, 13).astype(np.uint16) // 16 * 160 + number
        buffer = io.BytesIO()
        tifffile.imwrite(buffer, bands, photometric="minisblack", planarconfig="contig", metadata=None, **kind)
        members.append((f"{base}/tif/{label}/{label}_{number + 1}.tif", buffer.getvalue()))
    write_zip(f"{folder}/EuroSATallBands.zip", members)


def food101(folder):
    classes = ["apple_pie", "baby_back_ribs", "waffles"]
    images, lists = [], {"train": {}, "test": {}}
    for index, label in enumerate(classes):
        for number in range(4):
            name = f"{label}/{1005649 + 77 * number + index}"
            images.append((f"food-101/images/{name}.jpg", picture(300 + 10 * index + number, 24 + number, 32)))
            lists["train" if number < 3 else "test"].setdefault(label, []).append(name)
    # One that no list has, and files that are no part of the dataset.
    images.append(("food-101/images/waffles/9.jpg", picture(399, 20, 20)))
    meta = [("food-101/meta/classes.txt", "\n".join(classes).encode() + b"\n")]
    for name, table in lists.items():
        meta.append((f"food-101/meta/{name}.json", json.dumps(table).encode()))
        meta.append((f"food-101/meta/{name}.txt", "\n".join(sum(table.values(), [])).encode() + b"\n"))
    members = [("food-101/", b""), ("food-101/images/", b""), *images, ("food-101/license_agreement.txt", b"-"), *meta]
    write_tar(f"{folder}/food-101.tar.gz", members)


WNIDS = """n01440764 n02102040 n02979186 n03000684 n03028079 n03394916 n03417042 n03425413 n03445777 n03888257""".split()


def imagenette(folder):
    for base, seed in (("imagenette2-160", 400), ("imagenette", 450)):
        members = [(f"{base}/", b""), (f"{base}/noisy_imagenette.csv", b"path\n")]
        for number, wnid in enumerate(WNIDS):
            members.append((f"{base}/train/{wnid}/{wnid}_{10026 + 31 * number}.JPEG", picture(seed + number, 20, 18 + number)))
            if number % 3 == 0:
                name = f"{base}/val/{wnid}/ILSVRC2012_val_{293 + number:08}.JPEG"
                members.append((name, picture(seed + 20 + number, 20, 24)))
        members.append((f"{base}/val/.DS_Store", b"x"))
        write_tar(f"{folder}/{base}.tgz", members)


def imdb_reviews(folder):
    words = "a film of great charm and no plot <br /><br />with café scenes that I would see again never twice".split()
    members = [("aclImdb/", b""), ("aclImdb/README", b"reviews"), ("aclImdb/train/labeledBow.feat", b"9 0:9")]
    seed = 7
    for split, labels in (("test", ["neg", "pos"]), ("train", ["neg", "pos", "unsup"])):
        for label in labels:
            members.append((f"aclImdb/{split}/{label}/", b""))
            for number in range(4):
                seed = (seed * 1103515245 + 12345) % 2**31
                text = " ".join(words[(seed >> (k % 20)) % len(words)] for k in range(3 + seed % 30))
                # What stands around a review is cut off, and what stands inside is not.
                text = ("\n " if number == 1 else "") + text + ("\r\n\t\x0b" if number == 2 else "") + ("\u3000" if number == 3 else "")
                members.append((f"aclImdb/{split}/{label}/{number}_{seed % 10}.txt", text.encode()))
            members.append((f"aclImdb/{split}/urls_{label}.txt", b"http://\n"))
    write_tar(f"{folder}/aclImdb_v1.tar.gz", members)


XML = """<annotation>
	<folder>OXIIIT</folder>
	<filename>{name}.jpg</filename>
	<size>
		<width>{width}</width>
		<height>{height}</height>
		<depth>3</depth>
	</size>
	<segmented>0</segmented>
	<object>
		<name>cat</name>
		<bndbox>
			<xmin>{box[0]}</xmin>
			<ymin>{box[1]}</ymin>
			<xmax>{box[2]}</xmax>
			<ymax>{box[3]}</ymax>
		</bndbox>
		<difficult>0</difficult>
	</object>
</annotation>
"""


def oxford_iiit_pet(folder):
    from PIL import Image

    # name, class from 1, species from 1, split
    pets = [
        ("Abyssinian_100", 1, 1, "trainval"),
        ("Abyssinian_34", 1, 1, "trainval"),
        ("american_bulldog_7", 2, 2, "trainval"),
        ("beagle_116", 5, 2, "trainval"),
        ("Egyptian_Mau_14", 12, 1, "trainval"),
        ("pug_3", 26, 2, "trainval"),
        ("yorkshire_terrier_9", 37, 2, "trainval"),
        ("Abyssinian_201", 1, 1, "test"),
        ("Bombay_11", 8, 1, "test"),
        ("chihuahua_121", 11, 2, "test"),
        ("Sphynx_5", 34, 1, "test"),
    ]
    images, trimaps, xmls, lists = [("images/", b""), ("images/Abyssinian_100.mat", b"MATLAB")], [], [], {"trainval": "", "test": ""}
    for number, (name, label, species, split) in enumerate(pets):
        height, width = 24 + number, 33 - number
        data = picture(500 + number, height, width, 80)
        if name == "beagle_116":  # bytes that do not belong there, before the end
            data = data[:-2] + b"\0\1\2\3" + data[-2:]
        if name == "Egyptian_Mau_14":  # a PNG with alpha under a JPEG's name
            buffer = io.BytesIO()
            Image.fromarray(pixels(500 + number, height, width, 4)).save(buffer, "PNG")
            data = buffer.getvalue()
        images.append((f"images/{name}.jpg", data))
        trimap = 1 + (pixels(540 + number, height, width, 1)[:, :, 0] > 120).astype("uint8")
        buffer = io.BytesIO()
        Image.fromarray(trimap).save(buffer, "PNG")
        trimaps.append((f"annotations/trimaps/{name}.png", buffer.getvalue()))
        trimaps.append((f"annotations/trimaps/._{name}.png", b"Mac OS X"))
        # Some pictures of the first split have no box either.
        if split == "trainval" and name != "pug_3":
            text = XML.format(name=name, width=width, height=height, box=(3 + number, 2, width - 2, height - number))
            xmls.append((f"annotations/xmls/{name}.xml", text.encode()))
        lists[split] += f"{name} {label} {species} {number % 5 + 1}\n"
    write_tar(f"{folder}/images.tar.gz", images)
    annotations = [("annotations/", b""), ("annotations/README", b"pets"), *trimaps, *xmls]
    annotations += [(f"annotations/{name}.txt", text.encode()) for name, text in lists.items()]
    write_tar(f"{folder}/annotations.tar.gz", annotations)


def stl10(folder):
    import numpy as np

    def images(seed, count):
        return b"".join(np.ascontiguousarray((pixels(seed + n, 96, 96) // 24 * 24).transpose(2, 1, 0)).tobytes() for n in range(count))

    names = "airplane bird car cat deer dog horse monkey ship truck".split()
    members = [
        ("stl10_binary/", b""),
        ("stl10_binary/test_X.bin", images(600, 4)),
        ("stl10_binary/test_y.bin", bytes([10, 1, 7, 3])),
        ("stl10_binary/train_X.bin", images(620, 5)),
        ("stl10_binary/train_y.bin", bytes([2, 2, 9, 1, 5])),
        ("stl10_binary/unlabeled_X.bin", images(640, 6)),
        ("stl10_binary/class_names.txt", "\n".join(names).encode() + b"\n"),
        ("stl10_binary/fold_indices.txt", b"0 1 2\n3 4\n"),
    ]
    write_tar(f"{folder}/stl10_binary.tar.gz", members)


def tf_flowers(folder):
    members = [("flower_photos/", b""), ("flower_photos/LICENSE.txt", b"-")]
    for number, label in enumerate(["daisy", "dandelion", "roses", "sunflowers", "tulips"]):
        members.append((f"flower_photos/{label}/", b""))
        for index in range(2):
            name = f"{5547758 + 7 * number + index}_{'eea9edfd54'[: index + 5]}_n.jpg"
            members.append((f"flower_photos/{label}/{name}", picture(700 + 10 * number + index, 30, 24 + index)))
    write_tar(f"{folder}/flower_photos.tgz", members)


def archives():
    for make in (beans, eurosat, food101, imagenette, imdb_reviews, oxford_iiit_pet, stl10, tf_flowers):
        folder = os.path.join(HERE, make.__name__)
        os.makedirs(folder, exist_ok=True)
        make(folder)
        print(make.__name__, sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)))


# -- what TFDS makes of them ------------------------------------------------------------------------------------------------


def redirect(url):
    """Points the builders' addresses at `url`."""
    import tensorflow_datasets as tfds

    def module(name):
        return sys.modules[type(tfds.builder(name, data_dir="/nowhere")).__module__]

    beans_module = module("beans")
    for name in ("TRAIN", "VALIDATION", "TEST"):
        setattr(beans_module, f"_{name}_URL", f"{url}/beans/{name.lower()}.zip")
    for config in type(tfds.builder("eurosat", data_dir="/nowhere")).BUILDER_CONFIGS:
        config.download_url = f"{url}/eurosat/{os.path.basename(config.download_url)}"
    module("food101")._BASE_URL = f"{url}/food101/food-101.tar.gz"
    module("imagenette")._URL_PREFIX = f"{url}/imagenette/"
    module("imdb_reviews")._DOWNLOAD_URL = f"{url}/imdb_reviews/aclImdb_v1.tar.gz"
    module("oxford_iiit_pet")._BASE_URL = f"{url}/oxford_iiit_pet"
    module("stl10").URL = f"{url}/stl10/stl10_binary.tar.gz"
    module("tf_flowers")._URL = f"{url}/tf_flowers/flower_photos.tgz"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def feature(name, dataset, key, value):
    import base64

    import numpy as np
    import tensorflow as tf

    kind = value.WhichOneof("kind")
    if kind == "int64_list":
        return {"ints": list(value.int64_list.value)}
    if kind == "float_list":
        floats = list(value.float_list.value)
        if len(floats) <= 16:
            return {"floats": floats}
        return {"floats": len(floats), "sha256": sha256(np.asarray(floats, "<f4").tobytes())}
    (data,) = value.bytes_list.value
    if name in ("file_name", "filename", "id"):
        return {"text": data.decode()}
    if dataset == "stl10" and name == "image":
        image = tf.io.decode_png(data).numpy()
        return {"png": list(image.shape), "sha256": sha256(image.tobytes())}
    if dataset == "oxford_iiit_pet" and name == "image" and key in ("Abyssinian_34.jpg", "beagle_116.jpg", "Egyptian_Mau_14.jpg", "chihuahua_121.jpg"):
        image = tf.io.decode_jpeg(data).numpy()
        return {"jpeg": list(image.shape), "pixels": base64.b64encode(image.tobytes()).decode()}
    return {"bytes": len(data), "sha256": sha256(data)}


def golden(dataset, config, out):
    import tensorflow as tf
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import shuffle

    keys, add = {}, shuffle.Shuffler.add

    def noted(self, key, data):
        keys.setdefault(data, []).append(str(key))
        return add(self, key, data)

    shuffle.Shuffler.add = noted
    builder = tfds.builder(f"{dataset}/{config}" if config else dataset, data_dir=out, file_format="array_record")
    result = common.prepare(builder)
    shuffle.Shuffler.add = add
    for split, info in builder.info.splits.items():
        positions = []
        shards, contents = common.shards(builder, info)
        for record in (record for shard in contents for record in shard):
            (key,) = keys[record]
            features = tf.train.Example.FromString(record).features.feature
            row = {name: feature(name, dataset, key, features[name]) for name in sorted(features)}
            positions.append({"key": key, "features": row})
        result["splits"][split] = {"shards": shards, "positions": positions}
    return result


def as_text(value):
    """Indented JSON, but with one position a line."""
    splits = value["splits"]
    head = json.dumps({**value, "splits": 0}, indent=1, ensure_ascii=False)
    parts = []
    for name, split in splits.items():
        rows = ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in split["positions"])
        shards = json.dumps(split["shards"])
        parts.append(f'  {json.dumps(name)}: {{\n   "shards": {shards},\n   "positions": [\n{rows}\n   ]\n  }}')
    return head.replace('"splits": 0', '"splits": {\n' + ",\n".join(parts) + "\n }") + "\n"


def main():
    command = sys.argv[1] if len(sys.argv) == 2 else ""
    if command == "archives":
        return archives()
    if command not in ("golden", "--check"):
        sys.exit(__doc__)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    names = [f"{dataset}-{config}" if config else dataset for dataset, config in CASES]
    cases = [(os.path.join(HERE, name + ".json"), case) for name, case in zip(names, CASES)]
    common.run(HERE, redirect, cases, golden, as_text, check=command == "--check")


if __name__ == "__main__":
    main()
