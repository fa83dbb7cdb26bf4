//! The features of examples: as they are declared, or as all examples tell.

use anyhow::Result;
use prep_formats::features::{Feature, Features};
use prep_formats::value::{DType, Value};
use serde_json::{Map, Value as Json, json};

use crate::error::{Hinted, find};
use crate::examples::invalid;
use crate::readers::rows::cell::{Cell, Row};
use crate::readers::rows::convert::{self, Lacking};
use crate::readers::rows::survey::{Survey, picture};
use crate::recipe::rows::Declared;
use crate::recipe::{declared_features, near};

/// What is known of features before there is an example; by default nothing.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    declared: Option<Vec<(String, Declared)>>,
}

impl Schema {
    /// Reads declarations: an object with an entry for each feature, as recipes have them, as [`describe`](crate::describe) shows them, or
    /// the contents of a `features.json` of TFDS.
    ///
    /// Short forms: `"text"` and other kinds that need no more, `"int64"` and other types for a scalar, `"image"` for a picture of any size,
    /// `[feature]` for a sequence, and an object without `kind` for nested features. A class label without names or a number takes them from
    /// the examples.
    ///
    /// # Errors
    /// What is declared cannot be; the message names the feature.
    pub fn parse(declared: &Json) -> Result<Self> {
        let Json::Object(features) = declared else {
            return Err(invalid(
                "`features`: wanted an object with an entry for each feature",
            ));
        };
        if features.get("pythonClassName").is_some_and(Json::is_string) {
            let features = Features::from_files("features.json", &declared.to_string(), |_| Ok(None))?;
            let features = features.iter();
            let declared =
                features.map(|(name, feature)| (name.to_owned(), Declared::Feature(feature.clone())));
            return Ok(Self {
                declared: Some(declared.collect()),
            });
        }
        if features.is_empty() {
            return Err(invalid("`features` is empty"));
        }
        let mut pictures = Vec::new();
        let mut plain = Map::new();
        for (name, feature) in features {
            // What recipes have no word for.
            if *feature == json!("image") {
                pictures.push((name.clone(), Declared::Feature(picture())));
            } else {
                plain.insert(name.clone(), in_full(name, feature)?);
            }
        }
        let mut declared = declared_features(plain).map_err(|fault| match fault.field.is_empty() {
            true => invalid(format!("`features`: {}", fault.reason)),
            false => invalid(format!("`{}`: {}", fault.field, fault.reason)),
        })?;
        declared.extend(pictures);
        declared.sort_by(|(a, _), (b, _)| a.cmp(b));
        let schema = Self {
            declared: Some(declared),
        };
        schema.certain()?;
        Ok(schema)
    }

    /// The features, where they are known already.
    pub fn features(&self) -> Option<Features> {
        let all = self.declared.as_ref()?.iter();
        let known = all.map(|(name, declared)| match declared {
            Declared::Feature(feature) => Some((name.clone(), feature.clone())),
            Declared::Classes => None,
        });
        Features::new(known.collect::<Option<_>>()?).ok()
    }

    /// The features without those that the examples have yet to tell; `None` where these are all.
    fn certain(&self) -> Result<Option<Features>> {
        let Some(declared) = &self.declared else {
            return Ok(None);
        };
        let known = declared.iter().filter_map(|(name, declared)| match declared {
            Declared::Feature(feature) => Some((name.clone(), feature.clone())),
            Declared::Classes => None,
        });
        Ok(Some(Features::new(known.collect())?))
    }

    /// The class labels whose classes are those of the examples.
    pub(super) fn classes(&self) -> Vec<String> {
        let all = self.declared.iter().flatten();
        all.filter(|(_, declared)| *declared == Declared::Classes)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Fails for a name that is no feature's, where all are known.
    pub(super) fn check_name(&self, what: &str, name: &str) -> Result<()> {
        let Some(declared) = &self.declared else {
            return Ok(());
        };
        if declared.iter().any(|(other, _)| other == name) {
            return Ok(());
        }
        let names = declared.iter().map(|(name, _)| name.as_str());
        let meant = match near(name, names).first() {
            Some(near) => format!("; did you mean `{near}`?"),
            None => String::new(),
        };
        Err(invalid(format!("`{what}`: there is no feature `{name}`{meant}")))
    }

    /// What compares rows with the schema, as far as it is known; `None` where nothing is.
    pub(super) fn checker(&self) -> Result<Option<Checker>> {
        Ok(self.certain()?.map(|features| Checker {
            encoder: features.encoder(),
            form: form(&features),
            undecided: self.classes(),
        }))
    }

    /// The features, by all examples.
    ///
    /// # Errors
    /// Values that do not go together, which are named with their places; or there are no examples.
    pub(super) fn resolve(&self, survey: &Survey) -> Result<Features> {
        survey.check()?;
        let mut features = Vec::new();
        match &self.declared {
            Some(declared) => {
                for (name, declared) in declared {
                    let feature = match declared {
                        Declared::Feature(feature) => feature.clone(),
                        Declared::Classes => survey.label(name).map_err(without_recipe)?,
                    };
                    features.push((name.clone(), feature));
                }
            }
            None if survey.rows == 0 => {
                return Err(invalid(
                    "there are no examples, so their features do not show: say what they are, with `features`",
                ));
            }
            None => {
                for name in survey.columns.keys() {
                    features.push((name.clone(), survey.feature(name).map_err(without_recipe)?));
                }
            }
        }
        if features.is_empty() {
            return Err(invalid("the examples have no features"));
        }
        Ok(Features::new(features)?)
    }
}

/// The error of a survey with advice for whoever has no recipe.
fn without_recipe(error: anyhow::Error) -> anyhow::Error {
    let message = match find::<Hinted>(&error) {
        Some(hinted) => hinted.message.clone(),
        None => error.to_string(),
    };
    let hint = "say what it is, with `features`: `{\"kind\": \"text\"}` takes any value but bytes";
    invalid(message.clone()).context(Hinted::new(message, hint))
}

/// A declaration in the words of recipes.
fn in_full(name: &str, feature: &Json) -> Result<Json> {
    Ok(match feature {
        Json::String(kind) if matches!(kind.as_str(), "text" | "class_label" | "bbox") => {
            json!({"kind": kind})
        }
        Json::String(kind) if kind == "image" => {
            return Err(invalid(format!(
                "`features.{name}`: a picture in other features needs its shape, as in `{{\"kind\": \"image\", \"shape\": [null, null, 3]}}`"
            )));
        }
        Json::String(dtype) => json!({"kind": "scalar", "dtype": type_name(dtype)}),
        Json::Array(element) => match element.as_slice() {
            [element] => json!({"kind": "sequence", "feature": in_full(name, element)?}),
            _ => {
                return Err(invalid(format!(
                    "`features.{name}`: wanted a list of one feature, for a sequence of such, found {}",
                    element.len()
                )));
            }
        },
        Json::Object(fields) => match fields.get("kind") {
            Some(Json::String(kind)) => of_kind(name, kind, fields)?,
            _ => json!({"kind": "dict", "features": each(name, fields)?}),
        },
        other => {
            return Err(invalid(format!(
                "`features.{name}`: wanted what the feature is, as in `\"int64\"` or `{{\"kind\": \"text\"}}`, found {other}"
            )));
        }
    })
}

/// A type as recipes call it, where NumPy has more names for it.
fn type_name(name: &str) -> &str {
    match DType::from_name(name) {
        Some(dtype) => dtype.name(),
        None => name,
    }
}

fn each(name: &str, fields: &Map<String, Json>) -> Result<Map<String, Json>> {
    let field = |(inner, feature): (&String, &Json)| {
        let full = in_full(&format!("{name}.{inner}"), feature)?;
        Ok((inner.clone(), full))
    };
    fields.iter().map(field).collect()
}

/// Without what [`describe`](crate::describe) says beyond a recipe.
fn of_kind(name: &str, kind: &str, fields: &Map<String, Json>) -> Result<Json> {
    let mut full = Map::new();
    for (part, value) in fields {
        if ["value", "strip", "resize", "reencode", "quality"].contains(&part.as_str()) {
            return Err(invalid(format!(
                "`features.{name}.{part}`: recipes have it; here, code gives what is to be stored"
            )));
        }
        let is_implied = match part.as_str() {
            "dtype" => matches!(kind, "text" | "class_label" | "bbox"),
            "shape" => matches!(kind, "text" | "class_label" | "bbox" | "scalar"),
            "names" => *value == json!([]),
            _ => false,
        };
        if is_implied || value.is_null() {
            continue;
        }
        let value = match (part.as_str(), value) {
            ("shape", Json::Array(sizes)) => {
                let size = |size: &Json| if size.is_null() { json!(-1) } else { size.clone() };
                sizes.iter().map(size).collect()
            }
            ("dtype", Json::String(dtype)) => type_name(dtype).into(),
            ("feature", feature) => in_full(name, feature)?,
            ("features", Json::Object(fields)) => each(name, fields)?.into(),
            (_, value) => value.clone(),
        };
        full.insert(part.clone(), value);
    }
    Ok(full.into())
}

/// All features as one, by which [`values`] takes rows.
pub(super) fn form(features: &Features) -> Feature {
    Feature::dict(features.iter().map(|(name, feature)| (name, feature.clone())))
}

/// The values of features that a row has, in the order of `form`; else what is wrong with it.
pub(super) fn values(form: &Feature, row: Row) -> Result<Vec<(&str, Value)>, String> {
    let found = convert::value(form, Cell::Dict(row), "", Lacking::Named(&[])).map_err(|misfit| {
        let name = misfit.column.trim_start_matches('/');
        format!(
            "feature `{name}`: wanted {}, found {}",
            misfit.wanted, misfit.found
        )
    })?;
    match (form, found) {
        (Feature::Dict(features), Value::Dict(values)) => {
            let names = features.iter().map(|(name, _)| name.as_str());
            Ok(names.zip(values.into_iter().map(|(_, value)| value)).collect())
        }
        _ => Err("it is no row".to_owned()),
    }
}

/// Compares rows with a schema.
#[derive(Debug)]
pub(super) struct Checker {
    form: Feature,
    encoder: prep_formats::features::ExampleEncoder,
    /// Features of which only all examples tell what they are.
    undecided: Vec<String>,
}

impl Checker {
    /// What is wrong with a row.
    pub(super) fn check(&mut self, mut row: Row) -> Result<(), String> {
        for name in &self.undecided {
            match row.iter().position(|(other, _)| other == name) {
                Some(at) => drop(row.swap_remove(at)),
                None => {
                    return Err(format!(
                        "feature `{name}`: wanted a class by name or number, found nothing"
                    ));
                }
            }
        }
        let values = values(&self.form, row)?;
        self.encoder.check(&values).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::describe_features;

    fn parsed(declared: &Json) -> Result<Features, String> {
        let schema = Schema::parse(declared).map_err(|error| error.to_string())?;
        schema.features().ok_or_else(|| "it is not known yet".to_owned())
    }

    #[test]
    fn short_forms_and_what_is_described_are_the_same_features() {
        let short = json!({
            "any": "image",
            "image": {"kind": "image", "shape": [null, 28, 1]},
            "label": {"kind": "class_label", "names": ["a", "b"]},
            "many": {"kind": "class_label", "num_classes": 3},
            "number": "int64",
            "bytes": "object",
            "maybe": {"kind": "scalar", "dtype": "float32", "optional": true},
            "list": ["text"],
            "fixed": {"kind": "sequence", "feature": "uint8", "length": 2},
            "nested": {"x": {"y": "bool"}, "box": {"kind": "bbox"}},
            "tensor": {"kind": "tensor", "shape": [2, -1], "dtype": "float16", "encoding": "zlib"},
        });
        let features = parsed(&short).unwrap();
        let mut described = describe_features(&features);
        // No recipe says a picture of any number of channels.
        described["any"] = json!("image");
        assert_eq!(parsed(&described).unwrap(), features);
        let file = features.to_files().swap_remove(0).1;
        let file: Json = serde_json::from_str(&file).unwrap();
        let names = |features: &Features| {
            features
                .iter()
                .map(|(name, _)| name.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&parsed(&file).unwrap()), names(&features));
    }

    #[test]
    fn what_cannot_be_declared_is_named() {
        for (declared, words) in [
            (json!([]), "wanted an object"),
            (json!({}), "`features` is empty"),
            (json!({"x": 5}), "`features.x`: wanted what the feature is"),
            (json!({"x": "int65"}), "`features.x.dtype`: `int65` is not a type"),
            (json!({"x": ["text", "text"]}), "wanted a list of one feature"),
            (
                json!({"x": {"kind": "tensor", "dtype": "int8"}}),
                "`features.x.shape`: missing",
            ),
            (json!({"x": {"y": {"kind": "cube"}}}), "`cube` is not known"),
            (json!({"x": ["image"]}), "needs its shape"),
            (json!({"x": {"kind": "text", "value": "a"}}), "recipes have it"),
            (
                json!({"x": {"kind": "text", "colour": 1}}),
                "unknown field `colour`",
            ),
            (json!({"a/b": "int64", "a": {"b": "int64"}}), "a/b"),
        ] {
            let error = parsed(&declared).unwrap_err();
            assert!(error.contains(words), "{declared}: {error}");
        }
        assert_eq!(
            parsed(&json!({"x": "class_label"})).unwrap_err(),
            "it is not known yet"
        );
    }
}
