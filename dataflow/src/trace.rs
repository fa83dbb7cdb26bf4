//! What ran when: a trace in Chrome's format, for `chrome://tracing`, Perfetto and what else reads it.
//!
//! The file is a JSON array of events, of which these kinds are used:
//!
//! | `ph` | what | fields |
//! | --- | --- | --- |
//! | `X` | a span | `name`, `cat`, `ts` and `dur` in microseconds, `pid` (process of the job), `tid` (thread) |
//! | `C` | a counter | `name`, `ts`, `args`: series and values |
//! | `M` | a name | `process_name` or `thread_name`, in `args.name` |
//!
//! It is written as the job goes, in pieces of 64 KiB or a second, and each piece ends with the array's end, which the next one
//! overwrites: the file is valid JSON at any time, also when the process is killed. In memory is one piece.
//!
//! Source: "Trace Event Format", Google, as in the documentation of Catapult.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::job::lock;

/// Bytes after which events are written, and time.
const PIECE_BYTES: usize = 64 << 10;
const PIECE_TIME: Duration = Duration::from_secs(1);
/// What ends the array.
const END: &[u8] = b"\n]\n";
/// Runs of an operator shorter than this are left out, but for its first; they say little and are most of all.
const SHORTEST_RUN: Duration = Duration::from_micros(50);
/// Each time that many events are written, the shortest run that is still told doubles: a long job's file stays readable.
const EVENTS_UNTIL_DOUBLED: u64 = 1 << 19;

static NEXT_TRACE: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The trace that takes this thread's spans, and what the thread is called in it.
    static CURRENT: RefCell<Option<Trace>> = const { RefCell::new(None) };
    static ROW: RefCell<Option<Row>> = const { RefCell::new(None) };
}

/// A trace on its way into a file. Clones write to the same file.
#[derive(Debug, Clone)]
pub struct Trace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: u64,
    process: usize,
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// Where the next piece goes: over the end of the array.
    offset: u64,
    buffer: Vec<u8>,
    written: Instant,
    events: u64,
    shortest: Duration,
    next_row: u64,
    /// Rows of threads that have ended, by name: the next thread of that name takes one, so that rows stay as few as threads.
    free_rows: HashMap<String, Vec<u64>>,
    /// Why no more is written; the job goes on without.
    error: Option<io::Error>,
    finished: bool,
}

/// A thread's row in the picture, given back when the thread ends.
#[derive(Debug)]
struct Row {
    trace: std::sync::Weak<Inner>,
    trace_id: u64,
    row: u64,
    name: String,
}

impl Drop for Row {
    fn drop(&mut self) {
        if let Some(trace) = self.trace.upgrade() {
            let mut state = lock(&trace.state);
            let name = std::mem::take(&mut self.name);
            state.free_rows.entry(name).or_default().push(self.row);
        }
    }
}

impl Trace {
    /// Begins a trace of process `process` of the job, in a new file or in place of an old one.
    ///
    /// # Errors
    ///
    /// The file cannot be made.
    pub fn create(path: impl AsRef<Path>, process: usize) -> io::Result<Self> {
        let file = File::create(path)?;
        let state = State {
            file,
            offset: 0,
            buffer: b"[\n".to_vec(),
            written: Instant::now(),
            events: 0,
            shortest: SHORTEST_RUN,
            next_row: 0,
            free_rows: HashMap::new(),
            error: None,
            finished: false,
        };
        let trace = Self(Arc::new(Inner {
            id: NEXT_TRACE.fetch_add(1, Relaxed),
            process,
            start: Instant::now(),
            state: Mutex::new(state),
        }));
        let name = text(&format!("prep process {process}"));
        let mut state = lock(&trace.0.state);
        state.event(&format!(
            r#"{{"name":"process_name","ph":"M","pid":{process},"tid":0,"args":{{"name":{name}}}}}"#
        ));
        state.write();
        match state.error.take() {
            Some(error) => Err(error),
            None => {
                drop(state);
                Ok(trace)
            }
        }
    }

    /// Begins a span on this thread; it ends when the result is dropped. Spans of a thread have to end in the order that nests them.
    pub fn span(&self, category: &'static str, name: impl Into<Cow<'static, str>>) -> Span {
        Span(Some(Open {
            trace: self.clone(),
            row: self.row(),
            category,
            name: name.into(),
            start: Instant::now(),
        }))
    }

    /// Makes this the trace of [`span`] on this thread from now on.
    pub fn enter(&self) {
        CURRENT.set(Some(self.clone()));
    }

    /// Notes the values of some series that belong together, at this moment.
    pub fn counter(&self, name: &str, series: &[(&str, u64)]) {
        let values: Vec<String> = series
            .iter()
            .map(|(name, value)| format!("{}:{value}", text(name)))
            .collect();
        let event = format!(
            r#"{{"name":{},"ph":"C","ts":{:.3},"pid":{},"tid":0,"args":{{{}}}}}"#,
            text(name),
            microseconds(self.0.start.elapsed()),
            self.0.process,
            values.join(",")
        );
        lock(&self.0.state).event(&event);
    }

    /// Writes what is left. Spans that end later are not told.
    ///
    /// # Errors
    ///
    /// The first error of writing the file, now or earlier.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = lock(&self.0.state);
        state.write();
        state.finished = true;
        match state.error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Tells a run of an operator on this thread, unless it was too short to be worth it.
    pub(crate) fn run(&self, name: &str, start: Instant, duration: Duration, first: bool) {
        if !first && duration < lock(&self.0.state).shortest {
            return;
        }
        self.complete(self.row(), "operator", name, start, duration);
    }

    fn complete(&self, row: u64, category: &str, name: &str, start: Instant, duration: Duration) {
        let event = format!(
            r#"{{"name":{},"cat":"{category}","ph":"X","ts":{:.3},"dur":{:.3},"pid":{},"tid":{row}}}"#,
            text(name),
            microseconds(start.saturating_duration_since(self.0.start)),
            microseconds(duration),
            self.0.process,
        );
        lock(&self.0.state).event(&event);
    }

    /// This thread's row.
    fn row(&self) -> u64 {
        ROW.with_borrow_mut(|row| {
            if let Some(row) = row.as_ref().filter(|row| row.trace_id == self.0.id) {
                return row.row;
            }
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("thread").to_owned();
            // Workers keep their numbers; of other threads there are many, and only their kind matters.
            let name = match name.strip_prefix("timely:work-") {
                Some(number) => format!("worker {number}"),
                None => name
                    .trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ')
                    .to_owned(),
            };
            let mut state = lock(&self.0.state);
            let number = match state.free_rows.get_mut(&name).and_then(Vec::pop) {
                Some(number) => number,
                None => {
                    state.next_row += 1;
                    let number = state.next_row;
                    state.event(&format!(
                        r#"{{"name":"thread_name","ph":"M","pid":{},"tid":{number},"args":{{"name":{}}}}}"#,
                        self.0.process,
                        text(&name)
                    ));
                    number
                }
            };
            drop(state);
            // The old row, of another trace, is given back.
            *row = Some(Row {
                trace: Arc::downgrade(&self.0),
                trace_id: self.0.id,
                row: number,
                name,
            });
            number
        })
    }
}

impl State {
    fn event(&mut self, event: &str) {
        if self.finished || self.error.is_some() {
            return;
        }
        if self.events > 0 {
            self.buffer.extend_from_slice(b",\n");
        }
        self.buffer.extend_from_slice(event.as_bytes());
        self.events += 1;
        if self.events.is_multiple_of(EVENTS_UNTIL_DOUBLED) {
            self.shortest *= 2;
        }
        if self.buffer.len() >= PIECE_BYTES || self.written.elapsed() >= PIECE_TIME {
            self.write();
        }
    }

    fn write(&mut self) {
        if self.buffer.is_empty() || self.finished || self.error.is_some() {
            return;
        }
        let events = self.buffer.len() as u64;
        self.buffer.extend_from_slice(END);
        if let Err(error) = self.file.write_all_at(&self.buffer, self.offset) {
            self.error = Some(error);
        }
        self.offset += events;
        self.buffer.clear();
        self.written = Instant::now();
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.write();
    }
}

/// Something that takes time, until this is dropped. The default is told nowhere.
#[derive(Debug, Default)]
#[must_use = "a span ends when it is dropped"]
pub struct Span(Option<Open>);

#[derive(Debug)]
struct Open {
    trace: Trace,
    /// Taken at the start, as another thread's row may become free meanwhile.
    row: u64,
    category: &'static str,
    name: Cow<'static, str>,
    start: Instant,
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            let duration = open.start.elapsed();
            open.trace
                .complete(open.row, open.category, &open.name, open.start, duration);
        }
    }
}

/// Begins a span on this thread, if it belongs to a job that is traced ([`Options::trace`](crate::Options::trace)): what a reader or
/// a writer of shards calls around what takes it long. Costs next to nothing otherwise.
pub fn span(category: &'static str, name: impl Into<Cow<'static, str>>) -> Span {
    CURRENT.with_borrow(|trace| match trace {
        Some(trace) => trace.span(category, name),
        None => Span::default(),
    })
}

/// The work of a thread that is to be started, so that its spans go to where this thread's go.
pub fn carry<R>(work: impl FnOnce() -> R) -> impl FnOnce() -> R {
    let trace = CURRENT.with_borrow(Clone::clone);
    move || {
        if let Some(trace) = &trace {
            trace.enter();
        }
        work()
    }
}

fn text(name: &str) -> String {
    serde_json::Value::from(name).to_string()
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn events(path: &Path) -> Vec<Value> {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[test]
    fn a_trace_is_json_at_any_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let trace = Trace::create(&path, 3).unwrap();
        assert_eq!(events(&path).len(), 1);
        let outer = trace.span("test", "outer \"quoted\"");
        drop(trace.span("test", "inner"));
        drop(outer);
        trace.counter("memory", &[("held", 7)]);
        lock(&trace.0.state).write();
        let before = events(&path);
        assert_eq!(before.len(), 5, "{before:?}");
        assert!(before.iter().all(|event| event["pid"] == 3));
        let spans: Vec<&Value> = before.iter().filter(|event| event["ph"] == "X").collect();
        assert_eq!(spans[1]["name"], "outer \"quoted\"");
        let end = |span: &Value| span["ts"].as_f64().unwrap() + span["dur"].as_f64().unwrap();
        assert!(end(spans[0]) <= end(spans[1]) + 0.002);
        trace.finish().unwrap();
        drop(trace.span("test", "late"));
        drop(trace);
        assert_eq!(events(&path), before);
    }

    #[test]
    fn many_short_threads_share_a_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let trace = Trace::create(&path, 0).unwrap();
        for index in 0..5000 {
            let trace = trace.clone();
            let work = move || {
                trace.enter();
                drop(span("test", "work"));
            };
            let thread = std::thread::Builder::new().name(format!("read {index}"));
            thread.spawn(work).unwrap().join().unwrap();
        }
        drop(trace);
        let events = events(&path);
        let names: Vec<&Value> = events
            .iter()
            .filter(|event| event["name"] == "thread_name")
            .collect();
        assert_eq!(names.len(), 1);
        assert_eq!(names[0]["args"]["name"], "read");
        assert_eq!(
            events.iter().filter(|event| event["name"] == "work").count(),
            5000
        );
    }

    #[test]
    fn a_full_disk_is_told_at_the_end_and_stops_nothing() {
        assert!(Trace::create("/dev/full", 0).is_err());
        drop(span("test", "nowhere"));
    }
}
