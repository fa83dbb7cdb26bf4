//! `prep cat`, `prep verify` and `prep inspect` of record files.

use std::fs;
use std::path::{Path, PathBuf};

use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::tfrecord;
use prep_testing::{Prep, temp_dir};
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
        for range in ["3..2", "3", "a..b", "0..21", "21.."] {
            let run = prep.run(arguments("cat", path, &["--records", range])).expect(2);
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
