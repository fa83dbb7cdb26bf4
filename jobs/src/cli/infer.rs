//! `prep infer`.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::cli::output::{Usage, say};
use crate::cli::{Global, Outcome};
use crate::error::Hinted;
use crate::infer::{Inferred, Question, infer};
use crate::recipe::rows::ROW_KINDS;
use crate::resources;

/// Classes that are shown of a feature.
const MOST_CLASSES: usize = 20;

/// Writes a first recipe from the data themselves.
///
/// Looks at a file or folder: which kind of files there are (tables, JSON Lines, texts, pictures in folders, samples in tar archives ..), whether
/// folders or names stand for splits (`train/..`, `test.csv`), which features and classes there are and how many examples. Shows some of
/// these, and writes a recipe that `prep register` takes as it is, or after you looked it over. Reads the data twice. Rows that are damaged are counted,
/// and the exit code is 3: `prep register --on-error skip` leaves them out.
///
/// Example: prep infer photos -o photos.toml && prep register photos.toml
#[derive(Debug, Args)]
pub(crate) struct Infer {
    /// A file, an archive or a folder.
    path: PathBuf,
    /// The recipe to write; paths in it are relative to its folder.
    #[arg(short, long, value_name = "RECIPE.toml")]
    output: PathBuf,
    /// The dataset's name; default: that of the file or folder.
    #[arg(long)]
    name: Option<String>,
    /// The reader, where the files do not tell.
    #[arg(long, value_name = "READER")]
    kind: Option<String>,
    /// Examples to show.
    #[arg(long, value_name = "N", default_value_t = 3)]
    samples: usize,
    /// Replaces the recipe if it is there.
    #[arg(long)]
    overwrite: bool,
    /// One JSON object on standard output.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Infer, global: &Global) -> Result<Outcome> {
    if let Some(kind) = args.kind.as_deref().filter(|kind| !ROW_KINDS.contains(kind)) {
        return Err(Usage(format!(
            "`--kind {kind}` is not known; there are {}",
            ROW_KINDS.join(", ")
        ))
        .into());
    }
    let recipe = args.output.display();
    if !args.overwrite && args.output.exists() {
        return Err(Hinted::new(format!("{recipe} is there already"), "`--overwrite` replaces it").into());
    }
    let inferred = infer(&Question {
        path: &args.path,
        recipe: &args.output,
        name: args.name.as_deref(),
        kind: args.kind.as_deref(),
        samples: args.samples,
        workers: resources::default_workers(),
    })?;
    write_whole(args, &inferred.text).with_context(|| format!("could not write {recipe}"))?;
    if let Some((count, first)) = inferred.damaged.as_ref().filter(|_| !global.quiet) {
        say(format_args!(
            "warning: {count} rows are damaged; the first: {first}"
        ));
    }
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", as_json(args, &inferred))?;
    } else {
        show(args, &inferred, &mut out)?;
    }
    Ok(match inferred.damaged {
        Some(_) => Outcome::Skipped,
        None => Outcome::Done,
    })
}

/// Writes the recipe; one that is there is replaced as a whole.
fn write_whole(args: &Infer, text: &str) -> Result<()> {
    if !args.overwrite {
        let mut file = File::create_new(&args.output)?;
        file.write_all(text.as_bytes())?;
        return Ok(file.sync_all()?);
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(args.output.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    let beside = args.output.with_file_name(name);
    let written = File::create(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &args.output)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    Ok(written?)
}

fn as_json(args: &Infer, inferred: &Inferred) -> serde_json::Value {
    let splits: serde_json::Map<_, _> = inferred
        .splits
        .iter()
        .map(|(name, count)| (name.clone(), (*count).into()))
        .collect();
    let features: serde_json::Map<_, _> = inferred
        .features
        .iter()
        .map(|(name, feature)| {
            let shape = feature.shape();
            let dtype = feature.dtype().map(|dtype| dtype.name());
            (
                name.to_owned(),
                json!({"class": feature.class(), "dtype": dtype, "shape": shape}),
            )
        })
        .collect();
    json!({
        "recipe": args.output.display().to_string(),
        "name": inferred.name,
        "kind": inferred.kind,
        "splits": splits,
        "features": features,
        "classes": inferred.classes,
        "samples": inferred.samples,
        "damaged": inferred.damaged.as_ref().map_or(0, |(count, _)| *count),
    })
}

fn show(args: &Infer, inferred: &Inferred, out: &mut impl Write) -> Result<()> {
    let splits: Vec<String> = inferred
        .splits
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    writeln!(
        out,
        "{}: {}, {} examples",
        inferred.name,
        inferred.kind,
        splits.join(", ")
    )?;
    for (name, feature) in inferred.features.iter() {
        let dtype = feature.dtype().map_or(String::new(), |dtype| format!(" {dtype}"));
        writeln!(out, "  {}: {}{dtype}", name.escape_debug(), feature.class())?;
        for (class, count) in inferred
            .classes
            .get(name)
            .into_iter()
            .flatten()
            .take(MOST_CLASSES)
        {
            writeln!(out, "    {}: {count}", class.escape_debug())?;
        }
        let more = inferred
            .classes
            .get(name)
            .map_or(0, |classes| classes.len().saturating_sub(MOST_CLASSES));
        if more > 0 {
            writeln!(out, "    and {more} classes more")?;
        }
    }
    for sample in &inferred.samples {
        writeln!(out, "example: {sample}")?;
    }
    let recipe = args.output.display();
    let (skip, without) = match inferred.damaged {
        Some(_) => (" --on-error skip", " without the damaged rows"),
        None => ("", ""),
    };
    writeln!(
        out,
        "{recipe} is written; `prep register {recipe}{skip}` makes the dataset{without}"
    )?;
    Ok(())
}
