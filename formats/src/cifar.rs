//! CIFAR-10 and CIFAR-100 binary batch files.
//!
//! | bytes | CIFAR-10 | CIFAR-100 |
//! |---|---|---|
//! | 1 | | coarse label, 0 to 19 |
//! | 1 | label, 0 to 9 | fine label, 0 to 99 |
//! | 1024 | red, row by row | the same |
//! | 1024 | green | |
//! | 1024 | blue | |
//!
//! Records follow each other without anything between them.
//!
//! Source: "Binary version" at <https://www.cs.toronto.edu/~kriz/cifar.html>.

use crate::{Error, Position, Result};

/// Height and width of a picture.
pub const SIDE: usize = 32;
/// Bytes of one channel of a picture.
const PLANE_BYTES: usize = SIDE * SIDE;
/// Bytes of the pixels of a picture: `u8[32, 32, 3]`, height, width, channel.
pub const PIXEL_BYTES: usize = 3 * PLANE_BYTES;

/// Which of the two layouts a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One label, 0 to 9.
    Cifar10,
    /// A coarse label, 0 to 19, then a fine one, 0 to 99.
    Cifar100,
}

impl Layout {
    /// The number of classes of each label, in file order.
    pub fn num_classes(self) -> &'static [u8] {
        match self {
            Self::Cifar10 => &[10],
            Self::Cifar100 => &[20, 100],
        }
    }

    /// Bytes of a record.
    pub fn record_bytes(self) -> usize {
        self.num_classes().len() + PIXEL_BYTES
    }
}

/// One record of a batch file, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// One label in CIFAR-10; coarse and fine in CIFAR-100.
    pub labels: &'a [u8],
    /// Red, green and blue, 1024 bytes each.
    planes: &'a [u8; PIXEL_BYTES],
}

impl Record<'_> {
    /// Writes the pixels as `u8[32, 32, 3]`, channels last.
    pub fn write_pixels(&self, out: &mut [u8; PIXEL_BYTES]) {
        interleave(self.planes, out);
    }

    /// Appends the pixels to `out` as `u8[32, 32, 3]`, channels last.
    pub fn append_pixels(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + PIXEL_BYTES, 0);
        if let Some(pixels) = out[start..].first_chunk_mut() {
            interleave(self.planes, pixels);
        }
    }
}

/// From one channel after the other to one pixel after the other: `u8[3, 32, 32]` to `u8[32, 32, 3]`.
pub fn interleave(planes: &[u8; PIXEL_BYTES], out: &mut [u8; PIXEL_BYTES]) {
    let (red, rest) = planes.split_at(PLANE_BYTES);
    let (green, blue) = rest.split_at(PLANE_BYTES);
    let (pixels, _) = out.as_chunks_mut::<3>();
    for (pixel, ((&r, &g), &b)) in pixels.iter_mut().zip(red.iter().zip(green).zip(blue)) {
        *pixel = [r, g, b];
    }
}

/// Goes over the records of a batch file, or of any whole number of records of it.
///
/// # Examples
/// ```
/// use prep_formats::cifar::{Layout, PIXEL_BYTES, Records};
///
/// let file = [[7u8; 3073], [3; 3073]].concat();
/// let mut pixels = [0; PIXEL_BYTES];
/// for record in Records::new("data_batch_1.bin", Layout::Cifar10, 0, &file)? {
///     let record = record?;
///     record.write_pixels(&mut pixels);
///     assert_eq!(pixels[0], record.labels[0]);
/// }
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Records<'a> {
    path: &'a str,
    layout: Layout,
    index: u64,
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Begins at record `first_index` of the file `path`, whose bytes from there on are `bytes`.
    ///
    /// # Errors
    /// Bytes that are not a whole number of records.
    pub fn new(path: &'a str, layout: Layout, first_index: u64, bytes: &'a [u8]) -> Result<Self> {
        let record = layout.record_bytes();
        let left_over = bytes.len() % record;
        if left_over != 0 {
            let last = first_index + (bytes.len() / record) as u64;
            return Err(Error::Damaged {
                at: position(path, layout, last),
                reason: format!(
                    "{left_over} bytes after the last whole record, wanted {record} bytes a record; the file is cut short or of another kind"
                ),
            });
        }
        Ok(Self {
            path,
            layout,
            index: first_index,
            rest: bytes,
        })
    }
}

fn position(path: &str, layout: Layout, index: u64) -> Position {
    Position {
        path: path.to_string(),
        record: Some(index),
        offset: Some(index.saturating_mul(layout.record_bytes() as u64)),
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    /// The next record. One with a label out of range is an error; the one after it can still be read.
    fn next(&mut self) -> Option<Self::Item> {
        let num_classes = self.layout.num_classes();
        let (record, rest) = self.rest.split_at_checked(self.layout.record_bytes())?;
        let (labels, planes) = record.split_at(num_classes.len());
        let planes = planes.first_chunk()?;
        self.rest = rest;
        let index = self.index;
        self.index += 1;
        for (label, classes) in labels.iter().zip(num_classes) {
            if label >= classes {
                return Some(Err(Error::Damaged {
                    at: position(self.path, self.layout, index),
                    reason: format!("label is {label}, wanted 0 to {}", classes - 1),
                }));
            }
        }
        Some(Ok(Record { labels, planes }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let records = self.rest.len() / self.layout.record_bytes();
        (records, Some(records))
    }
}

impl ExactSizeIterator for Records<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(layout: Layout, records: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for index in 0..records {
            for (place, classes) in layout.num_classes().iter().enumerate() {
                bytes.push((index * (place + 3)) as u8 % classes);
            }
            bytes.extend((0..PIXEL_BYTES).map(|place| (place * 7 + place / 256 + index) as u8));
        }
        bytes
    }

    #[test]
    fn labels_and_pixels_come_out_channels_last() {
        for layout in [Layout::Cifar10, Layout::Cifar100] {
            let bytes = file(layout, 5);
            let labels = layout.num_classes().len();
            let records = Records::new("x.bin", layout, 0, &bytes).unwrap();
            assert_eq!(records.len(), 5);
            let mut appended = Vec::new();
            for (index, record) in records.enumerate() {
                let record = record.unwrap();
                let stored = &bytes[index * layout.record_bytes()..];
                assert_eq!(record.labels, &stored[..labels]);
                let mut pixels = [0; PIXEL_BYTES];
                record.write_pixels(&mut pixels);
                for place in 0..PLANE_BYTES {
                    for channel in 0..3 {
                        let wanted = stored[labels + channel * PLANE_BYTES + place];
                        assert_eq!(pixels[3 * place + channel], wanted);
                    }
                }
                appended.clear();
                appended.push(1);
                record.append_pixels(&mut appended);
                assert_eq!(appended[1..], pixels);
            }
        }
    }

    #[test]
    fn a_label_out_of_range_names_file_record_and_byte() {
        let mut bytes = file(Layout::Cifar100, 3);
        bytes[3074 + 1] = 100;
        let records: Vec<_> = Records::new("train.bin", Layout::Cifar100, 10, &bytes)
            .unwrap()
            .collect();
        let error = records[1].as_ref().unwrap_err().to_string();
        assert_eq!(
            error,
            "train.bin, record 11, byte 33814: label is 100, wanted 0 to 99"
        );
        assert!(records[0].is_ok() && records[2].is_ok());
    }

    #[test]
    fn sizes_that_are_no_whole_number_of_records_are_errors() {
        let bytes = file(Layout::Cifar10, 2);
        for length in 0..bytes.len() {
            let whole = length % Layout::Cifar10.record_bytes() == 0;
            let records = Records::new("x.bin", Layout::Cifar10, 0, &bytes[..length]);
            assert_eq!(records.is_ok(), whole, "{length}");
        }
        let error = Records::new("x.bin", Layout::Cifar10, 0, &bytes[..4000]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("x.bin, record 1, byte 3073: 927 bytes")
        );
        assert_eq!(Records::new("x.bin", Layout::Cifar10, 0, &[]).unwrap().count(), 0);
    }
}
