//! What differs between two versions: features, and examples added, removed and changed.
//!
//! Examples are compared by the hash of their records, as the content fingerprint does: without a key, an example that was changed is one removed and one
//! added. With a key feature, examples of the same key and other content are changed. Shards that both versions have in the same split, by the hash of
//! their records, are not read; two versions of one fingerprint are not read at all.
//!
//! ```text
//! records -> (hash of key, hash of content, side, index), 48 bytes -> parts by the first bits of the key's hash, on disk if need be -> sorted, compared
//! ```
//!
//! One part is in memory at a time, so memory follows the budget whatever the number of records: 10^9 records that differ take 100 GB of temporary files
//! and 1,000 parts within 256 MiB. Only records that are equal to each other stay together in a part.

use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use prep_catalog::Resolved;
use prep_catalog::fingerprint::SequenceHash;
use prep_catalog::manifest::{ShardManifest, SplitManifest};
use prep_formats::example::{ExampleView, FeatureView};
use prep_formats::features::Features;
use prep_loader::Dataset;
use serde_json::{Map, Value, json};

use crate::describe;
use crate::monitor::{Monitor, Unit};

/// Bytes of a row in memory and on disk.
const ROW_BYTES: usize = 48;
/// More parts than this are not made: each has an open file and a buffer.
const MOST_PARTS: usize = 1024;
/// Bytes of a part's buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// Records that are read at a time.
const BLOCK_RECORDS: u64 = 1024;

/// How versions are compared.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DiffOptions {
    /// The feature that tells which example is which.
    pub key: Option<String>,
    /// Only this split.
    pub split: Option<String>,
    /// Memory for rows, in bytes.
    pub memory_bytes: u64,
    /// Folder for temporary files; `None` for the system's.
    pub spill_folder: Option<std::path::PathBuf>,
    /// How many examples of each kind are named.
    pub examples: usize,
}

impl Default for DiffOptions {
    fn default() -> Self {
        Self {
            key: None,
            split: None,
            memory_bytes: 256 << 20,
            spill_folder: None,
            examples: 10,
        }
    }
}

impl DiffOptions {
    /// Sets the feature that tells which example is which. Default: none, and content alone counts.
    #[must_use]
    pub fn key(mut self, key: Option<String>) -> Self {
        self.key = key;
        self
    }

    /// Compares this split only. Default: all.
    #[must_use]
    pub fn split(mut self, split: Option<String>) -> Self {
        self.split = split;
        self
    }

    /// Sets the memory for rows, in bytes. Default: 256 MiB.
    #[must_use]
    pub fn memory_bytes(mut self, memory_bytes: u64) -> Self {
        self.memory_bytes = memory_bytes;
        self
    }

    /// Sets the folder for temporary files. Default: the system's.
    #[must_use]
    pub fn spill_folder(mut self, folder: Option<std::path::PathBuf>) -> Self {
        self.spill_folder = folder;
        self
    }

    /// Sets how many examples of each kind are named. Default: 10.
    #[must_use]
    pub fn examples(mut self, examples: usize) -> Self {
        self.examples = examples;
        self
    }
}

/// What differs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// Features that are only in the second.
    pub features_added: Vec<String>,
    /// Features that are only in the first.
    pub features_removed: Vec<String>,
    /// Features that both have, and both descriptions.
    pub features_changed: Vec<(String, Value, Value)>,
    /// Splits of either, in the order of the second, then those that only the first has.
    pub splits: Vec<(String, SplitDifference)>,
    /// Whether examples were told apart by a key.
    pub is_keyed: bool,
}

/// What differs in a split.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SplitDifference {
    /// Examples of the first; `None` where it lacks the split.
    pub before: Option<u64>,
    /// Examples of the second.
    pub after: Option<u64>,
    /// Examples that only the second has.
    pub added: u64,
    /// Examples that only the first has.
    pub removed: u64,
    /// Examples with the same key and other content.
    pub changed: u64,
    /// Examples that both have.
    pub unchanged: u64,
    /// Whether what both have is all there is, in another order.
    pub is_reordered: bool,
    /// The first few that were added, by their index in the second.
    pub added_indices: Vec<u64>,
    /// The first few that were removed, by their index in the first.
    pub removed_indices: Vec<u64>,
    /// The first few that were changed, by their indices in the first and in the second.
    pub changed_indices: Vec<(u64, u64)>,
}

impl Difference {
    /// Whether nothing differs: features, examples and their order.
    pub fn is_same(&self) -> bool {
        let same_features = self.features_added.is_empty()
            && self.features_removed.is_empty()
            && self.features_changed.is_empty();
        same_features
            && self.splits.iter().all(|(_, split)| {
                split.before.is_some()
                    && split.after.is_some()
                    && (split.added, split.removed, split.changed) == (0, 0, 0)
                    && !split.is_reordered
            })
    }

    /// As JSON: `same`, `schema` {`added`, `removed`, `changed`}, `examples` {`added`, `removed`, `changed`, `unchanged`}, and the same for each of
    /// `splits`, with a few indices. `changed` is `null` without a key.
    pub fn json(&self) -> Value {
        let changed = |count: u64| self.is_keyed.then_some(count);
        let sum =
            |of: fn(&SplitDifference) -> u64| self.splits.iter().map(|(_, split)| of(split)).sum::<u64>();
        let splits: Map<String, Value> = self
            .splits
            .iter()
            .map(|(name, split)| {
                let value = json!({
                    "before": split.before,
                    "after": split.after,
                    "added": split.added,
                    "removed": split.removed,
                    "changed": changed(split.changed),
                    "unchanged": split.unchanged,
                    "reordered": split.is_reordered,
                    "added_indices": split.added_indices,
                    "removed_indices": split.removed_indices,
                    "changed_indices": split.changed_indices,
                });
                (name.clone(), value)
            })
            .collect();
        let features: Vec<Value> = self
            .features_changed
            .iter()
            .map(|(name, before, after)| json!({"name": name, "before": before, "after": after}))
            .collect();
        json!({
            "same": self.is_same(),
            "schema": {"added": self.features_added, "removed": self.features_removed, "changed": features},
            "examples": {
                "added": sum(|split| split.added),
                "removed": sum(|split| split.removed),
                "changed": changed(sum(|split| split.changed)),
                "unchanged": sum(|split| split.unchanged),
            },
            "splits": splits,
        })
    }
}

/// Compares two versions.
///
/// # Errors
/// A key that is no feature of both, or that a record lacks; a split that neither has; a record that cannot be read; temporary files that cannot be written.
pub fn diff(
    before: &Resolved,
    after: &Resolved,
    options: &DiffOptions,
    monitor: &Monitor,
) -> Result<Difference> {
    let schemas = [
        Features::read_location(&before.folder)?,
        Features::read_location(&after.folder)?,
    ];
    let mut difference = compare_features(&schemas[0], &schemas[1]);
    difference.is_keyed = options.key.is_some();
    if let Some(key) = &options.key {
        for (schema, side) in schemas.iter().zip([before, after]) {
            if schema.get(key).is_none() {
                bail!(
                    "`{}` has no feature `{key}` to tell examples by",
                    side.dataset_name()
                );
            }
        }
    }
    let splits = |side: &Resolved| -> Vec<String> {
        side.manifest
            .splits
            .iter()
            .map(|split| split.name.clone())
            .collect()
    };
    let mut names = splits(after);
    names.extend(
        splits(before)
            .into_iter()
            .filter(|name| after.manifest.split(name).is_none()),
    );
    if let Some(wanted) = &options.split {
        if !names.contains(wanted) {
            bail!(
                "neither version has a split `{wanted}`; there are {}",
                names.join(", ")
            );
        }
        names.retain(|name| name == wanted);
    }
    for name in names {
        let sides = [before, after];
        let found = compare_split(&name, sides, options, monitor)?;
        difference.splits.push((name, found));
    }
    Ok(difference)
}

fn compare_features(before: &Features, after: &Features) -> Difference {
    let describe = |features: &Features| -> BTreeMap<String, Value> {
        let all = describe::describe_features(features);
        let all = all.as_object().cloned().unwrap_or_default();
        all.into_iter().collect()
    };
    let (before, after) = (describe(before), describe(after));
    let only = |one: &BTreeMap<String, Value>, other: &BTreeMap<String, Value>| -> Vec<String> {
        one.keys()
            .filter(|name| !other.contains_key(*name))
            .cloned()
            .collect()
    };
    Difference {
        features_added: only(&after, &before),
        features_removed: only(&before, &after),
        features_changed: before
            .iter()
            .filter_map(|(name, old)| {
                let new = after.get(name).filter(|new| *new != old)?;
                Some((name.clone(), old.clone(), new.clone()))
            })
            .collect(),
        splits: Vec::new(),
        is_keyed: false,
    }
}

fn compare_split(
    name: &str,
    sides: [&Resolved; 2],
    options: &DiffOptions,
    monitor: &Monitor,
) -> Result<SplitDifference> {
    let splits = sides.map(|side| side.manifest.split(name));
    let mut found = SplitDifference {
        before: splits[0].map(|split| split.records),
        after: splits[1].map(|split| split.records),
        ..SplitDifference::default()
    };
    let orders = splits.map(|split| split.and_then(order_of));
    if let (Some(one), Some(other)) = (orders[0], orders[1])
        && one == other
    {
        found.unchanged = one.length();
        return Ok(found);
    }
    // Shards that both have cancel out.
    let mut common: HashMap<(&str, u64), [usize; 2]> = HashMap::new();
    for (side, split) in splits.iter().enumerate() {
        for shard in split.iter().flat_map(|split| &split.shards) {
            common.entry(identity(shard)).or_default()[side] += 1;
        }
    }
    let mut ranges: [Vec<(u64, u64)>; 2] = Default::default();
    for (side, split) in splits.iter().enumerate() {
        let mut left: HashMap<(&str, u64), usize> = common
            .iter()
            .map(|(shard, counts)| (*shard, counts[0].min(counts[1])))
            .collect();
        let mut start = 0;
        for shard in split.iter().flat_map(|split| &split.shards) {
            let cancelled = left.get_mut(&identity(shard)).filter(|count| **count > 0);
            match cancelled {
                Some(count) => {
                    *count -= 1;
                    if side == 0 {
                        found.unchanged += shard.records;
                    }
                }
                None => ranges[side].push((start, start + shard.records)),
            }
            start += shard.records;
        }
    }
    let total: u64 = ranges.iter().flatten().map(|(start, end)| end - start).sum();
    let meter = monitor.stage(format!("compare {name}"), Unit::Examples, Some(total));
    let mut parts = Parts::new(total, options)?;
    for (side, resolved) in sides.iter().enumerate() {
        if ranges[side].is_empty() {
            continue;
        }
        let dataset = Dataset::resolved((*resolved).clone(), name)?;
        let mut fault = None;
        for &(start, end) in &ranges[side] {
            let mut at = start;
            while at < end {
                monitor.check()?;
                let indices: Vec<u64> = (at..end.min(at + BLOCK_RECORDS)).collect();
                dataset.visit_records(&indices, |index, record| {
                    let row =
                        row(record, index, side == 1, options.key.as_deref()).and_then(|row| parts.push(row));
                    if let Err(error) = row {
                        fault.get_or_insert(error.context(format!(
                            "example {index} of split `{name}` of `{}`",
                            resolved.dataset_name()
                        )));
                    }
                    Ok(())
                })?;
                if let Some(error) = fault.take() {
                    return Err(error);
                }
                meter.add(indices.len() as u64);
                at += indices.len() as u64;
            }
        }
    }
    meter.finish();
    let mut first = Firsts::new(options.examples);
    parts.each(|rows| compare_rows(rows, options.key.is_some(), &mut found, &mut first))?;
    found.added_indices = first.added.into_sorted_vec();
    found.removed_indices = first.removed.into_sorted_vec();
    found.changed_indices = first.changed.into_sorted_vec();
    let nothing = (found.added, found.removed, found.changed) == (0, 0, 0);
    found.is_reordered = nothing && orders[0] != orders[1] && splits.iter().all(Option::is_some);
    Ok(found)
}

fn identity(shard: &ShardManifest) -> (&str, u64) {
    (&shard.sequence_hash, shard.records)
}

/// The hash of the records of a split, in their order.
fn order_of(split: &SplitManifest) -> Option<SequenceHash> {
    let mut whole = SequenceHash::default();
    for shard in &split.shards {
        whole = whole.join(SequenceHash::from_hex(&shard.sequence_hash, shard.records)?);
    }
    Some(whole)
}

/// A record as it is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    key: u128,
    is_after: bool,
    content: u128,
    index: u64,
}

impl Row {
    fn to_bytes(self) -> [u8; ROW_BYTES] {
        let mut bytes = [0; ROW_BYTES];
        bytes[..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.content.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.index.to_le_bytes());
        bytes[40] = self.is_after.into();
        bytes
    }

    fn from_bytes(bytes: &[u8; ROW_BYTES]) -> Self {
        let wide = |at: usize| {
            let mut wide = [0; 16];
            wide.copy_from_slice(&bytes[at..at + 16]);
            u128::from_le_bytes(wide)
        };
        let mut index = [0; 8];
        index.copy_from_slice(&bytes[32..40]);
        Self {
            key: wide(0),
            content: wide(16),
            index: u64::from_le_bytes(index),
            is_after: bytes[40] != 0,
        }
    }
}

fn hash(bytes: &[u8]) -> u128 {
    u128::from_be_bytes(SequenceHash::of([bytes]).to_bytes())
}

fn row(record: &[u8], index: u64, is_after: bool, key: Option<&str>) -> Result<Row> {
    let content = hash(record);
    let key = match key {
        None => content,
        Some(name) => hash(&key_of(record, name)?),
    };
    Ok(Row {
        key,
        is_after,
        content,
        index,
    })
}

/// The value of a feature, as bytes that differ where values do.
fn key_of(record: &[u8], name: &str) -> Result<Vec<u8>> {
    let example = ExampleView::parse(record)?;
    let Some(feature) = example.get(name) else {
        bail!("it has no feature `{name}` to tell it by");
    };
    let mut key = Vec::new();
    match feature {
        FeatureView::Bytes(values) => {
            for value in values.iter() {
                key.extend_from_slice(&(value.len() as u64).to_le_bytes());
                key.extend_from_slice(value);
            }
        }
        FeatureView::Int64(values) => values
            .iter()
            .for_each(|value| key.extend_from_slice(&value.to_le_bytes())),
        FeatureView::Float(values) => {
            values
                .iter()
                .for_each(|value| key.extend_from_slice(&value.to_le_bytes()));
        }
        _ => {}
    }
    Ok(key)
}

/// Rows in parts by the first bits of their keys: in memory if there is one part, else in files without names.
enum Parts {
    Memory(Vec<Row>),
    Files(Vec<BufWriter<File>>),
}

impl Parts {
    fn new(rows: u64, options: &DiffOptions) -> Result<Self> {
        let budget = options.memory_bytes.max(1 << 20) as u128;
        let needed = (u128::from(rows) * ROW_BYTES as u128).div_ceil(budget);
        if needed <= 1 {
            return Ok(Self::Memory(Vec::new()));
        }
        // Hashes are spread evenly; a half more leaves room for chance.
        let count = usize::try_from(needed + needed / 2)
            .unwrap_or(MOST_PARTS)
            .min(MOST_PARTS);
        let folder = options.spill_folder.clone().unwrap_or_else(std::env::temp_dir);
        let file =
            |_| -> Result<BufWriter<File>> { Ok(BufWriter::with_capacity(BUFFER_BYTES, nameless(&folder)?)) };
        Ok(Self::Files((0..count).map(file).collect::<Result<_>>()?))
    }

    fn push(&mut self, row: Row) -> Result<()> {
        match self {
            Self::Memory(rows) => rows.push(row),
            Self::Files(files) => {
                let part = (row.key % files.len() as u128) as usize;
                files[part]
                    .write_all(&row.to_bytes())
                    .context("could not write a temporary file")?;
            }
        }
        Ok(())
    }

    /// Gives the rows of each part, sorted.
    fn each(self, mut compare: impl FnMut(&[Row])) -> Result<()> {
        match self {
            Self::Memory(mut rows) => {
                rows.sort_unstable();
                compare(&rows);
            }
            Self::Files(files) => {
                let mut rows = Vec::new();
                for file in files {
                    let mut file = file
                        .into_inner()
                        .map_err(std::io::IntoInnerError::into_error)
                        .context("could not write a temporary file")?;
                    file.rewind().context("could not read a temporary file")?;
                    rows.clear();
                    let mut reader = BufReader::with_capacity(1 << 20, file);
                    let mut bytes = [0; ROW_BYTES];
                    loop {
                        match reader.read_exact(&mut bytes) {
                            Ok(()) => rows.push(Row::from_bytes(&bytes)),
                            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
                            Err(error) => return Err(error).context("could not read a temporary file"),
                        }
                    }
                    rows.sort_unstable();
                    compare(&rows);
                }
            }
        }
        Ok(())
    }
}

/// A file that has no name any more, and goes when it is closed.
fn nameless(folder: &Path) -> Result<File> {
    let path = folder.join(format!(".prep-diff-{}", unused_name()?));
    let context = || format!("could not make a temporary file in {}", folder.display());
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .with_context(context)?;
    std::fs::remove_file(&path).with_context(context)?;
    Ok(file)
}

/// A text that no other process uses.
fn unused_name() -> Result<String> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Ok(format!("{}-{}-{number}", std::process::id(), since?.as_nanos()))
}

/// The smallest of what comes, a bounded number of each kind.
struct Firsts {
    most: usize,
    added: BinaryHeap<u64>,
    removed: BinaryHeap<u64>,
    changed: BinaryHeap<(u64, u64)>,
}

impl Firsts {
    fn new(most: usize) -> Self {
        Self {
            most,
            added: BinaryHeap::new(),
            removed: BinaryHeap::new(),
            changed: BinaryHeap::new(),
        }
    }
}

fn keep<T: Ord>(heap: &mut BinaryHeap<T>, value: T, most: usize) {
    heap.push(value);
    if heap.len() > most {
        heap.pop();
    }
}

fn compare_rows(rows: &[Row], is_keyed: bool, found: &mut SplitDifference, first: &mut Firsts) {
    for group in rows.chunk_by(|a, b| a.key == b.key) {
        let middle = group.partition_point(|row| !row.is_after);
        let (before, after) = group.split_at(middle);
        // Both are sorted by content: what is equal goes out in pairs.
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        let (mut one, mut other) = (before.iter().peekable(), after.iter().peekable());
        loop {
            let order = match (one.peek(), other.peek()) {
                (Some(a), Some(b)) => a.content.cmp(&b.content),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (None, None) => break,
            };
            match order {
                std::cmp::Ordering::Less => removed.extend(one.next().map(|row| row.index)),
                std::cmp::Ordering::Greater => added.extend(other.next().map(|row| row.index)),
                std::cmp::Ordering::Equal => {
                    one.next();
                    other.next();
                    found.unchanged += 1;
                }
            }
        }
        removed.sort_unstable();
        added.sort_unstable();
        let pairs = if is_keyed {
            removed.len().min(added.len())
        } else {
            0
        };
        found.changed += pairs as u64;
        for pair in removed.iter().copied().zip(added.iter().copied()).take(pairs) {
            keep(&mut first.changed, pair, first.most);
        }
        found.removed += (removed.len() - pairs) as u64;
        found.added += (added.len() - pairs) as u64;
        for index in &removed[pairs..] {
            keep(&mut first.removed, *index, first.most);
        }
        for index in &added[pairs..] {
            keep(&mut first.added, *index, first.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn rows(sides: [&[(u8, u8)]; 2]) -> Vec<Row> {
        let side = |is_after: bool| {
            let of = sides[usize::from(is_after)].iter().enumerate();
            of.map(move |(index, (key, content))| Row {
                key: hash(&[*key]),
                content: hash(&[*key, *content]),
                is_after,
                index: index as u64,
            })
        };
        side(false).chain(side(true)).collect()
    }

    fn compare(rows: &[Row], memory_bytes: u64, is_keyed: bool) -> SplitDifference {
        // Pretended to be many, so that files are used.
        let total = if memory_bytes == 0 { 10_000_000 } else { 0 };
        let options = DiffOptions::default().memory_bytes(memory_bytes);
        let mut parts = Parts::new(total, &options).unwrap();
        assert_eq!(matches!(parts, Parts::Files(_)), memory_bytes == 0);
        for row in rows {
            parts.push(*row).unwrap();
        }
        let (mut found, mut first) = (SplitDifference::default(), Firsts::new(2));
        parts
            .each(|rows| compare_rows(rows, is_keyed, &mut found, &mut first))
            .unwrap();
        found.added_indices = first.added.into_sorted_vec();
        found.removed_indices = first.removed.into_sorted_vec();
        found.changed_indices = first.changed.into_sorted_vec();
        found
    }

    #[test]
    fn the_same_key_with_other_content_is_a_change_and_copies_count() {
        let all = rows([
            &[(1, 0), (2, 0), (3, 0), (3, 0), (4, 0)],
            &[(1, 0), (2, 9), (3, 0), (5, 0), (6, 0), (7, 0)],
        ]);
        let found = compare(&all, 1, true);
        assert_eq!((found.unchanged, found.changed), (2, 1));
        assert_eq!((found.added, found.removed), (3, 2));
        assert_eq!(found.changed_indices, [(1, 1)]);
        assert_eq!(found.removed_indices, [3, 4]);
        // The first two of three.
        assert_eq!(found.added_indices, [3, 4]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// In files as in memory; and what is counted adds up.
        #[test]
        fn parts_do_not_show(
            before in prop::collection::vec((0u8..20, 0u8..3), 0..60),
            after in prop::collection::vec((0u8..20, 0u8..3), 0..60),
            is_keyed: bool,
        ) {
            let mut all = rows([&before, &after]);
            if !is_keyed {
                all.iter_mut().for_each(|row| row.key = row.content);
            }
            let found = compare(&all, 1, is_keyed);
            prop_assert_eq!(&compare(&all, 0, is_keyed), &found);
            prop_assert_eq!(found.unchanged + found.changed + found.removed, before.len() as u64);
            prop_assert_eq!(found.unchanged + found.changed + found.added, after.len() as u64);
            if !is_keyed {
                prop_assert_eq!(found.changed, 0);
            }
        }

        #[test]
        fn rows_survive_their_files(key: u128, content: u128, index: u64, is_after: bool) {
            let row = Row { key, is_after, content, index };
            prop_assert_eq!(Row::from_bytes(&row.to_bytes()), row);
        }
    }
}
