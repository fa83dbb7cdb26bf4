//! `prep show`.

use clap::Args;
use serde_json::Value;

use crate::cli::from_catalog::{CatalogArgs, heading, text};
use crate::cli::progress::show_count;
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
        add_feature(name, feature, 1, &mut out);
    }
    out += &statistics(&object["statistics"]);
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

/// A line for a feature, and one below it for each that is nested in it.
fn add_feature(name: &str, feature: &Value, depth: usize, out: &mut String) {
    *out += &format!("{}{name}: {}", "  ".repeat(depth), text(&feature["kind"]));
    let mut inner = feature;
    // What is made of several features has no type of its own.
    while inner["dtype"].is_null() && inner["feature"].is_object() {
        inner = &inner["feature"];
        *out += &format!(" of {}", text(&inner["kind"]));
    }
    if !feature["dtype"].is_null() {
        let shape = feature["shape"]
            .to_string()
            .replace("null", "?")
            .replace(',', ", ");
        *out += &format!(" {}{shape}", text(&feature["dtype"]));
    }
    if feature["optional"] == true {
        *out += ", optional";
    }
    if let Some(classes) = feature["num_classes"].as_u64() {
        *out += &format!(", {classes} classes");
    }
    let names = feature["names"].as_array().or(feature["languages"].as_array());
    let names: Vec<String> = names.into_iter().flatten().map(text).collect();
    if !names.is_empty() {
        let more = if names.len() > 10 { ", .." } else { "" };
        *out += &format!(": {}{more}", names[..names.len().min(10)].join(", "));
    }
    out.push('\n');
    for (name, feature) in inner["features"].as_object().into_iter().flatten() {
        add_feature(name, feature, depth + 1, out);
    }
}

/// The statistics of all splits: a table for each, then what comes more than once.
fn statistics(object: &Value) -> String {
    let Some(splits) = object["splits"].as_object() else {
        return "statistics   none: it was made without; `prep build` and `prep register` count them\n"
            .to_owned();
    };
    let mut out = String::new();
    for (name, split) in splits {
        out += &format!("statistics of `{name}`\n");
        let mut rows = vec![["", "values", "missing", "distinct", ""].map(str::to_owned)];
        for (feature, column) in split["features"].as_object().into_iter().flatten() {
            let count = |key: &str| show_count(column[key].as_u64().unwrap_or(0));
            rows.push([
                feature.clone(),
                count("values"),
                count("missing"),
                count("distinct"),
                details(column),
            ]);
        }
        out += &table(&rows);
    }
    let duplicates = &object["duplicates"];
    let within = duplicates["within"].as_object().into_iter().flatten();
    for (name, count) in within.filter(|(_, count)| **count != 0) {
        out += &format!("duplicates   {count} examples of `{name}` are there already\n");
    }
    for pair in duplicates["across"].as_array().into_iter().flatten() {
        let (one, other) = (text(&pair["splits"][0]), text(&pair["splits"][1]));
        out += &format!(
            "duplicates   {} examples are in `{one}` and in `{other}`\n",
            pair["examples"]
        );
    }
    out
}

/// Columns side by side, the middle ones to the right.
fn table(rows: &[[String; 5]]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |[name, values, missing, distinct, details]: &[String; 5]| {
        let [first, second, third, fourth, _] = widths;
        let line =
            format!("  {name:first$}  {values:>second$}  {missing:>third$}  {distinct:>fourth$}  {details}");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

/// What is peculiar to a feature's kind.
fn details(column: &Value) -> String {
    const MOST_LABELS: usize = 6;
    let mut parts = Vec::new();
    if let Some(mean) = column["mean"].as_f64() {
        let (min, max) = (number(&column["min"]), number(&column["max"]));
        parts.push(format!("{min} to {max}, mean {}", rounded(mean)));
    }
    for (key, unit) in [("bytes", "bytes"), ("lengths", "elements")] {
        parts.extend(range(&column[key]).map(|range| format!("{range} {unit}")));
    }
    let sizes = &column["sizes"];
    if let (Some(width), Some(height)) = (range(&sizes["width"]), range(&sizes["height"])) {
        parts.push(format!("{width} wide, {height} high"));
        let of = |key: &str| {
            let names = sizes[key].as_object().into_iter().flatten();
            names.map(|(name, _)| name.clone()).collect::<Vec<_>>().join(", ")
        };
        parts.push(format!("channels {}, {}", of("channels"), of("formats")));
    }
    let labels = column["labels"].as_object().into_iter().flatten();
    let mut labels: Vec<String> = labels.map(|(name, count)| format!("{name}: {count}")).collect();
    if labels.len() > MOST_LABELS {
        let more = labels.len() - MOST_LABELS;
        labels.truncate(MOST_LABELS);
        labels.push(format!("and {more} more"));
    }
    parts.extend((!labels.is_empty()).then(|| labels.join(", ")));
    let odd = [
        ("unlabelled", &column["unlabelled"]),
        ("NaN", &column["nan"]),
        ("minus infinity", &column["infinite"]["negative"]),
        ("infinity", &column["infinite"]["positive"]),
        ("of an unknown format", &sizes["unknown"]),
    ];
    for (what, count) in odd {
        if let Some(count) = count.as_u64().filter(|count| *count > 0) {
            parts.push(format!("{} {what}", show_count(count)));
        }
    }
    parts.join("; ")
}

/// `1 to 5, mean 2.5`, or the one length that all have.
fn range(lengths: &Value) -> Option<String> {
    let (min, max) = (lengths["min"].as_u64()?, lengths["max"].as_u64()?);
    if min == max {
        return Some(show_count(min));
    }
    let mean = rounded(lengths["mean"].as_f64()?);
    Some(format!(
        "{} to {} (mean {mean})",
        show_count(min),
        show_count(max)
    ))
}

fn number(value: &Value) -> String {
    match value.as_f64() {
        Some(float) if value.is_f64() => rounded(float),
        _ => text(value),
    }
}

/// Four digits behind the point where that says something.
fn rounded(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    if (1e-3..1e9).contains(&value.abs()) {
        return format!("{value:.4}").trim_end_matches('0').to_owned();
    }
    format!("{value:.3e}")
}

#[cfg(test)]
mod tests {
    use prep_formats::features::{Feature, Features};
    use prep_formats::value::DType;
    use serde_json::json;

    use super::*;
    use crate::describe::describe_features;

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
             label: class_label int64[], 2 classes: a, b\nstatistics   none: it was made without; `prep build` and `prep register` \
             count them\nsources\n  s: 5 bytes, sha256 ab\n"
        );
    }

    #[test]
    fn nested_features_have_lines_of_their_own_that_say_what_may_be_missing() {
        let scalar = |dtype| Feature::Scalar { dtype };
        let optional = |dtype| Feature::Optional(Box::new(scalar(dtype)));
        let inner = Feature::dict([
            ("a", optional(DType::Int64)),
            ("b", Feature::sequence(scalar(DType::String))),
        ]);
        let languages = vec!["de".to_owned(), "en".to_owned()];
        let features = Features::new(vec![
            (
                "deep".into(),
                Feature::sequence(Feature::sequence(Feature::dict([("x", scalar(DType::Bool))]))),
            ),
            ("meta".into(), inner),
            ("score".into(), optional(DType::Float32)),
            ("words".into(), Feature::Translation { languages }),
        ]);
        let described = describe_features(&features.unwrap());
        let mut out = String::new();
        for (name, feature) in described.as_object().unwrap() {
            add_feature(name, feature, 1, &mut out);
        }
        assert_eq!(
            out,
            "  deep: sequence of sequence of dict\n    x: scalar bool[]\n  meta: dict\n    a: scalar int64[], optional\n    \
             b: sequence string[?]\n  score: scalar float32[], optional\n  words: translation: de, en\n"
        );
    }

    #[test]
    fn statistics_are_a_table_with_what_each_kind_has() {
        let lengths = |min: u64, max: u64| json!({"min": min, "max": max, "mean": 2.25, "histogram": []});
        let counts = |more: Value| {
            let mut column = json!({"examples": 1200, "missing": 3, "values": 1200, "distinct": 7});
            for (key, value) in more.as_object().unwrap() {
                column[key] = value.clone();
            }
            column
        };
        let labels: serde_json::Map<String, Value> =
            (0..8).map(|class| (format!("c{class}"), json!(class))).collect();
        let features = json!({
            "image": counts(json!({"sizes": {"width": lengths(5, 5), "height": lengths(1, 9), "channels": {"1": 2, "3": 9}, "formats": {"png": 11}, "unknown": 1}})),
            "label": counts(json!({"labels": labels, "unlabelled": 2})),
            "score": counts(json!({"min": -1.5, "max": 1e12, "mean": 0.33333333, "nan": 4, "infinite": {"negative": 0, "positive": 1}})),
            "words": counts(json!({"bytes": lengths(0, 4), "lengths": lengths(0, 2000)})),
            "year": counts(json!({"min": 1999, "max": 2026, "mean": 2000.5})),
            "none": {"examples": 0, "missing": 9, "values": 0, "distinct": 0, "min": null, "max": null, "mean": null},
        });
        let object = json!({
            "splits": {"train": {"examples": 1200, "features": features}},
            "duplicates": {"within": {"train": 5, "test": 0}, "across": [{"splits": ["train", "test"], "examples": 2}]},
        });
        assert_eq!(
            statistics(&object),
            "statistics of `train`
         values  missing  distinct
  image   1,200        3         7  5 wide, 1 to 9 (mean 2.25) high; channels 1, 3, png; 1 of an unknown format
  label   1,200        3         7  c0: 0, c1: 1, c2: 2, c3: 3, c4: 4, c5: 5, and 2 more; 2 unlabelled
  score   1,200        3         7  -1.5 to 1000000000000, mean 0.3333; 4 NaN; 1 infinity
  words   1,200        3         7  0 to 4 (mean 2.25) bytes; 0 to 2,000 (mean 2.25) elements
  year    1,200        3         7  1999 to 2026, mean 2000.5
  none        0        9         0
duplicates   5 examples of `train` are there already
duplicates   2 examples are in `train` and in `test`
"
        );
    }
}
