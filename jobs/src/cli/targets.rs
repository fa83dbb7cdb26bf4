//! What a command is given to look at: paths, dataset names, and patterns that the shell did not expand.

use std::path::Path;

use crate::cli::output::{Hinted, Usage};
use crate::patterns::{PatternError, is_pattern, matches};

/// Expands patterns (`*`, `?`, `[a-z]`, `**`) to the paths they match, in the order of their names; other words stay as they are. A file
/// whose name has such characters is taken as it is.
///
/// # Errors
///
/// A pattern that is malformed, or matches nothing.
pub(crate) fn expand(words: &[String]) -> anyhow::Result<Vec<String>> {
    let mut targets = Vec::with_capacity(words.len());
    for word in words {
        if !is_pattern(word) || Path::new(word).exists() {
            targets.push(word.clone());
            continue;
        }
        let paths = matches(word).map_err(|error| match error {
            PatternError::Malformed(reason) => {
                anyhow::Error::new(Usage(format!("`{word}` is not a pattern: {reason}")))
            }
            error => anyhow::Error::new(error).context(Hinted::new(
                format!("could not look for `{word}`"),
                "name the files one by one, or make the folder readable",
            )),
        })?;
        let before = targets.len();
        targets.extend(paths.iter().map(|path| path.to_string_lossy().into_owned()));
        if targets.len() == before {
            return Err(Hinted::new(
                format!("`{word}` matches no file"),
                "patterns are `*`, `?`, `[a-z]` and `**` for folders at any depth",
            )
            .into());
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_in_the_order_of_names() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        for name in ["b-1", "b-0", "a[1]", ".hidden", "sub/b-2"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let base = folder.path().to_str().unwrap();
        let found = |pattern: &str| -> Vec<String> {
            let paths = expand(&[format!("{base}/{pattern}")]).unwrap();
            let relative = |path: String| path[base.len() + 1..].to_string();
            paths.into_iter().map(relative).collect()
        };
        assert_eq!(found("b-*"), ["b-0", "b-1"]);
        assert_eq!(found("b-[1-9]"), ["b-1"]);
        assert_eq!(found("**/b-?"), ["b-0", "b-1", "sub/b-2"]);
        assert_eq!(found("*"), ["a[1]", "b-0", "b-1", "sub"]);
        // There is a file of that name.
        assert_eq!(found("a[1]"), ["a[1]"]);
        assert_eq!(expand(&["mnist".into()]).unwrap(), ["mnist"]);
        let error = expand(&[format!("{base}/c*")]).unwrap_err();
        assert!(error.to_string().contains("matches no file"), "{error}");
        assert!(expand(&["a[".into()]).unwrap_err().is::<Usage>());
    }
}
