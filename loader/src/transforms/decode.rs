//! Files of pictures to pixels.

use std::cell::RefCell;

use prep_formats::jpeg::{self, Region, Scale, View};
use prep_formats::png;
use prep_formats::value::DType;

use super::crop::{Flip, mirror_rows};
use super::image::{check_made, known};
use super::resample::{Pixels, Span, enclosing};
use super::resize::{RandomResizedCrop, resize_bytes};
use crate::element::{Array, Element, ElementSpec, sizes_text};
use crate::error::{Error, Result};
use crate::recycle::filled;
use crate::transform::{Generator, Transform};

/// What a thread keeps from one picture to the next.
struct Decoders {
    jpeg: jpeg::Decoder,
    png: png::Decoder,
    /// The pixels of a part before it is resized.
    part: Vec<u8>,
}

thread_local! {
    static DECODERS: RefCell<Decoders> = RefCell::new(Decoders {
        jpeg: jpeg::Decoder::new(),
        png: png::Decoder::new(),
        part: Vec::new(),
    });
}

/// The kinds of files that are decoded.
enum Kind {
    Jpeg,
    Png,
}

impl Kind {
    fn of(feature: &str, file: &[u8]) -> Result<Self> {
        match file {
            [0xff, 0xd8, ..] => Ok(Self::Jpeg),
            [0x89, b'P', b'N', b'G', ..] => Ok(Self::Png),
            [] => Err(Error::Element(format!(
                "`{feature}` is empty, wanted a JPEG or PNG file"
            ))),
            _ => Err(Error::Element(format!(
                "`{feature}` is neither a JPEG nor a PNG file: it begins with `{}`",
                file[..file.len().min(8)].escape_ascii()
            ))),
        }
    }
}

/// Names the feature of an error about its bytes.
fn named(feature: &str) -> impl Fn(prep_formats::Error) -> Error {
    move |error| Error::Element(format!("could not decode `{feature}`: {error}"))
}

/// The encoded bytes of a name.
fn file_of<'a>(element: &'a Element, feature: &str) -> Result<&'a [u8]> {
    let array = element.array(feature)?;
    let file = array.as_string().map(|file| &file[..]);
    file.ok_or_else(|| {
        Error::Element(format!(
            "`{feature}` is {} {:?}, wanted one byte string: a JPEG or PNG file",
            array.dtype(),
            array.shape()
        ))
    })
}

/// The spec after decoding.
fn decoded_spec(
    input: &ElementSpec,
    feature: &str,
    dtype: DType,
    shape: [Option<u64>; 3],
) -> Result<ElementSpec> {
    let field = input.field(feature)?;
    if field.dtype != DType::String || !field.shape.is_empty() {
        return Err(Error::Element(format!(
            "`{feature}` is {} {}, wanted one byte string: a JPEG or PNG file. A dataset decodes its pictures unless it is opened with \
             encoded ones",
            field.dtype,
            sizes_text(&field.shape)
        )));
    }
    let mut spec = input.clone();
    spec.set(feature, dtype, shape);
    Ok(spec)
}

fn check_channels(channels: Option<u8>, most: u8) -> Result<()> {
    match channels {
        Some(channels) if !(1..=most).contains(&channels) => {
            Err(Error::Element(format!("{channels} channels: wanted 1 to {most}")))
        }
        _ => Ok(()),
    }
}

/// Decodes a JPEG or PNG file to pixels `[height, width, channels]`.
///
/// The pixels are those of Pillow (its libjpeg-turbo) to the bit; see [`prep_formats::jpeg`] and [`prep_formats::png`] for the kinds of files
/// and how channels are converted. Other libraries' JPEG decoders may differ by a few levels of 255.
///
/// # Examples
/// ```no_run
/// use prep_loader::element::{Array, Element};
/// use prep_loader::transform::{Generator, Transform};
/// use prep_loader::transforms::DecodeImage;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut element = Element::new();
/// element.set("image", Array::string(std::fs::read("photo.jpg")?));
/// let element = DecodeImage::rgb("image").apply(element, &mut Generator::new(0, "decode", 0))?;
/// // uint8[height, width, 3]
/// println!("{:?}", element.array("image")?.shape());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeImage {
    /// Name of the file, one byte string.
    pub feature: String,
    /// Channels wanted; `None` takes the file's own, so the shape is known once it is decoded only.
    pub channels: Option<u8>,
    /// [`DType::UInt8`], or [`DType::UInt16`] for PNG files of 16 bits.
    pub dtype: DType,
}

impl DecodeImage {
    /// Three channels of 8 bits.
    pub fn rgb(feature: impl Into<String>) -> Self {
        Self {
            feature: feature.into(),
            channels: Some(3),
            dtype: DType::UInt8,
        }
    }
}

impl Transform for DecodeImage {
    fn name(&self) -> String {
        "decode_image".into()
    }

    fn parameters(&self) -> String {
        format!(
            "feature={:?}, channels={:?}, dtype={}",
            self.feature, self.channels, self.dtype
        )
    }

    fn check(&self) -> Result<()> {
        check_made(&self.feature, self.dtype, &[DType::UInt8, DType::UInt16])?;
        check_channels(self.channels, 4)
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        decoded_spec(
            input,
            &self.feature,
            self.dtype,
            [None, None, self.channels.map(u64::from)],
        )
    }

    fn apply(&self, mut element: Element, _: &mut Generator) -> Result<Element> {
        self.check()?;
        let file = file_of(&element, &self.feature)?;
        let kind = Kind::of(&self.feature, file)?;
        let mut pixels = Vec::new();
        let shape = DECODERS.with_borrow_mut(|decoders| match kind {
            Kind::Jpeg if self.dtype == DType::UInt8 => {
                let view = self
                    .channels
                    .map_or(View::whole(), |channels| View::whole().with_channels(channels));
                decoders
                    .jpeg
                    .decode_append(file, &view, &mut pixels)
                    .map_err(named(&self.feature))
            }
            Kind::Jpeg => Err(Error::Element(format!(
                "`{}` is a JPEG file, which holds uint8, not uint16",
                self.feature
            ))),
            Kind::Png => {
                let bits = if self.dtype == DType::UInt16 { 16 } else { 8 };
                let decoded = decoders.png.decode_append(file, self.channels, bits, &mut pixels);
                let info = decoded.map_err(named(&self.feature))?;
                Ok([
                    info.height as usize,
                    info.width as usize,
                    usize::from(info.channels),
                ])
            }
        })?;
        element.set(&*self.feature, Array::new(self.dtype, shape, pixels)?);
        Ok(element)
    }
}

/// [`DecodeImage`], [`RandomResizedCrop`] and a horizontal [`Flip`] in one: of a JPEG file only the crop is decoded.
///
/// The result is that of the three, to the bit, where they draw the same numbers; only `dct_scaling` changes it. Draws as
/// [`RandomResizedCrop`], then as [`Flip`]. Damage below the crop is not noticed.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeRandomResizedCrop {
    /// What is cut out, and its size. Its feature is the name of the file, one byte string.
    pub crop: RandomResizedCrop,
    /// How likely the result is mirrored: 0.5 for half of all pictures.
    pub flip: f64,
    /// 1 or 3.
    pub channels: u8,
    /// Whether a JPEG file is decoded at a half, a quarter or an eighth where the crop is still as large as the result: faster for large
    /// pictures. The pixels then differ by a few levels of 255, as another antialias would make them.
    pub dct_scaling: bool,
}

impl DecodeRandomResizedCrop {
    /// As torchvision trains on ImageNet: [`RandomResizedCrop::to`], half of all flipped, RGB, without DCT scaling.
    pub fn to(feature: impl Into<String>, size: [usize; 2]) -> Self {
        Self {
            crop: RandomResizedCrop::to(feature, size),
            flip: 0.5,
            channels: 3,
            dct_scaling: false,
        }
    }

    /// At which scale to decode a part of `height` by `width`.
    fn scale(&self, [height, width]: [usize; 2]) -> Scale {
        let fits = |scale: &&Scale| {
            let divisor = scale.divisor() as usize;
            height >= self.crop.size[0] * divisor && width >= self.crop.size[1] * divisor
        };
        let smallest = Scale::ALL.iter().rev().find(fits);
        *smallest.filter(|_| self.dct_scaling).unwrap_or(&Scale::Whole)
    }
}

impl Transform for DecodeRandomResizedCrop {
    fn name(&self) -> String {
        "decode_random_resized_crop".into()
    }

    fn parameters(&self) -> String {
        format!(
            "feature={:?}, {}, flip={:?}, channels={}, dct_scaling={}",
            self.crop.feature,
            self.crop.describe(),
            self.flip,
            self.channels,
            self.dct_scaling
        )
    }

    fn is_random(&self) -> bool {
        true
    }

    fn check(&self) -> Result<()> {
        if !matches!(self.channels, 1 | 3) || !(0.0..=1.0).contains(&self.flip) {
            return Err(Error::Element(format!(
                "{} channels and a probability of {} to flip: wanted 1 or 3, and 0 to 1",
                self.channels, self.flip
            )));
        }
        self.crop.check()
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        let [height, width] = known(self.crop.size);
        decoded_spec(
            input,
            &self.crop.feature,
            DType::UInt8,
            [height, width, Some(u64::from(self.channels))],
        )
    }

    fn apply(&self, mut element: Element, generator: &mut Generator) -> Result<Element> {
        self.check()?;
        let feature = &self.crop.feature;
        let file = file_of(&element, feature)?;
        let kind = Kind::of(feature, file)?;
        let channels = usize::from(self.channels);
        let [height, width] = self.crop.size;
        let mut out = filled(&[0], &[height, width, channels])?;
        DECODERS.with_borrow_mut(|decoders| -> Result<()> {
            decoders.part.clear();
            // The decoded pixels' width, and the part in them.
            let (row, spans) = match kind {
                Kind::Jpeg => {
                    let info = jpeg::Info::read(file).map_err(named(feature))?;
                    let part = self
                        .crop
                        .draw(info.height as usize, info.width as usize, generator);
                    let scale = self.scale([part.height, part.width]);
                    let smaller = |pixels: usize| pixels as f64 / f64::from(scale.divisor());
                    let sides = [
                        (smaller(part.y), smaller(part.height)),
                        (smaller(part.x), smaller(part.width)),
                    ];
                    let (rect, spans) = enclosing(
                        sides,
                        scale.apply(info.height) as usize,
                        scale.apply(info.width) as usize,
                    );
                    let region = Region {
                        x: rect.x as u32,
                        y: rect.y as u32,
                        width: rect.width as u32,
                        height: rect.height as u32,
                    };
                    let view = View::of(region).with_scale(scale).with_channels(self.channels);
                    let decoded = decoders.jpeg.decode_append(file, &view, &mut decoders.part);
                    decoded.map_err(named(feature))?;
                    (rect.width, spans)
                }
                Kind::Png => {
                    let mut whole = Vec::new();
                    let decoded = decoders
                        .png
                        .decode_append(file, Some(self.channels), 8, &mut whole);
                    let info = decoded.map_err(named(feature))?;
                    let part = self
                        .crop
                        .draw(info.height as usize, info.width as usize, generator);
                    let stride = info.width as usize * channels;
                    for row in whole.chunks_exact(stride).skip(part.y).take(part.height) {
                        decoders
                            .part
                            .extend_from_slice(&row[part.x * channels..][..part.width * channels]);
                    }
                    (part.width, [Span::whole(part.height), Span::whole(part.width)])
                }
            };
            let is_mirrored = Flip::draw(self.flip, generator);
            let filter = self.crop.method.filter(self.crop.antialias);
            let is_same_size = spans.map(|span| span.length) == [height as f64, width as f64]
                && decoders.part.len() == out.len();
            if is_same_size {
                out.copy_from_slice(&decoders.part);
                if is_mirrored {
                    mirror_rows(&mut out, width * channels, channels);
                }
                return Ok(());
            }
            let source = Pixels {
                data: &decoders.part,
                width: row,
                channels,
            };
            resize_bytes(source, filter, spans, self.crop.size, is_mirrored, &mut out)
        })?;
        element.set(
            &**feature,
            Array::new(DType::UInt8, [height, width, channels], out)?,
        );
        Ok(element)
    }
}
