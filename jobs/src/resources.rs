//! What the machine gives: memory, cores, room on a disk; and sizes as users write them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::error::Hinted;

/// Parses a size in bytes: `64M`, `1.5GiB`, `500MB`, `1048576`. K, M, G, T and KiB to TiB are powers of 1024; KB to TB of 1000.
///
/// # Errors
/// The text is no size; the message says what would be.
///
/// ```
/// use prep_jobs::resources::parse_size;
///
/// assert_eq!(parse_size("64M"), Ok(64 << 20));
/// assert_eq!(parse_size("1.5 GiB"), Ok(3 << 29));
/// assert_eq!(parse_size("500MB"), Ok(500_000_000));
/// assert!(parse_size("-1").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<u64, String> {
    let fault =
        || format!("`{text}` is not a size; wanted a number and a unit, as in `512M`, `4GiB` or `500MB`");
    let trimmed = text.trim();
    let end = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let factor: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(fault()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(factor)
            .ok_or_else(|| format!("`{text}` is too large"));
    }
    let number: f64 = number.parse().map_err(|_| fault())?;
    let bytes = number * factor as f64;
    if bytes >= u64::MAX as f64 {
        return Err(format!("`{text}` is too large"));
    }
    Ok(bytes as u64)
}

/// A size as people read it: `1.4 GiB`.
pub fn show_size(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["bytes", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return if unit == "bytes" {
                format!("{bytes} bytes")
            } else {
                format!("{size:.1} {unit}")
            };
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}

/// The memory that this process may use, in bytes: the machine's, or its cgroup's limit if that is less.
pub fn memory_limit() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| meminfo_total(&text))
        .unwrap_or(4 << 30);
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = cgroup_limit_files(&cgroup)
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    limits.min().unwrap_or(u64::MAX).min(machine)
}

/// The memory budget when none is given: a quarter of what there is, at least 64 MiB.
pub fn default_memory() -> u64 {
    (memory_limit() / 4).max(64 << 20)
}

/// The most memory that this process has had so far, in bytes, where the system tells.
pub fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

fn meminfo_total(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The files that hold the limits of the groups in `/proc/self/cgroup`, and of all groups above them.
fn cgroup_limit_files(text: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            // Version 2: one hierarchy for all.
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut group = Path::new(group.trim_start_matches('/'));
        loop {
            files.push(Path::new(root).join(group).join(file));
            match group.parent() {
                Some(parent) if group != Path::new("") => group = parent,
                _ => break,
            }
        }
    }
    files
}

/// The number of workers when none is given: the cores that this process may use.
pub fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes that may still be written to the file system of a path, which need not be there yet.
///
/// # Errors
/// The system does not say.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let there = path
        .ancestors()
        .find(|ancestor| ancestor.exists())
        .filter(|ancestor| !ancestor.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let stat = rustix::fs::statvfs(there)
        .with_context(|| format!("could not look at the file system of {}", there.display()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether a file system is mounted at this path, as far as the system tells.
#[cfg(target_os = "linux")]
pub(crate) fn is_mount_point(path: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

    statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE)
        .is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Whether a file system is mounted at this path, as far as the system tells.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_mount_point(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
    let above = path.parent().and_then(device);
    device(path).is_some_and(|device| above.is_some_and(|above| above != device))
}

/// Says of an error that came from a full disk which one is full, and how full: that of the spill folder, or the one of `folder`, of which
/// `needed` says what is to be written there.
pub(crate) fn explain_full_disk(
    error: anyhow::Error,
    folder: &Path,
    needed: impl FnOnce() -> String,
) -> anyhow::Error {
    if let Some(advice) = full_spill_folder(&error) {
        return error.context(advice);
    }
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    if !causes.any(is_full) {
        return error;
    }
    let message = format!(
        "no space is left at {}: {}, {} are free",
        folder.display(),
        needed(),
        free_bytes(folder).map_or("none".to_owned(), show_size)
    );
    let hint = "free some space there, and give the same command again: it goes on from where it stopped";
    error.context(Hinted::new(message, hint))
}

/// Says of an error that came from a folder which may not be written that this is so, and what to do.
pub(crate) fn explain_unwritable(error: anyhow::Error, folder: &Path, hint: &str) -> anyhow::Error {
    use std::io::ErrorKind::{NotADirectory, PermissionDenied, ReadOnlyFilesystem};

    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    if !causes.any(|error| {
        matches!(
            error.kind(),
            PermissionDenied | ReadOnlyFilesystem | NotADirectory
        )
    }) {
        return error;
    }
    error.context(Hinted::new(
        format!("{} cannot be written", folder.display()),
        hint,
    ))
}

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};

    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// What an error means that came from a full disk under the spill folder; `None` for other errors.
fn full_spill_folder(error: &anyhow::Error) -> Option<Hinted> {
    let Some(prep_dataflow::Error::SpillWrite {
        folder,
        needed_bytes,
        source,
        ..
    }) = crate::error::find::<prep_dataflow::Error>(error)
    else {
        return None;
    };
    if !is_full(source) {
        return None;
    }
    let message = format!(
        "no space is left in the spill folder {}: {} are free there once what was spilled is removed, and at least {} more are needed",
        folder.display(),
        // The job is over, and its spill files are gone.
        free_bytes(folder).map_or("none".to_owned(), show_size),
        show_size(*needed_bytes)
    );
    let hint = "free some space there, name another folder with `--spill-dir`, or allow more `--memory`; the same command goes on \
                from where it stopped";
    Some(Hinted::new(message, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_cannot_be_written_are_told_as_such_and_other_errors_stay() {
        use std::io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};

        let explain = |kind: std::io::ErrorKind| {
            let error = anyhow::Error::new(std::io::Error::from(kind)).context("could not make it");
            let error = explain_unwritable(error, Path::new("out"), "give another");
            let hint = crate::error::find(&error).map(|hinted: &Hinted| hinted.hint.clone());
            (error.to_string(), hint)
        };
        for kind in [PermissionDenied, ReadOnlyFilesystem] {
            let wanted = (
                "out cannot be written".to_owned(),
                Some("give another".to_owned()),
            );
            assert_eq!(explain(kind), wanted);
        }
        assert_eq!(explain(NotFound), ("could not make it".to_owned(), None));
    }

    #[test]
    fn sizes_follow_their_units() {
        for (text, bytes) in [
            ("0", 0),
            ("123", 123),
            ("1K", 1024),
            ("1k", 1024),
            ("2KiB", 2048),
            ("2KB", 2000),
            ("1 MiB", 1 << 20),
            ("1G", 1 << 30),
            ("1GB", 1_000_000_000),
            ("0.5K", 512),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for bad in [
            "",
            "M",
            "1X",
            "1..5M",
            "1 2",
            "-5",
            "99999999999999999999",
            "99999999T",
            "1e3",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown_shortly() {
        assert_eq!(show_size(1023), "1023 bytes");
        assert_eq!(show_size(1536), "1.5 KiB");
        assert_eq!(show_size(3 << 40), "3.0 TiB");
    }

    #[test]
    fn memory_is_the_least_of_machine_and_groups() {
        assert_eq!(
            meminfo_total("MemTotal:       24576 kB\nMemFree: 1 kB\n"),
            Some(24 << 20)
        );
        assert_eq!(meminfo_total("nothing"), None);
        let files = cgroup_limit_files("12:cpu,memory:/a/b\n3:pids:/x\n0::/c\n");
        let shown: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        assert_eq!(
            shown,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max"
            ]
        );
        assert!(default_memory() >= 64 << 20);
        assert!(default_memory() <= memory_limit().max(64 << 20));
    }

    #[test]
    fn free_room_is_that_of_the_nearest_folder_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let free = free_bytes(&folder.path().join("not/there/yet")).unwrap();
        assert!(free > 0);
        assert!(free_bytes(Path::new("relative/not/there")).is_ok());
    }
}
