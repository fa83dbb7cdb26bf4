//! Learns the types of columns from the rows of all sources, on several threads.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail};
use bytes::Bytes;

use crate::builder::{Known, Source};
use crate::error::{Cancelled, Hinted};
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
    /// What else decides what is learnt: what an earlier build has learnt counts if that was the same.
    pub(super) settings: &'a str,
}

impl Lesson<'_> {
    /// What identifies it.
    fn id(&self) -> String {
        let text = format!(
            "{SURVEY_REVISION} {} {:?} {:?} {} {}",
            self.settings, self.members, self.classes, self.sample, self.wants_rows
        );
        blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
    }
}

/// Raise when a survey notes other things of the same rows than before, or writes them down in another way.
const SURVEY_REVISION: u32 = 1;

/// What was learnt.
#[derive(Debug, Default)]
pub(super) struct Learnt {
    pub(super) survey: Survey,
    /// Of each source, as text.
    pub(super) sources: Vec<String>,
    /// In how many pieces each source is read.
    pub(super) pieces: Vec<u64>,
    /// The first damaged row, and what is wrong with it.
    pub(super) fault: Option<(Place, String)>,
}

/// What was learnt of a source, as it is written down for later versions.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct OfSource {
    /// The lesson's.
    lesson: String,
    pieces: u64,
    survey: Survey,
}

/// A source of which not all rows are parsed yet. Whoever lets go of it last writes down what was learnt.
struct Open {
    source: u32,
    pieces: AtomicU64,
    survey: Mutex<Survey>,
    fault: Mutex<Option<(Place, String)>>,
}

impl Open {
    fn note_fault(&self, place: &Place, reason: &str) {
        note_first(&mut lock(&self.fault), place, || reason.to_owned());
    }
}

/// Keeps the first of the faults that it is told.
fn note_first(known: &mut Option<(Place, String)>, place: &Place, reason: impl FnOnce() -> String) {
    let order = |place: &Place| (place.source, place.file, place.row);
    if known
        .as_ref()
        .is_none_or(|(known, _)| order(place) < order(known))
    {
        *known = Some((place.clone(), reason()));
    }
}

struct Batch {
    open: Arc<Open>,
    place: Place,
    rows: Vec<(u64, Bytes, u64)>,
}

/// What all threads share.
struct Class<'a> {
    lesson: &'a Lesson<'a>,
    id: String,
    sources: &'a [Source],
    known: &'a [Option<Known>],
    /// The next source.
    next: AtomicUsize,
    failed: AtomicBool,
    errors: Mutex<Vec<(usize, anyhow::Error)>>,
    learnt: Mutex<Learnt>,
}

/// Looks at all sources but those of which enough is known. The result is the same for any number of threads. Damaged rows are passed over: they are
/// told of when they are read.
///
/// # Errors
/// A source is unusable; of several, the first one.
pub(super) fn learn(
    lesson: &Lesson<'_>,
    sources: &[Source],
    known: &[Option<Known>],
    workers: usize,
) -> Result<Learnt> {
    let class = Class {
        lesson,
        id: lesson.id(),
        sources,
        known,
        next: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
        errors: Mutex::default(),
        learnt: Mutex::new(Learnt {
            survey: Survey::new(lesson.classes),
            sources: vec![String::new(); sources.len()],
            pieces: vec![1; sources.len()],
            fault: None,
        }),
    };
    let (sender, batches) = sync_channel::<Batch>(2 * workers.max(1));
    let batches = Mutex::new(batches);
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, sources.len().max(1)) {
            let (sender, class) = (sender.clone(), &class);
            scope.spawn(move || class.look_at_sources(&sender));
        }
        drop(sender);
        for _ in 0..workers.max(1) {
            scope.spawn(|| class.parse(&batches));
        }
    });
    let mut errors = class.errors.into_inner().unwrap_or_else(PoisonError::into_inner);
    errors.sort_by_key(|(index, _)| *index);
    match errors.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(class.learnt.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

impl Class<'_> {
    fn fail(&self, index: usize, error: anyhow::Error) {
        self.failed.store(true, Ordering::Relaxed);
        lock(&self.errors).push((index, error));
    }

    fn look_at_sources(&self, sender: &SyncSender<Batch>) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let source = self.sources.get(index);
            let Some(source) = source.filter(|_| !self.failed.load(Ordering::Relaxed)) else {
                break;
            };
            let result = match self.take_known(index, source) {
                Ok(true) => Ok(()),
                Ok(false) => self.look_at(source, sender),
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                self.fail(index, error);
            }
        }
    }

    /// Takes what an earlier build has learnt of a source, if that is enough.
    fn take_known(&self, index: usize, source: &Source) -> Result<bool> {
        let Some(Some(known)) = self.known.get(index) else {
            return Ok(false);
        };
        if known.is_there && self.lesson.reader.looks_at_all() {
            return Ok(false);
        }
        let found = serde_json::from_str::<OfSource>(&known.text).ok();
        let Some(found) = found.filter(|found| found.lesson == self.id) else {
            if known.is_there {
                return Ok(false);
            }
            bail!(Hinted::new(
                format!("what is known of {} was learnt under other settings", source.name),
                "the recipe asks for other columns, types or rows than before: build it anew, with `prep update RECIPE.toml`"
            ));
        };
        let mut learnt = lock(&self.learnt);
        learnt.survey.merge(found.survey.of_source(source.index()));
        learnt.pieces[index] = found.pieces;
        known.text.clone_into(&mut learnt.sources[index]);
        Ok(true)
    }

    fn look_at(&self, source: &Source, sender: &SyncSender<Batch>) -> Result<()> {
        let lesson = self.lesson;
        let reader = lesson.reader;
        let open = Arc::new(Open {
            source: source.index(),
            pieces: AtomicU64::new(1),
            survey: Mutex::new(Survey::new(lesson.classes)),
            fault: Mutex::default(),
        });
        let is_alone = source.files().is_none();
        each_row_file(source, lesson.members, reader, true, &mut |file| {
            let mut pieces = 1;
            if is_alone && !is_packed(&source.name, reader.endings()) {
                pieces = reader.pieces(file)?;
                open.pieces.store(pieces, Ordering::Relaxed);
            }
            let mut told = Survey::new(&[]);
            let tells = reader.columns(file, source.index(), &mut told)?;
            if tells {
                lock(&open.survey).merge(told);
                if lesson.classes.is_empty() {
                    return Ok(ControlFlow::Continue(()));
                }
            } else if !lesson.wants_rows {
                return Ok(ControlFlow::Continue(()));
            }
            send_rows(lesson, source, file, pieces, &open, sender)?;
            Ok(ControlFlow::Continue(()))
        })?;
        self.let_go(open)
    }

    /// Writes down what was learnt of a source, when nobody adds to it any more.
    fn let_go(&self, open: Arc<Open>) -> Result<()> {
        let Some(open) = Arc::into_inner(open) else {
            return Ok(());
        };
        let survey = open.survey.into_inner().unwrap_or_else(PoisonError::into_inner);
        let fault = open.fault.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (index, pieces) = (open.source as usize, open.pieces.into_inner());
        let text = serde_json::to_string(&OfSource {
            lesson: self.id.clone(),
            pieces,
            survey: survey.clone().settled(),
        })?;
        let mut learnt = lock(&self.learnt);
        learnt.survey.merge(survey);
        learnt.sources[index] = text;
        learnt.pieces[index] = pieces;
        if let Some((place, reason)) = fault {
            note_first(&mut learnt.fault, &place, || reason);
        }
        Ok(())
    }

    /// Parses rows as long as there are any.
    fn parse(&self, batches: &Mutex<Receiver<Batch>>) {
        loop {
            let batch = lock(batches).recv();
            let Ok(Batch {
                open,
                mut place,
                rows,
            }) = batch
            else {
                return;
            };
            let index = open.source as usize;
            if let Some(source) = self.sources.get(index) {
                source.add_records_read(rows.len() as u64);
            }
            let mut survey = Survey::new(self.lesson.classes);
            for (row, data, tag) in rows {
                place.row = row;
                match self.lesson.reader.cells(&data, tag) {
                    Ok(cells) => survey.add(&cells, &place),
                    Err(error) => open.note_fault(&place, &format!("{error:#}")),
                }
            }
            lock(&open.survey).merge(survey);
            if let Err(error) = self.let_go(open) {
                self.fail(index, error);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send_rows(
    lesson: &Lesson<'_>,
    source: &Source,
    file: &mut RowFile<'_>,
    pieces: u64,
    open: &Arc<Open>,
    sender: &SyncSender<Batch>,
) -> Result<()> {
    let mut batches = Batches {
        open,
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
    open: &'a Arc<Open>,
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
        if rows.is_empty() {
            return Ok(());
        }
        let batch = Batch {
            open: Arc::clone(self.open),
            place: self.place.clone(),
            rows,
        };
        self.sender.send(batch).map_err(|_| Cancelled.into())
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

    fn fault(&mut self, row: u64, reason: &str) -> Result<()> {
        self.open.note_fault(
            &Place {
                row,
                ..self.place.clone()
            },
            reason,
        );
        Ok(())
    }
}

/// What was learnt, as text: for the journal and other processes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct Notes {
    /// The files of the schema, by name.
    pub(super) features: Vec<(String, String)>,
    /// In how many pieces sources are read that are read in more than one: (source, pieces).
    pub(super) pieces: Vec<(usize, u64)>,
    /// What was learnt of each source, for later versions.
    pub(super) sources: Vec<String>,
}
