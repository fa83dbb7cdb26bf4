//! Finds each source: in what `--from` names, else at the recipe's address.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use url::Url;

use prep_formats::store::{self, Location};

use crate::builder::{SourcePlace, SourceSpec};
use crate::error::Hinted;
use crate::recipe::near;

/// Where a source is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Located {
    /// A local file, to be read where it is.
    File(PathBuf),
    /// An address to download from.
    Url(Url),
    /// Nowhere: its shards are taken over from an earlier version.
    TakenOver,
}

/// One `--from`.
enum From {
    File(PathBuf),
    Folder(PathBuf, Vec<String>),
    Address(Url),
}

/// Where each of the sources is, in their order. `from` are files, folders, addresses of files, or addresses that the
/// sources' names are added to; with none, the sources' own places count.
///
/// # Errors
/// A source is in none of the places: the message names what was looked for, what is there, and near names.
pub fn locate(specs: &[SourceSpec], from: &[String]) -> Result<Vec<Located>> {
    if from.is_empty() {
        return specs.iter().map(own_place).collect();
    }
    let places: Vec<From> = from.iter().map(|text| parse(text)).collect::<Result<_>>()?;
    let mut located = Vec::new();
    let mut missing = Vec::new();
    for spec in specs {
        match &spec.place {
            SourcePlace::Found(path, _) => {
                located.push(Located::File(path.clone()));
                continue;
            }
            SourcePlace::Listed(url, _) => {
                located.push(Located::Url(url.clone()));
                continue;
            }
            SourcePlace::TakenOver => {
                located.push(Located::TakenOver);
                continue;
            }
            _ => {}
        }
        match places
            .iter()
            .find_map(|place| find(spec, place, specs.len() == 1))
        {
            Some(found) => located.push(found),
            None => missing.push(spec.name.as_str()),
        }
    }
    if missing.is_empty() {
        return Ok(located);
    }
    Err(report(specs, &missing, &places))
}

/// Which of the sources are there: those that are optional may be absent, but not all of them. And what may be wrong about those that are not.
///
/// # Errors
/// As [`locate`], where no optional source is there.
pub(crate) fn present(specs: &[SourceSpec], from: &[String]) -> Result<(Vec<bool>, Vec<String>)> {
    let places: Vec<From> = from.iter().map(|text| parse(text)).collect::<Result<_>>()?;
    let is_there = |spec: &SourceSpec| {
        if from.is_empty() {
            return match &spec.place {
                SourcePlace::Path(path) | SourcePlace::Found(path, _) => path.exists(),
                SourcePlace::Url(_) | SourcePlace::Listed(..) | SourcePlace::TakenOver => true,
                SourcePlace::Unknown => false,
            };
        }
        places
            .iter()
            .any(|place| find(spec, place, specs.len() == 1).is_some())
    };
    let present: Vec<bool> = specs
        .iter()
        .map(|spec| !spec.optional || is_there(spec))
        .collect();
    if specs
        .iter()
        .zip(&present)
        .all(|(spec, present)| !spec.optional || !present)
    {
        locate(specs, from)?;
    }
    let missing: Vec<&str> = specs
        .iter()
        .zip(&present)
        .filter(|(_, present)| !**present)
        .map(|(spec, _)| spec.name.as_str())
        .collect();
    let suspects = suspects(specs, &missing, &places);
    Ok((present, suspects))
}

/// Schemes of addresses that sources can have, for messages.
pub(crate) const KNOWN_SCHEMES: &str = "`https:`, `http:`, `file:`, `s3:`, `gs:` and `az:`";

/// Whether sources can have addresses of a scheme.
pub(crate) fn is_known(scheme: &str) -> bool {
    matches!(scheme, "http" | "https" | "file") || is_store(scheme)
}

/// Whether a scheme is that of an object store, which is read by its own client.
pub(crate) fn is_store(scheme: &str) -> bool {
    !matches!(scheme, "http" | "https" | "file") && Location::parse(&format!("{scheme}://x/y")).is_ok()
}

fn own_place(spec: &SourceSpec) -> Result<Located> {
    match &spec.place {
        SourcePlace::Path(path) | SourcePlace::Found(path, _) => Ok(Located::File(path.clone())),
        SourcePlace::Url(url) => of_url(url),
        SourcePlace::TakenOver => Ok(Located::TakenOver),
        SourcePlace::Listed(url, _) => Ok(Located::Url(url.clone())),
        SourcePlace::Unknown => Err(Hinted::new(
            format!("the recipe has no address for `{}`", spec.name),
            format!(
                "say where it is: `--from FOLDER` with a file `{}` in it",
                spec.name
            ),
        )
        .into()),
    }
}

fn of_url(url: &Url) -> Result<Located> {
    if url.scheme() == "file" {
        let path = url
            .to_file_path()
            .map_err(|()| anyhow::anyhow!("`{url}` is not the address of a local file"))?;
        return Ok(Located::File(path));
    }
    Ok(Located::Url(url.clone()))
}

fn parse(text: &str) -> Result<From> {
    if text.contains("://") {
        let url = Url::parse(text).with_context(|| format!("`{text}` is not an address"))?;
        return match (url.scheme(), of_url(&url)?) {
            (_, Located::File(path)) => look_at(&path),
            (scheme, Located::Url(_)) if is_known(scheme) => Ok(From::Address(url)),
            (scheme, _) => bail!("`--from {text}`: `{scheme}:` is not supported; there are {KNOWN_SCHEMES}"),
        };
    }
    look_at(Path::new(text))
}

fn look_at(path: &Path) -> Result<From> {
    let shown = path.display();
    let metadata = std::fs::metadata(path).with_context(|| format!("`--from`: could not read {shown}"))?;
    if !metadata.is_dir() {
        return Ok(From::File(path.to_owned()));
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).with_context(|| format!("`--from`: could not list {shown}"))? {
        let entry = entry.with_context(|| format!("`--from`: could not list {shown}"))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(From::Folder(path.to_owned(), names))
}

fn find(spec: &SourceSpec, place: &From, only_source: bool) -> Option<Located> {
    match place {
        From::File(path) => {
            // A single file for a single source leaves no doubt, whatever it is called.
            let named = path
                .file_name()
                .is_some_and(|name| name.to_str() == Some(spec.name.as_str()));
            (named || only_source).then(|| Located::File(path.clone()))
        }
        From::Folder(path, names) => names
            .binary_search(&spec.name)
            .is_ok()
            .then(|| Located::File(path.join(&spec.name))),
        From::Address(url) => {
            let last = url
                .path_segments()
                .and_then(|mut parts| parts.next_back())
                .unwrap_or("");
            if last == spec.name {
                return Some(Located::Url(url.clone()));
            }
            // The address of another file.
            if last.contains('.') {
                return None;
            }
            let mut url = url.clone();
            url.path_segments_mut().ok()?.pop_if_empty().push(&spec.name);
            // A store says at once what it does not have; one that cannot be asked fails better when the source is fetched.
            let is_absent = is_store(url.scheme())
                && Location::parse(url.as_str())
                    .is_ok_and(|object| matches!(store::size_of_file(&object), Ok(None)));
            (!is_absent).then_some(Located::Url(url))
        }
    }
}

fn report(specs: &[SourceSpec], missing: &[&str], places: &[From]) -> anyhow::Error {
    const MOST_NAMES: usize = 20;
    let quoted: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
    let mut message = format!("could not find {}", quoted.join(", "));
    let mut hints = Vec::new();
    let mut known: Vec<&str> = Vec::new();
    for place in places {
        message += &match place {
            From::File(path) => format!("; {} is another file", path.display()),
            From::Address(url) if is_store(url.scheme()) => format!("; {}", lacks(url)),
            From::Address(url) => format!("; {} is the address of another file", super::http::shown(url)),
            From::Folder(path, names) if names.is_empty() => format!("; {} is empty", path.display()),
            From::Folder(path, names) => {
                known.extend(names.iter().map(String::as_str));
                let some: Vec<&str> = names.iter().take(MOST_NAMES).map(String::as_str).collect();
                let more = match names.len() - some.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                format!("; {} has {}{more}", path.display(), some.join(", "))
            }
        };
    }
    // What is there under a name of its own is meant to be that.
    known.retain(|name| specs.iter().all(|spec| spec.name != *name));
    for (name, other) in misspelt(missing, &known) {
        hints.push(format!("is `{other}` meant to be `{name}`? Then rename it"));
    }
    let deeper = in_subfolders(missing, places);
    if let Some((name, folder)) = deeper.first() {
        let folder = folder.display();
        hints.push(format!("`{name}` is in {folder}: pass `--from {folder}`"));
    }
    if hints.is_empty() {
        hints.push("put the files in one folder under these names and pass `--from FOLDER`".to_owned());
    }
    Hinted::new(message, hints.join("; ")).into()
}

/// Why a folder of a store does not have a source, as far as the store says.
fn lacks(url: &Url) -> String {
    use std::io::ErrorKind::NotFound;

    let listed = Location::parse(url.as_str()).and_then(|folder| store::has_objects(&folder));
    match listed {
        Ok(true) => format!("{url} does not have it"),
        Ok(false) => format!("there is nothing below {url}"),
        Err(prep_formats::Error::Io { source, .. }) if source.kind() == NotFound => {
            format!("there is no bucket `{}`", url.host_str().unwrap_or_default())
        }
        Err(_) => format!("{url} does not have it, and could not be listed"),
    }
}

/// What may be wrong where optional sources were not found: each with the file that is perhaps meant, or the folder that has it.
fn suspects(specs: &[SourceSpec], missing: &[&str], places: &[From]) -> Vec<String> {
    let mut known: Vec<&str> = Vec::new();
    for place in places {
        if let From::Folder(_, names) = place {
            known.extend(names.iter().map(String::as_str));
        }
    }
    known.retain(|name| specs.iter().all(|spec| spec.name != *name));
    let misspelt = misspelt(missing, &known)
        .into_iter()
        .map(|(name, other)| format!("is `{other}` meant to be `{name}`?"));
    let deeper = in_subfolders(missing, places)
        .into_iter()
        .map(|(name, folder)| format!("there is a `{name}` in {}", folder.display()));
    misspelt.chain(deeper).collect()
}

/// Names that look like the missing ones, each for the one that it is nearest to.
fn misspelt<'a>(missing: &[&'a str], known: &[&'a str]) -> Vec<(&'a str, &'a str)> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for other in known {
        if let Some(name) = near(other, missing.iter().copied()).first()
            && !pairs.iter().any(|(paired, _)| paired == name)
        {
            pairs.push((name, other));
        }
    }
    pairs
}

/// Missing files that are in subfolders, at most three deep, with these. Looks at so many entries at most, as a folder may be anything.
fn in_subfolders(missing: &[&str], places: &[From]) -> Vec<(String, PathBuf)> {
    const MOST_DEPTH: usize = 3;
    const MOST_ENTRIES: usize = 10_000;
    let mut found = Vec::new();
    let mut left = MOST_ENTRIES;
    for place in places {
        let From::Folder(root, _) = place else { continue };
        let mut folders = vec![(root.clone(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(&folder) else {
                continue;
            };
            for entry in entries.flatten().take(left) {
                left -= 1;
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_folder && depth < MOST_DEPTH {
                    folders.push((entry.path(), depth + 1));
                }
                let name = entry.file_name();
                if let Some(name) = missing.iter().find(|missing| name == **missing)
                    && !is_folder
                    && depth > 0
                {
                    found.push(((*name).to_owned(), folder.clone()));
                }
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> SourceSpec {
        SourceSpec {
            name: name.to_owned(),
            place: SourcePlace::Url(Url::parse(&format!("https://example.org/{name}")).unwrap()),
            bytes: None,
            sha256: None,
            optional: false,
            identity: crate::builder::SourceIdentity::default(),
        }
    }

    fn folder(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::write(folder.path().join(name), b"x").unwrap();
        }
        folder
    }

    fn text(path: &Path) -> String {
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn folders_files_and_addresses_are_matched_by_name() {
        let folder = folder(&["a.gz", "other"]);
        let specs = [spec("a.gz"), spec("b.gz"), spec("c.gz")];
        let from = [
            text(folder.path()),
            "https://x.org/b.gz?key=1".to_owned(),
            "https://x.org/base/".to_owned(),
        ];
        let found = locate(&specs, &from).unwrap();
        assert_eq!(found[0], Located::File(folder.path().join("a.gz")));
        assert_eq!(
            found[1],
            Located::Url(Url::parse("https://x.org/b.gz?key=1").unwrap())
        );
        assert_eq!(
            found[2],
            Located::Url(Url::parse("https://x.org/base/c.gz").unwrap())
        );
    }

    #[test]
    fn without_from_the_sources_own_places_count() {
        let mut here = spec("a.gz");
        here.place = SourcePlace::Path("/data/a.gz".into());
        let mut file = spec("b.gz");
        file.place = SourcePlace::Url(Url::parse("file:///data/b%20c.gz").unwrap());
        let found = locate(&[here, file, spec("c.gz")], &[]).unwrap();
        assert_eq!(found[0], Located::File("/data/a.gz".into()));
        assert_eq!(found[1], Located::File("/data/b c.gz".into()));
        assert_eq!(
            found[2],
            Located::Url(Url::parse("https://example.org/c.gz").unwrap())
        );
        let mut nowhere = spec("d.gz");
        nowhere.place = SourcePlace::Unknown;
        assert!(locate(&[nowhere], &[]).unwrap_err().to_string().contains("d.gz"));
    }

    #[test]
    fn an_empty_folder_and_a_misspelt_file_are_told() {
        let empty = folder(&[]);
        let error = locate(&[spec("cifar-10-binary.tar.gz")], &[text(empty.path())]).unwrap_err();
        assert!(error.to_string().contains("is empty"), "{error}");

        let misspelt = folder(&["cifar10-binary.tar.gz", "notes.txt"]);
        let error = locate(
            &[spec("cifar-10-binary.tar.gz"), spec("b")],
            &[text(misspelt.path())],
        )
        .unwrap_err();
        assert!(
            error.to_string().contains("has cifar10-binary.tar.gz, notes.txt"),
            "{error}"
        );
        let hint = &error.downcast_ref::<Hinted>().unwrap().hint;
        assert!(
            hint.contains("is `cifar10-binary.tar.gz` meant to be `cifar-10-binary.tar.gz`?"),
            "{hint}"
        );
    }

    /// Bug log: B57.
    #[test]
    fn a_misspelt_file_is_meant_to_be_the_one_that_it_is_nearest_to() {
        let specs = ["img_train.tar", "img_val.tar", "img_test.tar"].map(spec);
        let misspelt = folder(&["img_trian.tar"]);
        let error = locate(&specs, &[text(misspelt.path())]).unwrap_err();
        let hint = &error.downcast_ref::<Hinted>().unwrap().hint;
        assert_eq!(
            hint,
            "is `img_trian.tar` meant to be `img_train.tar`? Then rename it"
        );
    }

    #[test]
    fn files_in_a_subfolder_are_found_for_the_hint() {
        let outer = folder(&["notes"]);
        let inner = outer.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("c.gz"), b"x").unwrap();
        let error = locate(&[spec("c.gz")], &[text(outer.path())]).unwrap_err();
        let hint = &error.downcast_ref::<Hinted>().unwrap().hint;
        assert!(
            hint.contains(&format!("pass `--from {}`", inner.display())),
            "{hint}"
        );
    }

    #[test]
    fn of_optional_files_that_are_absent_the_near_ones_are_told() {
        let mut specs = ["img_train.tar", "img_val.tar", "img_test.tar"].map(spec);
        for spec in &mut specs {
            spec.optional = true;
        }
        let there = folder(&["img_train.tar", "img_vall.tar"]);
        std::fs::create_dir(there.path().join("more")).unwrap();
        std::fs::write(there.path().join("more/img_test.tar"), b"x").unwrap();
        let (present, suspects) = present(&specs, &[text(there.path())]).unwrap();
        assert_eq!(present, [true, false, false]);
        assert_eq!(suspects[0], "is `img_vall.tar` meant to be `img_val.tar`?");
        assert!(
            suspects[1].starts_with("there is a `img_test.tar` in "),
            "{suspects:?}"
        );
        let whole = folder(&["img_train.tar", "img_val.tar", "img_test.tar"]);
        assert!(
            super::present(&specs, &[text(whole.path())])
                .unwrap()
                .1
                .is_empty()
        );
    }

    #[test]
    fn the_only_file_for_the_only_source_may_have_any_name() {
        let folder = folder(&["mine.tgz"]);
        let path = folder.path().join("mine.tgz");
        assert_eq!(
            locate(&[spec("a.tar.gz")], &[text(&path)]).unwrap(),
            [Located::File(path.clone())]
        );
        assert!(locate(&[spec("a.tar.gz"), spec("b.tar.gz")], &[text(&path)]).is_err());
    }

    #[test]
    fn a_place_that_is_not_there_is_an_error() {
        let error = locate(&[spec("a")], &["/no/such/folder".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder"), "{error}");
        assert!(locate(&[spec("a")], &["ftp://x.org/".to_owned()]).is_err());
    }
}
