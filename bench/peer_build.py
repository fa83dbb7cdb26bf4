"""TFDS's own cifar10 builder over the benchmark's archive: `python peer_build.py ARCHIVE DATA_DIR`.

Prints one JSON object: wall and CPU seconds of the build alone, without the imports. The builder is untouched but for its
download address (a server on this machine, whose cost is not counted: it is another process), checksum
validation and statistics are off, as in `prep build --no-checksum`.
"""
import json
import os
import resource
import subprocess
import sys
import time


def cpu_seconds():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def main():
    archive, data_dir = sys.argv[1:]
    serve = "import functools, http.server as h, sys\n" \
        "class H(h.SimpleHTTPRequestHandler):\n" \
        "    def log_message(self, *a): pass\n" \
        "s = h.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(H, directory=sys.argv[1]))\n" \
        "print(s.server_address[1], flush=True)\n" \
        "s.serve_forever()\n"
    server = subprocess.Popen([sys.executable, "-c", serve, os.path.dirname(archive)], stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline())
        import tensorflow  # noqa: F401  (the import is not what is measured)
        import tensorflow_datasets as tfds
        from tensorflow_datasets.image_classification import cifar

        tfds.disable_progress_bar()
        original = cifar.Cifar10.__dict__["_cifar_info"].fget
        url = f"http://127.0.0.1:{port}/{os.path.basename(archive)}"
        cifar.Cifar10._cifar_info = property(lambda self: original(self)._replace(url=url))
        builder = tfds.builder("cifar10", data_dir=data_dir, file_format="array_record")
        wall, cpu = time.perf_counter(), cpu_seconds()
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(
                compute_stats=tfds.download.ComputeStatsMode.SKIP, force_checksums_validation=False
            )
        )
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    finally:
        server.kill()
        server.wait()
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "folder": str(builder.data_path)}))


if __name__ == "__main__":
    main()
