//! What of a recipe of rows can stay where it is: which files, of which splits, under which features; or why it cannot.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, bail};
use prep_formats::dataset_info;
use prep_formats::features::Features;
use prep_formats::store::Location;
use url::Url;

use crate::builder::{DEFAULT_OPTIONS, DatasetSpec, Layout, SourcePlace};
use crate::error::Hinted;
use crate::fetch;
use crate::readers::rows::file::{folder_of, is_packed};
use crate::readers::rows::files::{Splits, stands_for_several};
use crate::readers::rows::table::Table;
use crate::readers::rows::tfds::{Folder, one_schema};
use crate::recipe::RowsSpec;
use crate::recipe::rows::Declared;

/// The readers whose files can stay.
const KINDS: [&str; 3] = ["array_record", "tfds", "tfrecord"];

/// What stays where it is.
#[derive(Debug)]
pub(crate) struct Stays {
    /// Splits, in order.
    pub(crate) splits: Vec<String>,
    /// Files, in the order of their records.
    pub(crate) files: Vec<StayingFile>,
    /// The features, where recipe or folder say all of them.
    pub(crate) features: Option<Features>,
    /// Whether records may have more than the features say, as TFDS allows.
    pub(crate) may_have_more: bool,
}

/// A record file that stays where it is.
#[derive(Debug, Clone)]
pub(crate) struct StayingFile {
    /// Its name among the sources.
    pub(crate) name: String,
    pub(crate) location: Location,
    pub(crate) split: usize,
    pub(crate) is_array_record: bool,
    /// How many records its folder says it has.
    pub(crate) records: Option<u64>,
}

/// Why a recipe cannot be registered in place; `None` if nothing speaks against it.
fn obstacle(spec: &RowsSpec, dataset: &DatasetSpec) -> Option<(String, String)> {
    let build = "leave `--in-place` out, and the records are written anew";
    let because = |what: String, hint: &str| Some((what, hint.to_owned()));
    if !KINDS.contains(&spec.kind.as_str()) {
        return because(
            format!(
                "files of the reader `{}` hold no records that could be read in place",
                spec.kind
            ),
            build,
        );
    }
    if spec.filter.is_some() {
        return because(
            "`filter` leaves records out, and files in place keep all".to_owned(),
            build,
        );
    }
    for (setting, is_set) in [
        ("select", spec.select.is_some()),
        ("drop", !spec.drop.is_empty()),
        ("missing_as_empty", !spec.missing_as_empty.is_empty()),
        ("rename", !spec.rename.is_empty()),
    ] {
        if is_set {
            return because(
                format!("`{setting}` changes records, and those of files in place stay as they are stored"),
                build,
            );
        }
    }
    if let Some((column, _)) = spec.pictures.first() {
        return because(
            format!("`features.{column}` has its pictures written anew, and files in place stay as they are"),
            build,
        );
    }
    if let Some((column, _)) = spec
        .declared
        .iter()
        .find(|(_, declared)| *declared == Declared::Classes)
    {
        return because(
            format!(
                "the classes of `features.{column}` are to be found, and numbered, in the data, which stay as they are stored"
            ),
            "say `names` or `num_classes`; or leave `--in-place` out",
        );
    }
    if spec.fractions.is_some() {
        return because(
            "splits by fraction deal the records of a file to several splits, and files in place stay whole"
                .to_owned(),
            "make splits of files, or load parts, as in `train[:90%]`; or leave `--in-place` out",
        );
    }
    if dataset.layout == Layout::Tfds {
        return because(
            "the layout `tfds` orders records anew, and files in place keep their order".to_owned(),
            build,
        );
    }
    if !spec.options.members.is_empty() {
        return because(
            "`members` are files in archives, which cannot be read in place".to_owned(),
            build,
        );
    }
    if dataset.options != DEFAULT_OPTIONS {
        return because(
            format!(
                "`[output]` asks for shards with {}, and none are written",
                dataset.options
            ),
            build,
        );
    }
    None
}

impl Table {
    /// Says what stays where it is, once the files are known. Remote folders are listed, and descriptions of TFDS's are read; no record file is.
    ///
    /// # Errors
    /// The recipe asks for what files in place cannot give; a file is of no split, or there twice; a place cannot be listed.
    pub(crate) fn stays(&self, dataset: &DatasetSpec) -> Result<Stays> {
        if let Some((reason, hint)) = obstacle(&self.spec, dataset) {
            let message = format!("this cannot be registered in place: {reason}");
            return Err(Hinted::new(message, hint).into());
        }
        let mut found = Finder {
            table: self,
            splits: self.split_names().to_vec(),
            are_told: self.spec.kind == "tfds" && self.files.is_empty(),
            files: Vec::new(),
            folders: Vec::new(),
            by_place: HashMap::new(),
        };
        for (source, rule) in dataset.sources.iter().zip(self.rules.iter()) {
            let rule = &self.spec.sources[*rule as usize];
            if self.reader.is_aside(&source.name) {
                continue;
            }
            if is_packed(&source.name, self.reader.endings()) {
                return Err(Hinted::new(
                    format!("{} is an archive: its files cannot be read in place", source.name),
                    "unpack it, or leave `--in-place` out",
                )
                .into());
            }
            let (root, set) = match &source.place {
                SourcePlace::Found(path, set) => (Location::from_path(path), set),
                SourcePlace::Listed(url, set) => (Location::parse(url.as_str())?, set),
                SourcePlace::Url(url) => {
                    found
                        .add_remote(&rule.name, &source.name, url)
                        .with_context(|| rule.at.clone())?;
                    continue;
                }
                _ => bail!("{}: it has no place of its own, where it could stay", source.name),
            };
            let Some(set) = set else {
                found.add(&rule.name, source.name.clone(), root)?;
                continue;
            };
            let prefix = folder_of(&source.name, set.iter().next().unwrap_or_default());
            for path in set.iter() {
                found.add(&rule.name, format!("{prefix}{path}"), root.join(path))?;
            }
        }
        found.finish()
    }
}

/// Finds the files that stay.
struct Finder<'a> {
    table: &'a Table,
    splits: Vec<String>,
    /// Whether the splits are those that folders say.
    are_told: bool,
    files: Vec<StayingFile>,
    /// TFDS folders with their places, in the order of the sources.
    folders: Vec<(String, Folder)>,
    by_place: HashMap<String, usize>,
}

impl Finder<'_> {
    fn is_tfds(&self) -> bool {
        self.table.spec.kind == "tfds"
    }

    fn folder(&mut self, at: &Location) -> Result<usize> {
        let place = at.to_string();
        if let Some(&known) = self.by_place.get(&place) {
            return Ok(known);
        }
        self.folders.push((place.clone(), Folder::open(at)?));
        self.by_place.insert(place, self.folders.len() - 1);
        Ok(self.folders.len() - 1)
    }

    fn add(&mut self, rule: &str, name: String, location: Location) -> Result<()> {
        let split = self.table.splits.of(rule, &name, None)?;
        self.push(name, location, split)
    }

    fn push(&mut self, name: String, location: Location, split: usize) -> Result<()> {
        let (is_array_record, records) = match self.is_tfds() {
            false => (self.table.spec.kind == "array_record", None),
            true => {
                let parent = location.parent().unwrap_or_else(|| Location::from_path("."));
                let folder = self.folder(&parent)?;
                let file = location.to_string();
                let file = file.rsplit('/').next().unwrap_or_default();
                self.folders[folder].1.shard(file)
            }
        };
        self.files.push(StayingFile {
            name,
            location,
            split,
            is_array_record,
            records,
        });
        Ok(())
    }

    /// Adds what an address stands for: a file, or a folder of TFDS's.
    fn add_remote(&mut self, rule: &str, source: &str, url: &Url) -> Result<()> {
        if url.scheme() == "file" {
            let path = url.to_file_path();
            let path = path.map_err(|()| anyhow::anyhow!("`{url}` is not the address of a local file"))?;
            return self.add(rule, source.to_owned(), Location::from_path(path));
        }
        let shown = fetch::shown(url);
        // What comes before an `@` is a user on a web server, and a container in Azure.
        let has_user = matches!(url.scheme(), "http" | "https") && !url.username().is_empty();
        if url.query().is_some() || url.fragment().is_some() || url.password().is_some() || has_user {
            return Err(Hinted::new(
                format!("{shown} has more than a path, which the manifest would have to keep"),
                "give an address that stays good, without passwords: credentials come from the environment",
            )
            .into());
        }
        if self.is_tfds() {
            return self.add_folder(rule, url);
        }
        if stands_for_several(&SourcePlace::Url(url.clone())) {
            return Err(Hinted::new(
                format!("{shown} is on a web server, which does not tell what it has"),
                "give the address of each file as a source of its own; or that of a TFDS folder, with `kind = \"tfds\"`",
            )
            .into());
        }
        self.add(rule, source.to_owned(), Location::parse(url.as_str())?)
    }

    /// Adds the shards of a TFDS folder behind a URL.
    fn add_folder(&mut self, rule: &str, url: &Url) -> Result<()> {
        let root = Location::parse(url.as_str().trim_end_matches('/'))?;
        let folder = self.folder(&root)?;
        let contents = self.folders[folder].1.contents()?;
        let prefix = url.path().trim_matches('/').to_owned();
        let mut numbers = Vec::new();
        if self.are_told {
            for name in &contents.splits {
                numbers.push(Splits::number_in(&mut self.splits, name));
            }
        }
        for (file, split) in contents.files {
            let name = format!("{prefix}/{file}");
            match numbers.get(split) {
                Some(&split) => self.push(name, root.join(&file), split)?,
                None => self.add(rule, name, root.join(&file))?,
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Stays> {
        let mut seen = HashSet::new();
        if let Some(twice) = self
            .files
            .iter()
            .find(|file| !seen.insert(file.location.to_string()))
        {
            return Err(Hinted::new(
                format!("the file {} is there twice", twice.name),
                "make the paths of the sources exclude each other",
            )
            .into());
        }
        let has_files = |split: usize| self.files.iter().any(|file| file.split == split);
        if let Some(unused) = (0..self.splits.len()).find(|split| !self.are_told && !has_files(*split)) {
            return Err(Hinted::new(
                format!("no file is of the split `{}`", self.splits[unused]),
                "the patterns of splits are those of whole paths, as in `data/train/*`",
            )
            .into());
        }
        if self.splits.is_empty() {
            bail!("there are no splits: neither the recipe nor its sources say any");
        }
        let declared = self
            .table
            .spec
            .declared
            .iter()
            .filter_map(|(name, declared)| match declared {
                Declared::Feature(feature) => Some((name.clone(), feature.clone())),
                Declared::Classes => None,
            });
        let named = self
            .folders
            .iter()
            .map(|(name, folder)| (name.clone(), &folder.features));
        let features = match one_schema(named)? {
            Some(of_folder) => {
                let mut features: Vec<_> = of_folder
                    .iter()
                    .map(|(name, feature)| (name.to_owned(), feature.clone()))
                    .collect();
                for (name, feature) in declared {
                    let known = features.iter_mut().find(|(known, _)| *known == name);
                    let known = known.with_context(|| {
                        format!(
                            "`features.{name}`: {} has no such feature",
                            dataset_info::FILE_NAME
                        )
                    })?;
                    known.1 = feature;
                }
                Some(Features::new(features)?)
            }
            None if self.table.spec.declared.is_empty() => None,
            None => Some(Features::new(declared.collect())?),
        };
        Ok(Stays {
            may_have_more: self.is_tfds(),
            splits: self.splits,
            files: self.files,
            features,
        })
    }
}
