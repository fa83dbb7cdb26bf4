//! Pictures in one archive that other members of it list, split by split: `{"class": ["name", ..], ..}`.
//!
//! The lists may come after the pictures, as in Food-101: then the archive is gone through twice, the first time for the lists only.
//! Holds the lists: about 150 bytes a picture.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use anyhow::{Context, Result, bail};
use prep_formats::value::Value;

use crate::archive::{each_file, lost, read_after, read_all};
use crate::builder::{Input, Output, Raw, Source};
use crate::error::Hinted;
use crate::readers::pack::{pack, unpack};
use crate::recipe::{Names, ReaderSpec, Recipe, Template, near};
use crate::tfds::Key;

/// Largest list that is believed.
const MOST_LIST_BYTES: u64 = 256 << 20;
/// Largest picture that is believed.
const MOST_PICTURE_BYTES: u64 = 256 << 20;

/// Reads listed pictures as a recipe says.
#[derive(Debug)]
pub(super) struct LabelLists {
    image: String,
    label: String,
    members: Template,
    /// For each split the paths of its lists.
    lists: Vec<Vec<String>>,
}

/// Where a picture is listed.
#[derive(Debug)]
struct Listed {
    split: usize,
    name: String,
    label: String,
}

/// Pictures by path.
type Lists = HashMap<String, Vec<Listed>>;

impl LabelLists {
    pub(super) fn new(recipe: &Recipe) -> Self {
        let ReaderSpec::LabelLists {
            image,
            label,
            members,
        } = &recipe.reader
        else {
            unreachable!("the reader was chosen by its kind")
        };
        Self {
            image: image.clone(),
            label: label.clone(),
            members: Template::parse_with(members, &["name"])
                .unwrap_or_else(|reason| unreachable!("{reason}")),
            lists: recipe.files.iter().map(|split| split.files.clone()).collect(),
        }
    }

    fn is_list(&self, path: &str) -> bool {
        self.lists.iter().flatten().any(|list| list == path)
    }

    /// Adds a list to those that are known.
    fn add(&self, place: &str, path: &str, text: &[u8], lists: &mut Lists) -> Result<()> {
        let fault = || format!("{place}, member {path}: not a list of pictures by class");
        let parsed: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(text).with_context(fault)?;
        let splits = self
            .lists
            .iter()
            .enumerate()
            .filter(|(_, lists)| lists.iter().any(|list| list == path));
        for (split, _) in splits {
            for (label, names) in &parsed {
                let names = names.as_array().with_context(fault)?;
                for name in names {
                    let name = name.as_str().with_context(fault)?;
                    let member = self.member(name);
                    lists.entry(member).or_default().push(Listed {
                        split,
                        name: name.to_owned(),
                        label: label.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The member that a name of a list is about.
    fn member(&self, name: &str) -> String {
        self.members.render_with(&Names {
            split: "",
            index: 0,
            path: "",
            caught: &[("name", name)],
        })
    }

    /// Goes through the archive until all lists are there, or to its end.
    fn find_lists(&self, source: &Source, lists: &mut Lists) -> Result<()> {
        let wanted: HashSet<&String> = self.lists.iter().flatten().collect();
        let mut found = HashSet::new();
        let mut near_ones = Vec::new();
        lists.clear();
        each_file(source, false, &mut |member, data| {
            if self.is_list(&member.path) && found.insert(member.path.clone()) {
                let text = read_all(&source.name, member, data, MOST_LIST_BYTES)?;
                self.add(&source.name, &member.path, &text, lists)?;
            } else if near_ones.len() < 3
                && !near(&member.path, wanted.iter().map(|list| list.as_str())).is_empty()
            {
                near_ones.push(format!("`{}`", member.path));
            }
            Ok(if found.len() == wanted.len() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        let missing: Vec<String> = wanted
            .into_iter()
            .filter(|list| !found.contains(*list))
            .map(|list| format!("`{list}`"))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let hint = match near_ones.as_slice() {
            [] => "is this the archive that the recipe means?".to_owned(),
            near => format!("it has {}, which is not the same name", near.join(", ")),
        };
        bail!(Hinted::new(
            format!("{} has no member {}", source.name, missing.join(", ")),
            hint
        ))
    }

    pub(super) fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        let source = input.sources[0];
        let num_lists = self.lists.iter().flatten().collect::<HashSet<_>>().len();
        let mut lists = Lists::new();
        let mut known = HashSet::new();
        let mut done: HashSet<String> = HashSet::new();
        let part = output.part(&source.name);
        let mut position = 0;
        // What is damaged: what is listed and does not come is lost with it.
        let mut damaged = None;
        let mut last = 0;
        let result = each_file(source, true, &mut |member, data| {
            let record = position;
            position += 1;
            if self.is_list(&member.path) {
                if known.len() < num_lists && known.insert(member.path.clone()) {
                    let text = read_all(&source.name, member, data, MOST_LIST_BYTES)?;
                    self.add(&source.name, &member.path, &text, &mut lists)?;
                }
                return Ok(ControlFlow::Continue(()));
            }
            if known.len() < num_lists {
                // Something before the lists, which may be a picture.
                self.find_lists(source, &mut lists)?;
                known = self.lists.iter().flatten().cloned().collect();
            }
            let Some(listed) = lists.get(&member.path) else {
                return Ok(ControlFlow::Continue(()));
            };
            let mut picture = Vec::new();
            let read = read_after(&mut picture, &source.name, member, data, MOST_PICTURE_BYTES);
            if let Some(reason) = lost(read)? {
                damaged.get_or_insert(reason);
                return Ok(ControlFlow::Continue(()));
            }
            for listed in listed {
                last = listed.split;
                let mut packed = pack(&[listed.label.as_bytes()], picture.len())?;
                packed.extend_from_slice(&picture);
                output.emit(Raw::new(listed.split, record, part, packed).with_key(listed.name.as_str()))?;
            }
            done.insert(member.path.clone());
            Ok(ControlFlow::Continue(()))
        });
        let damaged = lost(result)?.or(damaged);
        if known.len() < num_lists {
            self.find_lists(source, &mut lists)?;
        }
        let mut missing: Vec<&String> = lists.keys().filter(|path| !done.contains(*path)).collect();
        missing.sort_unstable();
        if let Some(reason) = damaged {
            for path in &missing {
                for listed in &lists[*path] {
                    let reason = format!("`{path}` is lost: {reason}");
                    output.fault(listed.split, part, position, &reason)?;
                }
            }
            if missing.is_empty() {
                output.fault(last, part, position, &reason)?;
            }
            return Ok(());
        }
        match missing.as_slice() {
            [] => Ok(()),
            [first, rest @ ..] => {
                let more = match rest.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                bail!(
                    "{} has no member `{first}`{more}, which its lists name",
                    source.name
                )
            }
        }
    }

    pub(super) fn name_of(&self, raw: &Raw) -> Option<String> {
        let Key::Text(name) = &raw.key else {
            return None;
        };
        Some(self.member(name))
    }

    pub(super) fn decode<'a>(&'a self, raw: &Raw, values: &mut Vec<(&'a str, Value)>) -> Result<()> {
        let [label, picture] = unpack(&raw.data)?;
        values.push((&self.label, Value::Bytes(label)));
        values.push((&self.image, Value::Bytes(picture)));
        Ok(())
    }
}
