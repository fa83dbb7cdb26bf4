"""What the scripts that note TFDS's own results share: a server for their archives, the build, and the file of the result."""
import contextlib
import functools
import http.server
import importlib.metadata
import json
import os
import sys
import tempfile
import threading

PACKAGES = ("tensorflow-datasets", "tensorflow-cpu", "array_record")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@contextlib.contextmanager
def server(folder):
    """Serves a folder; gives its address."""
    handler = functools.partial(Quiet, directory=folder)
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()


def prepare(builder):
    """Builds; gives the beginning of what is noted, still without splits."""
    import tensorflow_datasets as tfds

    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(
            compute_stats=tfds.download.ComputeStatsMode.SKIP, force_checksums_validation=False
        )
    )
    folder = str(builder.data_path)
    texts = sorted(f for f in os.listdir(folder) if f.endswith((".json", ".labels.txt")))
    return {
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "version": str(builder.version),
        "files": {f: open(os.path.join(folder, f), encoding="utf-8").read() for f in texts},
        "splits": {},
    }


def shards(builder, info):
    """Name and records of each shard of a split; and of each, what is in it."""
    from array_record.python.array_record_module import ArrayRecordReader

    names, contents = [], []
    for path, length in zip(info.filenames, info.shard_lengths):
        names.append({"path": os.path.basename(path), "records": length})
        reader = ArrayRecordReader(os.path.join(str(builder.data_path), path))
        contents.append(reader.read_all())
        reader.close()
    return names, contents


def run(folder, redirect, cases, make, as_text, check):
    """Notes what `make(*case, out)` gives for each `(path, case)`, or compares it with what is there.

    `redirect` points the builders' addresses at a server of `folder`; `as_text` lays a result out.
    """
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    with server(folder) as url, tempfile.TemporaryDirectory() as out:
        redirect(url)
        for path, case in cases:
            name = os.path.basename(path).removesuffix(".json")
            found = make(*case, out)
            if not check:
                text = as_text(found)
                assert json.loads(text) == found
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                print(f"{name}: written")
                continue
            with open(path, encoding="utf-8") as file:
                wanted = json.load(file)
            found.pop("versions"), wanted.pop("versions")
            if found != wanted:
                sys.exit(f"{name}: TFDS builds something else than {path} says")
            print(f"{name}: as in the golden file")
