//! What moves through a job: typed items on their way to becoming records, and records.

use std::cmp::Ordering;

use bytes::{Buf, Bytes};

/// What orders a record inside its split: compared as bytes, so big-endian numbers sort as numbers.
pub type Key = [u8; 16];

/// How many bytes an item keeps in memory, which is how queues and windows are bounded.
///
/// A rough number will do; an item that owns heap memory must count it. The default is the size of the value itself.
pub trait Weigh {
    /// The item's weight in bytes.
    fn weigh(&self) -> usize {
        size_of_val(self)
    }
}

macro_rules! weigh_by_size {
    ($($type:ty),*) => { $(impl Weigh for $type {})* };
}
weigh_by_size!(
    (),
    bool,
    char,
    u8,
    u16,
    u32,
    u64,
    u128,
    usize,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize,
    f32,
    f64
);

impl Weigh for Bytes {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.len()
    }
}

impl Weigh for String {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.capacity()
    }
}

impl<T: Weigh> Weigh for Vec<T> {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.iter().map(Weigh::weigh).sum::<usize>()
    }
}

impl<T: Weigh, const N: usize> Weigh for [T; N] {
    fn weigh(&self) -> usize {
        self.iter().map(Weigh::weigh).sum()
    }
}

impl Weigh for std::path::PathBuf {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.capacity()
    }
}

impl<T: Weigh> Weigh for Option<T> {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.as_ref().map_or(0, Weigh::weigh)
    }
}

impl<T: Weigh, E> Weigh for Result<T, E> {
    fn weigh(&self) -> usize {
        size_of::<Self>() + self.as_ref().map_or(0, Weigh::weigh)
    }
}

impl<A: Weigh, B: Weigh> Weigh for (A, B) {
    fn weigh(&self) -> usize {
        self.0.weigh() + self.1.weigh()
    }
}

impl<A: Weigh, B: Weigh, C: Weigh> Weigh for (A, B, C) {
    fn weigh(&self) -> usize {
        self.0.weigh() + self.1.weigh() + self.2.weigh()
    }
}

impl<A: Weigh, B: Weigh, C: Weigh, D: Weigh> Weigh for (A, B, C, D) {
    fn weigh(&self) -> usize {
        self.0.weigh() + self.1.weigh() + self.2.weigh() + self.3.weigh()
    }
}

/// Opaque bytes, and where they belong.
///
/// Cloning shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Ordinal of the split, from 0.
    pub split: u32,
    /// Orders the record in its split.
    pub key: Key,
    /// Where the record came from, by convention from [`origin`]: breaks ties between equal keys and names the record in
    /// errors. No two records of a split may share key and origin, else their order is not determined.
    pub origin: u64,
    /// The payload.
    pub data: Bytes,
}

/// Compares two payloads. See [`SortOptions::then_by`](crate::SortOptions::then_by).
pub(crate) type ThenBy = fn(&[u8], &[u8]) -> Ordering;

/// How records are ordered: by split, key, payload where a comparison of payloads was given, and origin.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Order(pub(crate) Option<ThenBy>);

impl Order {
    pub(crate) fn compare(self, one: Lying<'_>, other: Lying<'_>) -> Ordering {
        one.split
            .cmp(&other.split)
            .then_with(|| number(&one.key).cmp(&number(&other.key)))
            .then_with(|| self.payloads(one.data, other.data))
            .then_with(|| one.origin.cmp(&other.origin))
    }

    /// Compares the payloads of two records of one split and key.
    pub(crate) fn payloads(self, one: &[u8], other: &[u8]) -> Ordering {
        self.0.map_or(Ordering::Equal, |compare| compare(one, other))
    }
}

/// A key as a number, which orders as its bytes do.
pub(crate) fn number(key: &Key) -> u128 {
    u128::from_be_bytes(*key)
}

/// The origin of a record: ordinal of its source in the upper 24 bits, index of the record in it in the lower 40.
pub const fn origin(source: u32, index: u64) -> u64 {
    ((source as u64) << 40) | (index & ((1 << 40) - 1))
}

/// The source ordinal and the record index in an [`origin`].
pub const fn split_origin(origin: u64) -> (u32, u64) {
    ((origin >> 40) as u32, origin & ((1 << 40) - 1))
}

/// Split, key, origin and length, as they are counted, sent and spilled for each record.
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 4 + 4 + 16 + 8;

impl Weigh for Record {
    fn weigh(&self) -> usize {
        RECORD_OVERHEAD_BYTES + self.data.len()
    }
}

/// A record where it lies: nothing is counted or copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lying<'a> {
    pub(crate) split: u32,
    pub(crate) key: Key,
    pub(crate) origin: u64,
    pub(crate) data: &'a [u8],
}

impl Record {
    /// A record of split 0 that has no key yet: for [`reshard`](crate::Collection::reshard), which gives it one, or to be given one.
    pub fn new(origin: u64, data: impl Into<Bytes>) -> Self {
        Self {
            split: 0,
            key: [0; 16],
            origin,
            data: data.into(),
        }
    }

    pub(crate) fn lying(&self) -> Lying<'_> {
        Lying {
            split: self.split,
            key: self.key,
            origin: self.origin,
            data: &self.data,
        }
    }
}

/// Writes a record's header: length, split, key, origin, all but the key little-endian.
pub(crate) fn put_header(record: Lying<'_>, to: &mut [u8; RECORD_OVERHEAD_BYTES]) {
    to[0..4].copy_from_slice(&(record.data.len() as u32).to_le_bytes());
    to[4..8].copy_from_slice(&record.split.to_le_bytes());
    to[8..24].copy_from_slice(&record.key);
    to[24..32].copy_from_slice(&record.origin.to_le_bytes());
}

/// The record at the front of `bytes`. None: there isn't a whole one.
pub(crate) fn first_record(bytes: &[u8]) -> Option<Lying<'_>> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_OVERHEAD_BYTES>()?;
    let length = u32::from_le_bytes(*header.first_chunk()?) as usize;
    Some(Lying {
        split: u32::from_le_bytes(header[4..8].try_into().ok()?),
        key: header[8..24].try_into().ok()?,
        origin: u64::from_le_bytes(*header.last_chunk()?),
        data: rest.get(..length)?,
    })
}

/// Takes one record off the front of `bytes`, sharing its memory. None: there isn't a whole one.
pub(crate) fn take_record(bytes: &mut Bytes) -> Option<Record> {
    let Lying {
        split,
        key,
        origin,
        data,
    } = first_record(bytes)?;
    let end = RECORD_OVERHEAD_BYTES + data.len();
    let data = bytes.slice(RECORD_OVERHEAD_BYTES..end);
    bytes.advance(end);
    Some(Record {
        split,
        key,
        origin,
        data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_come_apart_again() {
        assert_eq!(split_origin(origin(7, 12345)), (7, 12345));
        assert_eq!(
            split_origin(origin(0xff_ffff, (1 << 40) - 1)),
            (0xff_ffff, (1 << 40) - 1)
        );
        assert!(origin(1, 0) > origin(0, u64::MAX));
    }
}
