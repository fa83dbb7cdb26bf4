//! What the next batches of a host are, without reading a record.

use crate::dataset::Dataset;
use crate::deal::{Dealing, MAX_POSITION, Step};
use crate::error::Result;
use crate::options::LoadOptions;
use crate::order::{EpochOrder, ORDER_VERSION, Sequence};
use crate::state::{STATE_FORMAT, State, pipeline_hash};

/// The batches of one host by the indices of their rows: the order of a stream without its data. O(1) memory, whatever the dataset.
#[derive(Debug, Clone)]
pub struct Plan {
    sequence: Sequence,
    dealing: Dealing,
    /// All of a state but the position.
    identity: State,
    start: u64,
    position: u64,
    cache: Option<EpochOrder>,
}

impl Dataset {
    /// Plans a stream: checks the options and a state to restore. Costs O(1), no replay.
    ///
    /// # Errors
    /// [`Error::Options`](crate::Error::Options); [`Error::Conflict`](crate::Error::Conflict) where the state is of another stream.
    pub fn plan(&self, options: &LoadOptions) -> Result<Plan> {
        let restored = options.restore.as_ref();
        let order = match (options.order, restored) {
            (Some(order), _) => order,
            (None, Some(state)) => state.order.parse()?,
            (None, None) => Default::default(),
        };
        let seed = options.seed.or(restored.map(|state| state.seed)).unwrap_or(0);
        let manifest = self.manifest();
        let identity = State {
            format: STATE_FORMAT,
            order_version: ORDER_VERSION,
            dataset: manifest.name.clone(),
            config: manifest.config.clone(),
            version: manifest.version.clone(),
            fingerprint: manifest.fingerprint.clone(),
            split: self.split().to_string(),
            records: self.len(),
            seed,
            order: order.to_string(),
            sample_position: 0,
            pipeline: pipeline_hash(&["source"]),
        };
        let start = match restored {
            Some(state) => {
                state.check_same_stream(&identity)?;
                state.sample_position
            }
            None => 0,
        };
        let dealing = Dealing {
            records: self.len(),
            batch_size: options.batch_size,
            shard_index: options.shard_index,
            shard_count: options.shard_count,
            drop_remainder: options.drop_remainder,
            num_epochs: options.num_epochs,
        };
        dealing.check()?;
        let sequence = Sequence::new(order, seed, self.len())?;
        if !sequence.is_permutation() {
            tracing::warn!(
                "order `grain` repeats one of {} records and leaves one out, as Grain itself does for this length",
                self.len()
            );
        }
        Ok(Plan {
            sequence,
            dealing,
            identity,
            start,
            position: start,
            cache: None,
        })
    }
}

impl Plan {
    /// The same stream with batches that cross epochs: `repeat` before `batch`. `None`: without end.
    pub(crate) fn across_epochs(mut self, num_epochs: Option<u64>) -> Result<Self> {
        let records = self.dealing.records;
        self.dealing.records = num_epochs
            .map_or(Some(MAX_POSITION), |epochs| records.checked_mul(epochs))
            .unwrap_or(MAX_POSITION);
        self.dealing.num_epochs = Some(1);
        self.dealing.check()?;
        Ok(self)
    }

    /// Begins at a position.
    pub(crate) fn begin_at(&mut self, position: u64) {
        self.start = position;
        self.position = position;
    }

    /// Goes on to the next batch. `None`: the stream has ended.
    pub fn next_step(&mut self) -> Option<Step> {
        let step = self.dealing.step(self.position)?;
        self.position = step.global.end;
        Some(step)
    }

    /// The indices of a step's rows in the opened dataset, appended to `indices`.
    pub fn indices(&mut self, step: &Step, indices: &mut Vec<u64>) {
        self.sequence.indices(step.rows.clone(), &mut self.cache, indices);
    }

    /// Where the stream stands: after the last step that was taken.
    pub fn state(&self) -> State {
        self.state_at(self.position)
    }

    pub(crate) fn state_at(&self, position: u64) -> State {
        State {
            sample_position: position,
            ..self.identity.clone()
        }
    }

    /// Samples of the global stream before the next step.
    pub fn sample_position(&self) -> u64 {
        self.position
    }

    pub(crate) fn set_position(&mut self, position: u64) {
        self.position = position;
    }

    /// How the stream is dealt.
    pub fn dealing(&self) -> &Dealing {
        &self.dealing
    }

    /// Seed of the shuffle.
    pub fn seed(&self) -> u64 {
        self.identity.seed
    }

    /// Batches of a whole epoch, the same on all hosts.
    pub fn steps_per_epoch(&self) -> u64 {
        self.dealing.steps_per_epoch()
    }

    /// Batches in all, from where the stream was opened; `None`: it is endless.
    pub fn num_batches(&self) -> Option<u64> {
        self.dealing.steps_from(self.start)
    }

    /// Batches still to come; `None`: the stream is endless.
    pub fn remaining(&self) -> Option<u64> {
        self.dealing.steps_from(self.position)
    }
}
