//! `prep convert` as its users see it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use prep_formats::array_record::{Reader, Scratch, WriteOptions, Writer};
use prep_formats::example::{Example, FeatureList};
use prep_formats::tfrecord::{self, Compression};
use prep_jobs::convert::{ConvertRequest, ConvertStatus, Dedup, Order, Shards, convert};
use prep_testing::process::{free_hosts, kill_after, member, peak_mib};
use prep_testing::server::{Fault, FileServer};
use prep_testing::{Noise, Prep, SmallDisk, assert_same_folder, folder_digest, temp_dir};

/// An example with a label, a score and a text, some of them without a text.
fn example(noise: &mut Noise) -> Vec<u8> {
    let mut example = Example::default();
    let mut put = |name: &str, list| example.features.insert(name.to_owned(), list);
    put("label", FeatureList::Int64(vec![noise.below(7) as i64 - 3]));
    put(
        "score",
        FeatureList::Float(vec![noise.below(100) as f32 / 8.0 - 5.0]),
    );
    if noise.below(5) > 0 {
        // Long ones with a common beginning, so that it takes more than 16 bytes to order them.
        let text = format!(
            "a common beginning {}{}",
            noise.below(40),
            "x".repeat(noise.below(300) as usize)
        );
        put("text", FeatureList::Bytes(vec![text.into_bytes()]));
    }
    example.encode()
}

pub(crate) fn examples(noise: &mut Noise, count: u64) -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = Vec::new();
    for _ in 0..count {
        let again = noise.below(10) == 0 && !found.is_empty();
        let place = noise.below(found.len().max(1) as u64) as usize;
        found.push(if again {
            found[place].clone()
        } else {
            example(noise)
        });
    }
    found
}

pub(crate) fn write_tfrecord(path: &Path, compression: Compression, records: &[Vec<u8>]) {
    let mut writer = tfrecord::Writer::new(Vec::new(), compression).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    fs::write(path, writer.finish().unwrap()).unwrap();
}

fn write_array_record(path: &Path, options: &str, records: &[Vec<u8>]) {
    let mut writer = Writer::new(Vec::new(), WriteOptions::parse(options).unwrap()).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    fs::write(path, writer.finish().unwrap()).unwrap();
}

/// Five inputs of different kinds, and their records in order of their names.
fn mixed_inputs(folder: &Path, noise: &mut Noise, most: u64) -> Vec<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for (index, kind) in ["plain", "gzip", "array", "zlib", "zstd", "array2", "plain2"]
        .iter()
        .enumerate()
    {
        let count = noise.below(most + 1);
        let records = examples(noise, count);
        let path = folder.join(format!("{index}-{kind} ü.rec"));
        match *kind {
            "gzip" => write_tfrecord(&path, Compression::Gzip, &records),
            "zlib" => write_tfrecord(&path, Compression::Zlib, &records),
            "zstd" => write_tfrecord(&path, Compression::Zstd, &records),
            "array" => write_array_record(&path, "zstd:1", &records),
            "array2" => write_array_record(&path, "group_size:5,snappy", &records),
            _ => write_tfrecord(&path, Compression::Plain, &records),
        }
        all.push(records);
    }
    all
}

/// The records of each shard, by name.
fn shards(folder: &Path) -> Vec<Vec<Vec<u8>>> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains(".array_record-"))
        .collect();
    paths.sort();
    paths.iter().map(|path| records(path)).collect()
}

fn records(path: &Path) -> Vec<Vec<u8>> {
    let reader = Reader::open(path).unwrap();
    let mut found = Vec::new();
    let visited = reader.for_each(0..reader.num_records(), &mut Scratch::default(), |_, record| {
        found.push(record.to_vec());
        Ok(())
    });
    visited.unwrap();
    found
}

fn text_of(record: &[u8], name: &str) -> Option<Vec<u8>> {
    match Example::decode(record).unwrap().features.get(name) {
        Some(FeatureList::Bytes(list)) => list.first().cloned(),
        _ => None,
    }
}

fn label_of(record: &[u8]) -> i64 {
    match &Example::decode(record).unwrap().features["label"] {
        FeatureList::Int64(list) => list[0],
        _ => panic!("`label` is an integer"),
    }
}

fn score_of(record: &[u8]) -> f32 {
    match &Example::decode(record).unwrap().features["score"] {
        FeatureList::Float(list) => list[0],
        _ => panic!("`score` is a float"),
    }
}

fn round_half_even(numerator: u64, denominator: u64) -> usize {
    let exact = numerator as f64 / denominator as f64;
    let floor = exact.floor();
    let up = exact - floor > 0.5 || exact - floor == 0.5 && floor % 2.0 == 1.0;
    floor as usize + usize::from(up)
}

/// What a request means, without haste: the records of each shard. The shuffle's order is its own.
fn model(inputs: &[Vec<Vec<u8>>], request: &ConvertRequest) -> Vec<Vec<Vec<u8>>> {
    let mut all: Vec<(usize, usize, Vec<u8>)> = Vec::new();
    for (input, records) in inputs.iter().enumerate() {
        all.extend(
            records
                .iter()
                .enumerate()
                .map(|(place, record)| (input, place, record.clone())),
        );
    }
    if let Some(filter) = &request.filter {
        all.retain(|(_, _, record)| match filter.as_str() {
            "label >= 0" => label_of(record) >= 0,
            "not has(text) or label in (1, 2)" => {
                text_of(record, "text").is_none() || [1, 2].contains(&label_of(record))
            }
            "score < 0.5 and label != 3" => score_of(record) < 0.5 && label_of(record) != 3,
            other => panic!("{other}"),
        });
    }
    let mut seen = std::collections::HashSet::new();
    match &request.dedup {
        Some(Dedup::Bytes) => all.retain(|(_, _, record)| seen.insert(record.clone())),
        Some(Dedup::Feature(name)) => all.retain(|(_, _, record)| match text_of(record, name) {
            Some(text) => seen.insert(text),
            None => true,
        }),
        _ => {}
    }
    match &request.order {
        Order::Key(name) if name == "label" => all.sort_by_key(|(_, _, record)| label_of(record)),
        Order::Key(name) if name == "score" => all.sort_by(|a, b| score_of(&a.2).total_cmp(&score_of(&b.2))),
        Order::Key(name) => all.sort_by_key(|(_, _, record)| text_of(record, name)),
        _ => {}
    }
    if let Some(limit) = request.limit {
        all.truncate(limit as usize);
    }
    let change = |record: &[u8]| {
        let mut example = Example::decode(record).unwrap();
        if let Some(select) = &request.select {
            example.features.retain(|name, _| select.contains(name));
        }
        for (old, new) in &request.rename {
            if let Some(list) = example.features.remove(old) {
                example.features.insert(new.clone(), list);
            }
        }
        example.encode()
    };
    let is_changed = request.select.is_some() || !request.rename.is_empty();
    let written = |record: &[u8]| {
        if is_changed {
            change(record)
        } else {
            record.to_vec()
        }
    };
    if request.shards == Some(Shards::Same) && request.order == Order::Source {
        let of = |input: usize| {
            let mine = all.iter().filter(move |(other, _, _)| *other == input);
            mine.map(|(_, _, record)| written(record)).collect()
        };
        return (0..inputs.len()).map(of).collect();
    }
    let count = match request.shards {
        Some(Shards::Number(count)) => count,
        Some(Shards::Same) => inputs.len() as u64,
        _ => 1,
    };
    let cut = |i: u64| round_half_even(all.len() as u64 * i, count);
    (0..count)
        .map(|i| {
            all[cut(i)..cut(i + 1)]
                .iter()
                .map(|(_, _, record)| written(record))
                .collect()
        })
        .collect()
}

/// Random inputs of all kinds and random options, against the model; and the same bytes for other workers and memory.
#[test]
fn any_request_gives_what_it_means() {
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for round in 0..40 {
        let home = temp_dir();
        let source = home.path().join("in [1]");
        fs::create_dir(&source).unwrap();
        let inputs = mixed_inputs(&source, &mut noise, [3, 60, 200][round % 3]);
        let mut pick = |n: u64| noise.below(n);
        let mut request = ConvertRequest::new(vec![glob_of(&source)], home.path().join("out"));
        request.shards = [
            None,
            Some(Shards::Same),
            Some(Shards::Number(1)),
            Some(Shards::Number(5)),
            Some(Shards::Number(64)),
        ][pick(5) as usize];
        request.order = [
            Order::Source,
            Order::Source,
            Order::Source,
            Order::Shuffle(round as u64),
            Order::Key("label".into()),
            Order::Key("score".into()),
            Order::Key("text".into()),
        ][pick(7) as usize]
            .clone();
        request.options = [
            None,
            Some("uncompressed"),
            Some("group_size:7,zstd:1"),
            Some("group_size:3,transpose:true,snappy"),
        ][pick(4) as usize]
            .map(str::to_owned);
        request.filter = [
            None,
            None,
            Some("label >= 0"),
            Some("not has(text) or label in (1, 2)"),
            Some("score < 0.5 and label != 3"),
        ][pick(5) as usize]
            .map(str::to_owned);
        request.dedup = [
            None,
            None,
            Some(Dedup::Bytes),
            Some(Dedup::Feature("text".into())),
        ][pick(4) as usize]
            .clone();
        request.select =
            [None, None, Some(vec!["label".to_owned(), "text".to_owned()])][pick(3) as usize].clone();
        request.rename = [vec![], vec![("label".to_owned(), "class".to_owned())]][pick(2) as usize].clone();
        request.limit = [None, None, Some(0), Some(100), Some(1 << 40)][pick(5) as usize];
        request.workers = 1 + pick(4) as usize;
        request.memory_bytes = 16 << 20;
        let total: usize = inputs.iter().map(Vec::len).sum();
        let shown = format!("round {round}: {request:?}");
        let outcome = match convert(request.clone()) {
            Ok(outcome) => outcome,
            // Of few records, none may have a text.
            Err(error) if total < 30 && format!("{error}").contains("no record has a feature") => continue,
            Err(error) => panic!("{shown}: {error:#}"),
        };
        let (mut found, mut wanted) = (shards(&home.path().join("out")), model(&inputs, &request));
        let lengths = |shards: &[Vec<Vec<u8>>]| shards.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(&found), lengths(&wanted), "{shown}");
        if matches!(request.order, Order::Shuffle(_)) {
            if request.limit.is_none() {
                let sorted = |shards: &[Vec<Vec<u8>>]| {
                    let mut all = shards.concat();
                    all.sort();
                    all
                };
                assert!(sorted(&found) == sorted(&wanted), "{shown}");
            }
            if total > 50 && found != wanted {
                // A shuffle that is none would be an accident of one in very many.
                (found, wanted) = (vec![], vec![]);
            }
        }
        assert!(found == wanted, "{shown}");
        let kept: usize = lengths(&shards(&home.path().join("out"))).iter().sum();
        assert_eq!(outcome.records, kept as u64, "{shown}");
        if request.limit.is_none() {
            assert_eq!(
                outcome.records + outcome.filtered + outcome.duplicates,
                total as u64,
                "{shown}"
            );
        }

        let mut other = request.clone();
        other.output = home.path().join("other");
        other.workers = 1 + (request.workers % 4);
        other.memory_bytes = 1 << 30;
        convert(other).unwrap();
        assert_same_folder(home.path().join("out"), home.path().join("other"));
        assert_eq!(convert(request).unwrap().status, ConvertStatus::UpToDate);
        assert!(!home.path().join(".staging").exists());
    }
}

/// A pattern for all files of a folder whose own name has brackets.
fn glob_of(folder: &Path) -> OsString {
    let folder = folder
        .to_str()
        .unwrap()
        .replace('[', "[[]")
        .replace(" 1]", " 1[]]");
    format!("{folder}/*").into()
}

#[test]
fn ten_kills_and_a_rerun_give_the_undisturbed_bytes() {
    let home = temp_dir();
    let mut noise = Noise(77);
    for index in 0..6 {
        let records = examples(&mut noise, 2500);
        write_tfrecord(
            &home.path().join(format!("{index}.tfrecord")),
            Compression::Plain,
            &records,
        );
    }
    let prep = Prep::new();
    let pattern = home.path().join("*.tfrecord");
    for more in [
        &["--shards", "6", "--options", "zstd:19"][..],
        &["--shards", "4", "--order", "key:text", "--options", "zstd:19"],
    ] {
        let whole = home.path().join("whole");
        let out = home.path().join("out");
        let arguments = |output: &Path, workers: &str| {
            let mut words: Vec<OsString> = vec!["convert".into(), pattern.clone().into(), output.into()];
            words.extend(more.iter().map(OsString::from));
            words.extend(["--workers".into(), workers.into()]);
            words
        };
        let started = Instant::now();
        prep.run(arguments(&whole, "2")).expect(0);
        let took = started.elapsed();
        for round in 0..10 {
            let workers = (round % 4 + 1).to_string();
            let pause = Duration::from_micros(noise.below(took.as_micros() as u64));
            kill_after(prep.command(arguments(&out, &workers)), pause);
            // Nothing or all of it is there.
            if out.exists() {
                assert_same_folder(&whole, &out);
            }
        }
        prep.run(arguments(&out, "3")).expect(0);
        assert_same_folder(&whole, &out);
        assert!(
            prep.run(arguments(&out, "1"))
                .expect(0)
                .stdout
                .contains("up to date")
        );
        assert!(!home.path().join(".staging").exists());
        fs::remove_dir_all(&whole).unwrap();
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn finished_shards_are_not_written_again() {
    let home = temp_dir();
    let mut noise = Noise(5);
    let good = examples(&mut noise, 300);
    write_tfrecord(&home.path().join("a.tfrecord"), Compression::Plain, &good);
    write_tfrecord(&home.path().join("b.tfrecord"), Compression::Plain, &good[..40]);
    let path = home.path().join("b.tfrecord");
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let prep = Prep::new();
    let arguments = [
        "convert",
        home.path().join("a.tfrecord").to_str().unwrap(),
        path.to_str().unwrap(),
        home.path().join("out").to_str().unwrap(),
        "--shards",
        "same",
        "--workers",
        "1",
    ]
    .map(str::to_owned);
    // The larger one is written first, and finished.
    let run = prep.run(&arguments).expect(1);
    assert!(
        run.stderr.contains("b.tfrecord, record 39, byte "),
        "{}",
        run.stderr
    );
    let again = prep.run(&arguments).expect(1);
    assert!(
        again.stderr.contains("1 of 2 shards are there already"),
        "{}",
        again.stderr
    );
    // The repaired file is another one: all is begun anew, and said so.
    fs::write(&path, &whole).unwrap();
    let run = prep.run(&arguments).expect(0);
    assert!(run.stderr.contains("is thrown away"), "{}", run.stderr);
    assert_eq!(
        shards(&home.path().join("out")),
        [good.clone(), good[..40].to_vec()]
    );
}

#[test]
fn damage_is_named_and_skipped_only_on_request() {
    let home = temp_dir();
    let mut noise = Noise(9);
    let records = examples(&mut noise, 100);
    let path = home.path().join("a.tfrecord");
    write_tfrecord(&path, Compression::Plain, &records);
    let clean = fs::read(&path).unwrap();
    let starts: Vec<usize> = std::iter::once(0)
        .chain(records.iter().scan(0, |at, record| {
            *at += record.len() + 16;
            Some(*at)
        }))
        .collect();
    let without = |lost: &[usize]| -> Vec<Vec<u8>> {
        let kept = records
            .iter()
            .enumerate()
            .filter(|(index, _)| !lost.contains(index));
        kept.map(|(_, record)| record.clone()).collect()
    };
    let prep = Prep::new();
    // A payload, a length, the checksum of a length, the end of the file, and several.
    let cases: [(&str, Vec<usize>, usize, &[usize]); 5] = [
        ("payload checksum", vec![starts[57] + 15], clean.len(), &[57]),
        ("length checksum", vec![starts[30] + 1], clean.len(), &[30]),
        ("length checksum", vec![starts[0] + 9], clean.len(), &[0]),
        ("cut short", vec![], starts[99] + 20, &[99]),
        (
            "payload checksum",
            vec![starts[3] + 15, starts[98] + 2, starts[99] + 14],
            clean.len(),
            &[3, 98, 99],
        ),
    ];
    for (words, flips, length, lost) in cases {
        let mut bytes = clean.clone();
        for flip in flips {
            bytes[flip] ^= 0x40;
        }
        fs::write(&path, &bytes[..length]).unwrap();
        for shards_flag in ["same", "3"] {
            let out = home.path().join("out");
            let run = |policy: &str, more: &[&str]| {
                let words = [
                    "convert",
                    path.to_str().unwrap(),
                    out.to_str().unwrap(),
                    "--shards",
                    shards_flag,
                    "--on-error",
                    policy,
                ];
                prep.run(words.iter().chain(more))
            };
            let failed = run("fail", &[]).expect(1);
            // Of several, one: counting sees damaged lengths before payloads are looked at.
            let is_named = lost.iter().any(|lost| {
                let place = format!("a.tfrecord, record {lost}, byte {}: ", starts[*lost]);
                failed.stderr.contains(&place)
            });
            let is_told = failed.stderr.contains(words) || lost.len() > 1;
            assert!(is_named && is_told, "{}", failed.stderr);
            assert!(
                failed.stderr.contains("hint:") && !out.exists(),
                "{}",
                failed.stderr
            );
            // A record that is lost with its length and the next whole one behind it are one gap.
            let gaps = if lost.len() == 3 { 2 } else { 1 };
            let refused = run(&format!("skip:{}", gaps - 1), &[]).expect(1);
            assert!(
                refused.stderr.contains("more than may be skipped"),
                "{}",
                refused.stderr
            );
            let report = home.path().join("report.json");
            run(&format!("skip:{gaps}"), &["--report", report.to_str().unwrap()]).expect(3);
            assert_eq!(shards(&out).concat(), without(lost), "{words} {shards_flag}");
            let report: serde_json::Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
            assert_eq!(report["inputs"][0]["skipped"], gaps, "{report:#}");
            assert_eq!(report["skipped"], gaps);
            assert!(
                report["shards"][0]["sha256"]
                    .as_str()
                    .is_some_and(|sha| sha.len() == 64)
            );
            // Without leave it is not the same request.
            assert!(
                run("fail", &[])
                    .expect(1)
                    .stderr
                    .contains("damaged records left out")
            );
            assert!(run("skip", &[]).expect(3).stdout.contains("up to date"));
            // A sort leaves out the same.
            fs::remove_dir_all(&out).unwrap();
            run("skip", &["--order", "key:label"]).expect(3);
            let mut found = shards(&out).concat();
            let mut wanted = without(lost);
            wanted.sort_by_key(|record| label_of(record));
            assert!(found == wanted);
            found.clear();
            fs::remove_dir_all(&out).unwrap();
        }
    }
}

#[test]
fn what_is_there_is_kept_unless_it_may_go() {
    let home = temp_dir();
    let mut noise = Noise(3);
    let records = examples(&mut noise, 50);
    let path = home.path().join("a.tfrecord");
    write_tfrecord(&path, Compression::Plain, &records);
    let out = home.path().join("out");
    let prep = Prep::new();
    let run = |more: &[&str]| {
        let words = ["convert", path.to_str().unwrap(), out.to_str().unwrap()];
        prep.run(words.iter().chain(more))
    };
    // An empty folder is as good as none.
    fs::create_dir(&out).unwrap();
    let planned = run(&["--dry-run"]).expect(0);
    assert!(planned.stdout.contains("would be made") && fs::read_dir(&out).unwrap().next().is_none());
    run(&[]).expect(0);
    let before = folder_digest(&out);
    for more in [
        &["--shards", "2"][..],
        &["--options", "uncompressed"],
        &["--name", "other"],
    ] {
        let refused = run(more).expect(1);
        assert!(
            refused.stderr.contains("is there already") && refused.stderr.contains("--overwrite"),
            "{}",
            refused.stderr
        );
        assert_eq!(folder_digest(&out), before);
    }
    // Other bytes under the same name and size.
    let changed: Vec<Vec<u8>> = records.iter().rev().cloned().collect();
    let kept = fs::read(&path).unwrap();
    write_tfrecord(&path, Compression::Plain, &changed);
    assert!(
        run(&[])
            .expect(1)
            .stderr
            .contains("other inputs of the same names and sizes")
    );
    run(&["--overwrite"]).expect(0);
    assert_eq!(shards(&out).concat(), changed);
    fs::write(&path, kept).unwrap();
    // A folder that is somebody else's is not replaced, whatever is asked for.
    fs::remove_dir_all(&out).unwrap();
    fs::create_dir(&out).unwrap();
    fs::write(out.join("mine"), "x").unwrap();
    for more in [&[][..], &["--overwrite"], &["--overwrite", "--dry-run"]] {
        let told = run(more).expect(1).stderr;
        assert!(
            told.contains("was not made by prep: it has `mine`") && told.contains("give another output"),
            "{told}"
        );
        assert_eq!(fs::read_to_string(out.join("mine")).unwrap(), "x");
        assert!(!home.path().join(".staging").exists());
    }
    fs::remove_dir_all(&out).unwrap();
    fs::write(&out, "a file").unwrap();
    let told = run(&["--overwrite"]).expect(1).stderr;
    assert!(told.contains("is not a folder"), "{told}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "a file");
    fs::remove_file(&out).unwrap();
    // What was made for a catalog is ours as well.
    fs::create_dir(&out).unwrap();
    fs::write(out.join("prep_manifest.json"), "{}").unwrap();
    assert!(
        run(&[])
            .expect(1)
            .stderr
            .contains("was not made by `prep convert`")
    );
    run(&["--overwrite"]).expect(0);
    assert!(!out.join("prep_manifest.json").exists() && !home.path().join(".staging").exists());
    // A shard that was cut is not up to date.
    let shard = out.join("data.array_record-00000-of-00001");
    fs::File::options()
        .write(true)
        .open(&shard)
        .unwrap()
        .set_len(100)
        .unwrap();
    assert!(run(&[]).expect(1).stderr.contains("is damaged"));
}

#[test]
fn wrong_places_are_told_as_such() {
    let home = temp_dir();
    let file = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    write_tfrecord(
        &home.path().join("a.tfrecord"),
        Compression::Plain,
        &[b"x".to_vec()],
    );
    fs::write(
        home.path().join("text"),
        "this is no record file, but a text that is long enough",
    )
    .unwrap();
    fs::create_dir(home.path().join("folder")).unwrap();
    fs::write(home.path().join("file"), "x").unwrap();
    let prep = Prep::new();
    for (words, text) in [
        (vec![file("*.nothing"), file("out")], "no file matches"),
        (vec![file("absent"), file("out")], "could not open the input"),
        (
            vec![file("a.tfrecord"), file("a.tfrecord"), file("out")],
            "given twice",
        ),
        (vec![file("folder"), file("out")], "no record files"),
        (vec![file("."), file("out")], "lies in the input"),
        (vec![file("text"), file("out")], "not a TFRecord file"),
        (vec![file("a.tfrecord"), file("file")], "is not a folder"),
        (
            vec![file("a.tfrecord"), "https://127.0.0.1/out".to_owned()],
            "can only be read",
        ),
        (
            vec![file("a.tfrecord"), "s3://bucket".to_owned()],
            "folder of its own",
        ),
        (
            vec![file("a.tfrecord"), file("out"), "--name=a/b".to_owned()],
            "cannot be the name",
        ),
        (
            vec![file("a.tfrecord"), file("out"), "--filter=x == 1".to_owned()],
            "not a tf.train.Example",
        ),
        (vec!["/dev/null".to_owned(), file("out")], "not a regular file"),
    ] {
        let words: Vec<String> = std::iter::once("convert".to_owned()).chain(words).collect();
        let run = prep.run(&words).expect(1);
        assert!(run.stderr.contains(text), "{words:?}: {}", run.stderr);
        assert!(!home.path().join("out").exists());
    }
    // Under `skip`, what holds not one record is still no record file.
    let skipped = prep
        .run(["convert", &file("text"), &file("out"), "--on-error", "skip"])
        .expect(1);
    assert!(
        skipped.stderr.contains("not a TFRecord file"),
        "{}",
        skipped.stderr
    );
    for flag in [
        "--shards=0",
        "--order=random",
        "--filter=a = 1",
        "--memory=1",
        "--on-error=no",
    ] {
        prep.run(["convert", &file("a.tfrecord"), &file("out"), flag])
            .expect(2);
    }
    prep.run(["convert", &file("a.tfrecord")]).expect(2);
    // Names that look like flags, and with spaces.
    fs::copy(home.path().join("a.tfrecord"), home.path().join("-x y.tfrecord")).unwrap();
    let mut command = prep.command(["convert", "--", "-x y.tfrecord", "-out"]);
    assert!(command.current_dir(home.path()).status().unwrap().success());
    assert_eq!(shards(&home.path().join("-out")).concat(), [b"x".to_vec()]);
}

#[test]
fn a_tfds_folder_becomes_one_of_array_records() {
    let prep = Prep::new();
    prep.build("mnist", &["--shards", "3"]).expect(0);
    let built = prep.catalog().join("data/mnist/3.0.1");
    let home = temp_dir();
    let source = home.path().join("mnist");
    fs::create_dir(&source).unwrap();
    for entry in fs::read_dir(&built).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.contains(".array_record-") {
            write_tfrecord(
                &source.join(name.replace(".array_record-", ".tfrecord-")),
                Compression::Plain,
                &records(&path),
            );
        } else if name.ends_with(".txt") || name == "features.json" {
            fs::copy(&path, source.join(name)).unwrap();
        } else if name == "dataset_info.json" {
            let text = fs::read_to_string(&path).unwrap();
            fs::write(
                source.join(name),
                text.replace("\"array_record\"", "\"tfrecord\""),
            )
            .unwrap();
        }
    }
    let out = home.path().join("out");
    let words = |more: &[&str]| {
        let mut words = vec![
            "convert".to_owned(),
            source.to_str().unwrap().to_owned(),
            out.to_str().unwrap().to_owned(),
        ];
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    };
    prep.run(words(&["--options", "group_size:1,uncompressed"]))
        .expect(0);
    let mut names = 0;
    for entry in fs::read_dir(&built).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("prep_") {
            continue;
        }
        names += 1;
        // PNG does not compress: the build left it as it is, too.
        assert!(
            fs::read(&path).unwrap() == fs::read(out.join(&name)).unwrap(),
            "{name}"
        );
    }
    assert!(names >= 8, "{names}");
    assert!(
        prep.run(words(&["--options", "group_size:1,uncompressed"]))
            .expect(0)
            .stdout
            .contains("up to date")
    );
    // Other numbers of shards are told in the JSON.
    prep.run(words(&["--shards", "2", "--overwrite"])).expect(0);
    let info: serde_json::Value =
        serde_json::from_slice(&fs::read(out.join("dataset_info.json")).unwrap()).unwrap();
    assert_eq!(info["splits"][0]["shardLengths"].as_array().unwrap().len(), 2);
    assert!(out.join("mnist-train.array_record-00001-of-00002").exists());
    // A shard with fewer records than the folder says, and one that is absent.
    let shard = source.join("mnist-train.tfrecord-00001-of-00003");
    write_tfrecord(&shard, Compression::Plain, &[b"x".to_vec()]);
    let run = prep.run(words(&["--overwrite"])).expect(1);
    assert!(run.stderr.contains("dataset_info.json says"), "{}", run.stderr);
    fs::remove_file(&shard).unwrap();
    assert!(
        prep.run(words(&["--overwrite"]))
            .expect(1)
            .stderr
            .contains("is not there")
    );
}

#[test]
fn urls_are_read_by_ranges() {
    let home = temp_dir();
    let mut noise = Noise(21);
    let records = examples(&mut noise, 400);
    fs::create_dir(home.path().join("web")).unwrap();
    write_tfrecord(&home.path().join("web/a.tfrecord"), Compression::Plain, &records);
    write_tfrecord(
        &home.path().join("web/b.tfrecord.gz"),
        Compression::Gzip,
        &records[..100],
    );
    let server = FileServer::start(home.path().join("web"), [Fault::None, Fault::Status(503)]);
    let prep = Prep::new();
    let out = home.path().join("out");
    let words = [
        "convert".to_owned(),
        server.url("a.tfrecord"),
        server.url("b.tfrecord.gz"),
        out.to_str().unwrap().to_owned(),
        "--shards".to_owned(),
        "2".to_owned(),
    ];
    prep.run(&words).expect(0);
    assert_eq!(shards(&out).concat(), [&records[..], &records[..100]].concat());
    assert!(prep.run(&words).expect(0).stdout.contains("up to date"));
    let run = prep
        .run([
            "convert",
            &server.url("absent"),
            home.path().join("o").to_str().unwrap(),
        ])
        .expect(1);
    assert!(run.stderr.contains("/absent"), "{}", run.stderr);
}

#[test]
fn a_full_disk_is_told_and_the_rerun_goes_on() {
    let Some(disk) = SmallDisk::mount(3 << 10) else {
        return;
    };
    let home = temp_dir();
    let mut noise = Noise(1);
    let records: Vec<Vec<u8>> = (0..40).map(|_| noise.bytes(100_000)).collect();
    let path = home.path().join("a.tfrecord");
    write_tfrecord(&path, Compression::Plain, &records);
    let out = disk.join("out");
    let prep = Prep::new();
    let words = [
        "convert",
        path.to_str().unwrap(),
        out.to_str().unwrap(),
        "--shards",
        "4",
        "--workers",
        "1",
    ];
    let run = prep.run(words).expect(1);
    assert!(
        run.stderr.contains("no space is left at") && !out.exists(),
        "{}",
        run.stderr
    );
    disk.resize(64 << 10);
    let again = prep.run(words).expect(0);
    assert!(
        again.stdout.contains("of them from an earlier run"),
        "{}",
        again.stdout
    );
    assert!(shards(&out).concat() == records);
}

/// Hard links to one file, `links` times 64 MiB.
fn linked(folder: &Path, links: usize) {
    let mut noise = Noise(12);
    let text: Vec<u8> = (0..64 << 10).map(|_| b'a' + noise.below(4) as u8).collect();
    let mut writer = tfrecord::Writer::new(
        fs::File::create(folder.join("0.tfrecord")).unwrap(),
        Compression::Plain,
    )
    .unwrap();
    for index in 0..64 << 10 {
        let mut example = Example::default();
        example
            .features
            .insert("label".into(), FeatureList::Int64(vec![index % 1000]));
        let start = noise.below(60 << 10) as usize;
        example.features.insert(
            "text".into(),
            FeatureList::Bytes(vec![text[start..start + 970].to_vec()]),
        );
        writer.write(&example.encode()).unwrap();
    }
    writer.finish().unwrap();
    for link in 1..links {
        fs::hard_link(folder.join("0.tfrecord"), folder.join(format!("{link}.tfrecord"))).unwrap();
    }
}

fn stays_small(links: usize, more: &[&str]) {
    let home = temp_dir();
    linked(home.path(), links);
    let prep = Prep::new();
    let mut words = vec![
        "convert".to_owned(),
        home.path().join("*.tfrecord").to_str().unwrap().to_owned(),
        home.path().join("out").to_str().unwrap().to_owned(),
    ];
    words.extend(["--memory", "64M", "--workers", "2", "--options", "zstd:1"].map(str::to_owned));
    words.extend(more.iter().map(|word| (*word).to_owned()));
    let peak = peak_mib(prep.command(&words));
    assert!(peak < 200, "{peak} MiB");
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(home.path().join("out/prep_convert.json")).unwrap()).unwrap();
    assert_eq!(manifest["records"], (links as u64) << 16);
}

#[test]
fn two_gigabytes_pass_through_a_small_budget() {
    stays_small(32, &["--shards", "4"]);
}

#[test]
fn a_sort_stays_within_its_budget() {
    stays_small(6, &["--order", "key:label", "--shards", "4"]);
}

#[test]
#[ignore = "2 GB through a sort: for `make soak`"]
fn two_gigabytes_are_sorted_in_a_small_budget() {
    stays_small(32, &["--order", "shuffle:1", "--shards", "4"]);
}

#[test]
fn several_processes_write_the_bytes_of_one_also_after_kills() {
    let home = temp_dir();
    let mut noise = Noise(99);
    for index in 0..5 {
        let records = examples(&mut noise, 1200);
        let path = home.path().join(format!("{index}.tfrecord"));
        write_tfrecord(&path, Compression::Plain, &records);
    }
    let prep = Prep::new();
    let pattern = home.path().join("*.tfrecord").to_str().unwrap().to_owned();
    for more in [
        &["--shards", "7", "--options", "zstd:15"][..],
        &["--shards", "same"],
        &[
            "--order",
            "shuffle:3",
            "--shards",
            "5",
            "--filter",
            "label != 0",
            "--options",
            "zstd:15",
        ],
        &["--dedup", "exact", "--limit", "900", "--shards", "3"],
    ] {
        let (one, many) = (home.path().join("one"), home.path().join("many"));
        let words = |output: &Path| {
            let mut words = vec![
                "convert".to_owned(),
                pattern.clone(),
                output.to_str().unwrap().to_owned(),
            ];
            words.extend(
                ["--workers", "2"]
                    .iter()
                    .chain(more)
                    .map(|word| (*word).to_owned()),
            );
            words
        };
        let whole = prep.run(words(&one)).expect(0);
        let mut run = |output: &Path, kill: bool| {
            let hosts = free_hosts(3);
            let mut children: Vec<_> = (0..3)
                .map(|process| {
                    let words = words(output);
                    member(&prep, words.iter().map(String::as_str), &hosts, process)
                        .stdout(Stdio::null())
                        .stderr(Stdio::piped())
                        .spawn()
                        .unwrap()
                })
                .collect();
            if kill {
                std::thread::sleep(Duration::from_millis(100 + noise.below(500)));
                let _ = children[noise.below(3) as usize].kill();
            }
            for child in children {
                let output = child.wait_with_output().unwrap();
                let told = String::from_utf8_lossy(&output.stderr);
                assert!(kill || output.status.success(), "{more:?}: {told}");
            }
        };
        let undisturbed = home.path().join("undisturbed");
        run(&undisturbed, false);
        assert_same_folder(&one, &undisturbed);
        fs::remove_dir_all(&undisturbed).unwrap();
        for kill in [true, true, false] {
            run(&many, kill);
        }
        assert_same_folder(&one, &many);
        let again = prep.run(words(&many)).expect(0);
        assert!(again.stdout.contains("up to date") && !whole.stdout.is_empty());
        assert!(!home.path().join(".staging").exists());
        fs::remove_dir_all(&one).unwrap();
        fs::remove_dir_all(&many).unwrap();
    }
}

#[test]
fn skipping_is_limited_over_all_processes_and_runs() {
    let home = temp_dir();
    let mut noise = Noise(17);
    for name in ["a", "b", "c"] {
        let path = home.path().join(format!("{name}.tfrecord"));
        write_tfrecord(&path, Compression::Plain, &examples(&mut noise, 20));
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 5;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    let prep = Prep::new();
    let (pattern, out) = (home.path().join("*.tfrecord"), home.path().join("out"));
    let run = |processes: &str, policy: &str| {
        let words = [
            "launch",
            "--processes",
            processes,
            "--",
            "convert",
            "--shards",
            "same",
        ];
        let places = [pattern.to_str().unwrap(), out.to_str().unwrap()];
        prep.run(words.into_iter().chain(["--on-error", policy]).chain(places))
    };
    // One in each process is as many as three in one.
    for processes in ["1", "3"] {
        let refused = run(processes, "skip:2").expect(1).stderr;
        assert!(
            refused.contains("3 records are damaged, more than may be skipped"),
            "{refused}"
        );
        assert!(!out.exists());
    }
    // What three were left out of by an earlier run is not what is asked for now.
    run("3", "skip:3").expect(3);
    for processes in ["1", "3"] {
        let refused = run(processes, "skip:2").expect(1).stderr;
        assert!(
            refused.contains("was made with 3 damaged records left out"),
            "{refused}"
        );
        assert!(run(processes, "skip:3").expect(3).stdout.contains("up to date"));
    }
}

#[test]
fn a_file_cut_in_its_first_record_can_be_left_out() {
    let home = temp_dir();
    let mut noise = Noise(18);
    let at = |name: &str| home.path().join(name);
    write_tfrecord(&at("a.tfrecord"), Compression::Plain, &examples(&mut noise, 5));
    write_tfrecord(&at("b.tfrecord"), Compression::Plain, &examples(&mut noise, 5));
    let bytes = fs::read(at("b.tfrecord")).unwrap();
    let prep = Prep::new();
    let out = at("out");
    let run = |policy: &str| {
        let places = [home.path().to_str().unwrap(), out.to_str().unwrap()];
        let inputs = format!("{}/*.tfrecord", places[0]);
        prep.run(["convert", &inputs, places[1], "--on-error", policy])
    };
    fs::write(at("b.tfrecord"), &bytes[..14]).unwrap();
    run("fail").expect(1);
    run("skip").expect(3);
    assert_eq!(shards(&out).concat().len(), 5);
    // Without a whole length nobody knows what it is; and there is no advice that was followed already.
    fs::remove_dir_all(&out).unwrap();
    fs::write(at("b.tfrecord"), &bytes[..11]).unwrap();
    let refused = run("skip").expect(1).stderr;
    assert!(
        refused.contains("get the file again, or leave it out"),
        "{refused}"
    );
}

#[test]
fn paths_that_are_not_text_are_taken_as_they_are() {
    use std::os::unix::ffi::OsStringExt;

    let home = temp_dir();
    let odd = |name: &[u8]| home.path().join(OsString::from_vec(name.to_vec()));
    let records = vec![b"one".to_vec(), b"two".to_vec()];
    write_tfrecord(&odd(b"in\xff.tfrecord"), Compression::Plain, &records);
    let prep = Prep::new();
    for (input, out) in [
        (odd(b"in\xff.tfrecord"), odd(b"out\xff")),
        (home.path().join("*.tfrecord"), home.path().join("out")),
    ] {
        let mut command = prep.command(["convert"]);
        let ended = command.arg(input).arg(&out).output().unwrap();
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        assert_eq!(shards(&out).concat(), records);
    }
}

#[test]
fn a_report_or_trace_writes_over_no_input() {
    let home = temp_dir();
    let input = home.path().join("a.tfrecord");
    write_tfrecord(&input, Compression::Plain, &[b"one".to_vec()]);
    let bytes = fs::read(&input).unwrap();
    let prep = Prep::new();
    let (input_text, out) = (input.to_str().unwrap(), home.path().join("out"));
    let run = |more: &[&str]| {
        let words = ["convert", input_text, out.to_str().unwrap()];
        prep.run(words.iter().chain(more))
    };
    for flag in ["--report", "--trace"] {
        let refused = run(&[flag, input_text]).expect(1).stderr;
        assert!(
            refused.contains(&format!("which is no {} of prep", &flag[2..])),
            "{refused}"
        );
        assert!(fs::read(&input).unwrap() == bytes && !out.exists());
        let inside = out.join("x.json");
        run(&[flag, inside.to_str().unwrap()]).expect(2);
    }
    let same = home.path().join("same.json");
    let same = same.to_str().unwrap();
    run(&["--report", same, "--trace", same]).expect(2);
    run(&["--report", same]).expect(0);
    run(&["--report", same]).expect(0);
}

#[test]
fn a_mount_point_is_refused_before_the_work() {
    // Proc is one, wherever the tests run.
    let home = temp_dir();
    let input = home.path().join("a.tfrecord");
    write_tfrecord(&input, Compression::Plain, &[b"one".to_vec()]);
    let run = Prep::new().run(["convert", input.to_str().unwrap(), "/proc", "--overwrite"]);
    let told = run.expect(1).stderr;
    assert!(
        told.contains("is a mount point") && told.contains("`/proc/data`"),
        "{told}"
    );
}

#[test]
fn a_tfds_folder_keeps_a_schema_that_fits_its_records() {
    let prep = Prep::new();
    prep.build("cifar10", &[]).expect(0);
    let built = prep.catalog().join("data/cifar10/3.0.2");
    let home = temp_dir();
    let (built_text, out) = (built.to_str().unwrap(), home.path().join("out"));
    let run = |input: &str, more: &[&str]| {
        let _ = fs::remove_dir_all(&out);
        let words = ["convert", input, out.to_str().unwrap()];
        prep.run(words.iter().chain(more))
    };
    let cat = || {
        let words = [
            "cat",
            out.to_str().unwrap(),
            "--split",
            "test",
            "--records",
            "0..1",
            "--json",
            "--digest",
        ];
        let text = prep.run(words).expect(0).stdout;
        let line: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        line["features"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let info = || -> serde_json::Value {
        serde_json::from_slice(&fs::read(out.join("dataset_info.json")).unwrap()).unwrap()
    };
    run(built_text, &[]).expect(0);
    assert_eq!(
        (cat(), info()["supervisedKeys"].is_null()),
        (vec!["id".into(), "image".into(), "label".into()], false)
    );
    run(built_text, &["--select", "label"]).expect(0);
    assert_eq!(
        (cat(), info()["supervisedKeys"].is_null()),
        (vec!["label".into()], true)
    );
    assert!(out.join("label.labels.txt").exists());
    run(built_text, &["--rename", "label=digit"]).expect(0);
    assert_eq!(cat(), ["digit", "id", "image"]);
    assert!(info()["supervisedKeys"].to_string().contains("digit"));
    assert!(out.join("digit.labels.txt").exists() && !out.join("label.labels.txt").exists());
    // In a catalog it is the same.
    let catalog = home.path().join("catalog");
    run(
        built_text,
        &["--select", "label", "--catalog", catalog.to_str().unwrap()],
    )
    .expect(0);
    assert_eq!(cat(), ["label"]);
    for (more, reason) in [
        (["--select", "nope"], "not in the schema"),
        (["--rename", "nope=x"], "cannot be renamed"),
        (["--rename", "image=label"], "declared twice"),
        (["--name", "other"], "no meaning"),
    ] {
        let told = run(built_text, &more).expect(1).stderr;
        assert!(told.contains(reason), "{more:?}: {told}");
    }
    // A schema or a description that is damaged.
    let copy = home.path().join("copy");
    let damage = |name: &str, change: &dyn Fn(String) -> String| {
        let _ = fs::remove_dir_all(&copy);
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(&built).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
        }
        let text = fs::read_to_string(copy.join(name)).unwrap();
        fs::write(copy.join(name), change(text)).unwrap();
        run(copy.to_str().unwrap(), &[]).expect(1).stderr
    };
    let told = damage("features.json", &|text| text.replace('}', ""));
    assert!(
        told.contains("features.json") && told.contains("not JSON"),
        "{told}"
    );
    let told = damage("dataset_info.json", &|text| text.replace("\"test\"", "\"train\""));
    assert!(
        told.contains("names the shard") && told.contains("twice"),
        "{told}"
    );
}

#[test]
fn a_conversion_can_be_registered_and_loaded() {
    let home = temp_dir();
    let mut noise = Noise(4);
    let inputs = mixed_inputs(home.path(), &mut noise, 60);
    let total: usize = inputs.iter().map(Vec::len).sum();
    let prep = Prep::new();
    let catalog = prep.catalog().to_str().unwrap().to_owned();
    let pattern = home.path().join("*.rec").to_str().unwrap().to_owned();
    let out = home.path().join("out").to_str().unwrap().to_owned();
    let words = [
        "convert",
        &pattern,
        &out,
        "--name",
        "mine",
        "--shards",
        "3",
        "--catalog",
        &catalog,
    ];
    prep.run(words).expect(0);
    let listed = prep.run(["list", "--json"]).expect(0).json();
    assert_eq!(
        (
            listed[0]["name"].as_str(),
            listed[0]["splits"]["train"]["examples"].as_u64()
        ),
        (Some("mine"), Some(total as u64))
    );
    let loaded = prep
        .run(["load", "mine", "--batch", "16", "--json"])
        .expect(0)
        .json();
    assert_eq!(loaded[0]["rows"].as_u64(), Some(total as u64), "{loaded:?}");
    assert!(prep.run(words).expect(0).stdout.contains("up to date"));
    // Another folder under the same name is refused before any work, one in its place is replaced with its entry.
    let other = home.path().join("other").to_str().unwrap().to_owned();
    let refused = prep
        .run([
            "convert",
            &pattern,
            &other,
            "--name",
            "mine",
            "--catalog",
            &catalog,
        ])
        .expect(1);
    assert!(
        refused.stderr.contains("the catalog has mine:1.0.0 already"),
        "{}",
        refused.stderr
    );
    prep.run(words.iter().chain(&["--limit", "20", "--overwrite"]))
        .expect(0);
    let loaded = prep
        .run(["load", "mine", "--batch", "7", "--json"])
        .expect(0)
        .json();
    assert_eq!(loaded[0]["rows"].as_u64(), Some(20));
    // What are no examples cannot be in a catalog; nothing is left of it.
    write_tfrecord(
        &home.path().join("x.tfrecord"),
        Compression::Plain,
        &[b"\xff\xff\xff".to_vec()],
    );
    let raw = home.path().join("x.tfrecord").to_str().unwrap().to_owned();
    let refused = prep
        .run(["convert", &raw, &other, "--name", "raw", "--catalog", &catalog])
        .expect(1);
    assert!(
        refused.stderr.contains("has no features for a catalog"),
        "{}",
        refused.stderr
    );
    assert!(!Path::new(&other).exists());
}
