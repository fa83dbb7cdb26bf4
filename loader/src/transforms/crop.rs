//! Parts of pictures, borders around them, and their mirror images.

use prep_formats::value::DType;

use super::image::{Image, Rect, check_type, known, resized_spec, spec_of};
use crate::element::{Element, ElementSpec, sizes_text};
use crate::error::{Error, Result};
use crate::recycle::filled;
use crate::transform::{Generator, Transform};

/// What moving pixels about works on: all numbers.
const ANY: &[DType] = &[
    DType::Bool,
    DType::UInt8,
    DType::Int8,
    DType::UInt16,
    DType::Int16,
    DType::UInt32,
    DType::Int32,
    DType::UInt64,
    DType::Int64,
    DType::Float16,
    DType::BFloat16,
    DType::Float32,
    DType::Float64,
];

fn too_small(feature: &str, image: [Option<u64>; 2], wanted: [usize; 2]) -> Error {
    let image = sizes_text(&image);
    Error::Element(format!(
        "`{feature}` is a picture of {image} (height, width), too small for a part of {wanted:?}: resize or pad it before"
    ))
}

/// Checks a part against the sizes that a spec knows.
fn check_fits(spec: &ElementSpec, feature: &str, end: [usize; 2]) -> Result<()> {
    let (_, shape) = spec_of(spec, feature)?;
    let found = [shape[0], shape[1]];
    let is_too_small = found
        .iter()
        .zip(end)
        .any(|(found, end)| found.is_some_and(|found| found < end as u64));
    if is_too_small {
        return Err(too_small(feature, found, end));
    }
    Ok(())
}

fn check_size(size: [usize; 2]) -> Result<()> {
    if size.contains(&0) {
        return Err(Error::Element(format!(
            "a size of {size:?} (height, width): both have to be 1 or more"
        )));
    }
    Ok(())
}

/// Cuts out the rectangle of `size` whose first pixel is at `top`, `left`. One that does not lie inside the picture is an error.
#[derive(Debug, Clone, PartialEq)]
pub struct Crop {
    /// Name of the picture, `[height, width, channels]` of any numbers.
    pub feature: String,
    /// Rows above the part.
    pub top: usize,
    /// Pixels to the left of the part.
    pub left: usize,
    /// Height and width of the part.
    pub size: [usize; 2],
}

impl Transform for Crop {
    fn name(&self) -> String {
        "crop".into()
    }

    fn parameters(&self) -> String {
        format!(
            "feature={:?}, top={}, left={}, size={:?}",
            self.feature, self.top, self.left, self.size
        )
    }

    fn check(&self) -> Result<()> {
        check_size(self.size)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let end = [
            self.top.saturating_add(self.size[0]),
            self.left.saturating_add(self.size[1]),
        ];
        check_fits(input, &self.feature, end)?;
        resized_spec(input, &self.feature, ANY, known(self.size))
    }

    fn apply(&self, element: Element, _: &mut Generator) -> Result<Element> {
        let image = Image::of(&element, &self.feature)?;
        let fits =
            |from: usize, length: usize, all: usize| from.checked_add(length).is_some_and(|end| end <= all);
        let [height, width] = self.size;
        if !fits(self.top, height, image.height) || !fits(self.left, width, image.width) {
            return Err(Error::Element(format!(
                "`{}` is a picture of {:?} (height, width), which does not hold a part of {:?} from row {}, column {}",
                self.feature,
                [image.height, image.width],
                self.size,
                self.top,
                self.left
            )));
        }
        let part = Rect {
            y: self.top,
            x: self.left,
            height,
            width,
        };
        image.cut(part).put(element, &self.feature)
    }
}

/// Cuts out the middle, as torchvision's `center_crop`: where a pixel is left over, `(rows - height) / 2` is rounded to even. A picture that
/// is smaller is an error; torchvision pads it.
#[derive(Debug, Clone, PartialEq)]
pub struct CenterCrop {
    /// Name of the picture, `[height, width, channels]` of any numbers.
    pub feature: String,
    /// Height and width of the part.
    pub size: [usize; 2],
}

impl Transform for CenterCrop {
    fn name(&self) -> String {
        "center_crop".into()
    }

    fn parameters(&self) -> String {
        format!("feature={:?}, size={:?}", self.feature, self.size)
    }

    fn check(&self) -> Result<()> {
        check_size(self.size)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        check_fits(input, &self.feature, self.size)?;
        resized_spec(input, &self.feature, ANY, known(self.size))
    }

    fn apply(&self, element: Element, _: &mut Generator) -> Result<Element> {
        let image = Image::of(&element, &self.feature)?;
        let [height, width] = self.size;
        let middle =
            |all: usize, part: usize| Some((all.checked_sub(part)? as f64 / 2.0).round_ties_even() as usize);
        let (Some(y), Some(x)) = (middle(image.height, height), middle(image.width, width)) else {
            return Err(too_small(
                &self.feature,
                known([image.height, image.width]),
                self.size,
            ));
        };
        image
            .cut(Rect { y, x, height, width })
            .put(element, &self.feature)
    }
}

/// Cuts out a part at a random place, each place as likely. A picture that is smaller is an error; put a [`Pad`] before it.
///
/// Draws: `below(rows - height + 1)` for the first row, `below(columns - width + 1)` for the first column.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomCrop {
    /// Name of the picture, `[height, width, channels]` of any numbers.
    pub feature: String,
    /// Height and width of the part.
    pub size: [usize; 2],
}

impl Transform for RandomCrop {
    fn name(&self) -> String {
        "random_crop".into()
    }

    fn parameters(&self) -> String {
        format!("feature={:?}, size={:?}", self.feature, self.size)
    }

    fn is_random(&self) -> bool {
        true
    }

    fn check(&self) -> Result<()> {
        check_size(self.size)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        check_fits(input, &self.feature, self.size)?;
        resized_spec(input, &self.feature, ANY, known(self.size))
    }

    fn apply(&self, element: Element, generator: &mut Generator) -> Result<Element> {
        let image = Image::of(&element, &self.feature)?;
        let [height, width] = self.size;
        let (Some(down), Some(across)) = (image.height.checked_sub(height), image.width.checked_sub(width))
        else {
            return Err(too_small(
                &self.feature,
                known([image.height, image.width]),
                self.size,
            ));
        };
        let y = generator.below(down as u64 + 1) as usize;
        let x = generator.below(across as u64 + 1) as usize;
        image
            .cut(Rect { y, x, height, width })
            .put(element, &self.feature)
    }
}

/// Puts a border of one value around a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Pad {
    /// Name of the picture, `[height, width, channels]`, `uint8`, `uint16` or `float32`.
    pub feature: String,
    /// Pixels added at the top, at the right, at the bottom and at the left.
    pub border: [usize; 4],
    /// The value of all channels there: one that the picture's type can hold.
    pub value: f64,
}

const PADDED: &[DType] = &[DType::UInt8, DType::UInt16, DType::Float32];

impl Pad {
    /// The bytes of the border's value.
    fn sample(&self, dtype: DType) -> Result<Vec<u8>> {
        self.check()?;
        check_type(&self.feature, dtype, PADDED)?;
        let whole = |most: u32| {
            let fits = self.value.fract() == 0.0 && (0.0..=f64::from(most)).contains(&self.value);
            fits.then_some(self.value as u32).ok_or_else(|| {
                Error::Element(format!(
                    "`{}` is {dtype}, which cannot hold the border's value {}",
                    self.feature, self.value
                ))
            })
        };
        Ok(match dtype {
            DType::UInt8 => vec![whole(255)? as u8],
            DType::UInt16 => (whole(65_535)? as u16).to_le_bytes().to_vec(),
            _ => (self.value as f32).to_le_bytes().to_vec(),
        })
    }
}

impl Transform for Pad {
    fn name(&self) -> String {
        "pad".into()
    }

    fn parameters(&self) -> String {
        format!(
            "feature={:?}, border={:?}, value={:?}",
            self.feature, self.border, self.value
        )
    }

    fn check(&self) -> Result<()> {
        // Beyond this a picture is larger than any memory, so the border is a mistake.
        const MOST: usize = 1 << 20;
        if self.border.iter().any(|&pixels| pixels > MOST) {
            return Err(Error::Element(format!(
                "a border of {:?} pixels: wanted at most {MOST} each",
                self.border
            )));
        }
        Ok(())
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let (dtype, [height, width, _]) = spec_of(input, &self.feature)?;
        self.sample(dtype)?;
        let [top, right, bottom, left] = self.border.map(|pixels| pixels as u64);
        let size = [
            height.map(|rows| rows.saturating_add(top + bottom)),
            width.map(|columns| columns.saturating_add(left + right)),
        ];
        resized_spec(input, &self.feature, PADDED, size)
    }

    fn apply(&self, element: Element, _: &mut Generator) -> Result<Element> {
        let image = Image::of(&element, &self.feature)?;
        let sample = self.sample(image.dtype)?;
        let [top, right, bottom, left] = self.border;
        let height = image.height.saturating_add(top + bottom);
        let width = image.width.saturating_add(left + right);
        let (pixel, row) = (image.pixel_bytes(), image.width * image.pixel_bytes());
        let mut data = filled(&sample, &[height, width, image.channels])?;
        if row > 0 {
            let inside = data.chunks_exact_mut(width * pixel).skip(top);
            for (out, row_data) in inside.zip(image.data.chunks_exact(row)) {
                out[left * pixel..][..row].copy_from_slice(row_data);
            }
        }
        image.with(height, width, data).put(element, &self.feature)
    }
}

/// Which way a picture is mirrored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Left becomes right.
    Horizontal,
    /// Top becomes bottom.
    Vertical,
}

/// Mirrors a picture, with a probability.
///
/// Draws: `chance(probability)`; nothing where the probability is 1 or more, or 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Flip {
    /// Name of the picture, `[height, width, channels]` of any numbers.
    pub feature: String,
    /// Which way.
    pub direction: Direction,
    /// How likely: 0.5 for half of all pictures, 1.0 for all.
    pub probability: f64,
}

impl Flip {
    /// Half of all pictures, left to right.
    pub fn random(feature: impl Into<String>) -> Self {
        Self {
            feature: feature.into(),
            direction: Direction::Horizontal,
            probability: 0.5,
        }
    }

    /// Whether this time.
    pub(crate) fn draw(probability: f64, generator: &mut Generator) -> bool {
        probability >= 1.0 || (probability > 0.0 && generator.chance(probability))
    }
}

/// Mirrors rows of pixels of `pixel` bytes in place.
pub(crate) fn mirror_rows(data: &mut [u8], row: usize, pixel: usize) {
    for row in data.chunks_exact_mut(row) {
        match pixel {
            3 => row.as_chunks_mut::<3>().0.reverse(),
            1 => row.reverse(),
            _ => {
                let (mut left, mut right) = (0, row.len());
                while left + pixel < right {
                    right -= pixel;
                    for byte in 0..pixel {
                        row.swap(left + byte, right + byte);
                    }
                    left += pixel;
                }
            }
        }
    }
}

impl Transform for Flip {
    fn name(&self) -> String {
        match self.direction {
            Direction::Horizontal => "flip_horizontal".into(),
            Direction::Vertical => "flip_vertical".into(),
        }
    }

    fn parameters(&self) -> String {
        format!("feature={:?}, probability={:?}", self.feature, self.probability)
    }

    fn is_random(&self) -> bool {
        self.probability > 0.0 && self.probability < 1.0
    }

    fn check(&self) -> Result<()> {
        if (0.0..=1.0).contains(&self.probability) {
            return Ok(());
        }
        Err(Error::Element(format!(
            "a probability of {}: wanted 0 to 1",
            self.probability
        )))
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let (_, [height, width, _]) = spec_of(input, &self.feature)?;
        resized_spec(input, &self.feature, ANY, [height, width])
    }

    fn apply(&self, element: Element, generator: &mut Generator) -> Result<Element> {
        let image = Image::of(&element, &self.feature)?;
        if !Self::draw(self.probability, generator) || image.data.is_empty() {
            return Ok(element);
        }
        let row = image.width * image.pixel_bytes();
        let data = match self.direction {
            Direction::Horizontal => {
                let mut data = image.data.to_vec();
                mirror_rows(&mut data, row, image.pixel_bytes());
                data
            }
            Direction::Vertical => image.data.rchunks_exact(row).flatten().copied().collect(),
        };
        image
            .with(image.height, image.width, data)
            .put(element, &self.feature)
    }
}
