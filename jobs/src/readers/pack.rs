//! Several byte strings in one: what a raw example brings beside its main part.
//!
//! Each as its length, four bytes, little-endian, and its bytes; the last without a length.

use anyhow::{Result, bail};
use bytes::Bytes;

/// Begins a packed example: all parts but the last, which is to be appended.
///
/// # Errors
/// A part of 4 GiB or more.
pub(super) fn pack(parts: &[&[u8]], last_bytes: usize) -> Result<Vec<u8>> {
    let mut packed = Vec::with_capacity(parts.iter().map(|part| 4 + part.len()).sum::<usize>() + last_bytes);
    for part in parts {
        packed.extend_from_slice(&u32::try_from(part.len())?.to_le_bytes());
        packed.extend_from_slice(part);
    }
    Ok(packed)
}

/// The parts of a packed example, without a copy.
///
/// # Errors
/// It was not packed from as many parts.
pub(super) fn unpack<const PARTS: usize>(packed: &Bytes) -> Result<[Bytes; PARTS]> {
    let mut rest = packed.clone();
    let mut parts = [const { Bytes::new() }; PARTS];
    for part in parts.iter_mut().take(PARTS.saturating_sub(1)) {
        let Some(length) = rest
            .first_chunk::<4>()
            .map(|bytes| u32::from_le_bytes(*bytes) as usize)
        else {
            bail!("an example without all its parts");
        };
        if rest.len() - 4 < length {
            bail!("an example without all its parts");
        }
        *part = rest.slice(4..4 + length);
        rest = rest.slice(4 + length..);
    }
    if let Some(last) = parts.last_mut() {
        *last = rest;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        let mut packed = pack(&[b"a", b"", b"ccc"], 4).unwrap();
        packed.extend_from_slice(b"last");
        let packed = Bytes::from(packed);
        assert_eq!(unpack::<4>(&packed).unwrap(), [&b"a"[..], b"", b"ccc", b"last"]);
        for length in 0..13 {
            let cut = packed.slice(..length);
            assert!(unpack::<4>(&cut).is_err(), "{length}");
        }
    }
}
