//! The files in an archive, whatever kind of archive it is.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Component, Path};

use anyhow::{Context, Result, bail};

use crate::archive::{Member, MemberKind, Tar, leads_out, normal_path, zip};
use crate::builder::Source;

/// Bytes of an archive's file that are read at a time where members are looked up.
const BUFFER_BYTES: usize = 256 << 10;
/// Bytes that are reserved for a member's data because its header says so; more only as they come.
const BELIEVED_BYTES: u64 = 1 << 20;

/// Members that were left out though they are no hidden files: links, devices, and paths that lead out of the archive.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    count: u64,
    first: String,
}

impl LeftOut {
    /// The path under which a member is to be known; `None` if it is left out, which is noted where somebody may miss it.
    pub(crate) fn path_of(&mut self, member: &Member) -> Option<String> {
        let path = normal_path(&member.path).filter(|_| member.kind == MemberKind::File);
        let why = match member.kind {
            MemberKind::Folder => return None,
            MemberKind::Other => "is a link or a device",
            MemberKind::File if leads_out(&member.path) => "leads out of the archive",
            MemberKind::File => return path,
        };
        if self.count == 0 {
            self.first = format!("`{}` {why}", member.path.escape_debug());
        }
        self.count += 1;
        None
    }

    /// What the user is told about an archive, if there is something to tell.
    pub(crate) fn text(&self, archive: &str) -> Option<String> {
        match self.count {
            0 => None,
            1 => Some(format!("{archive}: {}, and is left out", self.first)),
            count => Some(format!("{archive}: {count} members are left out; {}", self.first)),
        }
    }
}

/// What is damaged, in words, where an error is damage of an archive rather than a fault of the disk, a stop, or a form that is not read.
pub(crate) fn damage(error: &anyhow::Error) -> Option<String> {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};

    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
                .then(|| error.to_string());
        }
        if zip::is_damage(cause) {
            return Some(format!("{error:#}"));
        }
    }
    None
}

/// How far an archive could be read: `None` to its end, else in words what is damaged there.
///
/// # Errors
/// What is no [damage].
pub(crate) fn lost(result: Result<()>) -> Result<Option<String>> {
    match result {
        Ok(()) => Ok(None),
        Err(error) => damage(&error).map(Some).ok_or(error),
    }
}

/// What to do after a member.
pub(crate) type Visit<'a> = dyn FnMut(&Member, &mut dyn Read) -> Result<ControlFlow<()>> + 'a;

/// Calls `visit` with each file of a tar (packed by gzip or not) or zip archive, in the archive's order, its path in plain form; what
/// [`normal_path`] leaves out is left out. The data may be read or not. With `counted` it counts as progress, and the user is told of what
/// was [left out](LeftOut).
///
/// `visit` may get over [damage] of the data that it read. Then the next member of a zip archive follows; of a tar archive nothing follows.
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
    let mut left_out = LeftOut::default();
    if zip::is_zip(&start) {
        each_of_zip(source, counted, visit, &mut left_out)?;
    } else {
        each_of_tar(source, counted, visit, &mut left_out)?;
    }
    if let Some(text) = left_out.text(&source.name).filter(|_| counted) {
        source.warn(text);
    }
    Ok(())
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("could not open {}", path.display()))
}

fn each_of_tar(source: &Source, counted: bool, visit: &mut Visit<'_>, left_out: &mut LeftOut) -> Result<()> {
    let stream = if counted {
        source.open()?
    } else {
        source.open_again()?
    };
    let mut tar = Tar::new(&source.name, stream);
    while let Some(mut member) = tar.next_member()? {
        let Some(path) = left_out.path_of(&member) else {
            continue;
        };
        member.path = path;
        let mut data = Failing {
            inner: &mut tar,
            has_failed: false,
        };
        if visit(&member, &mut data)?.is_break() || data.has_failed {
            return Ok(());
        }
    }
    tar.into_inner().drain()?;
    Ok(())
}

/// Notes whether reading has failed.
struct Failing<R> {
    inner: R,
    has_failed: bool,
}

impl<R: Read> Read for Failing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.inner.read(buffer);
        self.has_failed |= matches!(&result, Err(error) if error.kind() != io::ErrorKind::Interrupted);
        result
    }
}

/// Data of which there is nothing but this to say.
struct Damaged(String);

impl Read for Damaged {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::InvalidData, self.0.clone()))
    }
}

fn each_of_zip(source: &Source, counted: bool, visit: &mut Visit<'_>, left_out: &mut LeftOut) -> Result<()> {
    let file = Seekable::new(open(source.path())?, source);
    let mut archive = zip::Zip::open(&source.name, file, source.bytes())?;
    let mut left = source.bytes();
    for index in 0..archive.len() {
        source.check()?;
        let mut member = archive.member(index)?;
        let packed = archive.packed_bytes(index).min(left);
        if let Some(path) = left_out.path_of(&member) {
            member.path = path;
            let flow = match archive.read(index) {
                Ok(mut data) => visit(&member, &mut data)?,
                Err(error) => match damage(&error) {
                    Some(reason) => visit(&member, &mut Damaged(reason))?,
                    None => return Err(error),
                },
            };
            if flow.is_break() {
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
        let Some(plain) = normal_path(&path) else {
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
    fn what_is_left_out_is_told_unless_it_is_hidden() {
        let member = |path: &str, kind| Member {
            path: path.to_owned(),
            kind,
            bytes: 0,
            offset: 0,
            data_offset: 0,
        };
        let mut left_out = LeftOut::default();
        for path in ["a/.b", "a~", "a/b"] {
            left_out.path_of(&member(path, MemberKind::File));
        }
        left_out.path_of(&member("/a", MemberKind::Folder));
        assert_eq!(left_out.text("a.tar"), None);
        assert_eq!(left_out.path_of(&member("a/../../b", MemberKind::File)), None);
        let told = left_out.text("a.tar").unwrap();
        assert_eq!(
            told,
            "a.tar: `a/../../b` leads out of the archive, and is left out"
        );
        assert_eq!(left_out.path_of(&member("link", MemberKind::Other)), None);
        let told = left_out.text("a.tar").unwrap();
        assert!(
            told.starts_with("a.tar: 2 members are left out; `a/../../b` "),
            "{told}"
        );
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
