//! The codes of scans: to coefficients.

use std::ops::Range;

use super::header::{Frame, Scan, Segments, Tables, ZIGZAG};
use super::huffman::{Bits, Fault, Table};
use super::idct::Block;
use super::plane::Plane;
use crate::{Error, Result};

/// More scans than any encoder makes; without a limit a small file could keep a processor busy for hours.
const MOST_SCANS: usize = 500;

fn fault(fault: Fault, row: usize) -> Error {
    let found = match fault {
        Fault::Code => "a code that no Huffman table has",
        Fault::Run => "a block with more than 64 coefficients",
    };
    Error::damaged(format!("JPEG pixels are damaged: {found}, in MCU row {row}"))
}

fn overrun(row: usize, rows: usize) -> Error {
    Error::damaged(format!(
        "the JPEG file is cut short: its pixels end in MCU row {row} of {rows}"
    ))
}

fn table<'a>(tables: &'a [Table; 4], at: usize, kind: &str) -> Result<&'a Table> {
    Some(&tables[at]).filter(|table| table.is_defined).ok_or_else(|| {
        Error::damaged(format!(
            "JPEG scan with {kind} Huffman table {at}, which the file does not define"
        ))
    })
}

/// Gives planes their quantisation tables as they are when their first scan begins.
fn take_quantisation(frame: &Frame, tables: &Tables, scan: &Scan, planes: &mut [Plane]) -> Result<()> {
    for part in scan.parts() {
        let plane = &mut planes[part.component];
        if plane.quant.is_none() {
            let number = frame.components()[part.component].quant;
            plane.quant = tables.quant[number];
            if plane.quant.is_none() {
                return Err(Error::damaged(format!(
                    "JPEG scan with quantisation table {number}, which the file does not define"
                )));
            }
        }
    }
    Ok(())
}

/// Counts MCUs to the next restart marker.
struct Restarts {
    interval: usize,
    left: usize,
    next: u8,
}

impl Restarts {
    fn new(interval: usize) -> Self {
        Self {
            interval,
            left: interval,
            next: 0,
        }
    }

    /// To be called before each MCU: whether there was a marker.
    #[inline(always)]
    fn before_mcu(&mut self, bits: &mut Bits<'_>) -> Result<bool> {
        if self.interval == 0 {
            return Ok(false);
        }
        if self.left > 0 {
            self.left -= 1;
            return Ok(false);
        }
        bits.restart(self.next)?;
        self.next = (self.next + 1) % 8;
        self.left = self.interval - 1;
        Ok(true)
    }
}

/// Decodes a file of one scan, row of MCUs by row, to the last of `wanted`: calls `done` after each of those.
pub(super) fn single(
    segments: &mut Segments<'_>,
    frame: &Frame,
    tables: &Tables,
    scan: &Scan,
    planes: &mut [Plane],
    wanted: Range<usize>,
    mut done: impl FnMut(&[Plane], usize),
) -> Result<()> {
    take_quantisation(frame, tables, scan, planes)?;
    let (most_h, most_v) = frame.most();
    let (mcus, mcu_rows) = (
        frame.width.div_ceil(8 * most_h),
        frame.height.div_ceil(8 * most_v),
    );
    let mut bits = Bits::new(segments.file, segments.at);
    let mut restarts = Restarts::new(tables.restart_interval);
    let mut parts = Vec::with_capacity(4);
    for part in scan.parts() {
        let codes = (
            table(&tables.dc, part.dc, "DC")?,
            table(&tables.ac, part.ac, "AC")?,
        );
        parts.push((part.component, codes.0, codes.1, 0i32));
        planes[part.component].make_room_for_row();
    }
    for row in 0..wanted.end {
        let is_wanted = row >= wanted.start;
        if is_wanted {
            for plane in planes.iter_mut().filter(|plane| plane.is_wanted) {
                plane.blocks.fill([0; 64]);
            }
        }
        for mcu in 0..mcus {
            if restarts.before_mcu(&mut bits)? {
                parts.iter_mut().for_each(|part| part.3 = 0);
            }
            for (component, dc, ac, last) in &mut parts {
                let plane = &mut planes[*component];
                let keeps = is_wanted && plane.is_wanted;
                for v in 0..plane.v {
                    for h in 0..plane.h {
                        let column = mcu * plane.h + h;
                        *last = last.wrapping_add(bits.dc(dc).map_err(|found| fault(found, row))?);
                        let result = if keeps && plane.columns.contains(&column) {
                            let at = v * plane.columns.len() + column - plane.columns.start;
                            let block = &mut plane.blocks[at];
                            block[0] = *last as i16;
                            let mut is_flat = true;
                            let result = bits.ac(ac, |k, value| {
                                block[usize::from(ZIGZAG[k & 63])] = value as i16;
                                is_flat = false;
                            });
                            plane.flats[at] = is_flat;
                            result
                        } else {
                            bits.ac(ac, |_, _| ())
                        };
                        result.map_err(|found| fault(found, row))?;
                    }
                }
            }
        }
        if bits.is_overrun() {
            return Err(overrun(row, mcu_rows));
        }
        if is_wanted {
            for plane in planes.iter_mut().filter(|plane| plane.is_wanted) {
                plane.transform_row(row);
            }
            done(planes, row);
        }
    }
    Ok(())
}

/// Decodes a file of several scans: all coefficients.
pub(super) fn all(
    segments: &mut Segments<'_>,
    frame: &Frame,
    tables: &mut Tables,
    first: Scan,
    planes: &mut [Plane],
) -> Result<()> {
    for plane in planes.iter_mut() {
        plane.make_room_for_all();
    }
    let mut scan = first;
    for _ in 0..MOST_SCANS {
        take_quantisation(frame, tables, &scan, planes)?;
        segments.at = one(segments, frame, tables, &scan, planes)?;
        match segments.scan(frame, tables)? {
            Some(next) => scan = next,
            None => {
                let missing = planes.iter().any(|plane| plane.quant.is_none());
                return if missing {
                    Err(Error::damaged("JPEG without a scan for one of its components"))
                } else {
                    Ok(())
                };
            }
        }
    }
    Err(Error::unsupported(format!(
        "JPEG of more than {MOST_SCANS} scans"
    )))
}

/// Decodes one scan of several and says where it ends.
fn one(
    segments: &Segments<'_>,
    frame: &Frame,
    tables: &Tables,
    scan: &Scan,
    planes: &mut [Plane],
) -> Result<usize> {
    let mut bits = Bits::new(segments.file, segments.at);
    let mut restarts = Restarts::new(tables.restart_interval);
    let mut coder = Coder {
        scan,
        is_progressive: frame.is_progressive,
        blocks_to_skip: 0,
    };
    let mut parts = Vec::with_capacity(4);
    for part in scan.parts() {
        let needs_dc = scan.from == 0 && scan.high == 0;
        let dc = needs_dc.then(|| table(&tables.dc, part.dc, "DC")).transpose()?;
        let ac = (scan.to > 0)
            .then(|| table(&tables.ac, part.ac, "AC"))
            .transpose()?;
        parts.push((part.component, dc, ac, 0i32));
    }
    let (most_h, most_v) = frame.most();
    let is_alone = parts.len() == 1;
    let (across, down) = if is_alone {
        planes[parts[0].0].own_blocks
    } else {
        (
            frame.width.div_ceil(8 * most_h),
            frame.height.div_ceil(8 * most_v),
        )
    };
    for row in 0..down {
        for mcu in 0..across {
            if restarts.before_mcu(&mut bits)? {
                parts.iter_mut().for_each(|part| part.3 = 0);
                coder.blocks_to_skip = 0;
            }
            for (component, dc, ac, last) in &mut parts {
                let plane = &mut planes[*component];
                let (h, v) = if is_alone { (1, 1) } else { (plane.h, plane.v) };
                for at in 0..h * v {
                    let (x, y) = (mcu * h + at % h, row * v + at / h);
                    let block = &mut plane.blocks[y * plane.padded_blocks + x];
                    coder
                        .block(&mut bits, *dc, *ac, last, block)
                        .map_err(|found| fault(found, row))?;
                }
            }
        }
        if bits.is_overrun() {
            return Err(overrun(row, down));
        }
    }
    Ok(bits.at())
}

/// Decodes the blocks of one scan of several.
struct Coder<'a> {
    scan: &'a Scan,
    is_progressive: bool,
    /// Blocks without further coefficients that are still to come.
    blocks_to_skip: u32,
}

impl Coder<'_> {
    fn block(
        &mut self,
        bits: &mut Bits<'_>,
        dc: Option<&Table>,
        ac: Option<&Table>,
        last: &mut i32,
        block: &mut Block,
    ) -> Result<(), Fault> {
        if let Some(dc) = dc {
            *last = last.wrapping_add(bits.dc(dc)?);
            block[0] = (*last << self.scan.low) as i16;
        } else if self.scan.from == 0 && bits.take_bit() {
            block[0] |= 1 << self.scan.low;
        }
        match ac {
            None => Ok(()),
            Some(ac) if !self.is_progressive => {
                bits.ac(ac, |k, value| block[usize::from(ZIGZAG[k & 63])] = value as i16)
            }
            Some(ac) if self.scan.high == 0 => self.first(bits, ac, block),
            Some(ac) => self.refine(bits, ac, block),
        }
    }

    /// AC values, for the first time. Source: T.81, G.1.2.2.
    fn first(&mut self, bits: &mut Bits<'_>, table: &Table, block: &mut Block) -> Result<(), Fault> {
        if self.blocks_to_skip > 0 {
            self.blocks_to_skip -= 1;
            return Ok(());
        }
        let mut k = self.scan.from;
        while k <= self.scan.to {
            let symbol = bits.symbol(table)?;
            let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
            match (run, size) {
                (15, 0) => k += 16,
                (run, 0) => {
                    self.blocks_to_skip = (1 << run) - 1 + bits.take(run);
                    return Ok(());
                }
                (run, size) => {
                    k += run as usize;
                    let value = bits.take_extended(size) << self.scan.low;
                    *coefficient(block, k).ok_or(Fault::Run)? = value as i16;
                    k += 1;
                }
            }
        }
        Ok(())
    }

    /// One more bit of AC values. Source: T.81, G.1.2.3.
    fn refine(&mut self, bits: &mut Bits<'_>, table: &Table, block: &mut Block) -> Result<(), Fault> {
        let bit = 1i16 << self.scan.low;
        let mut k = self.scan.from;
        if self.blocks_to_skip == 0 {
            while k <= self.scan.to {
                let symbol = bits.symbol(table)?;
                let (mut run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
                let mut value = 0;
                if size != 0 {
                    value = if bits.take_bit() { bit } else { -bit };
                } else if run < 15 {
                    self.blocks_to_skip = (1 << run) + bits.take(run);
                    break;
                }
                // Passes over `run` zeros, and refines what is not zero on the way.
                while k <= self.scan.to {
                    let found = coefficient(block, k).ok_or(Fault::Run)?;
                    if *found != 0 {
                        refine_one(bits, found, bit);
                    } else if run == 0 {
                        *found = value;
                        k += 1;
                        break;
                    } else {
                        run -= 1;
                    }
                    k += 1;
                }
            }
        }
        if self.blocks_to_skip > 0 {
            for k in k..=self.scan.to {
                let found = coefficient(block, k).ok_or(Fault::Run)?;
                if *found != 0 {
                    refine_one(bits, found, bit);
                }
            }
            self.blocks_to_skip -= 1;
        }
        Ok(())
    }
}

fn coefficient(block: &mut Block, k: usize) -> Option<&mut i16> {
    ZIGZAG.get(k).map(|&natural| &mut block[usize::from(natural)])
}

/// A further bit of a coefficient that is not zero.
#[inline(always)]
fn refine_one(bits: &mut Bits<'_>, value: &mut i16, bit: i16) {
    if bits.take_bit() && *value & bit == 0 {
        *value = value.wrapping_add(if *value > 0 { bit } else { -bit });
    }
}
