//! JPEG images: a decoder that can leave out what is not wanted.
//!
//! Training code mostly wants a part of a picture, or a smaller one. [`Decoder`] takes a [`View`]: of the pixels outside it only
//! the Huffman codes are read, those below it not even that; and a picture at half, a quarter or an eighth of its size costs
//! a smaller transform. The pixels of a view are those that the whole picture has there.
//!
//! Baseline and progressive files with Huffman coding and 8 bits a sample are read: grey, YCbCr, RGB, CMYK and YCCK, with any
//! whole sampling ratios. The pixels are libjpeg's to the bit (accurate integer transform, triangle upsampling), so those of
//! Pillow, OpenCV and PyTorch's `decode_jpeg` as they are set by default, on every processor. CMYK becomes RGB as
//! `Image.convert("RGB")` of Pillow does it. Orientation in Exif is not applied, nor are colour profiles.
//!
//! ```text
//! ff d8, then segments: ff, code, length (2 bytes, big-endian, itself included), data        ff d9
//! DQT: quantisation tables    DHT: Huffman tables    SOFn: size and components    SOS: a scan; its codes follow
//! ```
//!
//! Source: ITU-T T.81; T.871 (JFIF); libjpeg-turbo 3.1 where those leave choices.
//!
//! # Examples
//! ```no_run
//! use prep_formats::jpeg::{Decoder, Info, Region, View};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = std::fs::read("photo.jpg")?;
//! let info = Info::read(&file)?;
//! // The right half, in colour: u8[height, width, 3].
//! let region = Region { x: info.width / 2, y: 0, width: info.width - info.width / 2, height: info.height };
//! let mut pixels = vec![0; region.width as usize * region.height as usize * 3];
//! Decoder::new().decode(&file, &View::of(region).with_channels(3), &mut pixels)?;
//! # Ok(())
//! # }
//! ```

mod colour;
mod header;
mod huffman;
mod idct;
mod plane;
mod scan;
#[cfg(test)]
mod tests;

use std::fmt;

use self::header::{Frame, Segments, Space, Tables};
use self::plane::Plane;
use crate::{Error, Result};

/// Size and kind of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// 1 grey, 3 colour (RGB once decoded, also where the file holds CMYK).
    pub channels: u8,
}

impl Info {
    /// Reads the size of a picture from the front of its file. Looks at segments before the pixels only, whose sizes it passes over.
    ///
    /// # Errors
    /// No JPEG file, a damaged header, a kind that is not read, a size for which the file is too short.
    pub fn read(file: &[u8]) -> Result<Self> {
        let frame = Segments::of(file)?.frame(None)?;
        check_plausible(&frame, file)?;
        Ok(Self::of(&frame))
    }

    fn of(frame: &Frame) -> Self {
        Self {
            width: frame.width as u32,
            height: frame.height as u32,
            channels: if frame.components().len() == 1 { 1 } else { 3 },
        }
    }
}

/// How much smaller than the file's a decoded picture is. Sides are rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Scale {
    /// As it is.
    #[default]
    Whole,
    /// Half as wide and high.
    Half,
    /// A quarter.
    Quarter,
    /// An eighth: one pixel for each block of the file.
    Eighth,
}

impl Scale {
    /// All, the largest picture first.
    pub const ALL: [Self; 4] = [Self::Whole, Self::Half, Self::Quarter, Self::Eighth];

    /// By how much a side is divided: 1, 2, 4 or 8.
    pub fn divisor(self) -> u32 {
        match self {
            Self::Whole => 1,
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }

    /// The length of a side that has `pixels` in the file.
    pub fn apply(self, pixels: u32) -> u32 {
        pixels.div_ceil(self.divisor())
    }
}

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// Pixels to the left of it.
    pub x: u32,
    /// Rows above it.
    pub y: u32,
    /// Pixels in a row, at least 1.
    pub width: u32,
    /// Rows, at least 1.
    pub height: u32,
}

/// What of a picture is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct View {
    scale: Scale,
    region: Option<Region>,
    channels: Option<u8>,
}

impl View {
    /// The whole picture.
    pub fn whole() -> Self {
        Self::default()
    }

    /// A rectangle of the picture.
    pub fn of(region: Region) -> Self {
        Self {
            region: Some(region),
            ..Self::default()
        }
    }

    /// A smaller picture; its region, where there is one, is then one of the smaller picture.
    #[must_use]
    pub fn with_scale(self, scale: Scale) -> Self {
        Self { scale, ..self }
    }

    /// 3 for RGB, whatever the file has, 1 for brightness; else the file's own. CMYK has no brightness.
    #[must_use]
    pub fn with_channels(self, channels: u8) -> Self {
        Self {
            channels: Some(channels),
            ..self
        }
    }

    /// Rows, pixels in a row and channels of the decoded picture.
    ///
    /// # Errors
    /// A region that is empty or reaches outside, and channels other than 1 and 3.
    pub fn shape(&self, info: &Info) -> Result<[usize; 3]> {
        let (width, height) = (self.scale.apply(info.width), self.scale.apply(info.height));
        let region = self.region(info);
        let fits = |from: u32, length: u32, all: u32| {
            length > 0 && from.checked_add(length).is_some_and(|end| end <= all)
        };
        if !fits(region.x, region.width, width) || !fits(region.y, region.height, height) {
            return Err(Error::Invalid(format!(
                "{region:?} does not lie in a picture of {width} x {height} (width x height)"
            )));
        }
        let channels = self.channels.unwrap_or(info.channels);
        if !matches!(channels, 1 | 3) {
            return Err(Error::Invalid(format!(
                "{channels} channels of a JPEG file: 1 or 3 can be had"
            )));
        }
        Ok([
            region.height as usize,
            region.width as usize,
            usize::from(channels),
        ])
    }

    fn region(&self, info: &Info) -> Region {
        self.region.unwrap_or(Region {
            x: 0,
            y: 0,
            width: self.scale.apply(info.width),
            height: self.scale.apply(info.height),
        })
    }
}

/// Blocks that a byte of a file can stand for: a block takes a bit at least, but those that only fill up MCUs, at most three for one
/// of the picture's own, may be left out.
const MOST_BLOCKS_A_BYTE: usize = 8 * 4;

/// Refuses a size in pixels for which the file is too short.
fn check_plausible(frame: &Frame, file: &[u8]) -> Result<()> {
    let (most_h, most_v) = frame.most();
    let mcus = frame.width.div_ceil(8 * most_h) * frame.height.div_ceil(8 * most_v);
    let blocks: usize = frame
        .components()
        .iter()
        .map(|component| component.h * component.v * mcus)
        .sum();
    if blocks / MOST_BLOCKS_A_BYTE <= file.len() {
        return Ok(());
    }
    Err(Error::damaged(format!(
        "JPEG of {} x {} pixels (width x height) in a file of {} bytes",
        frame.width,
        frame.height,
        file.len()
    )))
}

/// Decodes JPEG files. Keeps its tables and buffers: one per thread.
///
/// Memory: two rows of MCUs of the view for baseline files in one scan; for others all coefficients, 2 bytes each (3 to 6 bytes a pixel).
pub struct Decoder {
    tables: Tables,
    planes: [Plane; 4],
    /// A row of samples of each component, and one of sums.
    lines: [Vec<u8>; 4],
    sums: Vec<u16>,
    padded: Vec<u8>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder without any buffers yet.
    pub fn new() -> Self {
        Self {
            tables: Tables::new(),
            planes: std::array::from_fn(|_| Plane::default()),
            lines: Default::default(),
            sums: Vec::new(),
            padded: Vec::new(),
        }
    }

    /// Decodes what `view` wants into `out`, which has room for exactly that: row by row, u8[height, width, channels].
    ///
    /// # Errors
    /// Damage before the last row wanted, a kind of JPEG that is not read, a view outside the picture, another length of `out`.
    /// What `out` then holds is unspecified.
    pub fn decode(&mut self, file: &[u8], view: &View, out: &mut [u8]) -> Result<()> {
        let mut segments = Segments::begin(file, &mut self.tables)?;
        let frame = segments.frame(Some(&mut self.tables))?;
        check_plausible(&frame, file)?;
        let info = Info::of(&frame);
        let [height, width, channels] = view.shape(&info)?;
        if out.len() != height * width * channels {
            return Err(Error::Invalid(format!(
                "{} bytes for a picture of {height} x {width} x {channels} (height x width x channels)",
                out.len()
            )));
        }
        let damaged = || Error::damaged("the JPEG file ends before its pixels");
        let first = segments.scan(&frame, &mut self.tables)?.ok_or_else(damaged)?;
        let space = self.tables.space(&frame);
        if channels == 1 && !matches!(space, Space::Grey | Space::YCbCr) {
            return Err(Error::unsupported(format!(
                "brightness of a JPEG file with {space:?} colours"
            )));
        }
        let only_first = channels == 1;
        let region = view.region(&info);
        for (at, (plane, component)) in self.planes.iter_mut().zip(frame.components()).enumerate() {
            plane.prepare(&frame, component, view.scale, &region);
            plane.is_wanted = at == 0 || !only_first;
        }
        let count = frame.components().len();
        let mut output = Output {
            space,
            channels,
            region,
            next: region.y as usize,
            out,
            lines: &mut self.lines,
            sums: &mut self.sums,
            padded: &mut self.padded,
        };
        let planes = &mut self.planes[..count];
        if frame.is_progressive || first.parts().len() < count {
            scan::all(&mut segments, &frame, &mut self.tables, first, planes)?;
            for row in wanted_mcu_rows(planes) {
                for plane in planes.iter_mut().filter(|plane| plane.is_wanted) {
                    plane.transform_stored(row);
                }
                output.rows(planes, row);
            }
            return Ok(());
        }
        let wanted = wanted_mcu_rows(planes);
        scan::single(
            &mut segments,
            &frame,
            &self.tables,
            &first,
            planes,
            wanted,
            |planes, row| {
                output.rows(planes, row);
            },
        )
    }

    /// Decodes what `view` wants: appends its pixels to `out` and says their shape: height, width, channels.
    ///
    /// # Errors
    /// As [`Decoder::decode`]; `out` is then as it was before.
    pub fn decode_append(&mut self, file: &[u8], view: &View, out: &mut Vec<u8>) -> Result<[usize; 3]> {
        let shape = view.shape(&Info::read(file)?)?;
        let start = out.len();
        out.resize(start + shape.iter().product::<usize>(), 0);
        let result = self.decode(file, view, &mut out[start..]);
        if result.is_err() {
            out.truncate(start);
        }
        result.map(|()| shape)
    }
}

/// The rows of MCUs of which a view wants something.
fn wanted_mcu_rows(planes: &[Plane]) -> std::ops::Range<usize> {
    let wanted = || {
        planes
            .iter()
            .filter(|plane| plane.is_wanted)
            .map(Plane::wanted_mcu_rows)
    };
    let start = wanted().map(|rows| rows.start).min();
    let end = wanted().map(|rows| rows.end).max();
    start.unwrap_or(0)..end.unwrap_or(0)
}

/// Where pixels go, row by row.
struct Output<'a> {
    space: Space,
    channels: usize,
    region: Region,
    /// The next row of the picture.
    next: usize,
    out: &'a mut [u8],
    lines: &'a mut [Vec<u8>; 4],
    sums: &'a mut Vec<u16>,
    padded: &'a mut Vec<u8>,
}

impl Output<'_> {
    /// Writes the rows that are complete once MCU row `row` has its samples.
    fn rows(&mut self, planes: &[Plane], row: usize) {
        let (first, width) = (self.region.x as usize, self.region.width as usize);
        let bottom = (self.region.y + self.region.height) as usize;
        let ready = planes
            .iter()
            .filter(|plane| plane.is_wanted)
            .map(|plane| plane.ready_rows(row))
            .min();
        let end = ready.unwrap_or(0).min(bottom);
        while self.next < end {
            let top = self.region.y as usize;
            let out = &mut self.out[(self.next - top) * width * self.channels..][..width * self.channels];
            let mut lines: [&[u8]; 4] = [&[]; 4];
            let scratch = self.lines.iter_mut();
            for ((line, plane), scratch) in lines.iter_mut().zip(planes).zip(scratch) {
                if plane.is_wanted {
                    *line = plane.line(self.next, first..first + width, scratch, self.sums, self.padded);
                }
            }
            let [a, b, c, _] = lines;
            match self.space {
                _ if self.channels == 1 => out.copy_from_slice(a),
                Space::Grey => colour::grey_to_rgb(a, out),
                Space::Rgb => colour::interleave(a, b, c, out),
                Space::YCbCr => colour::ycc_to_rgb(a, b, c, out),
                Space::Cmyk => colour::cmyk_to_rgb(lines, false, out),
                Space::Ycck => colour::cmyk_to_rgb(lines, true, out),
            }
            self.next += 1;
        }
    }
}
