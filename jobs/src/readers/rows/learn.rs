//! Learns the types of columns from the rows of all sources, on several threads.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use bytes::Bytes;

use crate::builder::Source;
use crate::error::Cancelled;
use crate::readers::rows::file::{RowFile, each_row_file, is_packed};
use crate::readers::rows::survey::{Place, Survey};
use crate::readers::rows::{RawRow, RowReader, Rows};
use crate::recipe::Pattern;

/// Rows that go to a parsing thread at a time, and how many bytes.
const BATCH_ROWS: usize = 512;
const BATCH_BYTES: usize = 256 << 10;

/// What there is to learn.
pub(super) struct Lesson<'a> {
    pub(super) reader: &'a dyn RowReader,
    pub(super) members: &'a [Pattern],
    /// Columns whose values are classes.
    pub(super) classes: &'a [String],
    /// Rows of each file that are looked at.
    pub(super) sample: u64,
    /// Whether rows are looked at, if files do not tell.
    pub(super) wants_rows: bool,
}

/// What was learnt.
#[derive(Debug, Default)]
pub(super) struct Learnt {
    pub(super) survey: Survey,
    /// In how many pieces each source is read.
    pub(super) pieces: Vec<u64>,
}

type Batch = (Place, Vec<(u64, Bytes, u64)>);

/// Looks at all sources. The result is the same for any number of threads. Damaged rows are passed over: they are told of when they are read.
///
/// # Errors
/// A source is unusable; of several, the first one.
pub(super) fn learn(lesson: &Lesson<'_>, sources: &[Source], workers: usize) -> Result<Learnt> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let errors: Mutex<Vec<(usize, anyhow::Error)>> = Mutex::default();
    let total: Mutex<Survey> = Mutex::new(Survey::new(lesson.classes));
    let pieces: Mutex<Vec<u64>> = Mutex::new(vec![1; sources.len()]);
    let (sender, batches) = sync_channel::<Batch>(2 * workers.max(1));
    let batches = Mutex::new(batches);
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, sources.len().max(1)) {
            let sender = sender.clone();
            let (next, failed, errors, total, pieces) = (&next, &failed, &errors, &total, &pieces);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(source) = sources.get(index).filter(|_| !failed.load(Ordering::Relaxed)) else {
                        break;
                    };
                    match look_at(lesson, source, &sender, total) {
                        Ok(count) => pieces.lock().unwrap_or_else(PoisonError::into_inner)[index] = count,
                        Err(error) => {
                            failed.store(true, Ordering::Relaxed);
                            errors
                                .lock()
                                .unwrap_or_else(PoisonError::into_inner)
                                .push((index, error));
                        }
                    }
                }
            });
        }
        drop(sender);
        for _ in 0..workers.max(1) {
            scope.spawn(|| {
                let survey = parse(lesson, &batches);
                total.lock().unwrap_or_else(PoisonError::into_inner).merge(survey);
            });
        }
    });
    let mut errors = errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    errors.sort_by_key(|(index, _)| *index);
    if let Some((_, error)) = errors.into_iter().next() {
        return Err(error);
    }
    Ok(Learnt {
        survey: total.into_inner().unwrap_or_else(PoisonError::into_inner),
        pieces: pieces.into_inner().unwrap_or_else(PoisonError::into_inner),
    })
}

/// Looks at a source, and gives its number of pieces.
fn look_at(
    lesson: &Lesson<'_>,
    source: &Source,
    sender: &SyncSender<Batch>,
    total: &Mutex<Survey>,
) -> Result<u64> {
    let reader = lesson.reader;
    let mut pieces = 1;
    let is_alone = source.files().is_none();
    each_row_file(source, lesson.members, reader, true, &mut |file| {
        if is_alone && !is_packed(&source.name, reader.endings()) {
            pieces = reader.pieces(file)?;
        }
        let mut told = Survey::new(&[]);
        let tells = reader.columns(file, source.index(), &mut told)?;
        if tells {
            total.lock().unwrap_or_else(PoisonError::into_inner).merge(told);
            if lesson.classes.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
        } else if !lesson.wants_rows {
            return Ok(ControlFlow::Continue(()));
        }
        send_rows(lesson, source, file, if is_alone { pieces } else { 1 }, sender)?;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(pieces)
}

fn send_rows(
    lesson: &Lesson<'_>,
    source: &Source,
    file: &mut RowFile<'_>,
    pieces: u64,
    sender: &SyncSender<Batch>,
) -> Result<()> {
    let mut batches = Batches {
        place: Place {
            source: source.index(),
            file: file.index,
            row: 0,
            path: file.shown.as_str().into(),
            unit: lesson.reader.unit(),
        },
        left: lesson.sample,
        rows: Vec::new(),
        bytes: 0,
        sender,
    };
    for piece in 0..pieces {
        if batches.left == 0 {
            break;
        }
        lesson.reader.read(file, piece, &mut batches)?;
    }
    batches.flush()
}

/// Gathers rows for the parsing threads.
struct Batches<'a> {
    place: Place,
    left: u64,
    rows: Vec<(u64, Bytes, u64)>,
    bytes: usize,
    sender: &'a SyncSender<Batch>,
}

impl Batches<'_> {
    fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() || self.sender.send((self.place.clone(), rows)).is_ok() {
            return Ok(());
        }
        Err(Cancelled.into())
    }
}

impl Rows for Batches<'_> {
    fn put(&mut self, row: RawRow) -> Result<ControlFlow<()>> {
        self.bytes += row.data.len();
        self.rows.push((row.row, row.data, row.tag));
        if self.rows.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES {
            self.flush()?;
        }
        self.left -= 1;
        Ok(match self.left {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
    }

    fn fault(&mut self, _row: u64, _reason: &str) -> Result<()> {
        Ok(())
    }
}

/// Parses rows as long as there are any.
fn parse(lesson: &Lesson<'_>, batches: &Mutex<Receiver<Batch>>) -> Survey {
    let mut survey = Survey::new(lesson.classes);
    loop {
        let batch = batches.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((mut place, rows)) = batch else {
            return survey;
        };
        for (row, data, tag) in rows {
            place.row = row;
            if let Ok(cells) = lesson.reader.cells(&data, tag) {
                survey.add(&cells, &place);
            }
        }
    }
}

/// What was learnt, as text: for the journal and other processes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct Notes {
    /// The files of the schema, by name.
    pub(super) features: Vec<(String, String)>,
    /// In how many pieces sources are read that are read in more than one: (source, pieces).
    pub(super) pieces: Vec<(usize, u64)>,
}
