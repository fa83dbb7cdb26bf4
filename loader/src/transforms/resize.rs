//! Pictures of another size, and random parts of them in a fixed size.

use std::cell::RefCell;

use prep_formats::value::DType;

use super::image::{Image, Rect, known, resized_spec};
use super::resample::{self, Filter, Pixels, Scratch, Span, Windows};
use crate::element::{Element, ElementSpec};
use crate::error::{Error, Result};
use crate::recycle::{filled, reserved};
use crate::transform::{Generator, Transform};

/// How pixels are mixed where a picture gets another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// The nearest pixel: Pillow's `NEAREST`, OpenCV's `INTER_NEAREST_EXACT`.
    Nearest,
    /// Straight lines between pixels: Pillow's `BILINEAR` with antialias, OpenCV's `INTER_LINEAR` without.
    #[default]
    Bilinear,
    /// Curves through pixels: Pillow's `BICUBIC` with antialias, OpenCV's `INTER_CUBIC` without.
    Bicubic,
    /// The mean of what a pixel covers: OpenCV's `INTER_AREA` where the picture shrinks. Is its own antialias.
    Area,
}

impl Method {
    pub(crate) fn filter(self, antialias: bool) -> Filter {
        match (self, antialias) {
            (Self::Nearest, _) => Filter::Nearest,
            (Self::Bilinear, true) => Filter::TriangleWide,
            (Self::Bilinear, false) => Filter::Triangle,
            (Self::Bicubic, true) => Filter::CubicWide,
            (Self::Bicubic, false) => Filter::Cubic,
            (Self::Area, _) => Filter::Area,
        }
    }

    /// For the text of parameters.
    pub(crate) fn describe(self, antialias: bool) -> &'static str {
        match (self, antialias) {
            (Self::Nearest, _) => "nearest",
            (Self::Bilinear, true) => "bilinear, antialias=true",
            (Self::Bilinear, false) => "bilinear, antialias=false",
            (Self::Bicubic, true) => "bicubic, antialias=true",
            (Self::Bicubic, false) => "bicubic, antialias=false",
            (Self::Area, _) => "area",
        }
    }
}

/// What can be resized.
const RESIZED: &[DType] = &[DType::UInt8, DType::UInt16, DType::Float32];

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Resizes the pixels of `source`, `channels` a pixel, into `out`.
pub(crate) fn resize_bytes(
    source: Pixels<'_>,
    filter: Filter,
    [down, across]: [Span; 2],
    [height, width]: [usize; 2],
    is_mirrored: bool,
    out: &mut [u8],
) -> Result<()> {
    let down = Windows::new(filter, down, height, false);
    let across = Windows::new(filter, across, width, is_mirrored);
    SCRATCH.with_borrow_mut(|scratch| resample::bytes(source, &down, &across, scratch, out))
}

fn check_target(size: [usize; 2]) -> Result<()> {
    // Beyond this a picture is larger than any memory, so the size is a mistake.
    const MOST: usize = 1 << 20;
    if size.iter().any(|side| !(1..=MOST).contains(side)) {
        return Err(Error::Element(format!(
            "a size of {size:?} (height, width): wanted 1 to {MOST} each"
        )));
    }
    Ok(())
}

/// A picture, cut and resized.
fn resized(image: &Image, part: Rect, size: [usize; 2], method: Method, antialias: bool) -> Result<Image> {
    let cut = image.cut(part);
    let [height, width] = size;
    if [cut.height, cut.width] == size {
        return Ok(cut);
    }
    let spans = [Span::whole(cut.height), Span::whole(cut.width)];
    let filter = method.filter(antialias);
    let (channels, pixel) = (cut.channels, cut.pixel_bytes());
    let windows = || {
        (
            Windows::new(filter, spans[0], height, false),
            Windows::new(filter, spans[1], width, false),
        )
    };
    let data = match cut.dtype {
        _ if filter == Filter::Nearest => {
            let (down, across) = windows();
            resample::nearest(&cut.data, cut.width, pixel, &down, &across)?
        }
        DType::UInt8 => {
            let mut out = filled(&[0], &[height, width, channels])?;
            let source = Pixels {
                data: &cut.data,
                width: cut.width,
                channels,
            };
            resize_bytes(source, filter, spans, size, false, &mut out)?;
            out
        }
        dtype => {
            let (down, across) = windows();
            let floats: Vec<f32> = if dtype == DType::UInt16 {
                cut.data
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|bytes| f32::from(u16::from_le_bytes(*bytes)))
                    .collect()
            } else {
                cut.data
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|bytes| f32::from_le_bytes(*bytes))
                    .collect()
            };
            let sums = resample::floats(&floats, cut.width, channels, &down, &across)?;
            let mut out = reserved(&[height, width, pixel])?;
            if dtype == DType::UInt16 {
                let whole = |value: &f32| (value.round().clamp(0.0, 65_535.0) as u16).to_le_bytes();
                out.extend(sums.iter().flat_map(whole));
            } else {
                out.extend(sums.iter().flat_map(|value| value.to_le_bytes()));
            }
            out
        }
    };
    Ok(cut.with(height, width, data))
}

/// Gives a picture another size; its sides need not stay in proportion.
///
/// Within 1 (of 255) of Pillow's `resize` with antialias, of OpenCV's without; `uint16` and `float32` pictures are summed as `f32`.
/// Antialias matters where a picture shrinks: without it pixels are passed over.
#[derive(Debug, Clone, PartialEq)]
pub struct Resize {
    /// Name of the picture, `[height, width, channels]`, `uint8`, `uint16` or `float32`.
    pub feature: String,
    /// Height and width of the result.
    pub size: [usize; 2],
    /// How pixels are mixed.
    pub method: Method,
    /// Whether a pixel of a smaller result is mixed of all that it covers. Plays no part for nearest and area.
    pub antialias: bool,
}

impl Resize {
    /// Bilinear, with antialias.
    pub fn to(feature: impl Into<String>, size: [usize; 2]) -> Self {
        Self {
            feature: feature.into(),
            size,
            method: Method::Bilinear,
            antialias: true,
        }
    }
}

impl Transform for Resize {
    fn name(&self) -> String {
        "resize".into()
    }

    fn parameters(&self) -> String {
        format!(
            "feature={:?}, size={:?}, method={}",
            self.feature,
            self.size,
            self.method.describe(self.antialias)
        )
    }

    fn check(&self) -> Result<()> {
        check_target(self.size)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        resized_spec(input, &self.feature, RESIZED, known(self.size))
    }

    fn apply(&self, element: Element, _: &mut Generator) -> Result<Element> {
        self.check()?;
        let image = Image::of_types(&element, &self.feature, RESIZED)?;
        let whole = Rect {
            y: 0,
            x: 0,
            height: image.height,
            width: image.width,
        };
        resized(&image, whole, self.size, self.method, self.antialias)?.put(element, &self.feature)
    }
}

/// Cuts out a part of random size, proportions and place, and resizes it: torchvision's `RandomResizedCrop`.
///
/// Draws, up to ten times until the part lies inside: `uniform(scale)` for the part's share of the area, `uniform` between the logarithms of
/// `ratio` for width by height; then `below(rows - height + 1)` and `below(columns - width + 1)` for the place. Where ten are not
/// enough: the middle, as large as it can be within `ratio`.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomResizedCrop {
    /// Name of the picture, `[height, width, channels]`, `uint8`, `uint16` or `float32`.
    pub feature: String,
    /// Height and width of the result.
    pub size: [usize; 2],
    /// The least and the most of the area that is kept.
    pub scale: [f64; 2],
    /// The least and the most width by height.
    pub ratio: [f64; 2],
    /// How pixels are mixed.
    pub method: Method,
    /// As [`Resize::antialias`].
    pub antialias: bool,
}

impl RandomResizedCrop {
    /// torchvision's usual parameters: 8 % to all of the area, 3:4 to 4:3, bilinear with antialias.
    pub fn to(feature: impl Into<String>, size: [usize; 2]) -> Self {
        Self {
            feature: feature.into(),
            size,
            scale: [0.08, 1.0],
            ratio: [3.0 / 4.0, 4.0 / 3.0],
            method: Method::Bilinear,
            antialias: true,
        }
    }

    /// The part of a picture of `height` by `width`.
    pub(crate) fn draw(&self, height: usize, width: usize, generator: &mut Generator) -> Rect {
        let (rows, columns) = (height as f64, width as f64);
        let log_ratio = self.ratio.map(f64::ln);
        for _ in 0..10 {
            let area = rows * columns * generator.uniform(self.scale[0], self.scale[1]);
            let ratio = generator.uniform(log_ratio[0], log_ratio[1]).exp();
            let w = (area * ratio).sqrt().round_ties_even() as usize;
            let h = (area / ratio).sqrt().round_ties_even() as usize;
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let y = generator.below((height - h) as u64 + 1) as usize;
                let x = generator.below((width - w) as u64 + 1) as usize;
                return Rect {
                    y,
                    x,
                    height: h,
                    width: w,
                };
            }
        }
        let own = columns / rows;
        let (h, w) = if own < self.ratio[0] {
            ((columns / self.ratio[0]).round_ties_even() as usize, width)
        } else if own > self.ratio[1] {
            (height, (rows * self.ratio[1]).round_ties_even() as usize)
        } else {
            (height, width)
        };
        let (h, w) = (h.clamp(1, height), w.clamp(1, width));
        Rect {
            y: (height - h) / 2,
            x: (width - w) / 2,
            height: h,
            width: w,
        }
    }

    /// The parameters without the feature's name.
    pub(crate) fn describe(&self) -> String {
        format!(
            "size={:?}, scale={:?}, ratio={:?}, method={}",
            self.size,
            self.scale,
            self.ratio,
            self.method.describe(self.antialias)
        )
    }
}

impl Transform for RandomResizedCrop {
    fn name(&self) -> String {
        "random_resized_crop".into()
    }

    fn parameters(&self) -> String {
        format!("feature={:?}, {}", self.feature, self.describe())
    }

    fn is_random(&self) -> bool {
        true
    }

    fn check(&self) -> Result<()> {
        let in_order = |[low, high]: [f64; 2], most: f64| low > 0.0 && low <= high && high <= most;
        if !in_order(self.scale, 1.0) || !in_order(self.ratio, f64::MAX) {
            return Err(Error::Element(format!(
                "scale {:?} and ratio {:?}: wanted the lower one first, both above 0, and a scale of at most 1",
                self.scale, self.ratio
            )));
        }
        check_target(self.size)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        resized_spec(input, &self.feature, RESIZED, known(self.size))
    }

    fn apply(&self, element: Element, generator: &mut Generator) -> Result<Element> {
        self.check()?;
        let image = Image::of_types(&element, &self.feature, RESIZED)?;
        let part = self.draw(image.height, image.width, generator);
        resized(&image, part, self.size, self.method, self.antialias)?.put(element, &self.feature)
    }
}
