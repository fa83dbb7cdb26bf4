"""Puts a TFDS folder of ArrayRecord shards into a catalog, as it lies: what the tests and the benchmarks need of folders that we did not build."""

import hashlib
import json
import pathlib
import shutil
import uuid

from array_record.python import array_record_module


def adopt(source, catalog, name, version="1.0.0"):
    """Copies features and shards (`NAME-SPLIT.array_record-I-of-N`) of `source`, and writes manifest and log entry; gives the new folder."""
    folder = pathlib.Path(catalog, "data", name, version)
    shutil.copytree(source, folder)
    splits = {}
    for path in sorted(folder.glob(f"{name}-*.array_record-*")):
        reader = array_record_module.ArrayRecordReader(str(path))
        records = reader.read_all()
        reader.close()
        shard = {
            "path": path.name,
            "records": len(records),
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            # Of builds only; nothing that reads looks at them.
            "sequence_hash": "0" * 32,
            "min_key": None,
            "max_key": None,
        }
        split = splits.setdefault(path.name[len(name) + 1 : path.name.index(".")], [[], 0])
        split[0].append(shard)
        split[1] += sum(map(len, records))
    digest = hashlib.sha256((folder / "features.json").read_bytes())
    for shards, _ in splits.values():
        for shard in shards:
            digest.update(shard["sha256"].encode())
    manifest = {
        "format": 1,
        "name": name,
        "config": None,
        "version": version,
        "fingerprint": digest.hexdigest(),
        "recipe_sha256": "0" * 64,
        "layout": "tfds",
        "sources": [],
        "splits": [
            {
                "name": split,
                "records": sum(shard["records"] for shard in shards),
                "bytes": total,
                "options": "group_size:1",
                "skipped": 0,
                "shards": shards,
            }
            for split, (shards, total) in splits.items()
        ],
    }
    text = json.dumps(manifest, indent=2) + "\n"
    (folder / "prep_manifest.json").write_text(text)
    entry = {
        "kind": "register",
        "commit_id": uuid.uuid4().hex,
        "min_reader": 1,
        "version": version,
        "path": f"data/{name}/{version}",
        "manifest_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "fingerprint": manifest["fingerprint"],
        "recipe_sha256": manifest["recipe_sha256"],
        "splits": {
            split["name"]: {"examples": split["records"], "shards": len(split["shards"]), "bytes": split["bytes"]}
            for split in manifest["splits"]
        },
    }
    log = pathlib.Path(catalog, "log", name)
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text(json.dumps(entry))
    head = pathlib.Path(catalog, "prep.json")
    if not head.exists():
        head.write_text('{"format": 1}')
    return folder
