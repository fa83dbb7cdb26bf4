"""Catalogs and datasets in object stores: real store servers, started here from their packages."""
import base64
import concurrent.futures
import contextlib
import functools
import hashlib
import hmac
import http.server
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

import pytest

from conftest import GOLDEN
from store_proxy import SIGNED, Proxy

WRITERS = 16


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(port, process):
    """Until the server listens; its end is an error."""
    while True:
        assert process.poll() is None, "the store's server has ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)


@pytest.fixture(scope="module")
def moto():
    """moto's S3 server, a process of its own. Gives its port."""
    pytest.importorskip("moto")
    port = free_port()
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def proxy(moto):
    proxy = Proxy("127.0.0.1", moto)
    yield proxy
    proxy.stop()


class Store:
    """A bucket of its own behind the proxy, and the command with its address and keys."""

    def __init__(self, prep, proxy, home, name):
        self.prep = prep
        self.proxy = proxy
        self.bucket = name
        self.ask("PUT", "", b"")
        self.catalog = f"s3://{name}/catalog"
        self.environment = {
            **prep.environment,
            "PREP_HOME": str(home),
            "PREP_CATALOG": self.catalog,
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "a-secret-that-is-not-to-be-shown",
            "AWS_REGION": "us-east-1",
        }

    def start(self, *arguments, **more):
        command = [self.prep.binary, *map(str, arguments)]
        return subprocess.Popen(
            command, env={**self.environment, **more}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments, code=0, **more):
        process = self.start(*arguments, **more)
        out, errors = process.communicate()
        assert process.returncode == code, f"{arguments}: exit code {process.returncode}\n{out[-2000:]}\n{errors[-4000:]}"
        assert "a-secret-that-is-not-to-be-shown" not in out + errors
        process.out, process.errors = out, errors
        return process

    def json(self, *arguments, code=0, **more):
        return [json.loads(line) for line in self.run(*arguments, "--json", code=code, **more).out.splitlines()]

    def build(self, name, *arguments, code=0, **more):
        rows = self.json("build", name, "--from", GOLDEN / name, "--no-checksum", *arguments, code=code, **more)
        return rows[-1] if rows else None

    def ask(self, method, path, data=None):
        url = f"{self.proxy.url}/{self.bucket}{path}"
        # Without a type it would be a form, whose body moto takes for itself.
        headers = {**SIGNED, "Content-Type": "application/octet-stream"}
        with urllib.request.urlopen(urllib.request.Request(url, method=method, data=data, headers=headers)) as reply:
            return reply.read()

    def keys(self, prefix=""):
        """All keys of the bucket below a prefix."""
        text = self.ask("GET", f"?list-type=2&max-keys=1000&prefix={prefix}").decode()
        return [part.split("</Key>")[0] for part in text.split("<Key>")[1:]]

    def get(self, key):
        return self.ask("GET", f"/{key}")

    def put(self, key, data):
        self.ask("PUT", f"/{key}", data)

    def delete(self, key):
        self.ask("DELETE", f"/{key}")


@pytest.fixture(scope="session")
def prep_command(tmp_path_factory):
    from conftest import Prep

    return Prep(tmp_path_factory.mktemp("stores"))


@pytest.fixture
def store(prep_command, proxy, tmp_path, request):
    name = "b" + request.node.name.replace("_", "-").split("[")[0][-50:].strip("-")
    return Store(prep_command, proxy, tmp_path / "home", name)


def test_a_dataset_is_built_into_a_bucket_and_used_from_there(store, tmp_path):
    outcome = store.build("cifar10")
    assert outcome["status"] == "built"
    assert outcome["path"] == f"{store.catalog}/data/cifar10/{outcome['version']}"
    # The same bytes as on a local disk, and nothing else.
    local = Store(store.prep, store.proxy, tmp_path / "local", "unused-bucket")
    local.environment["PREP_CATALOG"] = str(tmp_path / "catalog")
    there = local.build("cifar10")
    assert there["fingerprint"] == outcome["fingerprint"]
    folder = pathlib.Path(there["path"])
    prefix = f"catalog/data/cifar10/{outcome['version']}/"
    names = sorted(path.name for path in folder.iterdir())
    assert sorted(store.keys(prefix)) == [prefix + name for name in names]
    for name in names:
        assert store.get(prefix + name) == (folder / name).read_bytes(), name
    assert not store.keys("catalog/data/.staging")
    assert not [key for key in store.keys("catalog/") if "probe" in key]
    # Again: nothing is written.
    store.proxy.counts()
    assert store.build("cifar10")["status"] == "up to date"
    assert not [request for request in store.proxy.counts() if request[0] != "GET" and request[0] != "HEAD"]
    # All commands by name.
    listed = store.json("list")
    assert [(row["name"], row["path"]) for row in listed] == [("cifar10", outcome["path"])]
    for name in ["cifar10", f"cifar10:{outcome['version']}", "cifar10@log=0"]:
        shown = store.json("show", name)[0]
        assert shown["features"]["label"]["num_classes"] == 10
        assert shown["fingerprint"] == outcome["fingerprint"]
    rows, wanted = (which.json("cat", "cifar10", "--split", "test", "--digest") for which in (store, local))
    assert rows == wanted and len(rows) == outcome["splits"]["test"]["examples"]
    orders = [which.run("load", "cifar10", "--batch", "7", "--seed", "3", "--indices").out for which in (store, local)]
    assert orders[0] == orders[1]
    store.run("load", "cifar10", "--batch", "7", "--seed", "3", "--threads", "2")
    reports = store.json("verify", "cifar10")
    assert all(report["ok"] for report in reports) and len(reports) == sum(s["shards"] for s in outcome["splits"].values()) + 3
    # Damage in the bucket is found.
    shard = prefix + next(name for name in names if "test" in name)
    data = bytearray(store.get(shard))
    data[len(data) // 2] ^= 0xFF
    store.put(shard, bytes(data))
    reports = store.json("verify", "cifar10", code=1)
    assert [report["ok"] for report in reports].count(False) == 1
    store.delete(shard)
    reports = store.json("verify", "cifar10", code=1)
    assert any("absent" in damage["reason"] for report in reports for damage in report["damaged"])


def test_sources_lie_in_a_bucket(store, tmp_path):
    """Patterns, folders and `--from` of a store give what the same files give in a folder."""
    data = tmp_path / "data"
    for name, count in [("train/a.jsonl", 40), ("train/b.jsonl", 0), ("train/ü b.jsonl", 3), ("test/a.jsonl", 5)]:
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'{{"id": {i}, "text": "{name} {i}"}}\n' for i in range(count)))
        store.put("raw/data/" + urllib.parse.quote(name), path.read_bytes())
    store.put("raw/data/.secret/x.jsonl", b"not JSON")
    recipe = """format = 1
name = "mine"
[[sources]]
%s
[reader]
kind = "jsonl"
[[splits]]
name = "train"
files = ["**train/*"]
[[splits]]
name = "test"
files = ["**test/*"]
"""
    # Forty small files that are rows share shards, and are fetched as sets.
    for number in range(40):
        path = data / "texts" / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"text {number}")
        store.put(f"raw/data/texts/{number}.txt", path.read_bytes())
    texts = 'format = 1\nname = "texts"\n[[sources]]\n%s\ngroup = 7\n[reader]\nkind = "text_files"\n'
    for text, pattern, listed in [(recipe, "data/t*/*.jsonl", "mine"), (texts, "data/texts", "texts")]:
        here, there = tmp_path / f"{listed}-here.toml", tmp_path / f"{listed}-there.toml"
        here.write_text(text % f'path = "{tmp_path}/{pattern}"')
        there.write_text(text % f'url = "s3://{store.bucket}/raw/{pattern}"')
        wanted = store.json("register", here, "--catalog", tmp_path / "catalog")[-1]
        found = store.json("register", there)[-1]
        assert (found["status"], found["fingerprint"]) == ("built", wanted["fingerprint"]), listed
        assert found["splits"] == wanted["splits"]
        rows = [store.run("lineage", listed, "--json", *more).out for more in ([], ["--catalog", tmp_path / "catalog"])]
        sources = [json.loads(row.splitlines()[0])["sources"] for row in rows]
        assert sources[0] == sources[1] and sources[0]
        assert store.json("register", there)[-1]["status"] == "up to date"
    # A changed object is told, and not taken for the same.
    store.put("raw/data/train/a.jsonl", b'{"id": 1, "text": "other"}\n')
    failed = store.run("register", tmp_path / "mine-there.toml", code=1)
    assert "was built from other sources" in failed.errors
    assert store.json("register", tmp_path / "mine-there.toml", "--overwrite")[-1]["status"] == "built"
    # What is not there, and a store that is not.
    (tmp_path / "none.toml").write_text(recipe % f'url = "s3://{store.bucket}/none/*.jsonl"')
    assert "no file of s3://" in store.run("register", tmp_path / "none.toml", code=1).errors
    # The archives of a built-in dataset.
    for path in (GOLDEN / "mnist").iterdir():
        store.put(f"archives/{path.name}", path.read_bytes())
    there = store.json("build", "mnist", "--from", f"s3://{store.bucket}/archives", "--no-checksum")[-1]
    assert there["status"] == "built"
    assert there["fingerprint"] == store.build("mnist", "--catalog", tmp_path / "catalog")["fingerprint"]
    failed = store.run("build", "cifar10", "--from", f"s3://{store.bucket}/archives", "--no-checksum", code=1)
    assert "does not have it" in failed.errors


def test_tags_removal_and_gc_in_a_bucket(store):
    version = store.build("mnist")["version"]
    assert store.json("tag", "mnist", "best")[0]["status"] == "tagged"
    assert store.json("tag", "mnist", "best")[0]["status"] == "up to date"
    assert store.json("show", "mnist@best")[0]["tags"] == [{"name": "best", "version": version}]
    # Another build of the same version: the old one is readable until the new one is in, and both folders are there.
    other = store.build("mnist", "--shards", "3", "--overwrite")
    assert other["path"].split("/")[-1].startswith(f"{version}-")
    assert store.json("show", "mnist@best")[0]["path"] == other["path"]
    assert store.build("mnist", "--shards", "3")["status"] == "up to date"
    old = f"catalog/data/mnist/{version}/"
    assert store.keys(old)
    planned = store.json("gc")
    assert [row["status"] for row in planned] == ["kept"] and "younger" in planned[0]["kept"]
    planned = store.json("gc", "--older-than", "0s")
    assert [row["status"] for row in planned] == ["garbage"]
    assert store.keys(old)
    deleted = store.json("gc", "--older-than", "0s", "--delete")
    assert [row["status"] for row in deleted] == ["deleted"] and deleted[0]["files"] == planned[0]["files"]
    assert not store.keys(old)
    assert store.json("gc", "--older-than", "0s") == []
    store.run("verify", "mnist")
    assert store.json("rm", "mnist@best")[0]["tags"] == ["best"]
    assert store.json("list") == []
    store.run("show", "mnist", code=1)
    # Built again before it is collected, it is in use again.
    again = store.build("mnist", "--shards", "3")
    assert again["status"] == "built"
    assert [row["status"] for row in store.json("gc", "--older-than", "0s", "--delete")] in ([], ["deleted"])
    store.run("verify", "mnist")
    # A folder that was collected is not used again, as somebody may still be deleting.
    store.run("rm", "mnist")
    store.run("gc", "--older-than", "0s", "--delete")
    last = store.build("mnist", "--shards", "3")
    assert last["path"] not in (other["path"], again["path"])
    store.run("verify", "mnist")


def test_versions_are_appended_and_updated_in_a_bucket(store, tmp_path):
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    recipe = folder / "mine.toml"
    recipe.write_text('format = 1\nname = "mine"\n[[sources]]\npath = "data"\n[reader]\nkind = "jsonl"\n')

    def put(name, numbers):
        (folder / "data" / name).write_text("".join(json.dumps({"id": n, "text": f"row {n}"}) + "\n" for n in numbers))

    def full(version):
        """The files of a full build, made on a local disk from the recipe that the version has kept."""
        (folder / "full.toml").write_bytes(store.get(f"catalog/data/mine/{version}/prep_recipe.toml"))
        catalog = tmp_path / f"full-{version}"
        store.run("register", folder / "full.toml", "-q", PREP_CATALOG=str(catalog))
        return {path.name: path.read_bytes() for path in (catalog / "data" / "mine" / version).iterdir()}

    for name in "abc":
        put(f"{name}.jsonl", range(30))
    store.run("register", recipe, "-q")
    put("b.jsonl", range(40))
    put("d.jsonl", range(5))
    store.proxy.counts()
    done = store.json("update", recipe)[-1]
    assert (done["version"], done["records_written"], done["shards_taken_over"]) == ("1.0.1", 45, 2)
    # The store has copied what was there: no shard of it was fetched.
    requests = store.proxy.counts()
    fetched = [path for method, path, *_ in requests if method == "GET" and "/1.0.0/mine-train" in path]
    assert not fetched, fetched
    wanted = full("1.0.1")
    prefix = "catalog/data/mine/1.0.1/"
    assert sorted(store.keys(prefix)) == sorted(prefix + name for name in wanted)
    for name, content in wanted.items():
        assert store.get(prefix + name) == content, name
    assert store.json("update", recipe)[-1]["status"] == "up to date"
    # More of them, twice; and the one between goes.
    put("e.jsonl", range(7))
    done = store.json("append", "mine", recipe)[-1]
    assert (done["version"], done["records_read"], done["records_written"]) == ("1.1.0", 14, 7)
    put("f.jsonl", range(3))
    assert store.json("append", "mine", recipe)[-1]["version"] == "1.2.0"
    rows = store.json("cat", "mine", "--digest")
    assert len(rows) == 30 + 40 + 30 + 5 + 7 + 3
    store.run("rm", "mine:1.1.0")
    store.run("rm", "mine:1.0.1")
    store.run("gc", "--older-than", "0s", "--delete")
    assert store.json("cat", "mine", "--digest") == rows
    store.run("verify", "mine")
    store.run("load", "mine", "--batch", "7", "--seed", "3")
    store.run("diff", "mine:1.0.0", "mine")
    assert store.json("lineage", "mine")[0]["kind"] == "append"
    # An update of it needs nobody.
    put("a.jsonl", range(1))
    done = store.json("update", recipe)[-1]
    assert (done["version"], done["records_written"]) == ("1.2.1", 1)
    store.run("rm", "mine:1.2.0")
    store.run("gc", "--older-than", "0s", "--delete")
    store.run("verify", "mine")
    wanted = full("1.2.1")
    for name, content in wanted.items():
        assert store.get(f"catalog/data/mine/1.2.1/{name}") == content, name


def put_rows(path, numbers):
    path.write_text("".join(json.dumps({"id": n, "text": f"row {n}"}) + "\n" for n in numbers))
    return path


def test_what_a_killed_append_has_left_in_a_bucket_is_in_nobodys_way(store, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('format = 1\nname = "mine"\n[[sources]]\npath = "a.jsonl"\n[reader]\nkind = "jsonl"\n')
    put_rows(tmp_path / "a.jsonl", range(30))
    store.run("register", recipe, "-q")

    def kill(home, source):
        """Kills an append when all is in the bucket but the entry."""
        sign = tmp_path / "sign"
        job = store.start("append", "mine", "--source", source, PREP_HOME=home, PREP_TEST_FAULT=f"hold@commit:1:{sign}")
        while not sign.exists():
            assert job.poll() is None, job.communicate()
            time.sleep(0.01)
        job.kill()
        job.communicate()
        sign.unlink()

    homes = [tmp_path / name for name in ["one", "two"]]
    b, c = (put_rows(tmp_path / f"{name}.jsonl", range(start, start + 5)) for name, start in [("b", 100), ("c", 200)])
    kill(homes[0], b)
    left = store.keys("catalog/data/mine/1.1.0/")
    assert any(key.endswith("prep_manifest.json") for key in left)
    # Another job, of another machine.
    done = store.json("append", "mine", "--source", c, PREP_HOME=homes[1])[-1]
    assert (done["status"], done["version"], done["records_written"]) == ("built", "1.1.0", 5)
    assert "1.1.0-" in done["path"] and store.keys("catalog/data/mine/1.1.0/") == left
    store.run("verify", "mine")
    # The first one again: behind that one.
    done = store.json("append", "mine", "--source", b, PREP_HOME=homes[0])[-1]
    assert (done["status"], done["version"], done["records_written"]) == ("built", "1.2.0", 5)
    assert len(store.json("cat", "mine", "--digest")) == 40
    # The same job takes what it has sent.
    d = put_rows(tmp_path / "d.jsonl", range(300, 305))
    kill(homes[0], d)
    store.proxy.counts()
    done = store.json("append", "mine", "--source", d, PREP_HOME=homes[0])[-1]
    assert (done["status"], done["version"]) == ("built", "1.3.0") and done["path"].endswith("/mine/1.3.0")
    assert not [path for method, path in store.proxy.counts() if method == "PUT" and "mine-train" in path]
    # What is left is whole, and may be about to be committed for all that anybody knows: for an hour.
    found = [item for item in store.json("gc", "--older-than", "0s") if item["path"].endswith("/mine/1.1.0")]
    assert [(item["status"], item["kind"]) for item in found] == [("kept", "upload")]
    assert "about to tell the log" in found[0]["kept"]
    store.put("catalog/data/.probe-left", b"first")
    store.put("catalog/.probe-left", b"first")
    store.run("gc", "--older-than", "0s", "--delete")
    assert not [key for key in store.keys("") if ".probe-" in key]
    store.run("verify", "mine")


def test_an_append_sees_that_an_object_of_a_known_name_has_another_size(store, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'format = 1\nname = "mine"\n[[sources]]\nurl = "s3://{store.bucket}/raw/*.jsonl"\n[reader]\nkind = "jsonl"\n'
    )
    rows = put_rows(tmp_path / "rows", range(5)).read_bytes()
    for name in ["a", "b c"]:
        store.put(f"raw/{urllib.parse.quote(name)}.jsonl", rows)
    store.run("register", recipe, "-q")
    assert store.json("append", "mine", recipe)[-1]["status"] == "up to date"
    store.put("raw/c.jsonl", rows)
    assert store.json("append", "mine", recipe)[-1]["records_written"] == 5
    store.put("raw/a.jsonl", rows + rows)
    failed = store.run("append", "mine", recipe, code=1)
    assert "raw/a.jsonl has another content" in failed.errors and f"{2 * len(rows)} bytes" in failed.errors
    assert "prep update" in failed.errors
    # An object which the kept recipe stands for is not added under another name.
    store.put("raw/d.jsonl", rows)
    failed = store.run("append", "mine", "--source", f"s3://{store.bucket}/raw/d.jsonl", code=1)
    assert "would have the file twice" in failed.errors


def test_of_two_appends_at_once_into_a_bucket_nothing_is_lost(store, tmp_path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text('format = 1\nname = "mine"\n[[sources]]\npath = "a.jsonl"\n[reader]\nkind = "jsonl"\n')
    put_rows(tmp_path / "a.jsonl", range(30))
    store.run("register", recipe, "-q")
    for round in range(3):
        jobs = []
        for writer in range(2):
            number = 100 * (2 * round + writer + 1)
            source = put_rows(tmp_path / f"s{number}.jsonl", range(number, number + 5))
            jobs.append(store.start("append", "mine", "--source", source, "--json", PREP_HOME=tmp_path / f"home-{writer}"))
        ended = [(job.communicate(), job.returncode) for job in jobs]
        assert [code for _, code in ended] == [0, 0], ended
        done = [json.loads(out.splitlines()[-1]) for (out, _), _ in ended]
        assert sorted(one["version"] for one in done) == [f"1.{2 * round + 1}.0", f"1.{2 * round + 2}.0"]
        store.run("verify", "mine", "-q")
        assert len(store.json("cat", "mine", "--digest")) == 30 + 10 * (round + 1)
    assert len(store.json("list")) == 7
    # Nothing of a loser's first try is in the way, or left for long.
    store.run("gc", "--older-than", "0s", "--delete")
    for version in range(1, 7):
        store.run("verify", f"mine:1.{version}.0", "-q")


def test_sixteen_writers_at_once_all_land(store):
    version = store.build("mnist")["version"]
    for lost in [0.0, 0.2]:
        store.proxy.lost_replies = lost
        before = len(store.keys("catalog/log/mnist/"))
        writers = [store.start("tag", f"mnist:{version}", f"w{lost}-{writer}", "--json") for writer in range(WRITERS)]
        seen = set()
        for writer in writers:
            out, errors = writer.communicate()
            assert writer.returncode == 0, errors
            seen.add(json.loads(out)["log"])
        store.proxy.lost_replies = 0.0
        assert seen == set(range(before, before + WRITERS))
    tags = {tag["name"] for tag in store.json("show", "mnist")[0]["tags"]}
    assert tags == {f"w{lost}-{writer}" for lost in [0.0, 0.2] for writer in range(WRITERS)}
    # Each entry is whole, and numbers have no gap.
    keys = sorted(key for key in store.keys("catalog/log/mnist/"))
    assert [int(key.split("/")[-1].removesuffix(".json")) for key in keys] == list(range(2 * WRITERS + 1))
    for key in keys:
        json.loads(store.get(key))


def test_killed_writers_leave_a_catalog_that_can_be_read_and_written(store):
    version = store.build("mnist")["version"]
    for round in range(8):
        writer = store.start("tag", f"mnist:{version}", f"k{round}")
        time.sleep(0.02 * round)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        store.run("show", "mnist")
    assert store.json("tag", "mnist", "after")[0]["status"] == "tagged"
    assert store.json("show", "mnist@after")[0]["version"] == version


def test_a_killed_upload_leaves_nothing_readable_and_is_finished_by_the_same_command(store):
    wanted = store.build("cifar10", "--data-dir", f"s3://{store.bucket}/first")
    first = {key.split("/")[-1]: store.get(key) for key in store.keys("first/cifar10/")}
    arguments = ["build", "cifar10", "--from", GOLDEN / "cifar10", "--no-checksum"]
    arguments += ["--data-dir", f"s3://{store.bucket}/second", "--catalog", f"s3://{store.bucket}/second-catalog"]
    done = False
    for round in range(40):
        store.proxy.counts()
        writer = store.start(*arguments)
        # Killed after so many puts.
        while writer.poll() is None:
            puts = [path for method, path in store.proxy.requests if method == "PUT" and "second/cifar10" in path]
            if len(puts) > round % 4:
                break
            time.sleep(0.002)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        if writer.returncode == 0:
            done = True
            break
        listed = store.json("list", "--catalog", f"s3://{store.bucket}/second-catalog")
        if listed:
            break
    outcome = store.json(*arguments)[-1]
    assert outcome["status"] in ("built", "up to date") and (not done or outcome["status"] == "up to date")
    second = {key.split("/")[-1]: store.get(key) for key in store.keys("second/cifar10/")}
    assert second == first and outcome["fingerprint"] in ("", wanted["fingerprint"])
    store.run("verify", "cifar10", "--catalog", f"s3://{store.bucket}/second-catalog")
    store.run("gc", "--older-than", "0s", "--delete", "--catalog", f"s3://{store.bucket}/second-catalog",
              "--data-dir", f"s3://{store.bucket}/second")
    assert not store.keys("second/.staging")
    assert {key.split("/")[-1] for key in store.keys("second/cifar10/")} == set(first)


def test_a_store_without_conditions_and_one_that_cannot_be_written_are_refused_before_any_work(store, tmp_path):
    store.proxy.ignores_conditions = True
    # moto looks by itself, if loosely; a store that does not is this proxy without the header.
    failed = store.run("build", "mnist", "--from", GOLDEN / "mnist", "--no-checksum", code=1)
    assert "cannot be written safely" in failed.errors and "hint:" in failed.errors
    assert not store.keys("")
    # The data may lie there, with a catalog elsewhere: folders have the hash of their content in their names then.
    outcome = store.build("mnist", "--data-dir", f"s3://{store.bucket}/data", "--catalog", tmp_path / "catalog")
    assert outcome["status"] == "built" and f"{outcome['version']}-" in outcome["path"]
    store.run("verify", "mnist", "--catalog", tmp_path / "catalog")
    store.proxy.ignores_conditions = False
    for place in ["--catalog", "--data-dir"]:
        store.proxy.counts()
        failed = store.run(
            "build", "mnist", "--from", GOLDEN / "mnist", "--no-checksum", place, "s3://no-such-bucket/x", code=1
        )
        assert "no-such-bucket" in failed.errors
        assert len(store.proxy.counts()) < 20
        # A web server can only be read.
        failed = store.run(
            "build", "mnist", "--from", GOLDEN / "mnist", "--no-checksum", place, f"{store.proxy.url}/x", code=1
        )
        assert "can only be read" in failed.errors


CONVERT = ["convert", GOLDEN / "tfrecord" / "mixed_none.tfrecord", GOLDEN / "tfrecord" / "mixed_gzip.tfrecord.gz"]


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def objects_below(store, prefix):
    return {key.removeprefix(prefix): store.get(key) for key in store.keys(prefix)}


def test_conversions_and_exports_go_into_a_bucket(store, tmp_path):
    out = f"s3://{store.bucket}/out"
    outcome = store.json(*CONVERT, out, "--shards", "3")[-1]
    assert (outcome["status"], outcome["path"]) == ("converted", out)
    store.run(*CONVERT, tmp_path / "out", "--shards", "3")
    wanted = files_below(tmp_path / "out")
    assert objects_below(store, "out/") == wanted and len(wanted) == 4
    assert sorted(store.keys("")) == sorted(f"out/{name}" for name in wanted)
    assert not [path for path in (tmp_path / "home").rglob("*") if "remote" in path.parts and path.is_file()]
    # Again: nothing is written. A slash at the end is nothing else.
    store.proxy.counts()
    assert store.json(*CONVERT, out + "/", "--shards", "3")[-1]["status"] == "up to date"
    assert not [request for request in store.proxy.counts() if request[0] not in ("GET", "HEAD")]
    failed = store.run(*CONVERT, out, "--shards", "2", code=1)
    assert "with other options" in failed.errors and "--overwrite" in failed.errors
    store.run(*CONVERT, out, "--shards", "2", "--overwrite")
    store.run(*CONVERT, tmp_path / "two", "--shards", "2")
    assert objects_below(store, "out/") == files_below(tmp_path / "two")
    # The output is an input like any other, but not of itself.
    store.run("convert", f"{out}/data.array_record-*", tmp_path / "back")
    failed = store.run("convert", f"{out}/data.array_record-*", out, "--overwrite", code=1)
    assert "lies in the output" in failed.errors
    # Somebody else's objects are never replaced, and a store that cannot be written is told before the work.
    store.put("mine/thesis.tex", b"x")
    for more in [[], ["--overwrite"]]:
        failed = store.run(*CONVERT, f"s3://{store.bucket}/mine", *more, code=1)
        assert "it has `thesis.tex`" in failed.errors
    assert store.keys("mine/") == ["mine/thesis.tex"]
    for place, said in [("s3://no-such-bucket/x", "no-such-bucket"), (f"{store.proxy.url}/x", "can only be read"),
                        (f"s3://{store.bucket}", "folder of its own")]:
        assert said in store.run(*CONVERT, place, code=1).errors
    store.proxy.ignores_conditions = True
    assert "cannot be written safely" in store.run(*CONVERT, f"s3://{store.bucket}/unsafe", code=1).errors
    store.proxy.ignores_conditions = False
    assert not store.keys("unsafe") and not store.keys(".staging")
    # Exports likewise.
    store.build("cifar10")
    for form, place in [("--tfds", "data"), ("--parquet", "table")]:
        url = f"s3://{store.bucket}/{place}"
        outcome = store.json("export", "cifar10", url, form, "--shards", "2")[-1]
        store.run("export", "cifar10", tmp_path / place, form, "--shards", "2")
        assert objects_below(store, f"{place}/") == files_below(tmp_path / place)
        assert outcome["path"].startswith(url) and outcome["splits"]["train"]["shards"] == 2
        assert store.json("export", "cifar10", url, form, "--shards", "2")[-1]["status"] == "up to date"
        assert "other options" in store.run("export", "cifar10", url, form, code=1).errors
    # Without options the shards come from the store as they are.
    store.run("export", "cifar10", tmp_path / "direct", "--tfds")
    version = next((tmp_path / "direct" / "cifar10").iterdir())
    for path in version.glob("*array_record*"):
        assert path.read_bytes() == store.get(f"catalog/data/cifar10/{version.name}/{path.name}")
    assert not [key for key in store.keys("") if ".staging/" in key]


def test_a_conversion_in_a_bucket_is_registered(store):
    # Records of one schema, from a dataset's shards.
    version = store.build("mnist")["version"]
    source = f"{store.catalog}/data/mnist/{version}/mnist-test.array_record-*"
    out = f"s3://{store.bucket}/out"
    command = ["convert", source, out, "--name", "mixed", "--catalog", store.catalog]
    outcome = store.json(*command)[-1]
    assert outcome["log"] == 0
    assert store.json("show", "mixed")[0]["path"] == out
    store.run("verify", "mixed")
    store.run("load", "mixed", "--batches", "1", "--batch", "8")
    assert store.json(*command)[-1]["status"] == "up to date"
    # Who has opened it reads on: it is not replaced in its place.
    failed = store.run(*command, "--shards", "2", "--overwrite", code=1)
    assert "give another output" in failed.errors
    store.run("verify", "mixed")


def test_killed_conversions_into_a_bucket_are_not_seen_and_finished_by_the_same_command(store, tmp_path):
    store.run(*CONVERT, tmp_path / "whole", "--shards", "6")
    whole = files_below(tmp_path / "whole")
    command = [*CONVERT, f"s3://{store.bucket}/out", "--shards", "6"]
    killed = 0
    for round in range(12):
        store.proxy.counts()
        writer = store.start(*command)
        # Killed after so many puts: the tries of the store, the claim, files, the mark.
        while writer.poll() is None:
            with store.proxy.guard:
                puts = sum(method == "PUT" for method, _ in store.proxy.requests)
            if puts > round:
                break
            time.sleep(0.002)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        killed += writer.returncode != 0
        there = objects_below(store, "out/")
        if "prep_convert.json" in there:
            assert there == whole
        elif there:
            # Another conversion does not mix with what is left of it.
            failed = store.run(*CONVERT, f"s3://{store.bucket}/out", "--shards", "5", code=1)
            now = objects_below(store, "out/")
            # The last put of the killed one may have come in only after its end: then it is whole.
            came_late = "prep_convert.json" in now and now == whole
            assert came_late or "was killed" in failed.errors, failed.errors
            assert now.keys() <= whole.keys()
    assert killed > 2
    assert store.json(*command)[-1]["status"] in ("converted", "up to date")
    assert objects_below(store, "out/") == whole
    # What is left of a killed one is taken over only if asked.
    store.put(".staging/other/claim.json", json.dumps({"format": 1, "mark_sha256": "ab" * 32, "files": ["old"]}).encode())
    store.put("other/old", b"half")
    assert "was killed" in store.run(*CONVERT, f"s3://{store.bucket}/other", "--shards", "6", code=1).errors
    store.run(*CONVERT, f"s3://{store.bucket}/other", "--shards", "6", "--overwrite")
    assert objects_below(store, "other/") == whole and not store.keys(".staging/other")


def test_a_catalog_is_read_from_a_web_server(store, tmp_path):
    """A local catalog, moved, served as files: names resolve, and content keeps its fingerprint."""
    catalog = tmp_path / "catalog"
    outcome = store.build("mnist", "--catalog", catalog)
    for number in range(20):
        store.run("tag", "mnist", f"t{number}", "--catalog", catalog)
    moved = tmp_path / "moved"
    shutil.move(catalog, moved)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def send_head(self):
            # With ranges, which the library's handler lacks.
            path = pathlib.Path(self.translate_path(self.path))
            asked = self.headers.get("Range", "")
            if not path.is_file():
                self.send_error(404)
                return None
            data, status = path.read_bytes(), 200
            size = len(data)
            if asked.startswith("bytes="):
                first, _, last = asked[6:].partition("-")
                start = max(0, size - int(last)) if not first else int(first)
                end = size if not first or not last else min(size, int(last) + 1)
                data, status = data[start:end], 206
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
            self.end_headers()
            return io.BytesIO(data)

    class Server(http.server.ThreadingHTTPServer):
        # Of five, as is usual, a burst of connections loses some, which are tried again after a second.
        request_queue_size = 64

    handler = functools.partial(Quiet, directory=str(moved))
    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        for name in ["mnist", "mnist@t19", "mnist@log=3", f"mnist:{outcome['version']}"]:
            assert store.json("show", name, "--catalog", url)[0]["fingerprint"] == outcome["fingerprint"]
        rows = store.json("cat", "mnist", "--split", "test", "--digest", "--catalog", url)
        assert rows == store.json("cat", "mnist", "--split", "test", "--digest", "--catalog", moved)
        store.run("verify", "mnist", "--catalog", url)
        store.run("load", "mnist", "--batch", "8", "--catalog", url)
        failed = store.run("list", "--catalog", url, code=1)
        assert "ask for a dataset by its name" in failed.errors
        failed = store.run("tag", "mnist", "x", "--catalog", url, code=1)
        assert "can only be read" in failed.errors
        failed = store.run("show", "minst", "--catalog", url, code=1)
        assert "no dataset `minst`" in failed.errors
    finally:
        server.shutdown()
        server.server_close()


def test_a_name_costs_a_handful_of_requests(store):
    version = store.build("mnist")["version"]
    for number in range(24):
        store.run("tag", f"mnist:{version}", f"t{number}")
    store.proxy.counts()
    store.run("load", "mnist", "--batches", "1", "--batch", "4")
    requests = store.proxy.counts()
    catalog = [path for _, path in requests if "/log/" in path or "/checkpoints/" in path or path.endswith("prep.json")]
    assert len(catalog) <= 12, catalog
    assert not [path for _, path in requests if "list-type" in path], requests


def test_google_cloud_storage_by_the_protocol_that_it_shares(store, tmp_path):
    """No emulator speaks Google's XML API with its conditions (CATALOG.md has what was tried): the S3 server does, where the proxy translates them."""
    for name in [name for name in store.environment if name.startswith("AWS_")]:
        del store.environment[name]
    store.environment |= {
        "GOOGLE_BASE_URL": store.proxy.url,
        "GOOGLE_ALLOW_HTTP": "true",
        "GOOGLE_BEARER_TOKEN": "a-secret-that-is-not-to-be-shown",
        "PREP_CATALOG": f"gs://{store.bucket}/catalog",
    }
    outcome = store.build("mnist")
    assert outcome["path"] == f"gs://{store.bucket}/catalog/data/mnist/{outcome['version']}"
    assert store.build("mnist")["status"] == "up to date"
    writers = [store.start("tag", "mnist", f"w{writer}") for writer in range(8)]
    for writer in writers:
        _, errors = writer.communicate()
        assert writer.returncode == 0, errors
    assert len(store.json("show", "mnist")[0]["tags"]) == 8
    keys = sorted(store.keys("catalog/log/mnist/"))
    assert [int(key.split("/")[-1].removesuffix(".json")) for key in keys] == list(range(9))
    assert all(report["ok"] for report in store.json("verify", "mnist"))
    store.run("load", "mnist", "--batch", "16", "--seed", "1")
    # More than one part of an upload, as shards are padded little: 20 MB of records.
    large = tmp_path / "large.tfrecord"
    store.run("export", "mnist", tmp_path / "tfds", "--tfds", "--file-format", "tfrecord")
    one = next((tmp_path / "tfds" / "mnist" / outcome["version"]).glob("*train.tfrecord-*")).read_bytes()
    large.write_bytes(one * (20_000_000 // len(one)))
    store.run("convert", large, f"gs://{store.bucket}/out", "--options", "uncompressed", "--shards", "1")
    assert [request for request in store.proxy.counts() if request[0] == "POST" and "uploadId" in request[1]]
    store.run("convert", large, tmp_path / "out", "--options", "uncompressed", "--shards", "1")
    assert objects_below(store, "out/") == files_below(tmp_path / "out")
    store.proxy.ignores_conditions = True
    failed = store.run("convert", large, f"gs://{store.bucket}/unsafe", code=1)
    assert "cannot be written safely" in failed.errors
    store.proxy.ignores_conditions = False
    store.run("rm", "mnist")
    store.run("gc", "--older-than", "0s", "--delete")
    assert not store.keys("catalog/data/")


AZURITE = "azurite@3.37.0"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def put_container(url, name):
    """Makes a container, signed with azurite's published key."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    signed = "PUT\n\n\n\n\n\n\n\n\n\n\n\n" + "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
    signed += f"/devstoreaccount1/devstoreaccount1/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey devstoreaccount1:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    urllib.request.urlopen(urllib.request.Request(f"{url}/{name}?restype=container", method="PUT", headers=headers))


def test_azure_by_its_emulator(prep_command, tmp_path):
    """azurite comes from npm; without npm, or where it cannot be installed, this is left out."""
    npm = shutil.which("npm")
    if not npm:
        pytest.skip("needs npm")
    place = pathlib.Path(__file__).resolve().parent.parent.parent / "target" / "azurite"
    program = place / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        # Once for a tree, half a minute: 360 MB of packages, as azurite brings the drivers of databases that it could keep its tables in.
        command = [npm, "install", "--prefer-offline", "--no-audit", "--no-fund", "--silent", "--prefix", place, AZURITE]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("npm cannot install azurite")
    port = free_port()
    server = subprocess.Popen(
        [program, "--blobPort", str(port), "--inMemoryPersistence", "--disableTelemetry", "--silent", "--skipApiVersionCheck"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(port, server)
        url = f"http://127.0.0.1:{port}/devstoreaccount1"
        put_container(url, "team")
        environment = {
            **prep_command.environment,
            "PREP_HOME": str(tmp_path / "home"),
            "PREP_CATALOG": "az://team/catalog",
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
        }

        def run(*arguments, code=0):
            command = [prep_command.binary, *map(str, arguments)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == code, f"{arguments}: {done.stdout[-1000:]}\n{done.stderr[-3000:]}"
            return done.stdout

        run("build", "mnist", "--from", GOLDEN / "mnist", "--no-checksum")
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda writer: run("tag", "mnist", f"w{writer}"), range(6)))
        assert len(json.loads(run("show", "mnist", "--json"))["tags"]) == 6
        run("verify", "mnist")
        run("load", "mnist", "--batch", "16")
        run("rm", "mnist")
        run("gc", "--older-than", "0s", "--delete")
        run("show", "mnist", code=1)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def test_files_in_a_bucket_are_registered_in_place(store, tmp_path):
    """TFRecord and ArrayRecord files in S3: registered where they lie, read from there, in a catalog there or here; never deleted."""
    local = ["--catalog", tmp_path / "catalog"]
    version = store.build("mnist", *local)["version"]
    folders = {}
    for form in ["tfrecord", "array_record"]:
        arguments = ["export", "mnist", tmp_path / form, "--tfds", "--shards", "3", "--file-format", form]
        store.run(*arguments, *local)
        folders[form] = tmp_path / form / "mnist" / version
        for path in folders[form].iterdir():
            store.put(f"raw/{form}/{path.name}", path.read_bytes())
    # One that lies in the catalog itself, and so moves with it.
    inside = next(path for path in folders["tfrecord"].iterdir() if "train.tfrecord-00001" in path.name)
    store.put("catalog/raw/part.tfrecord", inside.read_bytes())
    before = {key: store.get(key) for key in store.keys("raw/")}

    def register(name, url, kind, *arguments, more="", code=0):
        recipe = tmp_path / f"{name}.toml"
        recipe.write_text(f'format = 1\nname = "{name}"\n[[sources]]\nurl = "{url}"\n[reader]\nkind = "{kind}"\n{more}')
        return store.run("register", recipe, "--in-place", "-q", *arguments, code=code)

    features = (
        '[features.image]\nkind = "image"\nshape = [28, 28, 1]\n[features.label]\nkind = "class_label"\nnum_classes = 10\n'
        '[[splits]]\nname = "train"\nfiles = ["**/*-train.*"]\n[[splits]]\nname = "test"\nfiles = ["**/*-test.*"]\n'
    )
    raw = f"s3://{store.bucket}/raw"
    wanted = store.json("show", "mnist", *local)[0]["fingerprint"]
    for catalog in [[], local]:
        register("tf", f"{raw}/tfrecord", "tfds", *catalog)
        register("ar", f"{raw}/array_record", "tfds", *catalog)
        register("files", f"{raw}/tfrecord/*.tfrecord-*", "tfrecord", *catalog, more=features)
        for name in ["tf", "ar", "files"]:
            assert store.json("show", name, *catalog)[0]["fingerprint"] == wanted, name
            for split in ["train", "test"]:
                rows = store.json("cat", name, "--split", split, "--digest", *catalog)
                assert rows == store.json("cat", "mnist", "--split", split, "--digest", *local)
            orders = [store.run("load", which, "--batch", "7", "--seed", "3", "--indices", *at).out
                      for which, at in [(name, catalog), ("mnist", local)]]
            assert orders[0] == orders[1]
            store.proxy.counts()
            store.run("load", name, "--batch", "32", "--seed", "1", *catalog)
            gets = [path for method, path in store.proxy.counts() if method == "GET" and "/raw/" in path]
            # Not one for each of 120 records.
            assert 0 < len(gets) <= 40, gets
            assert all(report["ok"] for report in store.json("verify", name, *catalog))
    register("inside", f"{store.catalog}/raw/part.tfrecord", "tfrecord", more=features.split("[[splits]]")[0])
    manifest = json.loads(store.get("catalog/data/inside/1.0.0/prep_manifest.json"))
    assert manifest["in_place"] and manifest["splits"][0]["shards"][0]["path"] == "../../../raw/part.tfrecord"
    assert len(store.json("cat", "inside")) == 40
    # A file that is put anew with other bytes is named.
    key = f"raw/tfrecord/{inside.name}"
    store.put(key, before[key][:-20])
    for name in ["tf", "files"]:
        failed = store.run("load", name, "--batch", "32", code=1)
        assert key in failed.errors and "register it again" in failed.errors
        assert [report["ok"] for report in store.json("verify", name, code=1)].count(False) == 1
    store.put(key, before[key])
    for name in ["tf", "files"]:
        store.run("rm", name)
    store.run("gc", "--older-than", "0s", "--delete")
    assert not store.keys("catalog/data/tf/") and not store.keys("catalog/data/files/")
    assert store.keys("catalog/data/ar/")
    assert {key: store.get(key) for key in store.keys("raw/")} == before
    failed = register("none", f"{raw}/*.nothing", "tfrecord", code=1)
    assert "fits `*.nothing`" in failed.errors


def test_a_folder_in_a_bucket_is_an_input_as_a_local_one_is(store, tmp_path):
    local, bucket = tmp_path / "in put", f"s3://{store.bucket}/in put"
    local.mkdir()
    for name, source in [("b 50%41.tfrecord", "mixed_none.tfrecord"), ("a.tfrecord.gz", "mixed_gzip.tfrecord.gz")]:
        data = (GOLDEN / "tfrecord" / source).read_bytes()
        (local / name).write_bytes(data)
        store.put(urllib.parse.quote(f"in put/{name}"), data)
    for name in ["notes.txt", "a.tfrecord.index", "deeper/c.tfrecord"]:
        store.put(urllib.parse.quote(f"in put/{name}"), b"no")
    store.run("convert", local, tmp_path / "wanted")
    wanted = files_below(tmp_path / "wanted")
    for index, inputs in enumerate(
        [
            [bucket],
            [bucket + "/"],
            [bucket.replace(" ", "%20")],
            # An object's name is written as addresses have it, and stands in a pattern as it is.
            [f"{bucket}/a.tfrecord.gz", f"{bucket}/b 50%2541.tfrecord"],
            [f"{bucket}/a.*.gz", f"{bucket}/b 50%41*"],
        ]
    ):
        store.run("convert", *inputs, tmp_path / f"out {index}")
        assert {name: data for name, data in files_below(tmp_path / f"out {index}").items() if "prep_" not in name} == {
            name: data for name, data in wanted.items() if "prep_" not in name
        }
    # What is not there is told without the store's own words.
    failed = store.run("convert", f"s3://{store.bucket}/in%20pot", tmp_path / "none", code=1)
    assert "neither an object nor a folder" in failed.errors and "<?xml" not in failed.errors
    for command in [["convert", "s3://no-such-bucket/x", tmp_path / "none"], ["build", "mnist", "--from", "s3://no-such-bucket/x"]]:
        failed = store.run(*command, code=1)
        assert "there is no bucket `no-such-bucket`" in failed.errors and "<?xml" not in failed.errors
    assert f"there is nothing below s3://{store.bucket}/x" in store.run("build", "mnist", "--from", f"s3://{store.bucket}/x", code=1).errors
    # A folder of TFDS's has splits, which would be mixed.
    for name in ["dataset_info.json", "features.json"]:
        store.put(urllib.parse.quote(f"in put/{name}"), b"{}")
    assert "is a TFDS folder" in store.run("convert", bucket, tmp_path / "none", code=1).errors
