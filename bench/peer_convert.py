"""What the part about conversion runs in Python: `python peer_convert.py make|loop|compare ...`. Prints one JSON object."""
import json
import multiprocessing
import os
import resource
import sys
import time

import formats_data


def cpu_seconds():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def make(kind, folder, count, files):
    import tensorflow as tf

    os.makedirs(folder, exist_ok=True)
    records = formats_data.texts(count) if kind == "text" else formats_data.pictures(count)
    for number in range(files):
        with tf.io.TFRecordWriter(os.path.join(folder, f"{number:05}.tfrecord")) as writer:
            for _ in range(count * (number + 1) // files - count * number // files):
                writer.write(next(records))
    open(os.path.join(folder, "done"), "w").close()
    return {"records": count}


def one(job):
    """tf.data reads, checks and batches; ArrayRecord's writer writes: the best loop that Python allows."""
    source, target, options = job
    import tensorflow as tf
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(target, options)
    count = 0
    for batch in tf.data.TFRecordDataset(source, buffer_size=1 << 20).batch(512).as_numpy_iterator():
        for record in batch:
            writer.write(record)
        count += len(batch)
    writer.close()
    return count


def loop(out, options, processes, files):
    os.makedirs(out)
    jobs = [(path, os.path.join(out, f"data.array_record-{i:05}-of-{len(files):05}"), options) for i, path in enumerate(files)]
    if processes == 1:
        import tensorflow  # noqa: F401  (the import is not what is measured)

        wall, cpu = time.perf_counter(), cpu_seconds()
        count = sum(map(one, jobs))
    else:
        pool = multiprocessing.get_context("spawn").Pool(processes, initializer=warm)
        # A task for each process, so that both have imported what they need.
        pool.map(time.sleep, [0.5] * processes, chunksize=1)
        wall, cpu = time.perf_counter(), time.process_time()
        before = sum(pool.map(spent, [0.2] * processes, chunksize=1))
        wall = time.perf_counter()
        count = sum(pool.map(one, jobs, chunksize=1))
        wall_s = time.perf_counter() - wall
        after = sum(pool.map(spent, [0.2] * processes, chunksize=1))
        pool.close()
        pool.join()
        return {"records": count, "wall_s": wall_s, "cpu_s": after - before + time.process_time() - cpu}
    return {"records": count, "wall_s": time.perf_counter() - wall, "cpu_s": cpu_seconds() - cpu}


def warm():
    import tensorflow  # noqa: F401
    from array_record.python.array_record_module import ArrayRecordWriter  # noqa: F401


def spent(pause):
    """CPU seconds of this process; the pause has each process of the pool take one."""
    time.sleep(pause)
    return time.process_time()


def compare(left, right):
    from array_record.python.array_record_module import ArrayRecordReader

    def records(folder):
        for name in sorted(os.listdir(folder)):
            if ".array_record-" in name:
                reader = ArrayRecordReader(os.path.join(folder, name))
                yield from reader.read_all()
                reader.close()

    missing = object()
    import itertools

    return {"same": all(a == b for a, b in itertools.zip_longest(records(left), records(right), fillvalue=missing))}


def main():
    command, *words = sys.argv[1:]
    if command == "make":
        found = make(words[0], words[1], int(words[2]), int(words[3]))
    elif command == "loop":
        found = loop(words[0], words[1], int(words[2]), words[3:])
    else:
        found = compare(*words)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
