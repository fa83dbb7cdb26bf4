//! Transforms of Rust's by the names and parameters of `prep.transforms`.

use std::sync::Arc;

use prep_formats::value::DType;
use prep_loader::transform::Transform;
use prep_loader::transforms::{
    Cast, CenterCrop, ColorJitter, Crop, DecodeImage, DecodeRandomResizedCrop, Direction, Drop, Flip, Layout,
    Method, Normalize, OneHot, Pad, PadOrTruncate, RandomCrop, RandomResizedCrop, Rename, Resize, Select,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Kind;

/// The parameters of a transform.
struct Parameters<'a, 'py> {
    name: &'a str,
    values: &'a Bound<'py, PyDict>,
}

impl<'py> Parameters<'_, 'py> {
    fn get<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<T> {
        let value = self.values.get_item(name)?;
        let value = value
            .ok_or_else(|| Kind::Internal.error(format!("`{}` comes without its `{name}`", self.name)))?;
        let extracted: Result<T, T::Error> = value.extract();
        extracted.map_err(|error| {
            let error: PyErr = error.into();
            let found = value
                .repr()
                .map_or_else(|_| "something".into(), |text| text.to_string());
            PyTypeError::new_err(format!("`{name}` of `{}` is {found}: {error}", self.name))
        })
    }

    fn feature(&self) -> PyResult<String> {
        self.get("feature")
    }

    fn dtype(&self) -> PyResult<DType> {
        let name: String = self.get("dtype")?;
        DType::from_name(&name)
            .ok_or_else(|| self.refused("dtype", &name, "an element type such as `float32`"))
    }

    fn method(&self) -> PyResult<Method> {
        let name: String = self.get("method")?;
        match name.as_str() {
            "nearest" => Ok(Method::Nearest),
            "bilinear" => Ok(Method::Bilinear),
            "bicubic" => Ok(Method::Bicubic),
            "area" => Ok(Method::Area),
            _ => Err(self.refused("method", &name, "`nearest`, `bilinear`, `bicubic` or `area`")),
        }
    }

    fn refused(&self, parameter: &str, found: &str, wanted: &str) -> PyErr {
        Kind::Invalid.error(format!(
            "`{parameter}` of `{}` is `{found}`, wanted {wanted}",
            self.name
        ))
    }

    fn random_resized_crop(&self) -> PyResult<RandomResizedCrop> {
        Ok(RandomResizedCrop {
            feature: self.feature()?,
            size: self.get("size")?,
            scale: self.get("scale")?,
            ratio: self.get("ratio")?,
            method: self.method()?,
            antialias: self.get("antialias")?,
        })
    }
}

/// The transform of a class of `prep.transforms`.
pub(crate) fn transform_of(name: &str, values: &Bound<'_, PyDict>) -> PyResult<Arc<dyn Transform>> {
    let own = Parameters { name, values };
    Ok(match name {
        "DecodeImage" => Arc::new(DecodeImage {
            feature: own.feature()?,
            channels: own.get("channels")?,
            dtype: own.dtype()?,
        }),
        "DecodeRandomResizedCrop" => Arc::new(DecodeRandomResizedCrop {
            crop: own.random_resized_crop()?,
            flip: own.get("flip")?,
            channels: own.get("channels")?,
            dct_scaling: own.get("dct_scaling")?,
        }),
        "Resize" => Arc::new(Resize {
            feature: own.feature()?,
            size: own.get("size")?,
            method: own.method()?,
            antialias: own.get("antialias")?,
        }),
        "RandomResizedCrop" => Arc::new(own.random_resized_crop()?),
        "RandomCrop" => Arc::new(RandomCrop {
            feature: own.feature()?,
            size: own.get("size")?,
        }),
        "CenterCrop" => Arc::new(CenterCrop {
            feature: own.feature()?,
            size: own.get("size")?,
        }),
        "Crop" => Arc::new(Crop {
            feature: own.feature()?,
            top: own.get("top")?,
            left: own.get("left")?,
            size: own.get("size")?,
        }),
        "Pad" => Arc::new(Pad {
            feature: own.feature()?,
            border: own.get("border")?,
            value: own.get("value")?,
        }),
        "Flip" => {
            let direction: String = own.get("direction")?;
            Arc::new(Flip {
                feature: own.feature()?,
                direction: match direction.as_str() {
                    "horizontal" => Direction::Horizontal,
                    "vertical" => Direction::Vertical,
                    _ => return Err(own.refused("direction", &direction, "`horizontal` or `vertical`")),
                },
                probability: own.get("probability")?,
            })
        }
        "ColorJitter" => Arc::new(ColorJitter {
            feature: own.feature()?,
            brightness: own.get("brightness")?,
            contrast: own.get("contrast")?,
            saturation: own.get("saturation")?,
            hue: own.get("hue")?,
        }),
        "Normalize" => {
            let layout: String = own.get("layout")?;
            Arc::new(Normalize {
                feature: own.feature()?,
                divisor: own.get("divisor")?,
                mean: own.get("mean")?,
                std: own.get("std")?,
                layout: match layout.as_str() {
                    "channels_last" => Layout::ChannelsLast,
                    "channels_first" => Layout::ChannelsFirst,
                    _ => return Err(own.refused("layout", &layout, "`channels_last` or `channels_first`")),
                },
            })
        }
        "Cast" => Arc::new(Cast {
            feature: own.feature()?,
            dtype: own.dtype()?,
        }),
        "OneHot" => Arc::new(OneHot {
            feature: own.feature()?,
            depth: own.get("depth")?,
            dtype: own.dtype()?,
        }),
        "PadOrTruncate" => Arc::new(PadOrTruncate {
            feature: own.feature()?,
            shape: own.get("shape")?,
            value: own.get("value")?,
        }),
        "Select" => Arc::new(Select {
            features: own.get("features")?,
        }),
        "Drop" => Arc::new(Drop {
            features: own.get("features")?,
        }),
        "Rename" => Arc::new(Rename {
            names: own.get("names")?,
        }),
        _ => return Err(Kind::Internal.error(format!("no transform is called `{name}`"))),
    })
}
