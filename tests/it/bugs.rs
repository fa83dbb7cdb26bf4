//! The tests that `tests/BUGS.md` names are there.

use std::path::Path;

#[test]
fn every_test_in_the_list_of_faults_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = std::fs::read_to_string(root.join("tests/BUGS.md")).unwrap();
    let mut seen = 0;
    for row in list.lines().filter(|line| line.starts_with("| B")) {
        let tests = row.rsplit('|').nth(1).unwrap();
        let named: Vec<_> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{row}");
        for test in named {
            let (file, function) = test.split_once(": ").unwrap();
            let text =
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let found = ["fn ", "def "]
                .iter()
                .any(|word| text.contains(&format!("{word}{function}(")));
            assert!(found, "{file} has no test `{function}`");
            seen += 1;
        }
    }
    assert!(seen >= 30, "{seen}");
}
