//! Runs the `prep` command in a home of its own.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::{TempDir, temp_dir};

/// The path of the `prep` command, built first if need be: `$PREP_BIN`, or the one in the folder of the running test.
///
/// # Panics
/// If it does not build.
pub fn prep_binary() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(path) = std::env::var_os("PREP_BIN") {
            return path.into();
        }
        // target/PROFILE/deps/it-0123456789abcdef -> target/PROFILE/prep
        let test = std::env::current_exe().expect("a test knows its own path");
        let folder = test
            .ancestors()
            .find(|folder| folder.file_name() == Some(OsStr::new("deps")))
            .and_then(Path::parent)
            .expect("tests lie in `deps`");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--package", "prep-jobs", "--bin", "prep"]);
        if folder.file_name() == Some(OsStr::new("release")) {
            build.arg("--release");
        }
        build
            .arg("--target-dir")
            .arg(folder.parent().expect("a profile folder has a parent"));
        build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
        assert!(
            build.status().expect("cargo starts").success(),
            "`prep` does not build"
        );
        folder.join("prep")
    })
}

/// The `prep` command with a home folder and a catalog of its own, which go away when dropped.
#[derive(Debug)]
pub struct Prep {
    home: TempDir,
}

/// How a command ended.
#[derive(Debug, Clone)]
pub struct Run {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Default for Prep {
    fn default() -> Self {
        Self::new()
    }
}

impl Prep {
    /// Makes an empty home.
    ///
    /// # Panics
    /// If the temporary folder is not writable.
    pub fn new() -> Self {
        Self { home: temp_dir() }
    }

    /// The home folder: `$PREP_HOME` of every command run.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// The folder of the catalog: `$PREP_CATALOG` of every command run.
    pub fn catalog(&self) -> PathBuf {
        self.home().join("catalog")
    }

    /// The command, with this home, no colours and nothing on its standard input, to be started by the caller.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(prep_binary());
        command
            .args(arguments)
            .env("PREP_HOME", self.home())
            .env("PREP_CATALOG", self.catalog())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command
    }

    /// Runs the command to its end.
    ///
    /// # Panics
    /// If it does not start.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Run {
        Run::of(self.command(arguments))
    }

    /// A place in the home folder.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.home().join(relative)
    }

    /// Writes a file into the home folder, and gives its path.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn put(&self, relative: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(relative);
        let folder = path.parent().expect("it is in the home folder");
        std::fs::create_dir_all(folder).expect("the home folder is writable");
        std::fs::write(&path, content).expect("the home folder is writable");
        path
    }

    /// Builds a dataset from its golden source archive, with more arguments.
    ///
    /// # Panics
    /// If the command does not start.
    pub fn build(&self, dataset: &str, more: &[&str]) -> Run {
        let source = crate::source_folder(dataset);
        let mut arguments = vec![
            OsStr::new("build"),
            OsStr::new(dataset),
            OsStr::new("--from"),
            source.as_os_str(),
            OsStr::new("--no-checksum"),
        ];
        arguments.extend(more.iter().map(OsStr::new));
        self.run(arguments)
    }
}

impl Run {
    /// Runs a command to its end.
    ///
    /// # Panics
    /// If it does not start.
    pub fn of(mut command: Command) -> Self {
        let output = command.output().expect("the command starts");
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts the exit code.
    ///
    /// # Panics
    /// If it is another one; the message has what the command printed.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "exit code\n--- stdout\n{}\n--- stderr\n{}",
            self.stdout, self.stderr
        );
        self
    }

    /// The JSON objects on standard output, one a line.
    ///
    /// # Panics
    /// If a line is not JSON.
    #[track_caller]
    pub fn json(&self) -> Vec<serde_json::Value> {
        self.stdout
            .lines()
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(|error| panic!("not JSON ({error}): {line}"))
            })
            .collect()
    }
}
