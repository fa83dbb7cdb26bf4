//! `prep diff`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use prep_catalog::{DatasetName, Resolved};
use serde_json::{Value, json};

use crate::cli::from_catalog::CatalogArgs;
use crate::cli::from_catalog::{advise, catalog};
use crate::cli::output::Usage;
use crate::cli::progress::Display;
use crate::cli::{Global, Outcome, stop};
use crate::diff::{DiffOptions, Difference, diff};
use crate::monitor::Monitor;
use crate::resources::parse_size;

/// Shows what differs between two versions: features, and examples added, removed and changed.
///
/// Examples are compared by content; with `--key FEATURE` those of the same key and other content count as changed. Shards that both versions have are not
/// read. Memory is bounded whatever the size.
///
/// Example: prep diff my_data:1.0.0 my_data:1.1.0 --key id
#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// The first: `name`, `name/config`, `name:version` or `name@tag`.
    before: String,
    /// The second.
    after: String,
    /// The feature that tells which example is which.
    #[arg(long, value_name = "FEATURE")]
    key: Option<String>,
    /// Only this split.
    #[arg(long)]
    split: Option<String>,
    /// How many examples of each kind are named, by their indices.
    #[arg(long, value_name = "N", default_value_t = 10)]
    examples: usize,
    /// Memory for the comparison, as in 512M.
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    memory: String,
    /// Folder for what does not fit into memory; default: the system's for temporary files.
    #[arg(long, value_name = "DIR")]
    spill_dir: Option<PathBuf>,
    /// Ends with exit code 1 where something differs.
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    at: CatalogArgs,
}

pub(crate) fn run(args: &Diff, global: &Global) -> anyhow::Result<Outcome> {
    let memory = parse_size(&args.memory).map_err(|reason| Usage(format!("`--memory`: {reason}")))?;
    let catalog = catalog(args.at.catalog.as_deref())?;
    let resolve = |name: &str| -> anyhow::Result<Resolved> {
        let name = DatasetName::parse(name).map_err(advise)?;
        catalog.resolve(&name).map_err(advise)
    };
    let (before, after) = (resolve(&args.before)?, resolve(&args.after)?);
    let options = DiffOptions::default()
        .key(args.key.clone())
        .split(args.split.clone())
        .memory_bytes(memory)
        .spill_folder(args.spill_dir.clone())
        .examples(args.examples);
    let monitor = Monitor::new();
    stop::on_signals(&monitor.switch())?;
    let found = {
        let _display = Display::bars(&monitor, global);
        diff(&before, &after, &options, &monitor)?
    };
    let text = if args.at.json {
        let mut object = found.json();
        object["before"] = side(&before);
        object["after"] = side(&after);
        format!("{object}\n")
    } else {
        for_people(&before, &after, &found)
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(if args.exit_code && !found.is_same() {
        Outcome::No
    } else {
        Outcome::Done
    })
}

fn side(resolved: &Resolved) -> Value {
    json!({
        "name": resolved.name,
        "config": resolved.config,
        "version": resolved.version,
        "fingerprint": resolved.record.fingerprint,
    })
}

fn for_people(before: &Resolved, after: &Resolved, found: &Difference) -> String {
    let (a, b) = (before.dataset_name(), after.dataset_name());
    if found.is_same() {
        return format!("{a} and {b} have the same examples and features\n");
    }
    let mut out = format!("from {a} to {b}\n");
    for (mark, names) in [('+', &found.features_added), ('-', &found.features_removed)] {
        for name in names {
            out += &format!("  {mark} feature {name}\n");
        }
    }
    for (name, old, new) in &found.features_changed {
        out += &format!("  ~ feature {name}: {old} -> {new}\n");
    }
    for (name, split) in &found.splits {
        let count = |count: Option<u64>| count.map_or("none".to_owned(), |count| count.to_string());
        out += &format!(
            "  split {name}: {} -> {} examples: {} added, {} removed",
            count(split.before),
            count(split.after),
            split.added,
            split.removed
        );
        if found.is_keyed {
            out += &format!(", {} changed", split.changed);
        }
        out += &format!(
            ", {} unchanged{}\n",
            split.unchanged,
            if split.is_reordered {
                ", in another order"
            } else {
                ""
            }
        );
        let list = |indices: &[u64], all: u64| {
            let shown: Vec<String> = indices.iter().map(u64::to_string).collect();
            let more = if (indices.len() as u64) < all { ", .." } else { "" };
            format!("{}{more}", shown.join(", "))
        };
        if !split.removed_indices.is_empty() {
            out += &format!("    - {}\n", list(&split.removed_indices, split.removed));
        }
        if !split.added_indices.is_empty() {
            out += &format!("    + {}\n", list(&split.added_indices, split.added));
        }
        if !split.changed_indices.is_empty() {
            let pairs: Vec<String> = split
                .changed_indices
                .iter()
                .map(|(old, new)| format!("{old} -> {new}"))
                .collect();
            let more = if (pairs.len() as u64) < split.changed {
                ", .."
            } else {
                ""
            };
            out += &format!("    ~ {}{more}\n", pairs.join(", "));
        }
    }
    out
}
