//! `prep cat`, `prep verify` and `prep inspect` of record files.

use std::fs;
use std::path::{Path, PathBuf};

use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::tfrecord;
use prep_testing::{Prep, golden_path, temp_dir};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Twenty records of 1 to 20 bytes.
fn records() -> Vec<Vec<u8>> {
    (0..20u8).map(|i| vec![i; usize::from(i) + 1]).collect()
}

fn array_record(options: &str) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
    for record in records() {
        writer.write(&record).unwrap();
    }
    writer.finish().unwrap()
}

fn tf_record(compression: tfrecord::Compression) -> Vec<u8> {
    let mut writer = tfrecord::Writer::new(Vec::new(), compression).unwrap();
    for record in records() {
        writer.write(&record).unwrap();
    }
    writer.finish().unwrap()
}

fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// A file of chunks of three, with a flipped bit in the data of the chunk with records 9, 10, 11.
fn damaged(folder: &Path) -> PathBuf {
    let mut bytes = array_record("uncompressed,group_size:3");
    let at = bytes.windows(10).position(|window| window == [9; 10]).unwrap();
    bytes[at] ^= 1;
    put(folder, "damaged.array_record", &bytes)
}

fn arguments<'a>(command: &'a str, path: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec![command, path.to_str().unwrap()];
    arguments.extend(more);
    arguments
}

#[test]
fn cat_prints_what_was_written_whatever_the_format() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let files = [
        put(
            folder.path(),
            "a.array_record",
            &array_record("zstd:3,group_size:7"),
        ),
        put(folder.path(), "b.array_record", &array_record("uncompressed")),
        put(
            folder.path(),
            "c.tfrecord",
            &tf_record(tfrecord::Compression::Plain),
        ),
        put(
            folder.path(),
            "d.tfrecord",
            &tf_record(tfrecord::Compression::Gzip),
        ),
    ];
    for path in &files {
        let lines = prep
            .run(arguments(
                "cat",
                path,
                &["--records", "2..5", "--json", "--digest"],
            ))
            .expect(0)
            .json();
        let expected: Vec<Value> = (2..5)
            .map(|i| {
                let record = &records()[i];
                json!({"index": i, "length": record.len(), "sha256": hex::encode(Sha256::digest(record))})
            })
            .collect();
        assert_eq!(lines, expected, "{}", path.display());
        let lines = prep
            .run(arguments("cat", path, &["--records", "1..2", "--json"]))
            .expect(0)
            .json();
        assert_eq!(lines, [json!({"index": 1, "bytes": "AQE="})]);
        assert_eq!(
            prep.run(arguments("cat", path, &["--json"]))
                .expect(0)
                .json()
                .len(),
            20
        );
        let raw = prep
            .run(arguments("cat", path, &["--records", "1..3", "--raw"]))
            .expect(0);
        assert_eq!(raw.stdout.as_bytes(), [1, 1, 2, 2, 2]);
        for (range, code) in [("3..2", 2), ("3", 2), ("a..b", 2), ("0..21", 1), ("21..", 1)] {
            let run = prep
                .run(arguments("cat", path, &["--records", range]))
                .expect(code);
            assert!(
                run.stderr.contains(&format!("`--records {range}`")),
                "{}",
                run.stderr
            );
        }
    }
}

#[test]
fn cat_stops_at_damage_or_says_what_it_leaves_out() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let path = damaged(folder.path());
    let run = prep.run(arguments("cat", &path, &["--json"])).expect(1);
    assert_eq!(run.json().len(), 9);
    assert!(
        run.stderr.contains("record 9, byte ") && run.stderr.contains("--on-error skip"),
        "{}",
        run.stderr
    );

    let run = prep
        .run(arguments("cat", &path, &["--json", "--on-error", "skip"]))
        .expect(3);
    let lines = run.json();
    assert_eq!(lines.len(), 20);
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line["index"], i);
        assert_eq!(line["error"].is_string(), (9..12).contains(&i), "{line}");
    }
    // Outside of the damage nothing is left out.
    prep.run(arguments(
        "cat",
        &path,
        &["--json", "--on-error", "skip", "--records", "12..20"],
    ))
    .expect(0);
    prep.run(arguments("cat", &path, &["--on-error", "ignore"]))
        .expect(2);

    let mut bytes = tf_record(tfrecord::Compression::Plain);
    let at = bytes.windows(10).position(|window| window == [9; 10]).unwrap();
    bytes[at] ^= 1;
    let path = put(folder.path(), "damaged.tfrecord", &bytes);
    assert_eq!(
        prep.run(arguments("cat", &path, &["--json"]))
            .expect(1)
            .json()
            .len(),
        9
    );
    let lines = prep
        .run(arguments("cat", &path, &["--json", "--on-error", "skip"]))
        .expect(3)
        .json();
    assert_eq!(lines.len(), 20);
    assert!(lines[9]["error"].is_string());
}

#[test]
fn verify_lists_the_records_lost_and_goes_on() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let path = damaged(folder.path());
    fs::create_dir(folder.path().join("more")).unwrap();
    put(
        &folder.path().join("more"),
        "x.array_record-00000-of-00001",
        &array_record("zstd"),
    );
    put(
        folder.path(),
        "y.tfrecord.gz",
        &tf_record(tfrecord::Compression::Gzip),
    );
    put(folder.path(), "z.array_record", &array_record("zstd")[..70_000]);
    put(folder.path(), "notes.json", b"{}");

    let lines = prep
        .run(arguments("verify", folder.path(), &["--json"]))
        .expect(1)
        .json();
    let found: Vec<(bool, &Value)> = lines
        .iter()
        .map(|line| (line["ok"] == true, &line["records"]))
        .collect();
    assert_eq!(
        found,
        [
            (false, &json!(20)),
            (true, &json!(20)),
            (true, &json!(20)),
            (false, &Value::Null)
        ]
    );
    assert_eq!(lines[0]["path"], path.to_str().unwrap());
    let places = lines[0]["damaged"].as_array().unwrap();
    assert_eq!(places.len(), 1);
    assert_eq!(places[0]["records"], json!([9, 12]));
    assert!(places[0]["offset"].is_u64() && places[0]["reason"].as_str().unwrap().contains("data hash"));

    fs::remove_file(&path).unwrap();
    fs::remove_file(folder.path().join("z.array_record")).unwrap();
    prep.run(arguments("verify", folder.path(), &[])).expect(0);
    prep.run(arguments("verify", &folder.path().join("more"), &["--json"]))
        .expect(0);
    let run = prep
        .run(arguments("verify", &folder.path().join("absent"), &[]))
        .expect(1);
    assert!(run.stderr.contains("absent"), "{}", run.stderr);
}

#[test]
fn inspect_counts_chunks_codecs_and_sizes() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let path = put(
        folder.path(),
        "a.array_record",
        &array_record("zstd:3,group_size:7"),
    );
    let lines = prep
        .run(arguments("inspect", &path, &["--json"]))
        .expect(0)
        .json();
    let found = &lines[0];
    assert_eq!(found["format"], "array_record");
    assert_eq!(
        (&found["records"], &found["chunks"], &found["group_size"]),
        (&json!(20), &json!(3), &json!(7))
    );
    assert_eq!(found["codecs"], json!({"zstd": 3}));
    assert_eq!(found["record_bytes"], 210);
    let steps = found["record_sizes"]["histogram"].as_array().unwrap();
    assert_eq!(
        steps
            .iter()
            .map(|step| step["records"].as_u64().unwrap())
            .sum::<u64>(),
        20
    );
    let text = prep.run(arguments("inspect", &path, &[])).expect(0).stdout;
    assert!(
        text.contains("zstd 3") && text.contains("1 to 20 bytes"),
        "{text}"
    );

    let path = damaged(folder.path());
    let run = prep.run(arguments("inspect", &path, &["--json"])).expect(0);
    assert_eq!(run.json()[0]["damaged_records"], 3);
    assert!(run.stderr.contains("prep verify"));
    let path = put(folder.path(), "a.txt", b"hello");
    let run = prep.run(arguments("inspect", &path, &[])).expect(1);
    assert!(
        run.stderr.contains("neither an ArrayRecord nor a TFRecord"),
        "{}",
        run.stderr
    );
}

#[test]
fn salvage_saves_what_can_be_read_and_says_what_is_lost() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let path = damaged(folder.path());
    let new = folder.path().join("new.array_record");
    let out = new.to_str().unwrap();
    // A dry run writes nothing.
    prep.run(arguments("salvage", &path, &["-o", out, "--dry-run"]))
        .expect(3);
    assert!(!new.exists());
    let run = prep
        .run(arguments("salvage", &path, &["-o", out, "--json"]))
        .expect(3);
    let found = &run.json()[0];
    assert_eq!(
        (&found["records"], &found["total_records"]),
        (&json!(17), &json!(20))
    );
    assert_eq!(
        (&found["lost_records"], &found["complete"]),
        (&json!(3), &json!(false))
    );
    assert_eq!(found["lost"][0]["records"], json!([9, 12]));
    assert!(found["lost"][0]["reason"].as_str().unwrap().contains("data hash"));
    assert_eq!(found["kept"][1]["records"], json!([12, 20]));
    assert_eq!(found["kept"][1]["new_records"], json!([9, 17]));
    prep.run(arguments("verify", &new, &[])).expect(0);
    let saved: Vec<Vec<u8>> = records()
        .into_iter()
        .enumerate()
        .filter(|(i, _)| !(9..12).contains(i))
        .map(|(_, r)| r)
        .collect();
    let raw = prep.run(arguments("cat", &new, &["--raw"])).expect(0);
    assert_eq!(raw.stdout.as_bytes(), saved.concat());

    // What is there stays, unless that is asked for; the input always does.
    let before = fs::read(&new).unwrap();
    let run = prep.run(arguments("salvage", &path, &["-o", out])).expect(1);
    assert!(
        run.stderr.contains("exists") && run.stderr.contains("--overwrite"),
        "{}",
        run.stderr
    );
    assert_eq!(fs::read(&new).unwrap(), before);
    prep.run(arguments("salvage", &path, &["-o", out, "--overwrite"]))
        .expect(3);
    assert_eq!(fs::read(&new).unwrap(), before, "the same bytes each time");
    let itself = path.to_str().unwrap();
    let run = prep
        .run(arguments("salvage", &path, &["-o", itself, "--overwrite"]))
        .expect(2);
    assert!(run.stderr.contains("the input itself"), "{}", run.stderr);
    let link = folder.path().join("link.array_record");
    fs::hard_link(&path, &link).unwrap();
    prep.run(arguments(
        "salvage",
        &path,
        &["-o", link.to_str().unwrap(), "--overwrite"],
    ))
    .expect(2);

    // A file that is whole comes out as it is.
    let whole = put(
        folder.path(),
        "whole.array_record",
        &array_record("zstd:3,group_size:7"),
    );
    let copy = folder.path().join("copy.array_record");
    prep.run(arguments("salvage", &whole, &["-o", copy.to_str().unwrap()]))
        .expect(0);
    assert!(fs::read(&whole).unwrap() == fs::read(&copy).unwrap());
    // Nothing to save is no file.
    let text = put(folder.path(), "text.array_record", b"hello");
    let none = folder.path().join("none");
    let run = prep
        .run(arguments("salvage", &text, &["-o", none.to_str().unwrap()]))
        .expect(1);
    assert!(
        run.stderr.contains("nothing to salvage") && !none.exists(),
        "{}",
        run.stderr
    );
    let names: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(names.iter().all(|name| !name.ends_with(".tmp")), "{names:?}");
}

#[test]
fn salvage_takes_cut_files_and_tfrecords_and_patterns() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let whole = array_record("uncompressed,group_size:4");
    // The footer begins right behind the last chunk: cut in the middle of that.
    let at = whole.windows(8).position(|window| window == [19; 8]).unwrap();
    put(folder.path(), "a.array_record", &whole[..at]);
    let mut framed = tf_record(tfrecord::Compression::Plain);
    framed[17 + 3] ^= 8; // the length of record 1
    framed[17 + 18 + 12] ^= 1; // the payload of record 2
    put(folder.path(), "b.tfrecord", &framed);
    let mut packed = tf_record(tfrecord::Compression::Gzip);
    packed.truncate(packed.len() - 9);
    put(folder.path(), "c.tfrecord.gz", &packed);
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let pattern = format!("{}/*record*", folder.path().display());
    let lines = prep
        .run(["salvage", &pattern, "-o", out.to_str().unwrap(), "--json"])
        .expect(3)
        .json();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0]["records"], 16);
    assert_eq!(lines[0]["lost"][0]["records"], json!([16, 20]));
    assert_eq!(
        (&lines[1]["records"], &lines[1]["repaired"]),
        (&json!(19), &json!(1))
    );
    assert_eq!(lines[1]["lost"][0]["records"], json!([2, 3]));
    assert_eq!(lines[2]["format"], "tfrecord");
    prep.run(arguments("verify", &out, &[])).expect(0);
    let lines = prep
        .run([
            "cat",
            out.join("b.tfrecord").to_str().unwrap(),
            "--records",
            "1..3",
            "--json",
        ])
        .expect(0)
        .json();
    assert_eq!(lines[0]["bytes"], "AQE=");
    assert_eq!(lines[1]["bytes"], "AwMDAw==");
    // Several files need a folder.
    let run = prep
        .run([
            "salvage",
            &pattern,
            "-o",
            folder.path().join("one").to_str().unwrap(),
        ])
        .expect(2);
    assert!(run.stderr.contains("no folder"), "{}", run.stderr);
    let run = prep.run(["salvage", "absent*", "-o", "x"]).expect(1);
    assert!(run.stderr.contains("matches no file"), "{}", run.stderr);
}

/// A file per row of faults that were reported of other tools: the trailer, a chunk header, a chunk's data.
#[test]
fn one_damaged_shard_is_named_and_the_others_stay_readable() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let all: Vec<Vec<u8>> = (0..200u32).map(|i| i.to_le_bytes().repeat(20)).collect();
    let mut writer = Writer::new(
        Vec::new(),
        WriteOptions::parse("uncompressed,group_size:8").unwrap(),
    )
    .unwrap();
    for record in &all {
        writer.write(record).unwrap();
    }
    let whole = writer.finish().unwrap();
    let chunk_of = |record: u32| {
        let bytes = record.to_le_bytes().repeat(20);
        whole.windows(80).position(|window| window == bytes).unwrap()
    };
    // A chunk's header, codec and 8 sizes of a byte come before its first record.
    let last_header = chunk_of(192) - 10 - 40 + 20;
    let trailer = whole.len() - 65_536 + 24 + 45;
    let cases = [
        (trailer, None),
        (last_header, Some(192..200)),
        (chunk_of(100), Some(96..104)),
    ];
    for (at, lost) in cases {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        for (shard, bytes) in [&whole, &bytes, &whole].into_iter().enumerate() {
            put(
                folder.path(),
                &format!("x.array_record-0000{shard}-of-00003"),
                bytes,
            );
        }
        let pattern = format!("{}/x.array_record-*", folder.path().display());
        let lines = prep
            .run(["verify", &pattern, "--json", "--workers", "2"])
            .expect(1)
            .json();
        let ok: Vec<bool> = lines.iter().map(|line| line["ok"] == true).collect();
        assert_eq!(ok, [true, false, true], "{lines:?}");
        let place = &lines[1]["damaged"][0];
        assert!(place["offset"].is_u64() && place["reason"].is_string());
        match lost {
            Some(lost) => assert_eq!(place["records"], json!([lost.start, lost.end]), "{place}"),
            // No record is lost, but none can be reached by position.
            None => {
                assert_eq!(place["records"], json!([0, 0]));
                assert_eq!(lines[1]["salvage"], json!({"records": 200, "lost_records": 0}));
                assert!(place["reason"].as_str().unwrap().contains("postscript"));
            }
        }
        let shard = folder.path().join("x.array_record-00001-of-00003");
        let run = prep.run(arguments("verify", &shard, &["-q"])).expect(1);
        assert!(
            run.stdout.contains("x.array_record-00001-of-00003") && run.stdout.contains("byte "),
            "{}",
            run.stdout
        );
        let good = folder.path().join("x.array_record-00002-of-00003");
        assert_eq!(
            prep.run(arguments("cat", &good, &["--json"]))
                .expect(0)
                .json()
                .len(),
            200
        );
    }
}

#[test]
fn a_quick_verify_reads_headers_only() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let path = damaged(folder.path());
    // A data hash is no header's.
    prep.run(arguments("verify", &path, &["--quick"])).expect(0);
    prep.run(arguments("verify", &path, &[])).expect(1);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|window| window == [12; 9]).unwrap();
    bytes[at - 20] ^= 1;
    let path = put(folder.path(), "header.array_record", &bytes);
    let lines = prep
        .run(arguments("verify", &path, &["--quick", "--json"]))
        .expect(1)
        .json();
    assert_eq!(lines[0]["damaged"][0]["records"], json!([12, 15]));
    prep.run(arguments("verify", &path, &["--workers", "0"]))
        .expect(2);
}

/// Bytes behind the last record are damage, and the records before them are counted.
#[test]
fn trailing_bytes_of_a_tfrecord_are_reported() {
    let (prep, folder) = (Prep::new(), temp_dir());
    for garbage in [&b"\0"[..], b"garbage", &[0; 12], &[7; 5000]] {
        let mut bytes = tf_record(tfrecord::Compression::Plain);
        let end = bytes.len();
        bytes.extend(garbage);
        let path = put(folder.path(), "x.tfrecord", &bytes);
        let line = &prep.run(arguments("verify", &path, &["--json"])).expect(1).json()[0];
        assert_eq!(line["damaged"][0]["records"], json!([20, 21]), "{line}");
        assert_eq!(line["damaged"][0]["offset"], end);
        assert_eq!(line["salvage"]["records"], 20);
        let lines = prep
            .run(arguments("cat", &path, &["--json", "--on-error", "skip"]))
            .expect(3)
            .json();
        assert_eq!(lines.len(), 21);
    }
}

#[test]
fn cat_numbers_the_records_of_several_files_through() {
    let (prep, folder) = (Prep::new(), temp_dir());
    put(
        folder.path(),
        "x.array_record-00000-of-00002",
        &array_record("uncompressed"),
    );
    put(
        folder.path(),
        "x.array_record-00001-of-00002",
        &array_record("snappy,group_size:3"),
    );
    put(
        folder.path(),
        "y.tfrecord",
        &tf_record(tfrecord::Compression::Zlib),
    );
    let both = format!("{}/x.array_record-*", folder.path().display());
    let last = folder.path().join("y.tfrecord");
    let run = |more: &[&str]| {
        let mut words = vec!["cat", &both, last.to_str().unwrap(), "--json", "--digest"];
        words.extend(more);
        prep.run(words)
    };
    let lines = run(&[]).expect(0).json();
    let indices: Vec<u64> = lines.iter().map(|line| line["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, (0..60).collect::<Vec<_>>());
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["length"], index % 20 + 1);
    }
    for (range, expected) in [
        ("18..23", 18..23),
        ("39..", 39..60),
        ("..1", 0..1),
        ("41..43", 41..43),
        ("60..", 60..60),
    ] {
        let found = run(&["--records", range]).expect(0).json();
        assert_eq!(found, &lines[expected], "{range}");
    }
    let found = run(&["--records", "50..61"]).expect(1);
    assert!(found.stderr.contains("has 60 records"), "{}", found.stderr);
    // A dataset stands alone.
    prep.run(["cat", &both, "mnist"]).expect(1);
}

#[test]
fn cat_decodes_examples_by_the_schema_beside_the_file() {
    let (prep, folder) = (Prep::new(), temp_dir());
    prep.build("mnist", &["--shards", "2"]).expect(0);
    let data = prep.catalog().join("data/mnist/3.0.1");
    let shard = data.join("mnist-train.array_record-00001-of-00002");
    let of_dataset = prep.run(["cat", "mnist", "--json", "--digest"]).expect(0).json();
    let features = data.join("features.json");
    let mut found = Vec::new();
    for more in [
        &["--features"][..],
        &["--features", features.to_str().unwrap()],
        &["--features", data.to_str().unwrap()],
    ] {
        let mut words = vec!["cat", shard.to_str().unwrap(), "--json", "--digest"];
        words.extend(more);
        found.push(prep.run(words).expect(0).json());
    }
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
    let first = of_dataset.len() - found[0].len();
    assert!(first > 0 && !found[0].is_empty());
    for (line, expected) in found[0].iter().zip(&of_dataset[first..]) {
        assert_eq!(line["features"], expected["features"]);
    }
    assert_eq!(found[0][0]["features"]["image"]["shape"], json!([28, 28, 1]));
    // All shards as one are the split.
    let all = format!("{}/mnist-train*", data.display());
    assert_eq!(
        prep.run(["cat", &all, "--json", "--digest", "--features"])
            .expect(0)
            .json(),
        of_dataset
    );
    let text = prep
        .run(["cat", shard.to_str().unwrap(), "--records", "0..1", "--features"])
        .expect(0)
        .stdout;
    assert!(text.starts_with("0  image=uint8[28, 28, 1]("), "{text}");

    // Records that are no such examples are damaged.
    let path = put(folder.path(), "x.array_record", &array_record("uncompressed"));
    let schema = features.to_str().unwrap();
    let run = prep
        .run(arguments("cat", &path, &["--json", "--features", schema]))
        .expect(1);
    assert!(run.stderr.contains("x.array_record, record 0"), "{}", run.stderr);
    let run = prep
        .run(arguments(
            "cat",
            &path,
            &["--json", "--on-error", "skip", "--features", schema],
        ))
        .expect(3);
    assert_eq!(run.json().len(), 20);
    let run = prep
        .run(arguments("cat", &path, &["--json", "--features"]))
        .expect(1);
    assert!(run.stderr.contains("features.json"), "{}", run.stderr);
    prep.run(["cat", "mnist", "--features"]).expect(2);
}

#[test]
fn inspect_shows_the_shards_and_splits_of_a_dataset() {
    let prep = Prep::new();
    prep.build("mnist", &["--shards", "2"]).expect(0);
    let lines = prep.run(["inspect", "mnist", "--json"]).expect(0).json();
    assert_eq!(lines.len(), 4 + 2);
    for line in &lines[..4] {
        assert_eq!(line["signature"], true);
        assert_eq!(line["first_chunk"], 64);
        let (footer, postscript) = (
            line["footer_offset"].as_u64().unwrap(),
            line["postscript_offset"].as_u64().unwrap(),
        );
        assert!(footer < postscript && postscript + 65_536 == line["bytes"]);
        let sizes = &line["chunk_sizes"];
        assert!(
            sizes["min"].as_u64() <= sizes["median"].as_u64()
                && sizes["median"].as_u64() <= sizes["max"].as_u64()
        );
    }
    for (line, split) in lines[4..].iter().zip(["test", "train"]) {
        assert_eq!((&line["split"], &line["shards"]), (&json!(split), &json!(2)));
        let shards = lines[..4].iter().filter(|line| line["split"] == split);
        let records: u64 = shards.map(|line| line["records"].as_u64().unwrap()).sum();
        assert_eq!(line["records"], records);
        let steps = line["record_sizes"]["histogram"].as_array().unwrap();
        assert_eq!(
            steps
                .iter()
                .map(|step| step["records"].as_u64().unwrap())
                .sum::<u64>(),
            records
        );
    }
    let folder = prep.catalog().join("data/mnist/3.0.1");
    let text = prep.run(["inspect", folder.to_str().unwrap()]).expect(0).stdout;
    assert!(
        text.contains("split train") && text.contains("mnist-test.array_record-00001-of-00002"),
        "{text}"
    );
    // A shard that cannot be opened is told, and the others are shown.
    fs::write(folder.join("mnist-test.array_record-00000-of-00002"), "cut").unwrap();
    let lines = prep
        .run(["inspect", folder.to_str().unwrap(), "--json"])
        .expect(1)
        .json();
    assert!(
        lines[0]["error"].as_str().unwrap().contains("00000-of-00002"),
        "{}",
        lines[0]
    );
    assert_eq!(lines.len(), 6);
}

#[test]
fn completions_know_the_commands() {
    let prep = Prep::new();
    let script = prep.run(["completions", "bash"]).expect(0).stdout;
    for command in ["salvage", "verify", "inspect", "cat"] {
        assert!(script.contains(command), "{command}");
    }
}

/// The golden records as a folder of TFDS's, the shard as TFDS wrote it.
fn tfds_folder(folder: &Path) {
    let golden = golden_path("features/kitchen_sink");
    for entry in fs::read_dir(&golden).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    fs::rename(
        folder.join("records.tfrecord"),
        folder.join("kitchen_sink-validation_other.tfrecord-00000-of-00001"),
    )
    .unwrap();
    let info = fs::read_to_string(golden.join("dataset_info.json")).unwrap();
    let mut info: Value = serde_json::from_str(&info).unwrap();
    info["fileFormat"] = "tfrecord".into();
    info["splits"].as_array_mut().unwrap().remove(0);
    info["splits"][0]["shardLengths"] = json!(["3"]);
    fs::write(folder.join("dataset_info.json"), info.to_string()).unwrap();
}

#[test]
fn cat_decodes_a_folder_of_tfds_as_tfds_does() {
    let (prep, folder) = (Prep::new(), temp_dir());
    tfds_folder(folder.path());
    let rows = |more: &[&str]| -> Vec<Value> {
        let options = ["--split", "validation_other", "--json", "--digest"];
        let options: Vec<&str> = options.iter().chain(more).copied().collect();
        prep.run(arguments("cat", folder.path(), &options))
            .expect(0)
            .json()
    };
    let wanted = fs::read_to_string(folder.path().join("expected.jsonl")).unwrap();
    let wanted: Vec<Value> = wanted
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(rows(&[]), wanted);
    assert_eq!(rows(&["--records", "1..2"]), wanted[1..2]);
    let people = prep
        .run(arguments("cat", folder.path(), &["--split", "validation_other"]))
        .expect(0);
    assert_eq!(people.stdout.lines().count(), 3);
    assert!(people.stdout.contains("nested/x/z="), "{}", people.stdout);
    prep.run(arguments("cat", folder.path(), &["--split", "test"]))
        .expect(2);
    let empty = temp_dir();
    let run = prep.run(arguments("cat", empty.path(), &[])).expect(1);
    assert!(run.stderr.contains("features.json"), "{}", run.stderr);
}

/// A sharded set may have shards without records: all commands take them.
#[test]
fn a_closed_standard_error_changes_no_exit_code() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let mut damaged = array_record("uncompressed");
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let good = put(folder.path(), "good.array_record", &array_record("uncompressed"));
    let bad = put(folder.path(), "bad.array_record", &damaged);
    for (arguments, code) in [
        (vec!["verify".as_ref(), good.as_os_str(), good.as_os_str()], 0),
        (vec!["verify".as_ref(), good.as_os_str(), bad.as_os_str()], 1),
        (vec!["list".as_ref()], 0),
        (vec!["cat".as_ref(), "nothing".as_ref()], 1),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = prep
            .command(&arguments)
            .stdout(std::process::Stdio::null())
            .stderr(writer)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn empty_files_are_whole() {
    let (prep, folder) = (Prep::new(), temp_dir());
    let empty = Writer::new(Vec::new(), WriteOptions::parse("zstd:3").unwrap())
        .unwrap()
        .finish()
        .unwrap();
    for shard in 0..3 {
        let bytes = if shard == 1 {
            array_record("zstd:3")
        } else {
            empty.clone()
        };
        put(
            folder.path(),
            &format!("x.array_record-0000{shard}-of-00003"),
            &bytes,
        );
    }
    let pattern = format!("{}/*", folder.path().display());
    let lines = prep.run(["verify", &pattern, "--json"]).expect(0).json();
    let records: Vec<&Value> = lines.iter().map(|line| &line["records"]).collect();
    assert_eq!(records, [&json!(0), &json!(20), &json!(0)]);
    let lines = prep.run(["cat", &pattern, "--json"]).expect(0).json();
    assert_eq!(lines.len(), 20);
    assert_eq!(lines[19]["index"], 19);
    let lines = prep.run(["inspect", &pattern, "--json"]).expect(0).json();
    assert_eq!(
        (&lines[0]["records"], &lines[0]["record_sizes"]["min"]),
        (&json!(0), &Value::Null)
    );
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let one = folder.path().join("x.array_record-00000-of-00003");
    prep.run(arguments("salvage", &one, &["-o", out.to_str().unwrap()]))
        .expect(0);
    assert!(fs::read(out.join("x.array_record-00000-of-00003")).unwrap() == empty);
}
