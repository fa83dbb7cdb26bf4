//! A catalog and sources of one's own, for tests of versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prep_testing::process::wait_for;
use prep_testing::{Prep, Run, TempDir, assert_same_folder, temp_dir};
use serde_json::Value;

/// A catalog, and a folder with sources and the recipe `mine.toml`.
pub(crate) struct Home {
    pub(crate) prep: Prep,
    pub(crate) folder: TempDir,
    pub(crate) recipe: String,
}

impl Home {
    /// A recipe of this reader for `data/`, with more lines.
    pub(crate) fn new(reader: &str, more: &str) -> Self {
        let recipe = format!(
            "format = 1\nname = \"mine\"   # ours\n{more}[[sources]]\npath = \"data\"\n[reader]\nkind = \"{reader}\"\n"
        );
        Self::of(recipe)
    }

    pub(crate) fn of(recipe: String) -> Self {
        let home = Self {
            prep: Prep::new(),
            folder: temp_dir(),
            recipe,
        };
        home.put("mine.toml", &home.recipe);
        home
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    pub(crate) fn put(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    pub(crate) fn remove(&self, path: &str) -> &Self {
        fs::remove_file(self.path(path)).unwrap();
        self
    }

    /// Runs a command in the folder of the recipe.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        self.run_in(&self.prep.catalog(), arguments)
    }

    pub(crate) fn run_in(&self, catalog: &Path, arguments: &[&str]) -> Run {
        let mut command = self.command(arguments);
        command.env("PREP_CATALOG", catalog);
        Run::of(command)
    }

    /// A command in the folder of the recipe.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.prep.command(arguments);
        command.current_dir(self.folder.path());
        command
    }

    /// Starts a command, and kills it where it passes a place for the Nth time, `PLACE:N`; `meanwhile` looks at it before.
    pub(crate) fn kill_at(&self, place: &str, arguments: &[&str], meanwhile: impl FnOnce()) {
        let sign = self.path("sign");
        let mut child = self
            .command(arguments)
            .env("PREP_TEST_FAULT", format!("hold@{place}:{}", sign.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for(
            || sign.exists() || child.try_wait().unwrap().is_some(),
            || format!("{arguments:?} does not come to {place}"),
        );
        assert!(sign.exists(), "{arguments:?} does not pass {place}");
        meanwhile();
        child.kill().unwrap();
        child.wait().unwrap();
        fs::remove_file(&sign).unwrap();
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let all: Vec<&str> = arguments.iter().copied().chain(["--json"]).collect();
        self.run(&all).expect(0).json()
    }

    /// The last line of a job.
    pub(crate) fn job(&self, arguments: &[&str]) -> Value {
        self.json(arguments).pop().unwrap()
    }

    pub(crate) fn register(&self) -> Value {
        self.job(&["register", "mine.toml"])
    }

    pub(crate) fn update(&self) -> Value {
        self.job(&["update", "mine.toml"])
    }

    pub(crate) fn version(&self, version: &str) -> PathBuf {
        self.prep.catalog().join("data/mine").join(version)
    }

    /// A copy of the only shard of version 1.0.0, as a file of records.
    pub(crate) fn shard(&self) -> PathBuf {
        let mut names = fs::read_dir(self.version("1.0.0"))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let shard = names
            .find(|path| path.to_str().unwrap().contains(".array_record"))
            .unwrap();
        fs::copy(shard, self.path("a.array_record")).unwrap();
        self.path("a.array_record")
    }

    /// Builds the recipe that a version has kept, from the sources that are there now, in another catalog; and compares all files.
    #[track_caller]
    pub(crate) fn assert_is_full_build(&self, version: &str) {
        let catalog = temp_dir();
        fs::copy(
            self.version(version).join("prep_recipe.toml"),
            self.path("full.toml"),
        )
        .unwrap();
        self.run_in(catalog.path(), &["register", "full.toml", "-q", "--workers", "2"])
            .expect(0);
        assert_same_folder(
            self.version(version),
            catalog.path().join("data/mine").join(version),
        );
    }

    /// What the log of the dataset and its folder hold.
    pub(crate) fn contents(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut folders = vec![self.prep.catalog()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                all.push(path.display().to_string());
                if path.is_dir() {
                    folders.push(path);
                }
            }
        }
        all.sort();
        all
    }
}

pub(crate) fn number(value: &Value, field: &str) -> u64 {
    value[field]
        .as_u64()
        .unwrap_or_else(|| panic!("{field}: {value}"))
}

pub(crate) fn rows(numbers: impl IntoIterator<Item = u32>, text: &str) -> String {
    let row = |number| format!("{{\"id\": {number}, \"text\": \"{text}\"}}\n");
    numbers.into_iter().map(row).collect()
}
