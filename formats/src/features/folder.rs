//! `features.json` and the label files beside it.

use std::path::Path;

use serde_json::Value as Json;

use crate::features::{Features, schema_json};
use crate::store::{self, Location};
use crate::{Error, Position, Result, json};

/// Name of the schema's file in a TFDS folder.
pub const FILE_NAME: &str = "features.json";

impl Features {
    /// Reads the schema of a TFDS folder: `features.json` and `*.labels.txt`.
    ///
    /// # Errors
    /// A file that cannot be read, JSON that is no schema, a class that is none of TFDS's, named.
    pub fn read_folder(folder: &Path) -> Result<Self> {
        Self::read_location(&Location::from_path(folder))
    }

    /// The same for a folder that may lie in an object store: one request for the schema, one for each list of labels.
    ///
    /// # Errors
    /// As [`Features::read_folder`].
    pub fn read_location(folder: &Location) -> Result<Self> {
        let text = |file: &str| -> Result<Option<String>> {
            let at = folder.join(file);
            let Some(bytes) = store::read_file(&at)? else {
                return Ok(None);
            };
            let text = String::from_utf8(bytes.into());
            text.map(Some).map_err(|error| {
                Error::damaged("not UTF-8").with_position(&Position {
                    path: at.to_string(),
                    record: None,
                    offset: Some(error.utf8_error().valid_up_to() as u64),
                })
            })
        };
        let at = folder.join(FILE_NAME).to_string();
        let Some(schema) = text(FILE_NAME)? else {
            return Err(Error::Io {
                path: at,
                action: "read",
                source: std::io::ErrorKind::NotFound.into(),
            });
        };
        Self::from_files(&at, &schema, text)
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
            let (class, content) = schema_json::unwrap(&parsed, "featuresDict")?;
            if class != "FeaturesDict" {
                return Err(Error::unsupported(format!(
                    "the schema is a `{class}` at its top, wanted a `FeaturesDict`"
                )));
            }
            let mut names = |file: &str| -> Result<Option<Vec<String>>> {
                let text = read(&format!("{file}.labels.txt"))?;
                Ok(text.map(|text| {
                    text.split('\n')
                        .map(str::trim)
                        .filter(|name| !name.is_empty())
                        .map(str::to_string)
                        .collect()
                }))
            };
            let all = schema_json::parse_dict(content, None, &mut names)?;
            let mut features = Self::new(all).map_err(|error| match error {
                Error::Invalid(reason) => Error::damaged(reason),
                other => other,
            })?;
            if parsed.get("pythonClassName").is_some() {
                features.other =
                    schema_json::beyond(&parsed, &schema_json::write_dict(&features.features, false));
            }
            Ok(features)
        };
        parse().map_err(|error| error.with_position(&place))
    }

    /// The files of a TFDS folder that describe this schema: (`features.json`, text), (`label.labels.txt`, text) and so on.
    /// Byte for byte what TFDS 4.9 writes. What was read from a folder comes back whole: descriptions, ranges of values and colour maps,
    /// which this crate makes no use of, are written as they were.
    pub fn to_files(&self) -> Vec<(String, String)> {
        let mut schema = schema_json::write_dict(&self.features, false);
        schema_json::put_back(&mut schema, &self.other);
        let mut files = vec![(FILE_NAME.to_string(), json::dump(&schema, Some(4)))];
        schema_json::label_files(&self.features, None, &mut files);
        files
    }

    /// A canonical one-line JSON of the schema, label names included, descriptions left out: what fingerprints are made over.
    pub fn canonical_json(&self) -> String {
        json::dump(&schema_json::write_dict(&self.features, true), None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::features::schema_json::MODULE;
    use crate::features::{Encoding, Feature};
    use crate::value::DType;

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
            let features = Features::read_folder(&folder).unwrap();
            for (name, text) in features.to_files() {
                let wanted = std::fs::read_to_string(folder.join(&name)).unwrap();
                assert_eq!(text, wanted, "{}/{name}", folder.display());
                seen += 1;
            }
            let again = Features::read_folder(&folder).unwrap();
            assert_eq!(again.canonical_json(), features.canonical_json());
        }
        assert!(seen >= 12, "{seen}");
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
        assert_eq!(image.shape().unwrap(), [Some(32), Some(32), Some(3)]);
        assert_eq!(features.get("none"), None);
        let line = features.canonical_json();
        assert!(!line.contains('\n') && line.contains("\"truck\""), "{line}");
    }

    #[test]
    fn each_connector_is_read() {
        let folder = folders()
            .into_iter()
            .find(|folder| folder.ends_with("kitchen_sink"))
            .unwrap();
        let features = Features::read_folder(&folder).unwrap();
        let get = |name: &str| features.get(name).unwrap().clone();
        assert_eq!(
            get("audio"),
            Feature::Audio {
                shape: vec![None],
                dtype: DType::Int64,
                file_format: None,
                sample_rate: Some(16000),
                encoding: Encoding::None,
                lazy_decode: false,
            }
        );
        let bbox = Feature::BBox {
            format: Some("REL_YXYX".into()),
        };
        assert_eq!(get("bbox"), bbox);
        let label = Feature::ClassLabel {
            num_classes: 3,
            names: vec![],
        };
        let objects = Feature::dict([("bbox", bbox), ("label", label)]);
        assert_eq!(get("objects"), Feature::sequence(objects));
        let Feature::Dict(nested) = get("nested") else {
            panic!("`nested` is a dict")
        };
        let Feature::Dict(inner) = &nested[1].1 else {
            panic!("`nested/x` is a dict")
        };
        let Feature::ClassLabel { names, .. } = &inner[1].1 else {
            panic!("`nested/x/z` is a label")
        };
        assert_eq!(names, &["no", "yes"]);
        let Feature::Sequence {
            feature,
            length: None,
        } = get("seq_label")
        else {
            panic!("`seq_label` is a sequence")
        };
        assert!(matches!(&*feature, Feature::ClassLabel { num_classes: 3, names } if names.len() == 3));
        let scalar = |dtype| Feature::Scalar { dtype };
        assert_eq!(get("opt_i"), Feature::Optional(Box::new(scalar(DType::Int32))));
        assert_eq!(
            get("t_dyn2"),
            Feature::Tensor {
                shape: vec![None, None, Some(1)],
                dtype: DType::UInt8,
                encoding: Encoding::Zlib,
            }
        );
        let languages = vec!["en".to_string(), "fr".to_string()];
        assert_eq!(get("trans"), Feature::Translation { languages });
        assert_eq!(get("video").shape().unwrap(), [None, Some(8), Some(6), Some(3)]);
        assert_eq!(get("ragged3").shape().unwrap(), [None, None, None]);
        assert_eq!((get("nested").shape(), get("nested").dtype()), (None, None));
    }

    #[test]
    fn unknown_classes_are_refused_by_name() {
        let error = parse(&one("mesh_feature.Mesh", "mesh", &json!({}))).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }));
        let text = error.to_string();
        assert!(
            text.contains("features.json") && text.contains("feature `x`") && text.contains("`Mesh`"),
            "{text}"
        );
    }

    /// What is not understood is written again as it was, at every depth.
    #[test]
    fn descriptions_and_ranges_come_back() {
        let scalar = json!({"pythonClassName": format!("{MODULE}.scalar.Scalar"), "description": "How many.",
            "tensor": {"dtype": "int32", "encoding": "none", "maximum": "9", "shape": {}}});
        let dict = json!({"pythonClassName": format!("{MODULE}.features_dict.FeaturesDict"), "valueRange": "any",
            "featuresDict": {"features": {"n": scalar}}});
        let text = one(
            "sequence_feature.Sequence",
            "sequence",
            &json!({"feature": dict, "length": "-1"}),
        );
        let features = parse(&text).unwrap();
        let (_, written) = features.to_files().remove(0);
        let same = |a: &str, b: &str| {
            serde_json::from_str::<Json>(a).unwrap() == serde_json::from_str::<Json>(b).unwrap()
        };
        assert!(same(&written, &text), "{written}");
        assert_eq!(parse(&written).unwrap(), features);
        assert!(!features.canonical_json().contains("How many"));
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
        assert_eq!(
            features.get("image").unwrap().shape().unwrap(),
            [None, None, Some(3)]
        );
        assert_eq!(
            features.get("label"),
            Some(&Feature::ClassLabel {
                num_classes: 10,
                names: vec![]
            })
        );
        assert_eq!(features.get("t").unwrap().dtype(), Some(DType::Int32));
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
                &json!({"dtype": "int8", "encoding": "lzma"})
            ))
            .contains("`lzma`")
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
