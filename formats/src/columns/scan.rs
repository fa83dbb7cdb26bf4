//! Finds the lists of a record, by names that mostly come in the order of the record before.

use crate::columns::leaf::List;
use crate::example::wire::{Entries, Kind};
use crate::{Error, Result};

/// Where a list message lies in the record.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    kind: Option<Kind>,
    start: usize,
    length: usize,
    /// Whether the name came at all.
    found: bool,
}

impl Slot {
    pub(super) fn list(self, record: &[u8]) -> List<'_> {
        List {
            found: self.found,
            kind: self.kind,
            bytes: &record[self.start..self.start + self.length],
        }
    }
}

/// Names of features that are not read, remembered so that they are known at sight. More than these are looked up each time.
const MOST_IGNORED: usize = 256;

/// Finds lists by name. Remembers which name followed which: writers put features in one order, whatever it is, so that nearly every name
/// is found by one comparison.
#[derive(Debug)]
pub(super) struct Scanner {
    /// Names of the schema's lists, sorted; then names that are ignored.
    names: Vec<Box<[u8]>>,
    num_known: usize,
    /// The name that came first, then for each name the one that came next.
    next: Vec<u32>,
    slots: Vec<Slot>,
}

impl Scanner {
    pub(super) fn new(names: &[String]) -> Self {
        let next = (0..=names.len() as u32).collect();
        Self {
            names: names.iter().map(|name| name.as_bytes().into()).collect(),
            num_known: names.len(),
            next,
            slots: vec![Slot::default(); names.len()],
        }
    }

    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Fills the slots; `false` if a list comes in more than one part.
    pub(super) fn scan(&mut self, record: &[u8]) -> Result<bool> {
        self.slots.fill(Slot::default());
        match self.scan_plain(record) {
            Some(result) => result.map(|()| true),
            None => self.scan_any(record),
        }
    }

    /// The form that every writer gives: one `Features` message, entries of name and feature, features of at most one list. `None` for any
    /// other, damaged ones included.
    #[inline]
    fn scan_plain(&mut self, record: &[u8]) -> Option<Result<()>> {
        if record.is_empty() {
            return Some(Ok(()));
        }
        let (features, after) = field(record, 0, record.len(), 0x0a)?;
        if after != record.len() {
            return None;
        }
        let mut at = features;
        let mut last = 0;
        while at < after {
            let (entry, end) = field(record, at, after, 0x0a)?;
            let (name, name_end) = field(record, entry, end, 0x0a)?;
            let (feature, feature_end) = field(record, name_end, end, 0x12)?;
            if feature_end != end {
                return None;
            }
            let mut slot = Slot {
                found: true,
                ..Slot::default()
            };
            if feature < end {
                let kind = match record[feature] {
                    0x0a => Kind::Bytes,
                    0x12 => Kind::Float,
                    0x1a => Kind::Int64,
                    _ => return None,
                };
                let (list, list_end) = field(record, feature, end, record[feature])?;
                if list_end != end {
                    return None;
                }
                slot.kind = Some(kind);
                slot.start = list;
                slot.length = end - list;
            }
            let name = &record[name..name_end];
            let guess = self.next[last] as usize;
            let id = if self.names.get(guess).is_some_and(|other| same(other, name)) {
                Some(guess)
            } else {
                match self.find(name) {
                    Ok(id) => {
                        if let Some(id) = id {
                            self.next[last] = id as u32;
                        }
                        id
                    }
                    Err(error) => return Some(Err(error)),
                }
            };
            if let Some(id) = id {
                if let Some(place) = self.slots.get_mut(id) {
                    *place = slot;
                }
                last = id + 1;
            }
            at = end;
        }
        Some(Ok(()))
    }

    /// The number of a name; `None` for one that is not worth remembering.
    #[cold]
    fn find(&mut self, name: &[u8]) -> Result<Option<usize>> {
        let known = &self.names[..self.num_known];
        if let Ok(id) = known.binary_search_by(|other| (**other).cmp(name)) {
            return Ok(Some(id));
        }
        if let Some(id) = self.names[self.num_known..]
            .iter()
            .position(|other| **other == *name)
        {
            return Ok(Some(self.num_known + id));
        }
        if std::str::from_utf8(name).is_err() {
            return Err(Error::damaged(format!(
                "feature name `{}` is not UTF-8",
                name.escape_ascii()
            )));
        }
        if self.names.len() - self.num_known >= MOST_IGNORED {
            return Ok(None);
        }
        self.names.push(name.into());
        self.next.push(u32::MAX);
        Ok(Some(self.names.len() - 1))
    }

    /// Any message that Protocol Buffers read.
    #[cold]
    fn scan_any(&mut self, record: &[u8]) -> Result<bool> {
        self.slots.fill(Slot::default());
        let mut whole = true;
        let mut entries = Entries::new(record);
        while let Some((name, value)) = entries.next()? {
            let Some(id) = self.find(name)? else {
                continue;
            };
            let Some(slot) = self.slots.get_mut(id) else {
                continue;
            };
            *slot = Slot {
                found: true,
                ..Slot::default()
            };
            if let Some((kind, parts)) = value {
                slot.kind = Some(kind);
                slot.start = parts.first.as_ptr().addr() - record.as_ptr().addr();
                slot.length = parts.first.len();
                whole &= parts.rest.is_empty();
            }
        }
        Ok(whole)
    }
}

/// Whether two names are equal; short ones without a call.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    if let (Some(a_first), Some(b_first), Some(a_last), Some(b_last)) = (
        a.first_chunk::<4>(),
        b.first_chunk::<4>(),
        a.last_chunk::<4>(),
        b.last_chunk::<4>(),
    ) && a.len() <= 8
    {
        return a_first == b_first && a_last == b_last;
    }
    if a.len() < 4 {
        return a.iter().zip(b).all(|(a, b)| a == b);
    }
    a == b
}

/// A field of bytes with this tag at `at`: where its contents begin and end, not beyond `limit`.
#[inline(always)]
fn field(record: &[u8], at: usize, limit: usize, tag: u8) -> Option<(usize, usize)> {
    let bytes = record.get(at..limit)?;
    let (length, header) = match *bytes {
        [first, length, ..] if first == tag && length < 0x80 => (usize::from(length), 2),
        [first, low, high, ..] if first == tag && high < 0x80 => {
            (usize::from(low & 0x7f) | usize::from(high) << 7, 3)
        }
        [first, a, b, c, ..] if first == tag && c < 0x80 => (
            usize::from(a & 0x7f) | usize::from(b & 0x7f) << 7 | usize::from(c) << 14,
            4,
        ),
        [first, a, b, c, d, ..] if first == tag && d < 0x80 => (
            usize::from(a & 0x7f)
                | usize::from(b & 0x7f) << 7
                | usize::from(c & 0x7f) << 14
                | usize::from(d) << 21,
            5,
        ),
        _ => return None,
    };
    if length > bytes.len() - header {
        return None;
    }
    Some((at + header, at + header + length))
}
