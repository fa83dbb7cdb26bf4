//! A small file system of its own, so that it can be full.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{TempDir, temp_dir};

/// A file system in memory, of a size that can be changed; goes away when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    _folder: Option<TempDir>,
}

impl SmallDisk {
    /// Mounts one; `None`, and a word about it, where this machine or user may not.
    pub fn mount(kilobytes: u32) -> Option<Self> {
        let folder = temp_dir();
        let mut disk = Self::mount_at(folder.path(), kilobytes)?;
        disk._folder = Some(folder);
        Some(disk)
    }

    /// Mounts one at a folder that is there.
    pub fn mount_at(folder: &Path, kilobytes: u32) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kilobytes}k"), "tmpfs"])
            .arg(folder)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            // Past the capture of the test's output, so that it shows.
            let _ = std::io::stderr()
                .write_all(b"\nskipped: no small file system can be mounted here (that takes root)\n");
        }
        mounted.then(|| Self {
            path: folder.to_owned(),
            _folder: None,
        })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A place in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Gives it another size.
    ///
    /// # Panics
    /// If the system does not let us.
    pub fn resize(&self, kilobytes: u32) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,size={kilobytes}k")])
            .arg(&self.path)
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "the disk keeps its size"
        );
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.path).status();
    }
}
