//! Where a consumer of a pipeline stands, as small JSON: ORDER.md, section 15.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::deal::MAX_POSITION;
use crate::error::{Conflict, Error, Result};
use crate::order::ORDER_VERSION;
use crate::state::{STATE_FORMAT, pipeline_hash};

/// A place in the stream of a pipeline, independent of batch size, threads and storage.
///
/// A pipeline of random access has the same state on all hosts, and one is enough for all. One with virtual streams has on each host the
/// places of the streams that this host runs: restore with those of all hosts where their number has changed.
///
/// Under 1 KB and the text of the stages, and some 40 bytes more for each virtual stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipelineState {
    /// Version of this format: 1.
    pub format: u32,
    /// Version of ORDER.md: 1.
    pub order_version: u32,
    /// The pipeline's text, a line a stage.
    pub stages: Vec<String>,
    /// Hash of the text, hex.
    pub pipeline: String,
    /// Samples of the global stream that were handed out, over all hosts.
    pub position: u64,
    /// Where each virtual stream stands that this host runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) streams: BTreeMap<u64, LaneStand>,
}

/// Where a virtual stream stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<u64>", into = "Vec<u64>")]
pub(crate) struct LaneStand {
    /// Outputs that were handed out.
    pub(crate) given: u64,
    /// How many there are in all, once that is known.
    pub(crate) end: Option<u64>,
    /// Positions that were taken of a mixture of streams, else of random access.
    pub(crate) reach: u64,
    /// What the stages have saved; empty at the start.
    pub(crate) cursor: Vec<u64>,
}

impl From<Vec<u64>> for LaneStand {
    fn from(numbers: Vec<u64>) -> Self {
        let number = |at: usize| numbers.get(at).copied().unwrap_or(0);
        Self {
            given: number(0),
            end: number(1).checked_sub(1),
            reach: number(2),
            cursor: numbers.get(3..).unwrap_or_default().to_vec(),
        }
    }
}

impl From<LaneStand> for Vec<u64> {
    fn from(stand: LaneStand) -> Self {
        let mut numbers = vec![stand.given, stand.end.map_or(0, |end| end + 1), stand.reach];
        numbers.extend(stand.cursor);
        numbers
    }
}

impl PipelineState {
    pub(crate) fn new(stages: &[String], position: u64, streams: BTreeMap<u64, LaneStand>) -> Self {
        let lines: Vec<&str> = stages.iter().map(String::as_str).collect();
        Self {
            format: STATE_FORMAT,
            order_version: ORDER_VERSION,
            stages: stages.to_vec(),
            pipeline: pipeline_hash(&lines),
            position,
            streams,
        }
    }

    /// One line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a state; fields that this version does not know are ignored.
    ///
    /// # Errors
    /// Not JSON, a missing or ill-typed field, another format, a position beyond 2^63, a text that does not have its hash.
    pub fn from_json(text: &str) -> Result<Self> {
        crate::state::check_versions(text)?;
        let state: Self = serde_json::from_str(text).map_err(crate::state::unreadable)?;
        if state.position > MAX_POSITION {
            return Err(Error::State(format!(
                "`position` is {}, above 2^63",
                state.position
            )));
        }
        let lines: Vec<&str> = state.stages.iter().map(String::as_str).collect();
        if pipeline_hash(&lines) != state.pipeline {
            return Err(Error::State(
                "its stages are not those of its hash: it was changed".into(),
            ));
        }
        Ok(state)
    }

    /// Checks that it belongs to the pipeline with these stages.
    pub(crate) fn check_same_pipeline(&self, here: &[String]) -> Result<()> {
        let missing = "nothing".to_string();
        for at in 0..self.stages.len().max(here.len()) {
            let (own, other) = (self.stages.get(at), here.get(at));
            if own == other || self.fits_changed_weights(at, here) {
                continue;
            }
            let trimmed = |line: Option<&String>| line.unwrap_or(&missing).trim().to_string();
            return Err(Error::Conflict(Box::new(Conflict {
                field: "stage",
                state: trimmed(own),
                here: trimmed(other),
                advice: "use the stages that it was saved with",
            })));
        }
        Ok(())
    }

    /// The first position of its mixture at which other weights may hold from here on ([`Mixture::change`](crate::Mixture::change)): behind all that the
    /// pipeline has taken of it, with what is in windows and open rows. Each host's state knows its own streams: the largest of all is right.
    pub fn mixture_position(&self) -> u64 {
        let reaches = self.streams.values().map(|stand| stand.reach);
        reaches.max().unwrap_or(self.position)
    }

    /// Whether a mixture differs only in weights that have not come into force.
    fn fits_changed_weights(&self, at: usize, here: &[String]) -> bool {
        let (Some(own), Some(other)) = (self.stages.get(at), here.get(at)) else {
            return false;
        };
        if !own.starts_with("mix ") {
            return false;
        }
        // What was taken of a mixture of streams is known. Of one in random access it is, where the stages after it keep positions: those of
        // the mixture are those of the stream.
        let is_of_streams = !self.streams.is_empty() && !here[at..].iter().any(|line| line == "to_iter");
        let mut later = here[at + 1..].iter().take_while(|line| *line != "to_iter");
        let keeps = [
            "map ",
            "random_map ",
            "map_with_index ",
            "filter ",
            "batch stacking",
        ];
        if !is_of_streams && !later.all(|line| keeps.iter().any(|kind| line.starts_with(kind))) {
            return false;
        }
        let reached = self.mixture_position();
        let (short, long) = if own.len() < other.len() {
            (own, other)
        } else {
            (other, own)
        };
        let Some(changes) = long.strip_prefix(short.as_str()) else {
            return false;
        };
        let mut changes = changes.split("; from ");
        changes.next() == Some("")
            && changes.all(|change| {
                let position = change
                    .split(' ')
                    .next()
                    .and_then(|number| number.parse::<u64>().ok());
                position.is_some_and(|position| position >= reached)
            })
    }

    /// Puts the states of several hosts together.
    ///
    /// # Errors
    /// States of different places.
    pub(crate) fn merged(states: &[Self]) -> Result<Option<Self>> {
        let Some(first) = states.first() else {
            return Ok(None);
        };
        let mut merged = first.clone();
        for state in &states[1..] {
            if state.position != first.position {
                return Err(Error::State(format!(
                    "one host's state is of sample position {}, another's of {}: take those of the same step",
                    first.position, state.position
                )));
            }
            state.check_same_pipeline(&first.stages)?;
            for (&stream, stand) in &state.streams {
                let own = merged.streams.entry(stream).or_default();
                // A stream that several hosts run stands where the last of them took something.
                let end = own.end.or(stand.end);
                if stand.given > own.given || own.cursor.is_empty() {
                    *own = stand.clone();
                }
                own.end = end;
            }
        }
        Ok(Some(merged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(stages: &[&str], position: u64) -> PipelineState {
        let stages: Vec<String> = stages.iter().map(ToString::to_string).collect();
        PipelineState::new(&stages, position, BTreeMap::new())
    }

    fn fits(state: &PipelineState, here: &[&str]) -> Result<()> {
        let here: Vec<String> = here.iter().map(ToString::to_string).collect();
        state.check_same_pipeline(&here)
    }

    #[test]
    fn json_comes_back() {
        let mut state = state(&["source range records=5", "to_iter"], 7);
        state.streams.insert(
            3,
            LaneStand {
                given: 2,
                end: Some(2),
                reach: 9,
                cursor: vec![1, 2],
            },
        );
        let text = state.to_json();
        assert!(text.contains(r#""streams":{"3":[2,3,9,1,2]}"#), "{text}");
        assert_eq!(PipelineState::from_json(&text).unwrap(), state);
        let changed = text.replace("records=5", "records=6");
        assert!(
            PipelineState::from_json(&changed)
                .unwrap_err()
                .to_string()
                .contains("hash")
        );
        for text in ["", "[]", "{}", &text.replace("\"format\":1", "\"format\":2")] {
            assert!(PipelineState::from_json(text).is_err(), "{text}");
        }
    }

    #[test]
    fn stages_that_differ_are_named() {
        let saved = state(&["source a", "shuffle seed=1", "map flip"], 3);
        fits(&saved, &["source a", "shuffle seed=1", "map flip"]).unwrap();
        let text = fits(&saved, &["source a", "shuffle seed=2", "map flip"])
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("`shuffle seed=1`, here it is `shuffle seed=2`"),
            "{text}"
        );
        let text = fits(&saved, &["source a", "shuffle seed=1"])
            .unwrap_err()
            .to_string();
        assert!(text.contains("`map flip`, here it is `nothing`"), "{text}");
    }

    #[test]
    fn weights_may_change_after_the_place_of_a_state() {
        let mix = "mix parents=2 stop=first weights=[1.0, 1.0]";
        let changed = "mix parents=2 stop=first weights=[1.0, 1.0]; from 10 weights=[3.0, 1.0]";
        for position in [0, 10] {
            fits(&state(&[mix, "map a"], position), &[changed, "map a"]).unwrap();
            fits(&state(&[changed, "map a"], position), &[mix, "map a"]).unwrap();
        }
        fits(&state(&[mix], 11), &[changed]).unwrap_err();
        fits(&state(&[mix, "slice start=3"], 5), &[changed, "slice start=3"]).unwrap_err();
        fits(
            &state(&[mix], 0),
            &["mix parents=2 stop=first weights=[1.0, 2.0]"],
        )
        .unwrap_err();
    }
}
