//! Pictures through a pipeline: decoded, cropped, flipped, recoloured, normalised, in batches.

use std::path::Path;

use prep_formats::value::DType;
use prep_loader::element::{Array, Element, ElementSpec};
use prep_loader::transform::function;
use prep_loader::transforms::{ColorJitter, DecodeRandomResizedCrop, Layout, Normalize, Select};
use prep_loader::{BatchOptions, MapDataset, PipelineOptions, PipelineState};

/// Twenty encoded pictures, four in a batch of `float32[4, 3, 16, 20]`; crops keep at least `least` of the area.
fn pictures(least: f64) -> MapDataset {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/images");
    let names = [
        "420.jpg",
        "444.jpg",
        "grey.jpg",
        "420_progressive.jpg",
        "picture.png",
    ];
    let files = names.map(|name| std::fs::read(folder.join(name)).unwrap());
    let mut spec = ElementSpec::new();
    spec.set("value", DType::Int64, []);
    spec.set("image", DType::String, []);
    let encoded = function("encoded", move |mut element: Element| {
        let value: i64 = element.array("value")?.item().unwrap();
        element.set(
            "image",
            Array::string(files[value as usize % files.len()].clone()),
        );
        Ok(element)
    });
    let mut crop = DecodeRandomResizedCrop::to("image", [16, 20]);
    crop.crop.scale = [least, 1.0];
    let jitter = ColorJitter {
        feature: "image".into(),
        brightness: 0.2,
        contrast: 0.2,
        saturation: 0.2,
        hue: 0.05,
    };
    let normalize = Normalize {
        layout: Layout::ChannelsFirst,
        ..Normalize::imagenet("image")
    };
    let select = Select {
        features: vec!["image".into()],
    };
    let dataset = MapDataset::range(20).unwrap().shuffle(3).unwrap();
    let dataset = dataset.map(encoded.spec(spec)).unwrap();
    let dataset = dataset
        .random_map(crop, 5)
        .unwrap()
        .random_map(jitter, 5)
        .unwrap();
    let dataset = dataset.map(normalize).unwrap().map(select).unwrap();
    dataset.batch(BatchOptions::new(4)).unwrap()
}

#[test]
fn batches_depend_on_neither_threads_nor_stops() {
    let dataset = pictures(0.08);
    assert_eq!(dataset.element_spec().to_string(), "image: float32[?, 3, 16, 20]");
    let load = |threads, state: Option<PipelineState>| {
        let options = PipelineOptions::new().num_threads(threads).restore(state);
        dataset.load(options).unwrap()
    };
    let wanted: Vec<Element> = load(1, None).map(Result::unwrap).collect();
    assert_eq!(wanted.len(), 5);
    assert_eq!(wanted[0].array("image").unwrap().shape(), [4, 3, 16, 20]);
    assert!(wanted[0] != wanted[1]);
    let again: Vec<Element> = load(4, None).map(Result::unwrap).collect();
    assert!(again == wanted);
    let mut stopped = load(4, None);
    let first: Vec<Element> = stopped.by_ref().take(2).map(Result::unwrap).collect();
    let rest: Vec<Element> = load(2, Some(stopped.state())).map(Result::unwrap).collect();
    assert!([first, rest].concat() == wanted);
}

#[test]
fn other_parameters_are_another_pipeline() {
    let state = pictures(0.08).load(PipelineOptions::new()).unwrap().state();
    let options = PipelineOptions::new().restore([state]);
    let error = pictures(0.5).load(options).unwrap_err().to_string();
    assert!(
        error.contains("scale=[0.08, 1.0]") && error.contains("scale=[0.5, 1.0]"),
        "{error}"
    );
}
