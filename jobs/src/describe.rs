//! Datasets and builds as JSON: what `prep list --json`, `prep show --json` and `prep build --json` print, and what Python gets.

use anyhow::Result;
use prep_catalog::{Catalog, Change, DatasetName, Listed, Manifest, Resolved, SplitSummary, VersionRecord};
use prep_formats::features::{Encoding, Feature, Features};
use serde_json::{Map, Value, json};

use crate::build::{BuildOutcome, statistics};
use crate::convert::ConvertOutcome;

/// A version in a listing: `name`, `config`, `version`, `splits` {name: {`examples`, `shards`, `bytes`}}, `fingerprint`, `path`, and `tags`
/// [{`name`, `version`}], those that name it.
pub fn listed(listed: &Listed) -> Value {
    let mut object = entry(
        &listed.name,
        listed.config.as_deref(),
        &listed.record,
        listed.folder.to_string(),
    );
    let tags = listed.tags.iter();
    object["tags"] = tags
        .map(|tag| json!({"name": tag, "version": listed.record.version}))
        .collect();
    object
}

/// A version as [`listed`], and `features`, `sources`, `statistics`, `log`, `layout`, `flags`, `in_place`; `tags` are all of the dataset, whatever
/// version they name. `statistics` has `examples`, `bytes` and `skipped`, and where the version was made with statistics what its
/// `prep_statistics.json` has.
///
/// # Errors
/// The features or the statistics cannot be read.
pub fn resolved(resolved: &Resolved) -> Result<Value> {
    let folder = &resolved.folder;
    let features = Features::read_location(folder)?;
    let manifest = &resolved.manifest;
    let sum = |of: fn(&SplitSummary) -> u64| {
        resolved
            .record
            .splits
            .iter()
            .map(|(_, split)| of(split))
            .sum::<u64>()
    };
    let mut object = entry(
        &resolved.name,
        resolved.config.as_deref(),
        &resolved.record,
        folder.to_string(),
    );
    object["features"] = describe_features(&features);
    object["sources"] = sources(manifest);
    object["statistics"] = json!({
        "examples": sum(|split| split.examples),
        "bytes": sum(|split| split.bytes),
        "skipped": resolved.record.skipped_records,
    });
    for (key, value) in statistics::read(resolved)?.unwrap_or_default() {
        object["statistics"][key] = value;
    }
    object["tags"] = resolved
        .all_tags
        .iter()
        .map(|(tag, version)| json!({"name": tag, "version": version}))
        .collect();
    object["log"] = resolved.log_number.into();
    object["layout"] = manifest.layout.clone().into();
    object["flags"] = json!(resolved.record.flags);
    object["in_place"] = manifest.in_place.into();
    Ok(object)
}

/// What a version was made from: `sources`, `recipe_sha256`, options and skipped records of each split, `flags`, `shares`; `kind`, `program`, `host`,
/// `time` and `commit_id` of its log entry; and `history`, what the log tells of this version number and its tags.
///
/// Reads every entry of the log.
///
/// # Errors
/// As [`Catalog::resolve`] and [`Catalog::entry`].
pub fn lineage(catalog: &Catalog, name: &DatasetName) -> Result<Value, prep_catalog::Error> {
    let resolved = catalog.resolve(name)?;
    let mut object = entry(
        &resolved.name,
        resolved.config.as_deref(),
        &resolved.record,
        resolved.folder.to_string(),
    );
    let mut history = Vec::new();
    for number in 0.. {
        let Some(entry) = catalog.entry(name, number)? else {
            break;
        };
        let is_version = |version: &str| version == resolved.version;
        let what = match &entry.change {
            Change::Build(record) | Change::Register(record) | Change::Append(record)
                if is_version(&record.version) =>
            {
                entry.change.kind().to_owned()
            }
            Change::Tag(record) if is_version(&record.version) => format!("tag `{}`", record.tag),
            Change::Remove(record) if is_version(&record.version) => "remove".to_owned(),
            _ => continue,
        };
        let event = json!({
            "log": number,
            "what": what,
            "fingerprint": entry.change.version_record().map(|record| record.fingerprint.clone()),
            "program": entry.program,
            "host": entry.host,
            "time": entry.time,
            "commit_id": entry.commit_id,
        });
        if number == resolved.log_number {
            for field in ["program", "host", "time", "commit_id"] {
                object[field] = event[field].clone();
            }
        }
        history.push(event);
    }
    let manifest = &resolved.manifest;
    for split in &manifest.splits {
        object["splits"][&split.name]["options"] = split.options.clone().into();
        object["splits"][&split.name]["skipped"] = split.skipped.into();
    }
    object["kind"] = resolved.kind.clone().into();
    object["log"] = resolved.log_number.into();
    object["layout"] = manifest.layout.clone().into();
    object["manifest_sha256"] = resolved.record.manifest_sha256.clone().into();
    object["recipe_sha256"] = manifest.recipe_sha256.clone().into();
    object["sources"] = sources(manifest);
    object["flags"] = json!(resolved.record.flags);
    object["shares"] = json!(resolved.record.shares);
    object["skipped_records"] = resolved.record.skipped_records.into();
    object["other"] = resolved.record.other.clone().into();
    object["history"] = history.into();
    Ok(object)
}

fn sources(manifest: &Manifest) -> Value {
    manifest
        .sources
        .iter()
        .map(|source| match &source.tar_headers_sha256 {
            Some(headers) => {
                json!({"name": source.name, "bytes": source.bytes, "sha256": null, "tar_headers_sha256": headers})
            }
            None => json!({"name": source.name, "bytes": source.bytes, "sha256": source.sha256}),
        })
        .collect()
}

fn entry(name: &str, config: Option<&str>, record: &VersionRecord, path: String) -> Value {
    let splits: Map<String, Value> = record
        .splits
        .iter()
        .map(|(name, split)| {
            let counts = json!({"examples": split.examples, "shards": split.shards, "bytes": split.bytes});
            (name.clone(), counts)
        })
        .collect();
    json!({
        "name": name,
        "config": config,
        "version": record.version,
        "splits": splits,
        "fingerprint": record.fingerprint,
        "path": path,
    })
}

/// A schema in the words of recipes: {name: {`kind`, `dtype`, `shape`, ..}}; `null` in a shape is a size that varies.
pub fn describe_features(features: &Features) -> Value {
    let object: Map<String, Value> = features
        .iter()
        .map(|(name, feature)| (name.to_string(), describe_feature(feature)))
        .collect();
    object.into()
}

fn describe_feature(feature: &Feature) -> Value {
    let kind = match feature {
        Feature::Tensor { .. } => "tensor",
        Feature::Scalar { .. } => "scalar",
        Feature::Optional(inner) => {
            let mut object = describe_feature(inner);
            object["optional"] = true.into();
            return object;
        }
        Feature::Text => "text",
        Feature::ClassLabel { .. } => "class_label",
        Feature::Image { .. } => "image",
        Feature::LabeledImage { .. } => "labeled_image",
        Feature::Video { .. } => "video",
        Feature::Audio { .. } => "audio",
        Feature::BBox { .. } => "bbox",
        Feature::Sequence { .. } => "sequence",
        Feature::Dataset { .. } => "dataset",
        Feature::Dict(_) => "dict",
        Feature::Translation { .. } => "translation",
        Feature::TranslationVariableLanguages { .. } => "translation_variable_languages",
        _ => "other",
    };
    let mut object = json!({"kind": kind});
    if let (Some(dtype), Some(shape)) = (feature.dtype(), feature.shape()) {
        object["dtype"] = dtype.name().into();
        object["shape"] = json!(shape);
    }
    match feature {
        Feature::ClassLabel { num_classes, names } => {
            object["num_classes"] = (*num_classes).into();
            object["names"] = names.clone().into();
        }
        Feature::Image { encoding_format, .. } | Feature::Video { encoding_format, .. } => {
            object["encoding_format"] = encoding_format.clone().into();
        }
        Feature::LabeledImage {
            encoding_format,
            num_classes,
            names,
            ..
        } => {
            object["encoding_format"] = encoding_format.clone().into();
            object["num_classes"] = (*num_classes).into();
            object["names"] = names.clone().into();
        }
        Feature::Tensor { encoding, .. } if *encoding != Encoding::None => {
            object["encoding"] = encoding.name().into();
        }
        Feature::Audio {
            encoding,
            file_format,
            sample_rate,
            ..
        } => {
            object["encoding"] = encoding.name().into();
            object["file_format"] = file_format.clone().into();
            object["sample_rate"] = (*sample_rate).into();
        }
        Feature::BBox { format } => object["format"] = format.clone().into(),
        Feature::Sequence { feature, length } | Feature::Dataset { feature, length } => {
            object["feature"] = describe_feature(feature);
            object["length"] = (*length).into();
        }
        Feature::Dict(features) => {
            let features: Map<String, Value> = features
                .iter()
                .map(|(name, feature)| (name.clone(), describe_feature(feature)))
                .collect();
            object["features"] = features.into();
        }
        Feature::Translation { languages } | Feature::TranslationVariableLanguages { languages } => {
            object["languages"] = languages.clone().into();
        }
        _ => {}
    }
    object
}

/// How a build ended: `status` (`built`, `up to date` or `planned`), the dataset, its splits, and what the build took.
pub fn outcome(outcome: &BuildOutcome) -> Value {
    let splits: Map<String, Value> = outcome
        .splits
        .iter()
        .map(|split| {
            let value = json!({
                "examples": split.examples,
                "shards": split.shards,
                "bytes": split.bytes,
                "skipped": split.skipped,
            });
            (split.name.clone(), value)
        })
        .collect();
    json!({
        "status": outcome.status.name(),
        "name": outcome.name,
        "config": outcome.config,
        "version": outcome.version,
        "path": outcome.path,
        "fingerprint": outcome.fingerprint,
        "splits": splits,
        "skipped": outcome.skipped,
        "log": outcome.log,
        "seconds": (outcome.seconds * 1e3).round() / 1e3,
        "workers": outcome.workers,
        "memory_bytes": outcome.memory_bytes,
        "peak_held_bytes": outcome.peak_held_bytes,
        "spilled_bytes": outcome.spilled_bytes,
        "source_bytes": outcome.source_bytes,
        "shards_found_finished": outcome.shards_found,
        "unchecked_sources": outcome.unchecked,
        "graph": outcome.graph.as_ref().map(crate::explain::Graph::json),
    })
}

/// How a conversion ended: `status` (`converted`, `up to date` or `planned`), its inputs and shards, and what it took.
pub fn converted(outcome: &ConvertOutcome) -> Value {
    let bytes_in: u64 = outcome.inputs.iter().map(|input| input.bytes).sum();
    let bytes_out: u64 = outcome.shards.iter().map(|shard| shard.bytes).sum();
    let slowest = outcome
        .shards
        .iter()
        .filter(|shard| shard.seconds > 0.0)
        .max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    json!({
        "status": outcome.status.name(),
        "path": outcome.path,
        "records": outcome.records,
        "bytes_in": bytes_in,
        "bytes_out": bytes_out,
        "payload_bytes": outcome.payload_bytes,
        "skipped": outcome.skipped,
        "filtered": outcome.filtered,
        "duplicates": outcome.duplicates,
        "shards_found": outcome.shards_found,
        "log": outcome.log,
        "plan": outcome.plan,
        "graph": outcome.graph.as_ref().map(crate::explain::Graph::json),
        "seconds": outcome.seconds,
        "workers": outcome.workers,
        "peak_held_bytes": outcome.peak_held_bytes,
        "spilled_bytes": outcome.spilled_bytes,
        "slowest_shard": slowest.map(|shard| json!({"path": shard.path, "seconds": shard.seconds})),
        "inputs": outcome.inputs.iter().map(|input| json!({
            "name": input.name,
            "kind": input.kind,
            "bytes": input.bytes,
            "records": input.records,
            "skipped": input.skipped,
        })).collect::<Vec<_>>(),
        "shards": outcome.shards.iter().map(|shard| json!({
            "path": shard.path,
            "records": shard.records,
            "bytes": shard.bytes,
            "sha256": shard.sha256,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    use prep_formats::value::DType;

    #[test]
    fn features_are_described_in_the_words_of_recipes() {
        let image = Feature::Image {
            shape: vec![None, Some(28), Some(1)],
            dtype: DType::UInt8,
            encoding_format: None,
        };
        let label = Feature::ClassLabel {
            num_classes: 2,
            names: vec!["a".into(), "b".into()],
        };
        let features = Features::new(vec![("label".into(), label), ("image".into(), image)]).unwrap();
        assert_eq!(
            describe_features(&features),
            json!({
                "image": {"kind": "image", "dtype": "uint8", "shape": [null, 28, 1], "encoding_format": null},
                "label": {"kind": "class_label", "dtype": "int64", "shape": [], "num_classes": 2, "names": ["a", "b"]},
            })
        );
    }
}
