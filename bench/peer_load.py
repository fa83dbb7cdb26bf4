"""A Grain pipeline over a built dataset: `python peer_load.py PIPELINE FOLDER BATCH SECONDS`.

Shuffled batches of decoded pictures u8[BATCH, 32, 32, 3] and labels, from the train shards in FOLDER. Prints one JSON
object: seconds from the start of the process to the first batch, then, after a second of warm-up, images, wall and CPU
seconds (worker processes included) of a steady stream. `python peer_load.py check FOLDER` instead reads everything
once with Google's reader and prints counts, label sums, pixel sums and the bytes of the encoded images, by split.
"""
import glob
import json
import os
import sys
import time

STARTED = time.monotonic() - float(os.environ.get("BENCH_START_OFFSET", "0"))


def parse(record):
    """What a careful user writes: protobuf's C parser."""
    from tensorflow.core.example.example_pb2 import Example

    feature = Example.FromString(record).features.feature
    return feature["image"].bytes_list.value[0], feature["label"].int64_list.value[0]


def decode(record):
    import cv2
    import numpy as np

    image, label = parse(record)
    return {"image": cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB), "label": label}


def quiet():
    """As absl.app.run would: flags parsed, no log line a record."""
    import absl.flags
    import absl.logging

    absl.flags.FLAGS.mark_as_parsed()
    absl.logging.set_verbosity(absl.logging.FATAL)


def shards(folder, split):
    found = sorted(glob.glob(os.path.join(folder, f"cifar10-{split}.array_record-*")))
    if not found:
        sys.exit(f"no shards of `{split}` in {folder}")
    return found


def pipeline(name, folder, batch):
    import grain

    quiet()
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    if name.startswith("tfds"):
        import tensorflow_datasets as tfds

        source, fn = tfds.builder_from_directory(folder).as_data_source(split="train"), None
    else:
        source, fn = ArrayRecordDataSource(shards(folder, "train")), decode
    if name.endswith("data_loader"):
        operations = [pipeline_ops(grain)(fn)] if fn else []
        operations.append(grain.transforms.Batch(batch, drop_remainder=True))
        sampler = grain.samplers.IndexSampler(
            len(source), shuffle=True, seed=0, shard_options=grain.sharding.NoSharding()
        )
        return iter(grain.DataLoader(data_source=source, operations=operations, sampler=sampler, worker_count=2))
    if name.endswith("getitems"):
        return getitems(source, batch)
    dataset = grain.MapDataset.source(source).seed(0).shuffle().repeat()
    if fn:
        dataset = dataset.map(fn)
    dataset = dataset.batch(batch, drop_remainder=True)
    if name.endswith("mp_prefetch"):
        dataset = dataset.to_iter_dataset(grain.ReadOptions(num_threads=16, prefetch_buffer_size=16))
        return iter(dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    return iter(dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)))


def getitems(source, batch):
    """No loader at all: the random-access source, asked for a batch of positions at a time, in one thread."""
    import numpy as np

    generator = np.random.default_rng(0)
    while True:
        order = generator.permutation(len(source)).tolist()
        for start in range(0, len(order) - batch + 1, batch):
            examples = source.__getitems__(order[start : start + batch])
            yield {
                "image": np.stack([example["image"] for example in examples]),
                "label": np.array([example["label"] for example in examples]),
            }


def pipeline_ops(grain):
    from ops import MapFunction

    return MapFunction


def tree_cpu():
    """CPU seconds of this process, its live descendants, and those that have ended."""
    children, total = {}, 0
    stats = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    text = file.read()
            except OSError:
                continue
            fields = text[text.rindex(b")") + 2 :].split()
            stats[int(entry)] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(int(entry))
    todo = [os.getpid()]
    while todo:
        process = todo.pop()
        total += stats.get(process, 0)
        todo.extend(children.get(process, ()))
    return total / os.sysconf("SC_CLK_TCK")


def stream(name, folder, batch, seconds):
    batches = pipeline(name, folder, batch)
    first = next(batches)
    first_s = time.monotonic() - STARTED
    assert first["image"].shape == (batch, 32, 32, 3) and first["image"].dtype == "uint8", first["image"].shape
    assert sorted(set(first["label"].tolist())) == list(range(10)), "labels of a shuffled batch"
    end = time.perf_counter() + 1
    while time.perf_counter() < end:
        next(batches)
    images, wall, cpu = 0, time.perf_counter(), tree_cpu()
    while time.perf_counter() < wall + seconds:
        images += len(next(batches)["label"])
    wall, cpu = time.perf_counter() - wall, tree_cpu() - cpu
    return {"images": images, "wall_s": wall, "cpu_s": cpu, "first_batch_s": first_s}


def check(folder):
    import cv2
    import numpy as np
    from array_record.python.array_record_module import ArrayRecordReader

    result = {}
    for split in ("train", "test"):
        facts = {"images": 0, "label_sum": 0, "pixel_sum": 0, "png_bytes": 0}
        for path in shards(folder, split):
            reader = ArrayRecordReader(path)
            for record in reader.read_all():
                image, label = parse(record)
                facts["images"] += 1
                facts["label_sum"] += label
                facts["png_bytes"] += len(image)
                facts["pixel_sum"] += int(cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR).sum(dtype=np.int64))
            reader.close()
        result[split] = facts
    return result


if __name__ == "__main__":
    if sys.argv[1] == "check":
        print(json.dumps(check(sys.argv[2])), flush=True)
    else:
        print(json.dumps(stream(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))), flush=True)
    os._exit(0)  # worker processes hang in their exit hooks
