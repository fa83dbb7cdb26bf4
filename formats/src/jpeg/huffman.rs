//! Huffman tables and the bits of a scan.

use crate::{Error, Result};

/// Bits that one look into [`Table::fast`] covers. Of 9 to 12, 11 was the fastest on photographs.
const FAST_BITS: u32 = 11;

/// A run that is longer than any block: the end of a block.
pub(super) const END_OF_BLOCK: usize = 128;

/// A table as the file defines it, expanded for decoding.
///
/// An entry of `fast` is a coefficient, where code and value lie in [`FAST_BITS`] bits, else 0:
///
/// ```text
/// bits 0..8: bits of code and value, at least 1     8..16: zeros before it, or END_OF_BLOCK     16..32: value
/// ```
///
/// An entry of `codes` is a symbol in bits 0..8 and the bits of its code in 8..16, or 0 where the code is longer than that.
pub(super) struct Table {
    fast: Box<[u32; 1 << FAST_BITS]>,
    codes: Box<[u16; 1 << FAST_BITS]>,
    /// By length of the code: the first code that is longer, aligned to the left of 16 bits.
    limits: [u32; 17],
    /// By length: what to add to a code to find its symbol.
    offsets: [i32; 17],
    counts: [u8; 16],
    symbols: [u8; 256],
    is_ac: bool,
    /// Whether the file that is read has defined it; tables stay from one file to the next, since most files have the same.
    pub(super) is_defined: bool,
}

impl Table {
    pub(super) fn new(is_ac: bool) -> Self {
        Self {
            fast: Box::new([0; 1 << FAST_BITS]),
            codes: Box::new([0; 1 << FAST_BITS]),
            limits: [0; 17],
            offsets: [0; 17],
            counts: [0; 16],
            symbols: [0; 256],
            is_ac,
            is_defined: false,
        }
    }

    /// Takes the codes of a DHT segment: how many there are of each length from 1 to 16, and their symbols.
    pub(super) fn define(&mut self, counts: &[u8; 16], symbols: &[u8]) -> Result<()> {
        if self.counts == *counts && self.symbols[..symbols.len()] == *symbols && !symbols.is_empty() {
            self.is_defined = true;
            return Ok(());
        }
        // A table that turns out wrong must not be taken for the last one.
        self.is_defined = false;
        self.counts = [0; 16];
        if !self.is_ac && symbols.iter().any(|&symbol| symbol > 15) {
            return Err(Error::damaged(
                "a Huffman table of DC values has a symbol above 15",
            ));
        }
        self.symbols = [0; 256];
        self.symbols[..symbols.len()].copy_from_slice(symbols);
        self.fast.fill(0);
        self.codes.fill(0);
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=16u32 {
            self.offsets[length as usize] = index as i32 - code as i32;
            for _ in 0..counts[length as usize - 1] {
                if length <= FAST_BITS {
                    let shift = FAST_BITS - length;
                    let first = (code << shift) as usize;
                    let end = first + (1 << shift);
                    if end > 1 << FAST_BITS {
                        return Err(Error::damaged("a Huffman table has more codes than fit"));
                    }
                    let symbol = symbols[index];
                    self.codes[first..end].fill((length << 8) as u16 | u16::from(symbol));
                    for (rest, entry) in (0..).zip(&mut self.fast[first..end]) {
                        *entry = expand(symbol, length, rest, shift, self.is_ac);
                    }
                }
                code += 1;
                index += 1;
            }
            if code > 1 << length {
                return Err(Error::damaged("a Huffman table has more codes than fit"));
            }
            self.limits[length as usize] = code << (16 - length);
            code <<= 1;
        }
        self.counts = *counts;
        self.is_defined = true;
        Ok(())
    }

    /// The code at the front of `window` (16 bits) that is longer than [`FAST_BITS`]: its symbol and bits.
    #[cold]
    fn long_code(&self, window: u32) -> Option<(u8, u32)> {
        let length = (FAST_BITS + 1..=16).find(|&length| window < self.limits[length as usize])?;
        let index = (window >> (16 - length)) as i32 + self.offsets[length as usize];
        let symbol = *self.symbols.get(usize::try_from(index).ok()?)?;
        Some((symbol, length))
    }
}

/// The entry of `fast` for a code of `length` bits that is followed by the `shift` bits of `rest`.
fn expand(symbol: u8, length: u32, rest: u32, shift: u32, is_ac: bool) -> u32 {
    match (u32::from(symbol >> 4), u32::from(symbol & 15)) {
        (0, 0) if is_ac => length | (END_OF_BLOCK as u32) << 8,
        (0, 0) => length,
        // Sixteen zeros: fifteen, and a value of 0.
        (15, 0) => length | 15 << 8,
        // Only progressive files have these, whose decoder looks at symbols.
        (_, 0) => 0,
        (run, size) if size <= shift => {
            let value = extend(rest >> (shift - size), size);
            (length + size) | run << 8 | (value as u32) << 16
        }
        _ => 0,
    }
}

/// The value of `size` bits as JPEG codes it: those without the upper bit are negative. Source: T.81, F.2.2.1, EXTEND.
#[inline(always)]
fn extend(bits: u32, size: u32) -> i32 {
    let bits = bits as i32;
    let negative = (bits >> (size - 1)) - 1;
    bits + (negative & (1 - (1 << size)))
}

/// The bits of a scan, to the next marker; after it there are zeros, which [`Bits::is_overrun`] tells of.
#[derive(Clone, Copy)]
pub(super) struct Bits<'a> {
    file: &'a [u8],
    /// The next byte that is not in `window`.
    at: usize,
    /// The next bits, the first uppermost. Below the `count` that are taken for read, there may be more of the same file.
    window: u64,
    count: u32,
    /// Zeros put into the window after the end.
    invented: u64,
}

/// What a block's bits do not make sense as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Code,
    Run,
}

impl<'a> Bits<'a> {
    pub(super) fn new(file: &'a [u8], at: usize) -> Self {
        Self {
            file,
            at,
            window: 0,
            count: 0,
            invented: 0,
        }
    }

    /// Where the bytes that were not looked at begin.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Whether more bits were used than there are.
    #[inline(always)]
    pub(super) fn is_overrun(&self) -> bool {
        self.invented > u64::from(self.count)
    }

    /// Makes at least 56 bits ready.
    #[inline(always)]
    fn refill(&mut self) {
        if let Some(bytes) = self.file.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            let next = u64::from_be_bytes(*bytes);
            // Whether a byte is 0xff: of the complement, one is 0.
            let inverse = !next;
            if inverse.wrapping_sub(0x0101_0101_0101_0101) & next & 0x8080_8080_8080_8080 == 0 {
                self.window |= next >> self.count;
                let bytes = (63 - self.count) >> 3;
                self.at += bytes as usize;
                self.count += bytes * 8;
                return;
            }
        }
        self.refill_bytewise();
    }

    #[inline(never)]
    fn refill_bytewise(&mut self) {
        while self.count <= 56 {
            let byte = match (self.file.get(self.at), self.file.get(self.at + 1)) {
                (Some(0xff), Some(0)) => {
                    self.at += 2;
                    0xff
                }
                (Some(0xff), _) | (None, _) => {
                    self.invented += 8;
                    0
                }
                (Some(&byte), _) => {
                    self.at += 1;
                    byte
                }
            };
            self.window |= u64::from(byte) << (56 - self.count);
            self.count += 8;
        }
    }

    /// The next `bits` (1 to 16), which stay.
    #[inline(always)]
    fn peek(&self, bits: u32) -> u32 {
        (self.window >> (64 - bits)) as u32
    }

    #[inline(always)]
    fn skip(&mut self, bits: u32) {
        self.window <<= bits;
        self.count -= bits;
    }

    /// The next 0 to 16 bits.
    #[inline(always)]
    pub(super) fn take(&mut self, bits: u32) -> u32 {
        if self.count < 16 {
            self.refill();
        }
        // Two shifts, as one by 64 is none.
        let value = (self.window >> 1 >> (63 - bits)) as u32;
        self.skip(bits);
        value
    }

    #[inline(always)]
    pub(super) fn take_bit(&mut self) -> bool {
        self.take(1) != 0
    }

    /// The next symbol.
    #[inline(always)]
    pub(super) fn symbol(&mut self, table: &Table) -> Result<u8, Fault> {
        if self.count < 16 {
            self.refill();
        }
        let entry = table.codes[self.peek(FAST_BITS) as usize];
        let (symbol, length) = if entry != 0 {
            (entry as u8, u32::from(entry >> 8))
        } else {
            table.long_code(self.peek(16)).ok_or(Fault::Code)?
        };
        self.skip(length);
        Ok(symbol)
    }

    /// The value of `size` bits (1 to 15).
    #[inline(always)]
    pub(super) fn take_extended(&mut self, size: u32) -> i32 {
        let bits = self.take(size);
        extend(bits, size)
    }

    /// A difference of DC values.
    #[inline(always)]
    pub(super) fn dc(&mut self, table: &Table) -> Result<i32, Fault> {
        if self.count < 32 {
            self.refill();
        }
        let entry = table.fast[self.peek(FAST_BITS) as usize];
        let length = entry & 0xff;
        if length != 0 {
            self.skip(length);
            return Ok(entry as i32 >> 16);
        }
        Ok(match u32::from(self.symbol(table)?) {
            0 => 0,
            size => self.take_extended(size),
        })
    }

    /// The AC values of a block: calls `put` with position in the zigzag (1 to 63) and value of each, and of some zeros.
    #[inline(always)]
    pub(super) fn ac(&mut self, table: &Table, mut put: impl FnMut(usize, i32)) -> Result<(), Fault> {
        let mut k = 1;
        loop {
            // 56 bits are enough for five looks at FAST_BITS each.
            self.refill();
            for _ in 0..5 {
                let mut entry = table.fast[self.peek(FAST_BITS) as usize];
                let length = entry & 0xff;
                if length == 0 {
                    entry = self.rare(table)?;
                } else {
                    self.skip(length);
                }
                k += (entry >> 8 & 0xff) as usize;
                if k > 63 {
                    return if k < END_OF_BLOCK { Err(Fault::Run) } else { Ok(()) };
                }
                put(k, entry as i32 >> 16);
                k += 1;
                if k == 64 {
                    return Ok(());
                }
                if length == 0 {
                    break;
                }
            }
        }
    }

    /// A coefficient that does not lie in [`FAST_BITS`] bits, in the form of an entry.
    #[inline(always)]
    fn rare(&mut self, table: &Table) -> Result<u32, Fault> {
        let symbol = u32::from(self.symbol(table)?);
        Ok(match (symbol >> 4, symbol & 15) {
            (0, 0) => (END_OF_BLOCK as u32) << 8,
            (15, 0) => 15 << 8,
            (_, 0) => return Err(Fault::Code),
            (run, size) => run << 8 | (self.take_extended(size) as u32) << 16,
        })
    }

    /// Goes past restart marker `wanted` (0 to 7) and forgets the bits before it.
    pub(super) fn restart(&mut self, wanted: u8) -> Result<()> {
        if self.is_overrun() {
            return Err(Error::damaged("the data of a scan end before its pixels do"));
        }
        let start = self.at;
        let marker = loop {
            match self.file.get(self.at..self.at + 2) {
                None => return Err(Error::damaged("the file ends inside the pixels")),
                Some(&[0xff, code]) if code != 0 && code != 0xff => break code,
                Some(_) => self.at += 1,
            }
        };
        if marker != 0xd0 + wanted {
            return Err(Error::damaged(format!(
                "restart marker 0xff{:02x} is wanted after byte {start}, there is 0xff{marker:02x}",
                0xd0 + wanted
            )));
        }
        *self = Self::new(self.file, self.at + 2);
        Ok(())
    }
}
