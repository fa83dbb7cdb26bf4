//! The sources of a kept recipe, which an append does not look at, and what they would stand for.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::builder::{SourcePlace, SourceSpec};
use crate::convert::canonical;
use crate::readers::rows::files::files_text;
use crate::recipe::Pattern;
use crate::recipe::rows::{Files, files_of};

/// A source of a kept recipe.
#[derive(Debug)]
pub(crate) struct KeptRule {
    /// As the recipe has it.
    pub(crate) text: String,
    /// Names of files, or addresses, that it stands for.
    patterns: Vec<Pattern>,
    /// The folder on this machine, if it is there, and what of it.
    folder: Option<(PathBuf, Pattern)>,
}

impl KeptRule {
    /// The rule of this text, for sources at this place.
    ///
    /// # Errors
    /// The text is no pattern.
    pub(crate) fn new(text: &str, place: &SourcePlace) -> Result<Self> {
        let mut rule = Self {
            text: text.to_owned(),
            patterns: Vec::new(),
            folder: None,
        };
        let parse = |text: &str| Pattern::parse(text).map_err(anyhow::Error::msg);
        let name = match text.contains("://") {
            true => text.to_owned(),
            false => files_text(text, place).map_err(anyhow::Error::msg)?,
        };
        rule.patterns.push(parse(&name)?);
        if !name.contains(['*', '{']) {
            // It may be a folder, wherever that is now.
            rule.patterns
                .push(parse(&format!("{}/**", name.trim_end_matches('/')))?);
        }
        if let Ok(Some(Files::Folder(root, pattern))) = files_of(place) {
            rule.folder = Some((canonical(&root), pattern));
        }
        Ok(rule)
    }

    /// Whether it stands for this source too, or for some of its files.
    pub(crate) fn takes(&self, source: &SourceSpec) -> bool {
        let fits = |name: &str| {
            self.patterns
                .iter()
                .any(|pattern| pattern.matches(name).is_some())
        };
        let in_folder = |path: &Path| {
            self.folder.as_ref().is_some_and(|(root, pattern)| {
                let relative = canonical(path)
                    .strip_prefix(root)
                    .ok()
                    .and_then(|path| Some(path.to_str()?.to_owned()));
                relative.is_some_and(|relative| pattern.matches(&relative).is_some())
            })
        };
        fits(&source.name)
            || match &source.place {
                SourcePlace::Found(path, None) => in_folder(path),
                SourcePlace::Found(root, Some(files)) => files.iter().any(|file| in_folder(&root.join(file))),
                SourcePlace::Url(url) | SourcePlace::Listed(url, None) => fits(url.as_str()),
                SourcePlace::Listed(url, Some(files)) => {
                    let root = url.as_str().trim_end_matches('/');
                    files.iter().any(|file| fits(&format!("{root}/{file}")))
                }
                _ => false,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use url::Url;

    #[test]
    fn a_rule_stands_for_files_under_whatever_name_they_are_given() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("data");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("c.csv"), "").unwrap();
        let found = |name: &str, path: PathBuf| SourceSpec::at(name, SourcePlace::Found(path, None));
        let rule = KeptRule::new("data", &SourcePlace::Path(folder.clone())).unwrap();
        assert!(rule.takes(&found("data/c.csv", "elsewhere/c.csv".into())));
        assert!(rule.takes(&found("c.csv", folder.join("../data/c.csv"))));
        assert!(!rule.takes(&found("more/c.csv", place.path().join("c.csv"))));
        // The folder is not here.
        let rule = KeptRule::new("data", &SourcePlace::Path("nowhere/data".into())).unwrap();
        assert!(rule.takes(&found("data/c.csv", folder.join("c.csv"))));
        let rule = KeptRule::new("data/a*.csv", &SourcePlace::Path(folder.join("a*.csv"))).unwrap();
        assert!(!rule.takes(&found("data/c.csv", folder.join("c.csv"))));
        let url = |text: &str| Url::parse(text).unwrap();
        let stored = |text: &str| SourceSpec::at("c.csv", SourcePlace::Url(url(text)));
        for text in [
            "s3://b/data",
            "s3://b/data/",
            "s3://b/*/*.csv",
            "s3://b/data/c.csv",
        ] {
            let rule = KeptRule::new(text, &SourcePlace::Url(url(text))).unwrap();
            assert!(rule.takes(&stored("s3://b/data/c.csv")), "{text}");
            assert!(!rule.takes(&stored("s3://b/other/d.txt")), "{text}");
        }
    }
}
