//! What `REPORTS.md` says of stages is what the code does.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// All Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found
}

/// A name without what depends on the data: `fetch {name}` and `fetch FILE` are `fetch`.
fn plain(name: &str) -> String {
    let is_fixed = |word: &&str| !word.starts_with('{') && !word.chars().all(char::is_uppercase);
    name.split(' ').take_while(is_fixed).collect::<Vec<_>>().join(" ")
}

/// The names that a text gives to stages of a monitor: `monitor.stage("NAME"` and `monitor.stage(format!("NAME"`, over lines.
fn named(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, call) in text.match_indices(".stage(") {
        // What `--explain` draws has stages of its own.
        if text[..at].trim_end().ends_with("graph") {
            continue;
        }
        let argument = text[at + call.len()..].trim_start();
        let argument = argument.strip_prefix("format!(").unwrap_or(argument);
        if let Some((name, _)) = argument.strip_prefix('"').and_then(|rest| rest.split_once('"')) {
            found.push(plain(name));
        }
    }
    found
}

#[test]
fn the_page_lists_the_stages_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("REPORTS.md")).unwrap();
    let (_, table) = page.split_once("## Names of stages").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let listed: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(" |"))
        .flat_map(|(names, _)| {
            names
                .split("`, `")
                .map(|name| plain(name.trim_matches('`')))
                .collect::<Vec<_>>()
        })
        .collect();
    let texts: Vec<String> = sources(&root.join("src"))
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path).unwrap();
            text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
        })
        .collect();
    let code: BTreeSet<String> = texts.iter().flat_map(|text| named(text)).collect();
    assert!(code.len() > 15, "{code:?}");
    let missing: Vec<&String> = code.difference(&listed).collect();
    assert!(missing.is_empty(), "REPORTS.md lacks {missing:?}");
    // Stages of job graphs are named where these are put together.
    for name in &listed {
        let literals = [format!("\"{name}\""), format!("\"{name} {{")];
        assert!(
            texts
                .iter()
                .any(|text| literals.iter().any(|literal| text.contains(literal))),
            "REPORTS.md lists `{name}`, which no job has"
        );
    }
}
