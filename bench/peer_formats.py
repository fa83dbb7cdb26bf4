"""One contender of the formats part in Python: `python peer_formats.py CONTENDER SECONDS FILE...`; prints one line of JSON.

As `formats/examples/measure.rs` does it: some batches are read and summed before the clock starts, then whole batches or passes until the
time is over; `cpu_s` is of the process with all threads. Records become Python's `bytes` where the package gives them so.
"""
import glob
import json
import os
import sys
import time

BATCH, CHECKED = 256, 20
# Records that a file is written of, so that slow codecs are done in seconds.
WRITTEN = 50_000
CONTENDERS = {}


def contender(function):
    CONTENDERS[function.__name__.replace("__", "-")] = function
    return function


def weight(record):
    return len(record) + (record[0] + record[-1] if record else 0)


def indices(n):
    """Batches of random indices, those of `measure.rs`."""
    mask, k = 2**64 - 1, 0

    def index(k):
        z = (k + 1) * 0x9E3779B97F4A7C15 & mask
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return (z ^ z >> 31) % n

    while True:
        yield [index(k + row) for row in range(BATCH)]
        k += BATCH


def measure(seconds, checksum, step):
    """`step` gives (records, bytes)."""
    records = size = 0
    cpu, start = time.process_time(), time.perf_counter()
    while True:
        found = step()
        records += found[0]
        size += found[1]
        if time.perf_counter() - start >= seconds:
            break
    cpu, wall = time.process_time() - cpu, time.perf_counter() - start
    return {"records": records, "bytes": size, "cpu_s": cpu, "wall_s": wall, "checksum": checksum}


def random_batches(seconds, n, read):
    """`read` gives the records at a list of indices, in its order."""
    draw = indices(n)
    checksum = sum(weight(record) for _ in range(CHECKED) for record in read(next(draw)))
    # Made ahead: drawing numbers in Python is not what is measured.
    batches = [next(draw) for _ in range(2_000)]
    number = 0

    def step():
        nonlocal number
        found = read(batches[number % len(batches)])
        number += 1
        return len(found), sum(map(len, found))

    return measure(seconds, checksum, step)


def passes(seconds, slices):
    """`slices` gives lists of records, all of a file."""
    checksum = sum(weight(record) for part in slices() for record in part)

    def step():
        records = size = 0
        for part in slices():
            records += len(part)
            size += sum(map(len, part))
        return records, size

    return measure(seconds, checksum, step)


def writes(seconds, source, write, read):
    """`write` writes a list of records, `read` gives them back, once."""
    records = tfrecords(source)[:WRITTEN]
    size = sum(map(len, records))
    write(records)
    checksum = sum(map(weight, read()))

    def step():
        write(records)
        return len(records), size

    return measure(seconds, checksum, step)


def tfrecords(path):
    from array_record.python import array_record_module  # noqa: F401  (its protobuf before TensorFlow's)
    import struct

    records = []
    with open(path, "rb") as file:
        while head := file.read(12):
            (length,) = struct.unpack_from("<Q", head)
            records.append(file.read(length))
            file.read(4)
    return records


def reader(path, **options):
    from array_record.python.array_record_module import ArrayRecordReader

    return ArrayRecordReader(path, **options)


@contender
def array_record__random(seconds, path):
    # Without read-ahead and threads, which cost more than they give here.
    file = reader(path, options="readahead_buffer_size:0,max_parallelism:0", file_reader_buffer_size=32768)
    return random_batches(seconds, file.num_records(), file.read)


def one_by_one(seconds, source):
    return random_batches(seconds, len(source), lambda batch: [source[index] for index in batch])


def source_of_array_record(path):
    import absl.flags
    import absl.logging
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    # No line of log a record.
    absl.flags.FLAGS.mark_as_parsed()
    absl.logging.set_verbosity(absl.logging.FATAL)
    return ArrayRecordDataSource(path)


@contender
def array_record__one(seconds, path):
    return one_by_one(seconds, source_of_array_record(path))


@contender
def array_record__sequential(seconds, path):
    def slices():
        file = reader(path)
        count = file.num_records()
        for start in range(0, count, 4096):
            yield file.read(start, min(count, start + 4096))
        file.close()

    return passes(seconds, slices)


@contender
def array_record__write(seconds, source, out, options):
    from array_record.python.array_record_module import ArrayRecordWriter

    def write(records):
        writer = ArrayRecordWriter(out, options)
        for record in records:
            writer.write(record)
        writer.close()

    return writes(seconds, source, write, lambda: reader(out).read_all())


@contender
def array_record__open(seconds, folder):
    files = sorted(glob.glob(os.path.join(folder, "*")))
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    checksum = len(ArrayRecordDataSource(files))

    def step():
        source = ArrayRecordDataSource(files)
        assert len(source) == checksum
        return len(files), 0

    return measure(seconds, checksum, step)


@contender
def prep_python__random(seconds, path):
    import prep

    source = prep.ArrayRecordDataSource(path)
    return random_batches(seconds, len(source), source.__getitems__)


@contender
def prep_python__one(seconds, path):
    import prep

    return one_by_one(seconds, prep.ArrayRecordDataSource(path))


@contender
def prep_python__sequential(seconds, path):
    import prep

    source = prep.ArrayRecordDataSource(path)

    def slices():
        for start in range(0, len(source), 4096):
            yield source.__getitems__(range(start, min(len(source), start + 4096)))

    return passes(seconds, slices)


@contender
def prep_python__open(seconds, folder):
    import prep

    files = sorted(glob.glob(os.path.join(folder, "*")))
    checksum = len(prep.ArrayRecordDataSource(files))
    return measure(seconds, checksum, lambda: (len(files), 0 * len(prep.ArrayRecordDataSource(files))))


@contender
def bagz__random(seconds, path):
    import bagz

    file = bagz.Reader(path)
    return random_batches(seconds, len(file), file.read_indices)


@contender
def bagz__one(seconds, path):
    import bagz

    return one_by_one(seconds, bagz.Reader(path))


@contender
def bagz__sequential(seconds, path):
    import bagz

    file = bagz.Reader(path)
    return passes(
        seconds,
        lambda: (file.read_indices(slice(start, min(len(file), start + 4096))) for start in range(0, len(file), 4096)),
    )


@contender
def bagz__write(seconds, source, out):
    import bagz

    def write(records):
        with bagz.Writer(out) as writer:
            for record in records:
                writer.write(record)

    return writes(seconds, source, write, lambda: list(bagz.Reader(out)))


def arrow_table(path):
    import pyarrow

    return pyarrow.ipc.open_file(pyarrow.memory_map(path)).read_all()


@contender
def arrow__random(seconds, path):
    # As HF `datasets` does it: the chunk of a row by bisection, one slice of a batch a row.
    table = arrow_table(path)
    column = table.column(0)
    starts = [0]
    for chunk in column.chunks:
        starts.append(starts[-1] + len(chunk))
    import bisect

    def read(batch):
        found = []
        for index in batch:
            place = bisect.bisect_right(starts, index) - 1
            found.append(column.chunk(place)[index - starts[place]].as_py())
        return found

    def take(batch):
        return column.take(batch).to_pylist()

    # Whichever is cheaper here.
    return min((random_batches(seconds / 2, len(column), how) for how in (read, take)), key=lambda row: row["cpu_s"] / row["records"])


@contender
def arrow__one(seconds, path):
    column = arrow_table(path).column(0)
    return random_batches(seconds, len(column), lambda batch: [column[index].as_py() for index in batch])


@contender
def arrow__sequential(seconds, path):
    return passes(seconds, lambda: (chunk.to_pylist() for chunk in arrow_table(path).column(0).chunks))


@contender
def arrow__write(seconds, source, out):
    import pyarrow.ipc

    def write(records):
        schema = pyarrow.schema([("r", pyarrow.large_binary())])
        with pyarrow.ipc.new_file(out, schema) as writer:
            for start in range(0, len(records), 1_000):
                part = pyarrow.array(records[start : start + 1_000], pyarrow.large_binary())
                writer.write_batch(pyarrow.record_batch([part], schema))

    return writes(seconds, source, write, lambda: arrow_table(out).column(0).to_pylist())


@contender
def lance__random(seconds, path):
    import lance

    data = lance.dataset(path)
    return random_batches(seconds, data.count_rows(), lambda batch: data.take(batch, columns=["r"]).column(0).to_pylist())


@contender
def lance__sequential(seconds, path):
    import lance

    data = lance.dataset(path)
    return passes(seconds, lambda: (batch.column(0).to_pylist() for batch in data.to_batches(columns=["r"], batch_size=4096)))


@contender
def lance__write(seconds, source, out):
    import lance
    import pyarrow

    def write(records):
        table = pyarrow.table({"r": pyarrow.array(records, pyarrow.large_binary())})
        lance.write_dataset(table, out, mode="overwrite")

    return writes(seconds, source, write, lambda: lance.dataset(out).to_table().column(0).to_pylist())


@contender
def tensorflow__read(seconds, path):
    """Batches of 1,000 strings in tensors, which become no Python objects: the fastest that TensorFlow has."""
    import tensorflow as tf

    def data():
        return tf.data.TFRecordDataset(path).batch(1_000).prefetch(1)

    checksum = sum(weight(record) for batch in data().as_numpy_iterator() for record in batch)
    # Sizes are summed in the graph, in the pipeline's own thread.
    sizes = data().map(lambda batch: (tf.size(batch), tf.reduce_sum(tf.strings.length(batch))))

    def step():
        records = size = 0
        for count, length in sizes:
            records += int(count)
            size += int(length)
        return records, size

    return measure(seconds, checksum, step)


@contender
def tensorflow__iterator(seconds, path):
    from tensorflow.python.lib.io import tf_record

    def slices():
        for record in tf_record.tf_record_iterator(path):
            yield (record,)

    return passes(seconds, slices)


@contender
def tensorflow__write(seconds, source, out):
    import tensorflow as tf

    def write(records):
        with tf.io.TFRecordWriter(out) as writer:
            for record in records:
                writer.write(record)

    return writes(seconds, source, write, lambda: tfrecords(out))


@contender
def tensorflow__parse(seconds, source):
    """`tf.io.parse_example` in a graph, of batches that are tensors already, to dense columns."""
    import tensorflow as tf

    records = tfrecords(source)
    batches = [tf.constant(records[start : start + BATCH]) for start in range(0, len(records) // BATCH * BATCH, BATCH)]
    spec = {
        "id": tf.io.FixedLenFeature([], tf.int64),
        "scores": tf.io.FixedLenFeature([8], tf.float32),
        "text": tf.io.FixedLenFeature([], tf.string),
        "tokens": tf.io.FixedLenFeature([16], tf.int64),
    }
    parse = tf.function(lambda batch: tf.io.parse_example(batch, spec))
    checksum = 0
    for number in range(CHECKED):
        found = parse(batches[number % len(batches)])
        checksum += int(found["id"].numpy().sum()) + sum(map(weight, found["text"].numpy()))
    sizes = [int(tf.reduce_sum(tf.strings.length(batch))) for batch in batches]
    number = 0

    def step():
        nonlocal number
        place = number % len(batches)
        number += 1
        parse(batches[place])
        return BATCH, sizes[place]

    return measure(seconds, checksum, step)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        result = CONTENDERS[sys.argv[1]](float(sys.argv[2]), *sys.argv[3:])
    except ImportError as error:
        result = {"missing": str(error)}
    print(json.dumps(result))
