//! Transposed chunks: records taken apart by field, so that like values lie together.
//!
//! A record that is a message in the canonical wire format becomes a walk over the nodes of a state machine; each node stands for a tag
//! in its context and says which buffer its value comes from. Other records go into a buffer of their own. Everything is stored for
//! decoding from the end: the walk begins with the last field of the last record, values are prepended, and the length of a submessage is
//! known when its begin is reached.
//!
//! ```text
//! compression type (1) | header size (varint) | header | buckets, one after the other | transitions
//! ```
//!
//! Header, each bucket and the transitions are compressed by themselves; each begins with its decompressed size (varint) unless the type is
//! `uncompressed`. The header, decompressed, is all varints but for the subtypes:
//!
//! | what | count |
//! |---|---|
//! | number of buckets, number of buffers | 1 each |
//! | size of each bucket as stored | buckets |
//! | size of each buffer, in order through the buckets | buffers |
//! | number of nodes | 1 |
//! | tag of each node | nodes |
//! | next node of each node, plus the number of nodes where no transition is needed to go on | nodes |
//! | subtype, a byte, of each node with a varint | such nodes |
//! | buffer of each node that reads one | such nodes |
//! | the first node | 1 |
//!
//! A tag is that of a field, or 0 (nothing), 1 (a record that is no message), 2 (begin of a submessage), 3 (begin of a message). The end of a
//! submessage is its tag with wire type 6. Subtype 0 to 9 is a varint of 1 to 10 bytes, stored without its high bits; 10 to 137 is the value
//! 0 to 127 itself, without a buffer. Lengths of records that are no messages are varints in the last buffer.
//!
//! A transition is a byte: the upper six bits are added to the next node's number, the lower two say how often to go on to the next node
//! without another byte.
//!
//! Source: Riegeli, `riegeli/chunk_encoding/transpose_decoder.cc`, `transpose_encoder.cc`, `transpose_internal.h`.

mod decode;
mod encode;
mod fold;
mod machine;
mod plan;
#[cfg(test)]
mod tests;

pub(super) use decode::TransposeDecoder;
pub(super) use encode::TransposeEncoder;

/// What a node of the state machine says with a tag too small for a field.
///
/// Source: `MessageId` in `riegeli/chunk_encoding/transpose_internal.h`.
mod message_id {
    pub(super) const NO_OP: u32 = 0;
    pub(super) const NON_PROTO: u32 = 1;
    pub(super) const START_OF_SUBMESSAGE: u32 = 2;
    pub(super) const START_OF_MESSAGE: u32 = 3;
}

/// Wire types of protocol buffers, and that of the end of a submessage, which exists in chunks only.
///
/// Source: the encoding guide of protocol buffers; `kSubmessageWireType` in `riegeli/chunk_encoding/transpose_internal.h`.
mod wire_type {
    pub(super) const VARINT: u32 = 0;
    pub(super) const FIXED64: u32 = 1;
    pub(super) const LENGTH_DELIMITED: u32 = 2;
    pub(super) const START_GROUP: u32 = 3;
    pub(super) const END_GROUP: u32 = 4;
    pub(super) const FIXED32: u32 = 5;
    pub(super) const SUBMESSAGE_END: u32 = 6;
}

/// The first subtype of a varint that is its value, not its length. Source: `Subtype` in `transpose_internal.h`.
const INLINE_SUBTYPE: u8 = 10;
/// Largest value that a subtype can be.
const MAX_INLINE: u8 = 0x7f;
/// The smallest tag of a field: field 1, wire type 0.
const MIN_TAG: u32 = 8;
