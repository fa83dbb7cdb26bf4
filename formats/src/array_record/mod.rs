//! ArrayRecord files: Riegeli chunks of records with an index in the footer.
//!
//! ```text
//! file signature | chunks of records | footer chunk | padding | postscript chunk | padding
//!                                    `- where each chunk begins, and its number of records
//!                                                             `- in the last 64 KiB: where the footer begins
//! ```
//!
//! [`Reader`] finds any record through the footer in constant time, and checks every hash on the way; [`StreamReader`] reads a pipe, or a
//! file whose end is missing, front to back. [`Writer`] gives, for uncompressed
//! options, byte for byte the file that Google's writer gives, encodes chunks by threads, and writes to any sink; [`Writer::create`] to a file or
//! object that appears whole or not at all. [`verify`] looks at every byte of a file and lists the
//! records lost. [`salvage`] rebuilds a readable file from a damaged one.
//!
//! Source: ArrayRecord 0.8, `cpp/array_record_writer.cc`, `cpp/array_record_reader.cc`, `cpp/layout.proto`; Riegeli's
//! `doc/riegeli_records_file_format.md`.
//!
//! # Examples
//!
//! ```
//! use prep_formats::array_record::{Reader, Scratch, WriteOptions, Writer};
//! use prep_formats::store::MemoryFile;
//! use std::sync::Arc;
//!
//! let mut writer = Writer::new(Vec::new(), WriteOptions::parse("group_size:1,zstd:3")?)?;
//! for record in ["first", "second"] {
//!     writer.write(record.as_bytes())?;
//! }
//! let reader = Reader::from_source(Arc::new(MemoryFile::new("example", writer.finish()?)))?;
//! assert_eq!(reader.num_records(), 2);
//! assert_eq!(reader.record(1, &mut Scratch::default())?, b"second");
//! # Ok::<(), prep_formats::Error>(())
//! ```

mod batch;
mod blocks;
mod chunk;
mod codec;
mod encoder;
mod footer;
mod index;
mod layout;
mod options;
mod pair;
mod pool;
mod prepared;
mod reader;
mod salvage;
mod stream;
#[doc(hidden)]
pub mod testing;
mod transpose;
mod verify;
mod writer;

#[cfg(test)]
mod golden;

pub use layout::ChunkType;
pub use options::{Compression, WriteOptions};
pub use prepared::{BlockEncoder, EncodedBlock};
pub(crate) use reader::prefetch_start;
pub use reader::{ChunkInfo, Reader, RecordBatch, Scan, ScanOptions, Scratch};
pub use salvage::{Harmless, Kept, Lost, Salvage, salvage};
pub use stream::{StreamOptions, StreamReader};
pub use verify::{Damage, Verification, VerifyOptions, verify, verify_with};
pub use writer::Writer;

/// The first 8 bytes of every Riegeli file: the hash in its first block header.
pub const SIGNATURE: [u8; 8] = [0x83, 0xaf, 0x70, 0xd1, 0x0d, 0x88, 0x4a, 0x3f];
