"""A pipeline of another library: `python peer_pipelines.py LIBRARY NAME FOLDER SECONDS`, or `first LIBRARY FOLDER`.

The same records and the same work as `loader/examples/pipelines.rs`, whose NAMEs these are; two threads. After a first batch that is not
counted, batches for so long; prints one JSON object: `items` (pictures, or tokens), `cpu_s` of all threads, `wall_s`. `first` prints nothing after the first batch of `png`.
"""
import json
import os
import sys
import time

ROW, SIDE = 2048, 224
BATCHES = {"png": 256, "jpeg": 64, "photos": 64, "tokens-split": 64, "tokens-fit": 64}


def folder_of(name, folder):
    return os.path.join(folder, name.split("-")[0])


def tensorflow(name, folder):
    """tf.data over the TFRecord file: decoding, cropping, resizing and packing in its own kernels."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    batch = BATCHES[name]
    records = tf.data.TFRecordDataset(os.path.join(folder_of(name, folder), "peers.tfrecord")).repeat()
    if name.startswith("tokens"):
        spec = {"tokens": tf.io.RaggedFeature(tf.int64)}
        parse = lambda rows: tf.cast(tf.io.parse_example(rows, spec)["tokens"].flat_values, tf.int32)
        tokens = records.shuffle(10_000).batch(256).map(parse, num_parallel_calls=2)
        packed = tokens.rebatch(ROW * batch, drop_remainder=True)
        dataset = packed.map(lambda row: tf.reshape(row, (batch, ROW)))
    else:
        spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

        def small(record):
            row = tf.io.parse_single_example(record, spec)
            return tf.ensure_shape(tf.io.decode_png(row["image"], channels=3), (32, 32, 3)), row["label"]

        def large(record):
            row = tf.io.parse_single_example(record, spec)
            file = row["image"]
            begin, size, _ = tf.image.sample_distorted_bounding_box(
                tf.io.extract_jpeg_shape(file),
                tf.zeros([1, 0, 4]),
                min_object_covered=0.0,
                aspect_ratio_range=(3 / 4, 4 / 3),
                area_range=(0.08, 1.0),
                use_image_if_no_bounding_boxes=True,
            )
            window = tf.stack([begin[0], begin[1], size[0], size[1]])
            image = tf.io.decode_and_crop_jpeg(file, window, channels=3)
            image = tf.image.random_flip_left_right(tf.image.resize(image, (SIDE, SIDE)))
            return tf.cast(image, tf.uint8), row["label"]

        shuffled = records.shuffle(10_000 if name == "png" else 100)
        dataset = shuffled.map(small if name == "png" else large, num_parallel_calls=2).batch(batch, drop_remainder=True)
    for made in dataset.prefetch(2):
        yield made.shape[0] * made.shape[1] if name.startswith("tokens") else made[0].shape[0]


def draw_crop(height, width, draw):
    """torchvision's random resized crop."""
    for _ in range(10):
        area, ratio = height * width * draw.uniform(0.08, 1.0), 2.718281828459045 ** draw.uniform(-0.2876820724517809, 0.2876820724517809)
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            return draw.integers(0, height - h + 1), draw.integers(0, width - w + 1), h, w
    return 0, 0, height, width


def grain(name, folder):
    """Grain over the ArrayRecord file, two threads: what worker processes add is not counted. OpenCV for pictures, Grain's packing for tokens."""
    import absl.flags
    import absl.logging

    absl.flags.FLAGS.mark_as_parsed()
    absl.logging.set_verbosity(absl.logging.FATAL)
    import glob

    import cv2
    import grain
    import numpy as np
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from tensorflow.core.example.example_pb2 import Example

    cv2.setNumThreads(1)

    def feature(record, key):
        return Example.FromString(record).features.feature[key]

    def tokens(record):
        return {"tokens": np.array(feature(record, "tokens").int64_list.value, np.int32)}

    def picture(record):
        file = np.frombuffer(feature(record, "image").bytes_list.value[0], np.uint8)
        return cv2.imdecode(file, cv2.IMREAD_COLOR_RGB)

    def crop(record, draw):
        image = picture(record)
        y, x, h, w = draw_crop(*image.shape[:2], draw)
        image = cv2.resize(image[y : y + h, x : x + w], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        return cv2.flip(image, 1) if draw.random() < 0.5 else image

    source = ArrayRecordDataSource(sorted(glob.glob(os.path.join(folder_of(name, folder), "*.array_record-*"))))
    dataset = grain.MapDataset.source(source).seed(0).shuffle().repeat()
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)
    if name.startswith("tokens"):
        stream = dataset.map(tokens).to_iter_dataset(options)
        if name == "tokens-split":
            stream = grain.experimental.ConcatThenSplitIterDataset(stream, length_struct={"tokens": ROW})
        else:
            stream = grain.experimental.FirstFitPackIterDataset(stream, length_struct={"tokens": ROW}, num_packing_bins=16)
        stream = stream.batch(BATCHES[name])
    else:
        dataset = dataset.map(picture) if name == "png" else dataset.random_map(crop)
        stream = dataset.batch(BATCHES[name]).to_iter_dataset(options)
    for made in stream:
        yield int((made["tokens_segment_ids"] > 0).sum()) if name.startswith("tokens") else made.shape[0]


def main():
    libraries = {"tf.data": tensorflow, "grain": grain}
    if sys.argv[1] == "first":
        next(libraries[sys.argv[2]]("png", sys.argv[3]))
        os._exit(0)
    library, name, folder, seconds = sys.argv[1:]
    batches = libraries[library](name, folder)
    next(batches)
    cpu, start, items = time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - start < float(seconds):
        items += next(batches)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"items": items, "cpu_s": cpu, "wall_s": wall}), flush=True)
    # Without waiting for what is made ahead.
    os._exit(0)


if __name__ == "__main__":
    main()
