//! `prep lineage`.

use clap::Args;
use prep_catalog::DatasetName;
use serde_json::Value;

use crate::cli::from_catalog::{CatalogArgs, heading, text};
use crate::cli::from_catalog::{advise, catalog};
use crate::cli::{Global, Outcome};
use crate::describe;

/// Shows what a version was made from, by what, and with which options.
///
/// Sources with sizes and checksums, the recipe's hash, options of the shards, records left out, the program, the machine and the time; and what became of
/// versions of the same number before. With `--json` one object.
#[derive(Debug, Args)]
pub(crate) struct Lineage {
    /// `name`, `name/config`, `name:version` or `name@tag`.
    name: String,
    #[command(flatten)]
    at: CatalogArgs,
}

pub(crate) fn run(args: &Lineage, _global: &Global) -> anyhow::Result<Outcome> {
    let name = DatasetName::parse(&args.name).map_err(advise)?;
    let catalog = catalog(args.at.catalog.as_deref())?;
    let object = describe::lineage(&catalog, &name).map_err(advise)?;
    args.at.print(&object, for_people)
}

fn for_people(object: &Value) -> String {
    let mut out = heading(object);
    for (title, field) in [
        ("fingerprint", "fingerprint"),
        ("manifest", "manifest_sha256"),
        ("recipe", "recipe_sha256"),
        ("layout", "layout"),
        ("kind", "kind"),
        ("program", "program"),
        ("host", "host"),
        ("time", "time"),
        ("log entry", "log"),
        ("skipped", "skipped_records"),
    ] {
        out += &format!("{title:12} {}\n", text(&object[field]));
    }
    for (name, value) in object["flags"].as_object().into_iter().flatten() {
        out += &format!("note         {name}: {}\n", text(value));
    }
    for folder in object["shares"].as_array().into_iter().flatten() {
        out += &format!("shares       {}\n", text(folder));
    }
    out += "splits\n";
    for (name, split) in object["splits"].as_object().into_iter().flatten() {
        out += &format!(
            "  {name}: {} examples in {} shards, {}, {} left out\n",
            split["examples"],
            split["shards"],
            text(&split["options"]),
            split["skipped"]
        );
    }
    out += "sources\n";
    for source in object["sources"].as_array().into_iter().flatten() {
        let (name, bytes) = (text(&source["name"]), &source["bytes"]);
        out += &match source["tar_headers_sha256"].as_str() {
            Some(headers) => format!("  {name}: {bytes} bytes, sha256 of its headers {headers}\n"),
            None => format!("  {name}: {bytes} bytes, sha256 {}\n", text(&source["sha256"])),
        };
    }
    out += "history\n";
    for event in object["history"].as_array().into_iter().flatten() {
        out += &format!(
            "  entry {}: {} {} by {} on {}\n",
            event["log"],
            text(&event["time"]),
            text(&event["what"]),
            text(&event["program"]),
            text(&event["host"])
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lineage_for_people_has_every_part() {
        let object = json!({
            "name": "x", "config": "c", "version": "1.0.0", "fingerprint": "f", "manifest_sha256": "m",
            "recipe_sha256": "r", "layout": "tfds", "kind": "build", "program": "prep 0.1.0", "host": "h",
            "time": "t", "log": 0, "skipped_records": 2, "flags": {"checksum": "skipped"}, "shares": ["d"],
            "splits": {"train": {"examples": 3, "shards": 1, "options": "o", "skipped": 2}},
            "sources": [{"name": "s", "bytes": 5, "sha256": "ab"}],
            "history": [{"log": 0, "time": "t", "what": "build", "program": "p", "host": "h"}],
        });
        let text = for_people(&object);
        for part in [
            "x/c:1.0.0\n",
            "skipped      2\n",
            "note         checksum: skipped\n",
            "shares       d\n",
            "  train: 3 examples in 1 shards, o, 2 left out\n",
            "  s: 5 bytes, sha256 ab\n",
            "  entry 0: t build by p on h\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
