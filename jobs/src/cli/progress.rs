//! Shows a running job: bars on a terminal, plain lines elsewhere, JSON lines for machines.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::cli::Global;
use crate::cli::output::say;
use crate::monitor::{Monitor, Stage, Unit};
use crate::resources::show_size;

/// How often the job is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How often a running stage is told of in plain lines and JSON.
const LINE_EVERY: Duration = Duration::from_secs(5);
const JSON_EVERY: Duration = Duration::from_secs(1);

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

fn lines(monitor: &Monitor, over: &AtomicBool) {
    let mut told: HashMap<usize, (Instant, bool)> = HashMap::new();
    each_tick(over, |_| {
        for note in monitor.take_notes() {
            say(format_args!(
                "{}{}",
                if note.warning { "warning: " } else { "" },
                note.text
            ));
        }
        for (index, stage) in monitor.stages().iter().enumerate() {
            let now = Instant::now();
            let (last, finished) = told.entry(index).or_insert((now, false));
            if *finished || !(stage.finished || now - *last >= LINE_EVERY) {
                continue;
            }
            (*last, *finished) = (now, stage.finished);
            say(line(stage));
        }
    });
}

/// `fetch a.gz: 12.0 MiB of 170.0 MiB, 3.1 MiB/s`.
fn line(stage: &Stage) -> String {
    let show = |amount: u64| match stage.unit {
        Unit::Bytes => show_size(amount),
        Unit::Examples => amount.to_string(),
    };
    let seconds = stage.elapsed.as_secs_f64();
    let of = match stage.total.filter(|_| !stage.finished) {
        Some(total) => format!(" of {}", show(total)),
        None => String::new(),
    };
    let unit = match stage.unit {
        Unit::Bytes => "",
        Unit::Examples => " examples",
    };
    let rate = if seconds > 0.0 {
        format!(", {}/s", show((stage.done as f64 / seconds) as u64))
    } else {
        String::new()
    };
    let took = if stage.finished {
        format!(" in {seconds:.1} s")
    } else {
        String::new()
    };
    format!("{}: {}{of}{unit}{took}{rate}", stage.name, show(stage.done))
}

fn json_lines(monitor: &Monitor, over: &AtomicBool) {
    let mut last = Instant::now();
    each_tick(over, |end| {
        for note in monitor.take_notes() {
            let event = if note.warning { "warning" } else { "note" };
            print_line(&json!({"event": event, "text": note.text}));
        }
        if last.elapsed() >= JSON_EVERY || end {
            last = Instant::now();
            let stages: Vec<_> = monitor.stages().iter().map(stage_json).collect();
            print_line(&json!({"event": "progress", "stages": stages}));
        }
    });
}

/// A stage as it is in JSON lines and reports.
pub(crate) fn stage_json(stage: &Stage) -> serde_json::Value {
    json!({
        "name": stage.name,
        "unit": stage.unit.name(),
        "done": stage.done,
        "total": stage.total,
        "seconds": (stage.elapsed.as_secs_f64() * 1e3).round() / 1e3,
        "finished": stage.finished,
    })
}

fn print_line(value: &serde_json::Value) {
    let _ = writeln!(io::stdout(), "{value}");
}

fn bars(monitor: &Monitor, over: &AtomicBool) {
    let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10));
    let mut bars: Vec<(ProgressBar, bool)> = Vec::new();
    each_tick(over, |_| {
        for note in monitor.take_notes() {
            let _ = all.println(format!(
                "{}{}",
                if note.warning { "warning: " } else { "" },
                note.text
            ));
        }
        for (index, stage) in monitor.stages().iter().enumerate() {
            if index == bars.len() {
                bars.push((all.add(ProgressBar::no_length()), stage.total.is_some()));
                bars[index].0.set_style(style(stage));
                bars[index].0.set_message(stage.name.clone());
            }
            let (bar, has_total) = &mut bars[index];
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
            if stage.finished {
                bar.abandon();
            }
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
            "{msg:32} {bar:24} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}"
        }
        (Unit::Bytes, false) => "{msg:32} {binary_bytes} {binary_bytes_per_sec}",
        (Unit::Examples, true) => "{msg:32} {bar:24} {human_pos}/{human_len} {per_sec} {eta}",
        (Unit::Examples, false) => "{msg:32} {human_pos} {per_sec}",
    };
    ProgressStyle::with_template(text).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_how_far_and_how_fast() {
        let mut stage = Stage {
            name: "fetch a.gz".to_owned(),
            unit: Unit::Bytes,
            done: 2 << 20,
            total: Some(4 << 20),
            elapsed: Duration::from_secs(2),
            finished: false,
        };
        assert_eq!(line(&stage), "fetch a.gz: 2.0 MiB of 4.0 MiB, 1.0 MiB/s");
        stage.finished = true;
        assert_eq!(line(&stage), "fetch a.gz: 2.0 MiB in 2.0 s, 1.0 MiB/s");
        stage.unit = Unit::Examples;
        stage.done = 10;
        assert_eq!(line(&stage), "fetch a.gz: 10 examples in 2.0 s, 5/s");
    }

    #[test]
    fn every_style_has_a_template() {
        for unit in [Unit::Bytes, Unit::Examples] {
            for total in [None, Some(1)] {
                let stage = Stage {
                    name: String::new(),
                    unit,
                    done: 0,
                    total,
                    elapsed: Duration::ZERO,
                    finished: false,
                };
                assert!(!format!("{:?}", style(&stage).get_tick_str(0)).is_empty());
            }
        }
    }
}
