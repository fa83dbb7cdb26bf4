//! How surveys are written down: what serde does not do by itself.
//!
//! A place is `[file, row, path, unit]`: which source it is in changes with the other sources, and is known to whoever reads it.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::readers::rows::survey::{EXAMPLE, Place};

/// What readers call a row.
const UNITS: [&str; 6] = ["", "line", "row", "record", "sample", EXAMPLE];

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.file, self.row, &*self.path, self.unit).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (file, row, path, unit) = <(u32, u64, String, String)>::deserialize(deserializer)?;
        let Some(unit) = UNITS.into_iter().find(|known| **known == unit) else {
            return Err(D::Error::custom(format!("no reader calls a row `{unit}`")));
        };
        Ok(Self {
            source: 0,
            file,
            row,
            path: path.into(),
            unit,
        })
    }
}

/// A tensor's type by its name.
pub(super) mod tensor {
    use prep_formats::value::DType;

    use super::*;

    type Tensor = Option<(Place, DType, Vec<Option<u64>>)>;

    pub(in super::super) fn serialize<S: Serializer>(
        tensor: &Tensor,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let named = tensor
            .as_ref()
            .map(|(place, dtype, shape)| (place, dtype.name(), shape));
        named.serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Tensor, D::Error> {
        let named = <Option<(Place, String, Vec<Option<u64>>)>>::deserialize(deserializer)?;
        let Some((place, name, shape)) = named else {
            return Ok(None);
        };
        let dtype = DType::from_name(&name);
        let dtype = dtype.ok_or_else(|| D::Error::custom(format!("there is no type `{name}`")))?;
        Ok(Some((place, dtype, shape)))
    }
}

/// Features as the files of a schema that has this one only.
pub(super) mod told {
    use std::collections::BTreeMap;

    use prep_formats::features::{Feature, Features};

    use super::*;

    type Told = BTreeMap<String, (Place, Feature)>;
    type Files = BTreeMap<String, String>;

    const NAME: &str = "x";

    pub(in super::super) fn serialize<S: Serializer>(told: &Told, serializer: S) -> Result<S::Ok, S::Error> {
        let mut files: BTreeMap<&str, (&Place, Files)> = BTreeMap::new();
        for (bare, (place, feature)) in told {
            let schema = Features::new(vec![(NAME.to_owned(), feature.clone())]);
            let schema = schema.map_err(serde::ser::Error::custom)?;
            files.insert(bare, (place, schema.to_files().into_iter().collect()));
        }
        files.serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Told, D::Error> {
        let mut told = Told::new();
        for (bare, (place, files)) in <BTreeMap<String, (Place, Files)>>::deserialize(deserializer)? {
            let text = files.get("features.json").map_or("", String::as_str);
            let schema = Features::from_files("features.json", text, |file| Ok(files.get(file).cloned()));
            let schema = schema.map_err(D::Error::custom)?;
            let feature = schema.get(NAME).cloned();
            let feature = feature.ok_or_else(|| D::Error::custom("a schema without its feature"))?;
            told.insert(bare, (place, feature));
        }
        Ok(told)
    }
}
