//! A picture in an element: what the transforms of pictures share.

use bytes::Bytes;
use prep_formats::value::DType;

use crate::element::{Array, Element, ElementSpec, sizes_text};
use crate::error::{Error, Result};

/// A picture `[height, width, channels]` and its bytes, row by row.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub(crate) dtype: DType,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) data: Bytes,
}

fn wrong(feature: &str, found: &str) -> Error {
    Error::Element(format!(
        "`{feature}` is {found}, wanted a picture: numbers of shape [height, width, channels]"
    ))
}

impl Image {
    /// The picture of a name.
    pub(crate) fn of(element: &Element, feature: &str) -> Result<Self> {
        let array = element.array(feature)?;
        match (array.bytes(), array.shape()) {
            (Some(data), &[height, width, channels]) => Ok(Self {
                dtype: array.dtype(),
                height,
                width,
                channels,
                data: data.clone(),
            }),
            _ => Err(wrong(feature, &format!("{} {:?}", array.dtype(), array.shape()))),
        }
    }

    /// The same, whose samples are of one of some types, and of which there are some.
    pub(crate) fn of_types(element: &Element, feature: &str, types: &[DType]) -> Result<Self> {
        let image = Self::of(element, feature)?;
        check_type(feature, image.dtype, types)?;
        if image.data.is_empty() {
            return Err(Error::Element(format!(
                "`{feature}` is a picture without pixels: {:?}",
                [image.height, image.width, image.channels]
            )));
        }
        Ok(image)
    }

    /// Bytes of a pixel.
    pub(crate) fn pixel_bytes(&self) -> usize {
        self.channels * self.dtype.num_bytes()
    }

    /// Puts it in the place of another.
    pub(crate) fn put(self, mut element: Element, feature: &str) -> Result<Element> {
        element.set(
            feature,
            Array::new(self.dtype, [self.height, self.width, self.channels], self.data)?,
        );
        Ok(element)
    }

    /// A picture of the same kind and another size.
    pub(crate) fn with(&self, height: usize, width: usize, data: Vec<u8>) -> Self {
        Self {
            height,
            width,
            data: data.into(),
            ..*self
        }
    }
}

impl Image {
    /// The pixels of a rectangle that lies inside.
    pub(crate) fn cut(&self, part: Rect) -> Self {
        if (part.height, part.width) == (self.height, self.width) {
            return self.clone();
        }
        let (pixel, stride) = (self.pixel_bytes(), self.width * self.pixel_bytes());
        let mut data = Vec::with_capacity(part.height * part.width * pixel);
        for row in part.y..part.y + part.height {
            data.extend_from_slice(&self.data[row * stride + part.x * pixel..][..part.width * pixel]);
        }
        self.with(part.height, part.width, data)
    }
}

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rect {
    pub(crate) y: usize,
    pub(crate) x: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
}

pub(crate) fn check_type(feature: &str, dtype: DType, types: &[DType]) -> Result<()> {
    if types.contains(&dtype) {
        return Ok(());
    }
    Err(Error::Element(format!(
        "`{feature}` is {dtype}, wanted {}",
        names(types)
    )))
}

/// Checks the type that a transform is to make.
pub(crate) fn check_made(feature: &str, dtype: DType, types: &[DType]) -> Result<()> {
    if types.contains(&dtype) {
        return Ok(());
    }
    Err(Error::Element(format!(
        "`{feature}` cannot become {dtype}, which is not supported here, wanted {}",
        names(types)
    )))
}

fn names(types: &[DType]) -> String {
    let names: Vec<&str> = types.iter().map(|dtype| dtype.name()).collect();
    names.join(" or ")
}

/// A size that is fixed, as a spec says it.
pub(crate) fn known(size: [usize; 2]) -> [Option<u64>; 2] {
    size.map(|side| Some(side as u64))
}

/// Dtype and shape of a picture in a spec.
pub(crate) fn spec_of(spec: &ElementSpec, feature: &str) -> Result<(DType, [Option<u64>; 3])> {
    let field = spec.field(feature)?;
    match field.shape[..] {
        [height, width, channels] if field.dtype != DType::String => {
            Ok((field.dtype, [height, width, channels]))
        }
        _ => Err(wrong(
            feature,
            &format!("{} {}", field.dtype, sizes_text(&field.shape)),
        )),
    }
}

/// The spec after a transform that gives pictures of one size, of the types it takes.
pub(crate) fn resized_spec(
    input: &ElementSpec,
    feature: &str,
    types: &[DType],
    [height, width]: [Option<u64>; 2],
) -> Result<ElementSpec> {
    let (dtype, [_, _, channels]) = spec_of(input, feature)?;
    check_type(feature, dtype, types)?;
    let mut spec = input.clone();
    spec.set(feature, dtype, [height, width, channels]);
    Ok(spec)
}
