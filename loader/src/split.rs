//! Split strings as TFDS reads them: `train`, `train[:80%]`, `train[1000:2000]`, `train[-1shard:]`, `train+test`, `all`.
//!
//! ```text
//! split    = part { "+" part }                      spaces around "+" are free, no others
//! part     = "all" | name [ "[" slice "]" [ "(" rounding ")" ] ]
//! slice    = [number] ":" [number] | number "shard"
//! number   = digits, "_" between them, "-" before: from the end; with "%" also a fraction; unit "%" or "shard" after
//! rounding = "closest" | "pct1_dropremainder"
//! ```
//!
//! A unit on one side of a slice counts for both. Percentages are rounded to the nearest record, half to even (`closest`), or
//! are multiples of one percent rounded down (`pct1_dropremainder`). In three places TFDS goes on silently and this module gives
//! an error: a slice that ends before it begins, one shard that does not exist, and two units in one slice.
//!
//! Source: `ReadInstruction` in TFDS 4.9, `core/splits.py`.

use std::fmt;

use crate::error::{Error, Result};

/// A split of a dataset, as the manifest describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitLengths {
    /// Name.
    pub name: String,
    /// Records of each shard, in order.
    pub shards: Vec<u64>,
}

impl SplitLengths {
    /// Records of all shards.
    pub fn records(&self) -> u64 {
        self.shards.iter().sum()
    }
}

/// A run of records of one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Which split, by its number in the dataset.
    pub split: usize,
    /// First record.
    pub start: u64,
    /// Record after the last one.
    pub end: u64,
}

/// A split string applied to a dataset: runs of records, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedSplit {
    parts: Vec<Part>,
    text: String,
}

impl ResolvedSplit {
    /// Reads a split string against the splits of a dataset.
    ///
    /// # Errors
    /// [`Error::Split`], with what was found and what would be right.
    pub fn parse(text: &str, splits: &[SplitLengths]) -> Result<Self> {
        let refuse = |reason: String| Error::Split {
            split: text.to_string(),
            reason,
        };
        let mut parts: Vec<Part> = Vec::new();
        let mut push = |part: Part| match parts.last_mut() {
            Some(last) if last.split == part.split && last.end == part.start => last.end = part.end,
            _ => parts.push(part),
        };
        for piece in pieces(text) {
            let spec = Spec::parse(piece).map_err(refuse)?;
            if spec.name == "all" {
                if spec.slice.is_some() {
                    return Err(refuse(
                        "`all` takes no slice; slice each split and join them with `+`".into(),
                    ));
                }
                for (split, lengths) in splits.iter().enumerate() {
                    push(Part {
                        split,
                        start: 0,
                        end: lengths.records(),
                    });
                }
                continue;
            }
            let Some(split) = splits.iter().position(|split| split.name == spec.name) else {
                let names: Vec<String> = splits.iter().map(|split| format!("`{}`", split.name)).collect();
                return Err(refuse(format!(
                    "there is no split `{}`; the dataset has {}",
                    spec.name,
                    if names.is_empty() {
                        "none".to_string()
                    } else {
                        names.join(", ")
                    }
                )));
            };
            let (start, end) = match &spec.slice {
                None => (0, splits[split].records()),
                Some(slice) => slice.resolve(&splits[split]).map_err(refuse)?,
            };
            push(Part { split, start, end });
        }
        let text = parts
            .iter()
            .map(|part| {
                let split = &splits[part.split];
                if part.start == 0 && part.end == split.records() {
                    split.name.clone()
                } else {
                    format!("{}[{}:{}]", split.name, part.start, part.end)
                }
            })
            .collect::<Vec<_>>()
            .join("+");
        Ok(Self { parts, text })
    }

    /// The runs of records, in order; adjacent ones joined.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Number of records.
    pub fn records(&self) -> u64 {
        self.parts.iter().map(|part| part.end - part.start).sum()
    }
}

impl fmt::Display for ResolvedSplit {
    /// The resolved form that states carry: `train[0:40000]`, a whole split without brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The names in a split string, as they come; `all` stands for itself. For messages before a dataset is known.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let count = text.split('+').count();
    text.split('+').enumerate().map(move |(number, piece)| {
        let piece = if number > 0 { piece.trim_start() } else { piece };
        if number + 1 < count {
            piece.trim_end()
        } else {
            piece
        }
    })
}

#[derive(Debug, PartialEq)]
struct Spec<'a> {
    name: &'a str,
    slice: Option<Slice>,
}

#[derive(Debug, PartialEq)]
struct Slice {
    /// Between brackets, for messages.
    text: String,
    unit: Unit,
    start: Option<f64>,
    end: Option<f64>,
    /// One shard by number, `[5shard]`.
    single: bool,
    rounding: Rounding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Records,
    Percent,
    Shard,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    Closest,
    Percent1,
}

const FORMS: &str =
    "wanted a form like `train`, `train[1000:2000]`, `train[:80%]`, `train[2shard]` or `train+test`";

impl<'a> Spec<'a> {
    fn parse(piece: &'a str) -> Result<Self, String> {
        let end = piece
            .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'))
            .unwrap_or(piece.len());
        let (name, rest) = piece.split_at(end);
        if name.is_empty() {
            return Err(match piece.chars().next() {
                None => format!("there is no split name; {FORMS}"),
                Some(c) => format!("a split name cannot begin with `{c}`; {FORMS}"),
            });
        }
        if rest.is_empty() {
            return Ok(Self { name, slice: None });
        }
        let unknown = || format!("`{rest}` after `{name}` is not a slice; {FORMS}");
        let (inside, after) = rest
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
            .ok_or_else(unknown)?;
        let rounding = match after {
            "" | "(closest)" => Rounding::Closest,
            "(pct1_dropremainder)" => Rounding::Percent1,
            _ if after.starts_with('(') => {
                return Err(format!(
                    "the rounding is `{after}`, wanted `(closest)` or `(pct1_dropremainder)`"
                ));
            }
            _ => return Err(unknown()),
        };
        let slice = Slice::parse(inside, rounding)?;
        if rounding == Rounding::Percent1 && slice.unit != Unit::Percent {
            return Err(format!(
                "a rounding is for percentages, and `[{inside}]` has none"
            ));
        }
        Ok(Self {
            name,
            slice: Some(slice),
        })
    }
}

impl Slice {
    fn parse(inside: &str, rounding: Rounding) -> Result<Self, String> {
        let bounds: Vec<&str> = inside.split(':').collect();
        if bounds.len() > 2 {
            return Err(format!(
                "`[{inside}]` has a step, and only `[from:to]` is possible; {FORMS}"
            ));
        }
        if bounds.iter().all(|bound| bound.is_empty()) {
            return Err(format!(
                "the slice `[{inside}]` is empty; leave it out for the whole split"
            ));
        }
        let mut unit = None;
        let mut digits = Vec::new();
        for bound in &bounds {
            let (number, own) = if let Some(number) = bound.strip_suffix('%') {
                (number, Some(Unit::Percent))
            } else if let Some(number) = bound.strip_suffix("shard") {
                (number, Some(Unit::Shard))
            } else {
                (*bound, None)
            };
            if own.is_some() && number.is_empty() {
                return Err(format!("`{bound}` in `[{inside}]` has a unit and no number"));
            }
            match (unit, own) {
                (Some(first), Some(second)) if first != second => {
                    return Err(format!("`[{inside}]` has two units; give both ends in one"));
                }
                (None, Some(own)) => unit = Some(own),
                _ => {}
            }
            digits.push(number);
        }
        let unit = unit.unwrap_or(Unit::Records);
        let single = bounds.len() == 1;
        if single && unit != Unit::Shard {
            return Err(format!(
                "`[{inside}]` is one place, and only a shard can be given so (`[{}shard]`); for records write `[from:to]`",
                digits[0].trim_start_matches('-')
            ));
        }
        let number = |text: &str| -> Result<Option<f64>, String> {
            if text.is_empty() {
                return Ok(None);
            }
            let value = read_number(text, unit == Unit::Percent).ok_or_else(|| {
                format!(
                    "`{text}` in `[{inside}]` is not {}",
                    if unit == Unit::Percent {
                        "a number"
                    } else {
                        "a whole number"
                    }
                )
            })?;
            if unit == Unit::Percent && value.abs() > 100.0 {
                return Err(format!(
                    "`{text}%` in `[{inside}]` is out of range: percentages are -100 to 100"
                ));
            }
            Ok(Some(value))
        };
        Ok(Self {
            text: inside.to_string(),
            unit,
            start: number(digits[0])?,
            end: if single { None } else { number(digits[1])? },
            single,
            rounding,
        })
    }

    /// First record and the one after the last.
    fn resolve(&self, split: &SplitLengths) -> Result<(u64, u64), String> {
        let records = split.records();
        let (start, end) = match self.unit {
            Unit::Records => (self.start.map(|v| v as i128), self.end.map(|v| v as i128)),
            Unit::Percent => {
                let place =
                    |bound: Option<f64>| bound.map(|percent| self.percent(percent, records)).transpose();
                (place(self.start)?, place(self.end)?)
            }
            Unit::Shard => return self.resolve_shards(split),
        };
        let (start, end) = (start.unwrap_or(0), end.unwrap_or(i128::from(records)));
        let records = i128::from(records);
        if start.abs() > records || end.abs() > records {
            return Err(format!(
                "`[{}]` is out of range: `{}` has {records} records",
                self.text, split.name
            ));
        }
        let place = |bound: i128| if bound < 0 { records + bound } else { bound };
        self.ordered(place(start), place(end))
    }

    fn percent(&self, percent: f64, records: u64) -> Result<i128, String> {
        match self.rounding {
            // TFDS computes in doubles: the product first.
            Rounding::Closest => Ok((percent * records as f64 / 100.0).round_ties_even() as i128),
            Rounding::Percent1 if records < 100 => Err(format!(
                "`pct1_dropremainder` needs at least 100 records, and there are {records}; use `closest`"
            )),
            Rounding::Percent1 if percent.fract() != 0.0 => Err(format!(
                "`pct1_dropremainder` takes whole percentages, not `{percent}%`"
            )),
            Rounding::Percent1 => Ok(percent as i128 * i128::from(records / 100)),
        }
    }

    fn resolve_shards(&self, split: &SplitLengths) -> Result<(u64, u64), String> {
        let count = split.shards.len() as i128;
        let place = |bound: f64| {
            let bound = bound as i128;
            if bound < 0 { bound + count } else { bound }
        };
        let sum = |shards: i128| -> i128 {
            let shards = shards.clamp(0, count) as usize;
            split.shards[..shards].iter().map(|&n| i128::from(n)).sum()
        };
        if self.single {
            let shard = place(self.start.unwrap_or(0.0));
            if !(0..count).contains(&shard) {
                return Err(format!(
                    "`[{}]` is out of range: `{}` has {count} shards, the first is 0",
                    self.text, split.name
                ));
            }
            return self.ordered(sum(shard), sum(shard + 1));
        }
        // Like a Python slice: ends beyond the shards are the ends. As in TFDS, an end of 0 or below counts from the last shard.
        let start = self.start.map_or(0, place);
        let end = match self.end {
            None => count,
            Some(end) if end <= 0.0 => end as i128 + count,
            Some(end) => end as i128,
        };
        self.ordered(sum(start), sum(end))
    }

    fn ordered(&self, start: i128, end: i128) -> Result<(u64, u64), String> {
        if end < start {
            return Err(format!(
                "`[{}]` ends at record {end}, before it begins at {start}",
                self.text
            ));
        }
        Ok((start as u64, end as u64))
    }
}

/// A number as Python's `int` and `float` read it: `_` only between digits.
fn read_number(text: &str, fraction: bool) -> Option<f64> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    if !unsigned
        .chars()
        .all(|c| c.is_ascii_digit() || c == '_' || (fraction && c == '.'))
    {
        return None;
    }
    let separated = unsigned
        .split('.')
        .all(|run| run.is_empty() || run.split('_').all(|digits| !digits.is_empty()));
    if !separated || !unsigned.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let value: f64 = text.replace('_', "").parse().ok()?;
    // Exact in a double: beyond it no dataset has records.
    (value.abs() <= 9_007_199_254_740_992.0).then_some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn splits() -> Vec<SplitLengths> {
        let split = |name: &str, shards: &[u64]| SplitLengths {
            name: name.into(),
            shards: shards.into(),
        };
        vec![
            split("train", &[14, 15, 14]),
            split("test", &[8]),
            split("none", &[]),
        ]
    }

    fn resolved(text: &str) -> String {
        ResolvedSplit::parse(text, &splits()).unwrap().to_string()
    }

    fn refused(text: &str) -> String {
        ResolvedSplit::parse(text, &splits()).unwrap_err().to_string()
    }

    #[test]
    fn equals_tfds() {
        let file: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/golden/order/subsplits.json")).unwrap();
        let mut compared = 0;
        for (dataset, entry) in file.as_object().unwrap() {
            // TFDS lists them sorted, and joins `all` in the builder's order, which for these datasets is train, test.
            let mut splits: Vec<(SplitLengths, Vec<String>)> = Vec::new();
            for split in entry["splits"].as_array().unwrap().iter().rev() {
                let names = serde_json::from_value(split[1].clone()).unwrap();
                splits.push((
                    SplitLengths {
                        name: split[0].as_str().unwrap().to_string(),
                        shards: serde_json::from_value(split[2].clone()).unwrap(),
                    },
                    names,
                ));
            }
            let lengths: Vec<SplitLengths> = splits.iter().map(|split| split.0.clone()).collect();
            for row in entry["rows"].as_array().unwrap() {
                let spec = match row["percent"].as_array() {
                    None => row["spec"].as_str().unwrap().to_string(),
                    Some(range) => format!(
                        "train[{}%:{}%]({})",
                        range[0],
                        range[1],
                        row["rounding"].as_str().unwrap()
                    ),
                };
                let found = ResolvedSplit::parse(&spec, &lengths);
                // Where TFDS goes on with nonsense.
                let deviates =
                    spec == "train[7:3]" || (spec == "train[5shard]" && lengths[0].shards.len() <= 5);
                if row["error"].is_string() || deviates {
                    assert!(found.is_err(), "{dataset} {spec}");
                    continue;
                }
                let found = found.unwrap();
                assert_eq!(
                    Some(found.records()),
                    row["num_examples"].as_u64(),
                    "{dataset} {spec}"
                );
                let mut files = Vec::new();
                for part in found.parts() {
                    let mut shard_start = 0;
                    for (&length, name) in lengths[part.split].shards.iter().zip(&splits[part.split].1) {
                        let start = part.start.max(shard_start);
                        let end = part.end.min(shard_start + length);
                        if start < end {
                            files.push(serde_json::json!([
                                name,
                                start - shard_start,
                                end - start,
                                length
                            ]));
                        }
                        shard_start += length;
                    }
                }
                if spec != "train[:10%]+train[10%:20%]" {
                    assert_eq!(serde_json::json!(files), row["files"], "{dataset} {spec}");
                }
                compared += 1;
            }
        }
        assert!(compared > 70, "{compared}");
    }

    #[test]
    fn resolves_to_one_form() {
        assert_eq!(resolved("train"), "train");
        assert_eq!(resolved("train[:100%]"), "train");
        assert_eq!(resolved("train[:50%]"), "train[0:22]");
        assert_eq!(resolved("train[-3:]"), "train[40:43]");
        assert_eq!(resolved("train[:3] + train[3:6]"), "train[0:6]");
        assert_eq!(resolved("train[:3]+test"), "train[0:3]+test");
        assert_eq!(resolved("train[3:6]+train[:3]"), "train[3:6]+train[0:3]");
        assert_eq!(resolved("all"), "train+test+none");
        assert_eq!(resolved("train[1shard]"), "train[14:29]");
        assert_eq!(resolved("train[-1shard]"), "train[29:43]");
        assert_eq!(resolved("train[-2shard:-1shard]"), "train[14:29]");
        assert_eq!(resolved("train[10:20%]"), "train[4:9]");
        assert_eq!(resolved("train[:12.5%]"), "train[0:5]");
        assert_eq!(resolved("none[:50%]"), "none");
        assert_eq!(resolved("test[2:2]"), "test[2:2]");
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, part) in [
            ("", "there is no split name"),
            ("train+", "there is no split name"),
            (" train", "cannot begin with ` `"),
            ("tain", "no split `tain`; the dataset has `train`, `test`, `none`"),
            ("train[]", "is empty"),
            ("train[:]", "is empty"),
            ("train[::2]", "has a step"),
            ("train[0]", "for records write `[from:to]`"),
            ("train[10%]", "only a shard"),
            ("train[7:3]", "before it begins"),
            ("train[:44]", "`train` has 43 records"),
            ("train[-44:]", "out of range"),
            ("train[:101%]", "-100 to 100"),
            ("train[3shard]", "has 3 shards"),
            ("train[-4shard]", "has 3 shards"),
            ("train[1.5:3]", "not a whole number"),
            ("train[1__0:]", "not a whole number"),
            ("train[a:b]", "not a whole number"),
            ("train[:5%][:3]", "is not a slice"),
            ("train[:5%](floor)", "wanted `(closest)` or"),
            ("train[:5%](pct1_dropremainder)", "at least 100 records"),
            ("train[:5](pct1_dropremainder)", "for percentages"),
            ("train[1shard:50%]", "two units"),
            ("train[:%]", "no number"),
            ("all[:5]", "takes no slice"),
            ("train[:99999999999999999999]", "not a whole number"),
        ] {
            let message = refused(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "[a-z\\[\\]:%+._0-9 ()-]{0,24}", slice in "[0-9:%._shard-]{0,12}") {
            let _ = ResolvedSplit::parse(&text, &splits());
            if let Ok(split) = ResolvedSplit::parse(&format!("train[{slice}]"), &splits()) {
                // What states carry reads back as the same records.
                let again = ResolvedSplit::parse(&split.to_string(), &splits()).unwrap();
                prop_assert_eq!(again, split);
            }
        }
    }
}
