//! Streaming pipelines: stages whose number of elements depends on the data, on virtual streams.

use std::fmt;
use std::sync::Arc;

use crate::element::{Element, ElementSpec};
use crate::error::{Error, Result};
use crate::meter::Measured;
use crate::pipeline::{Pipeline, PipelineOptions};
use crate::stages::batch::{self, BatchIterStage, BatchOptions};
use crate::stages::filter::{Filter, FilterIterStage, Predicate};
use crate::stages::flat_map::FlatMapStage;
use crate::stages::interleave::InterleaveStage;
use crate::stages::map::{MapIterStage, Mapping};
use crate::stages::mix::{MixIterStage, Mixture};
use crate::stages::pack::{PackOptions, PackStage};
use crate::stages::streams::StreamsStage;
use crate::stages::window_shuffle::WindowShuffleStage;
use crate::stages::{IterStage, MapStage, Parent, Text};
use crate::transform::Transform;

/// Virtual streams of a streaming pipeline: divided without a rest by 1, 2, 3, 4, 6, 8, 12, 16, 24 and 48 hosts.
pub const DEFAULT_STREAMS: u64 = 48;
/// More are refused: each has buffers of its own.
const MAX_STREAMS: u64 = 1 << 16;

/// A streaming pipeline, after Grain's `IterDataset`; cheap to clone.
///
/// Its elements come from a fixed number of virtual streams, merged round robin, so that they are the same for any number of hosts and
/// threads: ORDER.md, section 10. Each stage works on each stream for itself.
///
/// # Examples
/// ```
/// use prep_loader::{BatchOptions, MapDataset, PipelineOptions};
///
/// let pipeline = MapDataset::range(100)?.to_iter().filter("thirds", |element| {
///     Ok(element.array("value")?.item::<i64>().is_some_and(|value| value % 3 == 0))
/// });
/// let batches = pipeline.batch(BatchOptions::new(10))?.load(PipelineOptions::new())?;
/// let rows: usize = batches.map(|batch| batch.unwrap().array("value").unwrap().shape()[0]).sum();
/// assert_eq!(rows, 34);
/// # Ok::<(), prep_loader::Error>(())
/// ```
#[derive(Clone)]
pub struct IterDataset {
    stage: Parent,
    streams: u64,
    /// Set while the last stages are a batch and maps.
    dealt: Option<DealtStream>,
}

/// A batch at the end of a streaming pipeline, whose rows are dealt to hosts.
#[derive(Clone)]
pub(crate) struct DealtStream {
    pub(crate) rows: Parent,
    pub(crate) options: BatchOptions,
    /// Applied to whole batches.
    pub(crate) maps: Vec<Mapping>,
}

impl IterDataset {
    pub(crate) fn over(stage: Arc<dyn MapStage>, streams: u64) -> Self {
        Self {
            stage: measured(StreamsStage::new(stage)),
            streams,
            dealt: None,
        }
    }

    pub(crate) fn check_streams(streams: u64) -> Result<()> {
        match streams {
            1..=MAX_STREAMS => Ok(()),
            _ => Err(Error::Options(format!(
                "{streams} virtual streams, wanted 1 to {MAX_STREAMS}"
            ))),
        }
    }

    fn then(self, stage: impl IterStage + 'static) -> Self {
        Self {
            stage: measured(stage),
            streams: self.streams,
            dealt: None,
        }
    }

    /// Applies a transform to each element.
    ///
    /// # Errors
    /// An element that it cannot work on; a random transform.
    pub fn map(self, transform: impl Transform + 'static) -> Result<Self> {
        self.map_shared(Arc::new(transform), None)
    }

    /// Applies a transform that draws random numbers, keyed by this seed, its name, and the number of the element.
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
        let mapping = Mapping::new(self.stage.spec(), transform, seed)?;
        let dealt = self.dealt.clone().filter(|_| !mapping.is_random());
        let parent = Arc::clone(&self.stage);
        let mut mapped = self.then(MapIterStage::new(parent, mapping.clone()));
        mapped.dealt = dealt.map(|mut dealt| {
            dealt.maps.push(mapping);
            dealt
        });
        Ok(mapped)
    }

    /// Sets a value, `int64[]`, to the number of each element: that in its virtual stream, times the number of streams, plus that of the
    /// stream.
    #[must_use]
    pub fn map_with_index(self, name: &str) -> Self {
        let mapping = Mapping::with_index(self.stage.spec(), name, u64::MAX);
        let parent = Arc::clone(&self.stage);
        self.then(MapIterStage::new(parent, mapping))
    }

    /// Leaves out elements. `name` stands for the function in states.
    #[must_use]
    pub fn filter(self, name: &str, keep: impl Fn(&Element) -> Result<bool> + Send + Sync + 'static) -> Self {
        self.filter_shared(name, Arc::new(keep))
    }

    /// As [`filter`](Self::filter), for a predicate that is shared.
    #[must_use]
    pub fn filter_shared(self, name: &str, keep: Arc<dyn Predicate>) -> Self {
        let parent = Arc::clone(&self.stage);
        self.then(FilterIterStage::new(parent, Filter::new(name, keep)))
    }

    /// Gives the elements that each element becomes, one by one. `name` stands for the function in states; `spec` is what it makes, as far as
    /// that differs from what it is given.
    #[must_use]
    pub fn flat_map(
        self,
        name: &str,
        spec: impl Into<Option<ElementSpec>>,
        expand: impl Fn(Element) -> Result<Vec<Element>> + Send + Sync + 'static,
    ) -> Self {
        let parent = Arc::clone(&self.stage);
        let spec = spec.into().unwrap_or_else(|| parent.spec().clone());
        self.then(FlatMapStage::new(parent, name, spec, Arc::new(expand)))
    }

    /// Packs sequences of varying length into rows of one length.
    ///
    /// # Errors
    /// Values that are not there or are no sequences of numbers.
    pub fn pack(self, options: PackOptions) -> Result<Self> {
        let parent = Arc::clone(&self.stage);
        Ok(self.then(PackStage::new(parent, options)?))
    }

    /// Shuffles in windows of so many elements over all streams.
    ///
    /// # Errors
    /// A window of 0.
    pub fn window_shuffle(self, window: u64, seed: u64) -> Result<Self> {
        let parent = Arc::clone(&self.stage);
        Ok(self.then(WindowShuffleStage::new(parent, window, seed)?))
    }

    /// Batches elements. Where it is the last stage, but for `map`, rows are dealt to hosts by [`load`](Self::load); else each stream has
    /// batches of its own.
    ///
    /// # Errors
    /// A size of 0.
    pub fn batch(self, options: BatchOptions) -> Result<Self> {
        let rows = Arc::clone(&self.stage);
        let stage = BatchIterStage::new(Arc::clone(&rows), options.clone())?;
        let mut batched = self.then(stage);
        batched.dealt = Some(DealtStream {
            rows,
            options,
            maps: Vec::new(),
        });
        Ok(batched)
    }

    /// The rows of batches one by one.
    #[must_use]
    pub fn unbatch(self) -> Self {
        let mut spec = ElementSpec::new();
        spec.set_unknown(self.stage.spec().is_unknown());
        for field in self.stage.spec().iter() {
            let mut field = field.clone();
            if !field.shape.is_empty() {
                field.shape.remove(0);
            }
            spec.push(field);
        }
        self.flat_map("unbatch", spec, batch::unstack_element)
    }

    /// Makes batches of another size of batches.
    ///
    /// # Errors
    /// A size of 0.
    pub fn rebatch(self, options: BatchOptions) -> Result<Self> {
        self.unbatch().batch(options)
    }

    /// Mixes streams in proportion to weights, each virtual stream for itself. Empty ones are left out.
    ///
    /// # Errors
    /// Elements of different names or dtypes, weights that are not one above 0 for each, numbers of virtual streams that differ; no dataset.
    pub fn mix(parents: impl IntoIterator<Item = Self>, mixture: Mixture) -> Result<Self> {
        let (streams, parents) = parts(parents, "mix")?;
        Ok(Self {
            stage: measured(MixIterStage::new(parents, mixture)?),
            streams,
            dealt: None,
        })
    }

    /// One element of each of `cycle_length` datasets in turn; where one ends, the next one takes its place.
    ///
    /// # Errors
    /// Elements of different names or dtypes, a cycle of 0, numbers of virtual streams that differ; no dataset.
    pub fn interleave(parents: impl IntoIterator<Item = Self>, cycle_length: usize) -> Result<Self> {
        let (streams, parents) = parts(parents, "interleave")?;
        Ok(Self {
            stage: measured(InterleaveStage::new(parents, cycle_length)?),
            streams,
            dealt: None,
        })
    }

    /// Opens the stream of elements.
    ///
    /// # Errors
    /// Options that do not go together, a state of another pipeline, and what stages say where a pipeline with an end is counted for several
    /// hosts.
    pub fn load(&self, options: PipelineOptions) -> Result<Pipeline> {
        Pipeline::streaming(self, options)
    }

    /// What an element looks like.
    pub fn element_spec(&self) -> &ElementSpec {
        self.stage.spec()
    }

    /// Number of virtual streams.
    pub fn streams(&self) -> u64 {
        self.streams
    }

    /// The pipeline's text: a line a stage.
    pub fn describe(&self) -> Vec<String> {
        let mut text = Text::default();
        self.stage.describe(&mut text);
        text.line(format!("streams count={}", self.streams));
        text.into_lines()
    }

    pub(crate) fn stage(&self) -> &Parent {
        &self.stage
    }

    pub(crate) fn dealt(&self) -> Option<&DealtStream> {
        self.dealt.as_ref()
    }
}

fn measured<S: IterStage + 'static>(stage: S) -> Parent {
    Arc::new(Measured::new(stage, S::describe))
}

fn parts(parents: impl IntoIterator<Item = IterDataset>, stage: &str) -> Result<(u64, Vec<Parent>)> {
    let parents: Vec<IterDataset> = parents.into_iter().collect();
    let streams = parents.first().map_or(DEFAULT_STREAMS, |parent| parent.streams);
    match parents.iter().find(|parent| parent.streams != streams) {
        Some(odd) => Err(Error::Options(format!(
            "`{stage}` of datasets over {streams} and {} virtual streams, wanted the same number",
            odd.streams
        ))),
        None => Ok((streams, parents.into_iter().map(|parent| parent.stage).collect())),
    }
}

impl fmt::Debug for IterDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IterDataset")
            .field("stages", &self.describe())
            .finish_non_exhaustive()
    }
}
