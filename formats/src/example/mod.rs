//! `tf.train.Example`: the wire format of records.
//!
//! ```text
//! Example  { 1: Features }                         a missing one is an example without features
//! Features { 1: map entry, repeated }              entry { 1: name, 2: Feature }; a name that comes again replaces
//! Feature  { 1: BytesList | 2: FloatList | 3: Int64List }   none of them is a feature without a kind
//! BytesList { 1: bytes, repeated }   FloatList { 1: f32, packed or not }   Int64List { 1: varint, packed or not }
//! ```
//!
//! Source: `example.proto` and `feature.proto` in TensorFlow, `core/example`; wire types and merging of fields that come
//! more than once: the Protocol Buffers encoding guide. Names have to be UTF-8, unknown fields are skipped.
//!
//! [`ExampleView`] borrows from the record, [`Example`] owns its lists, [`crate::columns`] decodes whole batches.
//!
//! ```text
//! SequenceExample { 1: Features (the context), 2: FeatureLists }
//! FeatureLists    { 1: map entry, repeated }     entry { 1: name, 2: FeatureList }; a name that comes again replaces
//! FeatureList     { 1: Feature, repeated }       one a step
//! ```
//!
//! [`SequenceExampleView`] and [`SequenceExample`] are the same for what varies in length as a whole.

mod owned;
mod sequence;
pub(crate) mod varint;
mod view;
pub(crate) mod wire;

pub use owned::{Example, FeatureList};
pub use sequence::{FeatureListView, SequenceExample, SequenceExampleView};
pub(crate) use view::in_feature;
pub use view::{BytesList, ExampleView, FeatureView, FloatList, Int64List};
