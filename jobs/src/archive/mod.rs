//! Archives as streams: nothing is unpacked to disk, and no member's path is ever used as a path.

mod members;
mod section;
mod stream;
mod tar;
mod zip;

use std::io::{self, Read};

pub(crate) use members::{LeftOut, damage, each_file, folder_files, lost, read_after, read_all};
pub use section::Section;
pub use stream::Stream;
pub use tar::{Member, MemberKind, Tar};
pub(crate) use zip::Zip;

/// The path of an archive's member without detours, as a name: `./a//b/../c` is `a/c`. `None` for what TFDS leaves out: absolute paths,
/// those that lead out of the archive, hidden files (what macOS and editors leave behind), and backups (`name~`); and for names with a zero byte.
///
/// Source: TFDS 4.9, `core/download/extractor.py` (`_normpath`).
pub fn normal_path(path: &str) -> Option<String> {
    if path.starts_with('/') || path.contains('\0') {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    let (first, last) = (parts.first()?, parts.last()?);
    if first.starts_with('.') || last.starts_with('.') || last.ends_with('~') {
        return None;
    }
    Some(parts.join("/"))
}

/// Whether a path is absolute, or leads out of the archive.
fn leads_out(path: &str) -> bool {
    let mut depth = 0u64;
    path.starts_with('/')
        || path.split('/').any(|part| match part {
            "" | "." => false,
            ".." => {
                let at_top = depth == 0;
                depth = depth.saturating_sub(1);
                at_top
            }
            _ => {
                depth += 1;
                false
            }
        })
}

/// A stream of bytes of which some may be left out, perhaps without reading them.
pub trait Skip: Read {
    /// Leaves out so many bytes, or what there is up to the end; gives their number.
    ///
    /// # Errors
    /// The stream cannot be read.
    fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        io::copy(&mut self.take(bytes), &mut io::sink())
    }
}

impl Skip for &[u8] {}

impl Skip for Stream {}

impl<S: Skip + ?Sized> Skip for &mut S {
    fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        (**self).skip(bytes)
    }
}

impl<S: Skip + ?Sized> Skip for Box<S> {
    fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        (**self).skip(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_tfds() {
        let cases = [
            ("a/b.JPEG", Some("a/b.JPEG")),
            ("./a//b.JPEG", Some("a/b.JPEG")),
            ("a/../b", Some("b")),
            ("a/..", None),
            ("../b", None),
            ("/b", None),
            ("", None),
            ("./", None),
            (".hidden/b", None),
            ("a/.b", None),
            ("a/.b/c", Some("a/.b/c")),
            ("a/b~", None),
            ("a~", None),
            ("a/./c/../b.jpg", Some("a/b.jpg")),
            ("a\\b", Some("a\\b")),
            ("a/../../b", None),
            (".", None),
            ("__MACOSX/a/._b.jpg", None),
            ("a\0b", None),
        ];
        for (path, wanted) in cases {
            assert_eq!(normal_path(path).as_deref(), wanted, "{path}");
            assert_eq!(
                leads_out(path),
                ["/b", "../b", "a/../../b"].contains(&path),
                "{path}"
            );
        }
    }
}
