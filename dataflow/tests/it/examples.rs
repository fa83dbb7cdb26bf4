//! The example programs do what they say.

use prep_dataflow::Options;

#[path = "../../examples/distinct_lines.rs"]
#[expect(dead_code, reason = "the program's `main` is not called")]
mod distinct_lines;

#[test]
fn distinct_lines_are_written_once_whatever_the_workers() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let numbers: String = (0..5000)
        .map(|number| format!("line {}\n", number % 3000))
        .collect();
    let files = vec![
        file("a", "one\ntwo\none\n"),
        file("b", &numbers),
        file("c", ""),
        file("d", "two\nthree"),
    ];
    let mut outputs = Vec::new();
    for workers in [1, 2, 5] {
        let folder = home.path().join(format!("out-{workers}"));
        std::fs::create_dir(&folder).unwrap();
        assert_eq!(
            distinct_lines::distinct_lines(
                files.clone(),
                folder.clone(),
                Options::default().workers(workers)
            )
            .unwrap(),
            3003
        );
        let shards: Vec<String> = (0..4)
            .map(|shard| std::fs::read_to_string(folder.join(format!("lines-{shard:05}.txt"))).unwrap())
            .collect();
        outputs.push(shards);
    }
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]));
    let mut lines: Vec<&str> = outputs[0].iter().flat_map(|shard| shard.lines()).collect();
    assert!(
        outputs[0]
            .iter()
            .all(|shard| (750..=751).contains(&shard.lines().count()))
    );
    lines.sort_unstable();
    let mut expected: Vec<String> = (0..3000).map(|number| format!("line {number}")).collect();
    expected.extend(["one", "two", "three"].map(str::to_owned));
    expected.sort_unstable();
    assert_eq!(lines, expected);

    let missing = vec![home.path().join("missing")];
    let error =
        distinct_lines::distinct_lines(missing, home.path().to_owned(), Options::default()).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        cause.starts_with("could not read `") && cause.contains("missing"),
        "{cause}"
    );
}
