//! `prep load`.
//!
//! Without `--json`, two lines of text: what is streamed, and how fast. With it, one object at the end, with the fields of
//! [`Report`]. With `--indices`, one object a batch, `{"batch": 0, "indices": [...]}`, and nothing else: batches are numbered from 0
//! in each run.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use prep_catalog::Catalog;
use prep_formats::store::Cache;
use prep_loader::{Dataset, LoadMetrics, LoadOptions, OnDamage, Order, Plan, State};
use serde::Serialize;

use crate::cli::output::{Hinted, Usage, say};
use crate::cli::{Global, Outcome, stop};
use crate::resources::{parse_size, show_size};

/// Rows of a batch where none are asked for.
const DEFAULT_BATCH: u64 = 128;

/// Streams batches of a dataset and prints rates.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: prep load cifar10 --split 'train[:80%]' --batch 256 --seed 42 --batches 10 --save state.json"
)]
pub(crate) struct Load {
    /// `name`, `name/config`, `name:version` or `name@tag`.
    name: String,
    /// Split or sub-split: `train`, `train[:80%]`, `train+test`; default: the restored state's, else `train`.
    #[arg(long)]
    split: Option<String>,
    /// Rows a batch, per host; default: 128.
    #[arg(long, value_name = "N")]
    batch: Option<u64>,
    /// Shuffle seed; default: the restored state's, else 0.
    #[arg(long, value_name = "K")]
    seed: Option<u64>,
    /// Epochs, counted from the start of the stream, also after --restore; default: 1.
    #[arg(long, value_name = "E")]
    epochs: Option<u64>,
    /// Host number of hosts: `I/N`; default: 0/1.
    #[arg(long, value_name = "I/N")]
    shard: Option<String>,
    /// `prep` (shuffled), `grain` (as Grain shuffles), `source` (as stored) or `window:N` (windows of N records are shuffled, and the records in each: reads of
    /// an object store are few then); default: the restored state's, else prep.
    #[arg(long)]
    order: Option<String>,
    /// Decoding threads, 0: in the main one; default: one per core.
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// Leaves out a last batch that is not full.
    #[arg(long)]
    drop_remainder: bool,
    /// Stops after this many batches of this run.
    #[arg(long, value_name = "M")]
    batches: Option<u64>,
    /// Goes on from a saved state.
    #[arg(long, value_name = "STATE.json")]
    restore: Option<PathBuf>,
    /// Writes the position after the last printed batch.
    #[arg(long, value_name = "STATE.json")]
    save: Option<PathBuf>,
    /// Prints the global indices of each batch, and decodes nothing.
    #[arg(long)]
    indices: bool,
    /// What to do with a record that cannot be read: `fail`, `skip` or `skip:MAX`.
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "fail",
        conflicts_with = "indices"
    )]
    on_error: String,
    /// Says where the time goes, which stage limits, and what to change.
    #[arg(long, conflicts_with = "indices")]
    profile: bool,
    #[command(flatten)]
    from: FromArgs,
    /// One JSON object on stdout, at the end.
    #[arg(long)]
    json: bool,
}

/// Where a dataset comes from.
#[derive(Debug, Args)]
pub(crate) struct FromArgs {
    /// Catalog folder or URL.
    #[arg(long, env = "PREP_CATALOG", value_parser = crate::cli::from_catalog::place)]
    catalog: Option<String>,
    /// Folder that keeps what is read of object stores, for all processes of this host.
    #[arg(long, value_name = "DIR", env = "PREP_CACHE")]
    cache: Option<PathBuf>,
    /// Most that the cache takes on disk, as in 200G; at least 1M.
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    cache_size: String,
}

impl FromArgs {
    fn catalog(&self) -> anyhow::Result<Catalog> {
        let location = prep_catalog::catalog_location(self.catalog.as_deref()).map_err(advise)?;
        let catalog = Catalog::open(&location).map_err(advise)?;
        Ok(catalog.suggesting(crate::recipe::builtin::names()))
    }

    /// Opens a split by name, with the cache.
    pub(crate) fn open(
        &self,
        name: &str,
        split: Option<&str>,
        state: Option<&State>,
    ) -> anyhow::Result<Dataset> {
        let limit =
            parse_size(&self.cache_size).map_err(|reason| Usage(format!("`--cache-size`: {reason}")))?;
        let cache = self
            .cache
            .as_deref()
            .map(|folder| Cache::open(folder, limit))
            .transpose()?;
        let catalog = self.catalog()?;
        let opened = match state {
            Some(state) => prep_loader::open_for_state(&catalog, name, split, state),
            None => prep_loader::open(&catalog, name, split.unwrap_or("train")),
        };
        let dataset = opened.map_err(explain)?;
        Ok(match cache {
            Some(cache) => dataset.with_cache(cache),
            None => dataset,
        })
    }
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    dataset: String,
    split: String,
    /// Records of the split.
    records: u64,
    seed: u64,
    order: String,
    batch_size: u64,
    shard_index: u64,
    shard_count: u64,
    drop_remainder: bool,
    steps_per_epoch: u64,
    /// Of this run.
    batches: u64,
    /// Rows that this host was given.
    rows: u64,
    /// Bytes of the batches, decoded.
    bytes: u64,
    seconds: f64,
    rows_per_second: f64,
    bytes_per_second: f64,
    /// From the start of the command; null without a batch.
    seconds_to_first_batch: Option<f64>,
    /// Records left out as damaged.
    skipped: u64,
    /// Where the time went; null without `--profile`.
    profile: Option<Profile>,
    /// Position after the last batch.
    state: State,
}

/// Where the time of a stream went, in seconds; those of threads are sums over all threads.
#[derive(Debug, Serialize)]
struct Profile {
    threads: usize,
    prefetch: usize,
    read_seconds: f64,
    decode_seconds: f64,
    room_wait_seconds: f64,
    consumer_wait_seconds: f64,
    /// Batches that were ready, on average, when one was asked for.
    ready_batches: f64,
    /// Null without a cache.
    cached_bytes: Option<u64>,
    fetched_bytes: Option<u64>,
    retries: u64,
    /// `consumer`, `read`, `decode`, or `nothing` where no batch came.
    limit: String,
    advice: String,
}

impl Profile {
    fn new(metrics: &LoadMetrics) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: metrics.threads,
            prefetch: metrics.prefetch,
            read_seconds: metrics.read.as_secs_f64(),
            decode_seconds: metrics.decode.as_secs_f64(),
            room_wait_seconds: metrics.room_wait.as_secs_f64(),
            consumer_wait_seconds: metrics.consumer_wait.as_secs_f64(),
            ready_batches: metrics.ready_batches,
            cached_bytes: metrics.cache.map(|cache| cache.cached_bytes),
            fetched_bytes: metrics.cache.map(|cache| cache.fetched_bytes),
            retries: metrics.retries,
            limit: metrics.limit().to_string(),
            advice: metrics.advice(cores),
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} threads, {} batches ahead: read {:.3} s, decode {:.3} s, wait for room {:.3} s; the consumer waited {:.3} s and found {:.1} batches ready\n",
            self.threads,
            self.prefetch,
            self.read_seconds,
            self.decode_seconds,
            self.room_wait_seconds,
            self.consumer_wait_seconds,
            self.ready_batches
        );
        if let (Some(cached), Some(fetched)) = (self.cached_bytes, self.fetched_bytes) {
            text.push_str(&format!(
                "cache: {} were there, {} came from the store\n",
                show_size(cached),
                show_size(fetched)
            ));
        }
        if self.retries > 0 {
            text.push_str(&format!("{} requests were tried again\n", self.retries));
        }
        text.push_str(&format!("limit: {}; {}\n", self.limit, self.advice));
        text
    }
}

pub(crate) fn run(args: &Load, global: &Global) -> anyhow::Result<Outcome> {
    let begin = Instant::now();
    let options = args.options()?;
    let dataset = args
        .from
        .open(&args.name, args.split.as_deref(), options.restore.as_ref())?;
    if args.batches == Some(0) && args.save.is_some() {
        let plan = dataset.plan(&options).map_err(explain)?;
        save(args.save.as_deref(), &plan.state())?;
        return Ok(Outcome::Done);
    }
    let stop = Arc::new(AtomicBool::new(false));
    stop::on_signals(&stop)?;
    if args.indices {
        return args.print_indices(&dataset, &options, global, &stop);
    }
    args.stream(&dataset, options, global, begin, &stop)
}

impl Load {
    fn options(&self) -> anyhow::Result<LoadOptions> {
        let mut options = LoadOptions::new(self.batch.unwrap_or(DEFAULT_BATCH))
            .num_epochs(self.epochs.unwrap_or(1))
            .drop_remainder(self.drop_remainder)
            .num_threads(self.threads)
            .profile(self.profile);
        if options.batch_size == 0 {
            return Err(Usage("`--batch 0` is out of range: a batch has at least 1 row".into()).into());
        }
        options.seed = self.seed;
        options.on_damage = self
            .on_error
            .parse::<OnDamage>()
            .map_err(|error| Usage(format!("`--on-error`: {error}")))?;
        if let Some(order) = &self.order {
            options = options.order(order.parse::<Order>().map_err(|_| {
                Usage(format!(
                    "`--order {order}` is not known: wanted `prep`, `grain`, `source` or `window:N`"
                ))
            })?);
        }
        if let Some(shard) = &self.shard {
            let (index, count) = read_shard(shard)?;
            options = options.shard(index, count);
        }
        if let Some(path) = &self.restore {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("could not read state `{}`", path.display()))?;
            let state = State::from_json(&text)
                .with_context(|| format!("could not restore from `{}`", path.display()))?;
            options = options.restore(state);
        }
        Ok(options)
    }

    fn print_indices(
        &self,
        dataset: &Dataset,
        options: &LoadOptions,
        global: &Global,
        stop: &AtomicBool,
    ) -> anyhow::Result<Outcome> {
        let mut plan = dataset.plan(options).map_err(explain)?;
        note_position(&plan, options, global);
        let mut out = BufWriter::new(std::io::stdout().lock());
        let (mut indices, mut line) = (Vec::new(), String::new());
        let mut number = 0;
        while self.batches.is_none_or(|batches| number < batches) && !stop.load(Ordering::Relaxed) {
            let Some(step) = plan.next_step() else {
                break;
            };
            indices.clear();
            plan.indices(&step, &mut indices);
            line.clear();
            line.push_str(&format!("{{\"batch\": {number}, \"indices\": ["));
            for (at, &index) in indices.iter().enumerate() {
                if at > 0 {
                    line.push_str(", ");
                }
                line.push_str(&dataset.global_index(index)?.to_string());
            }
            line.push_str("]}\n");
            out.write_all(line.as_bytes())?;
            number += 1;
        }
        out.flush()?;
        save(self.save.as_deref(), &plan.state())?;
        self.unless_stopped(stop, number)
    }

    /// Success, or where Ctrl-C stopped the stream what to do next.
    fn unless_stopped(&self, stop: &AtomicBool, batches: u64) -> anyhow::Result<Outcome> {
        if !stop.load(Ordering::Relaxed) || self.batches == Some(batches) {
            return Ok(Outcome::Done);
        }
        let hint = match &self.save {
            Some(path) => {
                let path = stop::quote(&path.to_string_lossy());
                let command = stop::command_line();
                match &self.restore {
                    Some(_) => format!("go on with `--restore {path}` in place of the state restored here: {command}"),
                    None => format!("go on with: {command} --restore {path}"),
                }
            }
            None => "`--save STATE.json` keeps the position for `--restore STATE.json`; without it the same command begins again".into(),
        };
        Err(Hinted::new(format!("stopped after {batches} batches, as asked"), hint).into())
    }

    fn stream(
        &self,
        dataset: &Dataset,
        options: LoadOptions,
        global: &Global,
        begin: Instant,
        stop: &AtomicBool,
    ) -> anyhow::Result<Outcome> {
        let mut loader = dataset.load(options.clone()).map_err(explain)?;
        note_position(loader.plan(), &options, global);
        if !self.json {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", headline(dataset, loader.plan()))?;
        }
        let streaming = Instant::now();
        let (mut batches, mut rows, mut bytes, mut first) = (0, 0, 0, None);
        let result = loop {
            if self.batches.is_some_and(|limit| batches >= limit) || stop.load(Ordering::Relaxed) {
                break Ok(());
            }
            match loader.next_batch() {
                Ok(Some(batch)) => {
                    first.get_or_insert_with(|| begin.elapsed().as_secs_f64());
                    batches += 1;
                    rows += batch.rows as u64;
                    bytes += batch.num_bytes();
                    for damaged in batch.damaged() {
                        say(format_args!("warning: left out: {damaged}"));
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let seconds = streaming.elapsed().as_secs_f64();
        let state = loader.state();
        // Also after an error: the position before the batch that failed.
        save(self.save.as_deref(), &state)?;
        result.map_err(explain)?;
        let metrics = loader.metrics();
        let profile = self.profile.then(|| Profile::new(&metrics));
        let rate = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        let mut out = std::io::stdout().lock();
        if self.json {
            let dealing = loader.plan().dealing();
            let report = Report {
                dataset: dataset.name(),
                split: state.split.clone(),
                records: state.records,
                seed: state.seed,
                order: state.order.clone(),
                batch_size: dealing.batch_size,
                shard_index: dealing.shard_index,
                shard_count: dealing.shard_count,
                drop_remainder: dealing.drop_remainder,
                steps_per_epoch: loader.steps_per_epoch(),
                batches,
                rows,
                bytes,
                seconds,
                rows_per_second: rate(rows),
                bytes_per_second: rate(bytes),
                seconds_to_first_batch: first,
                skipped: metrics.damaged,
                profile,
                state,
            };
            writeln!(out, "{}", serde_json::to_string(&report)?)?;
        } else {
            let first = first.map_or("no batch".to_string(), |first| {
                format!("first batch after {:.1} ms", first * 1e3)
            });
            writeln!(
                out,
                "{rows} rows in {batches} batches, {:.1} MB in {seconds:.3} s: {:.0} rows/s, {:.1} MB/s; {first}",
                bytes as f64 / 1e6,
                rate(rows),
                rate(bytes) / 1e6
            )?;
            if let Some(profile) = profile {
                out.write_all(profile.text().as_bytes())?;
            }
        }
        match self.unless_stopped(stop, batches)? {
            Outcome::Done if metrics.damaged > 0 => {
                say(format_args!("{} damaged records were left out", metrics.damaged));
                Ok(Outcome::Skipped)
            }
            outcome => Ok(outcome),
        }
    }
}

/// What is streamed, and what happens at the end of an epoch.
fn headline(dataset: &Dataset, plan: &Plan) -> String {
    let dealing = plan.dealing();
    let (global, state) = (dealing.global_batch_size(), plan.state());
    let tail = match (dealing.records % global, dealing.drop_remainder) {
        (0, _) => "all full".to_string(),
        (rest, true) => format!("the last {rest} records of an epoch are dropped"),
        (rest, false) => format!("the last one has {rest} rows over all hosts"),
    };
    format!(
        "{}, split {}: {} records, batch {} on host {}/{}, seed {}, order {}; {} batches an epoch, {tail}",
        dataset.name(),
        state.split,
        dealing.records,
        dealing.batch_size,
        dealing.shard_index,
        dealing.shard_count,
        state.seed,
        state.order,
        dealing.steps_per_epoch(),
    )
}

/// Says on stderr where nothing will come, and why.
fn note_position(plan: &Plan, options: &LoadOptions, global: &Global) {
    if global.quiet || plan.remaining() != Some(0) {
        return;
    }
    let dealing = plan.dealing();
    let epochs = options.num_epochs.unwrap_or(0);
    let why = if dealing.records == 0 {
        "the split has no records".to_string()
    } else if plan.sample_position() >= epochs * dealing.records {
        format!(
            "the state is at epoch {}, and the stream ends after {epochs}; give more `--epochs`",
            plan.state().epoch()
        )
    } else {
        format!(
            "a global batch has {} rows, fewer are left and `--drop-remainder` leaves them out",
            dealing.global_batch_size()
        )
    };
    say(format_args!("note: no batch comes: {why}"));
}

fn read_shard(text: &str) -> anyhow::Result<(u64, u64)> {
    let numbers = text
        .split_once('/')
        .and_then(|(index, count)| Some((index.parse::<u64>().ok()?, count.parse::<u64>().ok()?)));
    let Some((index, count)) = numbers else {
        return Err(Usage(format!(
            "`--shard {text}` is not of the form `I/N`, such as `0/8`"
        ))
        .into());
    };
    if count == 0 {
        return Err(Usage(format!(
            "`--shard {text}` is out of range: there is at least 1 shard"
        ))
        .into());
    }
    if index >= count {
        return Err(Usage(format!(
            "`--shard {text}` is out of range: with {count} shards the first number is 0 to {}",
            count - 1
        ))
        .into());
    }
    Ok((index, count))
}

/// Writes a state so that a crash leaves the old one or the new one.
fn save(path: Option<&Path>, state: &State) -> anyhow::Result<()> {
    let Some(path) = path else {
        return Ok(());
    };
    let write = || -> std::io::Result<()> {
        // A device or a pipe cannot be replaced: written as it is.
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return std::fs::write(path, state.to_json() + "\n");
        }
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let staging = path.with_file_name(name);
        let written = (|| {
            let mut file = std::fs::File::create(&staging)?;
            file.write_all((state.to_json() + "\n").as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&staging, path)
        })();
        if written.is_err() {
            let _ = std::fs::remove_file(&staging);
        }
        written
    };
    write().with_context(|| format!("could not write state `{}`", path.display()))
}

/// Wrong usage exits with 2; the catalog's and the loader's advice becomes a hint.
pub(crate) fn explain(error: prep_loader::Error) -> anyhow::Error {
    if error.is_usage() {
        return Usage(error.to_string()).into();
    }
    match error.hint() {
        Some(hint) => Hinted {
            message: error.to_string(),
            hint,
        }
        .into(),
        None => error.into(),
    }
}

/// The catalog's advice becomes a hint.
fn advise(error: prep_catalog::Error) -> anyhow::Error {
    explain(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_read_and_refused_by_name() {
        assert_eq!(read_shard("3/8").unwrap(), (3, 8));
        for (text, part) in [
            (
                "8/8",
                "`--shard 8/8` is out of range: with 8 shards the first number is 0 to 7",
            ),
            ("0/0", "at least 1 shard"),
            ("1", "not of the form `I/N`"),
            ("-1/2", "not of the form"),
            ("a/b", "not of the form"),
        ] {
            let error = read_shard(text).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.is::<Usage>());
        }
    }

    #[test]
    fn a_state_replaces_the_old_one_or_says_why_not() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::from_json(
            r#"{"format": 1, "order_version": 1, "dataset": "d", "config": null, "version": "1.0.0", "fingerprint": "f",
            "split": "train", "records": 9, "seed": 0, "order": "prep", "sample_position": 4, "pipeline": "p"}"#,
        )
        .unwrap();
        let path = folder.path().join("state.json");
        std::fs::write(&path, "old").unwrap();
        save(Some(&path), &state).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(State::from_json(&text).unwrap(), state);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        let error = save(Some(&folder.path().join("none/state.json")), &state).unwrap_err();
        assert!(error.to_string().contains("none/state.json"), "{error}");
    }
}
