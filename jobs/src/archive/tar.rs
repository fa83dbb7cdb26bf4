//! Reads tar archives from a stream, one member after the other.
//!
//! A member is a header of 512 bytes and its data, padded to 512:
//!
//! | bytes | field | encoding |
//! |---|---|---|
//! | 0..100 | path | up to a zero byte |
//! | 124..136 | size | octal text, or base 256 with the top bit set |
//! | 148..156 | sum of all header bytes, these counted as spaces | octal text |
//! | 156 | kind | `0` or zero byte: a file, `1` and `2`: links, `5`: a folder, `L`, `x`: names of the next member |
//! | 257..263 | `ustar` | |
//! | 345..500 | what comes before the path, if it is POSIX's `ustar` | |
//!
//! Source: POSIX.1-2017, `pax`, "ustar Interchange Format" and "pax Interchange Format"; GNU tar, `src/tar.h`.

use std::io::{self, Read};

use sha2::{Digest, Sha256};

use crate::archive::Skip;

const BLOCK_BYTES: usize = 512;
/// Longest name or attribute text that is believed.
const MAX_NAME_BYTES: u64 = 64 << 10;

const SPARSE: &str =
    "a member is stored as a sparse file, which is not supported; make the archive again without `--sparse`";

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its path as the archive has it, which may be anything: never to be used as a path.
    pub path: String,
    /// What it is.
    pub kind: MemberKind,
    /// Bytes of its data, as its header says.
    pub bytes: u64,
    /// Where its header begins in the unpacked archive.
    pub offset: u64,
    /// Where its data begin in the unpacked archive.
    pub data_offset: u64,
}

impl Member {
    /// The last part of its path.
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or("")
    }
}

/// What a member of an archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A link or a device: nothing that holds data.
    Other,
}

/// A tar archive that is read from a stream. Reading from it gives the data of the current member.
#[derive(Debug)]
pub struct Tar<R> {
    inner: R,
    name: String,
    offset: u64,
    /// What is left of the current member's data, and its padding.
    data: u64,
    padding: u64,
    ended: bool,
    /// Path of the current member, and of the last that was gone over to its end.
    current: Option<String>,
    last_whole: Option<String>,
    /// Of all headers, if it is wanted.
    headers: Option<Sha256>,
}

impl<R: Skip> Tar<R> {
    /// Reads the archive; errors call it `name`.
    pub fn new(name: &str, inner: R) -> Self {
        Self {
            inner,
            name: name.to_owned(),
            offset: 0,
            data: 0,
            padding: 0,
            ended: false,
            current: None,
            last_whole: None,
            headers: None,
        }
    }

    /// Hashes all headers, those with long names included: see [`headers_sha256`](Self::headers_sha256).
    #[must_use]
    pub fn hashing_headers(mut self) -> Self {
        self.headers = Some(Sha256::new());
        self
    }

    /// SHA-256 of the headers so far, if they are [hashed](Self::hashing_headers). It changes with the name, size, time or place of a member, but
    /// not with its contents.
    pub fn headers_sha256(&self) -> Option<[u8; 32]> {
        Some(self.headers.clone()?.finalize().into())
    }

    /// Goes to the next member; `None` at the end of the archive.
    ///
    /// # Errors
    /// The archive is damaged or cut short; the message names archive and byte.
    pub fn next_member(&mut self) -> io::Result<Option<Member>> {
        let mut long_name: Option<String> = None;
        let mut size: Option<u64> = None;
        loop {
            self.skip_data()?;
            if self.ended {
                return Ok(None);
            }
            let offset = self.offset;
            let mut header = [0; BLOCK_BYTES];
            if !self.read_block(&mut header)? {
                self.ended = true;
                if offset == 0 {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        format!(
                            "{} is empty: it has 0 bytes; fetch or copy it again, the copy was perhaps stopped before it began",
                            self.name
                        ),
                    ));
                }
                return Ok(None);
            }
            if header.iter().all(|byte| *byte == 0) {
                self.ended = true;
                if long_name.is_some() || size.is_some() {
                    return Err(self.damaged(offset, "it ends where a member should follow"));
                }
                return Ok(None);
            }
            let sum = octal(&header[148..156]);
            let bytes =
                |range: std::ops::Range<usize>| header[range].iter().map(|b| u64::from(*b)).sum::<u64>();
            if sum != Some(bytes(0..148) + bytes(156..BLOCK_BYTES) + 8 * u64::from(b' ')) {
                let reason = match packed_by(&header) {
                    Some(kind) if offset == 0 => format!("this is no tar archive, but {kind}"),
                    _ => "the header of a member does not match its checksum, or this is no tar archive"
                        .to_owned(),
                };
                return Err(self.damaged(offset, &reason));
            }
            let Some(stated) = number(&header[124..136]) else {
                return Err(self.damaged(offset, "the size of a member is not a number"));
            };
            let kind = header[156];
            if matches!(kind, b'L' | b'K' | b'x' | b'g') {
                self.begin_data(offset, stated)?;
                if stated > MAX_NAME_BYTES {
                    let reason = format!(
                        "the name of a member has {stated} bytes; at most {MAX_NAME_BYTES} are taken"
                    );
                    return Err(self.damaged(offset, &reason));
                }
                let mut text = Vec::new();
                self.read_to_end(&mut text)?;
                if let Some(headers) = &mut self.headers {
                    headers.update(&text);
                }
                match kind {
                    b'L' => long_name = Some(until_zero(&text)),
                    b'x' => {
                        let attributes = Attributes::parse(&text).ok_or_else(|| {
                            self.damaged(offset, "the attributes of a member are malformed")
                        })?;
                        long_name = attributes.path.or(long_name);
                        size = attributes.size.or(size);
                        if attributes.is_sparse {
                            return Err(self.damaged(offset, SPARSE));
                        }
                    }
                    _ => {}
                }
                continue;
            }
            if kind == b'S' {
                return Err(self.damaged(offset, SPARSE));
            }
            let kind = match kind {
                b'0' | 0 | b'7' => MemberKind::File,
                b'5' => MemberKind::Folder,
                _ => MemberKind::Other,
            };
            // Links state the size of what they point to, and hold nothing.
            let bytes = match header[156] {
                b'1' | b'2' | b'3' | b'4' | b'5' | b'6' => 0,
                _ => size.unwrap_or(stated),
            };
            self.begin_data(offset, bytes)?;
            let path = long_name.unwrap_or_else(|| header_path(&header));
            self.current = Some(path.clone());
            return Ok(Some(Member {
                path,
                kind,
                bytes,
                offset,
                data_offset: self.offset,
            }));
        }
    }

    /// The stream behind, for what comes after the archive.
    pub fn into_inner(self) -> R {
        self.inner
    }

    /// Where it stands in the unpacked archive, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The stream behind.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }

    /// Goes over what is left of the current member, which tells whether it is whole.
    ///
    /// # Errors
    /// The archive is cut short in this member.
    pub fn finish_member(&mut self) -> io::Result<()> {
        self.skip_data()
    }

    /// Bytes of the current member that are still to be read.
    pub fn remaining(&self) -> u64 {
        self.data
    }

    fn begin_data(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        if bytes > u64::MAX / 4 {
            return Err(self.damaged(offset, &format!("a member claims to have {bytes} bytes")));
        }
        self.data = bytes;
        self.padding = bytes.next_multiple_of(BLOCK_BYTES as u64) - bytes;
        Ok(())
    }

    /// Reads a whole block; `false` at a clean end of the stream.
    fn read_block(&mut self, block: &mut [u8; BLOCK_BYTES]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match self.inner.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(self.cut()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.among_members(error)),
            }
        }
        self.offset += BLOCK_BYTES as u64;
        if let Some(headers) = &mut self.headers {
            headers.update(block);
        }
        Ok(true)
    }

    fn skip_data(&mut self) -> io::Result<()> {
        let wanted = self.data + self.padding;
        let skipped = self
            .inner
            .skip(wanted)
            .map_err(|error| self.among_members(error))?;
        self.offset += skipped;
        if skipped < wanted {
            return Err(self.cut());
        }
        (self.data, self.padding) = (0, 0);
        if self.current.is_some() {
            self.last_whole = self.current.take();
        }
        Ok(())
    }

    fn cut(&self) -> io::Error {
        let text = format!(
            "{}: the archive is cut short at byte {}{}",
            self.name,
            self.offset,
            self.members()
        );
        io::Error::new(io::ErrorKind::UnexpectedEof, text)
    }

    /// An error of the stream behind, with the members it came between where it is damage: the container is cut or broken.
    fn among_members(&self, error: io::Error) -> io::Error {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        if matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof) {
            return io::Error::new(error.kind(), format!("{error}{}", self.members()));
        }
        error
    }

    /// `, in member \`b\`; the last whole member is \`a\``.
    fn members(&self) -> String {
        let current = self
            .current
            .as_ref()
            .map_or(String::new(), |path| format!(", in member `{path}`"));
        match &self.last_whole {
            Some(path) => format!("{current}; the last whole member is `{path}`"),
            None => format!("{current}; no member is whole"),
        }
    }

    fn damaged(&self, offset: u64, reason: &str) -> io::Error {
        let text = format!("{}, byte {offset}: {reason}", self.name);
        io::Error::new(io::ErrorKind::InvalidData, text)
    }
}

impl<R: Skip> Read for Tar<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = usize::try_from(self.data).unwrap_or(usize::MAX).min(buffer.len());
        if limit == 0 {
            return Ok(0);
        }
        let count = match self.inner.read(&mut buffer[..limit]) {
            Ok(count) => count,
            Err(error) => return Err(self.among_members(error)),
        };
        if count == 0 {
            return Err(self.cut());
        }
        self.data -= count as u64;
        self.offset += count as u64;
        Ok(count)
    }
}

/// What a file is that begins so and is no tar archive.
fn packed_by(start: &[u8]) -> Option<&'static str> {
    let kinds: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "packed by gzip; unpack it with `gunzip`"),
        (b"BZh", "packed by bzip2; unpack it with `bunzip2`"),
        (b"\xfd7zXZ\0", "packed by xz; unpack it with `unxz`"),
        (
            b"\x28\xb5\x2f\xfd",
            "packed by Zstandard; unpack it with `unzstd`",
        ),
        (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
        (b"Rar!\x1a\x07", "a RAR archive"),
    ];
    kinds
        .iter()
        .find(|(magic, _)| start.starts_with(magic))
        .map(|(_, kind)| *kind)
}

fn until_zero(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn header_path(header: &[u8; BLOCK_BYTES]) -> String {
    let path = until_zero(&header[..100]);
    // GNU's `ustar  ` keeps other things where POSIX has the prefix.
    if &header[257..263] == b"ustar\0" && header[345] != 0 {
        return format!("{}/{path}", until_zero(&header[345..500]));
    }
    path
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    let text = text.trim_matches(|c| c == ' ' || c == '\0');
    if text.is_empty() {
        return Some(0);
    }
    u64::from_str_radix(text, 8).ok()
}

fn number(field: &[u8]) -> Option<u64> {
    match field.split_first() {
        // Base 256, positive.
        Some((0x80, rest)) => {
            let (high, low) = rest.split_at(rest.len() - 8);
            let low = u64::from_be_bytes(low.try_into().ok()?);
            high.iter().all(|byte| *byte == 0).then_some(low)
        }
        _ => octal(field),
    }
}

/// What a pax header says about the next member.
#[derive(Default)]
struct Attributes {
    path: Option<String>,
    size: Option<u64>,
    is_sparse: bool,
}

impl Attributes {
    /// Parses lines of `LENGTH KEY=VALUE\n`, where the length is that of the line.
    fn parse(mut text: &[u8]) -> Option<Self> {
        let mut attributes = Self::default();
        while !text.is_empty() && text[0] != 0 {
            let space = text.iter().position(|byte| *byte == b' ')?;
            let length: usize = std::str::from_utf8(&text[..space]).ok()?.parse().ok()?;
            let line = text.get(space + 1..length)?.strip_suffix(b"\n")?;
            let equals = line.iter().position(|byte| *byte == b'=')?;
            let value = &line[equals + 1..];
            match &line[..equals] {
                b"path" => attributes.path = Some(String::from_utf8_lossy(value).into_owned()),
                key if key.starts_with(b"GNU.sparse.") => attributes.is_sparse = true,
                b"size" => attributes.size = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                _ => {}
            }
            text = &text[length..];
        }
        Some(attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, data) in members {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, *data).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn list(bytes: &[u8]) -> io::Result<Vec<(Member, Vec<u8>)>> {
        let mut tar = Tar::new("a.tar", bytes);
        let mut found = Vec::new();
        while let Some(member) = tar.next_member()? {
            let mut data = Vec::new();
            tar.read_to_end(&mut data)?;
            found.push((member, data));
        }
        Ok(found)
    }

    #[test]
    fn members_are_those_another_program_wrote() {
        let long = "d/".repeat(100) + "name.bin";
        let bytes = archive(&[("a/b.bin", b"hello"), (&long, &[7; 1000]), ("empty", b"")]);
        let found = list(&bytes).unwrap();
        let names: Vec<&str> = found.iter().map(|(member, _)| member.path.as_str()).collect();
        assert_eq!(names, ["a/b.bin", &long, "empty"]);
        assert_eq!(found[0].1, b"hello");
        assert_eq!(found[1].1, [7; 1000]);
        assert_eq!(found[1].0.file_name(), "name.bin");
        assert_eq!(found[2].0.bytes, 0);
    }

    #[test]
    fn data_may_be_left_unread() {
        let bytes = archive(&[("a", &[1; 700]), ("b", b"x")]);
        let mut tar = Tar::new("a.tar", &bytes[..]);
        let first = tar.next_member().unwrap().unwrap();
        assert_eq!((first.bytes, tar.remaining()), (700, 700));
        tar.read_exact(&mut [0; 10]).unwrap();
        assert_eq!(tar.next_member().unwrap().unwrap().path, "b");
        assert_eq!(tar.next_member().unwrap(), None);
        assert_eq!(tar.next_member().unwrap(), None);
    }

    #[test]
    fn links_hold_nothing() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder
            .append_link(&mut header, "data.bin", "/etc/passwd")
            .unwrap();
        let found = list(&builder.into_inner().unwrap()).unwrap();
        assert_eq!(found[0].0.kind, MemberKind::Other);
        assert!(found[0].1.is_empty());
    }

    #[test]
    fn pax_attributes_replace_path_and_size() {
        let mut builder = tar::Builder::new(Vec::new());
        builder
            .append_pax_extensions([("path", &b"long/name"[..])])
            .unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(3);
        builder.append_data(&mut header, "short", &b"abc"[..]).unwrap();
        let found = list(&builder.into_inner().unwrap()).unwrap();
        assert_eq!(found[0].0.path, "long/name");
        assert_eq!(found[0].1, b"abc");
    }

    #[test]
    fn a_cut_at_any_byte_is_an_error_or_shows_fewer_members() {
        let bytes = archive(&[("a", &[1; 600]), ("b", &[2; 10])]);
        let whole = list(&bytes).unwrap();
        let empty = list(b"").unwrap_err().to_string();
        assert!(empty.contains("is empty: it has 0 bytes"), "{empty}");
        for length in 1..bytes.len() {
            match list(&bytes[..length]) {
                Ok(found) => assert!(found.len() <= 2 && found[..] == whole[..found.len()], "{length}"),
                Err(error) => assert!(error.to_string().contains("cut short"), "{length}: {error}"),
            }
        }
    }

    #[test]
    fn other_kinds_of_files_are_told_by_their_first_bytes() {
        for (start, said) in [
            (&b"BZh91AY&SY"[..], "packed by bzip2"),
            (b"\xfd7zXZ\0", "packed by xz"),
            (b"\x28\xb5\x2f\xfd", "packed by Zstandard"),
            (b"\x1f\x8b\x08", "packed by gzip"),
            (
                b"<html>",
                "does not match its checksum, or this is no tar archive",
            ),
        ] {
            let mut file = start.to_vec();
            file.resize(2000, 7);
            let error = list(&file).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_cut_names_the_last_whole_member() {
        let bytes = archive(&[("a", &[1; 600]), ("b", &[2; 600]), ("c", b"x")]);
        let said = |length: usize| list(&bytes[..length]).unwrap_err().to_string();
        // A header of 512 bytes, and data padded to 1024.
        assert!(
            said(600).ends_with("at byte 600, in member `a`; no member is whole"),
            "{}",
            said(600)
        );
        assert!(
            said(2500).contains("at byte 2500, in member `b`; the last whole member is `a`"),
            "{}",
            said(2500)
        );
        // In the header of the third.
        assert!(
            said(3100).ends_with("; the last whole member is `b`"),
            "{}",
            said(3100)
        );
    }

    #[test]
    fn a_flipped_bit_in_a_header_is_an_error() {
        let bytes = archive(&[("a", b"abc")]);
        for at in 0..BLOCK_BYTES {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(
                list(&damaged).is_err() || list(&damaged).unwrap() == list(&bytes).unwrap(),
                "byte {at}"
            );
        }
    }

    #[test]
    fn a_name_that_claims_gigabytes_is_refused() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::GNULongName);
        header.set_size(1 << 33);
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
        let error = list(&builder.into_inner().unwrap()).unwrap_err();
        assert!(error.to_string().contains("8589934592 bytes"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let _ = list(&bytes);
        }

        #[test]
        fn arbitrary_attributes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Attributes::parse(&bytes);
        }
    }
}
