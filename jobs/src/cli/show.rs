//! `prep show`.

use clap::Args;
use serde_json::Value;

use crate::cli::from_catalog::{CatalogArgs, heading, text};
use crate::cli::{Global, Outcome, from_catalog};
use crate::describe;

/// Shows one dataset: splits, features, sources, fingerprint.
///
/// With `--json` one object: what `prep list` gives, and features, sources, statistics, tags [{name, version}].
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// `name`, `name/config`, `name:version` or `name@tag`.
    name: String,
    #[command(flatten)]
    at: CatalogArgs,
}

pub(crate) fn run(args: &Show, _global: &Global) -> anyhow::Result<Outcome> {
    let resolved = from_catalog::resolve(args.at.catalog.as_deref(), &args.name)?;
    let object = describe::resolved(&resolved)?;
    args.at.print(&object, for_people)
}

/// The description as lines of text.
fn for_people(object: &Value) -> String {
    let entries = |field: &str| object[field].as_object().into_iter().flatten();
    let mut out = heading(object);
    out += &format!("path         {}\n", text(&object["path"]));
    out += &format!("fingerprint  {}\n", text(&object["fingerprint"]));
    let tags: Vec<String> = object["tags"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|tag| tag["version"] == object["version"])
        .map(|tag| text(&tag["name"]))
        .collect();
    if !tags.is_empty() {
        out += &format!("tags         {}\n", tags.join(", "));
    }
    if object["in_place"] == true {
        out += "note         in place: the files of shards are their owner's, and stay where they are\n";
    }
    for (name, value) in entries("flags") {
        out += &format!("note         {name}: {}\n", text(value));
    }
    out += "splits\n";
    for (name, split) in entries("splits") {
        let (examples, shards, bytes) = (&split["examples"], &split["shards"], &split["bytes"]);
        out += &format!("  {name}: {examples} examples, {bytes} bytes in {shards} shards\n");
    }
    out += "features\n";
    for (name, feature) in entries("features") {
        let shape = feature["shape"]
            .to_string()
            .replace("null", "?")
            .replace(',', ", ");
        out += &format!(
            "  {name}: {} {}{shape}",
            text(&feature["kind"]),
            text(&feature["dtype"])
        );
        let names: Vec<String> = feature["names"]
            .as_array()
            .into_iter()
            .flatten()
            .map(text)
            .collect();
        if let Some(classes) = feature["num_classes"].as_u64() {
            out += &format!(", {classes} classes");
        }
        if !names.is_empty() {
            let more = if names.len() > 10 { ", .." } else { "" };
            out += &format!(": {}{more}", names[..names.len().min(10)].join(", "));
        }
        out.push('\n');
    }
    out += "sources\n";
    for source in object["sources"].as_array().into_iter().flatten() {
        let (name, bytes) = (text(&source["name"]), &source["bytes"]);
        out += &match source["tar_headers_sha256"].as_str() {
            Some(headers) => format!("  {name}: {bytes} bytes, sha256 of its headers {headers}\n"),
            None => format!("  {name}: {bytes} bytes, sha256 {}\n", text(&source["sha256"])),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_description_for_people_has_every_part() {
        let object = json!({
            "name": "x", "config": null, "version": "1.0.0", "path": "p", "fingerprint": "f", "tags": [{"name": "t", "version": "1.0.0"}, {"name": "u", "version": "2.0.0"}],
            "flags": {"checksum": "skipped"}, "splits": {"train": {"examples": 3, "shards": 1, "bytes": 30}},
            "features": {
                "image": {"kind": "image", "dtype": "uint8", "shape": [null, 28, 1]},
                "label": {"kind": "class_label", "dtype": "int64", "shape": [], "num_classes": 2, "names": ["a", "b"]},
            },
            "sources": [{"name": "s", "bytes": 5, "sha256": "ab"}],
        });
        assert_eq!(
            for_people(&object),
            "x:1.0.0\npath         p\nfingerprint  f\ntags         t\nnote         checksum: skipped\nsplits\n  \
             train: 3 examples, 30 bytes in 1 shards\nfeatures\n  image: image uint8[?, 28, 1]\n  \
             label: class_label int64[], 2 classes: a, b\nsources\n  s: 5 bytes, sha256 ab\n"
        );
    }
}
