//! Markers and segments before the pixels.

use super::huffman::Table;
use super::idct::Block;
use crate::{Error, Result};

/// Position in natural order of each position in the zigzag. Source: T.81, figure A.6.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// One of the pictures of which a JPEG file is made: brightness, or a colour, maybe with fewer samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Component {
    pub(super) id: u8,
    /// Samples in a row and rows, relative to other components: 1 to 4.
    pub(super) h: usize,
    pub(super) v: usize,
    /// Which quantisation table.
    pub(super) quant: usize,
}

/// What the frame header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) is_progressive: bool,
    components: [Component; 4],
    count: usize,
}

impl Frame {
    pub(super) fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    /// The largest `h` and `v`.
    pub(super) fn most(&self) -> (usize, usize) {
        let components = self.components().iter();
        components.fold((1, 1), |(h, v), component| {
            (h.max(component.h), v.max(component.v))
        })
    }

    /// Reads a frame header (SOF); `code` is its marker.
    fn parse(code: u8, segment: &[u8]) -> Result<Self> {
        match code {
            0xc0..=0xc2 => {}
            0xc3 | 0xc7 | 0xcb | 0xcf => {
                return Err(Error::unsupported(
                    "lossless JPEG: only baseline and progressive files are read",
                ));
            }
            0xc9 | 0xca | 0xcd | 0xce => {
                return Err(Error::unsupported(
                    "JPEG with arithmetic coding: only Huffman coding is read",
                ));
            }
            _ => {
                return Err(Error::unsupported(
                    "hierarchical JPEG: only baseline and progressive files are read",
                ));
            }
        }
        let [bits, h1, h0, w1, w0, count, ..] = *segment else {
            return Err(Error::damaged("the JPEG frame header is cut short"));
        };
        if bits != 8 {
            return Err(Error::unsupported(format!(
                "JPEG of {bits} bits a sample: 8 are read"
            )));
        }
        let [width, height] = [[w1, w0], [h1, h0]].map(u16::from_be_bytes).map(usize::from);
        if width == 0 {
            return Err(Error::damaged("JPEG with a width of 0"));
        }
        if height == 0 {
            return Err(Error::unsupported(
                "JPEG whose height is given after its pixels (DNL), or is 0",
            ));
        }
        let count = usize::from(count);
        if !matches!(count, 1 | 3 | 4) {
            return Err(Error::unsupported(format!(
                "JPEG of {count} components: 1, 3 and 4 are read"
            )));
        }
        let described = segment.get(6..).filter(|rest| rest.len() == 3 * count);
        let described = described
            .ok_or_else(|| Error::damaged("the JPEG frame header has not the length that it should have"))?;
        let mut components = [Component::default(); 4];
        for (component, &[id, sampling, quant]) in components.iter_mut().zip(described.as_chunks::<3>().0) {
            let (h, v) = (usize::from(sampling >> 4), usize::from(sampling & 15));
            if !(1..=4).contains(&h) || !(1..=4).contains(&v) || quant > 3 {
                return Err(Error::damaged(format!(
                    "JPEG component {id} has sampling {h} x {v} and quantisation table {quant}"
                )));
            }
            // A single component is never sampled differently from others.
            let (h, v) = if count == 1 { (1, 1) } else { (h, v) };
            *component = Component {
                id,
                h,
                v,
                quant: usize::from(quant),
            };
        }
        let frame = Self {
            width,
            height,
            is_progressive: code == 0xc2,
            components,
            count,
        };
        if frame
            .components()
            .iter()
            .map(|component| component.h * component.v)
            .sum::<usize>()
            > 10
            && count > 1
        {
            return Err(Error::damaged("JPEG with more than 10 blocks in an MCU"));
        }
        let (most_h, most_v) = frame.most();
        if frame
            .components()
            .iter()
            .any(|component| most_h % component.h != 0 || most_v % component.v != 0)
        {
            return Err(Error::unsupported(
                "JPEG whose components are sampled in ratios that are not whole",
            ));
        }
        Ok(frame)
    }
}

/// How samples become colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Space {
    Grey,
    Rgb,
    YCbCr,
    Cmyk,
    Ycck,
}

/// A component's part in a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Part {
    pub(super) component: usize,
    pub(super) dc: usize,
    pub(super) ac: usize,
}

/// A scan header (SOS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scan {
    parts: [Part; 4],
    count: usize,
    /// Positions in the zigzag, both included.
    pub(super) from: usize,
    pub(super) to: usize,
    /// Bits left out before (`high`, 0 in a first scan) and in this scan.
    pub(super) high: u32,
    pub(super) low: u32,
}

impl Scan {
    pub(super) fn parts(&self) -> &[Part] {
        &self.parts[..self.count]
    }
}

/// The tables and facts that segments set; tables stay from one file to the next.
pub(super) struct Tables {
    /// In natural order.
    pub(super) quant: [Option<Block>; 4],
    pub(super) dc: [Table; 4],
    pub(super) ac: [Table; 4],
    /// MCUs between restart markers; 0: there are none.
    pub(super) restart_interval: usize,
    has_jfif: bool,
    /// The colour transform of an Adobe segment.
    adobe: Option<u8>,
}

impl Tables {
    pub(super) fn new() -> Self {
        Self {
            quant: [None; 4],
            dc: std::array::from_fn(|_| Table::new(false)),
            ac: std::array::from_fn(|_| Table::new(true)),
            restart_interval: 0,
            has_jfif: false,
            adobe: None,
        }
    }

    /// Forgets what the last file said.
    fn clear(&mut self) {
        self.quant = [None; 4];
        for table in self.dc.iter_mut().chain(&mut self.ac) {
            table.is_defined = false;
        }
        self.restart_interval = 0;
        self.has_jfif = false;
        self.adobe = None;
    }

    /// The colours of a frame, as libjpeg guesses them.
    pub(super) fn space(&self, frame: &Frame) -> Space {
        let ids: [u8; 4] = frame.components.map(|component| component.id);
        match (frame.count, self.adobe) {
            (1, _) => Space::Grey,
            (3, _) if self.has_jfif => Space::YCbCr,
            (3, Some(0)) => Space::Rgb,
            (3, None) if ids[..3] == *b"RGB" => Space::Rgb,
            (3, _) => Space::YCbCr,
            (_, None | Some(0)) => Space::Cmyk,
            _ => Space::Ycck,
        }
    }

    fn quantisation(&mut self, mut segment: &[u8]) -> Result<()> {
        while let Some((&kind, rest)) = segment.split_first() {
            let wide = kind >> 4 != 0;
            let bytes = if wide { 128 } else { 64 };
            let (Some(values), true) = (rest.get(..bytes), kind & 15 < 4 && kind >> 4 < 2) else {
                return Err(Error::damaged("a JPEG quantisation table is damaged"));
            };
            let mut table = [0; 64];
            for (at, &natural) in ZIGZAG.iter().enumerate() {
                table[usize::from(natural)] = if wide {
                    i16::from_be_bytes([values[at * 2], values[at * 2 + 1]])
                } else {
                    i16::from(values[at])
                };
            }
            self.quant[usize::from(kind & 15)] = Some(table);
            segment = &rest[bytes..];
        }
        Ok(())
    }

    fn huffman(&mut self, mut segment: &[u8]) -> Result<()> {
        while let Some((&kind, rest)) = segment.split_first() {
            let damaged = || Error::damaged("a JPEG Huffman table is damaged");
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or_else(damaged)?;
            let length: usize = counts.iter().map(|&count| usize::from(count)).sum();
            let (Some(symbols), true, true) =
                (rest.get(..length), length <= 256, kind >> 4 < 2 && kind & 15 < 4)
            else {
                return Err(damaged());
            };
            let tables = if kind >> 4 == 0 {
                &mut self.dc
            } else {
                &mut self.ac
            };
            tables[usize::from(kind & 15)].define(counts, symbols)?;
            segment = &rest[length..];
        }
        Ok(())
    }
}

/// Goes through the segments of a file.
pub(super) struct Segments<'a> {
    pub(super) file: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Segments<'a> {
    /// Begins a file.
    pub(super) fn begin(file: &'a [u8], tables: &mut Tables) -> Result<Self> {
        tables.clear();
        Self::of(file)
    }

    pub(super) fn of(file: &'a [u8]) -> Result<Self> {
        if !file.starts_with(&[0xff, 0xd8]) {
            return Err(Error::damaged(format!(
                "not a JPEG file: it begins with `{}`",
                file[..file.len().min(8)].escape_ascii()
            )));
        }
        Ok(Self { file, at: 2 })
    }

    /// The next marker's code; bytes before it are passed over, as every decoder does.
    fn marker(&mut self) -> Result<u8> {
        while let Some(&[first, code]) = self.file.get(self.at..).and_then(|rest| rest.first_chunk()) {
            if first == 0xff && !matches!(code, 0 | 0xff) {
                self.at += 2;
                return Ok(code);
            }
            self.at += 1;
        }
        Err(Error::damaged(format!(
            "the JPEG file ends after {} bytes, before its pixels are complete",
            self.file.len()
        )))
    }

    /// The contents of the segment of the marker just read.
    fn segment(&mut self, code: u8) -> Result<&'a [u8]> {
        let rest = &self.file[self.at..];
        let length = rest
            .first_chunk()
            .map(|&length| usize::from(u16::from_be_bytes(length)));
        let segment = length
            .filter(|&length| length >= 2)
            .and_then(|length| rest.get(2..length));
        let segment = segment.ok_or_else(|| {
            Error::damaged(format!(
                "JPEG segment 0xff{code:02x} at byte {} is cut short",
                self.at - 2
            ))
        })?;
        self.at += 2 + segment.len();
        Ok(segment)
    }

    /// Reads to the frame header and through it.
    pub(super) fn frame(&mut self, mut tables: Option<&mut Tables>) -> Result<Frame> {
        loop {
            match self.marker()? {
                code @ (0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf) => {
                    return Frame::parse(code, self.segment(code)?);
                }
                0xda => return Err(Error::damaged("JPEG pixels come before the frame header")),
                0xd9 => return Err(Error::damaged("the JPEG file has no picture")),
                code => self.other(code, tables.as_deref_mut())?,
            }
        }
    }

    /// Reads to the next scan header and through it; `None` at the end of the picture.
    pub(super) fn scan(&mut self, frame: &Frame, tables: &mut Tables) -> Result<Option<Scan>> {
        loop {
            match self.marker()? {
                0xda => {
                    let segment = self.segment(0xda)?;
                    return parse_scan(segment, frame).map(Some);
                }
                0xd9 => return Ok(None),
                0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                    return Err(Error::damaged("JPEG with a second frame header"));
                }
                code => self.other(code, Some(tables))?,
            }
        }
    }

    /// A segment that is neither frame nor scan.
    fn other(&mut self, code: u8, tables: Option<&mut Tables>) -> Result<()> {
        if matches!(code, 0x01 | 0xd0..=0xd8) {
            return Ok(());
        }
        let segment = self.segment(code)?;
        let Some(tables) = tables else { return Ok(()) };
        match code {
            0xdb => tables.quantisation(segment)?,
            0xc4 => tables.huffman(segment)?,
            0xdd => {
                let interval = segment.first_chunk().filter(|_| segment.len() == 2);
                let interval =
                    interval.ok_or_else(|| Error::damaged("the JPEG restart interval is damaged"))?;
                tables.restart_interval = usize::from(u16::from_be_bytes(*interval));
            }
            0xe0 if segment.starts_with(b"JFIF\0") => tables.has_jfif = true,
            0xee if segment.len() >= 12 && segment.starts_with(b"Adobe") => tables.adobe = Some(segment[11]),
            _ => {}
        }
        Ok(())
    }
}

/// Reads a scan header.
fn parse_scan(segment: &[u8], frame: &Frame) -> Result<Scan> {
    let damaged = || Error::damaged("a JPEG scan header is damaged");
    let (&count, rest) = segment.split_first().ok_or_else(damaged)?;
    let count = usize::from(count);
    if !(1..=frame.count).contains(&count) || rest.len() != count * 2 + 3 {
        return Err(damaged());
    }
    let (described, rest) = rest.split_at(count * 2);
    let mut parts = [Part::default(); 4];
    for (at, &[id, tables]) in described.as_chunks::<2>().0.iter().enumerate() {
        // Some files name all components alike: then they come in the frame's order.
        let is_new = |component: &usize| parts[..at].iter().all(|part: &Part| part.component != *component);
        let named = frame.components().iter().position(|component| component.id == id);
        let component = named.filter(is_new).or(named
            .and(Some(at))
            .filter(|_| count == frame.count)
            .filter(is_new));
        let component = component.ok_or_else(damaged)?;
        parts[at] = Part {
            component,
            dc: usize::from(tables >> 4),
            ac: usize::from(tables & 15),
        };
        if parts[at].dc > 3 || parts[at].ac > 3 {
            return Err(damaged());
        }
    }
    let (from, to, high, low) = if frame.is_progressive {
        (rest[0], rest[1], rest[2] >> 4, rest[2] & 15)
    } else {
        (0, 63, 0, 0)
    };
    let is_sane = from <= to && to <= 63 && low <= 13 && (high == 0 || high == low + 1);
    // DC values come alone, AC values of one component at a time.
    if !is_sane || (frame.is_progressive && (if from == 0 { to != 0 } else { count != 1 })) {
        return Err(damaged());
    }
    Ok(Scan {
        parts,
        count,
        from: usize::from(from),
        to: usize::from(to),
        high: u32::from(high),
        low: u32::from(low),
    })
}
