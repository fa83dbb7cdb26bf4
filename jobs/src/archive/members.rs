//! The files in an archive, whatever kind of archive it is.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Component, Path};

use anyhow::{Context, Result, bail};

use crate::archive::{Member, MemberKind, Tar, zip};
use crate::builder::Source;

/// Bytes of an archive's file that are read at a time where members are looked up.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes that are reserved for a member's data because its header says so; more only as they come.
const BELIEVED_BYTES: u64 = 1 << 20;

/// The path of a member in its plain form, or `None` for what is no part of a dataset: paths that lead out of the archive, absolute ones,
/// files whose name begins with a dot (what macOS and editors leave behind) or ends with `~`.
///
/// Source: `_normpath` in `core/download/extractor.py` of TFDS 4.9, which leaves out the same.
pub(crate) fn plain_path(path: &str) -> Option<String> {
    if path.starts_with('/') || path.ends_with('~') || path.contains('\0') {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                // Out of the archive, or out of what led there.
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    let first = parts.first()?;
    if first.starts_with('.') || parts.last().is_some_and(|name| name.starts_with('.')) {
        return None;
    }
    Some(parts.join("/"))
}

/// What to do after a member.
pub(crate) type Visit<'a> = dyn FnMut(&Member, &mut dyn Read) -> Result<ControlFlow<()>> + 'a;

/// Calls `visit` with each file of a tar (packed by gzip or not) or zip archive, in the archive's order, its path in plain form; what
/// [`plain_path`] leaves out is left out. The data may be read or not. With `counted` it counts as progress.
///
/// # Errors
/// The archive is damaged, cut short or of another kind, or `visit` fails.
pub(crate) fn each_file(source: &Source, counted: bool, visit: &mut Visit<'_>) -> Result<()> {
    if source.path().is_dir() {
        return each_of_folder(source, counted, visit);
    }
    let mut start = Vec::new();
    open(source.path())?
        .take(4)
        .read_to_end(&mut start)
        .with_context(|| format!("could not read {}", source.name))?;
    if zip::is_zip(&start) {
        each_of_zip(source, counted, visit)
    } else {
        each_of_tar(source, counted, visit)
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("could not open {}", path.display()))
}

fn each_of_tar(source: &Source, counted: bool, visit: &mut Visit<'_>) -> Result<()> {
    let stream = if counted {
        source.open()?
    } else {
        source.open_again()?
    };
    let mut tar = Tar::new(&source.name, stream);
    while let Some(mut member) = tar.next_member()? {
        if member.kind != MemberKind::File {
            continue;
        }
        let Some(path) = plain_path(&member.path) else {
            continue;
        };
        member.path = path;
        if visit(&member, &mut tar)?.is_break() {
            return Ok(());
        }
    }
    tar.into_inner().drain()?;
    Ok(())
}

fn each_of_zip(source: &Source, counted: bool, visit: &mut Visit<'_>) -> Result<()> {
    let file = Seekable::new(open(source.path())?, source);
    let mut archive = zip::Zip::open(&source.name, file, source.bytes())?;
    let mut left = source.bytes();
    for index in 0..archive.len() {
        source.check()?;
        let mut member = archive.member(index)?;
        let packed = archive.packed_bytes(index).min(left);
        if member.kind == MemberKind::File
            && let Some(path) = plain_path(&member.path)
        {
            member.path = path;
            if visit(&member, &mut archive.read(index)?)?.is_break() {
                return Ok(());
            }
        }
        left -= packed;
        if counted {
            source.add_progress(packed);
        }
    }
    if counted {
        source.add_progress(left);
    }
    Ok(())
}

fn each_of_folder(source: &Source, counted: bool, visit: &mut Visit<'_>) -> Result<()> {
    for path in folder_files(source.path())? {
        source.check()?;
        let Some(plain) = plain_path(&path) else {
            continue;
        };
        let mut file = open(&source.path().join(&path))?;
        let bytes = file
            .metadata()
            .with_context(|| format!("could not read {}", source.path().join(&path).display()))?
            .len();
        let member = Member {
            path: plain,
            kind: MemberKind::File,
            bytes,
            offset: 0,
            data_offset: 0,
        };
        if visit(&member, &mut file)?.is_break() {
            return Ok(());
        }
        if counted {
            source.add_progress(bytes);
        }
    }
    Ok(())
}

/// The files under a folder by their paths from there, with `/`, sorted by bytes. Links to folders are not followed; links to files are.
///
/// # Errors
/// A folder that cannot be read, or a name that is not text.
pub(crate) fn folder_files(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let shown = || format!("could not read {}", folder.display());
        for entry in std::fs::read_dir(&folder).with_context(shown)? {
            let entry = entry.with_context(shown)?;
            let kind = entry.file_type().with_context(shown)?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() || entry.path().is_file() {
                let path = entry.path();
                let relative = path.strip_prefix(root).unwrap_or(&path);
                let mut text = String::new();
                for part in relative.components() {
                    let Component::Normal(part) = part else { continue };
                    let Some(part) = part.to_str() else {
                        bail!("{}: the name is not UTF-8", path.display());
                    };
                    if !text.is_empty() {
                        text.push('/');
                    }
                    text += part;
                }
                found.push(text);
            }
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Reads all data of a member.
///
/// # Errors
/// It has more than `most` bytes, or not as many as its header says; the message begins with `place`.
pub(crate) fn read_all(place: &str, member: &Member, data: &mut dyn Read, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_after(&mut bytes, place, member, data, most)?;
    Ok(bytes)
}

/// The same, behind what is in `bytes` already.
pub(crate) fn read_after(
    bytes: &mut Vec<u8>,
    place: &str,
    member: &Member,
    data: &mut dyn Read,
    most: u64,
) -> Result<()> {
    if member.bytes > most {
        bail!(
            "{place}, member {}: it has {} bytes, and at most {most} are taken",
            member.path,
            member.bytes
        );
    }
    let before = bytes.len() as u64;
    bytes.reserve(member.bytes.min(BELIEVED_BYTES) as usize);
    data.take(member.bytes + 1)
        .read_to_end(bytes)
        .with_context(|| format!("could not read {place}, member {}", member.path))?;
    let found = bytes.len() as u64 - before;
    if found != member.bytes {
        bail!(
            "{place}, member {}: it has {found} bytes, and should have {}",
            member.path,
            member.bytes
        );
    }
    Ok(())
}

/// A file in which short ways are gone within the buffer.
#[derive(Debug)]
struct Seekable<'a> {
    inner: BufReader<File>,
    position: u64,
    source: &'a Source,
}

impl<'a> Seekable<'a> {
    fn new(file: File, source: &'a Source) -> Self {
        Self {
            inner: BufReader::with_capacity(BUFFER_BYTES, file),
            position: 0,
            source,
        }
    }
}

impl Read for Seekable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.source.check().map_err(io::Error::other)?;
        let count = self.inner.read(buffer)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for Seekable<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let way = match to {
            SeekFrom::Start(wanted) => i64::try_from(i128::from(wanted) - i128::from(self.position)).ok(),
            SeekFrom::Current(way) => Some(way),
            SeekFrom::End(_) => None,
        };
        match way {
            Some(way) if self.position.checked_add_signed(way).is_some() => {
                self.inner.seek_relative(way)?;
                self.position = self.position.saturating_add_signed(way);
            }
            _ => self.position = self.inner.seek(to)?,
        }
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_get_their_plain_form_or_are_left_out() {
        for (path, plain) in [
            ("a/b.jpg", Some("a/b.jpg")),
            ("./a//b.jpg", Some("a/b.jpg")),
            ("a/./c/../b.jpg", Some("a/b.jpg")),
            ("a\\b", Some("a\\b")),
            (".a/b", None),
            ("a/.b", None),
            ("a/.b/c", Some("a/.b/c")),
            ("/etc/passwd", None),
            ("../a", None),
            ("a/../../b", None),
            ("a/..", None),
            ("", None),
            (".", None),
            ("a~", None),
            ("__MACOSX/a/._b.jpg", None),
            ("a\0b", None),
        ] {
            assert_eq!(plain_path(path).as_deref(), plain, "{path}");
        }
    }

    #[test]
    fn a_member_is_as_long_as_it_says() {
        let member = |bytes| Member {
            path: "m".to_owned(),
            kind: MemberKind::File,
            bytes,
            offset: 0,
            data_offset: 0,
        };
        let read = |claimed, most| read_all("a.tar", &member(claimed), &mut &b"four"[..], most);
        assert_eq!(read(4, 4).unwrap(), b"four");
        for (claimed, most, said) in [
            (4, 3, "at most 3"),
            (3, 9, "should have 3"),
            (5, 9, "should have 5"),
        ] {
            let error = read(claimed, most).unwrap_err().to_string();
            assert!(
                error.contains(said) && error.starts_with("a.tar, member m"),
                "{error}"
            );
        }
        assert!(read(u64::MAX >> 1, u64::MAX).is_err());
    }
}
