"""What the part about imagenet2012 runs in Python: `python peer_imagenet.py build|floor|compare ...`. Prints one JSON object.

build TARS DATA_DIR: TFDS's own builder, untouched, but without statistics. Counted without its imports.
floor TARS FILE: every picture's bytes read once, at random, into a buffer that stays in cache, and written to a file in pieces of 512 KiB: what a
copy by the system costs at least, hashed by nobody and not read back.
compare LEFT RIGHT: whether two folders hold the same examples in the same order in the same shards.
"""
import json
import os
import random
import resource
import sys
import tarfile
import time


def cpu_seconds():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def build(tars, data_dir):
    import tensorflow  # noqa: F401  (the import is not what is measured)
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    builder = tfds.builder("imagenet2012", data_dir=data_dir, file_format="array_record")
    wall, cpu = time.perf_counter(), cpu_seconds()
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(manual_dir=tars, compute_stats=tfds.download.ComputeStatsMode.SKIP)
    )
    return {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds() - cpu, "folder": str(builder.data_path)}


def extents(path):
    with tarfile.open(path) as outer:
        for member in outer:
            with tarfile.open(fileobj=outer.extractfile(member)) as inner:
                for picture in inner:
                    yield member.offset_data + picture.offset_data, picture.size


def floor(tars, target):
    path = os.path.join(tars, "ILSVRC2012_img_train.tar")
    found = list(extents(path))
    random.Random(0).shuffle(found)
    source, out = os.open(path, os.O_RDONLY), os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    step = 512 << 10
    buffer, filled = memoryview(bytearray(step + max(size for _, size in found))), 0
    wall, cpu = time.perf_counter(), cpu_seconds()
    for offset, size in found:
        filled += os.preadv(source, [buffer[filled : filled + size]], offset)
        while filled >= step:
            os.write(out, buffer[:step])
            rest = filled - step
            buffer[:rest] = buffer[step:filled]
            filled = rest
    os.write(out, buffer[:filled])
    result = {"wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds() - cpu, "images": len(found)}
    os.close(out)
    os.remove(target)
    return result


def compare(left, right):
    import tensorflow as tf
    from array_record.python.array_record_module import ArrayRecordReader

    def shards(folder):
        return sorted(name for name in os.listdir(folder) if ".array_record-" in name)

    def examples(path):
        reader = ArrayRecordReader(path)
        for index in range(reader.num_records()):
            example = tf.train.Example.FromString(reader.read([index])[0])
            yield {name: (list(value.bytes_list.value), list(value.int64_list.value)) for name, value in example.features.feature.items()}
        reader.close()

    names = shards(left)
    same, count = names == shards(right), 0
    for name in names if same else []:
        ours, theirs = list(examples(os.path.join(left, name))), list(examples(os.path.join(right, name)))
        same, count = same and ours == theirs, count + len(ours)
    return {"same": same, "images": count, "shards": len(names)}


if __name__ == "__main__":
    print(json.dumps({"build": build, "floor": floor, "compare": compare}[sys.argv[1]](*sys.argv[2:])))
