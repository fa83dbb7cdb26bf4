//! What a recipe of rows makes: from files to rows, from rows to the values of features, their split and their key.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use prep_catalog::manifest::SourceManifest;
use prep_formats::example::ExampleView;
use prep_formats::features::{ExampleEncoder, Feature, Features};
use prep_formats::value::{DType, Value};

use crate::build::{FRACTION_SALT, fraction_of};
use crate::builder::{
    DatasetSpec, Decoded, Input, Known, MadeOf, Making, Output, Raw, Source, SourceSpec, Standing,
};
use crate::convert::filter::{self, Expression};
use crate::error::Hinted;
use crate::fetch::Checksum;
use crate::readers::rows::cell::Cell;
use crate::readers::rows::convert::{self, Lacking, Misfit};
use crate::readers::rows::file::{each_row_file, folder_of, is_packed};
use crate::readers::rows::files::{Splits, expand};
use crate::readers::rows::learn::{Lesson, Notes, learn};
use crate::readers::rows::picture::PictureRule;
use crate::readers::rows::survey::{Survey, quoted};
use crate::readers::rows::{RawRow, RowReader, Rows, reader};
use crate::recipe::rows::{Declared, KEY_NAMES, KeyPiece, KeyRule};
use crate::recipe::{RowsSpec, SplitFiles, near};
use crate::tfds::{Key, key_hash};

/// The builder behind a recipe of rows.
#[derive(Debug)]
pub(crate) struct Table {
    pub(super) spec: RowsSpec,
    pub(super) splits: Arc<Splits>,
    pub(super) files: Vec<SplitFiles>,
    pub(super) reader: Arc<dyn RowReader>,
    filter: Option<Expression>,
    /// For each of the sources which of the recipe's it is of, once they are known.
    pub(super) rules: Arc<Vec<u32>>,
    learned: Option<Arc<Learned>>,
}

/// In place of one of the recipe's sources, for a source that is not read but taken over.
const TAKEN_OVER: u32 = u32::MAX;

/// What is known once the sources were looked at.
#[derive(Debug)]
struct Learned {
    columns: Vec<Column>,
    /// The columns by name.
    index: HashMap<String, usize>,
    /// The schema of examples.
    features: Features,
    /// The features that the filter asks for, and encoders for them, one a thread at a time.
    filter_features: Features,
    encoders: Mutex<Vec<(ExampleEncoder, Vec<u8>)>>,
    /// For each input its source and piece.
    inputs: Vec<(usize, u64)>,
    /// The schema of all columns, as text.
    schema: String,
    /// What was learnt of each source, as text.
    sources: Vec<String>,
}

/// A column of the sources.
#[derive(Debug)]
struct Column {
    name: String,
    feature: Feature,
    /// The name of the feature that it becomes; `None` where it is not kept.
    output: Option<String>,
    /// Whether the filter asks for it.
    in_filter: bool,
    /// What becomes of its pictures.
    picture: Option<PictureRule>,
}

impl Table {
    pub(crate) fn new(spec: &RowsSpec, dataset: &DatasetSpec, files: &[SplitFiles]) -> Self {
        let names = dataset.splits.iter().map(|split| split.name.clone()).collect();
        let mut table = Self {
            spec: spec.clone(),
            splits: Arc::new(Splits::new(spec, names, files)),
            files: files.to_vec(),
            reader: reader(spec, None).into(),
            // It was parsed when the recipe was checked.
            filter: spec.filter.as_deref().and_then(|text| filter::parse(text).ok()),
            rules: Arc::default(),
            learned: None,
        };
        if let Some(wanted) = table.wanted() {
            // Of `a/b` the column may be `a`.
            let bases = wanted.iter().filter_map(|name| name.split_once('/'));
            let bases: Vec<String> = bases.map(|(base, _)| base.to_owned()).collect();
            table.reader = reader(spec, Some([wanted, bases].concat())).into();
        }
        table
    }

    /// What decides the output, without where things are.
    pub(crate) fn identity(&self) -> String {
        let mut spec = self.spec.clone();
        for rule in &mut spec.sources {
            rule.at.clear();
            rule.is_taken_over = false;
        }
        spec.splits_at.clear();
        spec.filter = self.filter.as_ref().map(Expression::to_string);
        format!("{spec:?}, {:?}", self.files)
    }

    /// The same with the files that its sources stand for, and these.
    pub(crate) fn with_files(
        &self,
        dataset: &DatasetSpec,
        from: &[String],
    ) -> Result<(Self, Vec<SourceSpec>)> {
        let (sources, rules, told) = expand(&self.spec, &self.splits, &dataset.sources, &*self.reader, from)?;
        let mut table = Self::new(&self.spec, dataset, &self.files);
        table.rules = Arc::new(rules);
        if let Some(told) = told {
            table.splits = Arc::new(told);
        }
        Ok((table, sources))
    }

    /// The splits by name: the recipe's, or those that the folders of its sources say.
    pub(crate) fn split_names(&self) -> &[String] {
        self.splits.names()
    }

    /// The columns that are wanted, where the recipe names them all: those that stay, and those of filter and key.
    fn wanted(&self) -> Option<Vec<String>> {
        let mut names = self.spec.select.clone()?;
        names.extend(self.filter_columns());
        names.extend(self.key_columns().map(str::to_owned));
        names.sort();
        names.dedup();
        Some(names)
    }

    fn key_columns(&self) -> impl Iterator<Item = &str> {
        self.spec.key.iter().flat_map(KeyRule::columns)
    }

    /// The columns that the filter names: the first part of `a/b`.
    fn filter_columns(&self) -> Vec<String> {
        let mut names = Vec::new();
        if let Some(filter) = &self.filter {
            filter.features(&mut names);
        }
        names
    }

    fn declared(&self, column: &str) -> Option<&Declared> {
        let mut all = self.spec.declared.iter();
        all.find(|(name, _)| name == column).map(|(_, declared)| declared)
    }

    /// Looks at the sources for what the recipe does not say.
    pub(crate) fn learn(
        &self,
        sources: &[Source],
        known: &[Option<Known>],
        workers: usize,
    ) -> Result<String> {
        let is_known = |name: &String| matches!(self.declared(name), Some(Declared::Feature(_)));
        let wants_rows = !self.wanted().is_some_and(|names| names.iter().all(is_known));
        let classes: Vec<String> = self
            .spec
            .declared
            .iter()
            .filter(|(_, declared)| *declared == Declared::Classes)
            .map(|(name, _)| name.clone())
            .collect();
        let lesson = Lesson {
            reader: &*self.reader,
            members: &self.spec.options.members,
            classes: &classes,
            sample: self.spec.options.sample.unwrap_or(u64::MAX),
            wants_rows,
            settings: &format!("{} {:?} {:?}", self.spec.kind, self.spec.options, self.wanted()),
        };
        let learnt = learn(&lesson, sources, known, workers)?;
        if let Some((place, reason)) = &learnt.fault
            && learnt.survey.rows == 0
            && learnt.survey.columns.is_empty()
            && wants_rows
        {
            // Nothing to learn from but what is damaged.
            return Err(Hinted::new(
                format!("{}: {reason}", place.shown()),
                "no row could be read, so the columns do not show: is this the right reader?",
            )
            .into());
        }
        learnt.survey.check()?;
        let own = self.reader.features(&learnt.survey)?;
        let mut features = Vec::new();
        for name in self.columns_of(&learnt.survey, &own)? {
            let known = own.iter().find(|(other, _)| *other == name);
            let feature = match (self.declared(&name), known) {
                (Some(Declared::Feature(feature)), _) | (_, Some((_, feature))) => feature.clone(),
                (Some(Declared::Classes), None) => learnt.survey.label(&name)?,
                (None, None) => learnt.survey.feature(&name)?,
            };
            features.push((name, feature));
        }
        let features = Features::new(features)?;
        let pieces = learnt.pieces.into_iter().enumerate();
        let notes = Notes {
            features: features.to_files(),
            pieces: pieces.filter(|(_, pieces)| *pieces != 1).collect(),
            sources: learnt.sources,
        };
        Ok(serde_json::to_string(&notes)?)
    }

    /// All columns that count: those that were seen or declared, without what is left out.
    fn columns_of(&self, survey: &Survey, own: &[(String, Feature)]) -> Result<Vec<String>> {
        let mut names: Vec<String> = match self.wanted() {
            Some(names) => names,
            None => {
                let declared = self.spec.declared.iter().map(|(name, _)| name);
                let own = own.iter().map(|(name, _)| name);
                survey
                    .columns
                    .keys()
                    .chain(declared)
                    .chain(own)
                    .cloned()
                    .collect()
            }
        };
        names.sort();
        names.dedup();
        let is_own = |name: &String| own.iter().any(|(other, _)| other == name);
        let known = |name: &String| {
            survey.columns.contains_key(name) || self.declared(name).is_some() || is_own(name)
        };
        // Where rows were not looked at, misspelt names show when they are read.
        let looked = survey.rows > 0 || !survey.columns.is_empty() || !own.is_empty();
        let check = |what: &str, column: &str| -> Result<()> {
            let name = column.to_owned();
            let base = name.split('/').next().unwrap_or_default().to_owned();
            if !looked || known(&name) || known(&base) {
                return Ok(());
            }
            Err(unknown_column(
                what,
                column,
                survey.columns.keys().map(String::as_str),
            ))
        };
        for name in self.spec.select.iter().flatten() {
            check("`select`", name)?;
        }
        for name in &self.spec.drop {
            check("`drop`", name)?;
        }
        for (name, _) in &self.spec.rename {
            check("`rename`", name)?;
        }
        for name in &self.spec.missing_as_empty {
            check("`missing_as_empty`", name)?;
        }
        for name in self.filter_columns() {
            check("`filter`", &name)?;
        }
        for name in self.key_columns() {
            check("`key`", name)?;
        }
        for (name, _) in &self.spec.declared {
            if survey.rows > 0 && !survey.columns.contains_key(name) && !is_own(name) {
                return Err(unknown_column(
                    "`features`",
                    name,
                    survey.columns.keys().map(String::as_str),
                ));
            }
        }
        if !looked && names.is_empty() {
            bail!(Hinted::new(
                "the sources have no rows, so their columns do not show",
                "say which there are: `select = [..]`, and each under `[features]`"
            ));
        }
        // Of nested values that the filter names, the column counts.
        let mut columns: Vec<String> = Vec::new();
        for name in names {
            let base = name.split('/').next().unwrap_or_default().to_owned();
            columns.push(if known(&name) || !known(&base) { name } else { base });
        }
        columns.sort();
        columns.dedup();
        let needed = |name: &String| {
            self.filter_columns()
                .iter()
                .any(|other| other == name || other.split('/').next() == Some(name.as_str()))
                || self.key_columns().any(|other| other == name)
        };
        columns.retain(|name| !self.spec.drop.contains(name) || needed(name));
        Ok(columns)
    }

    /// The same with what was learnt, and the schema of its examples.
    pub(crate) fn with_learned(&self, dataset: &DatasetSpec, text: &str) -> Result<(Self, Features)> {
        let notes: Notes = serde_json::from_str(text).context("what was learnt of the sources is damaged")?;
        let whole = format!("{:?}", notes.features);
        let files: BTreeMap<String, String> = notes.features.into_iter().collect();
        let schema = files.get("features.json").map_or("", String::as_str);
        let all = Features::from_files("features.json", schema, |file| Ok(files.get(file).cloned()))?;
        let filter_names = self.filter_columns();
        let mut columns = Vec::new();
        let mut outputs = Vec::new();
        for (name, feature) in all.iter() {
            let selected = self
                .spec
                .select
                .as_ref()
                .is_none_or(|select| select.iter().any(|other| other == name));
            let is_kept = selected && !self.spec.drop.iter().any(|other| other == name);
            let mut renamed = self.spec.rename.iter();
            let new = renamed.find(|(old, _)| old == name).map(|(_, new)| new.as_str());
            let output = is_kept.then(|| new.unwrap_or(name).to_owned());
            if let Some(output) = &output {
                outputs.push((output.clone(), feature.clone()));
            }
            columns.push(Column {
                name: name.to_owned(),
                feature: feature.clone(),
                output,
                picture: self
                    .spec
                    .pictures
                    .iter()
                    .find(|(column, _)| column == name)
                    .map(|(_, rule)| *rule),
                in_filter: filter_names.iter().any(|other| {
                    other == name || other.split('/').next() == Some(name) && all.get(other).is_none()
                }),
            });
        }
        if outputs.is_empty() {
            bail!("no column is left to be a feature");
        }
        let features = Features::new(outputs)?;
        if let Some((input, target)) = &self.spec.supervised {
            for name in [input, target] {
                if features.get(name).is_none() {
                    let known = features.iter().map(|(name, _)| name);
                    return Err(unknown_column("`supervised_keys`", name, known));
                }
            }
        }
        let filter_features = columns
            .iter()
            .filter(|column| column.in_filter)
            .map(|column| (column.name.clone(), column.feature.clone()));
        let mut inputs = Vec::new();
        for source in 0..dataset.sources.len() {
            let pieces = notes.pieces.iter().find(|(index, _)| *index == source);
            for piece in 0..pieces.map_or(1, |(_, pieces)| *pieces) {
                inputs.push((source, piece));
            }
        }
        let mut table = Self::new(&self.spec, dataset, &self.files);
        // What the reader noted while it learnt stays with it.
        table.reader = Arc::clone(&self.reader);
        table.rules = Arc::clone(&self.rules);
        table.splits = Arc::clone(&self.splits);
        if let Some(knowing) = self.reader.knowing(&all)? {
            table.reader = knowing;
        }
        table.learned = Some(Arc::new(Learned {
            index: columns
                .iter()
                .enumerate()
                .map(|(index, column)| (column.name.clone(), index))
                .collect(),
            filter_features: Features::new(filter_features.collect())?,
            encoders: Mutex::default(),
            columns,
            features: features.clone(),
            inputs,
            schema: whole,
            sources: notes.sources,
        }));
        Ok((table, features))
    }

    /// What decides what is made of each source. See [`Builder::making`](crate::builder::Builder::making).
    pub(crate) fn making(
        &self,
        dataset: &DatasetSpec,
        revision: &str,
        sums: &[Checksum],
    ) -> Result<Option<Making>> {
        let Some(learned) = &self.learned else {
            return Ok(None);
        };
        let mut spec = self.spec.clone();
        spec.sources.clear();
        spec.splits_at.clear();
        spec.supervised = None;
        spec.filter = self.filter.as_ref().map(Expression::to_string);
        let splits: Vec<&str> = dataset.splits.iter().map(|split| split.name.as_str()).collect();
        let settings = format!(
            "{revision} {spec:?} {splits:?} {} {}",
            dataset.options, learned.schema
        );
        let settings = blake3::hash(settings.as_bytes()).to_hex().to_string();
        // What says something of the rows of others counts for all that it was found with.
        let mut asides: HashMap<u32, String> = HashMap::new();
        for ((source, sum), rule) in dataset.sources.iter().zip(sums).zip(self.rules.iter()) {
            if self.reader.is_aside(&source.name) {
                let text = asides.entry(*rule).or_default();
                *text += &format!("{} {:?}\n", hex::encode(sum.sha256), source.name);
            }
        }
        let mut sources = Vec::with_capacity(dataset.sources.len());
        for (index, (source, sum)) in dataset.sources.iter().zip(sums).enumerate() {
            let rule = self.rules.get(index).copied().unwrap_or(TAKEN_OVER);
            let mut hasher = blake3::Hasher::new();
            let mut add = |text: &str| {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            };
            add(&settings);
            add(&source.name);
            add(&hex::encode(sum.sha256));
            add(&self.splits_of(source, rule)?);
            add(asides.get(&rule).map_or("", String::as_str));
            let learned = learned.sources.get(index).cloned().unwrap_or_default();
            sources.push(MadeOf {
                made: hasher.finalize().to_hex().to_string(),
                learned,
            });
        }
        Ok(Some(Making { settings, sources }))
    }

    /// Which split the files of a source are of; of an archive, whose members are not known, what decides it.
    fn splits_of(&self, source: &SourceSpec, rule: u32) -> Result<String> {
        let Some(rule) = self.spec.sources.get(rule as usize) else {
            return Ok(String::new());
        };
        if self.spec.fractions.is_some() || self.reader.is_aside(&source.name) {
            return Ok(String::new());
        }
        if is_packed(&source.name, self.reader.endings()) {
            return Ok(format!("{} {:?}", rule.name, self.files));
        }
        let Some(files) = source.files() else {
            return Ok(self.splits.of(&rule.name, &source.name, None)?.to_string());
        };
        let prefix = folder_of(&source.name, files.iter().next().unwrap_or_default());
        let mut hasher = blake3::Hasher::new();
        for path in files.iter() {
            let split = self.splits.of(&rule.name, &format!("{prefix}{path}"), None)?;
            hasher.update(&(split as u64).to_le_bytes());
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// The same with the sources of an earlier version before its own, without those that it had already.
    pub(crate) fn added_to(
        &self,
        dataset: &DatasetSpec,
        earlier: &[SourceManifest],
    ) -> Result<(Self, Vec<SourceSpec>)> {
        let known: HashSet<&str> = earlier.iter().map(|source| source.name.as_str()).collect();
        let mut sources = Vec::with_capacity(earlier.len());
        for source in earlier {
            sources.push(SourceSpec::taken_over(source)?);
        }
        let mut rules = vec![TAKEN_OVER; sources.len()];
        for (source, rule) in dataset.sources.iter().zip(self.rules.iter()) {
            if !known.contains(source.name.as_str()) {
                sources.push(source.clone());
                rules.push(*rule);
            }
        }
        let mut table = Self::new(&self.spec, dataset, &self.files);
        table.rules = Arc::new(rules);
        table.splits = Arc::clone(&self.splits);
        Ok((table, sources))
    }

    /// What is stored with fewer bits than the sources have, to be said once.
    pub(crate) fn notes(&self) -> Option<String> {
        let learned = self.learned.as_ref()?;
        let rounded: Vec<String> = learned
            .features
            .iter()
            .filter(|(_, feature)| is_rounded(feature))
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        let mut notes = Vec::new();
        if !rounded.is_empty() {
            notes.push(format!(
                "float64 is stored as float32, as TFDS does: {}; to keep all bits declare such a column as \
                 `kind = \"tensor\"`, `shape = []`, `dtype = \"float64\"`, `encoding = \"bytes\"`",
                rounded.join(", ")
            ));
        }
        let unread = learned.features.missing_beyond_tfds();
        notes.extend(unread.into_iter().map(|(name, reason)| {
            format!("TFDS itself cannot read `{name}`, which may be missing and has {reason}; all that prep reads does not mind")
        }));
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Whether no row is left out, and files say which split they are of.
    pub(crate) fn keeps_all(&self) -> bool {
        self.filter.is_none() && self.spec.fractions.is_none()
    }

    /// The sources of each input.
    pub(crate) fn inputs(&self, sources: usize) -> Vec<Vec<usize>> {
        match &self.learned {
            Some(learned) => learned.inputs.iter().map(|(source, _)| vec![*source]).collect(),
            None => (0..sources).map(|source| vec![source]).collect(),
        }
    }

    pub(crate) fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        let source = input.sources[0];
        let piece = self
            .learned
            .as_ref()
            .and_then(|learned| learned.inputs.get(input.index))
            .map_or(0, |(_, piece)| *piece);
        let rule = self
            .rules
            .get(source.index() as usize)
            .and_then(|rule| self.spec.sources.get(*rule as usize))
            .map_or("", |rule| rule.name.as_str());
        let files = source.files().map_or(1, |files| files.len());
        if self.reader.is_aside(&source.name) {
            return Ok(());
        }
        let is_packed = is_packed(&source.name, self.reader.endings());
        // One part for all files of a set: their number may be large, and messages name the file by themselves.
        let set_part = source.files().map(|_| output.part(&source.name));
        let members = &self.spec.options.members;
        each_row_file(source, members, &*self.reader, true, &mut |file| {
            let member = is_packed.then_some(file.path.as_str());
            let outer = if is_packed { &source.name } else { &file.path };
            let split = self.splits.of(rule, outer, member)?;
            let part = match set_part {
                Some(part) => part,
                None => output.part(&file.shown),
            };
            let mut rows = Emitter {
                output,
                split,
                part,
                path: file.path.clone(),
                source: &source.name,
                in_set: set_part.is_some(),
                unit: self.reader.unit(),
                standing: Standing {
                    source: source.index(),
                    file: file.index,
                    way: 0,
                },
                files,
                is_packed,
            };
            self.reader.read(file, piece, &mut rows)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The values of a row, its split and its key.
    pub(crate) fn decode(&self, dataset: &DatasetSpec, raw: &Raw) -> Result<Decoded<'_>> {
        let place = || self.place(dataset, raw);
        let Some(learned) = &self.learned else {
            bail!("the sources were not looked at");
        };
        let cells = self.reader.cells(&raw.data, raw.tag).map_err(|error| {
            let text = format!("{error:#}");
            match place() {
                place if place.is_empty() => anyhow!(text),
                place => anyhow!("{place}: {text}"),
            }
        })?;
        let key = match &self.spec.key {
            None => None,
            Some(rule) => Some(
                key_of(rule, dataset, raw, &cells, self.reader.unit().is_empty())
                    .map_err(|reason| anyhow!("{}: {reason}", place()))?,
            ),
        };
        let lacking = match self.reader.lists_may_lack() {
            true => Lacking::Any,
            false => Lacking::Named(&self.spec.missing_as_empty),
        };
        let mut values: Vec<Option<Value>> = vec![None; learned.columns.len()];
        for (name, cell) in cells {
            let Some(index) = learned.index.get(&name) else {
                let may_lack = cell == Cell::Null || self.reader.may_lack(&name);
                if self.spec.select.is_none() && !self.spec.drop.contains(&name) && !may_lack {
                    let message = format!(
                        "{}, column `{name}`: found {}, and the schema has no such column",
                        place(),
                        cell.describe()
                    );
                    let hint = format!(
                        "say what it is under `[features.{}]`, or leave it out with `drop`",
                        quoted(&name)
                    );
                    return Err(Hinted::new(message, hint).into());
                }
                continue;
            };
            let column = &learned.columns[*index];
            if column.output.is_some() || column.in_filter {
                let value = convert::value(&column.feature, cell, &name, lacking);
                let mut value = value.map_err(|misfit| explain(&place(), misfit))?;
                if let Some(rule) = &column.picture {
                    value = rule
                        .apply(value)
                        .with_context(|| format!("{}, column `{name}`", place()))?;
                }
                values[*index] = Some(value);
            }
        }
        for (column, value) in learned.columns.iter().zip(&mut values) {
            if value.is_none() && (column.output.is_some() || column.in_filter) {
                let found = convert::value(&column.feature, Cell::Null, &column.name, lacking);
                *value = Some(found.map_err(|misfit| explain(&place(), misfit))?);
            }
        }
        if let Some(filter) = &self.filter
            && !self.holds(filter, learned, &values).with_context(place)?
        {
            return Ok(Decoded::LeftOut);
        }
        let mut outputs = Vec::with_capacity(values.len());
        for (column, value) in learned.columns.iter().zip(values) {
            if let (Some(name), Some(value)) = (&column.output, value) {
                outputs.push((name.as_str(), value));
            }
        }
        Ok(match (&self.spec.fractions, key) {
            (None, key) => Decoded::Placed(outputs, raw.split, key),
            (Some(fractions), Some(key)) => {
                let split = fraction_of(fractions, key_hash(FRACTION_SALT, &key));
                Decoded::Placed(outputs, split, Some(key))
            }
            (Some(fractions), None) => Decoded::ByContent(outputs, fractions, None),
        })
    }

    /// Whether a row stays.
    fn holds(&self, filter: &Expression, learned: &Learned, values: &[Option<Value>]) -> Result<bool> {
        let kept = learned
            .encoders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let (mut encoder, mut buffer) =
            kept.unwrap_or_else(|| (learned.filter_features.encoder(), Vec::new()));
        let asked: Vec<(&str, Value)> = learned
            .columns
            .iter()
            .zip(values)
            .filter(|(column, _)| column.in_filter)
            .filter_map(|(column, value)| Some((column.name.as_str(), value.clone()?)))
            .collect();
        buffer.clear();
        encoder.encode(&asked, &mut buffer)?;
        let holds = filter
            .holds(&ExampleView::parse(&buffer)?)
            .map_err(|reason| anyhow!(reason));
        learned
            .encoders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((encoder, buffer));
        holds
    }

    /// Where a row is: in a set of files with the file, as messages name only the set.
    fn place(&self, dataset: &DatasetSpec, raw: &Raw) -> String {
        let line = match self.reader.unit() {
            "" => String::new(),
            unit => format!("{unit} {}", raw.record + 1),
        };
        let source = dataset.sources.get(raw.standing.source as usize);
        let path = source.and_then(|source| path_in_set(source, raw.standing.file));
        match (path, line.is_empty()) {
            (None, _) => line,
            (Some(path), true) => path,
            (Some(path), false) => format!("{path}, {line}"),
        }
    }
}

/// The path of a file of a set.
fn path_in_set(source: &SourceSpec, file: u32) -> Option<String> {
    let files = source.files()?;
    let prefix = folder_of(&source.name, files.iter().next()?);
    Some(format!("{prefix}{}", files.iter().nth(file as usize)?))
}

fn is_rounded(feature: &Feature) -> bool {
    use prep_formats::features::Encoding;

    match feature {
        Feature::Tensor {
            dtype: DType::Float64,
            encoding: Encoding::None,
            ..
        }
        | Feature::Scalar {
            dtype: DType::Float64,
        } => true,
        Feature::Optional(inner) => is_rounded(inner),
        Feature::Sequence { feature, .. } | Feature::Dataset { feature, .. } => is_rounded(feature),
        Feature::Dict(features) => features.iter().any(|(_, feature)| is_rounded(feature)),
        _ => false,
    }
}

fn unknown_column<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> anyhow::Error {
    let known: Vec<&str> = known.collect();
    let mut hint = match known.as_slice() {
        [] => "there are no columns".to_owned(),
        names => {
            let shown: Vec<String> = names.iter().take(50).map(|name| format!("`{name}`")).collect();
            format!("there are {}", shown.join(", "))
        }
    };
    if let Some(other) = near(name, known.iter().copied()).first() {
        hint = format!("did you mean `{other}`? {hint}");
    }
    Hinted::new(format!("{what}: no row has a column `{name}`"), hint).into()
}

/// The error about a value that does not fit its feature, which is its cause.
fn explain(place: &str, misfit: Misfit) -> anyhow::Error {
    let place = if place.is_empty() {
        String::new()
    } else {
        format!("{place}, ")
    };
    let context = Hinted::new(format!("{place}column `{}`", misfit.column), misfit.hint());
    anyhow::Error::new(misfit).context(context)
}

/// The key that a rule makes of a row.
fn key_of(
    rule: &KeyRule,
    dataset: &DatasetSpec,
    raw: &Raw,
    cells: &[(String, Cell)],
    is_whole: bool,
) -> Result<Key, String> {
    let cell = |name: &str| {
        let (_, cell) = cells.iter().find(|(other, _)| other == name)?;
        Some(convert::plain(cell).into_owned())
    };
    let text_of = |name: &str| -> Result<String, String> {
        match cell(name) {
            None => Err(format!("the key names the column `{name}`, which is missing")),
            Some(Cell::Int(number)) => Ok(number.to_string()),
            Some(Cell::UInt(number)) => Ok(number.to_string()),
            Some(Cell::Bool(value)) => Ok(value.to_string()),
            Some(Cell::Text(text) | Cell::Loose(text)) => String::from_utf8(text.to_vec())
                .map_err(|_| format!("the key's column `{name}` is not UTF-8")),
            Some(Cell::Bytes(bytes)) => String::from_utf8(bytes.to_vec())
                .map_err(|_| format!("the key's column `{name}` is not UTF-8")),
            Some(other) => Err(format!(
                "the key's column `{name}` has {}; wanted a text or an integer",
                other.describe()
            )),
        }
    };
    // A number alone is a number, as TFDS has it.
    if let [KeyPiece::Name(name)] = rule.pieces.as_slice()
        && let Some(Cell::Int(number)) = cell(name)
    {
        return Ok(Key::Int(i128::from(number)));
    }
    // Only where it is asked for: in a set of files it is looked up.
    let path_of = || {
        let own = match &raw.key {
            Key::Text(text) => text.as_str(),
            _ => "",
        };
        let source = dataset.sources.get(raw.standing.source as usize);
        source
            .and_then(|source| path_in_set(source, raw.standing.file))
            .unwrap_or_else(|| match (own.rsplit_once(':'), is_whole) {
                (Some((path, _)), false) => path.to_owned(),
                _ => own.to_owned(),
            })
    };
    let mut text = String::new();
    for piece in &rule.pieces {
        match piece {
            KeyPiece::Literal(literal) => text += literal,
            KeyPiece::Name(name) if cell(name).is_some() => text += &text_of(name)?,
            KeyPiece::Name(name) if name == "row" => text += &raw.record.to_string(),
            KeyPiece::Name(name) if KEY_NAMES.contains(&name.as_str()) => {
                let path = path_of();
                let (folders, file) = path.rsplit_once('/').unwrap_or(("", &path));
                text += match name.as_str() {
                    "path" => &path,
                    "file" => file,
                    "folder" => folders.rsplit('/').next().unwrap_or(""),
                    _ => file.rsplit_once('.').map_or(file, |(stem, _)| stem),
                };
            }
            KeyPiece::Name(name) => text += &text_of(name)?,
        }
    }
    Ok(Key::Text(text))
}

/// Hands rows to the build.
struct Emitter<'a, 'b> {
    output: &'a mut Output<'b>,
    split: usize,
    part: u32,
    path: String,
    /// The source's name.
    source: &'a str,
    in_set: bool,
    unit: &'static str,
    standing: Standing,
    /// Files of the source.
    files: u64,
    is_packed: bool,
}

impl Rows for Emitter<'_, '_> {
    fn put(&mut self, row: RawRow) -> Result<ControlFlow<()>> {
        let (position, total) = match (self.files, self.is_packed) {
            // Within an archive nothing says how far it is.
            (_, true) => (0, 0),
            (1, false) => row.way,
            (files, false) => (u64::from(self.standing.file), files),
        };
        let mut standing = self.standing;
        standing.way = match total {
            // All on one worker, each source on another.
            0 => {
                let hash = blake3::hash(self.source.as_bytes());
                hash.as_bytes()
                    .first_chunk()
                    .map_or(0, |bytes| u64::from_be_bytes(*bytes))
            }
            total => {
                let way = (u128::from(position) << 64) / u128::from(total);
                u64::try_from(way).unwrap_or(u64::MAX)
            }
        };
        let key = match self.unit {
            "" => self.path.clone(),
            _ => format!("{}:{}", self.path, row.row),
        };
        let mut raw = Raw::new(self.split, row.row, self.part, row.data)
            .with_tag(row.tag)
            .with_key(key);
        raw.standing = standing;
        self.output.emit(raw)?;
        Ok(ControlFlow::Continue(()))
    }

    fn fault(&mut self, row: u64, reason: &str) -> Result<()> {
        let mut place = match self.unit {
            "" => String::new(),
            unit => format!("{unit} {}: ", row + 1),
        };
        if self.in_set {
            place = format!("{}, {place}", self.path);
        }
        self.output
            .fault(self.split, self.part, row, &format!("{place}{reason}"))
    }
}
