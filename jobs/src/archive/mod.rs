//! Archives as streams: nothing is unpacked to disk, and no member's path is ever used as a path.

mod stream;
mod tar;

pub use stream::Stream;
pub use tar::{Member, MemberKind, Tar};
