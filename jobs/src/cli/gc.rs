//! `prep gc`.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use prep_catalog::DatasetName;
use prep_formats::store::Location;
use serde_json::{Value, json};

use crate::cli::from_catalog::CatalogArgs;
use crate::cli::from_catalog::{advise, catalog};
use crate::cli::output::{Hinted, Usage, say};
use crate::cli::{Global, Outcome, stop};
use crate::gc::{self, Deleted, GcOptions, Item};
use crate::monitor::Monitor;
use crate::resources::show_size;

/// Finds the data of removed versions, and staging and folders that killed jobs have left, and deletes them with `--delete`.
///
/// Without `--delete` it only shows what would go, and what is spared and why. Nothing that a version of the catalog needs is ever deleted, nor anything
/// younger than `--older-than`, nor files that were registered where they lay. Readers of versions that are there notice nothing.
///
/// Example: prep gc, and then: prep gc --delete
#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Only the data of removed versions of this dataset, and folders of killed jobs.
    name: Option<String>,
    /// Deletes.
    #[arg(long, conflicts_with = "dry_run")]
    delete: bool,
    /// Shows what would be deleted, and does nothing: the default.
    #[arg(long)]
    dry_run: bool,
    /// Spares what is younger: a number of days, hours, minutes or seconds, as in 7d, 12h, 30m, 0s.
    #[arg(long, value_name = "AGE", default_value = "7d")]
    older_than: String,
    /// A data folder to look for staging in, besides those where versions of the catalog lie; may be repeated.
    #[arg(long, value_name = "URL")]
    data_dir: Vec<String>,
    #[command(flatten)]
    at: CatalogArgs,
}

pub(crate) fn run(args: &Gc, global: &Global) -> anyhow::Result<Outcome> {
    let spared = parse_age(&args.older_than).map_err(|reason| Usage(format!("`--older-than`: {reason}")))?;
    let name = args.name.as_deref().map(DatasetName::parse).transpose();
    let name = name.map_err(advise)?;
    let data_dirs = args.data_dir.iter().map(|text| Location::parse(text));
    let options = GcOptions::default()
        .dataset(name)
        .spared(spared)
        .data_dirs(data_dirs.collect::<Result<_, _>>()?);
    let catalog = catalog(args.at.catalog.as_deref())?;
    if let Some(name) = &options.dataset
        && !catalog
            .datasets()
            .map_err(advise)?
            .iter()
            .any(|known| known.place() == name.place())
    {
        return Err(Hinted::new(
            format!("there is no dataset `{}` in {}", name.place(), catalog.location()),
            "`prep list` shows what there is; without a name, all of the catalog is looked through",
        )
        .into());
    }
    let monitor = Monitor::new();
    stop::on_signals(&monitor.switch())?;
    if args.delete {
        catalog.check_commits().map_err(advise)?;
    }
    let items = gc::plan(&catalog, &options, &monitor)?;
    let mut out = io::stdout().lock();
    let (mut count, mut total, mut kept) = (0_u64, Deleted::default(), 0_u64);
    let mut each = |item: &Item, outcome: Result<Deleted, String>| -> anyhow::Result<()> {
        let (status, files) = match &outcome {
            Ok(deleted) => {
                count += 1;
                total.files += deleted.files;
                total.bytes += deleted.bytes;
                (if args.delete { "deleted" } else { "garbage" }, *deleted)
            }
            Err(_) => {
                kept += 1;
                let (files, bytes) = (item.files, item.bytes);
                ("kept", Deleted { files, bytes })
            }
        };
        let why = outcome.err();
        if args.at.json {
            writeln!(out, "{}", describe(item, status, files, why.as_deref()))?;
        } else {
            let why = why.map_or(String::new(), |why| format!("; kept: {why}"));
            writeln!(
                out,
                "{status:8} {:9} {:>10}  {}  ({}{why})",
                item.kind.name(),
                show_size(files.bytes),
                item.location,
                item.reason
            )?;
        }
        Ok(())
    };
    if args.delete {
        gc::delete(&catalog, &items, &options, &monitor, &mut each)?;
    } else {
        for item in &items {
            let found = Deleted {
                files: item.files,
                bytes: item.bytes,
            };
            each(item, item.kept.clone().map_or(Ok(found), Err))?;
        }
    }
    out.flush()?;
    if !args.at.json && !global.quiet {
        let size = show_size(total.bytes);
        let verb = if args.delete {
            "deleted"
        } else {
            "would be deleted"
        };
        say(format_args!(
            "{count} {verb} ({} files, {size}), {kept} kept",
            total.files
        ));
        if !args.delete && count > 0 {
            say("`--delete` deletes them");
        }
    }
    Ok(Outcome::Done)
}

fn describe(item: &Item, status: &str, files: Deleted, kept: Option<&str>) -> Value {
    json!({
        "status": status,
        "kind": item.kind.name(),
        "path": item.location.to_string(),
        "files": files.files,
        "bytes": files.bytes,
        "age_seconds": (item.age != Duration::MAX).then_some(item.age.as_secs()),
        "reason": item.reason,
        "kept": kept,
    })
}

/// `7d`, `12h`, `30m`, `10s`; a number alone is days.
fn parse_age(text: &str) -> Result<Duration, String> {
    let fault =
        || format!("`{text}` is no age; wanted a number and a unit, as in `7d`, `12h`, `30m` or `0s`");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "" | "d" => 86_400,
        "h" => 3_600,
        "m" => 60,
        "s" => 1,
        _ => return Err(fault()),
    };
    let number: u64 = number.parse().map_err(|_| fault())?;
    number
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_numbers_with_a_unit() {
        for (text, seconds) in [("7d", 604_800), ("0", 0), ("2h", 7_200), ("3m", 180), ("5s", 5)] {
            assert_eq!(parse_age(text), Ok(Duration::from_secs(seconds)));
        }
        for wrong in ["", "d", "-1d", "1w", "1.5d", "99999999999999999999d"] {
            assert!(parse_age(wrong).is_err(), "{wrong}");
        }
    }
}
