//! Typed items on their way between workers, and what becomes of those that serde cannot carry.

use std::io::Write;

use bincode::Options;
use serde::Serialize;
use serde::de::DeserializeOwned;
use timely::Accountable;
use timely::container::{CapacityContainerBuilder, DrainContainer, PushInto, SizableContainer};
use timely::dataflow::Stream;
use timely::dataflow::channels::ContainerBytes;
use timely::dataflow::channels::pact::{ExchangeCore, Pipeline as Local};
use timely::dataflow::operators::Operator;

use crate::Error;
use crate::container::Batch;
use crate::job::Job;
use crate::pipeline::Epoch;

/// Stands for the length of an item that could not be written; a text follows that says why.
const BROKEN: u64 = u64::MAX;

/// Typed items that are exchanged.
///
/// Within a process they are moved as they are. Between processes each is written in bincode, the form that timely uses for a `Vec` as well,
/// but with its length before it: so an item that does not come back as it went is noticed where it arrives, and told of in words, where
/// timely would panic or read on in the middle of the next one.
///
/// | bytes | field |
/// |---|---|
/// | 8 | number of items `n` |
/// | `n` times 8 + length | length, the item in bincode |
/// | 0 to 7 | zeros, up to a multiple of 8 |
///
/// All numbers are little-endian.
pub(crate) struct Items<T> {
    items: Vec<T>,
    /// Items that did not arrive; timely counts what was sent.
    broken: usize,
    /// Why the first of them did not.
    reason: Option<String>,
}

impl<T> Items<T> {
    /// The items, for an operator that gets them. One that did not arrive ends the job.
    pub(crate) fn take(&mut self, stage: &str, job: &Job) -> Vec<T> {
        if let Some(reason) = self.reason.take() {
            job.fail(Error::Untransportable {
                stage: stage.to_owned(),
                reason,
            });
        }
        self.broken = 0;
        std::mem::take(&mut self.items)
    }

    fn lose(&mut self, reason: String) {
        self.broken += 1;
        self.reason.get_or_insert(reason);
    }
}

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            broken: 0,
            reason: None,
        }
    }
}

impl<T> Accountable for Items<T> {
    fn record_count(&self) -> i64 {
        (self.items.len() + self.broken) as i64
    }
}

impl<T> DrainContainer for Items<T> {
    type Item<'a>
        = T
    where
        T: 'a;
    type DrainIter<'a>
        = std::vec::Drain<'a, T>
    where
        T: 'a;

    fn drain(&mut self) -> Self::DrainIter<'_> {
        self.items.drain(..)
    }
}

impl<T> SizableContainer for Items<T> {
    fn at_capacity(&self) -> bool {
        self.items.at_capacity()
    }

    fn ensure_capacity(&mut self, stash: &mut Option<Self>) {
        let mut spare = stash.take().map(|stash| stash.items);
        self.items.ensure_capacity(&mut spare);
    }
}

impl<T> PushInto<T> for Items<T> {
    fn push_into(&mut self, item: T) {
        self.items.push(item);
    }
}

/// Items as they are exchanged.
pub(crate) fn unpack<'scope, T: 'static>(
    stream: Stream<'scope, Epoch, Batch<T>>,
) -> Stream<'scope, Epoch, Items<T>> {
    stream.unary::<CapacityContainerBuilder<Items<T>>, _, _, _>(Local, "Unpack", |_, _| {
        |input, output| {
            input.for_each(|capability, batch| {
                output.session(&capability).give_iterator(batch.items.drain(..));
            });
        }
    })
}

/// Sends each item to the worker that `route` gives it, of as many as there are.
pub(crate) fn by<T: 'static, F: FnMut(&T) -> u64 + 'static>(
    route: F,
) -> ExchangeCore<CapacityContainerBuilder<Items<T>>, F> {
    ExchangeCore::<CapacityContainerBuilder<Items<T>>, F>::new(route)
}

/// The form that timely gives a `Vec`, and nothing left over.
fn form() -> impl Options {
    bincode::options().with_fixint_encoding().reject_trailing_bytes()
}

impl<T: Serialize> Items<T> {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((self.items.len() as u64).to_le_bytes());
        for item in &self.items {
            let start = bytes.len();
            bytes.extend([0; 8]);
            match form().serialize_into(&mut bytes, item) {
                Ok(()) => {
                    let length = (bytes.len() - start - 8) as u64;
                    bytes[start..start + 8].copy_from_slice(&length.to_le_bytes());
                }
                Err(error) => {
                    let text = format!("it cannot be written: {error}");
                    bytes.truncate(start);
                    bytes.extend(BROKEN.to_le_bytes());
                    bytes.extend((text.len() as u64).to_le_bytes());
                    bytes.extend(text.as_bytes());
                }
            }
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }
}

impl<T: Serialize + DeserializeOwned> ContainerBytes for Items<T> {
    /// # Panics
    ///
    /// If the bytes are not those of [`into_bytes`](Self::into_bytes): peers are authenticated and run the same program, so this is a
    /// bug; the worker's guard turns it into the job's error.
    fn from_bytes(bytes: timely::bytes::arc::Bytes) -> Self {
        let mut rest = &bytes[..];
        let number = |rest: &mut &[u8]| {
            let (field, after) = rest.split_first_chunk::<8>().expect("items have lengths");
            *rest = after;
            u64::from_le_bytes(*field)
        };
        let take = |rest: &mut &[u8], length: u64| -> Vec<u8> {
            let length = usize::try_from(length)
                .ok()
                .filter(|length| *length <= rest.len());
            let (found, after) = rest.split_at(length.expect("items are as long as they say"));
            *rest = after;
            found.to_vec()
        };
        let count = number(&mut rest);
        let mut found = Self::default();
        for _ in 0..count {
            let length = number(&mut rest);
            if length == BROKEN {
                let length = number(&mut rest);
                found.lose(String::from_utf8_lossy(&take(&mut rest, length)).into_owned());
                continue;
            }
            match form().deserialize(&take(&mut rest, length)) {
                Ok(item) => found.items.push(item),
                Err(error) => found.lose(format!("what was written cannot be read: {error}")),
            }
        }
        found
    }

    fn length_in_bytes(&self) -> usize {
        self.encode().len()
    }

    fn into_bytes<W: Write>(&self, writer: &mut W) {
        writer
            .write_all(&self.encode())
            .expect("timely's send buffer takes what was announced");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    fn travel<T: Serialize + DeserializeOwned>(items: Vec<T>) -> Items<T> {
        let count = items.len() as i64;
        let mut sent = Items::default();
        items.into_iter().for_each(|item| sent.push_into(item));
        let mut wire = Vec::new();
        sent.into_bytes(&mut wire);
        assert_eq!(wire.len(), sent.length_in_bytes());
        assert_eq!(wire.len() % 8, 0);
        let received = Items::from_bytes(timely::bytes::arc::BytesMut::from(wire).freeze());
        assert_eq!(received.record_count(), count);
        received
    }

    proptest! {
        #[test]
        fn items_survive_the_wire(items in prop::collection::vec((any::<u64>(), ".{0,20}", any::<Option<i8>>(), prop::collection::vec(any::<f32>(), 0..3)), 0..20)) {
            let received = travel(items.clone());
            prop_assert!(received.reason.is_none());
            let bits = |items: &[(u64, String, Option<i8>, Vec<f32>)]| format!("{items:?}");
            prop_assert_eq!(bits(&received.items), bits(&items));
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Skips {
        #[serde(skip_serializing_if = "Option::is_none", default)]
        note: Option<String>,
        count: u64,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Flat {
        #[serde(flatten)]
        more: BTreeMap<String, u64>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u64),
        Text(String),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        One { value: u64 },
    }

    #[test]
    fn what_serde_attributes_leave_out_is_told_and_the_items_around_it_arrive() {
        let with = Skips {
            note: Some("here".into()),
            count: 1,
        };
        let without = || Skips { note: None, count: 2 };
        let received = travel(vec![with, without(), without()]);
        assert_eq!((received.items.len(), received.broken), (1, 2));
        assert_eq!(received.items[0].count, 1);
        let reason = received.reason.unwrap();
        assert!(reason.contains("cannot be read"), "{reason}");

        let more = BTreeMap::from([("a".to_owned(), 1)]);
        let reason = travel(vec![Flat { more }]).reason.unwrap();
        assert!(reason.contains("cannot be written"), "{reason}");
        let reason = travel(vec![Untagged::Number(1), Untagged::Text("x".into())]).reason;
        assert!(reason.is_some_and(|reason| reason.contains("cannot be read")));
        assert!(travel(vec![Tagged::One { value: 3 }]).reason.is_some());
    }
}
