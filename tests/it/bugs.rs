//! The tests that `tests/BUGS.md` names are there.

use std::path::Path;

#[test]
fn every_test_in_the_list_of_faults_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = std::fs::read_to_string(root.join("tests/BUGS.md")).unwrap();
    let (mut seen, mut rows) = (0, Vec::new());
    for row in list.lines().filter(|line| line.starts_with("| B")) {
        let tests = row.rsplit('|').nth(1).unwrap();
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{row}");
        for test in named {
            let (file, function) = test.split_once(": ").unwrap();
            let text =
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let place = ["fn ", "def "]
                .iter()
                .find_map(|word| text.find(&format!("{word}{function}(")));
            let Some(place) = place else {
                panic!("{file} has no test `{function}`")
            };
            // Tests of Python have no attribute.
            let above = text[..place].rsplit("\n\n").next().unwrap();
            let is_run = above.contains("#[test]") && !above.contains("#[ignore");
            assert!(
                file.ends_with(".py") || is_run,
                "{file}: `{function}` is not run by `make test`"
            );
            seen += 1;
        }
        rows.push(row.split('|').nth(1).unwrap().trim().to_owned());
    }
    assert!(seen >= 30, "{seen}");
    // What was reported of engines, commands, catalogs, readers of archives, loaders and packages for Python; the rest is with the code that it is about.
    let reported = (10..=12).chain(16..=72).map(|number| format!("B{number}"));
    assert_eq!(rows, reported.collect::<Vec<_>>());
}
