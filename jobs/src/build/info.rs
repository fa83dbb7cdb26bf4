//! Writes what describes a version: TFDS's JSON files, and the manifest.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use prep_catalog::manifest::{Manifest, SourceManifest, SplitManifest};
use prep_formats::dataset_info::{DatasetInfo, FILEPATH_TEMPLATE, SplitInfo};
use prep_formats::features::{Feature, Features};
use prep_formats::store::Location;

use crate::build::Output;
use crate::build::shard::ShardSummary;
use crate::builder::{DatasetSpec, SourceIdentity, SourcePlace};
use crate::fetch::{Checksum, Fetched};

/// The manifest of a version, and its spec with the names of classes that the sources gave.
pub(super) fn describe(
    spec: &DatasetSpec,
    recipe_sha256: &str,
    fetched: &[Fetched],
    sums: &[Checksum],
    output: &Output,
) -> Result<(DatasetSpec, Manifest)> {
    let features = with_names(&spec.features, &output.class_names)?;
    let manifest = manifest(spec, &features, recipe_sha256, fetched, sums, output)?;
    let spec = DatasetSpec {
        features,
        ..spec.clone()
    };
    Ok((spec, manifest))
}

/// Writes all files that describe a version into `out`, durably; the manifest last.
pub(super) fn write(spec: &DatasetSpec, manifest: &Manifest, out: &Path) -> Result<()> {
    write_descriptions(spec, manifest, out)?;
    Ok(manifest.write(&Location::from_path(out))?)
}

/// Writes what TFDS has beside the shards, durably: the features and `dataset_info.json`.
pub(crate) fn write_descriptions(spec: &DatasetSpec, manifest: &Manifest, out: &Path) -> Result<()> {
    for (name, text) in spec.features.to_files() {
        write_file(&out.join(name), &text)?;
    }
    write_file(
        &out.join("dataset_info.json"),
        &dataset_info(spec, manifest).to_json(),
    )
}

/// A source as manifests have it.
pub(crate) fn source(name: &str, sum: &Checksum) -> SourceManifest {
    let digest = hex::encode(sum.sha256);
    let (sha256, tar_headers_sha256) = match sum.identity {
        SourceIdentity::Sha256 => (digest, None),
        SourceIdentity::TarHeaders => (String::new(), Some(digest)),
    };
    SourceManifest {
        name: name.to_owned(),
        bytes: sum.bytes,
        sha256,
        tar_headers_sha256,
    }
}

/// The schema with the names of classes that the sources gave.
fn with_names(features: &Features, class_names: &[(String, Vec<String>)]) -> Result<Features> {
    if class_names.is_empty() {
        return Ok(features.clone());
    }
    let renamed = features.iter().map(|(name, feature)| {
        let found = class_names.iter().find(|(feature, _)| feature == name);
        let feature = match (feature, found) {
            (Feature::ClassLabel { num_classes, .. }, Some((_, names))) => Feature::ClassLabel {
                num_classes: *num_classes,
                names: names.clone(),
            },
            (feature, _) => feature.clone(),
        };
        (name.to_owned(), feature)
    });
    Ok(Features::new(renamed.collect())?)
}

fn manifest(
    spec: &DatasetSpec,
    features: &Features,
    recipe_sha256: &str,
    fetched: &[Fetched],
    sums: &[Checksum],
    output: &Output,
) -> Result<Manifest> {
    let mut splits = Vec::new();
    let skipped: Vec<&[u64]> = output.skipped.chunks(spec.sources_of_split().max(1)).collect();
    for (index, split) in spec.splits.iter().enumerate() {
        let shards: Vec<_> = output
            .shards
            .iter()
            .filter(|shard| shard.split as usize / spec.sources_of_split().max(1) == index)
            .collect();
        splits.push(SplitManifest {
            name: split.name.clone(),
            records: shards.iter().map(|shard| shard.records).sum(),
            bytes: shards.iter().map(|shard| shard.payload_bytes).sum(),
            options: spec.options.clone(),
            skipped: skipped.get(index).map_or(0, |groups| groups.iter().sum()),
            shards: shards.into_iter().map(ShardSummary::described).collect(),
        });
    }
    let mut manifest = Manifest {
        format: 1,
        name: spec.name.clone(),
        config: spec.config.clone(),
        version: spec.version.clone(),
        fingerprint: String::new(),
        recipe_sha256: recipe_sha256.to_owned(),
        layout: spec.layout.name().to_owned(),
        in_place: false,
        sources: fetched
            .iter()
            .zip(sums)
            .map(|(fetched, sum)| source(&fetched.name, sum))
            .collect(),
        splits,
        files: Vec::new(),
    };
    manifest.fingerprint = fingerprint(&manifest, features)?;
    Ok(manifest)
}

/// The fingerprint of a version with these features.
pub(crate) fn fingerprint(manifest: &Manifest, features: &Features) -> Result<String> {
    let fingerprint = manifest.fingerprint_with(&features.canonical_json());
    fingerprint.context("the hash of a shard's records is malformed")
}

fn dataset_info(spec: &DatasetSpec, manifest: &Manifest) -> DatasetInfo {
    DatasetInfo {
        name: spec.name.clone(),
        config_name: spec.config.clone(),
        config_description: spec.config_description.clone(),
        release_notes: spec.release_notes.clone(),
        version: spec.version.clone(),
        description: spec.description.clone(),
        citation: spec.citation.clone(),
        license: spec.licence.clone(),
        urls: spec.urls.clone(),
        module_name: spec.module_name.clone(),
        // What users have to get by themselves is not downloaded.
        download_size: match manifest.in_place {
            true => 0,
            false => spec
                .sources
                .iter()
                .zip(&manifest.sources)
                .filter(|(spec, _)| spec.place != SourcePlace::Unknown)
                .map(|(_, source)| source.bytes)
                .sum(),
        },
        file_format: match manifest.splits.iter().flat_map(|split| &split.shards).next() {
            Some(shard) if shard.index.is_some() => "tfrecord".to_owned(),
            _ => "array_record".to_owned(),
        },
        supervised_keys: spec.supervised_keys.clone(),
        splits: manifest
            .splits
            .iter()
            .map(|split| SplitInfo {
                name: split.name.clone(),
                shard_lengths: split.shards.iter().map(|shard| shard.records).collect(),
                num_bytes: split.bytes,
                filepath_template: FILEPATH_TEMPLATE.to_owned(),
                ..SplitInfo::default()
            })
            .collect(),
        ..DatasetInfo::default()
    }
}

/// Writes a file, durably.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<()> {
    File::create(path)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .with_context(|| format!("could not write {}", path.display()))
}
