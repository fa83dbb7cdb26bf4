//! Pipelines of random access: the element of any position is a pure function of it.

use std::fmt;
use std::sync::Arc;

use crate::dataset::Dataset;
use crate::deal::MAX_POSITION;
use crate::element::{Element, ElementSpec};
use crate::error::{Error, Result};
use crate::iter_dataset::IterDataset;
use crate::meter::Measured;
use crate::order::Order;
use crate::pipeline::{Pipeline, PipelineOptions};
use crate::stages::batch::{BatchMapStage, BatchOptions};
use crate::stages::cache::CacheStage;
use crate::stages::concatenate::ConcatenateStage;
use crate::stages::filter::{Filter, FilterMapStage, Predicate};
use crate::stages::map::{MapMapStage, Mapping};
use crate::stages::mix::{MixMapStage, Mixture};
use crate::stages::repeat::RepeatStage;
use crate::stages::shuffle::ShuffleStage;
use crate::stages::slice::SliceStage;
use crate::stages::source::{CustomStage, DatasetStage, Range, Source};
use crate::stages::zip::ZipStage;
use crate::stages::{ENDLESS, MapStage, Text};
use crate::transform::Transform;

/// A pipeline of random access, after Grain's `MapDataset`; cheap to clone.
///
/// Stages are chained; nothing is read before an element is asked for. Position `p` is offset `p mod len` of epoch `p div len`: beyond its
/// length a pipeline goes on with the next epoch, in which a shuffle has another order. What is opened with [`load`](Self::load) is
/// one epoch, unless [`repeat`](Self::repeat) says more.
///
/// # Examples
/// ```
/// use prep_loader::{BatchOptions, MapDataset, PipelineOptions};
///
/// let pipeline = MapDataset::range(10)?.shuffle(42)?.repeat(2)?.batch(BatchOptions::new(4))?;
/// let mut batches = pipeline.load(PipelineOptions::new())?;
/// let first = batches.next_element()?.unwrap();
/// assert_eq!(first.array("value")?.to_vec::<i64>().unwrap(), [3, 4, 7, 0]);
/// assert_eq!(batches.count(), 4);
/// # Ok::<(), prep_loader::Error>(())
/// ```
#[derive(Clone)]
pub struct MapDataset {
    stage: Arc<dyn MapStage>,
    /// Source, shuffle and repeat, as long as there is nothing else.
    plain: Option<Plain>,
    /// Set while the last stages are a batch and what leaves its rows as they are.
    dealt: Option<Dealt>,
}

/// A pipeline that the loader of plain datasets serves.
#[derive(Clone)]
pub(crate) struct Plain {
    pub(crate) source: Arc<DatasetStage>,
    pub(crate) shuffle: Option<(Order, u64)>,
    /// Epochs that follow one another without a border; `None`: without end.
    pub(crate) num_epochs: Option<u64>,
}

/// A batch at the end of a pipeline, whose rows are dealt to hosts.
#[derive(Clone)]
pub(crate) struct Dealt {
    pub(crate) rows: Box<MapDataset>,
    pub(crate) options: BatchOptions,
    /// Applied to whole batches.
    pub(crate) maps: Vec<Mapping>,
    /// Epochs between which a batch ends; `None`: without end.
    pub(crate) num_epochs: Option<u64>,
    /// Whether there is a `repeat` after the batch.
    pub(crate) repeats: bool,
}

impl MapDataset {
    fn of(stage: impl MapStage + 'static) -> Self {
        Self {
            stage: measured(stage),
            plain: None,
            dealt: None,
        }
    }

    /// The records of a dataset, in their order.
    ///
    /// # Errors
    /// A schema that cannot be decoded.
    pub fn source(dataset: Dataset) -> Result<Self> {
        Self::from_dataset(dataset, None)
    }

    /// The records of a dataset with some of their features: others are not decoded.
    ///
    /// # Errors
    /// As [`source`](Self::source); features that are not there.
    pub fn source_columns<S: Into<String>>(
        dataset: Dataset,
        columns: impl IntoIterator<Item = S>,
    ) -> Result<Self> {
        Self::from_dataset(dataset, Some(columns.into_iter().map(Into::into).collect()))
    }

    fn from_dataset(dataset: Dataset, columns: Option<Vec<String>>) -> Result<Self> {
        let source = Arc::new(DatasetStage::new(dataset, columns)?);
        Ok(Self {
            plain: Some(Plain {
                source: Arc::clone(&source),
                shuffle: None,
                num_epochs: Some(1),
            }),
            stage: measured(source),
            dealt: None,
        })
    }

    /// Elements of a source of the caller's own.
    ///
    /// # Errors
    /// More than 2^63 elements.
    pub fn custom(source: impl Source + 'static) -> Result<Self> {
        Ok(Self::of(CustomStage::new(Arc::new(source))?))
    }

    /// The numbers `0..length`, as `value: int64[]`.
    ///
    /// # Errors
    /// More than 2^63 numbers.
    pub fn range(length: u64) -> Result<Self> {
        Self::custom(Range::new(length))
    }

    /// Another permutation each epoch, in the order `prep`.
    ///
    /// # Errors
    /// A pipeline without end.
    pub fn shuffle(self, seed: u64) -> Result<Self> {
        self.shuffle_as(Order::Prep, seed)
    }

    /// Another permutation each epoch, in an order: [`Order::Grain`] is that of Grain's `shuffle`, bit for bit.
    ///
    /// # Errors
    /// A pipeline without end; under [`Order::Grain`] a length or seed that is not below 2^32.
    pub fn shuffle_as(self, order: Order, seed: u64) -> Result<Self> {
        let plain = self
            .plain
            .filter(|plain| plain.shuffle.is_none() && plain.num_epochs == Some(1));
        Ok(Self {
            plain: plain.map(|plain| Plain {
                shuffle: Some((order, seed)),
                ..plain
            }),
            ..Self::of(ShuffleStage::new(self.stage, order, seed)?)
        })
    }

    /// Permutes windows of consecutive positions, then the positions inside each: for data of which near records are read together.
    ///
    /// # Errors
    /// A pipeline without end, a window of 0.
    pub fn window_shuffle(self, window: u64, seed: u64) -> Result<Self> {
        self.shuffle_as(Order::Window(window), seed)
    }

    /// Every `step`-th position of `start..stop`, `stop` cut to the length.
    ///
    /// # Errors
    /// A step of 0.
    pub fn slice(self, start: u64, stop: u64, step: u64) -> Result<Self> {
        Ok(Self::of(SliceStage::new(self.stage, start, stop, step)?))
    }

    /// Positions `index, index + count, ..`: a part of the data for good. The share of a host is an option of [`load`](Self::load), and
    /// that one is elastic.
    ///
    /// # Errors
    /// An index that is not below the count.
    pub fn shard(self, index: u64, count: u64) -> Result<Self> {
        if index >= count {
            return Err(Error::Options(format!(
                "shard {index}/{count} is out of range: the first number is below the second"
            )));
        }
        self.slice(index, u64::MAX, count)
    }

    /// The first positions.
    ///
    /// # Errors
    /// None in practice: it is [`slice`](Self::slice).
    pub fn take(self, count: u64) -> Result<Self> {
        self.slice(0, count, 1)
    }

    /// All but the first positions.
    ///
    /// # Errors
    /// None in practice: it is [`slice`](Self::slice).
    pub fn skip(self, count: u64) -> Result<Self> {
        self.slice(count, u64::MAX, 1)
    }

    /// Epochs one after the other, each in another order; `None`: without end. After `batch`, batches end with an epoch; before it, they go
    /// across.
    ///
    /// # Errors
    /// 0 epochs, more than 2^63 positions.
    pub fn repeat(self, num_epochs: impl Into<Option<u64>>) -> Result<Self> {
        self.repeat_as(num_epochs, true)
    }

    /// As [`repeat`](Self::repeat); without `reseed_each_epoch` all epochs are in the order of the first.
    ///
    /// # Errors
    /// As [`repeat`](Self::repeat).
    pub fn repeat_as(self, num_epochs: impl Into<Option<u64>>, reseed_each_epoch: bool) -> Result<Self> {
        let num_epochs = num_epochs.into();
        let plain = self
            .plain
            .filter(|plain| reseed_each_epoch && plain.num_epochs == Some(1));
        let dealt = self.dealt.filter(|dealt| reseed_each_epoch && !dealt.repeats);
        Ok(Self {
            stage: measured(RepeatStage::new(self.stage, num_epochs, reseed_each_epoch)?),
            plain: plain.map(|plain| Plain { num_epochs, ..plain }),
            dealt: dealt.map(|dealt| Dealt {
                num_epochs,
                repeats: true,
                ..dealt
            }),
        })
    }

    /// Applies a transform to each element.
    ///
    /// # Errors
    /// An element that it cannot work on; a random transform.
    pub fn map(self, transform: impl Transform + 'static) -> Result<Self> {
        self.map_shared(Arc::new(transform), None)
    }

    /// Applies a transform that draws random numbers, keyed by this seed, its name, and the position of the element.
    ///
    /// # Errors
    /// An element that it cannot work on.
    pub fn random_map(self, transform: impl Transform + 'static, seed: u64) -> Result<Self> {
        self.map_shared(Arc::new(transform), Some(seed))
    }

    /// As [`map`](Self::map) and [`random_map`](Self::random_map), for a transform that is shared.
    ///
    /// # Errors
    /// As those.
    pub fn map_shared(self, transform: Arc<dyn Transform>, seed: Option<u64>) -> Result<Self> {
        let mapping = Mapping::new(&self.stage.facts().spec, transform, seed)?;
        let dealt = self.dealt.filter(|_| !mapping.is_random());
        Ok(Self {
            dealt: dealt.map(|mut dealt| {
                dealt.maps.push(mapping.clone());
                dealt
            }),
            ..Self::of(MapMapStage::new(self.stage, mapping))
        })
    }

    /// Sets a value, `int64[]`, to the position of each element in its epoch.
    #[must_use]
    pub fn map_with_index(self, name: &str) -> Self {
        let length = self.stage.facts().length;
        let mapping = Mapping::with_index(&self.stage.facts().spec, name, length);
        Self::of(MapMapStage::new(self.stage, mapping))
    }

    /// Leaves out elements. In random access they leave gaps, as in Grain: [`get`](Self::get) gives `None` and the length stays.
    /// What is streamed has none. `name` stands for the function in states.
    #[must_use]
    pub fn filter(self, name: &str, keep: impl Fn(&Element) -> Result<bool> + Send + Sync + 'static) -> Self {
        self.filter_shared(name, Arc::new(keep))
    }

    /// As [`filter`](Self::filter), for a predicate that is shared.
    #[must_use]
    pub fn filter_shared(self, name: &str, keep: Arc<dyn Predicate>) -> Self {
        Self::of(FilterMapStage::new(self.stage, Filter::new(name, keep)))
    }

    /// Keeps decoded elements in memory, as many as fit into `bytes`. Does not change the stream.
    ///
    /// # Errors
    /// What is shuffled or random, so that there is another element at a position each epoch.
    pub fn cache(self, bytes: u64) -> Result<Self> {
        Ok(Self {
            // It has no line in the text.
            stage: Arc::new(Measured::named(CacheStage::new(self.stage, bytes)?, "cache")),
            plain: None,
            dealt: None,
        })
    }

    /// Puts elements of the same position together, as long as the shortest.
    ///
    /// # Errors
    /// Values of the same name; no dataset.
    pub fn zip(parents: impl IntoIterator<Item = Self>) -> Result<Self> {
        Ok(Self::of(ZipStage::new(stages(parents))?))
    }

    /// One dataset after the other.
    ///
    /// # Errors
    /// Elements of different names or dtypes; a dataset without end; no dataset.
    pub fn concatenate(parents: impl IntoIterator<Item = Self>) -> Result<Self> {
        Ok(Self::of(ConcatenateStage::new(stages(parents))?))
    }

    /// Mixes datasets in proportion to weights. Empty ones are left out.
    ///
    /// # Errors
    /// Elements of different names or dtypes, weights that are not one above 0 for each; no dataset.
    pub fn mix(parents: impl IntoIterator<Item = Self>, mixture: Mixture) -> Result<Self> {
        Ok(Self::of(MixMapStage::new(stages(parents), mixture)?))
    }

    /// Batches elements. Where it is the last stage, but for `map` and `repeat`, its rows are dealt to hosts by [`load`](Self::load).
    ///
    /// # Errors
    /// A size of 0; gaps of a filter.
    pub fn batch(self, options: BatchOptions) -> Result<Self> {
        let stage = BatchMapStage::new(Arc::clone(&self.stage), options.clone())?;
        Ok(Self {
            dealt: Some(Dealt {
                rows: Box::new(self),
                options,
                maps: Vec::new(),
                num_epochs: Some(1),
                repeats: false,
            }),
            ..Self::of(stage)
        })
    }

    /// Goes on streaming, over the default number of virtual streams; gaps of filters are closed.
    pub fn to_iter(self) -> IterDataset {
        IterDataset::over(self.stage, crate::iter_dataset::DEFAULT_STREAMS)
    }

    /// Goes on streaming over a number of virtual streams: 1 keeps the order of positions, and then one host does all the work.
    ///
    /// # Errors
    /// 0 streams, or more than 65,536.
    pub fn to_iter_over(self, streams: u64) -> Result<IterDataset> {
        IterDataset::check_streams(streams)?;
        Ok(IterDataset::over(self.stage, streams))
    }

    /// Opens the stream of elements.
    ///
    /// # Errors
    /// Options that do not go together, a state of another pipeline.
    pub fn load(&self, options: PipelineOptions) -> Result<Pipeline> {
        if self.stage.facts().sparse {
            return self.clone().to_iter().load(options);
        }
        Pipeline::random_access(self, options)
    }

    /// Positions of an epoch. `None`: it has no end.
    pub fn len(&self) -> Option<u64> {
        Some(self.stage.facts().length).filter(|&length| length < ENDLESS)
    }

    /// Whether there is no position.
    pub fn is_empty(&self) -> bool {
        self.stage.facts().length == 0
    }

    /// What an element looks like.
    pub fn element_spec(&self) -> &ElementSpec {
        &self.stage.facts().spec
    }

    /// The element of a position; `None` where a filter left it out.
    ///
    /// # Errors
    /// An empty pipeline, a position of 2^63 or above; what a stage says.
    pub fn get(&self, position: u64) -> Result<Option<Element>> {
        self.get_many(&[position]).pop().unwrap_or(Ok(None))
    }

    /// Elements of positions, in the order given; records are read together.
    pub fn get_many(&self, positions: &[u64]) -> Vec<Result<Option<Element>>> {
        let mut items = Vec::with_capacity(positions.len());
        let wrong = |&position: &u64| position >= MAX_POSITION || self.is_empty();
        if positions.iter().any(wrong) {
            return positions
                .iter()
                .map(|&index| {
                    Err(Error::OutOfRange {
                        index,
                        length: self.stage.facts().length,
                    })
                })
                .collect();
        }
        self.stage.get_many(positions, &mut items);
        items
    }

    /// The elements of the first epoch in order, without threads; gaps are left out.
    pub fn iter(&self) -> impl Iterator<Item = Result<Element>> + '_ {
        (0..self.stage.facts().length).filter_map(|position| self.get(position).transpose())
    }

    /// The pipeline's text: a line a stage.
    pub fn describe(&self) -> Vec<String> {
        let mut text = Text::default();
        self.stage.describe(&mut text);
        text.into_lines()
    }

    pub(crate) fn stage(&self) -> &Arc<dyn MapStage> {
        &self.stage
    }

    pub(crate) fn plain(&self) -> Option<&Plain> {
        self.plain.as_ref()
    }

    pub(crate) fn dealt(&self) -> Option<&Dealt> {
        self.dealt.as_ref()
    }
}

impl fmt::Debug for MapDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapDataset")
            .field("stages", &self.describe())
            .finish_non_exhaustive()
    }
}

fn measured<S: MapStage + 'static>(stage: S) -> Arc<dyn MapStage> {
    Arc::new(Measured::new(stage, S::describe))
}

fn stages(parents: impl IntoIterator<Item = MapDataset>) -> Vec<Arc<dyn MapStage>> {
    parents.into_iter().map(|parent| parent.stage).collect()
}
