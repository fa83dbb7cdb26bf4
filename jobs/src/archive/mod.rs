//! Archives as streams: nothing is unpacked to disk, and no member's path is ever used as a path.

mod members;
mod section;
mod stream;
mod tar;
mod zip;

use std::io::{self, Read};

pub(crate) use members::{each_file, read_after, read_all};
pub use section::Section;
pub use stream::Stream;
pub use tar::{Member, MemberKind, Tar};

/// A stream of bytes of which some may be left out, perhaps without reading them.
pub trait Skip: Read {
    /// Leaves out so many bytes, or what there is up to the end; gives their number.
    ///
    /// # Errors
    /// The stream cannot be read.
    fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        io::copy(&mut self.take(bytes), &mut io::sink())
    }
}

impl Skip for &[u8] {}

impl Skip for Stream {}

impl<S: Skip + ?Sized> Skip for &mut S {
    fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        (**self).skip(bytes)
    }
}

impl<S: Skip + ?Sized> Skip for Box<S> {
    fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        (**self).skip(bytes)
    }
}
