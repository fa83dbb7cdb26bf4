//! How long it takes to open a dataset by name, among 1,000 versions of 10,000 shards: `open_many [VERSIONS] [SHARDS]`.
//!
//! Makes a catalog in a temporary folder, commits the versions, and prints the median time to resolve `name`, `name:version`, `name@tag` and `name@log=N`,
//! each from a catalog that was just opened, as a new process does.

#![allow(clippy::print_stdout, reason = "a program that prints times")]

use std::time::Instant;

use prep_catalog::fingerprint::SequenceHash;
use prep_catalog::{Build, Catalog, DatasetName, Manifest, ShardManifest, SplitManifest};
use prep_formats::store::Location;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| -> Result<u64, std::num::ParseIntError> {
        arguments.next().map_or(Ok(default), |text| text.parse())
    };
    let (versions, shards) = (number(1_000)?, number(10_000)?);
    let folder = std::env::temp_dir().join(format!("prep-open-many-{}", std::process::id()));
    let location = Location::from_path(folder.join("catalog"));
    let catalog = Catalog::open(&location)?;
    let started = Instant::now();
    for version in 0..versions {
        // Only the last one is opened below, and has all of its shards.
        let count = if version + 1 == versions { shards } else { 1 };
        let manifest = manifest(&format!("1.0.{version}"), count);
        let folder = catalog.data_dir().join(&format!("big/1.0.{version}"));
        std::fs::create_dir_all(folder.local_path()?)?;
        manifest.write(&folder)?;
        catalog.commit_build(&Build::new(&manifest, folder))?;
    }
    let name = DatasetName::parse("big")?;
    catalog.tag(&name, "best")?;
    let commit_ms = started.elapsed().as_secs_f64() * 1e3 / versions as f64;
    println!("{versions} versions committed, {commit_ms:.1} ms each; {shards} shards in the last one");
    let last = versions - 1;
    let names = [
        "big".to_string(),
        format!("big:1.0.{last}"),
        "big@best".to_string(),
        format!("big@log={last}"),
    ];
    for name in names {
        let name = DatasetName::parse(&name)?;
        let mut times = Vec::new();
        for _ in 0..21 {
            let started = Instant::now();
            let found = Catalog::open(&location)?.resolve(&name)?;
            times.push(started.elapsed());
            assert_eq!(found.manifest.splits[0].shards.len() as u64, shards);
        }
        times.sort();
        println!("{name:16} {:6.1} ms", times[times.len() / 2].as_secs_f64() * 1e3);
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn manifest(version: &str, shards: u64) -> Manifest {
    let shard = |index: u64| {
        let record = index.to_le_bytes();
        ShardManifest {
            path: format!("big-train.array_record-{index:05}-of-{shards:05}"),
            records: 1,
            bytes: 65_536,
            sha256: "ab".repeat(32),
            sequence_hash: SequenceHash::of([record]).to_hex(),
            min_key: Some("00".repeat(16)),
            max_key: Some("ff".repeat(16)),
            index: None,
        }
    };
    Manifest {
        format: 1,
        name: "big".into(),
        config: None,
        version: version.into(),
        fingerprint: "cd".repeat(32),
        recipe_sha256: "ef".repeat(32),
        layout: "by-source".into(),
        in_place: false,
        sources: Vec::new(),
        splits: vec![SplitManifest {
            name: "train".into(),
            records: shards,
            bytes: 8 * shards,
            options: "group_size:1,uncompressed".into(),
            skipped: 0,
            shards: (0..shards).map(shard).collect(),
        }],
        files: Vec::new(),
    }
}
