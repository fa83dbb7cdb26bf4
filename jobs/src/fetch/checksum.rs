//! SHA-256 of local sources, computed while they are being read.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::archive::{Member, MemberKind, Section, Tar};
use crate::builder::{FileSet, SourceIdentity, SourceSpec};
use crate::error::Hinted;
use crate::fetch::Fetched;
use crate::fetch::local::each_of;
use crate::monitor::Monitor;

/// Size and SHA-256 of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checksum {
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of what `identity` says.
    pub sha256: [u8; 32],
    /// What was hashed.
    pub identity: SourceIdentity,
}

/// Hashes what identifies a local source.
///
/// # Errors
/// The file cannot be read, or the job was stopped.
pub(crate) fn identify(spec: &SourceSpec, path: &Path, monitor: &Arc<Monitor>) -> Result<Checksum> {
    match spec.identity {
        SourceIdentity::Sha256 => hash_file(path, spec.files().map(|files| &**files), monitor),
        SourceIdentity::TarHeaders => hash_headers(path, monitor),
    }
}

/// Hashes the headers of a tar archive, and those of the tar archives that are its members. Reads a KB for each member.
///
/// An archive that is damaged has an identity as well: that of what comes before the damage.
fn hash_headers(path: &Path, monitor: &Arc<Monitor>) -> Result<Checksum> {
    let shown = path.display().to_string();
    let file = File::open(path).with_context(|| format!("could not open {shown}"))?;
    let bytes = file
        .metadata()
        .with_context(|| format!("could not read {shown}"))?
        .len();
    let whole = Section::new(&shown, Arc::new(file), bytes, Arc::clone(monitor));
    let mut hasher = Sha256::new();
    hasher.update(bytes.to_le_bytes());
    let mut outer = Tar::new(&shown, whole.part(&shown, 0, bytes)).hashing_headers();
    while let Some(member) = next_whole(&mut outer)? {
        if member.kind != MemberKind::File || !member.path.ends_with(".tar") {
            continue;
        }
        let part = whole.part(&member.path, member.data_offset, member.bytes);
        let mut inner = Tar::new(&member.path, part).hashing_headers();
        while next_whole(&mut inner)?.is_some() {}
        hasher.update(inner.headers_sha256().unwrap_or_default());
    }
    hasher.update(outer.headers_sha256().unwrap_or_default());
    Ok(Checksum {
        bytes,
        sha256: hasher.finalize().into(),
        identity: SourceIdentity::TarHeaders,
    })
}

/// The next member; damage is an end.
fn next_whole(tar: &mut Tar<Section>) -> Result<Option<Member>> {
    use std::io::ErrorKind::{InvalidData, UnexpectedEof};

    match tar.next_member() {
        Err(error) if matches!(error.kind(), InvalidData | UnexpectedEof) => Ok(None),
        other => Ok(other?),
    }
}

/// Hashes a file, or a folder as [`local`](crate::fetch::local) says, looking up now and then whether the job was stopped.
///
/// # Errors
/// A file cannot be read, or the job was stopped.
pub(crate) fn hash_file(path: &Path, files: Option<&FileSet>, monitor: &Monitor) -> Result<Checksum> {
    let mut hasher = Sha256::new();
    let mut bytes = 0;
    if path.is_dir() {
        each_of(path, files, |file| {
            let path = path.join(file);
            let length = std::fs::metadata(&path)
                .with_context(|| format!("could not read {}", path.display()))?
                .len();
            hasher.update((file.len() as u64).to_le_bytes());
            hasher.update(file);
            hasher.update(length.to_le_bytes());
            bytes += hash_into(&mut hasher, &path, monitor)?;
            Ok(())
        })?;
    } else {
        bytes = hash_into(&mut hasher, path, monitor)?;
    }
    Ok(Checksum {
        bytes,
        sha256: hasher.finalize().into(),
        identity: SourceIdentity::Sha256,
    })
}

/// Hashes the bytes of a file, and gives their number.
pub(super) fn hash_into(hasher: &mut Sha256, path: &Path, monitor: &Monitor) -> Result<u64> {
    let mut file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    let length = file.metadata().map_or(1 << 20, |file| file.len());
    let mut buffer = vec![0; length.saturating_add(1).min(1 << 20) as usize];
    let mut bytes = 0;
    loop {
        monitor.check()?;
        let count = file
            .read(&mut buffer)
            .with_context(|| format!("could not read {}", path.display()))?;
        if count == 0 {
            return Ok(bytes);
        }
        hasher.update(&buffer[..count]);
        bytes += count as u64;
    }
}

/// Hashes sources on a thread of its own, while others read them: the file is then in the page cache anyway.
#[derive(Debug)]
pub struct ChecksumThread {
    handle: JoinHandle<Result<Vec<Checksum>>>,
}

impl ChecksumThread {
    /// Starts to hash those of the sources whose hash is not known, as `specs` say.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(specs: &[SourceSpec], sources: &[Fetched], monitor: &Arc<Monitor>) -> Result<Self> {
        let (specs, sources) = (specs.to_vec(), sources.to_vec());
        let monitor = Arc::clone(monitor);
        let run = move || {
            let hash = |(spec, source): (&SourceSpec, &Fetched)| match source.sha256 {
                Some(sha256) if spec.identity == SourceIdentity::Sha256 => Ok(Checksum {
                    bytes: source.bytes,
                    sha256,
                    identity: SourceIdentity::Sha256,
                }),
                _ => {
                    let _span = monitor.span("checksum", format!("checksum {}", source.name));
                    identify(spec, &source.path, &monitor)
                }
            };
            specs.iter().zip(&sources).map(hash).collect()
        };
        let handle = std::thread::Builder::new()
            .name("checksum".to_owned())
            .spawn(run)
            .context("could not start a thread")?;
        Ok(Self { handle })
    }

    /// Waits for the checksums, in the order of the sources.
    ///
    /// # Errors
    /// A file cannot be read, or the job was stopped.
    pub fn join(self) -> Result<Vec<Checksum>> {
        self.handle
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that computes checksums panicked")))
    }
}

/// Compares a source with its spec.
///
/// # Errors
/// Size or hash differ: the message has both.
pub(crate) fn compare(spec: &SourceSpec, path: &Path, found: &Checksum) -> Result<()> {
    let shown = path.display();
    let reason = match (spec.bytes, spec.sha256) {
        (Some(wanted), _) if wanted != found.bytes => {
            format!("{shown} has {} bytes; the recipe says {wanted}", found.bytes)
        }
        (_, Some(wanted)) if wanted != found.sha256 => {
            format!(
                "{shown} has the SHA-256 {}; the recipe says {}",
                hex::encode(found.sha256),
                hex::encode(wanted)
            )
        }
        _ => return Ok(()),
    };
    Err(Hinted::new(
        reason,
        "get the file again, or take this one with `--no-checksum`",
    )
    .into())
}
