use std::sync::LazyLock;

use prep_formats::columns::BatchDecoder;
use prep_formats::example::{
    Example, ExampleView, FeatureListView, FeatureView, SequenceExample, SequenceExampleView,
};
use prep_formats::features::Features;

/// A record as a message of either kind.
pub(crate) fn example(record: &[u8]) {
    let owned = SequenceExample::decode(record);
    let view = SequenceExampleView::parse(record);
    assert_eq!(owned.is_ok(), view.is_ok(), "owned and view differ");
    if let (Ok(owned), Ok(view)) = (owned, view) {
        for (name, list) in view.feature_lists() {
            assert_eq!(
                view.feature_list(name).map(FeatureListView::len),
                Some(list.len())
            );
        }
        let encoded = owned.encode();
        let again = SequenceExample::decode(&encoded).expect("our own bytes");
        assert_eq!(again.encode(), encoded);
    }
    let owned = Example::decode(record);
    let view = ExampleView::parse(record);
    assert_eq!(owned.is_ok(), view.is_ok(), "owned and view differ");
    let (Ok(owned), Ok(view)) = (owned, view) else {
        return;
    };
    assert_eq!(owned.features.len(), view.len());
    for (name, feature) in view.iter() {
        assert!(owned.features.contains_key(name));
        match feature {
            FeatureView::Bytes(list) => assert_eq!(list.iter().count(), list.len()),
            FeatureView::Int64(list) => assert_eq!(list.iter().count(), list.len()),
            FeatureView::Float(list) => assert_eq!(list.iter().count(), list.len()),
            _ => {}
        }
    }
    // Canonical once encoded: the same message, and the same bytes the next time.
    let encoded = owned.encode();
    let again = Example::decode(&encoded).expect("our own bytes");
    assert_eq!(again.encode(), encoded);
}

/// Schemas of the golden datasets, with pictures, ragged tensors and texts.
static SCHEMAS: LazyLock<Vec<Features>> = LazyLock::new(|| {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/features");
    ["kitchen_sink", "mnist", "imagenet2012"]
        .iter()
        .filter_map(|name| Features::read_folder(format!("{golden}/{name}").as_ref()).ok())
        .collect()
});

/// The first byte chooses a schema; the rest is a record that goes twice into a batch.
pub(crate) fn columns(bytes: &[u8]) {
    let Some((&choice, record)) = bytes.split_first() else {
        return;
    };
    let Some(features) = SCHEMAS.get(usize::from(choice >> 1) % SCHEMAS.len().max(1)) else {
        panic!("no golden schema can be read");
    };
    let Ok(mut decoder) = BatchDecoder::new(features, choice & 1 == 1) else {
        return;
    };
    let mut batch = decoder.new_batch(2);
    let first = decoder.push(record, &mut batch);
    let rows = batch.rows;
    assert_eq!(rows, usize::from(first.is_ok()), "a row that fails leaves none");
    let second = decoder.push(record, &mut batch);
    assert_eq!(first.is_ok(), second.is_ok());
    if first.is_ok() {
        for (spec, column) in decoder.specs().iter().zip(&batch.columns) {
            assert_eq!(column.row(spec, 0), column.row(spec, 1), "{}", spec.name);
        }
    }
}
