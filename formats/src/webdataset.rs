//! Which members of a tar archive make a sample: WebDataset's convention, without I/O.
//!
//! A sample is the members whose paths have one key; what follows the key names the part. Source: WebDataset's `base_plus_ext` and
//! `group_by_keys` in `webdataset/tariterators.py`; what differs is said at [`Grouper`].
//!
//! # Examples
//!
//! ```
//! use prep_formats::webdataset::{Dot, Grouper, Step};
//!
//! let mut grouper = Grouper::new("train-0.tar", Dot::First);
//! assert_eq!(grouper.add("a/0.seg.png")?, Step::Begins { key: "a/0", part: "seg.png" });
//! assert_eq!(grouper.add("a/0.cls")?, Step::Continues { part: "cls" });
//! assert_eq!(grouper.add("README")?, Step::NoPart);
//! assert!(grouper.add("a/1.cls").is_ok());
//! assert!(grouper.add("a/0.jpg").is_err()); // sample `a/0` is over
//! # Ok::<(), prep_formats::Error>(())
//! ```

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{Error, Position, Result};

/// Which dot of the last part of a path divides key and part name. Dots of folders never do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dot {
    /// The first, as WebDataset does: `0.seg.png` is the part `seg.png` of `0`.
    #[default]
    First,
    /// The last, for names that have dots of their own: `Song v1.5.flac` is the part `flac` of `Song v1.5`.
    Last,
}

/// Divides a member's path into key and part name; `None` where its last part has no dot, or nothing before it or behind it.
pub fn split_path(path: &str, dot: Dot) -> Option<(&str, &str)> {
    let name = path.rfind('/').map_or(0, |slash| slash + 1);
    let found = match dot {
        Dot::First => path[name..].find('.'),
        Dot::Last => path[name..].rfind('.'),
    };
    let at = name + found.filter(|&at| at > 0)?;
    let part = &path[at + 1..];
    (!part.is_empty()).then_some((&path[..at], part))
}

/// What a member is to the samples of its archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'p> {
    /// The first part of a sample; the one before is whole.
    Begins {
        /// The sample's key.
        key: &'p str,
        /// The part's name.
        part: &'p str,
    },
    /// A further part of the current sample.
    Continues {
        /// The part's name.
        part: &'p str,
    },
    /// A path without a part name: for the caller to list, it belongs to no sample.
    NoPart,
}

/// Takes the paths of an archive's members in order and says which sample each belongs to.
///
/// Unlike WebDataset, which begins a second sample with the same key, it refuses members of one sample that are not next to each other, and a
/// part that comes twice. For that it keeps 8 bytes (and as many for the table) per sample of the archive: 16 MB for 10^6. Two of 10^6 keys
/// share such a hash with a chance of 3 in 10^8; the second would be refused.
#[derive(Debug)]
pub struct Grouper {
    archive: String,
    dot: Dot,
    key: Option<String>,
    parts: Vec<String>,
    ended: HashSet<u64>,
}

impl Grouper {
    /// Starts an archive; `archive` is its name for messages.
    pub fn new(archive: impl Into<String>, dot: Dot) -> Self {
        Self {
            archive: archive.into(),
            dot,
            key: None,
            parts: Vec::new(),
            ended: HashSet::new(),
        }
    }

    /// The next member's path. O(parts of a sample).
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] naming archive and member: its sample has ended before, or has this part already. Later calls go on behind it.
    pub fn add<'p>(&mut self, path: &'p str) -> Result<Step<'p>> {
        let Some((key, part)) = split_path(path, self.dot) else {
            return Ok(Step::NoPart);
        };
        if self.key.as_deref() == Some(key) {
            if self.parts.iter().any(|known| known == part) {
                return Err(self.error(path, format!("sample `{key}` has the part `{part}` twice")));
            }
            self.parts.push(part.to_string());
            return Ok(Step::Continues { part });
        }
        if self.ended.contains(&hash(key)) {
            return Err(self.error(
                path,
                format!("sample `{key}` ended before other members; pack the parts of a sample next to each other, sorted by name"),
            ));
        }
        if let Some(ended) = self.key.replace(key.to_string()) {
            self.ended.insert(hash(&ended));
        }
        self.parts.clear();
        self.parts.push(part.to_string());
        Ok(Step::Begins { key, part })
    }

    fn error(&self, member: &str, reason: String) -> Error {
        Error::Damaged {
            at: Position {
                path: self.archive.clone(),
                ..Position::default()
            },
            reason: format!("member `{member}`: {reason}"),
        }
    }
}

fn hash(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reported as webdataset/webdataset#237: a dot in the stem became part of the field's name.
    #[test]
    fn dots_of_folders_and_stems_follow_the_stated_rule() {
        let (sound, text) = (
            "set.v2/07 Song v1.5 [live].flac",
            "set.v2/07 Song v1.5 [live].json",
        );
        assert_eq!(
            split_path(sound, Dot::Last),
            Some(("set.v2/07 Song v1.5 [live]", "flac"))
        );
        assert_eq!(
            split_path(sound, Dot::First),
            Some(("set.v2/07 Song v1", "5 [live].flac"))
        );
        for dot in [Dot::First, Dot::Last] {
            let mut grouper = Grouper::new("a.tar", dot);
            assert!(matches!(grouper.add(sound).unwrap(), Step::Begins { .. }));
            assert!(matches!(grouper.add(text).unwrap(), Step::Continues { .. }));
        }
        for odd in ["", "README", "a.b/README", ".hidden", "a/.hidden", "name.", "a/"] {
            assert_eq!(split_path(odd, Dot::First), None, "{odd}");
            assert_eq!(
                Grouper::new("a.tar", Dot::Last).add(odd).unwrap(),
                Step::NoPart,
                "{odd}"
            );
        }
    }

    /// Reported as ray-project/ray#44068: parts that are not adjacent gave twice the samples, each half empty.
    #[test]
    fn parts_that_are_not_adjacent_are_an_error() {
        let mut grouper = Grouper::new("a.tar", Dot::First);
        assert!(grouper.add("k2.x").is_ok());
        assert!(grouper.add("k1.x").is_ok());
        let error = grouper.add("k2.y").unwrap_err().to_string();
        assert!(
            error.contains("a.tar") && error.contains("`k2.y`") && error.contains("ended"),
            "{error}"
        );
        assert_eq!(grouper.add("k1.y").unwrap(), Step::Continues { part: "y" });
        assert_eq!(
            grouper.add("k3.x").unwrap(),
            Step::Begins { key: "k3", part: "x" }
        );
        let twice = grouper.add("k3.x").unwrap_err().to_string();
        assert!(twice.contains("`x` twice"), "{twice}");
    }

    proptest! {
        #[test]
        fn key_and_part_make_the_path_again(path in "[a-c./]{0,12}") {
            for dot in [Dot::First, Dot::Last] {
                if let Some((key, part)) = split_path(&path, dot) {
                    prop_assert_eq!(format!("{key}.{part}"), path.clone());
                    prop_assert!(!part.contains('/') && !key.is_empty() && !key.ends_with('/'));
                }
            }
        }

        #[test]
        fn sorted_members_make_each_sample_once(keys in proptest::collection::btree_set("[a-z]{1,3}", 0..20)) {
            let mut grouper = Grouper::new("a.tar", Dot::First);
            let mut found = Vec::new();
            for key in &keys {
                for part in ["cls", "png"] {
                    if let Step::Begins { key, .. } = grouper.add(&format!("{key}.{part}")).unwrap() {
                        found.push(key.to_string());
                    }
                }
            }
            prop_assert!(found.iter().eq(keys.iter()));
        }
    }
}
