//! Archives made or changed for a test: a member left out, cut, renamed, in another order.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

/// Unpacks a gzip file into memory.
///
/// # Panics
/// If it is not a whole gzip file.
pub fn read_gzip(path: impl AsRef<Path>) -> Vec<u8> {
    let mut data = Vec::new();
    let file = fs::File::open(path.as_ref()).expect("the gzip file opens");
    MultiGzDecoder::new(file)
        .read_to_end(&mut data)
        .expect("the gzip file is whole");
    data
}

/// Writes a gzip file.
///
/// # Panics
/// If it cannot be written.
pub fn write_gzip(path: impl AsRef<Path>, data: &[u8]) {
    fs::write(path, gzip(data, flate2::Compression::fast())).expect("the gzip file can be written");
}

/// Packs by gzip.
fn gzip(data: &[u8], level: flate2::Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    encoder.write_all(data).expect("writing to memory does not fail");
    encoder.finish().expect("writing to memory does not fail")
}

/// Packs by gzip without compressing: half of the file is half of the data.
pub fn gzip_stored(data: &[u8]) -> Vec<u8> {
    gzip(data, flate2::Compression::none())
}

/// The files inside a `.tar.gz`, name and content, in order.
///
/// # Panics
/// If the archive is damaged.
pub fn read_tar_gz(path: impl AsRef<Path>) -> Vec<(String, Vec<u8>)> {
    let data = read_gzip(path);
    let mut archive = tar::Archive::new(data.as_slice());
    let mut members = Vec::new();
    for entry in archive.entries().expect("the archive is readable") {
        let mut entry = entry.expect("the archive's headers are whole");
        if entry.header().entry_type().is_file() {
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("the member is whole");
            members.push((name, content));
        }
    }
    members
}

/// A tar archive of members in the order given.
///
/// # Panics
/// If the name of a member has 100 bytes or more.
pub fn tar<N: AsRef<str>, C: AsRef<[u8]>>(members: &[(N, C)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in members {
        let (name, content) = (name.as_ref(), content.as_ref());
        let mut header = tar::Header::new_gnu();
        // Set by hand, since `append_data` refuses the hostile names that some tests need.
        let field = &mut header.as_old_mut().name;
        assert!(
            name.len() < field.len(),
            "member name `{name}` is too long for this helper"
        );
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder
            .append(&header, content)
            .expect("writing to memory does not fail");
    }
    builder.into_inner().expect("writing to memory does not fail")
}

/// Writes a `.tar.gz` of members in the order given.
///
/// # Panics
/// As [`tar()`], and if it cannot be written.
pub fn write_tar_gz(path: impl AsRef<Path>, members: &[(String, Vec<u8>)]) {
    write_gzip(path, &tar(members));
}

/// Copies a `.tar.gz`, giving each member to `change`, which edits its name and content or returns `false` to leave it out.
///
/// # Panics
/// If the source is damaged or the target cannot be written.
pub fn change_tar_gz(
    source: impl AsRef<Path>,
    target: impl AsRef<Path>,
    mut change: impl FnMut(&mut String, &mut Vec<u8>) -> bool,
) {
    let mut members = read_tar_gz(source);
    members.retain_mut(|(name, content)| change(name, content));
    write_tar_gz(target, &members);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cifar10_archive_has_the_real_order() {
        let members = read_tar_gz(crate::golden_path("cifar10/cifar-10-binary.tar.gz"));
        let names: Vec<_> = members
            .iter()
            .map(|(name, _)| name.rsplit('/').next().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "data_batch_1.bin",
                "batches.meta.txt",
                "data_batch_3.bin",
                "data_batch_4.bin",
                "test_batch.bin",
                "readme.html",
                "data_batch_5.bin",
                "data_batch_2.bin"
            ]
        );
        assert_eq!(members[0].1.len(), 60 * 3073);
    }

    #[test]
    fn a_member_can_be_left_out_and_another_changed() {
        let folder = crate::temp_dir();
        let target = folder.path().join("x.tar.gz");
        change_tar_gz(
            crate::golden_path("cifar100/cifar-100-binary.tar.gz"),
            &target,
            |name, content| {
                content.truncate(10);
                !name.ends_with("train.bin")
            },
        );
        let members = read_tar_gz(&target);
        assert_eq!(members.len(), 3);
        assert!(members.iter().all(|(_, content)| content.len() == 10));
    }
}
