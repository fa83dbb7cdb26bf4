//! Where a consumer of the stream stands, as small JSON: ORDER.md, section 7.

use serde::{Deserialize, Serialize};

use crate::deal::MAX_POSITION;
use crate::error::{Conflict, Error, Result};
use crate::order::ORDER_VERSION;

/// The version of the state's JSON.
pub const STATE_FORMAT: u32 = 1;

/// A place in the stream of a dataset, independent of hosts, batch size, threads and storage; under 1 KB as JSON.
///
/// # Examples
/// ```
/// use prep_loader::State;
///
/// let text = r#"{"format": 1, "order_version": 1, "dataset": "mnist", "config": null, "version": "3.0.1", "fingerprint": "6f1c",
///     "split": "train[0:40000]", "records": 40000, "seed": 7, "order": "prep", "sample_position": 1024, "pipeline": "00"}"#;
/// let state = State::from_json(text)?;
/// assert_eq!(state.sample_position, 1024);
/// assert_eq!(State::from_json(&state.to_json())?, state);
/// # Ok::<(), prep_loader::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Version of this format: 1.
    pub format: u32,
    /// Version of ORDER.md: 1.
    pub order_version: u32,
    /// Dataset.
    pub dataset: String,
    /// Config; `null` without one.
    pub config: Option<String>,
    /// Version, `major.minor.patch`.
    pub version: String,
    /// Content fingerprint of the dataset.
    pub fingerprint: String,
    /// Resolved split: `train[0:40000]`.
    pub split: String,
    /// Records of the split.
    pub records: u64,
    /// Shuffle seed.
    pub seed: u64,
    /// `prep`, `grain` or `source`.
    pub order: String,
    /// Samples of the global stream that were handed out, over all hosts.
    pub sample_position: u64,
    /// Hash of the stages that decide the stream, hex.
    pub pipeline: String,
}

impl State {
    /// One line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a state; fields that this version does not know are ignored.
    ///
    /// # Errors
    /// Not JSON, a missing or ill-typed field, a newer format, a position beyond 2^63.
    pub fn from_json(text: &str) -> Result<Self> {
        check_versions(text)?;
        let state: Self = serde_json::from_str(text).map_err(unreadable)?;
        if state.sample_position > MAX_POSITION {
            return Err(Error::State(format!(
                "`sample_position` is {}, above 2^63",
                state.sample_position
            )));
        }
        Ok(state)
    }

    /// The epoch of the next sample, 0-based; 0 where there are no records.
    pub fn epoch(&self) -> u64 {
        self.sample_position.checked_div(self.records).unwrap_or(0)
    }

    /// Checks that a state belongs to the stream that `here` stands in; positions may differ.
    ///
    /// # Errors
    /// [`Error::Conflict`], naming the first field that differs and both values.
    pub(crate) fn check_same_stream(&self, here: &Self) -> Result<()> {
        let name = |state: &Self| match &state.config {
            None => format!("{}:{}", state.dataset, state.version),
            Some(config) => format!("{}/{config}:{}", state.dataset, state.version),
        };
        let conflict = |field, state: String, here: String, advice| {
            Err(Error::Conflict(Box::new(Conflict {
                field,
                state,
                here,
                advice,
            })))
        };
        if self.fingerprint != here.fingerprint {
            let with = |state: &Self| format!("{}, content {}", name(state), short(&state.fingerprint));
            return conflict(
                "dataset",
                with(self),
                with(here),
                "open the version it was taken on, or start anew",
            );
        }
        if self.split != here.split || self.records != here.records {
            let with = |state: &Self| format!("{}, {} records", state.split, state.records);
            return conflict(
                "split",
                with(self),
                with(here),
                "leave the split out, or give the same one",
            );
        }
        if self.order != here.order {
            return conflict(
                "order",
                self.order.clone(),
                here.order.clone(),
                "leave the order out, or give the same one",
            );
        }
        if self.seed != here.seed {
            return conflict(
                "seed",
                self.seed.to_string(),
                here.seed.to_string(),
                "leave the seed out, or give the same one",
            );
        }
        if self.pipeline != here.pipeline {
            return conflict(
                "pipeline",
                self.pipeline.clone(),
                here.pipeline.clone(),
                "use the stages that it was saved with",
            );
        }
        Ok(())
    }
}

fn short(fingerprint: &str) -> &str {
    fingerprint.get(..16).unwrap_or(fingerprint)
}

/// That this version can read a state. Looked at first: a newer format may have other fields.
pub(crate) fn check_versions(text: &str) -> Result<()> {
    #[derive(Deserialize)]
    struct Versions {
        format: u32,
        order_version: u32,
    }
    let versions: Versions = serde_json::from_str(text).map_err(unreadable)?;
    for (what, found, known) in [
        ("format", versions.format, STATE_FORMAT),
        ("order_version", versions.order_version, ORDER_VERSION),
    ] {
        if found != known {
            return Err(Error::State(format!(
                "its `{what}` is {found}, this version reads {known}; use the version of Prep that saved it"
            )));
        }
    }
    Ok(())
}

pub(crate) fn unreadable(error: serde_json::Error) -> Error {
    Error::State(error.to_string())
}

/// The hash over the stages that decide a stream, one a line.
pub(crate) fn pipeline_hash(stages: &[&str]) -> String {
    use sha2::{Digest, Sha256};
    let mut hasher = Sha256::new();
    for stage in stages {
        hasher.update(stage.as_bytes());
        hasher.update(b"\n");
    }
    hasher.finalize()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State {
            format: 1,
            order_version: 1,
            dataset: "mnist".into(),
            config: None,
            version: "3.0.1".into(),
            fingerprint: "0123456789abcdef0123".into(),
            split: "train".into(),
            records: 100,
            seed: u64::MAX,
            order: "prep".into(),
            sample_position: 250,
            pipeline: pipeline_hash(&["source"]),
        }
    }

    #[test]
    fn json_comes_back_and_is_small() {
        let text = state().to_json();
        assert!(text.len() < 1024);
        assert_eq!(State::from_json(&text).unwrap(), state());
        assert_eq!(state().epoch(), 2);
        assert!(text.contains("\"config\":null"));
        // The first 16 bytes of `printf 'source\n' | sha256sum`.
        assert_eq!(state().pipeline, "b8bb034f9b63bd0254fbc7c157cae746");
    }

    #[test]
    fn what_is_not_a_state_is_refused() {
        let good = serde_json::to_value(state()).unwrap();
        for field in good.as_object().unwrap().keys() {
            let mut bad = good.clone();
            bad[field] = serde_json::json!([]);
            assert!(State::from_json(&bad.to_string()).is_err(), "{field}");
            let mut bad = good.clone();
            bad.as_object_mut().unwrap().remove(field);
            // `config` may be missing: that is null.
            assert_eq!(
                State::from_json(&bad.to_string()).is_err(),
                field != "config",
                "{field}"
            );
        }
        for text in ["", "{", "[]", "null", "3"] {
            assert!(State::from_json(text).is_err(), "{text}");
        }
        let mut newer = good.clone();
        newer["format"] = 2.into();
        let message = State::from_json(&newer.to_string()).unwrap_err().to_string();
        assert!(message.contains("`format` is 2"), "{message}");
        let mut far = good.clone();
        far["sample_position"] = u64::MAX.into();
        assert!(State::from_json(&far.to_string()).is_err());
        let mut more = good;
        more["later"] = 1.into();
        assert!(State::from_json(&more.to_string()).is_ok());
    }

    #[test]
    fn conflicts_name_both_sides() {
        let here = state();
        let check = |change: &dyn Fn(&mut State)| {
            let mut other = state();
            change(&mut other);
            other.check_same_stream(&here).unwrap_err().to_string()
        };
        let text = check(&|s| s.seed = 3);
        assert!(
            text.contains("its seed is `3`, here it is `18446744073709551615`"),
            "{text}"
        );
        let text = check(&|s| s.split = "train[0:50]".into());
        assert!(
            text.contains("train[0:50]") && text.contains("`train, 100 records`"),
            "{text}"
        );
        let text = check(&|s| s.fingerprint = "ff".into());
        assert!(
            text.contains("mnist:3.0.1, content ff") && text.contains("0123456789abcdef"),
            "{text}"
        );
        assert!(check(&|s| s.order = "source".into()).contains("order"));
        assert!(check(&|s| s.pipeline = "00".into()).contains("pipeline"));
        let mut moved = state();
        moved.sample_position = 3;
        moved.dataset = "renamed".into();
        moved.check_same_stream(&here).unwrap();
    }
}
