//! The `tfrecord` crate reads what we write, and the other way round.

use std::collections::BTreeMap;
use std::io::Cursor;

use prep_formats::example::{Example, FeatureList};
use prep_formats::tfrecord::{Compression, ReadOptions, Reader, Writer};
use proptest::prelude::*;
use tfrecord::protobuf::Features;
use tfrecord::{
    BytesIter, BytesWriter, ExampleIter, ExampleWriter, Feature, FeatureKind, RecordReaderConfig,
};

fn ours(records: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Compression::Plain).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut reader = Reader::new(bytes, "x", ReadOptions::default()).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        records.push(record.to_vec());
    }
    records
}

fn theirs(list: &FeatureList) -> Feature {
    match list {
        FeatureList::Bytes(values) => Feature::from_bytes_iter(values.iter().cloned()),
        FeatureList::Int64(values) => Feature::from_i64_iter(values.iter().copied()),
        FeatureList::Float(values) => Feature::from_f32_iter(values.iter().copied()),
        FeatureList::None => Feature { kind: None },
    }
}

fn from_theirs(example: tfrecord::Example) -> Example {
    let features = example.features.unwrap_or_default().feature.into_iter();
    let features = features.map(|(name, feature)| {
        let list = match feature.into_kinds() {
            Some(FeatureKind::Bytes(values)) => FeatureList::Bytes(values),
            Some(FeatureKind::I64(values)) => FeatureList::Int64(values),
            Some(FeatureKind::F32(values)) => FeatureList::Float(values),
            None => FeatureList::None,
        };
        (name, list)
    });
    Example {
        features: features.collect(),
    }
}

fn list() -> impl Strategy<Value = FeatureList> {
    prop_oneof![
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..5).prop_map(FeatureList::Bytes),
        prop::collection::vec(any::<i64>(), 0..40).prop_map(FeatureList::Int64),
        prop::collection::vec(any::<i32>().prop_map(|value| value as f32), 0..40)
            .prop_map(FeatureList::Float),
        Just(FeatureList::None),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn records_both_ways(records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..20)) {
        let bytes = ours(&records);
        let found: Result<Vec<Vec<u8>>, _> = BytesIter::from_reader(Cursor::new(&bytes), RecordReaderConfig::default()).collect();
        prop_assert_eq!(&found.unwrap(), &records);

        let mut written = Vec::new();
        let mut writer: BytesWriter<_> = BytesWriter::from_writer(&mut written).unwrap();
        for record in &records {
            writer.send(record.clone()).unwrap();
        }
        writer.flush().unwrap();
        drop(writer);
        prop_assert_eq!(&written, &bytes);
        prop_assert_eq!(read(&written), records);
    }

    #[test]
    fn examples_both_ways(examples in prop::collection::vec(prop::collection::btree_map(".{0,12}", list(), 0..6), 0..5)) {
        let examples: Vec<Example> = examples.into_iter().map(|features: BTreeMap<_, _>| Example { features }).collect();
        let records: Vec<Vec<u8>> = examples.iter().map(Example::encode).collect();
        let found = ExampleIter::from_reader(Cursor::new(ours(&records)), RecordReaderConfig::default());
        let found: Vec<Example> = found.map(|example| from_theirs(example.unwrap())).collect();
        prop_assert_eq!(&found, &examples);

        let mut written = Vec::new();
        let mut writer: ExampleWriter<_> = ExampleWriter::from_writer(&mut written).unwrap();
        for example in &examples {
            let feature = example.features.iter().map(|(name, list)| (name.clone(), theirs(list)));
            writer.send(tfrecord::Example { features: Some(Features { feature: feature.collect() }) }).unwrap();
        }
        writer.flush().unwrap();
        drop(writer);
        let found: Vec<Example> = read(&written).iter().map(|record| Example::decode(record).unwrap()).collect();
        prop_assert_eq!(found, examples);
    }
}
