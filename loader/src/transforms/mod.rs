//! Ready transforms, in native code: pictures, numbers, and the names of an element.
//!
//! Each is a struct whose public fields are its parameters, and a [`Transform`](crate::transform::Transform) for `map` or, where it
//! draws, for `random_map`. Nothing but the element, the fields and the generator decides what comes out.
//!
//! | transform | what it does | as |
//! | --- | --- | --- |
//! | [`DecodeImage`] | PNG or JPEG file to pixels | Pillow, to the bit |
//! | [`DecodeRandomResizedCrop`] | file to a random crop, resized and flipped; decodes no more than the crop | the three stages, to the bit |
//! | [`Resize`] | another size | Pillow (antialias), OpenCV (without), within 1 of 255 |
//! | [`RandomResizedCrop`] | a random part in a fixed size | torchvision |
//! | [`RandomCrop`], [`CenterCrop`], [`Crop`] | a part | torchvision |
//! | [`Pad`] | a border | torchvision, NumPy's `constant` |
//! | [`Flip`] | mirrored, always or by chance | torchvision |
//! | [`ColorJitter`] | brightness, contrast, saturation, hue, in random order | torchvision on Pillow pictures |
//! | [`Normalize`] | `(x / divisor - mean) / std` as float32, channels last or first | torchvision |
//! | [`Cast`] | numbers of another type | NumPy, but nothing wraps |
//! | [`OneHot`] | labels to rows with a single 1 | `jax.nn.one_hot`, but a wrong label is an error |
//! | [`PadOrTruncate`] | a fixed shape | |
//! | [`Select`], [`Drop`], [`Rename`] | which values, and their names | |
//!
//! Pictures are arrays `[height, width, channels]`. Which random numbers a transform draws, and in which order, is written at each;
//! that is part of the pipeline's meaning and stays.
//!
//! # Examples
//! ```
//! use prep_formats::value::DType;
//! use prep_loader::element::{Array, Element};
//! use prep_loader::transform::{Generator, Transform};
//! use prep_loader::transforms::{Flip, Normalize, Resize};
//!
//! let mut element = Element::new();
//! element.set("image", Array::new(DType::UInt8, [4, 6, 3], vec![255; 72])?);
//! let mut generator = Generator::new(42, "flip", 0);
//! let stages: [Box<dyn Transform>; 3] = [
//!     Box::new(Resize::to("image", [2, 3])),
//!     Box::new(Flip::random("image")),
//!     Box::new(Normalize::imagenet("image")),
//! ];
//! for stage in &stages {
//!     element = stage.apply(element, &mut generator)?;
//! }
//! let image = element.array("image")?;
//! assert_eq!((image.dtype(), image.shape()), (DType::Float32, &[2, 3, 3][..]));
//! let first: Vec<f32> = image.to_vec().unwrap();
//! assert_eq!(first[0], (1.0 - 0.485) / 0.229);
//! # Ok::<(), prep_loader::Error>(())
//! ```

mod arrays;
mod colour;
mod crop;
mod decode;
mod image;
mod normalise;
mod resample;
mod resize;
#[cfg(test)]
mod tests;

pub use arrays::{Cast, Drop, OneHot, PadOrTruncate, Rename, Select};
pub use colour::ColorJitter;
pub use crop::{CenterCrop, Crop, Direction, Flip, Pad, RandomCrop};
pub use decode::{DecodeImage, DecodeRandomResizedCrop};
pub use normalise::{Layout, Normalize};
pub use resize::{Method, RandomResizedCrop, Resize};
