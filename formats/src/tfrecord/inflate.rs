//! Decompresses gzip and zlib streams, and gives every byte that comes before a fault.
//!
//! The readers of flate2 drop what the failing call unpacked, so how much comes before an error depends on the sizes of the reads below
//! them. Here it depends on the file only: zlib's state machine (Source: RFC 1950 to 1952) is driven directly, and an error waits until
//! the bytes before it have been given.

use std::io::{self, BufRead, Read};

use flate2::{Decompress, FlushDecompress, Status};

/// Bits of the window that DEFLATE may refer back to: 32 KiB. Source: RFC 1951, section 2.
const WINDOW_BITS: u8 = 15;

/// What is around the compressed data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrapper {
    /// Any number of gzip members, one after the other.
    Gzip,
    /// One zlib stream.
    Zlib,
}

/// Decompresses to the end of the source. Holds 40 KiB of state, whatever the length of the stream.
pub(super) struct Inflater<R> {
    source: R,
    wrapper: Wrapper,
    inflate: Decompress,
    /// Inside a member: the source may not end here.
    inside: bool,
    /// Some member has ended.
    ended: bool,
    /// What the bytes given last are followed by.
    fault: Option<(io::ErrorKind, String)>,
}

impl<R: BufRead> Inflater<R> {
    pub(super) fn new(source: R, wrapper: Wrapper) -> Self {
        Self {
            source,
            wrapper,
            inflate: fresh(wrapper),
            inside: false,
            ended: false,
            fault: None,
        }
    }
}

fn fresh(wrapper: Wrapper) -> Decompress {
    match wrapper {
        Wrapper::Gzip => Decompress::new_gzip(WINDOW_BITS),
        Wrapper::Zlib => Decompress::new_with_window_bits(true, WINDOW_BITS),
    }
}

impl<R: BufRead> Read for Inflater<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some((kind, message)) = &self.fault {
                return Err(io::Error::new(*kind, message.clone()));
            }
            let input = self.source.fill_buf()?;
            let at_end = input.is_empty();
            if !self.inside && self.ended {
                if at_end {
                    return Ok(0);
                }
                if self.wrapper == Wrapper::Zlib {
                    let message = "bytes follow the end of the zlib stream".to_owned();
                    self.fault = Some((io::ErrorKind::InvalidData, message));
                    continue;
                }
                self.inflate = fresh(self.wrapper);
                self.ended = false;
            }
            let (taken_before, given_before) = (self.inflate.total_in(), self.inflate.total_out());
            // At the end of the source as well: there may be output that did not fit before.
            let result = self.inflate.decompress(input, buffer, FlushDecompress::None);
            let taken = (self.inflate.total_in() - taken_before) as usize;
            let given = (self.inflate.total_out() - given_before) as usize;
            self.source.consume(taken);
            self.inside |= taken > 0;
            match result {
                Ok(Status::StreamEnd) => (self.inside, self.ended) = (false, true),
                Ok(Status::Ok | Status::BufError) if at_end && given == 0 => {
                    let message = "the stream ends early".to_owned();
                    self.fault = Some((io::ErrorKind::UnexpectedEof, message));
                }
                Ok(Status::Ok | Status::BufError) => {}
                Err(error) => self.fault = Some((io::ErrorKind::InvalidData, error.to_string())),
            }
            if given > 0 {
                return Ok(given);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write};

    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use proptest::prelude::*;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// All bytes before the end or a fault, and the fault; read in pieces of these sizes.
    fn read(stored: &[u8], wrapper: Wrapper, below: usize, above: usize) -> (Vec<u8>, Option<io::ErrorKind>) {
        let mut reader = Inflater::new(BufReader::with_capacity(below, stored), wrapper);
        let mut all = Vec::new();
        let mut buffer = vec![0; above];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return (all, None),
                Ok(length) => all.extend_from_slice(&buffer[..length]),
                Err(error) => {
                    assert_eq!(reader.read(&mut buffer).unwrap_err().kind(), error.kind());
                    return (all, Some(error.kind()));
                }
            }
        }
    }

    fn text() -> Vec<u8> {
        (0..4000u32)
            .flat_map(|number| format!("{} ", number * number).into_bytes())
            .collect()
    }

    #[test]
    fn members_follow_each_other_and_end_whole() {
        let (one, two) = (b"one ".repeat(300), text());
        let mut file = gzip(&one);
        let first = file.len();
        file.extend(gzip(b""));
        let second = file.len();
        file.extend(gzip(&two));
        assert_eq!(
            read(&file, Wrapper::Gzip, 7, 100),
            ([&one[..], &two].concat(), None)
        );
        for cut in 0..file.len() {
            let whole = [first, second].contains(&cut);
            let (_, fault) = read(&file[..cut], Wrapper::Gzip, 64, 1000);
            assert_eq!(
                fault,
                (!whole).then_some(io::ErrorKind::UnexpectedEof),
                "cut at {cut}"
            );
        }
        file.extend(b"more");
        assert_eq!(
            read(&file, Wrapper::Gzip, 64, 1000).1,
            Some(io::ErrorKind::InvalidData)
        );
        let mut file = zlib(&two);
        assert_eq!(read(&file, Wrapper::Zlib, 64, 1000), (two.clone(), None));
        file.push(0);
        assert_eq!(
            read(&file, Wrapper::Zlib, 64, 1000),
            (two, Some(io::ErrorKind::InvalidData))
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// What comes before a fault does not depend on how the file is read.
        #[test]
        fn a_damaged_stream_gives_the_same_bytes_however_it_is_read(
            at in any::<prop::sample::Index>(), flip in 1u8.., zipped in any::<bool>(), below in 1usize..5000, above in 1usize..5000,
        ) {
            let wrapper = if zipped { Wrapper::Gzip } else { Wrapper::Zlib };
            let mut stored = if zipped { gzip(&text()) } else { zlib(&text()) };
            let at = at.index(stored.len());
            stored[at] ^= flip;
            let whole = read(&stored, wrapper, 1 << 20, 1 << 20);
            prop_assert_eq!(read(&stored, wrapper, below, above), whole);
        }
    }
}
