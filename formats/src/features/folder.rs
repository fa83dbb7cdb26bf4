//! `features.json` and the label files beside it.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use crate::features::{Feature, Features};
use crate::value::DType;
use crate::{Error, Position, Result, json};

/// Name of the schema's file in a TFDS folder.
const FILE_NAME: &str = "features.json";

/// Where TFDS's connectors live.
const MODULE: &str = "tensorflow_datasets.core.features";

impl Features {
    /// Reads the schema of a TFDS folder: `features.json` and `*.labels.txt`.
    ///
    /// # Errors
    /// A file that cannot be read, JSON that is no schema, a kind of feature that this version does not know.
    pub fn read_folder(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE_NAME);
        let name = path.display().to_string();
        let text = std::fs::read_to_string(&path).map_err(|source| Error::Io {
            path: name.clone(),
            action: "read",
            source,
        })?;
        Self::from_files(&name, &text, |file_name| {
            let path = folder.join(file_name);
            match std::fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(source) => Err(Error::Io {
                    path: path.display().to_string(),
                    action: "read",
                    source,
                }),
            }
        })
    }

    /// Reads a schema from the text of `features.json`; `read` gives the text of a label file beside it, `None` where there is none.
    ///
    /// `path` is how errors name the text. Understands what TFDS 4.9 writes, and the forms before that.
    ///
    /// # Errors
    /// As [`Features::read_folder`].
    pub fn from_files(
        path: &str,
        text: &str,
        mut read: impl FnMut(&str) -> Result<Option<String>>,
    ) -> Result<Self> {
        let place = Position {
            path: path.to_string(),
            ..Position::default()
        };
        let parsed: Json = serde_json::from_str(text)
            .map_err(|error| Error::damaged(format!("not JSON: {error}")).with_position(&place))?;
        let mut parse = || -> Result<Self> {
            let (class, content) = unwrap(&parsed, "featuresDict")?;
            if class != "FeaturesDict" {
                return Err(Error::unsupported(format!(
                    "the schema is a `{class}` at its top, wanted a `FeaturesDict`"
                )));
            }
            // Before there was a message for it, the features were the content.
            let features = content.get("features").unwrap_or(content);
            let features = match features {
                Json::Object(features) => features.clone(),
                _ => Map::new(),
            };
            let mut all = Vec::with_capacity(features.len());
            for (name, value) in &features {
                let mut feature =
                    parse_feature(value).map_err(|error| crate::example::in_feature(name, error))?;
                if let Feature::ClassLabel { num_classes, names } = &mut feature
                    && let Some(text) = read(&label_file(name))?
                {
                    *names = text
                        .split('\n')
                        .map(str::trim)
                        .filter(|name| !name.is_empty())
                        .map(str::to_string)
                        .collect();
                    if *num_classes == 0 {
                        *num_classes = names.len() as u64;
                    }
                }
                all.push((name.clone(), feature));
            }
            Self::new(all).map_err(|error| match error {
                Error::Invalid(reason) => Error::damaged(reason),
                other => other,
            })
        };
        parse().map_err(|error| error.with_position(&place))
    }

    /// The files of a TFDS folder that describe this schema: (`features.json`, text), (`label.labels.txt`, text) and so on.
    /// Byte for byte what TFDS 4.9 writes.
    pub fn to_files(&self) -> Vec<(String, String)> {
        let mut files = vec![(FILE_NAME.to_string(), json::dump(&self.to_json(false), Some(4)))];
        for (name, feature) in self.iter() {
            if let Feature::ClassLabel { names, .. } = feature
                && !names.is_empty()
            {
                files.push((label_file(name), names.join("\n") + "\n"));
            }
        }
        files
    }

    /// A canonical one-line JSON of the schema, label names included: what fingerprints are made over.
    pub fn canonical_json(&self) -> String {
        json::dump(&self.to_json(true), None)
    }

    fn to_json(&self, with_names: bool) -> Json {
        let features: Map<String, Json> = self
            .iter()
            .map(|(name, feature)| (name.to_string(), feature_json(feature, with_names)))
            .collect();
        let content = if features.is_empty() {
            json!({})
        } else {
            json!({"features": features})
        };
        json!({"featuresDict": content, "pythonClassName": format!("{MODULE}.features_dict.FeaturesDict")})
    }
}

/// Source: `get_names_filepath` and `convert_feature_name_to_filename` in TFDS.
fn label_file(name: &str) -> String {
    format!("{}.labels.txt", name.replace('/', "."))
}

fn feature_json(feature: &Feature, with_names: bool) -> Json {
    let (key, class, content) = match feature {
        Feature::Tensor { shape, dtype } => (
            "tensor",
            "tensor_feature.Tensor",
            json!({"dtype": dtype.name(), "encoding": "none", "shape": shape_json(shape)}),
        ),
        Feature::Scalar { dtype } => (
            "tensor",
            "scalar.Scalar",
            json!({"dtype": dtype.name(), "encoding": "none", "shape": {}}),
        ),
        Feature::Text => ("text", "text_feature.Text", json!({})),
        Feature::ClassLabel { num_classes, names } => {
            let mut content = Map::new();
            if *num_classes > 0 {
                content.insert("numClasses".into(), num_classes.to_string().into());
            }
            if with_names && !names.is_empty() {
                content.insert("names".into(), names.clone().into());
            }
            (
                "classLabel",
                "class_label_feature.ClassLabel",
                Json::Object(content),
            )
        }
        Feature::Image {
            shape,
            dtype,
            encoding_format,
        } => {
            let mut content = json!({"dtype": dtype.name(), "shape": shape_json(shape)});
            if let Some(format) = encoding_format {
                content["encodingFormat"] = format.clone().into();
            }
            ("image", "image_feature.Image", content)
        }
    };
    json!({"pythonClassName": format!("{MODULE}.{class}"), key: content})
}

fn shape_json(shape: &[Option<u64>]) -> Json {
    if shape.is_empty() {
        return json!({});
    }
    let dimensions: Vec<String> = shape
        .iter()
        .map(|size| size.map_or_else(|| "-1".to_string(), |size| size.to_string()))
        .collect();
    json!({"dimensions": dimensions})
}

/// The class of a feature, without its module, and the message under `key` or the content of older forms.
fn unwrap<'a>(value: &'a Json, key: &str) -> Result<(&'a str, &'a Json)> {
    const NOTHING: &Json = &Json::Null;
    let class = value
        .get("pythonClassName")
        .or_else(|| value.get("python_class_name"))
        .or_else(|| value.get("type"))
        .and_then(Json::as_str)
        .ok_or_else(|| Error::damaged("no `pythonClassName`: not a feature of TFDS"))?;
    let Some(name) = class
        .strip_prefix("tensorflow_datasets.")
        .and_then(|class| class.rsplit('.').next())
    else {
        return Err(Error::unsupported(format!(
            "class `{class}` is not one of TFDS's features"
        )));
    };
    let content = value.get(key).or_else(|| value.get("content")).unwrap_or(NOTHING);
    Ok((name, content))
}

fn parse_feature(value: &Json) -> Result<Feature> {
    let (class, _) = unwrap(value, "")?;
    match class {
        "Tensor" | "Scalar" => {
            let (_, content) = unwrap(value, "tensor")?;
            let dtype = parse_dtype(content)?;
            match content.get("encoding").and_then(Json::as_str) {
                None | Some("none" | "") => {}
                Some(encoding) => {
                    return Err(Error::unsupported(format!(
                        "class `{class}` with encoding `{encoding}`; this version reads `none`"
                    )));
                }
            }
            if content.get("optional") == Some(&Json::Bool(true)) {
                return Err(Error::unsupported(format!(
                    "class `{class}` that is optional; this version reads features that every example has"
                )));
            }
            Ok(match class {
                "Scalar" => Feature::Scalar { dtype },
                _ => Feature::Tensor {
                    shape: parse_shape(content)?,
                    dtype,
                },
            })
        }
        "Text" => {
            let (_, content) = unwrap(value, "text")?;
            if content.get("use_encoder") == Some(&Json::Bool(true)) {
                return Err(Error::unsupported(
                    "class `Text` with an encoder, which TFDS gave up; build the dataset's plain text config",
                ));
            }
            Ok(Feature::Text)
        }
        "ClassLabel" => {
            let (_, content) = unwrap(value, "classLabel")?;
            let number = content.get("numClasses").or_else(|| content.get("num_classes"));
            let num_classes = match number {
                None | Some(Json::Null) => 0,
                Some(number) => parse_number(number)
                    .and_then(|number| u64::try_from(number).ok())
                    .ok_or_else(|| Error::damaged(format!("number of classes is {number}")))?,
            };
            Ok(Feature::ClassLabel {
                num_classes,
                names: Vec::new(),
            })
        }
        "Image" => {
            let (_, content) = unwrap(value, "image")?;
            let format = content
                .get("encodingFormat")
                .or_else(|| content.get("encoding_format"));
            Ok(Feature::Image {
                shape: parse_shape(content)?,
                dtype: parse_dtype(content)?,
                encoding_format: format
                    .and_then(Json::as_str)
                    .filter(|format| !format.is_empty())
                    .map(str::to_string),
            })
        }
        _ => Err(Error::unsupported(format!(
            "class `{class}` is not supported; this version reads Image, ClassLabel, Text, Scalar and Tensor"
        ))),
    }
}

fn parse_dtype(content: &Json) -> Result<DType> {
    let name = content.get("dtype").and_then(Json::as_str).unwrap_or("");
    DType::from_name(name).ok_or_else(|| Error::unsupported(format!("dtype `{name}` is not known")))
}

/// A shape message, or the list of older forms. Unknown dimensions are -1 or null.
fn parse_shape(content: &Json) -> Result<Vec<Option<u64>>> {
    let shape = match content.get("shape") {
        None | Some(Json::Null) => return Ok(Vec::new()),
        Some(shape) => shape,
    };
    let dimensions = match shape.get("dimensions").unwrap_or(shape) {
        Json::Array(dimensions) => dimensions,
        Json::Object(empty) if empty.is_empty() => return Ok(Vec::new()),
        other => return Err(Error::damaged(format!("shape is {other}"))),
    };
    dimensions
        .iter()
        .map(|dimension| match parse_number(dimension) {
            _ if dimension.is_null() => Ok(None),
            Some(-1) => Ok(None),
            Some(size) if size >= 0 => Ok(Some(size.cast_unsigned())),
            _ => Err(Error::damaged(format!("dimension is {dimension}"))),
        })
        .collect()
}

/// A 64-bit integer, as Protocol Buffers' JSON has them: in quotes, or not.
fn parse_number(value: &Json) -> Option<i64> {
    match value {
        Json::String(text) => text.parse().ok(),
        other => other.as_i64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders() -> Vec<std::path::PathBuf> {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/features");
        let mut folders: Vec<_> = std::fs::read_dir(golden)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .collect();
        folders.sort();
        folders
    }

    #[test]
    fn files_of_tfds_come_back_byte_for_byte() {
        let mut seen = 0;
        for folder in folders() {
            if folder.ends_with("kitchen_sink") {
                continue;
            }
            let features = Features::read_folder(&folder).unwrap();
            for (name, text) in features.to_files() {
                let wanted = std::fs::read_to_string(folder.join(&name)).unwrap();
                assert_eq!(text, wanted, "{}/{name}", folder.display());
                seen += 1;
            }
            let again = Features::read_folder(&folder).unwrap();
            assert_eq!(again.canonical_json(), features.canonical_json());
        }
        assert!(seen >= 6, "{seen}");
    }

    #[test]
    fn labels_and_shapes_are_read() {
        let folder = folders()
            .into_iter()
            .find(|folder| folder.ends_with("cifar10"))
            .unwrap();
        let features = Features::read_folder(&folder).unwrap();
        let Some(Feature::ClassLabel { num_classes, names }) = features.get("label") else {
            panic!("`label` is a class label")
        };
        assert_eq!((*num_classes, names.len()), (10, 10));
        assert_eq!(names[9], "truck");
        let image = features.get("image").unwrap();
        assert_eq!(image.shape(), [Some(32), Some(32), Some(3)]);
        assert_eq!(features.get("none"), None);
        let line = features.canonical_json();
        assert!(!line.contains('\n') && line.contains("\"truck\""), "{line}");
    }

    #[test]
    fn unknown_features_are_refused_by_name_and_class() {
        let folder = folders()
            .into_iter()
            .find(|folder| folder.ends_with("kitchen_sink"))
            .unwrap();
        let error = Features::read_folder(&folder).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }));
        let text = error.to_string();
        assert!(
            text.contains("features.json") && text.contains("feature `audio`") && text.contains("`Audio`"),
            "{text}"
        );
    }

    fn parse(text: &str) -> Result<Features> {
        Features::from_files("features.json", text, |_| Ok(None))
    }

    fn one(class: &str, key: &str, content: &Json) -> String {
        let feature = json!({"pythonClassName": format!("{MODULE}.{class}"), key: content});
        json!({"pythonClassName": format!("{MODULE}.features_dict.FeaturesDict"), "featuresDict": {"features": {"x": feature}}})
            .to_string()
    }

    #[test]
    fn older_forms_are_read() {
        let text = r#"{"type": "tensorflow_datasets.core.features.features_dict.FeaturesDict", "content": {
            "image": {"type": "tensorflow_datasets.core.features.image_feature.Image",
                "content": {"shape": [null, null, 3], "dtype": "uint8", "encoding_format": "jpeg"}},
            "label": {"type": "tensorflow_datasets.core.features.class_label_feature.ClassLabel", "content": {"num_classes": 10}},
            "t": {"type": "tensorflow_datasets.core.features.feature.Tensor", "content": {"shape": [2], "dtype": "int32"}},
            "text": {"type": "tensorflow_datasets.core.features.text_feature.Text", "content": {"use_encoder": false}}}}"#;
        let features = parse(text).unwrap();
        assert_eq!(features.get("image").unwrap().shape(), [None, None, Some(3)]);
        assert_eq!(
            features.get("label"),
            Some(&Feature::ClassLabel {
                num_classes: 10,
                names: vec![]
            })
        );
        assert_eq!(features.get("t").unwrap().dtype(), DType::Int32);
        assert_eq!(features.get("text"), Some(&Feature::Text));
    }

    #[test]
    fn what_cannot_be_read_is_refused_in_words() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert!(error("{").contains("features.json: not JSON"));
        assert!(error("{}").contains("pythonClassName"));
        assert!(error("[]").contains("pythonClassName"));
        assert!(
            error(&one(
                "tensor_feature.Tensor",
                "tensor",
                &json!({"dtype": "int8", "encoding": "zlib"})
            ))
            .contains("`zlib`")
        );
        assert!(
            error(&one(
                "tensor_feature.Tensor",
                "tensor",
                &json!({"dtype": "complex64"})
            ))
            .contains("`complex64`")
        );
        assert!(
            error(&one(
                "tensor_feature.Tensor",
                "tensor",
                &json!({"dtype": "int8", "shape": {"dimensions": ["-2"]}})
            ))
            .contains("-2")
        );
        assert!(
            error(&one(
                "image_feature.Image",
                "image",
                &json!({"dtype": "uint8", "shape": {"dimensions": ["4", "4"]}})
            ))
            .contains("[4, 4]")
        );
        assert!(
            error(&one(
                "class_label_feature.ClassLabel",
                "classLabel",
                &json!({"numClasses": "-3"})
            ))
            .contains("-3")
        );
        let own = one("x", "y", &json!({})).replace(&format!("{MODULE}.x"), "my.module.Feature");
        assert!(error(&own).contains("`my.module.Feature`"));
        let top = json!({"pythonClassName": format!("{MODULE}.sequence_feature.Sequence")});
        assert!(error(&top.to_string()).contains("`Sequence`"));
    }

    #[test]
    fn names_that_would_not_come_back_are_refused() {
        let label = |names: &[&str], num_classes| {
            Features::new(vec![(
                "label".to_string(),
                Feature::ClassLabel {
                    num_classes,
                    names: names.iter().map(ToString::to_string).collect(),
                },
            )])
        };
        assert!(label(&["cat", "dog"], 2).is_ok());
        assert!(label(&["cat", "dog"], 3).is_err());
        assert!(label(&["cat", "cat"], 2).is_err());
        assert!(label(&["cat", ""], 2).is_err());
        assert!(label(&["cat", "a\nb"], 2).is_err());
        assert!(label(&[" cat", "dog"], 2).is_err());
        let twice = vec![("a".to_string(), Feature::Text), ("a".to_string(), Feature::Text)];
        assert!(
            Features::new(twice)
                .unwrap_err()
                .to_string()
                .contains("`a` is declared twice")
        );
    }
}
