//! Runs the example program's builder.

#[path = "../../examples/custom_builder.rs"]
#[allow(dead_code, reason = "its `main` is for the command line")]
mod custom_builder;

use prep_catalog::{Catalog, DatasetName};
use prep_formats::store::Location;

#[test]
fn the_custom_builder_makes_a_dataset() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = folder.path().join("catalog");
    let line = |i: usize| {
        let pixels: Vec<String> = (0..64).map(|at| ((at * i) % 256).to_string()).collect();
        format!("{},{}\n", i % 10, pixels.join(","))
    };
    let paths: Vec<_> = (0..2)
        .map(|file| {
            let path = folder.path().join(format!("{file}.csv"));
            let text: String = (0..20).map(|i| line(file * 20 + i)).collect();
            std::fs::write(&path, text).unwrap();
            path
        })
        .collect();
    let outcome = custom_builder::build_digits(&paths, catalog.to_str()).unwrap();
    let sizes: Vec<_> = outcome
        .splits
        .iter()
        .map(|split| (split.name.as_str(), split.examples))
        .collect();
    assert_eq!(sizes, [("train", 32), ("test", 8)]);
    let catalog = Catalog::open(&Location::from_path(catalog)).unwrap();
    let resolved = catalog.resolve(&DatasetName::parse("digits").unwrap()).unwrap();
    assert_eq!(resolved.manifest.fingerprint, outcome.fingerprint);

    // A line with a fault is told with its place.
    std::fs::write(&paths[1], "1,2,3\n").unwrap();
    let other = folder.path().join("other");
    let error = custom_builder::build_digits(&paths, other.to_str()).unwrap_err();
    let error = format!("{error:#}");
    assert!(
        error.contains("1.csv, record 0") && error.contains("2 pixels, wanted 64"),
        "{error}"
    );
}
