//! Reads zip archives by the directory at their end.
//!
//! Members that are stored or deflated, zip64 and data descriptors included; names in UTF-8, or else in code page 437. Encrypted members
//! and other compressions are refused by name. What the directory claims about sizes is checked against what comes out, and never
//! allocated before.
//!
//! Source: PKWARE's APPNOTE.TXT 6.3.10; the crate `zip` parses it.

use std::io::{self, Read, Seek, SeekFrom};

use anyhow::{Context, Result, bail};
use zip::CompressionMethod;
use zip::result::ZipError;

use crate::archive::{Member, MemberKind};
use crate::error::Hinted;

/// What zip archives begin with: a member, or the directory of none.
const MAGIC: [&[u8; 4]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// What to do with a member that is not read.
const REPACK: &str = "unpack it, and pack it again as a zip archive with the usual compression (deflate)";

/// Whether a file that begins so is a zip archive.
pub(crate) fn is_zip(start: &[u8]) -> bool {
    MAGIC.iter().any(|magic| start.starts_with(*magic))
}

/// A zip archive. Holds its directory: some 200 bytes a member.
#[derive(Debug)]
pub(crate) struct Zip<R> {
    name: String,
    archive: zip::ZipArchive<R>,
}

impl<R: Read + Seek> Zip<R> {
    /// Reads the directory of an archive of `bytes` bytes; errors call it `name`.
    ///
    /// # Errors
    /// The directory is damaged or cut off, has a name twice, or claims more data than the file has.
    pub(crate) fn open(name: &str, inner: R, bytes: u64) -> Result<Self> {
        let archive = zip::ZipArchive::new(inner).map_err(|error| explain(name, None, error))?;
        if archive.has_duplicate_names() {
            bail!("{name}: the archive has two members of the same name");
        }
        let mut packed = 0u64;
        for index in 0..archive.len() {
            let entry = archive
                .by_index_data(index)
                .map_err(|error| explain(name, None, error))?;
            packed = packed.saturating_add(entry.compressed_size());
        }
        if packed > bytes {
            bail!("{name}: the archive claims {packed} bytes of packed data, and has {bytes} bytes in all");
        }
        Ok(Self {
            name: name.to_owned(),
            archive,
        })
    }

    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        self.archive.len()
    }

    /// Bytes that a member takes in the archive.
    pub(crate) fn packed_bytes(&self, index: usize) -> u64 {
        self.archive
            .by_index_data(index)
            .map_or(0, |entry| entry.compressed_size())
    }

    /// A member by its place in the directory.
    ///
    /// # Errors
    /// The name is not text.
    pub(crate) fn member(&self, index: usize) -> Result<Member> {
        let entry = self
            .archive
            .by_index_data(index)
            .map_err(|error| explain(&self.name, None, error))?;
        let path = entry
            .name()
            .map_err(|error| explain(&self.name, None, error))?
            .into_owned();
        let kind = match () {
            () if entry.is_dir() => MemberKind::Folder,
            () if entry.is_symlink() => MemberKind::Other,
            () => MemberKind::File,
        };
        Ok(Member {
            path,
            kind,
            bytes: entry.size(),
            offset: entry.header_start(),
            // Not known before the member's own header is read.
            data_offset: entry.header_start(),
        })
    }

    /// The data of a member, as a stream that ends with an error where they do not match the directory's size or CRC.
    ///
    /// # Errors
    /// It is encrypted, packed in another way, or not where the directory says.
    pub(crate) fn read(&mut self, index: usize) -> Result<impl Read> {
        let member = self.member(index)?;
        let entry = self.archive.by_index_data(index);
        let method = entry.map(|entry| entry.compression()).unwrap_or_default();
        if !matches!(method, CompressionMethod::STORE | CompressionMethod::DEFLATE) {
            return Err(Hinted::new(
                format!(
                    "{}, member {}: it is packed by {method}; stored and deflated members are read",
                    self.name, member.path
                ),
                REPACK,
            )
            .into());
        }
        let inner = self
            .archive
            .by_index(index)
            .map_err(|error| explain(&self.name, Some(&member.path), error))?;
        Ok(Checked {
            place: format!("{}, member {}", self.name, member.path),
            inner,
            left: member.bytes,
            bytes: member.bytes,
        })
    }
}

impl<R: Read + Seek + 'static> Zip<R> {
    /// The same as a stream of its own, which holds the file but no directory: for reading several members side by side.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn into_read(mut self, index: usize) -> Result<Box<dyn Read>> {
        // What cannot be read is told in the same words.
        drop(self.read(index)?);
        let member = self.member(index)?;
        let entry = self
            .archive
            .by_index_data(index)
            .map_err(|error| explain(&self.name, Some(&member.path), error))?;
        let (start, packed, crc) = (entry.header_start(), entry.compressed_size(), entry.crc32());
        let is_stored = entry.compression() == CompressionMethod::STORE;
        let place = format!("{}, member {}", self.name, member.path);
        let mut inner = self.archive.into_inner();
        let unread = || format!("{place}: could not read");
        inner.seek(SeekFrom::Start(start)).with_context(unread)?;
        let mut header = [0; 30];
        inner.read_exact(&mut header).with_context(unread)?;
        let length = |at: usize| i64::from(u16::from_le_bytes([header[at], header[at + 1]]));
        inner
            .seek(SeekFrom::Current(length(26) + length(28)))
            .with_context(unread)?;
        let data = inner.take(packed);
        let data: Box<dyn Read> = match is_stored {
            true => Box::new(data),
            false => Box::new(flate2::read::DeflateDecoder::new(data)),
        };
        Ok(Box::new(Checked {
            inner: WithCrc {
                inner: data,
                crc: flate2::Crc::new(),
                wanted: crc,
            },
            place,
            left: member.bytes,
            bytes: member.bytes,
        }))
    }
}

/// Data that have to have this CRC.
struct WithCrc<R> {
    inner: R,
    crc: flate2::Crc,
    wanted: u32,
}

impl<R: Read> Read for WithCrc<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.crc.update(&buffer[..count]);
        if count == 0 && !buffer.is_empty() && self.crc.sum() != self.wanted {
            let text = format!(
                "its CRC is {:#010x}, the directory says {:#010x}",
                self.crc.sum(),
                self.wanted
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(count)
    }
}

/// Data of a member that have to be as long as the directory says.
struct Checked<R> {
    inner: R,
    place: String,
    left: u64,
    bytes: u64,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let wrong = |place: &str, bytes: u64, what: &str| {
            let text = format!("{place}: its data are {what} than the {bytes} bytes of the directory");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        // One byte more than there should be shows a lie before it fills the memory.
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .saturating_add(1)
            .min(buffer.len());
        let count = self.inner.read(&mut buffer[..most]).map_err(|error| {
            if error
                .get_ref()
                .is_some_and(|inner| inner.is::<crate::error::Cancelled>())
            {
                return error;
            }
            io::Error::new(
                error.kind(),
                format!("{}: the data are damaged: {error}", self.place),
            )
        })?;
        if count as u64 > self.left {
            return Err(wrong(&self.place, self.bytes, "larger"));
        }
        if count == 0 && self.left > 0 {
            return Err(wrong(&self.place, self.bytes, "shorter"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// Whether an error says that an archive is damaged.
pub(crate) fn is_damage(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(ZipError::InvalidArchive(_)))
}

fn explain(name: &str, member: Option<&str>, error: ZipError) -> anyhow::Error {
    let place = member.map_or(name.to_owned(), |member| format!("{name}, member {member}"));
    match error {
        ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED) | ZipError::InvalidPassword => {
            Hinted::new(format!("{place}: it is encrypted"), REPACK).into()
        }
        ZipError::Io(error) => anyhow::Error::new(error).context(format!("{place}: could not read")),
        error => Err::<(), _>(error)
            .with_context(|| format!("{place}: the zip archive is damaged or cut short"))
            .expect_err("it is an error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::{Cursor, Write};

    use zip::write::SimpleFileOptions;

    fn options() -> SimpleFileOptions {
        SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated)
    }

    fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, data) in members {
            writer.start_file(*name, options()).unwrap();
            writer.write_all(data).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn open(bytes: &[u8]) -> Result<Zip<Cursor<Vec<u8>>>> {
        Zip::open("data.zip", Cursor::new(bytes.to_vec()), bytes.len() as u64)
    }

    fn all(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut zip = open(bytes)?;
        let mut found = Vec::new();
        for index in 0..zip.len() {
            let path = zip.member(index)?.path;
            let mut data = Vec::new();
            zip.read(index)?.read_to_end(&mut data)?;
            found.push((path, data));
        }
        Ok(found)
    }

    /// Replaces the bytes of `from`, of which there have to be `times`.
    fn patched(bytes: &[u8], from: &[u8], to: &[u8], times: usize) -> Vec<u8> {
        let (mut out, mut rest, mut count) = (Vec::new(), bytes, 0);
        while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
            out.extend_from_slice(&rest[..at]);
            out.extend_from_slice(to);
            rest = &rest[at + from.len()..];
            count += 1;
        }
        out.extend_from_slice(rest);
        assert_eq!(count, times);
        out
    }

    #[test]
    fn members_come_as_they_went_in() {
        let long = vec![7; 100_000];
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        writer.add_directory("a/", options()).unwrap();
        writer.start_file("a/caf\u{e9}.txt", options()).unwrap();
        writer.write_all(b"deflated").unwrap();
        let stored = options().compression_method(zip::CompressionMethod::Stored);
        writer.start_file("b", stored).unwrap();
        writer.write_all(&long).unwrap();
        writer.start_file("c", options().large_file(true)).unwrap();
        writer.write_all(&long).unwrap();
        let bytes = writer.finish().unwrap().into_inner();
        assert!(is_zip(&bytes));
        let found = all(&bytes).unwrap();
        assert_eq!(found[1], ("a/caf\u{e9}.txt".to_owned(), b"deflated".to_vec()));
        assert_eq!((&found[2].1, &found[3].1), (&long, &long));
        assert_eq!(open(&bytes).unwrap().member(0).unwrap().kind, MemberKind::Folder);
        // What is in front of an archive, as in one that unpacks itself, is no matter.
        assert_eq!(all(&[b"#!/bin/sh\n", &bytes[..]].concat()).unwrap(), found);
    }

    /// An archive that was written to a pipe: sizes and CRC follow the data, and only the directory has them before.
    #[test]
    fn data_descriptors_are_read() {
        let mut writer = zip::ZipWriter::new_stream(Vec::new());
        writer.start_file("a", options()).unwrap();
        writer.write_all(b"after the data").unwrap();
        writer.start_file("b", options()).unwrap();
        writer.write_all(b"second").unwrap();
        let bytes = writer.finish().unwrap().into_inner();
        assert_eq!(
            all(&bytes).unwrap(),
            [
                ("a".to_owned(), b"after the data".to_vec()),
                ("b".to_owned(), b"second".to_vec())
            ]
        );
    }

    #[test]
    fn names_without_the_mark_of_utf8_are_of_code_page_437() {
        let bytes = archive(&[("caf?", b"x")]);
        let bytes = patched(&bytes, b"caf?", b"caf\x82", 2);
        assert_eq!(all(&bytes).unwrap()[0].0, "caf\u{e9}");
    }

    #[test]
    fn two_members_of_one_name_are_refused() {
        let bytes = archive(&[("a1", b"x"), ("a2", b"y")]);
        let bytes = patched(&bytes, b"a2", b"a1", 2);
        let error = open(&bytes).unwrap_err().to_string();
        assert!(
            error.contains("data.zip") && error.contains("same name"),
            "{error}"
        );
    }

    #[test]
    fn encrypted_members_and_other_compressions_are_refused_by_name() {
        let bytes = archive(&[("secret", b"x")]);
        let mut locked = bytes.clone();
        let directory = bytes
            .windows(4)
            .position(|window| window == b"PK\x01\x02")
            .unwrap();
        locked[6] |= 1;
        locked[directory + 8] |= 1;
        let error = format!("{:#}", all(&locked).unwrap_err());
        assert!(
            error.contains("data.zip, member secret: it is encrypted"),
            "{error}"
        );
        let mut other = bytes;
        other[8] = 9;
        other[directory + 10] = 9;
        let error = format!("{:#}", all(&other).unwrap_err());
        assert!(
            error.contains("member secret: it is packed by ") && error.contains("deflated members are read"),
            "{error}"
        );
    }

    /// A directory that tells less, or more, than comes out.
    #[test]
    fn sizes_that_lie_are_found_out() {
        let data = vec![0; 1 << 20];
        let bytes = archive(&[("a", &data)]);
        let directory = bytes
            .windows(4)
            .position(|window| window == b"PK\x01\x02")
            .unwrap();
        for (claim, said) in [(1000u32, "larger"), (u32::MAX - 1, "shorter")] {
            let mut lying = bytes.clone();
            lying[directory + 24..directory + 28].copy_from_slice(&claim.to_le_bytes());
            let mut zip = open(&lying).unwrap();
            assert_eq!(zip.member(0).unwrap().bytes, u64::from(claim));
            let mut found = Vec::new();
            let error = zip.read(0).unwrap().read_to_end(&mut found).unwrap_err();
            assert!(
                error.to_string().contains(said) && error.to_string().contains("member a"),
                "{error}"
            );
            assert!(found.len() <= data.len());
        }
    }

    /// A bomb of members that all lie on the same data.
    #[test]
    fn more_packed_data_than_the_file_has_are_refused() {
        let noise: Vec<u8> = (0..5000u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
            .collect();
        let bytes = archive(&[("a", &noise), ("b", b"")]);
        let directory = bytes
            .windows(4)
            .rposition(|window| window == b"PK\x01\x02")
            .unwrap();
        let mut bomb = bytes;
        bomb[directory + 20..directory + 24].copy_from_slice(&18_000u32.to_le_bytes());
        let error = open(&bomb).unwrap_err().to_string();
        assert!(error.contains("claims"), "{error}");
    }

    #[test]
    fn a_cut_at_any_byte_is_an_error_that_names_the_file() {
        let whole = archive(&[("a", b"some text, some text"), ("b", b"more")]);
        for length in 4..whole.len() {
            let error = format!("{:#}", all(&whole[..length]).unwrap_err());
            assert!(error.starts_with("data.zip"), "{length}: {error}");
        }
    }

    #[test]
    fn a_flipped_bit_gives_an_error_or_the_same_data() {
        let whole = archive(&[("a", b"some text, some text"), ("b", b"more")]);
        let wanted = all(&whole).unwrap();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                let Ok(found) = all(&damaged) else { continue };
                // Names are not under a checksum; data are.
                let data = |members: &[(String, Vec<u8>)]| {
                    members.iter().map(|(_, data)| data.clone()).collect::<Vec<_>>()
                };
                let (found, wanted) = (data(&found), data(&wanted));
                assert!(found.iter().all(|data| wanted.contains(data)), "byte {at}");
            }
        }
    }
}
