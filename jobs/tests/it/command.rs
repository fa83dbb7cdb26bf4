//! What the tests of the command share.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use prep_testing::archive::change_tar_gz;
use prep_testing::source_folder;
use serde_json::Value;

/// The archive of `cifar10`.
pub(crate) const ARCHIVE: &str = "cifar-10-binary.tar.gz";

/// The command, with a catalog.
pub(crate) fn prep(catalog: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_prep"));
    command
        .args(arguments)
        .env("PREP_CATALOG", catalog)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A build of `cifar10` from a folder or an address.
pub(crate) fn build_from(catalog: &Path, from: &str, more: &[&str]) -> Command {
    let mut arguments = vec!["build", "cifar10", "--no-checksum", "--from", from];
    arguments.extend(more);
    prep(catalog, &arguments)
}

/// The folder with the small archive of `cifar10`.
pub(crate) fn golden() -> String {
    source_folder("cifar10").to_str().unwrap().to_owned()
}

/// Standard output and standard error of a command that ended with this code.
#[track_caller]
pub(crate) fn expect(output: Output, code: i32) -> (String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (found, out, err) = (output.status.code(), text(output.stdout), text(output.stderr));
    assert_eq!(found, Some(code), "stdout: {out}\nstderr: {err}");
    (out, err)
}

/// A file as JSON.
pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The objects on standard output, one a line.
pub(crate) fn json_lines(out: &str) -> Vec<Value> {
    out.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Makes the archive in `folder` with a record that is damaged; gives the folder.
pub(crate) fn damaged(folder: &Path) -> String {
    change_tar_gz(
        source_folder("cifar10").join(ARCHIVE),
        folder.join(ARCHIVE),
        |name, content| {
            if name.ends_with("test_batch.bin") {
                content[0] = 99;
            }
            true
        },
    );
    folder.to_str().unwrap().to_owned()
}
