//! Names of files and folders: local paths and object URLs.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{Error, Position, Result};

/// URL schemes of object stores and web servers.
const REMOTE_SCHEMES: [&str; 9] = [
    "http", "https", "s3", "s3a", "gs", "az", "abfs", "abfss", "memory",
];

/// A place that holds bytes or a folder of them: a local path or an object URL.
///
/// # Examples
///
/// ```
/// use prep_formats::store::Location;
///
/// let folder = Location::parse("file:///data/my%20set")?;
/// assert_eq!(folder.as_path(), Some("/data/my set".into()));
/// assert_eq!(folder.join("a/b.txt").as_path(), Some("/data/my set/a/b.txt".into()));
/// assert_eq!(Location::parse("s3://bucket/x")?.as_path(), None);
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// As shown to the user.
    text: String,
    /// The local path; `None` for a URL of another machine.
    path: Option<PathBuf>,
}

impl Location {
    /// Parses a path (`data/x`, `/data/x`, `file:///data/x`) or a URL (`s3://bucket/x`).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty text, an unknown scheme, and a `file:` URL that names another host.
    pub fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::Invalid(
                "a path or URL is empty: give a path, or a URL such as `file:///data/x`".into(),
            ));
        }
        let Some((scheme, _)) = text.split_once("://") else {
            return Ok(Self::from_path(text));
        };
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !is_scheme {
            return Ok(Self::from_path(text));
        }
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "file" {
            let path = url::Url::parse(text).ok().and_then(|url| url.to_file_path().ok());
            return path.map(Self::from_path).ok_or_else(|| {
                Error::Invalid(format!(
                    "`{text}` does not name a file of this machine: write `file:///` and an absolute path"
                ))
            });
        }
        if REMOTE_SCHEMES.contains(&scheme.as_str()) {
            return Ok(Self {
                text: text.to_string(),
                path: None,
            });
        }
        Err(Error::Invalid(format!(
            "`{text}` has the unknown scheme `{scheme}`: known are paths, `file`, `http`, `https`, `s3`, `gs` and `az`"
        )))
    }

    /// A local path.
    pub fn from_path(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        Self {
            text: path.to_string_lossy().into_owned(),
            path: Some(path.to_path_buf()),
        }
    }

    /// The local path, or `None` for an object URL.
    pub fn as_path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    /// The local path.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for an object URL, with what to do instead.
    pub fn local_path(&self) -> Result<&Path> {
        self.path.as_deref().ok_or_else(|| Error::Unsupported {
            at: Position {
                path: self.text.clone(),
                ..Position::default()
            },
            reason: "a local path is wanted here; copy it to a local folder, or mount the store, and give that path".into(),
        })
    }

    /// This place with `relative` (parts separated by `/`) below it. In a URL, what would end its path is written as `%23` and the like.
    pub fn join(&self, relative: &str) -> Self {
        match &self.path {
            Some(path) => Self::from_path(path.join(relative)),
            None => {
                let relative = relative
                    .replace('%', "%25")
                    .replace('#', "%23")
                    .replace('?', "%3F");
                self.join_encoded(&relative)
            }
        }
    }

    /// This place with `relative` below it, which in a URL stays as it is written: the end of another URL.
    pub fn join_encoded(&self, relative: &str) -> Self {
        match &self.path {
            Some(path) => Self::from_path(path.join(relative)),
            None => Self {
                text: format!("{}/{relative}", self.text.trim_end_matches('/')),
                path: None,
            },
        }
    }

    /// The folder that holds this place; `None` for a root, or a store's own name.
    pub fn parent(&self) -> Option<Self> {
        if let Some(path) = &self.path {
            return path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .map(Self::from_path);
        }
        let text = self.text.trim_end_matches('/');
        let begin = text.find("://").map_or(0, |at| at + 3);
        let at = text[begin..].rfind('/')?;
        Some(Self {
            text: text[..begin + at].to_string(),
            path: None,
        })
    }

    /// Whether it can only be read: a web server.
    pub fn is_web(&self) -> bool {
        let scheme = self.text.split_once("://").map_or("", |(scheme, _)| scheme);
        self.path.is_none() && (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https"))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_as_they_were_written() {
        for text in [
            "data/x", "/data/x", "./a", "s3:name", "a b/ü", "c:x", "://x", "a b://x",
        ] {
            let location = Location::parse(text).unwrap();
            assert_eq!(location.to_string(), text);
            assert_eq!(location.as_path(), Some(PathBuf::from(text)));
        }
    }

    #[test]
    fn file_urls_are_local() {
        let location = Location::parse("FILE:///data/my%20set/").unwrap();
        assert_eq!(location.as_path(), Some(PathBuf::from("/data/my set/")));
        assert!(matches!(
            Location::parse("file://elsewhere/data"),
            Err(Error::Invalid(_))
        ));
    }

    #[test]
    fn remote_urls_are_no_paths() {
        for text in ["s3://bucket/x", "https://host/x", "gs://b", "az://b/c"] {
            let location = Location::parse(text).unwrap();
            assert_eq!(location.as_path(), None);
            assert_eq!(location.to_string(), text);
            let error = location.local_path().unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }));
            assert!(error.to_string().starts_with(text), "{error}");
        }
        let folder = Location::parse("s3://b/x/").unwrap();
        assert_eq!(folder.join("y/z").to_string(), "s3://b/x/y/z");
        assert_eq!(folder.join("50% #1?").to_string(), "s3://b/x/50%25 %231%3F");
        assert_eq!(folder.join_encoded("50%25").to_string(), "s3://b/x/50%25");
        assert_eq!(folder.join("y").parent().unwrap().to_string(), "s3://b/x");
        assert_eq!(folder.parent().unwrap().to_string(), "s3://b");
        assert_eq!(Location::parse("s3://b").unwrap().parent(), None);
        assert_eq!(
            Location::from_path("a/b").parent(),
            Some(Location::from_path("a"))
        );
        assert_eq!(Location::from_path("a").parent(), None);
        assert!(Location::parse("HTTPS://host/x").unwrap().is_web() && !folder.is_web());
    }

    #[test]
    fn other_schemes_and_nothing_are_refused() {
        assert!(
            Location::parse("ftp://host/x")
                .unwrap_err()
                .to_string()
                .contains("`ftp`")
        );
        assert!(Location::parse("").is_err());
    }
}
