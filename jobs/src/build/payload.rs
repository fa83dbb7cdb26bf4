//! What the job graph carries for an example: the record itself, or what is around a payload that stays in its source.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | 0: a record follows; 1: the rest of this table |
//! | 4, 8, 8 | source, offset, length of the payload, little-endian |
//! | 4 | how much of the rest comes before the payload, little-endian |
//! | | the rest of the record |

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use rustix::fs::Advice;

use crate::builder::{Extent, Source};
use crate::error::Hinted;

const WHOLE: u8 = 0;
const AROUND: u8 = 1;
const HEADER_BYTES: usize = 25;

/// Begins a record that follows.
pub(crate) fn begin_whole(out: &mut Vec<u8>) {
    out.push(WHOLE);
}

/// Begins what is around a payload: `finish_around` says later how much of it comes before.
pub(crate) fn begin_around(extent: &Extent, out: &mut Vec<u8>) {
    out.push(AROUND);
    out.extend_from_slice(&extent.source.to_le_bytes());
    out.extend_from_slice(&extent.offset.to_le_bytes());
    out.extend_from_slice(&extent.bytes.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
}

/// Notes how much comes before the payload.
pub(crate) fn finish_around(before: usize, out: &mut [u8]) {
    if let Some(slot) = out.get_mut(HEADER_BYTES - 4..HEADER_BYTES) {
        slot.copy_from_slice(&(before as u32).to_le_bytes());
    }
}

/// What an example is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parts {
    /// The record.
    Whole(Bytes),
    /// What comes before and after the payload.
    Around(Extent, Bytes, Bytes),
}

/// Takes apart what the functions above made; `None` for other bytes.
pub(crate) fn parse(data: &Bytes) -> Option<Parts> {
    match *data.first()? {
        WHOLE => Some(Parts::Whole(data.slice(1..))),
        AROUND => {
            let header = data.get(..HEADER_BYTES)?;
            let extent = Extent {
                source: u32::from_le_bytes(header[1..5].try_into().ok()?),
                offset: u64::from_le_bytes(header[5..13].try_into().ok()?),
                bytes: u64::from_le_bytes(header[13..21].try_into().ok()?),
            };
            let before = u32::from_le_bytes(header[21..25].try_into().ok()?) as usize;
            let middle = HEADER_BYTES
                .checked_add(before)
                .filter(|end| *end <= data.len())?;
            Some(Parts::Around(
                extent,
                data.slice(HEADER_BYTES..middle),
                data.slice(middle..),
            ))
        }
        _ => None,
    }
}

/// How long the record will be.
pub(crate) fn record_bytes(data: &[u8]) -> u64 {
    match data {
        [AROUND, ..] => {
            let length = data.get(13..21).and_then(|length| length.try_into().ok());
            length.map_or(0, u64::from_le_bytes) + data.len().saturating_sub(HEADER_BYTES) as u64
        }
        _ => data.len().saturating_sub(1) as u64,
    }
}

/// Names of the files and archive members that examples come from, by number. The numbers of different processes differ: part `n` is the
/// `n / processes`th of process `n % processes`.
#[derive(Debug)]
pub(crate) struct PartNames {
    process: usize,
    /// By process; those of the others are empty until one asks for them.
    names: Mutex<Vec<Vec<String>>>,
}

impl Default for PartNames {
    fn default() -> Self {
        Self::of(0, 1)
    }
}

impl PartNames {
    /// The names that one of so many processes gives.
    pub(crate) fn of(process: usize, processes: usize) -> Self {
        Self {
            process,
            names: Mutex::new(vec![Vec::new(); processes]),
        }
    }

    /// Adds a name, and gives its number.
    pub(crate) fn add(&self, name: &str) -> u32 {
        let mut all = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let processes = all.len();
        let names = &mut all[self.process];
        names.push(name.to_owned());
        ((names.len() - 1) * processes + self.process) as u32
    }

    /// The names that this process gave.
    pub(crate) fn own(&self) -> Vec<String> {
        let all = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        all[self.process].clone()
    }

    /// Takes the names that another process gave.
    pub(crate) fn learn(&self, process: usize, names: Vec<String>) {
        let mut all = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get_mut(process).filter(|_| process != self.process) {
            *known = names;
        }
    }

    /// A part's name.
    pub(crate) fn name(&self, part: u32) -> String {
        let all = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let (process, index) = (part as usize % all.len(), part as usize / all.len());
        match all[process].get(index) {
            Some(name) => name.clone(),
            None if process != self.process => format!("an input of process {process}"),
            None => "an unnamed source".to_owned(),
        }
    }

    /// `name, record 7`.
    pub(crate) fn place(&self, part: u32, record: u64) -> String {
        format!("{}, record {record}", self.name(part))
    }
}

/// Reads payloads out of sources, which are opened when they are first needed.
#[derive(Debug)]
pub(crate) struct Payloads {
    sources: Arc<Vec<Source>>,
    files: Vec<OnceLock<File>>,
}

impl Payloads {
    pub(crate) fn new(sources: Arc<Vec<Source>>) -> Self {
        let files = sources.iter().map(|_| OnceLock::new()).collect();
        Self { sources, files }
    }

    fn file(&self, extent: &Extent) -> Result<(&Source, &File)> {
        let index = extent.source as usize;
        let (Some(source), Some(slot)) = (self.sources.get(index), self.files.get(index)) else {
            anyhow::bail!("there is no source {index}");
        };
        if let Some(file) = slot.get() {
            return Ok((source, file));
        }
        let file = source.file()?;
        Ok((source, slot.get_or_init(|| file)))
    }

    /// Reads a payload into new memory.
    pub(crate) fn read(&self, extent: &Extent) -> Result<Vec<u8>> {
        let (source, file) = self.file(extent)?;
        // No more is taken than the file has: a size that it claims is believed only then.
        if extent.offset.saturating_add(extent.bytes) > source.bytes() {
            return Err(cut(source, extent));
        }
        let mut data = vec![0; extent.bytes as usize];
        file.read_exact_at(&mut data, extent.offset)
            .map_err(|error| unreadable(source, extent, error))?;
        Ok(data)
    }

    /// Reads a payload into a buffer of its length. Gives whether it was in memory already.
    pub(crate) fn read_into(&self, extent: &Extent, buffer: &mut [u8]) -> Result<bool> {
        use rustix::io::{Errno, ReadWriteFlags, preadv2};

        let (source, file) = self.file(extent)?;
        let there = loop {
            let mut slices = [io::IoSliceMut::new(buffer)];
            match preadv2(file, &mut slices, extent.offset, ReadWriteFlags::NOWAIT) {
                Ok(count) => break count,
                Err(Errno::INTR) => {}
                // Not in memory; or a system that cannot tell. Errors come again below.
                Err(_) => break 0,
            }
        };
        if there == buffer.len() {
            return Ok(true);
        }
        file.read_exact_at(&mut buffer[there..], extent.offset + there as u64)
            .map_err(|error| unreadable(source, extent, error))?;
        Ok(false)
    }

    /// Has the system read a payload that will be wanted soon. It is only advice.
    pub(crate) fn will_need(&self, extent: &Extent) {
        if let Ok((_, file)) = self.file(extent) {
            let length = std::num::NonZeroU64::new(extent.bytes);
            let _ = rustix::fs::fadvise(file, extent.offset, length, Advice::WillNeed);
        }
    }
}

fn cut(source: &Source, extent: &Extent) -> anyhow::Error {
    let Extent { offset, bytes, .. } = extent;
    let message = format!(
        "{}: {bytes} bytes at byte {offset} lie past its end",
        source.path().display()
    );
    Hinted::new(message, "leave the sources as they are until the build is done").into()
}

fn unreadable(source: &Source, extent: &Extent, error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return cut(source, extent);
    }
    let message = format!(
        "could not read {} at byte {}",
        source.path().display(),
        extent.offset
    );
    anyhow::Error::new(error).context(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    #[test]
    fn what_was_put_together_comes_apart() {
        let mut out = Vec::new();
        begin_whole(&mut out);
        out.extend_from_slice(b"record");
        assert_eq!(record_bytes(&out), 6);
        assert_eq!(parse(&out.into()), Some(Parts::Whole("record".into())));

        let extent = Extent {
            source: 7,
            offset: 1 << 40,
            bytes: 1000,
        };
        let mut out = Vec::new();
        begin_around(&extent, &mut out);
        out.extend_from_slice(b"before, after");
        finish_around(6, &mut out);
        assert_eq!(record_bytes(&out), 1013);
        let wanted = Parts::Around(extent, "before".into(), ", after".into());
        assert_eq!(parse(&out.into()), Some(wanted));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            record_bytes(&bytes);
            parse(&bytes.into());
        }
    }
}
