//! A sink made of three closures.

use std::marker::PhantomData;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::operators::{ShardSink, ShardWriter};
use crate::record::Record;
use crate::schedule::Shard;
use crate::{BoxError, SplitPlan, SplitTotals};

/// A sink of three closures: `open` begins a shard with a value of any kind (a file), `write` puts a record into it, `finish` completes it
/// and says what is kept of the shard. Each is called as the methods of [`ShardSink`] and [`ShardWriter`] are, and may block.
///
/// A shard that isn't finished is dropped: then the value should leave nothing behind under the shard's name.
pub fn sink<W, S>(
    open: impl Fn(&Shard) -> Result<W, BoxError> + Send + Sync + 'static,
    write: impl Fn(&mut W, &Record) -> Result<(), BoxError> + Send + Sync + 'static,
    finish: impl Fn(W) -> Result<S, BoxError> + Send + Sync + 'static,
) -> impl ShardSink<Summary = S>
where
    W: 'static,
    S: Serialize + for<'de> Deserialize<'de> + Send + 'static,
{
    let (write, finish) = (Arc::new(write), Arc::new(finish));
    Closures {
        open,
        write,
        finish,
        kinds: PhantomData::<fn() -> (W, S)>,
    }
}

struct Closures<O, P, F, K> {
    open: O,
    write: Arc<P>,
    finish: Arc<F>,
    kinds: PhantomData<K>,
}

impl<W, S, O, P, F> ShardSink for Closures<O, P, F, fn() -> (W, S)>
where
    W: 'static,
    S: Serialize + for<'de> Deserialize<'de> + Send + 'static,
    O: Fn(&Shard) -> Result<W, BoxError> + Send + Sync + 'static,
    P: Fn(&mut W, &Record) -> Result<(), BoxError> + Send + Sync + 'static,
    F: Fn(W) -> Result<S, BoxError> + Send + Sync + 'static,
{
    type Summary = S;
    type Writer = Open<W, P, F, S>;

    fn open(&self, shard: &Shard) -> Result<Self::Writer, BoxError> {
        Ok(Open {
            value: (self.open)(shard)?,
            write: self.write.clone(),
            finish: self.finish.clone(),
            kind: PhantomData,
        })
    }
}

struct Open<W, P, F, S> {
    value: W,
    write: Arc<P>,
    finish: Arc<F>,
    kind: PhantomData<fn() -> S>,
}

impl<W, P, F, S> ShardWriter for Open<W, P, F, S>
where
    P: Fn(&mut W, &Record) -> Result<(), BoxError>,
    F: Fn(W) -> Result<S, BoxError>,
{
    type Summary = S;

    fn write(&mut self, record: &Record) -> Result<(), BoxError> {
        (self.write)(&mut self.value, record)
    }

    fn finish(self) -> Result<S, BoxError> {
        (self.finish)(self.value)
    }
}

impl SplitPlan {
    /// A plan that cuts every split into `num_shards` that differ by at most one record.
    pub fn all_even(num_shards: u32) -> impl Fn(&[SplitTotals]) -> Result<Vec<Self>, BoxError> + Clone {
        move |totals| {
            let plans = totals.iter().map(|split| Self::even(split.records, num_shards));
            Ok(plans.collect())
        }
    }
}
