//! Features as JSON: a `Feature` message of TFDS in Protocol Buffers' JSON, and the forms before that.
//!
//! Source: `core/proto/feature.proto`, and `to_json_content` and `from_json_content` of each connector in `core/features`, TFDS 4.9.

use serde_json::{Map, Value as Json, json};

use crate::features::feature::{Encoding, Feature};
use crate::value::DType;
use crate::{Error, Result, example};

/// Where TFDS's connectors live.
pub(super) const MODULE: &str = "tensorflow_datasets.core.features";

/// What is read, for messages.
const KNOWN: &str = "Tensor, Scalar, Text, ClassLabel, Image, LabeledImage, Video, Audio, BBoxFeature, Sequence, Dataset, \
    FeaturesDict, Translation and TranslationVariableLanguages";

/// A schema as JSON; `with_names` adds the label names, which TFDS keeps in other files.
pub(super) fn write_dict(features: &[(String, Feature)], with_names: bool) -> Json {
    let map: Map<String, Json> = features
        .iter()
        .map(|(name, feature)| (name.clone(), write(feature, with_names)))
        .collect();
    let content = if map.is_empty() {
        json!({})
    } else {
        json!({"features": map})
    };
    message("features_dict.FeaturesDict", "featuresDict", content)
}

fn message(class: &str, key: &str, content: Json) -> Json {
    json!({"pythonClassName": format!("{MODULE}.{class}"), key: content})
}

fn write(feature: &Feature, with_names: bool) -> Json {
    match feature {
        Feature::Tensor {
            shape,
            dtype,
            encoding,
        } => message(
            "tensor_feature.Tensor",
            "tensor",
            json!({"dtype": dtype.name(), "encoding": encoding.name(), "shape": shape_json(shape)}),
        ),
        Feature::Scalar { dtype } => message(
            "scalar.Scalar",
            "tensor",
            json!({"dtype": dtype.name(), "encoding": "none", "shape": {}}),
        ),
        Feature::Optional(inner) => {
            let mut json = write(inner, with_names);
            if let Some(content) = json.get_mut("tensor") {
                content["optional"] = true.into();
            }
            json
        }
        Feature::Text => message("text_feature.Text", "text", json!({})),
        Feature::ClassLabel { num_classes, names } => {
            let mut content = Map::new();
            if *num_classes > 0 {
                content.insert("numClasses".into(), num_classes.to_string().into());
            }
            put_names(&mut content, names, with_names);
            message("class_label_feature.ClassLabel", "classLabel", content.into())
        }
        Feature::Image {
            shape,
            dtype,
            encoding_format,
        } => {
            let content = image_json(shape, *dtype, encoding_format.as_deref());
            message("image_feature.Image", "image", content)
        }
        Feature::LabeledImage {
            shape,
            dtype,
            encoding_format,
            num_classes,
            names,
        } => {
            let mut content = image_json(shape, *dtype, encoding_format.as_deref());
            content["useColormap"] = true.into();
            let mut label = Map::new();
            if *num_classes > 0 {
                label.insert("numClasses".into(), num_classes.to_string().into());
            }
            put_names(&mut label, names, with_names);
            content["label"] = label.into();
            message("labeled_image.LabeledImage", "image", content)
        }
        Feature::Video {
            shape,
            dtype,
            encoding_format,
        } => {
            let content = image_json(shape, *dtype, encoding_format.as_deref());
            message("video_feature.Video", "video", content)
        }
        Feature::Audio {
            shape,
            dtype,
            file_format,
            sample_rate,
            encoding,
            lazy_decode,
        } => {
            let encoding = encoding.name().to_ascii_uppercase();
            let mut content =
                json!({"dtype": dtype.name(), "encoding": encoding, "shape": shape_json(shape)});
            if let Some(format) = file_format {
                content["fileFormat"] = format.clone().into();
            }
            if let Some(rate) = sample_rate {
                content["sampleRate"] = rate.to_string().into();
            }
            if *lazy_decode {
                content["lazyDecode"] = true.into();
            }
            message("audio_feature.Audio", "audio", content)
        }
        Feature::BBox { format } => {
            let mut content = json!({"dtype": "float32", "shape": shape_json(&[Some(4)])});
            if let Some(format) = format {
                content["bboxFormat"] = format.clone().into();
            }
            message("bounding_boxes.BBoxFeature", "boundingBox", content)
        }
        Feature::Sequence { feature, length } => {
            let content = sequence_json(feature, *length, with_names);
            message("sequence_feature.Sequence", "sequence", content)
        }
        Feature::Dataset { feature, length } => {
            let content = sequence_json(feature, *length, with_names);
            message("dataset_feature.Dataset", "sequence", content)
        }
        Feature::Dict(features) => write_dict(features, with_names),
        Feature::Translation { languages } => {
            let content = if languages.is_empty() {
                json!({})
            } else {
                json!({"languages": languages})
            };
            message("translation_feature.Translation", "translation", content)
        }
        Feature::TranslationVariableLanguages { languages } => {
            let mut content = json!({"variableLanguagesPerExample": true});
            if !languages.is_empty() {
                content["languages"] = languages.clone().into();
            }
            let class = "translation_feature.TranslationVariableLanguages";
            message(class, "translation", content)
        }
    }
}

fn put_names(content: &mut Map<String, Json>, names: &[String], with_names: bool) {
    if with_names && !names.is_empty() {
        content.insert("names".into(), names.to_vec().into());
    }
}

fn image_json(shape: &[Option<u64>], dtype: DType, format: Option<&str>) -> Json {
    let mut content = json!({"dtype": dtype.name(), "shape": shape_json(shape)});
    if let Some(format) = format {
        content["encodingFormat"] = format.into();
    }
    content
}

fn sequence_json(feature: &Feature, length: Option<u64>, with_names: bool) -> Json {
    let mut content = json!({"feature": write(feature, with_names)});
    let length = length.map_or_else(|| "-1".to_string(), |length| length.to_string());
    // A length of 0 is the default of the message, which is not written.
    if length != "0" {
        content["length"] = length.into();
    }
    content
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
pub(super) fn unwrap<'a>(value: &'a Json, key: &str) -> Result<(&'a str, &'a Json)> {
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
            "class `{class}` is not one of TFDS's features; known are {KNOWN}"
        )));
    };
    let content = value
        .get(key)
        .or_else(|| value.get(snake(key)))
        .or_else(|| value.get("content"))
        .unwrap_or(NOTHING);
    Ok((name, content))
}

/// The name of a field as the message has it: `features_dict` for `featuresDict`.
fn snake(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 4);
    for character in key.chars() {
        if character.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(character.to_ascii_lowercase());
    }
    name
}

/// A field by its name in JSON, or in the message.
fn field<'a>(content: &'a Json, key: &str) -> Option<&'a Json> {
    content
        .get(key)
        .or_else(|| content.get(snake(key)))
        .filter(|value| !value.is_null())
}

fn text(content: &Json, key: &str) -> Option<String> {
    field(content, key)
        .and_then(Json::as_str)
        .filter(|text| !text.is_empty())
        .map(str::to_string)
}

fn is_true(content: &Json, key: &str) -> bool {
    field(content, key).and_then(Json::as_bool) == Some(true)
}

/// Reads the names of a `ClassLabel` or `LabeledImage` that is called so among those it is nested in.
pub(super) type ReadNames<'a> = dyn FnMut(&str) -> Result<Option<Vec<String>>> + 'a;

/// The features of a `FeaturesDict`, sorted. `file` is the part of label files' names that says where it is.
pub(super) fn parse_dict(
    content: &Json,
    file: Option<&str>,
    names: &mut ReadNames<'_>,
) -> Result<Vec<(String, Feature)>> {
    // Before there was a message for it, the features were the content.
    let features = match content.get("features") {
        Some(features @ Json::Object(_))
            if features.get("pythonClassName").is_none() && features.get("type").is_none() =>
        {
            features
        }
        _ => content,
    };
    let Json::Object(features) = features else {
        return Ok(Vec::new());
    };
    let mut all = Vec::with_capacity(features.len());
    for (name, value) in features {
        let file = super::stored::label_file(file, name);
        let feature = parse(value, &file, names).map_err(|error| example::in_feature(name, error))?;
        all.push((name.clone(), feature));
    }
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(all)
}

fn parse(value: &Json, file: &str, read_names: &mut ReadNames<'_>) -> Result<Feature> {
    let (class, _) = unwrap(value, "")?;
    match class {
        "Tensor" | "Scalar" => {
            let (_, content) = unwrap(value, "tensor")?;
            let dtype = parse_dtype(content)?;
            let feature = match class {
                "Scalar" => Feature::Scalar { dtype },
                _ => Feature::Tensor {
                    shape: parse_shape(content)?,
                    dtype,
                    encoding: parse_encoding(class, content)?,
                },
            };
            Ok(if is_true(content, "optional") {
                Feature::Optional(Box::new(feature))
            } else {
                feature
            })
        }
        "Text" => {
            let (_, content) = unwrap(value, "text")?;
            refuse_encoder(class, content)?;
            Ok(Feature::Text)
        }
        "ClassLabel" => {
            let (_, content) = unwrap(value, "classLabel")?;
            let (num_classes, names) = parse_label(content, file, read_names)?;
            Ok(Feature::ClassLabel { num_classes, names })
        }
        "Image" => {
            let (_, content) = unwrap(value, "image")?;
            Ok(Feature::Image {
                shape: parse_shape(content)?,
                dtype: parse_dtype(content)?,
                encoding_format: text(content, "encodingFormat"),
            })
        }
        "LabeledImage" => {
            let (_, content) = unwrap(value, "image")?;
            let label = content.get("label").unwrap_or(&Json::Null);
            let (num_classes, names) = parse_label(label, file, read_names)?;
            Ok(Feature::LabeledImage {
                shape: parse_shape(content)?,
                dtype: parse_dtype(content)?,
                encoding_format: text(content, "encodingFormat"),
                num_classes,
                names,
            })
        }
        "Video" => {
            let (_, content) = unwrap(value, "video")?;
            Ok(Feature::Video {
                shape: parse_shape(content)?,
                // Older forms have none: videos were bytes then.
                dtype: match field(content, "dtype") {
                    None => DType::UInt8,
                    Some(_) => parse_dtype(content)?,
                },
                encoding_format: text(content, "encodingFormat"),
            })
        }
        "Audio" => {
            let (_, content) = unwrap(value, "audio")?;
            let sample_rate = match field(content, "sampleRate") {
                None => None,
                Some(rate) => Some(
                    parse_number(rate)
                        .and_then(|rate| u64::try_from(rate).ok())
                        .ok_or_else(|| Error::damaged(format!("sample rate is {rate}")))?,
                ),
            };
            Ok(Feature::Audio {
                shape: parse_shape(content)?,
                dtype: parse_dtype(content)?,
                file_format: text(content, "fileFormat"),
                sample_rate,
                encoding: parse_encoding(class, content)?,
                lazy_decode: is_true(content, "lazyDecode"),
            })
        }
        "BBoxFeature" | "BBox" => {
            let (_, content) = unwrap(value, "boundingBox")?;
            Ok(Feature::BBox {
                format: text(content, "bboxFormat"),
            })
        }
        "Sequence" | "SequenceDict" | "Dataset" => {
            let (_, content) = unwrap(value, "sequence")?;
            let Some(inner) = content.get("feature") else {
                return Err(Error::damaged(format!(
                    "class `{class}` without the feature of its elements"
                )));
            };
            let length = match content.get("length") {
                // In a message a length of 0 is not written, in older forms `null` is any length.
                None if content
                    .get("feature")
                    .is_some_and(|inner| inner.get("type").is_none()) =>
                {
                    Some(0)
                }
                None | Some(Json::Null) => None,
                Some(length) => match parse_number(length) {
                    Some(-1) => None,
                    Some(length) if length >= 0 => Some(length.cast_unsigned()),
                    _ => return Err(Error::damaged(format!("length of a sequence is {length}"))),
                },
            };
            let feature = Box::new(parse(inner, file, read_names)?);
            Ok(match class {
                "Dataset" => Feature::Dataset { feature, length },
                _ => Feature::Sequence { feature, length },
            })
        }
        "FeaturesDict" => {
            let (_, content) = unwrap(value, "featuresDict")?;
            Ok(Feature::Dict(parse_dict(content, Some(file), read_names)?))
        }
        "Translation" | "TranslationVariableLanguages" => {
            let (_, content) = unwrap(value, "translation")?;
            refuse_encoder(class, content)?;
            let languages = match content.get("languages") {
                None | Some(Json::Null) => Vec::new(),
                Some(Json::Array(languages)) => languages.clone(),
                Some(other) => return Err(Error::damaged(format!("languages are {other}"))),
            };
            let mut languages: Vec<String> = languages
                .iter()
                .map(|language| language.as_str().map(str::to_string))
                .collect::<Option<_>>()
                .ok_or_else(|| Error::damaged("a language is not a text"))?;
            languages.sort();
            languages.dedup();
            Ok(match class {
                "Translation" => Feature::Translation { languages },
                _ => Feature::TranslationVariableLanguages { languages },
            })
        }
        _ => Err(Error::unsupported(format!(
            "class `{class}` is not supported; known are {KNOWN}"
        ))),
    }
}

fn refuse_encoder(class: &str, content: &Json) -> Result<()> {
    match content.get("use_encoder") {
        Some(Json::Bool(true)) => Err(Error::unsupported(format!(
            "class `{class}` with an encoder, which TFDS gave up; build the dataset's plain text config"
        ))),
        _ => Ok(()),
    }
}

/// Number of classes and their names.
fn parse_label(content: &Json, file: &str, read_names: &mut ReadNames<'_>) -> Result<(u64, Vec<String>)> {
    let mut num_classes = match field(content, "numClasses") {
        None => 0,
        Some(number) => parse_number(number)
            .and_then(|number| u64::try_from(number).ok())
            .ok_or_else(|| Error::damaged(format!("number of classes is {number}")))?,
    };
    let names = read_names(file)?.unwrap_or_default();
    if num_classes == 0 {
        num_classes = names.len() as u64;
    }
    Ok((num_classes, names))
}

fn parse_dtype(content: &Json) -> Result<DType> {
    let name = content.get("dtype").and_then(Json::as_str).unwrap_or("");
    DType::from_name(name).ok_or_else(|| Error::unsupported(format!("dtype `{name}` is not known")))
}

fn parse_encoding(class: &str, content: &Json) -> Result<Encoding> {
    let name = content.get("encoding").and_then(Json::as_str).unwrap_or("");
    Encoding::from_name(name).ok_or_else(|| {
        Error::unsupported(format!(
            "class `{class}` with encoding `{name}`; known are `none`, `bytes` and `zlib`"
        ))
    })
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

/// What `found` says that `written` does not: the fields that are in it alone, at every depth. `null` if there are none.
///
/// Fields in the spelling of the message (`use_colormap`) are left out: they are known in the spelling of JSON.
pub(super) fn beyond(found: &Json, written: &Json) -> Json {
    let (Json::Object(found), Json::Object(written)) = (found, written) else {
        return Json::Null;
    };
    let mut rest = Map::new();
    for (key, value) in found {
        let rest_of_value = match written.get(key) {
            Some(written) => beyond(value, written),
            None if key.contains('_') || value.is_null() => Json::Null,
            None => value.clone(),
        };
        if !rest_of_value.is_null() {
            rest.insert(key.clone(), rest_of_value);
        }
    }
    if rest.is_empty() { Json::Null } else { rest.into() }
}

/// Puts what [`beyond`] gave back, at places that are still there.
pub(super) fn put_back(written: &mut Json, rest: &Json) {
    let (Json::Object(written), Json::Object(rest)) = (written, rest) else {
        return;
    };
    for (key, value) in rest {
        match written.get_mut(key) {
            Some(inside) => put_back(inside, value),
            // A feature that is not in the schema any more does not come back with its description.
            None if value.get("pythonClassName").is_some() => {}
            None => {
                written.insert(key.clone(), value.clone());
            }
        }
    }
}

/// The label files of a feature: those of nested ones too.
pub(super) fn label_files(
    features: &[(String, Feature)],
    file: Option<&str>,
    files: &mut Vec<(String, String)>,
) {
    for (name, feature) in features {
        let file = super::stored::label_file(file, name);
        label_files_of(feature, &file, files);
    }
}

fn label_files_of(feature: &Feature, file: &str, files: &mut Vec<(String, String)>) {
    match feature {
        Feature::ClassLabel { names, .. } | Feature::LabeledImage { names, .. } if !names.is_empty() => {
            files.push((format!("{file}.labels.txt"), names.join("\n") + "\n"));
        }
        Feature::Sequence { feature, .. } | Feature::Dataset { feature, .. } | Feature::Optional(feature) => {
            label_files_of(feature, file, files);
        }
        Feature::Dict(features) => label_files(features, Some(file), files),
        _ => {}
    }
}
