//! Pictures in folders: by class, or with a table of what is known of each.
//!
//! The rules are those of Hugging Face's `imagefolder`:
//!
//! * a picture is a file whose name ends in one of [`ENDINGS`]; its bytes are stored as they are, after a look at their start;
//!   as an image, or as bytes (a scalar of type `string`) where there are WebP or TIFF files, which TFDS does not decode;
//! * its class is the name of the folder that it lies in, whatever is above: so `train/cat/1.jpg` and `test/cat/2.jpg` are both a `cat`;
//! * a `metadata.csv` or `metadata.jsonl` beside a picture, or in the next folder above that has one, up to that of the source, has a row with
//!   its path from there as `file_name`; the other columns are features. Then there is no class, unless `labels = true` asks for it.
//!
//! A picture without a row, and a row without a picture, are errors. Of a metadata file 24 bytes a row are held, which
//! are 24 GB at 10^9; the rows themselves are read where they lie, or held where they are in an archive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use prep_formats::features::Feature;
use prep_formats::value::DType;
use serde::{Deserialize, Serialize};

use crate::archive::each_file;
use crate::builder::Source;
use crate::error::Hinted;
use crate::readers::pack::{pack, unpack};
use crate::readers::rows::cell::{Cell, Row};
use crate::readers::rows::file::{Lies, RowFile};
use crate::readers::rows::survey::{Place, Survey, picture};
use crate::readers::rows::{RawRow, RowReader, Rows};
use crate::recipe::rows::RowOptions;

/// How names of pictures end.
pub(crate) const ENDINGS: &[&str] = &[".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"];
/// Of these, what no image feature holds, since TFDS decodes no such files: with one, all pictures are stored as bytes.
const FOREIGN: &[&str] = &[".webp", ".tif", ".tiff"];
/// The largest picture.
const MOST_BYTES: u64 = 1 << 30;
/// The longest row of metadata, and the largest metadata file that is held because it is in an archive.
const MOST_ROW_BYTES: u64 = 64 << 20;
const MOST_HELD_BYTES: u64 = 256 << 20;
/// Classes that are taken.
const MOST_CLASSES: usize = 100_000;
/// Names of folders that are those of splits.
///
/// Source: Hugging Face `datasets`, `data_files.py`.
pub(crate) const SPLIT_NAMES: [&str; 11] = [
    "train",
    "training",
    "validation",
    "valid",
    "val",
    "dev",
    "test",
    "testing",
    "eval",
    "evaluation",
    "unsupervised",
];

/// What a picture's first bytes say it is.
pub(crate) fn picture_kind(bytes: &[u8]) -> Option<&'static str> {
    let has_size = |at: usize, width: usize| {
        let half = |from: usize| {
            bytes
                .get(from..from + width)
                .is_some_and(|size| size.iter().any(|byte| *byte != 0))
        };
        half(at) && half(at + width)
    };
    match bytes {
        [0xff, 0xd8, 0xff, ..] => Some("jpeg"),
        _ if bytes.starts_with(b"\x89PNG\r\n\x1a\n") => {
            (bytes.get(12..16) == Some(b"IHDR") && has_size(16, 4)).then_some("png")
        }
        _ if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") => has_size(6, 2).then_some("gif"),
        _ if bytes.starts_with(b"BM") => (bytes.len() >= 26).then_some("bmp"),
        _ if bytes.starts_with(b"RIFF") => (bytes.get(8..12) == Some(b"WEBP")).then_some("webp"),
        _ if bytes.starts_with(b"II*\0") || bytes.starts_with(b"MM\0*") => Some("tiff"),
        _ if bytes.starts_with(b"II+\0") || bytes.starts_with(b"MM\0+") => Some("tiff"),
        _ => None,
    }
}

/// Whether a file is metadata, by its name.
pub(crate) fn is_metadata(path: &str) -> bool {
    METADATA.contains(&path.rsplit('/').next().unwrap_or(path))
}

const METADATA: [&str; 2] = ["metadata.csv", "metadata.jsonl"];

/// The metadata of an archive, by the folder inside it.
type ByFolder = HashMap<String, Arc<Metadata>>;

/// Reads pictures in folders.
#[derive(Debug)]
pub(crate) struct ImageFolder {
    /// Whether the folder's name is a label; `None` to see.
    labels: Option<bool>,
    /// The metadata of folders, and of archives.
    folders: Mutex<HashMap<PathBuf, Option<Arc<Metadata>>>>,
    archives: Mutex<HashMap<PathBuf, Arc<ByFolder>>>,
}

/// What pictures are called and where they lie.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Folders {
    classes: BTreeSet<String>,
    /// How deep pictures lie, each with the first by name.
    depths: BTreeMap<usize, String>,
    /// Whether some have names of kinds that are no pictures to TFDS.
    is_foreign: bool,
    /// The first by name that has no metadata, and the first that has.
    without_metadata: Option<String>,
    with_metadata: Option<String>,
}

impl Folders {
    fn note_class(&mut self, class: &str) {
        if self.classes.len() <= MOST_CLASSES && !self.classes.contains(class) {
            self.classes.insert(class.to_owned());
        }
    }

    fn note_depth(&mut self, depth: usize, shown: &str) {
        let first = self.depths.entry(depth).or_insert_with(|| shown.to_owned());
        if shown < first.as_str() {
            shown.clone_into(first);
        }
    }

    /// Drops classes where there are too many: which of them were kept depends on the order in which pictures came.
    pub(crate) fn settle(&mut self) {
        if self.classes.len() > MOST_CLASSES {
            self.classes.clear();
        }
    }

    /// Adds what was seen elsewhere.
    pub(crate) fn merge(&mut self, other: Self) {
        for class in &other.classes {
            self.note_class(class);
        }
        for (depth, shown) in &other.depths {
            self.note_depth(*depth, shown);
        }
        self.is_foreign |= other.is_foreign;
        for (slot, shown) in [
            (&mut self.without_metadata, other.without_metadata),
            (&mut self.with_metadata, other.with_metadata),
        ] {
            *slot = match (slot.take(), shown) {
                (Some(known), Some(shown)) => Some(known.min(shown)),
                (known, shown) => known.or(shown),
            };
        }
    }
}

/// Where a picture is.
struct Spot {
    /// Its path from the folder of the source, or in the archive.
    relative: String,
    /// The metadata that have its row, and its path from there.
    metadata: Option<(Arc<Metadata>, String)>,
    /// Whether the archive was opened for its metadata just now.
    is_new: bool,
}

impl ImageFolder {
    pub(crate) fn new(options: &RowOptions) -> Self {
        Self {
            labels: options.labels,
            folders: Mutex::default(),
            archives: Mutex::default(),
        }
    }

    fn spot(&self, file: &RowFile<'_>) -> Result<Spot> {
        match file.lies() {
            Lies::File(root, path) => {
                let text = |path: &Path| {
                    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
                    parts.join("/")
                };
                let mut metadata = None;
                for (up, folder) in path.ancestors().enumerate().skip(1) {
                    if let Some(found) = self.of_folder(folder, up, &file.shown)? {
                        metadata = Some((found, text(path.strip_prefix(folder)?)));
                        break;
                    }
                    if folder == root {
                        break;
                    }
                }
                Ok(Spot {
                    relative: text(path.strip_prefix(root).unwrap_or(path)),
                    metadata,
                    is_new: false,
                })
            }
            Lies::Member(source) => {
                let known = lock(&self.archives).get(source.path()).cloned();
                let is_new = known.is_none();
                let all = match known {
                    Some(all) => all,
                    None => {
                        let all = Arc::new(metadata_of_archive(source)?);
                        // Several pieces may be read side by side: all share one.
                        let mut archives = lock(&self.archives);
                        Arc::clone(archives.entry(source.path().to_owned()).or_insert(all))
                    }
                };
                let mut folder = file.path.as_str();
                let mut metadata = None;
                while metadata.is_none() && !folder.is_empty() {
                    folder = folder.rsplit_once('/').map_or("", |(folder, _)| folder);
                    let below = file.path[folder.len()..].trim_start_matches('/').to_owned();
                    metadata = all.get(folder).map(|found| (Arc::clone(found), below));
                }
                Ok(Spot {
                    relative: file.path.clone(),
                    metadata,
                    is_new,
                })
            }
        }
    }

    /// The metadata in a folder that is so many levels above a file, called as that is.
    fn of_folder(&self, folder: &Path, up: usize, shown: &str) -> Result<Option<Arc<Metadata>>> {
        if let Some(known) = lock(&self.folders).get(folder) {
            return Ok(known.clone());
        }
        let mut there = METADATA.iter().filter(|name| folder.join(name).is_file());
        let metadata = match (there.next(), there.next()) {
            (None, _) => None,
            (Some(_), Some(_)) => bail!(
                "{}: there are metadata.csv and metadata.jsonl; remove one",
                folder.display()
            ),
            (Some(file), None) => {
                let called = Path::new(shown).ancestors().nth(up).unwrap_or(folder).join(file);
                let called = called.display().to_string();
                Some(Arc::new(Metadata::of_file(&called, &folder.join(file))?))
            }
        };
        // Another thread may have been faster: all share what counts the pictures.
        Ok(lock(&self.folders)
            .entry(folder.to_owned())
            .or_insert(metadata)
            .clone())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of the folder that a file lies in.
fn class_of(relative: &str) -> Option<&str> {
    let (folders, _) = relative.rsplit_once('/')?;
    folders.rsplit('/').next()
}

impl RowReader for ImageFolder {
    fn endings(&self) -> &'static [&'static str] {
        ENDINGS
    }

    fn unit(&self) -> &'static str {
        ""
    }

    fn is_aside(&self, path: &str) -> bool {
        is_metadata(path)
    }

    fn columns(&self, file: &mut RowFile<'_>, source: u32, survey: &mut Survey) -> Result<bool> {
        let place = Place {
            source,
            file: file.index,
            row: 0,
            path: file.shown.as_str().into(),
            unit: "line",
        };
        if is_metadata(&file.path) {
            if let Lies::File(_, path) = file.lies()
                && let Some(folder) = path.parent()
                && let Some(metadata) = self.of_folder(folder, 1, &file.shown)?
            {
                metadata.survey(&place, survey)?;
            }
            return Ok(true);
        }
        let spot = self.spot(file)?;
        if spot.is_new
            && let Lies::Member(source) = file.lies()
        {
            let all = lock(&self.archives).get(source.path()).cloned();
            for metadata in all.iter().flat_map(|all| all.values()) {
                let place = Place {
                    path: metadata.name.as_str().into(),
                    ..place.clone()
                };
                metadata.survey(&place, survey)?;
            }
        }
        if let Some((metadata, path)) = &spot.metadata {
            let row = metadata.find(path, &file.shown)?;
            metadata.found[row / 64].fetch_or(1 << (row % 64), Ordering::Relaxed);
        }
        let seen = survey.folders.get_or_insert_default();
        let name = file.path.to_ascii_lowercase();
        seen.is_foreign |= FOREIGN.iter().any(|ending| name.ends_with(ending));
        let slot = match &spot.metadata {
            Some(_) => &mut seen.with_metadata,
            None => &mut seen.without_metadata,
        };
        if slot.as_ref().is_none_or(|known| file.shown < *known) {
            *slot = Some(file.shown.clone());
        }
        let depth = spot.relative.matches('/').count();
        seen.note_depth(depth, &file.shown);
        if let Some(class) = class_of(&spot.relative) {
            seen.note_class(class);
        }
        Ok(true)
    }

    /// Each row of metadata needs its picture.
    fn looks_at_all(&self) -> bool {
        true
    }

    fn features(&self, survey: &Survey) -> Result<Vec<(String, Feature)>> {
        let seen = survey.folders.clone().unwrap_or_default();
        let image = match seen.is_foreign {
            true => Feature::Scalar { dtype: DType::String },
            false => picture(),
        };
        let mut features = vec![("image".to_owned(), image)];
        if let (Some(without), Some(with)) = (&seen.without_metadata, &seen.with_metadata) {
            return Err(Hinted::new(
                format!("{without}: there are no metadata beside or above it, and {with} has some"),
                "give all pictures metadata, or make two recipes",
            )
            .into());
        }
        let of_folders = lock(&self.folders);
        let of_archives = lock(&self.archives);
        let all = of_folders
            .values()
            .flatten()
            .chain(of_archives.values().flat_map(|all| all.values()));
        let mut missing: Vec<(&str, usize, &Metadata)> = Vec::new();
        for metadata in all {
            if let Some(row) = metadata.first_without_picture() {
                missing.push((&metadata.name, row, metadata));
            }
        }
        if let Some((name, row, metadata)) = missing.iter().min_by_key(|(name, ..)| *name) {
            return Err(Hinted::new(
                format!(
                    "{name}: it has a row for `{}`, and there is no such picture",
                    metadata.row(*row)?.1
                ),
                "remove the row, or put the picture there; the path is that from the metadata's own folder",
            )
            .into());
        }
        let wants = match self.labels {
            Some(labels) => labels,
            None if seen.with_metadata.is_some() => false,
            None => {
                let is_split = |class: &String| SPLIT_NAMES.contains(&class.as_str());
                seen.classes.len() > 1 && !seen.classes.iter().all(is_split)
            }
        };
        if wants {
            let depths: Vec<(usize, String)> = seen.depths.into_iter().collect();
            if let Some((0, flat)) = depths.first() {
                return Err(Hinted::new(
                    format!(
                        "{flat}: it lies in no folder of the source, so it has no class, and others have one"
                    ),
                    "move it into the folder of its class; or write `labels = false` under `[reader]`",
                )
                .into());
            }
            if let ([(_, one), (_, other), ..], None) = (depths.as_slice(), self.labels) {
                return Err(Hinted::new(
                    format!("{one} and {other} are not equally deep in folders, so it does not show which folders are classes"),
                    "write `labels = true` under `[reader]` for the name of the folder that a picture lies in, or `labels = false` for none",
                )
                .into());
            }
            if seen.classes.len() > MOST_CLASSES {
                return Err(Hinted::new(
                    format!("there are more than {MOST_CLASSES} folders with pictures"),
                    "write `labels = false` under `[reader]` if folders are no classes",
                )
                .into());
            }
            let names: Vec<String> = seen.classes.into_iter().collect();
            let label = Feature::ClassLabel {
                num_classes: names.len() as u64,
                names,
            };
            features.push(("label".to_owned(), label));
        }
        Ok(features)
    }

    fn may_lack(&self, column: &str) -> bool {
        self.labels.is_none() && column == "label"
    }

    fn read(&self, file: &mut RowFile<'_>, _piece: u64, rows: &mut dyn Rows) -> Result<()> {
        if is_metadata(&file.path) {
            return Ok(());
        }
        let spot = self.spot(file)?;
        let wants_label = self.labels.unwrap_or(spot.metadata.is_none());
        let label = class_of(&spot.relative).filter(|_| wants_label);
        let (tag, known) = match &spot.metadata {
            None => (0, Vec::new()),
            Some((metadata, path)) => {
                let row = metadata.find(path, &file.shown)?;
                (metadata.tag(), metadata.row(row)?.0)
            }
        };
        let label = label.map_or(Vec::new(), |label| [b"=", label.as_bytes()].concat());
        let mut packed = pack(&[&label, &known], file.bytes.min(1 << 20) as usize)?;
        let before = packed.len() as u64;
        let shown = file.shown.clone();
        let mut stream = file.stream()?;
        (&mut stream)
            .take(MOST_BYTES + 1)
            .read_to_end(&mut packed)
            .with_context(|| format!("could not read {shown}"))?;
        if packed.len() as u64 - before > MOST_BYTES {
            bail!("{shown}: it is longer than {MOST_BYTES} bytes");
        }
        let row = RawRow {
            row: 0,
            data: packed.into(),
            tag,
            way: (0, 0),
        };
        let _: ControlFlow<()> = rows.put(row)?;
        Ok(())
    }

    fn cells(&self, data: &Bytes, tag: u64) -> Result<Row> {
        let [label, known, image] = unpack(data)?;
        if picture_kind(&image).is_none() {
            if image.is_empty() {
                bail!("the picture has no bytes");
            }
            let start: String = image.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            bail!(
                "it is no picture of a known kind (jpeg, png, gif, bmp, webp, tiff): it begins with the bytes {start}"
            );
        }
        let mut row = vec![("image".to_owned(), Cell::Bytes(image))];
        if !label.is_empty() {
            row.push(("label".to_owned(), Cell::Text(label.slice(1..))));
        }
        for (name, cell) in parse_row(&known, tag)? {
            if name == FILE_NAME {
                continue;
            }
            if row.iter().any(|(other, _)| *other == name) {
                bail!(
                    "the metadata have a column `{name}`, which is the name of the picture's own; give it another name"
                );
            }
            row.push((name, cell));
        }
        Ok(row)
    }
}

const FILE_NAME: &str = "file_name";
/// Rows of metadata, as they are packed.
const OF_CSV: u64 = 1;
const OF_JSON: u64 = 2;

/// The cells of a packed row.
fn parse_row(data: &Bytes, tag: u64) -> Result<Row> {
    match tag {
        OF_CSV => {
            let mut row = Vec::new();
            let mut rest = data.clone();
            while !rest.is_empty() {
                let [name, next] = unpack(&rest)?;
                let [text, next] = unpack(&next)?;
                rest = next;
                let name = String::from_utf8(name.to_vec())?;
                if std::str::from_utf8(&text).is_err() {
                    bail!("the metadata's column `{name}` is not UTF-8");
                }
                row.push((name, Cell::Loose(text)));
            }
            Ok(row)
        }
        OF_JSON => match serde_json::from_slice(data) {
            Ok(Cell::Dict(row)) => Ok(row),
            Ok(other) => bail!("wanted a JSON object, found {}", other.describe()),
            Err(error) => bail!("the metadata are not JSON: {error}"),
        },
        _ => Ok(Row::new()),
    }
}

/// A metadata file, of which the rows are found by the picture's path.
#[derive(Debug)]
struct Metadata {
    name: String,
    bytes: Lying,
    /// The names of columns, of CSV.
    header: Option<Vec<String>>,
    /// (hash of the path, offset, bytes) of each row, by hash.
    rows: Vec<(u64, u64, u32)>,
    /// Bits of the rows that have a picture.
    found: Vec<AtomicU64>,
}

#[derive(Debug)]
enum Lying {
    File(File),
    Held(Bytes),
}

fn hash_of(path: &str) -> u64 {
    blake3::hash(path.as_bytes())
        .as_bytes()
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The path of a row in plain form: `./a//b` is `a/b`.
fn plain(path: &str) -> String {
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    match path.starts_with('/') {
        true => format!("/{}", parts.join("/")),
        false => parts.join("/"),
    }
}

/// The metadata files of an archive, by the folders that they are in.
fn metadata_of_archive(source: &Source) -> Result<HashMap<String, Arc<Metadata>>> {
    let mut all: HashMap<String, Arc<Metadata>> = HashMap::new();
    each_file(source, false, &mut |member, data| {
        if !is_metadata(&member.path) {
            return Ok(ControlFlow::Continue(()));
        }
        let bytes = crate::archive::read_all(&source.name, member, data, MOST_HELD_BYTES)?;
        let name = format!("{}, member {}", source.name, member.path);
        let metadata = Metadata::new(&name, &mut bytes.as_slice(), Lying::Held(bytes.clone().into()))?;
        let folder = member.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        if all.insert(folder.to_owned(), Arc::new(metadata)).is_some() {
            bail!("{name}: there are two metadata files in its folder; remove one");
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(all)
}

impl Metadata {
    fn of_file(name: &str, path: &Path) -> Result<Self> {
        let open = || File::open(path).with_context(|| format!("could not open {name}"));
        Self::new(
            name,
            &mut BufReader::with_capacity(256 << 10, open()?),
            Lying::File(open()?),
        )
    }

    fn new(name: &str, data: &mut dyn BufRead, bytes: Lying) -> Result<Self> {
        let mut metadata = Self {
            name: name.to_owned(),
            bytes,
            header: None,
            rows: Vec::new(),
            found: Vec::new(),
        };
        if name.ends_with(".csv") {
            metadata.index_csv(data)?;
        } else {
            metadata.index_json(data)?;
        }
        metadata.rows.sort_unstable();
        metadata
            .found
            .resize_with(metadata.rows.len().div_ceil(64), AtomicU64::default);
        for pair in 1..metadata.rows.len() {
            if metadata.rows[pair - 1].0 != metadata.rows[pair].0 {
                continue;
            }
            let (one, other) = (metadata.row(pair - 1)?.1, metadata.row(pair)?.1);
            if one == other {
                bail!("{name}: there are two rows for `{one}`");
            }
        }
        Ok(metadata)
    }

    fn index_csv(&mut self, data: &mut dyn BufRead) -> Result<()> {
        let name = self.name.clone();
        let mark = data
            .fill_buf()
            .with_context(|| format!("could not read {name}"))?
            .starts_with(b"\xef\xbb\xbf");
        let skipped = if mark { 3 } else { 0 };
        data.consume(skipped);
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(data);
        let mut record = csv::ByteRecord::new();
        if !reader
            .read_byte_record(&mut record)
            .with_context(|| format!("could not read {name}"))?
        {
            bail!("{name}: it is empty; wanted a header with `{FILE_NAME}`");
        }
        let mut header = Vec::new();
        for field in &record {
            header.push(
                std::str::from_utf8(field)
                    .with_context(|| format!("{name}, line 1"))?
                    .to_owned(),
            );
        }
        let Some(column) = header.iter().position(|column| column == FILE_NAME) else {
            return Err(no_file_name(&name, &header.join(", ")));
        };
        if let Some(twice) = (1..header.len()).find(|at| header[..*at].contains(&header[*at])) {
            bail!("{name}: two columns are called `{}`", header[twice]);
        }
        let width = header.len();
        self.header = Some(header);
        loop {
            let start = reader.position().byte();
            if !reader
                .read_byte_record(&mut record)
                .with_context(|| format!("could not read {name}"))?
            {
                return Ok(());
            }
            let line = record.position().map_or(0, csv::Position::line);
            if record.len() != width {
                bail!(
                    "{name}, line {line}: it has {} fields, and there are {width} columns",
                    record.len()
                );
            }
            let path =
                std::str::from_utf8(&record[column]).with_context(|| format!("{name}, line {line}"))?;
            self.push(
                path,
                line,
                start + skipped as u64,
                reader.position().byte() - start,
            )?;
        }
    }

    fn index_json(&mut self, data: &mut dyn BufRead) -> Result<()> {
        let name = self.name.clone();
        let (mut line, mut offset) = (0, 0);
        let mut text = Vec::new();
        loop {
            text.clear();
            let count = (&mut *data)
                .take(MOST_ROW_BYTES + 1)
                .read_until(b'\n', &mut text)
                .with_context(|| format!("could not read {name}"))? as u64;
            if count == 0 {
                return Ok(());
            }
            line += 1;
            if !text.trim_ascii().is_empty() {
                let row = parse_row(&Bytes::copy_from_slice(&text), OF_JSON)
                    .with_context(|| format!("{name}, line {line}"))?;
                match row.iter().find(|(column, _)| column == FILE_NAME) {
                    Some((_, Cell::Text(path))) => {
                        let path = String::from_utf8_lossy(path).into_owned();
                        self.push(&path, line, offset, count)?;
                    }
                    _ => {
                        let columns: Vec<&str> = row.iter().map(|(column, _)| column.as_str()).collect();
                        return Err(no_file_name(&format!("{name}, line {line}"), &columns.join(", ")));
                    }
                }
            }
            offset += count;
        }
    }

    fn push(&mut self, path: &str, line: u64, offset: u64, bytes: u64) -> Result<()> {
        if bytes > MOST_ROW_BYTES {
            bail!(
                "{}, line {line}: it has more than {MOST_ROW_BYTES} bytes",
                self.name
            );
        }
        self.rows.push((hash_of(&plain(path)), offset, bytes as u32));
        Ok(())
    }

    fn tag(&self) -> u64 {
        match self.header {
            Some(_) => OF_CSV,
            None => OF_JSON,
        }
    }

    /// A row in packed form, and its picture's path.
    fn row(&self, index: usize) -> Result<(Vec<u8>, String)> {
        let Some((_, offset, bytes)) = self.rows.get(index) else {
            bail!("{}: there is no row {index}", self.name);
        };
        let changed = || format!("could not read {} again", self.name);
        let mut text = vec![0; *bytes as usize];
        match &self.bytes {
            Lying::File(file) => {
                use std::os::unix::fs::FileExt;
                file.read_exact_at(&mut text, *offset).with_context(changed)?;
            }
            Lying::Held(held) => {
                let end = *offset as usize + text.len();
                text.copy_from_slice(held.get(*offset as usize..end).with_context(changed)?);
            }
        }
        let packed = match &self.header {
            None => text.trim_ascii().to_vec(),
            Some(header) => {
                let mut reader = csv::ReaderBuilder::new()
                    .has_headers(false)
                    .flexible(true)
                    .from_reader(text.as_slice());
                let mut record = csv::ByteRecord::new();
                reader.read_byte_record(&mut record).with_context(changed)?;
                let mut packed = Vec::new();
                for (name, field) in header.iter().zip(&record) {
                    packed.extend_from_slice(&pack(&[name.as_bytes(), field], 0)?);
                }
                packed
            }
        };
        let cells = parse_row(&packed.clone().into(), self.tag()).with_context(changed)?;
        let path = cells.iter().find_map(|(column, cell)| match cell {
            Cell::Text(path) | Cell::Loose(path) if column == FILE_NAME => {
                Some(plain(&String::from_utf8_lossy(path)))
            }
            _ => None,
        });
        Ok((packed, path.with_context(changed)?))
    }

    /// The row of a picture by its path from the metadata's folder.
    fn find(&self, path: &str, shown: &str) -> Result<usize> {
        let hash = hash_of(path);
        let first = self.rows.partition_point(|(other, ..)| *other < hash);
        for index in first..self.rows.len() {
            if self.rows[index].0 != hash {
                break;
            }
            if self.row(index)?.1 == path {
                return Ok(index);
            }
        }
        Err(Hinted::new(
            format!(
                "{shown}: it has no row in {}, wanted `{FILE_NAME}` = `{path}`",
                self.name
            ),
            "add the row, or leave the picture out of the sources, with a narrower `path`",
        )
        .into())
    }

    /// Notes the columns of all rows.
    fn survey(&self, place: &Place, survey: &mut Survey) -> Result<()> {
        let mut place = place.clone();
        let mut order: Vec<usize> = (0..self.rows.len()).collect();
        order.sort_unstable_by_key(|index| self.rows[*index].1);
        for (line, index) in order.into_iter().enumerate() {
            place.row = line as u64 + u64::from(self.header.is_some());
            let mut cells = parse_row(&self.row(index)?.0.into(), self.tag())?;
            cells.retain(|(column, _)| column != FILE_NAME);
            survey.add(&cells, &place);
        }
        Ok(())
    }

    fn first_without_picture(&self) -> Option<usize> {
        let is_found =
            |index: &usize| self.found[index / 64].load(Ordering::Relaxed) >> (index % 64) & 1 == 1;
        (0..self.rows.len())
            .filter(|index| !is_found(index))
            .min_by_key(|index| self.rows[*index].1)
    }
}

fn no_file_name(place: &str, columns: &str) -> anyhow::Error {
    Hinted::new(
        format!("{place}: there is no `{FILE_NAME}`; there are {columns}"),
        "a metadata file says in `file_name` which picture a row is about, by its path from the metadata's folder",
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_known_by_their_first_bytes() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x02".to_vec();
        assert_eq!(picture_kind(&png), Some("png"));
        png[19] = 0;
        assert_eq!(picture_kind(&png), None, "a width of 0");
        for (bytes, kind) in [
            (&b"\xff\xd8\xff\xe0"[..], Some("jpeg")),
            (b"GIF89a\x01\0\x01\0", Some("gif")),
            (b"GIF89a\x01\0", None),
            (b"RIFF\0\0\0\0WEBPVP8 ", Some("webp")),
            (b"RIFF\0\0\0\0WAVE", None),
            (b"II*\0", Some("tiff")),
            (b"BM", None),
            (b"", None),
            (b"<html>", None),
        ] {
            assert_eq!(picture_kind(bytes), kind, "{bytes:?}");
        }
    }

    #[test]
    fn rows_are_found_by_the_path_also_after_quotes_and_marks() {
        let csv = "\u{feff}caption,file_name\n\"two\nlines\",./a/\u{e9}.png\nplain,b.png\n";
        let held = || Lying::Held(csv.as_bytes().into());
        let metadata = Metadata::new("m.csv", &mut csv.as_bytes(), held()).unwrap();
        let row = |path| {
            parse_row(
                &metadata.row(metadata.find(path, "p").unwrap()).unwrap().0.into(),
                OF_CSV,
            )
            .unwrap()
        };
        assert_eq!(row("a/\u{e9}.png")[0].1, Cell::Loose("two\nlines".into()));
        assert_eq!(row("b.png")[0].1, Cell::Loose("plain".into()));
        let error = metadata.find("c.png", "x/c.png").unwrap_err().to_string();
        assert!(error.starts_with("x/c.png: it has no row in m.csv"), "{error}");
        let twice = "{\"file_name\":\"a.png\"}\n\n{\"file_name\":\"./a.png\"}\n";
        let error = Metadata::new("m.jsonl", &mut twice.as_bytes(), Lying::Held(twice.into())).unwrap_err();
        assert_eq!(error.to_string(), "m.jsonl: there are two rows for `a.png`");
        let error = Metadata::new("m.csv", &mut &b"path\na"[..], Lying::Held("path\na".into())).unwrap_err();
        assert_eq!(
            error.to_string(),
            "m.csv: there is no `file_name`; there are path"
        );
    }
}
