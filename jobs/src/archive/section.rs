//! A part of an uncompressed file, read at positions: leaving bytes out costs nothing.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::archive::Skip;
use crate::monitor::{Meter, Monitor};

/// Bytes read at a time where little is wanted: the header of a tar's member, and the beginning of its data.
const BUFFER_BYTES: usize = 1024;

/// A part of a file as a stream of bytes, of which any number can be left out at no cost.
///
/// So the members of a tar archive are listed by one small read each, whatever their size.
#[derive(Debug)]
pub struct Section {
    name: String,
    file: Arc<File>,
    start: u64,
    end: u64,
    position: u64,
    buffer: Box<[u8; BUFFER_BYTES]>,
    /// What the buffer holds begins here in the file, and has so many bytes.
    buffered_from: u64,
    buffered: usize,
    meter: Option<Arc<Meter>>,
    monitor: Arc<Monitor>,
}

impl Section {
    /// The first `bytes` bytes of a file.
    pub(crate) fn new(name: &str, file: Arc<File>, bytes: u64, monitor: Arc<Monitor>) -> Self {
        Self {
            name: name.to_owned(),
            file,
            start: 0,
            end: bytes,
            position: 0,
            buffer: Box::new([0; BUFFER_BYTES]),
            buffered_from: 0,
            buffered: 0,
            meter: None,
            monitor,
        }
    }

    /// What is gone over counts as progress of this stage.
    #[must_use]
    pub(crate) fn counted(mut self, meter: Arc<Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// A part of this part, as far as it lies in it.
    #[must_use]
    pub fn part(&self, name: &str, offset: u64, bytes: u64) -> Self {
        let start = self.start.saturating_add(offset).min(self.end);
        let end = start.saturating_add(bytes).min(self.end);
        let mut part = Self::new(name, Arc::clone(&self.file), end, Arc::clone(&self.monitor));
        (part.start, part.position, part.meter) = (start, start, self.meter.clone());
        part
    }

    /// Where the part begins in the file.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.end - self.start
    }

    /// Reads a piece of the part, wherever the stream stands.
    ///
    /// # Errors
    /// The file ends before, or cannot be read.
    pub fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.monitor.check().map_err(io::Error::other)?;
        let at = self.start.saturating_add(offset);
        if at.saturating_add(buffer.len() as u64) > self.end {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "{}: {} bytes at byte {offset} lie past its end",
                    self.name,
                    buffer.len()
                ),
            ));
        }
        self.file
            .read_exact_at(buffer, at)
            .map_err(|error| self.named(error))
    }

    fn named(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: could not read: {error}", self.name))
    }

    fn advance(&mut self, bytes: u64) {
        self.position += bytes;
        if let Some(meter) = &self.meter {
            meter.add(bytes);
        }
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end - self.position;
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if wanted == 0 {
            return Ok(0);
        }
        let held = self.buffered_from..self.buffered_from + self.buffered as u64;
        if !held.contains(&self.position) {
            self.monitor.check().map_err(io::Error::other)?;
            if wanted >= BUFFER_BYTES {
                let count = self
                    .file
                    .read_at(&mut buffer[..wanted], self.position)
                    .map_err(|error| self.named(error))?;
                self.advance(count as u64);
                return Ok(count);
            }
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            self.buffered = 0;
            let count = self
                .file
                .read_at(&mut self.buffer[..most], self.position)
                .map_err(|error| self.named(error))?;
            (self.buffered_from, self.buffered) = (self.position, count);
        }
        let from = (self.position - self.buffered_from) as usize;
        let count = wanted.min(self.buffered - from);
        buffer[..count].copy_from_slice(&self.buffer[from..from + count]);
        self.advance(count as u64);
        Ok(count)
    }
}

impl Skip for Section {
    fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        let count = bytes.min(self.end - self.position);
        self.advance(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;

    use proptest::prelude::*;

    fn section(bytes: &[u8]) -> Section {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Section::new("a.tar", Arc::new(file), bytes.len() as u64, Monitor::new())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn reads_and_skips_are_those_of_a_slice(
            bytes in proptest::collection::vec(any::<u8>(), 0..5000),
            part in (0u64..6000, 0u64..6000),
            steps in proptest::collection::vec((any::<bool>(), 0usize..2000), 0..20),
        ) {
            let mut ours = section(&bytes).part("b", part.0, part.1);
            let start = (part.0 as usize).min(bytes.len());
            let end = (start + part.1 as usize).min(bytes.len());
            prop_assert_eq!((ours.start(), ours.size()), (start as u64, (end - start) as u64));
            let mut theirs = &bytes[start..end];
            for (skip, count) in steps {
                if skip {
                    prop_assert_eq!(ours.skip(count as u64).unwrap(), theirs.skip(count as u64).unwrap());
                } else {
                    let (mut a, mut b) = (Vec::new(), Vec::new());
                    (&mut ours).take(count as u64).read_to_end(&mut a).unwrap();
                    (&mut theirs).take(count as u64).read_to_end(&mut b).unwrap();
                    prop_assert_eq!(a, b);
                }
            }
        }
    }

    #[test]
    fn a_file_that_became_shorter_ends_early_and_a_piece_of_it_is_an_error() {
        let part = section(&[7; 3000]);
        part.file.set_len(1000).unwrap();
        assert!(part.read_exact_at(500, &mut [0; 500]).is_ok());
        let error = part.read_exact_at(500, &mut [0; 501]).unwrap_err();
        assert!(error.to_string().starts_with("a.tar: could not read"), "{error}");
        let error = part.read_exact_at(2900, &mut [0; 200]).unwrap_err();
        assert!(error.to_string().contains("lie past its end"), "{error}");
        let mut part = part;
        let mut found = Vec::new();
        part.read_to_end(&mut found).unwrap();
        assert_eq!(found, [7; 1000]);
    }
}
