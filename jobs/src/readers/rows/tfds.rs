//! Rows of folders that TFDS wrote: the examples of their shards, under the folder's own features.
//!
//! `dataset_info.json` says which shards there are, of which splits, in which order, and how many examples each has; `features.json` and the files of
//! labels say what an example is. A record is decoded under these, as the loader does it, and put together again as values. So everything
//! that can be loaded can be read: what is nested, sequences in sequences, encoded tensors. A feature that the recipe declares stands for the folder's.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use prep_formats::columns::{Batch, BatchDecoder, Cell as Stored, Images};
use prep_formats::dataset_info::{self, DatasetInfo};
use prep_formats::features::{Feature, Features};
use prep_formats::store::Location;
use prep_formats::value::DType;

use crate::error::Hinted;
use crate::readers::rows::cell::{Cell, Row};
use crate::readers::rows::file::{Lies, RowFile};
use crate::readers::rows::records::{ArrayRecords, TfRecords, open};
use crate::readers::rows::survey::Survey;
use crate::readers::rows::{Contents, RawRow, RowReader, Rows};

/// Reads TFDS folders.
#[derive(Debug, Default)]
pub(crate) struct Tfds {
    folders: Arc<Folders>,
    columns: Option<Arc<Columns>>,
}

/// What is known of the folders that were looked at.
#[derive(Debug, Default)]
struct Folders {
    known: Mutex<HashMap<PathBuf, Arc<Folder>>>,
}

/// A folder, as its files describe it.
#[derive(Debug)]
pub(crate) struct Folder {
    info: DatasetInfo,
    pub(crate) features: Features,
    /// Examples of each shard, by its name.
    lengths: HashMap<String, u64>,
}

impl Folder {
    /// Reads what describes a folder.
    ///
    /// # Errors
    /// A folder that is none of TFDS's, or whose shards are of another kind than those that can be read.
    pub(crate) fn open(at: &Location) -> Result<Self> {
        let read = || -> Result<Self, prep_formats::Error> {
            let info = DatasetInfo::read_location(at)?;
            let features = Features::read_location(at)?;
            let mut lengths = HashMap::new();
            for (split, names) in info.splits.iter().zip(info.shard_names()?) {
                lengths.extend(names.into_iter().zip(split.shard_lengths.iter().copied()));
            }
            Ok(Self {
                info,
                features,
                lengths,
            })
        };
        let folder = read().map_err(|error| {
            let absent = matches!(&error, prep_formats::Error::Io { source, .. }
                if source.kind() == std::io::ErrorKind::NotFound);
            match absent {
                true => Hinted::new(
                    format!("{at} is no folder of TFDS: {error}"),
                    "name the folder of one version, which has `dataset_info.json` and `features.json`",
                )
                .into(),
                false => anyhow::Error::from(error).context(format!("could not read the TFDS folder {at}")),
            }
        })?;
        let format = folder.info.shard_format();
        if !["tfrecord", "array_record"].contains(&format) {
            return Err(Hinted::new(
                format!(
                    "{}: its shards are `{format}` files",
                    at.join(dataset_info::FILE_NAME)
                ),
                "TFDS folders of `tfrecord` and `array_record` files can be read",
            )
            .into());
        }
        Ok(folder)
    }

    /// Its splits and shards.
    pub(crate) fn contents(&self) -> Result<Contents> {
        let mut files = Vec::new();
        for (split, names) in self.info.shard_names()?.into_iter().enumerate() {
            files.extend(names.into_iter().map(|name| (name, split)));
        }
        Ok(Contents {
            splits: self.info.splits.iter().map(|split| split.name.clone()).collect(),
            files,
            aside: std::iter::once(dataset_info::FILE_NAME.to_owned())
                .chain(self.features.to_files().into_iter().map(|(name, _)| name))
                .collect(),
        })
    }

    fn is_array_record(&self) -> bool {
        self.info.shard_format() == "array_record"
    }

    /// Whether its shards are ArrayRecord files, and how many examples a shard has.
    pub(crate) fn shard(&self, name: &str) -> (bool, Option<u64>) {
        (self.is_array_record(), self.lengths.get(name).copied())
    }
}

/// The error about a shard that has not as many examples as its folder says.
pub(crate) fn other_length(shown: &str, found: u64, wanted: u64) -> anyhow::Error {
    Hinted::new(
        format!("{shown} has {found} records, {} says {wanted}", dataset_info::FILE_NAME),
        "the folder is damaged or incomplete: get it again, or read its files with `kind = \"tfrecord\"` or `\"array_record\"`",
    )
    .into()
}

/// The features of several folders, which have to be the same; the first one's descriptions count.
pub(crate) fn one_schema<'a>(
    folders: impl Iterator<Item = (String, &'a Features)>,
) -> Result<Option<&'a Features>> {
    let mut first: Option<(String, &Features)> = None;
    for (name, features) in folders {
        match &first {
            None => first = Some((name, features)),
            Some((other, known)) if known.canonical_json() != features.canonical_json() => {
                return Err(Hinted::new(
                    format!("the folders {other} and {name} have different features"),
                    "make them datasets of their own: two recipes, or configs of one",
                )
                .into());
            }
            Some(_) => {}
        }
    }
    Ok(first.map(|(_, features)| features))
}

impl Tfds {
    /// The folder that a file is in, and its name there.
    fn folder_of(&self, file: &RowFile<'_>) -> Result<(Arc<Folder>, String)> {
        let Lies::File(_, path) = file.lies() else {
            bail!("{}: a shard of TFDS cannot be in an archive", file.shown);
        };
        let parent = path.parent().unwrap_or(Path::new("."));
        let mut known = self.folders.known.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = match known.get(parent) {
            Some(folder) => Arc::clone(folder),
            None => {
                let folder = Arc::new(Folder::open(&Location::from_path(parent))?);
                known.insert(parent.to_owned(), Arc::clone(&folder));
                folder
            }
        };
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok((folder, name))
    }
}

impl RowReader for Tfds {
    fn endings(&self) -> &'static [&'static str] {
        &[".tfrecord", ".array_record"]
    }

    fn takes(&self, name: &str) -> bool {
        TfRecords.takes(name) || ArrayRecords.takes(name)
    }

    fn unit(&self) -> &'static str {
        "record"
    }

    fn is_aside(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        [dataset_info::FILE_NAME, "features.json"].contains(&name) || name.ends_with(".labels.txt")
    }

    fn contents(&self, folder: &Location) -> Result<Option<Contents>> {
        let described = Folder::open(folder)?;
        let mut contents = described.contents()?;
        if let Some(path) = folder.as_path() {
            contents.aside.retain(|name| path.join(name).exists());
        }
        if let Some(path) = folder.as_path()
            && let Some((name, split)) = contents.files.iter().find(|(name, _)| !path.join(name).exists())
        {
            return Err(Hinted::new(
                format!(
                    "{} names a shard of split `{}` that is not there: {name}",
                    folder.join(dataset_info::FILE_NAME),
                    contents.splits[*split]
                ),
                "the folder is incomplete: get it again",
            )
            .into());
        }
        Ok(Some(contents))
    }

    fn columns(&self, file: &mut RowFile<'_>, _source: u32, _survey: &mut Survey) -> Result<bool> {
        let (folder, name) = self.folder_of(file)?;
        if let (true, Some(wanted)) = folder.shard(&name) {
            let found = open(file)?.1.num_records();
            if found != wanted {
                return Err(other_length(&file.shown, found, wanted));
            }
        }
        Ok(true)
    }

    /// Features are those of the folders, whose files of rows do not tell them.
    fn looks_at_all(&self) -> bool {
        true
    }

    fn features(&self, _survey: &Survey) -> Result<Vec<(String, Feature)>> {
        let known = self.folders.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut folders: Vec<_> = known.iter().collect();
        folders.sort_unstable_by_key(|(path, _)| *path);
        let named = folders
            .iter()
            .map(|(path, folder)| (path.display().to_string(), &folder.features));
        let features = one_schema(named)?;
        let all = features.into_iter().flat_map(Features::iter);
        Ok(all
            .map(|(name, feature)| (name.to_owned(), feature.clone()))
            .collect())
    }

    fn knowing(&self, columns: &Features) -> Result<Option<Arc<dyn RowReader>>> {
        Ok(Some(Arc::new(Self {
            folders: Arc::clone(&self.folders),
            columns: Some(Arc::new(Columns::new(columns.clone())?)),
        })))
    }

    fn pieces(&self, file: &mut RowFile<'_>) -> Result<u64> {
        let (folder, name) = self.folder_of(file)?;
        match folder.shard(&name) {
            (true, Some(_)) => ArrayRecords.pieces(file),
            _ => Ok(1),
        }
    }

    fn read(&self, file: &mut RowFile<'_>, piece: u64, rows: &mut dyn Rows) -> Result<()> {
        let (folder, name) = self.folder_of(file)?;
        if folder.is_array_record() {
            // Its number of records was looked at before.
            return ArrayRecords.read(file, piece, rows);
        }
        let shown = file.shown.clone();
        let mut counted = Counted {
            rows,
            count: 0,
            is_cut: false,
        };
        TfRecords.read(file, piece, &mut counted)?;
        match folder.shard(&name).1 {
            Some(wanted) if !counted.is_cut && counted.count != wanted => {
                Err(other_length(&shown, counted.count, wanted))
            }
            _ => Ok(()),
        }
    }

    fn cells(&self, data: &Bytes, _tag: u64) -> Result<Row> {
        let columns = self.columns.as_ref().context("the features are not known yet")?;
        columns.row(data)
    }
}

/// Counts rows on their way.
struct Counted<'a> {
    rows: &'a mut dyn Rows,
    count: u64,
    /// Whether rows are left out: no more were wanted, or damage took them.
    is_cut: bool,
}

impl Rows for Counted<'_> {
    fn put(&mut self, row: RawRow) -> Result<std::ops::ControlFlow<()>> {
        self.count += 1;
        let flow = self.rows.put(row)?;
        self.is_cut |= flow.is_break();
        Ok(flow)
    }

    fn fault(&mut self, row: u64, reason: &str) -> Result<()> {
        self.is_cut = true;
        self.rows.fault(row, reason)
    }
}

/// Takes records apart; decoders are kept, one for each thread at a time.
#[derive(Debug)]
struct Columns {
    features: Features,
    kept: Mutex<Vec<(BatchDecoder, Batch)>>,
}

impl Columns {
    fn new(features: Features) -> Result<Self> {
        let decoder = BatchDecoder::new(&features, Images::Encoded)
            .context("the features of the TFDS folder cannot be decoded")?;
        let batch = decoder.new_batch(1);
        Ok(Self {
            features,
            kept: Mutex::new(vec![(decoder, batch)]),
        })
    }

    fn row(&self, record: &[u8]) -> Result<Row> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (mut decoder, mut batch) = match kept {
            Some(kept) => kept,
            None => {
                let decoder = BatchDecoder::new(&self.features, Images::Encoded)?;
                let batch = decoder.new_batch(1);
                (decoder, batch)
            }
        };
        decoder.clear(&mut batch);
        let decoded = decoder.push(record, &mut batch).map_err(anyhow::Error::from);
        let row = decoded.and_then(|()| {
            let specs = decoder.specs().iter().zip(&batch.columns);
            let leaves: Vec<Leaf<'_>> = specs
                .map(|(spec, column)| Leaf {
                    path: &spec.path,
                    dtype: spec.dtype,
                    value: column.cell(spec, 0).unwrap_or(Stored::Missing),
                })
                .collect();
            let features = self.features.iter();
            features
                .map(|(name, feature)| Ok((name.to_owned(), field(name, feature, &leaves, 0)?)))
                .collect()
        });
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push((decoder, batch));
        row
    }
}

/// What is stored of a feature that is not made of others.
#[derive(Debug, Clone)]
struct Leaf<'a> {
    path: &'a [String],
    dtype: DType,
    value: Stored<'a>,
}

/// The value of a field out of the leaves of all.
fn field(name: &str, feature: &Feature, leaves: &[Leaf<'_>], depth: usize) -> Result<Cell> {
    let own: Vec<Leaf<'_>> = leaves
        .iter()
        .filter(|leaf| leaf.path.get(depth).is_some_and(|part| part == name))
        .cloned()
        .collect();
    assemble(feature, &own, depth + 1).with_context(|| format!("feature `{name}`"))
}

/// Puts a value together: `depth` is how many names lead to it.
fn assemble(feature: &Feature, leaves: &[Leaf<'_>], depth: usize) -> Result<Cell> {
    match feature {
        Feature::Dict(fields) => {
            let fields = fields.iter();
            let cells =
                fields.map(|(name, feature)| Ok((name.clone(), field(name, feature, leaves, depth)?)));
            Ok(Cell::Dict(cells.collect::<Result<_>>()?))
        }
        Feature::Translation { languages } => {
            let languages = languages.iter();
            let cells = languages
                .map(|language| Ok((language.clone(), field(language, &Feature::Text, leaves, depth)?)));
            Ok(Cell::Dict(cells.collect::<Result<_>>()?))
        }
        Feature::TranslationVariableLanguages { .. } => {
            let pair = Feature::dict([("language", Feature::Text), ("translation", Feature::Text)]);
            list(&pair, leaves, depth)
        }
        Feature::Sequence { feature, .. } | Feature::Dataset { feature, .. } => list(feature, leaves, depth),
        Feature::Optional(inner) => assemble(inner, leaves, depth),
        leaf => match leaves {
            [one] => Ok(plain(matches!(leaf, Feature::Text), one.dtype, &one.value)),
            _ => bail!("it is stored as {} values, wanted one", leaves.len()),
        },
    }
}

/// The elements of a sequence.
fn list(element: &Feature, leaves: &[Leaf<'_>], depth: usize) -> Result<Cell> {
    if let ([one], Feature::Scalar { .. } | Feature::Tensor { .. } | Feature::BBox { .. }) = (leaves, element)
        && matches!(one.value, Stored::Array { .. })
    {
        // Numbers stay together.
        return Ok(plain(false, one.dtype, &one.value));
    }
    let mut length = None;
    for leaf in leaves {
        let found = length_of(&leaf.value);
        if *length.get_or_insert(found) != found {
            bail!(
                "its sequences have {} and {found} elements, which should be as many",
                length.unwrap_or(0)
            );
        }
    }
    let mut cells = Vec::new();
    for index in 0..length.unwrap_or(0) {
        let inner: Option<Vec<Leaf<'_>>> = leaves
            .iter()
            .map(|leaf| {
                Some(Leaf {
                    value: element_of(&leaf.value, index)?,
                    ..leaf.clone()
                })
            })
            .collect();
        let inner = inner.ok_or_else(|| anyhow!("element {index} of the sequence is missing"))?;
        cells.push(assemble(element, &inner, depth)?);
    }
    Ok(Cell::List(cells))
}

fn length_of(value: &Stored<'_>) -> usize {
    match value {
        Stored::Array { shape, .. } | Stored::Strings { shape, .. } => shape
            .first()
            .map_or(0, |size| usize::try_from(*size).unwrap_or(0)),
        Stored::List(values) => values.len(),
        _ => 0,
    }
}

/// What stands at one position of the outermost dimension.
fn element_of<'a>(value: &Stored<'a>, index: usize) -> Option<Stored<'a>> {
    let length = length_of(value);
    Some(match value {
        Stored::Array { shape, data } => {
            let size = data.len().checked_div(length)?;
            Stored::Array {
                shape: shape[1..].to_vec(),
                data: data.get(index * size..(index + 1) * size)?,
            }
        }
        Stored::Strings { shape, strings } => {
            let size = strings.len().checked_div(length)?;
            Stored::Strings {
                shape: shape[1..].to_vec(),
                strings: strings.get(index * size..(index + 1) * size)?.to_vec(),
            }
        }
        Stored::List(values) => values.get(index)?.clone(),
        _ => return None,
    })
}

/// A value that is not made of others; byte strings are texts or not.
fn plain(is_text: bool, dtype: DType, value: &Stored<'_>) -> Cell {
    match value {
        Stored::Array { shape, data } => {
            let shape = shape
                .iter()
                .map(|size| usize::try_from(*size).unwrap_or(usize::MAX));
            Cell::Tensor(dtype, shape.collect(), Bytes::copy_from_slice(data))
        }
        Stored::Strings { shape, strings } if shape.is_empty() => {
            let bytes = Bytes::copy_from_slice(strings.first().copied().unwrap_or_default());
            if is_text {
                Cell::Text(bytes)
            } else {
                Cell::Bytes(bytes)
            }
        }
        Stored::Strings { .. } | Stored::List(_) => {
            let elements = (0..length_of(value)).filter_map(|index| element_of(value, index));
            Cell::List(elements.map(|element| plain(is_text, dtype, &element)).collect())
        }
        _ => Cell::Null,
    }
}

#[cfg(test)]
mod tests {
    use prep_formats::tfrecord;

    use super::*;
    use crate::readers::rows::convert;

    fn golden() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/features/kitchen_sink")
    }

    fn records() -> Vec<Vec<u8>> {
        let path = golden().join("records.tfrecord");
        let mut reader = tfrecord::Reader::open(path, tfrecord::ReadOptions::default()).unwrap();
        let mut records = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            records.push(record.to_vec());
        }
        records
    }

    /// All of TFDS's connectors, nested and ragged: values out of a record are encoded to one that decodes to the same.
    #[test]
    fn values_of_every_connector_come_back_as_tfds_stored_them() {
        let features = Features::read_folder(&golden()).unwrap();
        let columns = Columns::new(features.clone()).unwrap();
        let mut encoder = features.encoder();
        let mut decoder = BatchDecoder::new(&features, Images::Encoded).unwrap();
        for record in records() {
            let row = columns.row(&record).unwrap();
            assert_eq!(row.len(), features.len());
            let values: Vec<_> = row
                .into_iter()
                .map(|(name, cell)| {
                    let (name, feature) = features.iter().find(|(other, _)| *other == name).unwrap();
                    (
                        name,
                        convert::value(feature, cell, name, convert::Lacking::Named(&[])).unwrap(),
                    )
                })
                .collect();
            let mut again = Vec::new();
            encoder.encode(&values, &mut again).unwrap();
            let batches = [&record, &again].map(|record| {
                let mut batch = decoder.new_batch(1);
                decoder.push(record, &mut batch).unwrap();
                format!("{batch:?}")
            });
            assert_eq!(batches[0], batches[1]);
        }
    }

    #[test]
    fn folders_of_one_dataset_have_one_schema() {
        let features = Features::read_folder(&golden()).unwrap();
        let other = features.select(&["label", "text"]).unwrap();
        let named = |all: [&'static str; 2], second: &Features| {
            let second = second.clone();
            let pairs = [(all[0].to_owned(), features.clone()), (all[1].to_owned(), second)];
            one_schema(pairs.iter().map(|(name, features)| (name.clone(), features)))
                .map(|found| found.cloned())
                .map_err(|error| error.to_string())
        };
        assert_eq!(named(["a", "b"], &features), Ok(Some(features.clone())));
        let error = named(["a", "b"], &other).unwrap_err();
        assert!(error.contains("a and b have different features"), "{error}");
        assert_eq!(one_schema(std::iter::empty()).unwrap(), None);
    }

    #[test]
    fn sequences_that_belong_together_are_equally_long() {
        let pair = Feature::dict([("a", Feature::Text), ("b", Feature::Text)]);
        let strings = |count: usize| Stored::Strings {
            shape: vec![count as u64],
            strings: vec![b"x"; count],
        };
        let (a, b) = (["s".to_owned(), "a".to_owned()], ["s".to_owned(), "b".to_owned()]);
        let leaf = |path, count| Leaf {
            path,
            dtype: DType::String,
            value: strings(count),
        };
        let whole = list(&pair, &[leaf(&a[..], 2), leaf(&b[..], 2)], 1).unwrap();
        assert!(matches!(&whole, Cell::List(rows) if rows.len() == 2), "{whole:?}");
        let error = list(&pair, &[leaf(&a[..], 2), leaf(&b[..], 3)], 1).unwrap_err();
        assert!(error.to_string().contains("2 and 3 elements"), "{error}");
    }
}
