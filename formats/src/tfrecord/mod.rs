//! TFRecord files: framed records one after the other, plain or compressed as a whole.
//!
//! | bytes | field | encoding |
//! |---|---|---|
//! | 8 | payload length `n` | `u64`, little-endian |
//! | 4 | masked CRC-32C of the 8 length bytes | `u32`, little-endian |
//! | `n` | payload | opaque bytes |
//! | 4 | masked CRC-32C of the payload | `u32`, little-endian |
//!
//! There is no index and no end mark: a file cut between two records looks whole. A file may be compressed as a whole, with gzip, zlib or
//! zstd; TensorFlow reads the first two. How a file is compressed is told by its first bytes, whatever its name, or insisted on by the caller.
//!
//! [`Reader`] streams from any [`std::io::Read`]; [`Scanner`] walks over bytes in memory or mapped, without copies; [`Writer`] writes all
//! kinds; [`Index`] says where the records of a plain file lie, [`IndexedReader`] reads them at random; [`salvage`] takes what is readable out
//! of a damaged file.
//!
//! Source: `RecordWriter` and `RecordReader` in TensorFlow, `core/lib/io/record_writer.h` and `record_reader.h`.
//!
//! # Examples
//!
//! ```
//! use prep_formats::tfrecord::{Compression, ReadOptions, Reader, Writer};
//!
//! let mut writer = Writer::new(Vec::new(), Compression::Gzip)?;
//! writer.write(b"first")?;
//! writer.write(b"second")?;
//! let bytes = writer.finish()?;
//!
//! let mut reader = Reader::new(&bytes[..], "example", ReadOptions::default())?;
//! assert_eq!(reader.next()?, Some(&b"first"[..]));
//! assert_eq!(reader.next()?, Some(&b"second"[..]));
//! assert_eq!(reader.next()?, None);
//! # Ok::<(), prep_formats::Error>(())
//! ```

mod frame;
mod index;
mod indexed;
mod inflate;
mod raw;
mod reader;
mod salvage;
mod scanner;
mod stream;
mod writer;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod reported;

pub use frame::{Compression, CrcPolicy, detect};
pub use index::{Index, IndexBuilder};
pub use indexed::IndexedReader;
pub use raw::{
    FRAME_HEADER, FRAME_TRAILER, Frame, FrameFault, check_frame, cut_short, find_record, frame_at,
};
pub use reader::{ReadOptions, Reader};
pub use salvage::{Lost, SalvageOptions, Salvaged, salvage};
pub use scanner::Scanner;
pub use writer::{WriteOptions, Writer};
