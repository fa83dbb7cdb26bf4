//! Shows a running job: bars on a terminal, plain lines elsewhere, JSON lines for machines.
//!
//! With `--json`, each line on standard output is an object with an `event`:
//!
//! | `event` | other keys |
//! | --- | --- |
//! | `progress` | `seconds` since the start, `stages`, `retries`, `skipped`, `held_bytes` (most so far), `spilled_bytes`; once a second |
//! | `note`, `warning` | `text` |
//! | `done` | the outcome, with the keys of the report; the last line, where the job ended well |
//!
//! A stage has `name`, `unit`, `done`, `total` (null where unknown), `seconds`, `finished`, `rate` (units a second, of late),
//! `eta_seconds` (null where unknown), and where the job graph counts them `records`, `bytes`, `busy_seconds` and `workers`
//! (`worker`, `records`, `bytes`, `busy_seconds` each), else null and none.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::cli::Global;
use crate::cli::output::{say, without_passwords};
use crate::monitor::{Monitor, Note, Snapshot, Stage, Unit, rounded, stage_json};
use crate::resources::show_size;

/// How often the job is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How soon a stage is told of in plain lines, and how often then.
const FIRST_LINE: Duration = Duration::from_secs(1);
const LINE_EVERY: Duration = Duration::from_secs(5);
const JSON_EVERY: Duration = Duration::from_secs(1);
/// The time over which rates are taken.
const RATE_OVER: Duration = Duration::from_secs(10);
/// Bars that are drawn at a time: finished ones make place.
const MOST_BARS: usize = 16;
/// Busy time below which a difference between workers says nothing.
const LEAST_SKEW_SECONDS: f64 = 0.5;

/// Shows a job until it is dropped.
#[derive(Debug)]
pub(crate) struct Display {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Style {
    Silent,
    Lines,
    Json,
    Bars,
}

impl Display {
    /// Shows this job as the flags and the terminal ask for.
    pub(crate) fn start(monitor: &Arc<Monitor>, json: bool, global: &Global) -> Self {
        let style = match (json, global.quiet) {
            (true, _) => Style::Json,
            (false, true) => Style::Silent,
            (false, false) if io::stderr().is_terminal() => Style::Bars,
            (false, false) => Style::Lines,
        };
        Self::show(monitor, style)
    }

    /// Shows bars on a terminal, and nothing elsewhere: for commands whose output says how it went.
    pub(crate) fn bars(monitor: &Arc<Monitor>, global: &Global) -> Self {
        let style = if global.quiet || !io::stderr().is_terminal() {
            Style::Silent
        } else {
            Style::Bars
        };
        Self::show(monitor, style)
    }

    fn show(monitor: &Arc<Monitor>, style: Style) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (watched, ended) = (Arc::clone(monitor), Arc::clone(&over));
        let thread = std::thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || match style {
                Style::Silent => {}
                Style::Lines => lines(&watched, &ended),
                Style::Json => json_lines(&watched, &ended),
                Style::Bars => bars(&watched, &ended),
            })
            .ok();
        Self { over, thread }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Calls `show` at each tick, and once more at the end, with `true`.
fn each_tick(over: &AtomicBool, mut show: impl FnMut(bool)) {
    loop {
        let last = over.load(Ordering::Acquire);
        show(last);
        if last {
            return;
        }
        std::thread::park_timeout(TICK);
    }
}

/// How fast each stage was of late.
#[derive(Debug, Default)]
struct Pace(HashMap<usize, VecDeque<(Instant, u64)>>);

impl Pace {
    /// Notes how far a stage is, and gives its rate in units a second: over the last ten seconds, or since it began.
    fn rate(&mut self, index: usize, stage: &Stage) -> f64 {
        let average = stage.done as f64 / stage.elapsed.as_secs_f64().max(1e-3);
        if stage.finished {
            self.0.remove(&index);
            return average;
        }
        let now = Instant::now();
        let samples = self.0.entry(index).or_default();
        if samples.back().is_none_or(|last| now - last.0 >= TICK * 2) {
            samples.push_back((now, stage.done));
        }
        while samples.len() > 2 && now - samples[1].0 >= RATE_OVER {
            samples.pop_front();
        }
        match samples.front() {
            Some((start, done)) if now - *start >= FIRST_LINE => {
                stage.done.saturating_sub(*done) as f64 / (now - *start).as_secs_f64()
            }
            _ => average,
        }
    }
}

/// Seconds until a stage is done at this rate, where that can be said.
fn seconds_left(stage: &Stage, rate: f64) -> Option<f64> {
    let left = stage.total?.saturating_sub(stage.done) as f64;
    (!stage.finished && rate > 0.0).then_some(left / rate)
}

fn note_line(note: &Note) -> String {
    let kind = if note.warning { "warning: " } else { "" };
    format!("{kind}{}", note.text)
}

fn lines(monitor: &Monitor, over: &AtomicBool) {
    let mut pace = Pace::default();
    let mut due: HashMap<usize, (Instant, bool)> = HashMap::new();
    each_tick(over, |_| {
        for note in monitor.take_notes() {
            say(note_line(&note));
        }
        for (index, stage) in monitor.overview().stages.iter().enumerate() {
            let now = Instant::now();
            let (next, finished) = due.entry(index).or_insert((now + FIRST_LINE, false));
            if *finished {
                continue;
            }
            let rate = pace.rate(index, stage);
            if stage.finished || now >= *next {
                (*next, *finished) = (now + LINE_EVERY, stage.finished);
                say(line(stage, rate));
            }
        }
    });
}

/// `fetch a.gz: 12.0 MiB of 170.0 MiB, 3.1 MiB/s, 51 s left`.
fn line(stage: &Stage, rate: f64) -> String {
    let show = |amount: u64| match stage.unit {
        Unit::Bytes => show_size(amount),
        _ => show_count(amount),
    };
    let mut text = format!("{}: {}", stage.name, show(stage.done));
    if let Some(total) = stage.total.filter(|_| !stage.finished) {
        text += &format!(" of {}", show(total));
    }
    if stage.unit != Unit::Bytes {
        text += &format!(" {}", stage.unit.name());
    }
    if stage.finished {
        text += &format!(" in {:.1} s", stage.elapsed.as_secs_f64());
    }
    text += &format!(", {}/s", show(rate as u64));
    if let Some(bytes) = stage
        .bytes
        .filter(|bytes| stage.unit != Unit::Bytes && *bytes > 0)
    {
        text += &format!(", {}", show_size(bytes));
    }
    if let Some(seconds) = seconds_left(stage, rate) {
        text += &format!(", {} left", show_seconds(seconds));
    }
    if let Some(skew) = show_skew(stage) {
        text += &format!(", {skew}");
    }
    text
}

/// `workers busy 3.1 to 4.0 s`, where that says something.
fn show_skew(stage: &Stage) -> Option<String> {
    let (least, most) = stage.skew()?;
    (most >= LEAST_SKEW_SECONDS).then(|| format!("workers busy {least:.1} to {most:.1} s"))
}

/// `1,234,567`.
pub(crate) fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `51 s`, `3 min`, `2 h 10 min`.
fn show_seconds(seconds: f64) -> String {
    let whole = seconds.ceil() as u64;
    match whole {
        0..120 => format!("{whole} s"),
        120..7200 => format!("{} min", whole.div_ceil(60)),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

fn json_lines(monitor: &Monitor, over: &AtomicBool) {
    let started = Instant::now();
    let mut last = started;
    let mut pace = Pace::default();
    each_tick(over, |end| {
        for note in monitor.take_notes() {
            let event = if note.warning { "warning" } else { "note" };
            print_line(&json!({"event": event, "text": note.text}));
        }
        if last.elapsed() >= JSON_EVERY || end {
            last = Instant::now();
            print_line(&progress_json(&monitor.overview(), started.elapsed(), &mut pace));
        }
    });
}

fn progress_json(snapshot: &Snapshot, elapsed: Duration, pace: &mut Pace) -> serde_json::Value {
    let stage = |(index, stage): (usize, &Stage)| {
        let rate = pace.rate(index, stage);
        let mut object = stage_json(stage);
        object["rate"] = rounded(rate).into();
        object["eta_seconds"] = seconds_left(stage, rate).map(rounded).into();
        object
    };
    let stages: Vec<_> = snapshot.stages.iter().enumerate().map(stage).collect();
    json!({
        "event": "progress",
        "seconds": rounded(elapsed.as_secs_f64()),
        "stages": stages,
        "retries": snapshot.facts.retries,
        "skipped": snapshot.facts.skipped,
        "held_bytes": snapshot.facts.peak_held_bytes,
        "spilled_bytes": snapshot.facts.spilled_bytes,
    })
}

fn print_line(value: &serde_json::Value) {
    let _ = writeln!(io::stdout(), "{}", without_passwords(&value.to_string()));
}

fn bars(monitor: &Monitor, over: &AtomicBool) {
    let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    let mut bars: Vec<(ProgressBar, bool)> = Vec::new();
    // The first bar that may still be drawn.
    let mut first = 0;
    each_tick(over, |_| {
        for note in monitor.take_notes() {
            let _ = all.println(note_line(&note));
        }
        for (index, stage) in monitor.overview().stages.iter().enumerate() {
            if index == bars.len() {
                bars.push((all.add(ProgressBar::no_length()), stage.total.is_some()));
                bars[index].0.set_style(style(stage));
                bars[index].0.set_message(stage.name.clone());
            }
            let (bar, has_total) = &mut bars[index];
            // A stage that was taken off the list again has left its place to the next.
            if bar.message() != stage.name {
                bar.set_message(stage.name.clone());
            }
            if bar.is_finished() {
                continue;
            }
            if stage.total.is_some() != *has_total {
                *has_total = stage.total.is_some();
                bar.set_style(style(stage));
            }
            if let Some(total) = stage.total {
                bar.set_length(total);
            }
            bar.set_position(stage.done);
            if let Some(skew) = show_skew(stage) {
                bar.set_prefix(skew);
            }
            if stage.finished {
                bar.abandon();
            }
        }
        while bars.len() - first > MOST_BARS && bars[first].0.is_finished() {
            all.remove(&bars[first].0);
            first += 1;
        }
    });
    for (bar, _) in &bars {
        if !bar.is_finished() {
            bar.abandon();
        }
    }
}

fn style(stage: &Stage) -> ProgressStyle {
    let text = match (stage.unit, stage.total.is_some()) {
        (Unit::Bytes, true) => {
            "{msg:32} {bar:24} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} {prefix}"
        }
        (Unit::Bytes, false) => "{msg:32} {binary_bytes} {binary_bytes_per_sec} {prefix}",
        (_, true) => "{msg:32} {bar:24} {human_pos}/{human_len} {per_sec} {eta} {prefix}",
        (_, false) => "{msg:32} {human_pos} {per_sec} {prefix}",
    };
    ProgressStyle::with_template(text).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::monitor::Share;

    fn running(unit: Unit, done: u64, total: Option<u64>, seconds: u64) -> Stage {
        Stage {
            done,
            total,
            elapsed: Duration::from_secs(seconds),
            ..Stage::new("fetch a.gz", unit)
        }
    }

    #[test]
    fn lines_say_how_far_how_fast_and_how_long() {
        let mut stage = running(Unit::Bytes, 2 << 20, Some(4 << 20), 2);
        let mib = f64::from(1 << 20);
        assert_eq!(
            line(&stage, mib),
            "fetch a.gz: 2.0 MiB of 4.0 MiB, 1.0 MiB/s, 2 s left"
        );
        stage.finished = true;
        assert_eq!(line(&stage, mib), "fetch a.gz: 2.0 MiB in 2.0 s, 1.0 MiB/s");
        stage.unit = Unit::Examples;
        stage.done = 12_345;
        assert_eq!(
            line(&stage, 5000.0),
            "fetch a.gz: 12,345 examples in 2.0 s, 5,000/s"
        );
        stage.bytes = Some(3 << 20);
        let share = |worker, busy_seconds| Share {
            worker,
            records: 1,
            bytes: 1,
            busy_seconds,
        };
        stage.workers = vec![share(0, 0.75), share(1, 1.5)];
        assert_eq!(
            line(&stage, 5000.0),
            "fetch a.gz: 12,345 examples in 2.0 s, 5,000/s, 3.0 MiB, workers busy 0.8 to 1.5 s"
        );
    }

    #[test]
    fn numbers_and_times_are_easy_to_read() {
        let counts: Vec<String> = [0, 999, 1000, 1_234_567].map(show_count).to_vec();
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let times: Vec<String> = [0.2, 119.0, 150.0, 7800.0].map(show_seconds).to_vec();
        assert_eq!(times, ["1 s", "119 s", "3 min", "2 h 10 min"]);
    }

    #[test]
    fn a_rate_needs_no_time_to_be_known_and_ends_with_the_average() {
        let mut pace = Pace::default();
        let mut stage = running(Unit::Records, 100, Some(300), 2);
        let rate = pace.rate(0, &stage);
        assert_eq!((rate, seconds_left(&stage, rate)), (50.0, Some(4.0)));
        assert_eq!(seconds_left(&stage, 0.0), None);
        stage.finished = true;
        assert_eq!(pace.rate(0, &stage), 50.0);
        assert_eq!(seconds_left(&stage, 50.0), None);
        stage.total = None;
        stage.finished = false;
        assert_eq!(seconds_left(&stage, 50.0), None);
    }

    /// Machines rely on these keys.
    #[test]
    fn the_keys_of_progress_are_those_that_are_documented() {
        let snapshot = Snapshot {
            stages: vec![running(Unit::Files, 1, None, 1)],
            ..Snapshot::default()
        };
        let object = progress_json(&snapshot, Duration::from_secs(1), &mut Pace::default());
        let keys = |value: &serde_json::Value| -> Vec<String> {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(
            keys(&object),
            [
                "event",
                "held_bytes",
                "retries",
                "seconds",
                "skipped",
                "spilled_bytes",
                "stages"
            ]
        );
        assert_eq!(
            keys(&object["stages"][0]),
            [
                "busy_seconds",
                "bytes",
                "done",
                "eta_seconds",
                "finished",
                "name",
                "rate",
                "records",
                "seconds",
                "total",
                "unit",
                "workers"
            ]
        );
        assert_eq!(object["stages"][0]["total"], serde_json::Value::Null);
    }

    #[test]
    fn every_style_has_a_template() {
        for unit in [Unit::Bytes, Unit::Examples] {
            for total in [None, Some(1)] {
                let stage = running(unit, 0, total, 0);
                assert!(!format!("{:?}", style(&stage).get_tick_str(0)).is_empty());
            }
        }
    }
}
