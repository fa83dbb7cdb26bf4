//! Pipelines that are a dataset, its order and a batch: the loader of plain datasets serves them, without an element a record.

use std::sync::Arc;

use bytes::Bytes;
use prep_formats::columns::{ColumnData, ColumnSpec};
use prep_formats::value::DType;

use crate::batch::PooledBatch;
use crate::element::{Array, Element, Value};
use crate::error::{Error, Result};
use crate::loader::Loader;
use crate::map_dataset::Dealt;
use crate::options::LoadOptions;
use crate::order::Order;
use crate::pipeline::PipelineOptions;
use crate::stages::batch::Stacking;

/// The loader of a pipeline that has one.
pub(crate) fn loader(dealt: &Dealt, options: &PipelineOptions, position: u64) -> Result<Option<Loader>> {
    let Some(plain) = dealt.rows.plain() else {
        return Ok(None);
    };
    // A batch that ends with an epoch, or one that goes across: not both.
    let across = plain.num_epochs != Some(1);
    if !dealt.maps.is_empty()
        || !matches!(dealt.options.stacking, Stacking::Equal)
        || (across && dealt.num_epochs != Some(1))
        || !dealt.rows.element_spec().iter().all(is_stackable)
        || plain.source.dataset().is_empty()
    {
        return Ok(None);
    }
    let (order, seed) = plain.shuffle.unwrap_or((Order::Source, 0));
    let mut load = LoadOptions::new(dealt.options.size)
        .order(order)
        .seed(seed)
        .drop_remainder(dealt.options.drop_remainder)
        .shard(options.shard_index, options.shard_count)
        .num_threads(options.num_threads)
        .prefetch(options.prefetch)
        .prefetch_bytes(options.prefetch_bytes)
        .num_epochs(dealt.num_epochs)
        .on_damage(options.on_damage);
    if let Some(columns) = plain.source.columns() {
        load = load.columns(columns);
    }
    let dataset = plain.source.dataset();
    let mut plan = dataset.plan(&load)?;
    if across {
        plan = plan.across_epochs(plain.num_epochs)?;
    }
    plan.begin_at(position);
    dataset.load_planned(plan, load, dataset.images()).map(Some)
}

/// Whether rows of a column are stacked in a batch as they are.
fn is_stackable(spec: &ColumnSpec) -> bool {
    !spec.optional && spec.shape.iter().all(Option::is_some)
}

/// The columns of a batch as arrays, without a copy: their buffers go back to the pool with the last of them.
pub(crate) fn element(batch: PooledBatch, specs: &[ColumnSpec]) -> Result<Element> {
    /// Bytes of a column.
    struct Column {
        batch: Arc<PooledBatch>,
        number: usize,
    }
    impl AsRef<[u8]> for Column {
        fn as_ref(&self) -> &[u8] {
            match &self.batch.columns[self.number] {
                ColumnData::Fixed(data) | ColumnData::Bytes { data, .. } => data,
                _ => &[],
            }
        }
    }
    let batch = Arc::new(batch);
    let mut element = Element::new();
    for (number, spec) in specs.iter().enumerate() {
        let mut shape = vec![batch.rows];
        for size in &spec.shape {
            let size = size.and_then(|size| usize::try_from(size).ok());
            shape
                .push(size.ok_or_else(|| Error::Element(format!("`{}` has rows of many sizes", spec.name)))?);
        }
        let data = Bytes::from_owner(Column {
            batch: Arc::clone(&batch),
            number,
        });
        let array = match (&batch.columns[number], spec.dtype) {
            (ColumnData::Bytes { offsets, .. }, DType::String) => {
                let strings: Vec<Bytes> = offsets
                    .windows(2)
                    .map(|pair| data.slice(pair[0] as usize..pair[1] as usize))
                    .collect();
                Array::strings(shape, strings)?
            }
            _ => Array::new(spec.dtype, shape, data)?,
        };
        element.set(&*spec.name, Value::Array(array));
    }
    Ok(element)
}
