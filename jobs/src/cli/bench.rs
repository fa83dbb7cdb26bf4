//! `prep bench`.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use prep_loader::{Dataset, LoadOptions};
use serde::Serialize;

use crate::cli::load::{FromArgs, explain};
use crate::cli::output::{Usage, say};
use crate::cli::{Global, Outcome, stop};

/// A setting within this share of the fastest is as good: fewer threads are taken.
const AS_GOOD: f64 = 0.95;
/// Longest that one setting may be tried, in seconds.
const MAX_SECONDS: f64 = 3_600.0;

/// Measures this machine with a dataset, and says which settings to use.
#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Load(BenchLoad),
}

/// Streams a dataset with several settings, and recommends one.
///
/// Each number of threads is tried for some seconds, twice over in turn, on one endless stream that goes on from setting to setting, so that no setting
/// finds what another has just read. The consumer does nothing: it is the rate at which a training loop is never kept waiting. The recommendation is the least
/// number of threads that comes within 5 % of the fastest.
///
/// Example: prep bench load cifar10 --batch 256
#[derive(Debug, Args)]
struct BenchLoad {
    /// `name`, `name/config`, `name:version` or `name@tag`.
    name: String,
    /// Split or sub-split.
    #[arg(long, default_value = "train")]
    split: String,
    /// Rows a batch.
    #[arg(long, value_name = "N", default_value_t = 128)]
    batch: u64,
    /// Seconds that each setting is tried for, in each of two turns.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// Numbers of threads to try, as in 1,2,8; default: 1, 2, 4 and so on to the cores of this machine, and their number.
    #[arg(long, value_name = "T,...", value_delimiter = ',')]
    threads: Vec<usize>,
    /// Rows a second that the training takes: the recommendation is then what is enough for it.
    #[arg(long, value_name = "R")]
    wanted: Option<f64>,
    #[command(flatten)]
    from: FromArgs,
    /// One JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// What one setting gave, over its turns.
#[derive(Debug, Clone, Serialize)]
struct Measured {
    threads: usize,
    rows: u64,
    seconds: f64,
    rows_per_second: f64,
    bytes_per_second: f64,
    /// Time of threads that read and decoded, a thousand rows.
    busy_ms_per_1000: f64,
    /// From opening to the first batch, the better turn.
    first_batch_ms: f64,
    #[serde(skip)]
    bytes: u64,
    #[serde(skip)]
    busy: Duration,
}

#[derive(Debug, Serialize)]
struct Report {
    dataset: String,
    split: String,
    batch_size: u64,
    settings: Vec<Measured>,
    recommended_threads: usize,
    reason: String,
}

pub(crate) fn run(args: &Bench, global: &Global) -> anyhow::Result<Outcome> {
    match &args.what {
        What::Load(load) => load.run(global),
    }
}

impl BenchLoad {
    fn run(&self, global: &Global) -> anyhow::Result<Outcome> {
        let wrong = |text: String| Err(Usage(text).into());
        if !(self.seconds > 0.0 && self.seconds <= MAX_SECONDS) {
            return wrong(format!(
                "`--seconds {}` is out of range: above 0, to {MAX_SECONDS}",
                self.seconds
            ));
        }
        if self.batch == 0 {
            return wrong("`--batch 0` is out of range: a batch has at least 1 row".into());
        }
        if self.wanted.is_some_and(|rows| !(rows > 0.0 && rows.is_finite())) {
            return wrong("`--wanted` is a number of rows a second, above 0".into());
        }
        if self.threads.contains(&0) {
            return wrong("`--threads 0` is out of range: at least 1 is tried".into());
        }
        let dataset = self.from.open(&self.name, Some(&self.split), None)?;
        if dataset.is_empty() {
            return wrong(format!(
                "split `{}` has no records: there is nothing to measure",
                self.split
            ));
        }
        let stop = Arc::new(AtomicBool::new(false));
        stop::on_signals(&stop)?;
        let threads = match self.threads.is_empty() {
            true => counts(std::thread::available_parallelism().map_or(1, usize::from)),
            false => self.threads.clone(),
        };
        let mut settings: Vec<Measured> = threads.iter().map(|&threads| Measured::new(threads)).collect();
        let mut state = None;
        for turn in 0..2 {
            for setting in &mut settings {
                if !global.quiet && !self.json {
                    say(format_args!("turn {}, {} threads", turn + 1, setting.threads));
                }
                let mut options = LoadOptions::new(self.batch).num_threads(setting.threads);
                options.restore = state;
                state = Some(self.measure(&dataset, options, setting, &stop)?);
                if stop.load(Ordering::Relaxed) {
                    anyhow::bail!("stopped, as asked; nothing is recommended");
                }
            }
        }
        for setting in &mut settings {
            setting.sum_up();
        }
        let (recommended_threads, reason) = recommend(&settings, self.wanted);
        let report = Report {
            dataset: dataset.name(),
            split: dataset.split().to_string(),
            batch_size: self.batch,
            settings,
            recommended_threads,
            reason,
        };
        let mut out = std::io::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", serde_json::to_string(&report)?)?,
            false => out.write_all(report.text().as_bytes())?,
        }
        Ok(Outcome::Done)
    }

    /// One turn of a setting. Gives the state to go on from.
    fn measure(
        &self,
        dataset: &Dataset,
        options: LoadOptions,
        setting: &mut Measured,
        stop: &AtomicBool,
    ) -> anyhow::Result<prep_loader::State> {
        let began = Instant::now();
        let mut loader = dataset.load(options).map_err(explain)?;
        let mut first = None;
        while began.elapsed().as_secs_f64() < self.seconds && !stop.load(Ordering::Relaxed) {
            let Some(batch) = loader.next_batch().map_err(explain)? else {
                break;
            };
            // What is made before the first batch is there is not part of the rate.
            match first {
                None => first = Some(Instant::now()),
                Some(_) => {
                    setting.rows += batch.rows as u64;
                    setting.bytes += batch.num_bytes();
                }
            }
        }
        if let Some(first) = first {
            setting.seconds += first.elapsed().as_secs_f64();
            let to_first = first.duration_since(began).as_secs_f64() * 1e3;
            setting.first_batch_ms = setting.first_batch_ms.min(to_first);
        }
        let metrics = loader.metrics();
        setting.busy += metrics.read + metrics.decode;
        Ok(loader.state())
    }
}

impl Measured {
    fn new(threads: usize) -> Self {
        Self {
            threads,
            rows: 0,
            seconds: 0.0,
            rows_per_second: 0.0,
            bytes_per_second: 0.0,
            busy_ms_per_1000: 0.0,
            first_batch_ms: f64::INFINITY,
            bytes: 0,
            busy: Duration::ZERO,
        }
    }

    fn sum_up(&mut self) {
        if self.seconds > 0.0 {
            self.rows_per_second = self.rows as f64 / self.seconds;
            self.bytes_per_second = self.bytes as f64 / self.seconds;
        }
        if self.rows > 0 {
            self.busy_ms_per_1000 = self.busy.as_secs_f64() * 1e6 / self.rows as f64;
        }
        if !self.first_batch_ms.is_finite() {
            self.first_batch_ms = 0.0;
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let mut text = format!(
            "{}, split {}, batches of {}\n\nthreads      rows/s       MB/s   busy ms/1,000 rows   first batch ms\n",
            self.dataset, self.split, self.batch_size
        );
        for setting in &self.settings {
            text.push_str(&format!(
                "{:>7} {:>11.0} {:>10.1} {:>20.2} {:>16.1}\n",
                setting.threads,
                setting.rows_per_second,
                setting.bytes_per_second / 1e6,
                setting.busy_ms_per_1000,
                setting.first_batch_ms
            ));
        }
        text.push_str(&format!(
            "\nrecommended: --threads {} ({})\n",
            self.recommended_threads, self.reason
        ));
        text
    }
}

/// 1, 2, 4 ... and the number of cores.
fn counts(cores: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = std::iter::successors(Some(1), |count| Some(count * 2))
        .take_while(|count| *count < cores)
        .collect();
    counts.push(cores);
    counts
}

/// The least number of threads that is enough, and why.
fn recommend(settings: &[Measured], wanted: Option<f64>) -> (usize, String) {
    let best = settings
        .iter()
        .map(|setting| setting.rows_per_second)
        .fold(0.0, f64::max);
    let least = |enough: f64| {
        settings
            .iter()
            .filter(|setting| setting.rows_per_second >= enough)
            .map(|setting| setting.threads)
            .min()
    };
    let fastest = least(AS_GOOD * best).unwrap_or(1);
    match wanted {
        Some(wanted) => match least(wanted) {
            Some(threads) => (threads, format!("the least that gives {wanted:.0} rows/s")),
            None => (
                fastest,
                format!("no setting gives {wanted:.0} rows/s; the fastest gives {best:.0}"),
            ),
        },
        None => (fastest, "the least within 5 % of the fastest".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(rates: &[(usize, f64)]) -> Vec<Measured> {
        rates
            .iter()
            .map(|&(threads, rate)| Measured {
                rows_per_second: rate,
                ..Measured::new(threads)
            })
            .collect()
    }

    #[test]
    fn the_least_number_of_threads_that_is_enough_is_recommended() {
        let settings = measured(&[(1, 100.0), (2, 190.0), (4, 197.0)]);
        assert_eq!(recommend(&settings, None).0, 2);
        assert_eq!(recommend(&settings, Some(90.0)).0, 1);
        assert_eq!(recommend(&settings, Some(195.0)).0, 4);
        let (threads, reason) = recommend(&settings, Some(1_000.0));
        assert_eq!(threads, 2);
        assert!(
            reason.contains("no setting gives 1000 rows/s; the fastest gives 197"),
            "{reason}"
        );
    }

    #[test]
    fn threads_are_doubled_up_to_the_cores() {
        assert_eq!(counts(1), [1]);
        assert_eq!(counts(2), [1, 2]);
        assert_eq!(counts(6), [1, 2, 4, 6]);
        assert_eq!(counts(8), [1, 2, 4, 8]);
    }
}
