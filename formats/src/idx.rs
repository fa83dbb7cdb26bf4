//! IDX files, the format of MNIST.
//!
//! | bytes | field | encoding |
//! |---|---|---|
//! | 2 | zeros | |
//! | 1 | element type, 8 for `uint8` | `u8` |
//! | 1 | number of dimensions `n` | `u8` |
//! | 4 `n` | sizes; the first is the number of items | `u32`, big-endian |
//! | rest | elements, C order | |
//!
//! Source: "File formats for the MNIST database" at <http://yann.lecun.com/exdb/mnist/>.

use std::io::{ErrorKind, Read};

use crate::{Error, Position, Result};

/// The element type of unsigned bytes, the only one that is read.
const UNSIGNED_BYTE: u8 = 8;
/// Most dimensions that are believed: four-dimensional pictures with their number leave room.
const MOST_DIMENSIONS: u8 = 8;

/// What the file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Sizes, the first is the number of items: `[60000, 28, 28]` for images, `[60000]` for labels.
    pub dimensions: Vec<u32>,
}

impl Header {
    /// Reads the header from the beginning of a file, and says how long it is.
    ///
    /// # Errors
    /// Bytes that are not an IDX file of unsigned bytes, too few of them, or an item larger than memory can address.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize)> {
        let (&[zero, also_zero, kind, count], rest) =
            bytes.split_first_chunk::<4>().ok_or_else(|| cut(bytes))?;
        if (zero, also_zero) != (0, 0) || count == 0 || count > MOST_DIMENSIONS {
            return Err(Error::damaged(format!(
                "not an IDX file: it begins with {:02x?}, wanted 00 00, a type and a number of dimensions",
                &bytes[..4]
            )));
        }
        if kind != UNSIGNED_BYTE {
            return Err(Error::unsupported(format!(
                "IDX elements of type {kind:#04x}, wanted 0x08, unsigned bytes"
            )));
        }
        let length = 4 * usize::from(count);
        let sizes = rest.get(..length).ok_or_else(|| cut(bytes))?;
        let (sizes, _) = sizes.as_chunks::<4>();
        let dimensions: Vec<u32> = sizes.iter().map(|&size| u32::from_be_bytes(size)).collect();
        let header = Self { dimensions };
        if header.total_bytes().is_none() {
            return Err(Error::damaged(format!(
                "IDX file of {:?} elements, more than there can be",
                header.dimensions
            )));
        }
        Ok((header, 4 + length))
    }

    /// How many items there are.
    pub fn num_items(&self) -> u64 {
        self.dimensions.first().copied().unwrap_or(0).into()
    }

    /// Shape of one item: `[28, 28]` for images, empty for labels.
    pub fn item_shape(&self) -> &[u32] {
        self.dimensions.get(1..).unwrap_or(&[])
    }

    /// Bytes of one item; 1 for labels.
    pub fn item_bytes(&self) -> usize {
        self.item_shape().iter().map(|&size| size as usize).product()
    }

    /// Bytes of all items, if an item can be held in memory.
    fn total_bytes(&self) -> Option<u64> {
        let item = self
            .item_shape()
            .iter()
            .try_fold(1u64, |bytes, &size| bytes.checked_mul(size.into()))?;
        isize::try_from(item).ok()?;
        item.checked_mul(self.num_items())
    }
}

fn cut(bytes: &[u8]) -> Error {
    Error::damaged(format!("IDX header is cut short after {} bytes", bytes.len()))
}

/// Reads the items of an IDX file one after the other, in constant memory.
///
/// # Examples
/// ```
/// use prep_formats::idx::Reader;
///
/// let labels = [0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1];
/// let mut reader = Reader::new("train-labels-idx1-ubyte", &labels[..])?;
/// let mut item = Vec::new();
/// let mut found = Vec::new();
/// while reader.read(&mut item)? {
///     found.extend_from_slice(&item);
/// }
/// assert_eq!(found, [7, 2, 1]);
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug)]
pub struct Reader<R> {
    path: String,
    input: R,
    header: Header,
    header_bytes: u64,
    next_index: u64,
    at_end: bool,
}

/// Bytes of an item that are made room for before they are seen.
const STEP_BYTES: usize = 1 << 20;

impl<R: Read> Reader<R> {
    /// Reads the header. `path` is how errors name the file; give a buffered reader.
    ///
    /// # Errors
    /// As [`Header::parse`], and what the reader reports.
    pub fn new(path: &str, mut input: R) -> Result<Self> {
        let mut bytes = Vec::with_capacity(4 + 4 * usize::from(MOST_DIMENSIONS));
        let place = |error: Error| {
            error.with_position(&Position {
                path: path.to_string(),
                record: None,
                offset: Some(0),
            })
        };
        read_up_to(path, &mut input, 4, &mut bytes)?;
        if let Some(&count) = bytes.get(3) {
            read_up_to(
                path,
                &mut input,
                4 * usize::from(count.min(MOST_DIMENSIONS)),
                &mut bytes,
            )?;
        }
        let (header, header_bytes) = Header::parse(&bytes).map_err(place)?;
        Ok(Self {
            path: path.to_string(),
            input,
            header,
            header_bytes: header_bytes as u64,
            next_index: 0,
            at_end: false,
        })
    }

    /// What the file says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Index of the item that comes next.
    pub fn next_index(&self) -> u64 {
        self.next_index
    }

    /// Reads the next item into `item`, which is cleared first; `false` after the last. At the end it makes sure that nothing follows.
    ///
    /// # Errors
    /// A file that ends too early or goes on after its last item, and what the reader reports.
    pub fn read(&mut self, item: &mut Vec<u8>) -> Result<bool> {
        item.clear();
        if self.next_index == self.header.num_items() {
            if !self.at_end {
                read_up_to(&self.path, &mut self.input, 1, item)?;
                if !item.is_empty() {
                    item.clear();
                    return Err(self.damaged(format!(
                        "bytes follow the last of {} items; the file is of another kind, or two in one",
                        self.header.num_items()
                    )));
                }
                self.at_end = true;
            }
            return Ok(false);
        }
        let length = self.header.item_bytes();
        while item.len() < length {
            let step = (length - item.len()).min(STEP_BYTES);
            let before = item.len();
            read_up_to(&self.path, &mut self.input, step, item)?;
            if item.len() - before < step {
                return Err(self.damaged(format!(
                    "the file ends after {} bytes of an item of {length} bytes; {} items were promised",
                    item.len(),
                    self.header.num_items()
                )));
            }
        }
        self.next_index += 1;
        Ok(true)
    }

    fn damaged(&self, reason: String) -> Error {
        let before = self.next_index.saturating_mul(self.header.item_bytes() as u64);
        Error::Damaged {
            at: Position {
                path: self.path.clone(),
                record: Some(self.next_index),
                offset: Some(self.header_bytes + before),
            },
            reason,
        }
    }
}

/// Appends up to `length` bytes; fewer only at the end of the input.
fn read_up_to(path: &str, input: &mut impl Read, length: usize, out: &mut Vec<u8>) -> Result<()> {
    let mut filled = out.len();
    let end = filled + length;
    out.resize(end, 0);
    let result = loop {
        if filled == end {
            break Ok(());
        }
        match input.read(&mut out[filled..]) {
            Ok(0) => break Ok(()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(source) => {
                break Err(Error::Io {
                    path: path.to_string(),
                    action: "read",
                    source,
                });
            }
        }
    };
    out.truncate(filled);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dimensions: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
        for size in dimensions {
            bytes.extend(size.to_be_bytes());
        }
        let elements: u32 = dimensions.iter().product();
        bytes.extend((0..elements).map(|element| element as u8));
        bytes
    }

    fn items(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut reader = Reader::new("t10k", bytes)?;
        let mut items = Vec::new();
        let mut item = Vec::new();
        while reader.read(&mut item)? {
            items.push(item.clone());
        }
        assert!(!reader.read(&mut item)?, "the end stays the end");
        Ok(items)
    }

    #[test]
    fn images_and_labels_are_read() {
        let images = items(&file(&[3, 2, 4])).unwrap();
        assert_eq!(images.len(), 3);
        assert_eq!(images[1], [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(items(&file(&[2])).unwrap(), [[0], [1]]);
        assert!(items(&file(&[0, 28, 28])).unwrap().is_empty());
        let (header, length) = Header::parse(&file(&[3, 2, 4])).unwrap();
        assert_eq!((header.num_items(), header.item_bytes(), length), (3, 8, 16));
        assert_eq!(header.item_shape(), [2, 4]);
    }

    #[test]
    fn cut_files_and_trailing_bytes_are_errors() {
        let bytes = file(&[3, 2, 4]);
        for length in 0..bytes.len() {
            assert!(items(&bytes[..length]).is_err(), "{length}");
        }
        let error = items(&bytes[..30]).unwrap_err().to_string();
        assert!(
            error.starts_with("t10k, record 1, byte 24: the file ends after 6 bytes"),
            "{error}"
        );
        let longer = [&bytes[..], &[0]].concat();
        let error = items(&longer).unwrap_err().to_string();
        assert!(
            error.starts_with("t10k, record 3, byte 40: bytes follow"),
            "{error}"
        );
    }

    #[test]
    fn other_kinds_are_refused() {
        let error = |bytes: &[u8]| items(bytes).unwrap_err().to_string();
        assert!(error(b"<!DOCTYPE html>").contains("not an IDX file"));
        assert!(error(b"\x1f\x8b\x08\x08........").contains("not an IDX file"));
        assert!(error(&[0, 0, 13, 1, 0, 0, 0, 1, 0, 0, 0, 0]).contains("0x0d"));
        assert!(error(&[0, 0, 8, 0]).contains("not an IDX file"));
        let mut huge = vec![0, 0, 8, 3];
        huge.extend([0xff; 12]);
        assert!(error(&huge).contains("more than there can be"));
        // Large, but possible: nothing is allocated for what does not come.
        let mut large = vec![0, 0, 8, 2];
        large.extend([0xff, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 1, 2]);
        assert!(error(&large).contains("ends after 2 bytes"));
    }

    #[test]
    fn errors_of_the_input_come_through() {
        #[derive(Debug)]
        struct Broken(u8);
        impl Read for Broken {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                self.0 += 1;
                match self.0 {
                    1 => Err(ErrorKind::Interrupted.into()),
                    2 => {
                        out[..1].copy_from_slice(&[0]);
                        Ok(1)
                    }
                    _ => Err(std::io::Error::other("disk on fire")),
                }
            }
        }
        let error = Reader::new("labels", Broken(0)).unwrap_err();
        assert_eq!(error.to_string(), "labels: could not read");
    }
}
