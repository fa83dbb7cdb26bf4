//! Record files named on the command line: which kind they are.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use prep_formats::array_record::{self, Reader};
use prep_formats::tfrecord::{self, Compression};

/// A record file of a known kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Riegeli chunks with a footer.
    ArrayRecord,
    /// Framed records, compressed as a whole or not.
    TfRecord,
}

/// The kind of a file: by its first bytes, or where these say nothing (the file is damaged, or empty), by its name, or by its end.
pub(crate) fn kind(path: &Path) -> anyhow::Result<Kind> {
    let mut head = Vec::new();
    File::open(path)
        .and_then(|file| file.take(12).read_to_end(&mut head))
        .with_context(|| format!("could not read `{}`", path.display()))?;
    let by_bytes = if head.starts_with(&array_record::SIGNATURE) {
        Some(Kind::ArrayRecord)
    } else {
        tfrecord::detect(&head).map(|_| Kind::TfRecord)
    };
    if let Some(kind) = by_bytes.or_else(|| kind_by_name(path)) {
        return Ok(kind);
    }
    if Reader::open(path).is_ok() {
        return Ok(Kind::ArrayRecord);
    }
    anyhow::bail!(
        "`{}` is neither an ArrayRecord nor a TFRecord file: it begins with {} and its name has neither `.array_record` nor `.tfrecord`",
        path.display(),
        if head.is_empty() {
            "nothing".into()
        } else {
            format!("the bytes {}", hex::encode(&head))
        }
    )
}

/// The kind that a file's name promises: `x.array_record-00000-of-00004`, `x.tfrecord.gz`, `x.tfrecords`.
pub(crate) fn kind_by_name(path: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_string_lossy();
    if name.contains(".array_record") {
        Some(Kind::ArrayRecord)
    } else if name.contains(".tfrecord") {
        Some(Kind::TfRecord)
    } else {
        None
    }
}

/// Opens a TFRecord file as a stream; how it is compressed is told by its first bytes.
pub(crate) fn open_tfrecord(path: &Path) -> anyhow::Result<tfrecord::Reader<File>> {
    Ok(tfrecord::Reader::open(path, tfrecord::ReadOptions::default())?)
}

/// A word for a compression of TFRecord files.
pub(crate) fn compression_name(compression: Compression) -> &'static str {
    match compression {
        Compression::Plain => "uncompressed",
        Compression::Gzip => "gzip",
        Compression::Zlib => "zlib",
        Compression::Zstd => "zstd",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_tell_before_names() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            kind(&path)
        };
        let mut writer = tfrecord::Writer::new(Vec::new(), Compression::Plain).unwrap();
        writer.write(b"x").unwrap();
        let framed = writer.finish().unwrap();
        assert_eq!(write("a.array_record", &framed).unwrap(), Kind::TfRecord);
        assert_eq!(
            write("a.tfrecord", &array_record::SIGNATURE).unwrap(),
            Kind::ArrayRecord
        );
        assert_eq!(
            write("a.array_record-00000-of-00001", b"").unwrap(),
            Kind::ArrayRecord
        );
        assert_eq!(write("b.tfrecord.gz", b"no").unwrap(), Kind::TfRecord);
        let error = write("notes.txt", b"hello").unwrap_err().to_string();
        assert!(error.contains("neither an ArrayRecord nor a TFRecord"), "{error}");
    }
}
