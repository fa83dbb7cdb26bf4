//! The files of a source, one after the other, also inside of archives.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::archive::each_file;
use crate::builder::Source;
use crate::error::Hinted;
use crate::readers::rows::RowReader;
use crate::recipe::Pattern;

const BUFFER_BYTES: usize = 256 << 10;
/// Names that are shown where an archive has nothing to read.
const MOST_NAMES: usize = 10;

/// A file to be read for its rows.
pub(crate) struct RowFile<'a> {
    /// Its path: in its archive, else as the source gives it, with `/`.
    pub(crate) path: String,
    /// As messages call it.
    pub(crate) shown: String,
    /// Which of the source's files.
    pub(crate) index: u32,
    /// Size in bytes, as it lies.
    pub(crate) bytes: u64,
    source: &'a Source,
    data: Data<'a>,
    is_counted: bool,
}

enum Data<'a> {
    Path(PathBuf),
    Member(&'a mut dyn Read),
}

impl std::fmt::Debug for RowFile<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowFile")
            .field("shown", &self.shown)
            .finish_non_exhaustive()
    }
}

impl RowFile<'_> {
    /// Opens it for reading from the start, unpacked where it is packed by gzip or Zstandard.
    ///
    /// # Errors
    /// It cannot be opened or read. What is damaged shows when it is read.
    pub(crate) fn stream(&mut self) -> Result<Box<dyn Read + '_>> {
        let inner: Box<dyn Read + '_> = match &mut self.data {
            Data::Path(path) => Box::new(Counted {
                file: open(path)?,
                source: self.source,
                is_counted: self.is_counted,
            }),
            Data::Member(data) => Box::new(&mut **data),
        };
        let size = usize::try_from(self.bytes.saturating_add(1)).unwrap_or(BUFFER_BYTES);
        let mut inner = BufReader::with_capacity(size.clamp(512, BUFFER_BYTES), inner);
        let start =
            io::BufRead::fill_buf(&mut inner).with_context(|| format!("could not read {}", self.shown))?;
        let named = |inner, kind| {
            Box::new(Named {
                inner,
                name: self.shown.clone(),
                kind,
            })
        };
        let is_gzip = start.starts_with(&[0x1f, 0x8b]);
        let is_zstd = start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
        Ok(if is_gzip {
            let inner: Box<dyn Read + '_> = Box::new(flate2::bufread::MultiGzDecoder::new(inner));
            named(inner, "gzip")
        } else if is_zstd {
            named(Box::new(Zstd::new(inner)?), "Zstandard")
        } else {
            named(Box::new(inner), "")
        })
    }

    /// The file for reading at positions: where it lies; a member of an archive is copied to a file of its own without a name to others,
    /// which goes when this does.
    ///
    /// # Errors
    /// It cannot be read, or there is no room for the copy.
    pub(crate) fn local(&mut self) -> Result<Local> {
        match &mut self.data {
            Data::Path(path) => Ok(Local::Path(path.clone())),
            Data::Member(data) => {
                let shown = &self.shown;
                let mut copy = tempfile::NamedTempFile::new().context("could not make a temporary file")?;
                let copied =
                    io::copy(data, copy.as_file_mut()).with_context(|| format!("could not copy {shown}"))?;
                if copied != self.bytes {
                    anyhow::bail!("{shown}: it has {copied} bytes, and should have {}", self.bytes);
                }
                Ok(Local::Copy(copy.into_temp_path()))
            }
        }
    }

    /// Whether it is a member of an archive, which is read in one piece.
    pub(crate) fn is_member(&self) -> bool {
        matches!(self.data, Data::Member(_))
    }

    /// Counts bytes as progress that were read in another way than by [`stream`](Self::stream).
    pub(crate) fn add_progress(&self, bytes: u64) {
        if self.is_counted {
            self.source.add_progress(bytes);
        }
    }

    /// An error if the job was asked to stop.
    pub(crate) fn check(&self) -> Result<()> {
        self.source.check()
    }

    /// Where it lies.
    pub(crate) fn lies(&self) -> Lies<'_> {
        match &self.data {
            Data::Path(path) => Lies::File(self.source.path(), path),
            Data::Member(_) => Lies::Member(self.source),
        }
    }

    /// Whether [`stream`](Self::stream) gives the bytes as they lie, so that their position says how far it is.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn is_plain(&self) -> Result<bool> {
        let Data::Path(path) = &self.data else {
            return Ok(false);
        };
        let mut start = Vec::new();
        open(path)?
            .take(4)
            .read_to_end(&mut start)
            .with_context(|| format!("could not read {}", self.shown))?;
        Ok(!start.starts_with(&[0x1f, 0x8b]) && start != [0x28, 0xb5, 0x2f, 0xfd])
    }
}

/// A file that can be read at positions.
#[derive(Debug)]
pub(crate) enum Local {
    /// It lies there.
    Path(PathBuf),
    /// A copy of a member of an archive.
    Copy(tempfile::TempPath),
}

impl Local {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Path(path) => path,
            Self::Copy(path) => path,
        }
    }
}

/// Where a file lies.
#[derive(Debug)]
pub(crate) enum Lies<'a> {
    /// In the folder of its source, or as the source; and its path.
    File(&'a Path, &'a Path),
    /// In the archive that is this source.
    Member(&'a Source),
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("could not open {}", path.display()))
}

/// Counts what is read as progress, and ends when the job is stopped.
struct Counted<'a> {
    file: File,
    source: &'a Source,
    is_counted: bool,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.source.check().map_err(io::Error::other)?;
        let count = self.file.read(buffer)?;
        if self.is_counted {
            self.source.add_progress(count as u64);
        }
        Ok(count)
    }
}

/// Puts the file's name into errors.
struct Named<'a> {
    inner: Box<dyn Read + 'a>,
    name: String,
    kind: &'static str,
}

impl Read for Named<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).map_err(|error| {
            if error
                .get_ref()
                .is_some_and(|inner| inner.is::<crate::error::Cancelled>())
            {
                return error;
            }
            let text = match (self.kind, error.kind()) {
                ("", _) => format!("{}: could not read: {error}", self.name),
                (kind, io::ErrorKind::UnexpectedEof) => {
                    format!("{}: the {kind} data are cut short", self.name)
                }
                (kind, _) => format!("{}: the {kind} data are damaged: {error}", self.name),
            };
            io::Error::new(error.kind(), text)
        })
    }
}

/// Unpacks Zstandard, any number of frames.
struct Zstd<R> {
    inner: R,
    context: zstd_safe::DCtx<'static>,
    /// What the decoder wants next; 0 between frames.
    wanted: usize,
}

impl<R: io::BufRead> Zstd<R> {
    fn new(inner: R) -> Result<Self> {
        let context = zstd_safe::DCtx::try_create().context("no memory to unpack Zstandard")?;
        Ok(Self {
            inner,
            context,
            wanted: 0,
        })
    }
}

impl<R: io::BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let input = self.inner.fill_buf()?;
            if input.is_empty() && self.wanted == 0 {
                return Ok(0);
            }
            let is_end = input.is_empty();
            let mut input = zstd_safe::InBuffer::around(input);
            let mut output = zstd_safe::OutBuffer::around(buffer);
            let result = self.context.decompress_stream(&mut output, &mut input);
            let (taken, given) = (input.pos(), output.pos());
            self.inner.consume(taken);
            self.wanted = result.map_err(|code| {
                io::Error::new(io::ErrorKind::InvalidData, zstd_safe::get_error_name(code))
            })?;
            if given > 0 {
                return Ok(given);
            }
            if is_end {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Whether a file is an archive, by its name.
pub(crate) fn is_archive(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".zip", ".tar", ".tar.gz", ".tgz"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Whether a file is an archive of files with these endings, and not one of them itself.
pub(crate) fn is_packed(name: &str, endings: &[&str]) -> bool {
    is_archive(name) && (endings.is_empty() || !has_ending(name, endings))
}

/// Whether a file's name has one of these endings, perhaps with that of a packer behind; no endings are all.
pub(crate) fn has_ending(name: &str, endings: &[&str]) -> bool {
    if endings.is_empty() {
        return true;
    }
    let name = name.to_ascii_lowercase();
    let bare = name
        .strip_suffix(".gz")
        .or_else(|| name.strip_suffix(".zst"))
        .unwrap_or(&name);
    endings.iter().any(|end| bare.ends_with(end))
}

/// Whether a member of an archive is to be read.
fn is_wanted(path: &str, members: &[Pattern], reader: &dyn RowReader) -> bool {
    match members {
        [] => reader.takes(path) && !path.split('/').any(|part| part == "__MACOSX"),
        members => members.iter().any(|pattern| pattern.matches(path).is_some()),
    }
}

/// Calls `visit` with each file of a source, in order: the file itself, the files of a folder, or those members of an archive that are wanted.
///
/// # Errors
/// The source is damaged or has nothing to read, or `visit` fails.
pub(crate) fn each_row_file(
    source: &Source,
    members: &[Pattern],
    reader: &dyn RowReader,
    is_counted: bool,
    visit: &mut dyn FnMut(&mut RowFile<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    if let Some(files) = source.files() {
        for (index, path) in files.iter().enumerate() {
            source.check()?;
            let full = source.path().join(path);
            let bytes = std::fs::metadata(&full)
                .with_context(|| format!("could not read {}", full.display()))?
                .len();
            let prefix = folder_of(&source.name, files.iter().next().unwrap_or_default());
            let mut file = RowFile {
                path: format!("{prefix}{path}"),
                shown: format!("{prefix}{path}"),
                index: index as u32,
                bytes,
                source,
                data: Data::Path(full),
                is_counted,
            };
            if visit(&mut file)?.is_break() {
                break;
            }
        }
        return Ok(());
    }
    if !is_packed(&source.name, reader.endings()) {
        let mut file = RowFile {
            path: source.name.clone(),
            shown: source.name.clone(),
            index: 0,
            bytes: source.bytes(),
            source,
            data: Data::Path(source.path().to_owned()),
            is_counted,
        };
        return visit(&mut file).map(|_| ());
    }
    let mut index = 0;
    let mut others = Vec::new();
    each_file(source, is_counted, &mut |member, data| {
        if !is_wanted(&member.path, members, reader) {
            if others.len() < MOST_NAMES {
                others.push(member.path.clone());
            }
            return Ok(ControlFlow::Continue(()));
        }
        let mut file = RowFile {
            path: member.path.clone(),
            shown: format!("{}, member {}", source.name, member.path),
            index,
            bytes: member.bytes,
            source,
            data: Data::Member(data),
            is_counted: false,
        };
        index += 1;
        visit(&mut file)
    })?;
    if index == 0 {
        let what = match members {
            [] => format!("whose name ends in {}", reader.endings().join(", ")),
            _ => "that fits `members`".to_owned(),
        };
        let hint = if others.is_empty() {
            "it has no files at all".to_owned()
        } else {
            format!(
                "it has {}; say which to read with `members` under `[reader]`",
                others.join(", ")
            )
        };
        return Err(Hinted::new(format!("{}: there is no file {what}", source.name), hint).into());
    }
    Ok(())
}

/// The name of a set of files: the path of the first one, and a mark.
pub(crate) fn set_name(prefix: &str, first: &str) -> String {
    format!("{prefix}{first} ..")
}

/// What comes before the paths of a set of files in the set's name.
pub(crate) fn folder_of<'a>(name: &'a str, first: &str) -> &'a str {
    let name = name.strip_suffix(" ..").unwrap_or(name);
    name.strip_suffix(first).unwrap_or("")
}
