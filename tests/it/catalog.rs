//! The catalog of a team: tags, removal, collection, differences, lineage; many readers and writers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::SystemTime;

use prep_catalog::{Catalog, DatasetName};
use prep_formats::store::Location;
use prep_testing::{Prep, Run, TempDir, temp_dir};
use serde_json::{Value, json};

/// A home with sources of one's own beside it.
struct Team {
    prep: Prep,
    sources: TempDir,
}

const RECIPE: &str = "[[sources]]\npath = \"data/*.jsonl\"\n[reader]\nkind = \"jsonl\"\n";

impl Team {
    fn new() -> Self {
        Self {
            prep: Prep::new(),
            sources: temp_dir(),
        }
    }

    fn put(&self, file: &str, text: &str) -> &Self {
        let path = self.sources.path().join("data").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Registers what is there as a version of `mine`.
    fn register(&self, version: &str) -> Value {
        self.register_as(&format!("name = \"mine\"\nversion = \"{version}\"\n"), RECIPE)
    }

    fn register_as(&self, head: &str, recipe: &str) -> Value {
        let path = self.sources.path().join("mine.toml");
        fs::write(&path, format!("format = 1\n{head}{recipe}")).unwrap();
        let run = self
            .prep
            .run(["register", path.to_str().unwrap(), "--json"])
            .expect(0);
        run.json().pop().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let all = arguments.iter().copied().chain(["--json"]);
        self.prep.run(all).expect(0).json()
    }

    fn run(&self, arguments: &[&str], code: i32) -> Run {
        self.prep.run(arguments).expect(code)
    }

    fn folder(&self, version: &str) -> PathBuf {
        self.prep.catalog().join("data/mine").join(version)
    }
}

fn rows(numbers: impl IntoIterator<Item = u32>, text: &str) -> String {
    let row = |number| format!("{{\"id\": {number}, \"text\": \"{text}\"}}\n");
    numbers.into_iter().map(row).collect()
}

/// B31: changed data under the same name are a new version, or an explicit replacement; a pinned name keeps its data, and an unpinned one says which it took.
#[test]
fn changed_data_are_a_new_version_and_pinned_names_keep_theirs() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..5, "old")).register("1.0.0");
    team.put("a.jsonl", &rows(0..5, "new"));
    // The same version with other data is refused, not served from before.
    let path = team.sources.path().join("mine.toml");
    let refused = team.run(&["register", path.to_str().unwrap()], 1);
    assert!(refused.stderr.contains("is there already"), "{}", refused.stderr);
    team.register("1.1.0");
    team.run(&["tag", "mine:1.0.0", "pinned"], 0);
    let text = |name: &str| team.json(&["cat", name])[0]["features"]["text"]["data"].clone();
    assert_eq!(text("mine"), json!("bmV3"));
    for pinned in ["mine:1.0.0", "mine@pinned", "mine@log=0"] {
        assert_eq!(text(pinned), json!("b2xk"), "{pinned}");
    }
    assert_eq!(team.json(&["show", "mine"])[0]["version"], "1.1.0");
    let state = team.sources.path().join("state.json");
    team.run(
        &[
            "load",
            "mine",
            "--batches",
            "0",
            "--save",
            state.to_str().unwrap(),
        ],
        0,
    );
    let state: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    assert_eq!(state["version"], "1.1.0");
}

#[test]
fn tags_are_moved_listed_and_removed() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..3, "x")).register("1.0.0");
    team.register("2.0.0");
    let tag = |arguments: &[&str]| team.json(&[&["tag"], arguments].concat()).remove(0);
    assert_eq!(tag(&["mine:1.0.0", "best", "--dry-run"])["status"], "planned");
    assert!(
        team.json(&["show", "mine"])[0]["tags"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    let done = tag(&["mine:1.0.0", "best"]);
    assert_eq!(
        done,
        json!({"status": "tagged", "name": "mine", "config": null, "version": "1.0.0", "tag": "best", "log": 2})
    );
    assert_eq!(tag(&["mine:1.0.0", "best"])["status"], "up to date");
    let wanted = json!([{"name": "best", "version": "1.0.0"}]);
    for name in ["mine", "mine@best"] {
        assert_eq!(team.json(&["show", name])[0]["tags"], wanted, "{name}");
    }
    let listed = team.json(&["list"]);
    assert_eq!((&listed[0]["tags"], &listed[1]["tags"]), (&wanted, &json!([])));
    tag(&["mine", "best"]);
    assert_eq!(team.json(&["show", "mine@best"])[0]["version"], "2.0.0");
    assert_eq!(tag(&["mine", "best", "--delete"])["status"], "removed");
    let gone = team.run(&["show", "mine@best"], 1);
    assert!(gone.stderr.contains("no tag `best`"), "{}", gone.stderr);
    for (arguments, code) in [
        (["tag", "mine:9.0.0", "x"], 1),
        (["tag", "other", "x"], 1),
        (["tag", "mine", "../x"], 1),
    ] {
        team.run(&arguments, code);
    }
}

#[test]
fn what_is_removed_is_collected_when_it_is_old_enough_and_nothing_else() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..3, "x")).register("1.0.0");
    team.register("2.0.0");
    team.run(&["tag", "mine:1.0.0", "old"], 0);
    let unclear = team.run(&["rm", "mine"], 2);
    assert!(unclear.stderr.contains("1.0.0, 2.0.0"), "{}", unclear.stderr);
    assert_eq!(
        team.json(&["rm", "mine@old", "--dry-run"])[0]["status"],
        "planned"
    );
    assert!(team.json(&["gc", "--older-than", "0s"]).is_empty());
    let removed = team.json(&["rm", "mine@old"]).remove(0);
    assert_eq!(
        (&removed["status"], &removed["tags"]),
        (&json!("removed"), &json!(["old"]))
    );
    team.run(&["show", "mine:1.0.0"], 1);
    let notes = team.folder("1.0.0").join("notes.txt");
    fs::write(&notes, "mine").unwrap();
    // Young, then only looked at, then deleted; what the user put there stays.
    let kept = team.json(&["gc", "--delete"]).remove(0);
    assert!(
        kept["status"] == "kept" && kept["kept"].as_str().unwrap().contains("7 days"),
        "{kept}"
    );
    let planned = team.json(&["gc", "--older-than", "0s"]).remove(0);
    assert_eq!(planned["status"], "garbage");
    assert!(team.folder("1.0.0").join("prep_manifest.json").exists());
    let deleted = team.json(&["gc", "--older-than", "0s", "--delete"]).remove(0);
    assert_eq!(
        (&deleted["status"], &deleted["files"]),
        (&json!("deleted"), &planned["files"])
    );
    assert_eq!(fs::read_dir(team.folder("1.0.0")).unwrap().count(), 1);
    assert!(notes.exists());
    assert!(team.json(&["gc", "--older-than", "0s"]).is_empty());
    team.run(&["verify", "mine"], 0);
    assert!(!team.prep.catalog().join("data/.staging").exists());
    fs::remove_dir_all(team.folder("1.0.0")).unwrap();
    // It can be made again, and all of a dataset can go.
    team.register("1.0.0");
    assert_eq!(team.json(&["rm", "mine", "--all"]).len(), 2);
    team.json(&["gc", "--older-than", "0s", "--delete", "mine"]);
    assert!(!team.folder("1.0.0").exists() && !team.folder("2.0.0").exists());
    assert!(team.json(&["list"]).is_empty());
}

#[test]
fn abandoned_staging_is_collected_and_that_of_a_running_job_is_not() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..3, "x")).register("1.0.0");
    let staging = team.prep.catalog().join("data/.staging");
    for name in ["gone/1.0.0", "busy/c/1.0.0"] {
        fs::create_dir_all(staging.join(name).join("out")).unwrap();
        fs::write(staging.join(name).join("lock"), "").unwrap();
        fs::write(staging.join(name).join("out/shard"), "half").unwrap();
    }
    let lock = fs::File::open(staging.join("busy/c/1.0.0/lock")).unwrap();
    lock.lock().unwrap();
    let left = team.prep.catalog().join("log/mine/00000000000000000001.json#7");
    fs::write(&left, "{").unwrap();
    let kinds = |rows: &[Value]| -> Vec<String> {
        let kind = |row: &Value| {
            format!(
                "{} {}",
                row["status"].as_str().unwrap(),
                row["kind"].as_str().unwrap()
            )
        };
        rows.iter().map(kind).collect()
    };
    let young = team.json(&["gc"]);
    assert_eq!(kinds(&young), ["kept staging", "kept staging", "kept temporary"]);
    let found = team.json(&["gc", "--older-than", "0s", "--delete"]);
    assert_eq!(
        kinds(&found),
        ["kept staging", "deleted staging", "deleted temporary"]
    );
    assert!(!staging.join("gone").exists() && !left.exists());
    assert!(staging.join("busy/c/1.0.0/out/shard").exists());
    drop(lock);
    team.json(&["gc", "--older-than", "0s", "--delete"]);
    assert!(!staging.exists());
    team.run(&["verify", "mine"], 0);
}

#[test]
fn a_difference_names_what_was_added_removed_and_changed() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..40, "same"))
        .put("b.jsonl", &rows(40..60, "same"))
        .register("1.0.0");
    // 41 changed, 42 gone, 100 and 101 new.
    let mut text = rows([40], "same") + &rows([41], "other") + &rows(43..60, "same");
    text += &rows([100, 101], "new");
    team.put("b.jsonl", &text).register("1.1.0");
    let diff = |arguments: &[&str]| team.json(&[&["diff"], arguments].concat()).remove(0);
    let plain = diff(&["mine:1.0.0", "mine:1.1.0"]);
    assert_eq!(
        plain["examples"],
        json!({"added": 3, "removed": 2, "changed": null, "unchanged": 58})
    );
    let keyed = diff(&["mine:1.0.0", "mine", "--key", "id"]);
    assert_eq!(
        keyed["examples"],
        json!({"added": 2, "removed": 1, "changed": 1, "unchanged": 58})
    );
    let train = &keyed["splits"]["train"];
    assert_eq!((&train["before"], &train["after"]), (&json!(60), &json!(61)));
    assert_eq!(train["changed_indices"], json!([[41, 41]]));
    assert_eq!(
        (&train["removed_indices"], &train["added_indices"]),
        (&json!([42]), &json!([59, 60]))
    );
    assert_eq!(
        (&keyed["same"], &keyed["before"]["version"]),
        (&json!(false), &json!("1.0.0"))
    );
    let same = diff(&["mine", "mine:1.1.0"]);
    assert_eq!(
        (&same["same"], &same["examples"]["unchanged"]),
        (&json!(true), &json!(61))
    );
    team.run(&["diff", "mine:1.0.0", "mine", "--exit-code"], 1);
    team.run(&["diff", "mine", "mine", "--exit-code"], 0);
    let wrong = team.run(&["diff", "mine", "mine:1.0.0", "--key", "idd"], 1);
    assert!(wrong.stderr.contains("no feature `idd`"), "{}", wrong.stderr);
    // Features.
    team.put("a.jsonl", "{\"id\": 1, \"text\": \"x\", \"more\": 1.5}\n");
    fs::remove_file(team.sources.path().join("data/b.jsonl")).unwrap();
    team.register("2.0.0");
    let schema = diff(&["mine:1.0.0", "mine"]);
    assert_eq!(schema["schema"]["added"], json!(["more"]));
    assert_eq!(schema["schema"]["removed"], json!([]));
}

#[test]
fn lineage_tells_sources_options_program_and_history() {
    let team = Team::new();
    team.put("a.jsonl", "{\"id\": 1}\n{\"id\": \n{\"id\": 3}\n");
    let path = team.sources.path().join("mine.toml");
    fs::write(&path, format!("format = 1\nname = \"mine\"\n{RECIPE}")).unwrap();
    team.run(&["register", path.to_str().unwrap(), "--on-error", "skip"], 3);
    team.run(&["tag", "mine", "best"], 0);
    let lineage = team.json(&["lineage", "mine@best"]).remove(0);
    assert_eq!(lineage["skipped_records"], 1);
    assert_eq!((&lineage["kind"], &lineage["log"]), (&json!("build"), &json!(0)));
    assert_eq!(lineage["sources"][0]["sha256"].as_str().unwrap().len(), 64);
    assert_eq!(lineage["splits"]["train"]["skipped"], 1);
    assert!(
        lineage["splits"]["train"]["options"]
            .as_str()
            .unwrap()
            .contains("group_size")
    );
    assert!(lineage["program"].as_str().unwrap().starts_with("prep "));
    let what: Vec<&str> = lineage["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["what"].as_str().unwrap())
        .collect();
    assert_eq!(what, ["build", "tag `best`"]);
    let text = team.run(&["lineage", "mine"], 0).stdout;
    assert!(
        text.contains("skipped      1\n") && text.contains("1 left out"),
        "{text}"
    );
}

#[test]
fn a_verification_that_was_stopped_goes_on_and_never_trusts_a_changed_file() {
    let team = Team::new();
    for file in 0..4 {
        team.put(&format!("{file}.jsonl"), &rows(file * 10..file * 10 + 10, "x"));
    }
    team.register("1.0.0");
    let journal = team.sources.path().join("journal");
    let resume = format!("--resume={}", journal.display());
    // What a stopped run has left: a journal that has three of four files.
    let is_shard = |report: &Value| report["path"].as_str().unwrap().contains(".array_record-");
    let mut whole = team.json(&["verify", "mine", &resume]);
    assert!(
        whole
            .iter()
            .all(|report| report["ok"] == true && report.get("resumed").is_none())
    );
    assert!(!journal.exists(), "a run that comes to its end leaves no journal");
    whole.retain(is_shard);
    let mut lines = String::new();
    for report in &whole[..3] {
        let metadata = fs::metadata(report["path"].as_str().unwrap()).unwrap();
        let modified = metadata
            .modified()
            .unwrap()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let stamp = format!("{} {}", metadata.len(), modified.as_nanos());
        let line =
            json!({"path": report["path"], "stamp": stamp, "records": report["records"], "quick": false});
        lines += &format!("{line}\n");
    }
    fs::write(&journal, &lines).unwrap();
    // One of them is damaged since.
    let path = PathBuf::from(whole[1]["path"].as_str().unwrap());
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&path, bytes).unwrap();
    let run = team.run(&["verify", "mine", &resume, "--json"], 1);
    let reports = run.json();
    // Four shards; other files are looked at each time.
    let (shards, others): (Vec<&Value>, Vec<&Value>) = reports.iter().partition(|report| is_shard(report));
    let say = |reports: &[&Value], field: &str| -> Vec<bool> {
        reports.iter().map(|report| report[field] == true).collect()
    };
    assert_eq!(say(&shards, "resumed"), [true, false, true, false]);
    assert_eq!(say(&shards, "ok"), [true, false, true, true]);
    assert!(!say(&others, "resumed").contains(&true) && !say(&others, "ok").contains(&false));
    // Without the flag nothing is passed over.
    fs::write(&journal, &lines).unwrap();
    let run = team.run(&["verify", "mine", "--json"], 1);
    assert!(run.json().iter().all(|report| report.get("resumed").is_none()));
}

fn stop(children: Vec<Child>) {
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Versions come, are replaced, removed and collected; who reads a version that stays never fails.
#[test]
fn readers_of_a_version_that_stays_never_fail_while_others_are_removed_and_collected() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..50, "x")).register("1.0.0");
    team.run(&["tag", "mine", "kept"], 0);
    let stop_file = team.sources.path().join("stop");
    let readers: Vec<_> = (0..4)
        .map(|reader| {
            let catalog = Location::from_path(team.prep.catalog());
            let stop_file = stop_file.clone();
            std::thread::spawn(move || {
                let mut looks = 0;
                while !stop_file.exists() || looks == 0 {
                    let catalog = Catalog::open(&catalog).unwrap();
                    let name = ["mine:1.0.0", "mine@kept", "mine@log=1"][reader % 3];
                    let dataset = prep_loader::open(&catalog, name, "train").unwrap();
                    assert_eq!(dataset.len(), 50);
                    dataset.get_many(&[0, 49]).unwrap();
                    looks += 1;
                }
                looks
            })
        })
        .collect();
    for round in 0..4 {
        team.put("a.jsonl", &rows(0..50, &format!("round {round}")));
        team.register(&format!("2.0.{round}"));
        team.run(&["rm", &format!("mine:2.0.{round}")], 0);
        team.json(&["gc", "--older-than", "0s", "--delete"]);
        assert!(!team.folder(&format!("2.0.{round}")).exists());
    }
    fs::write(&stop_file, "").unwrap();
    let looks: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert!(looks >= 4);
    team.run(&["verify", "mine@kept"], 0);
}

/// B33: many processes read a catalog that is mounted read-only: none fails, and none tries to write or lock.
#[test]
fn sixty_four_processes_read_a_read_only_catalog_without_a_write_or_a_lock() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..20, "x")).register("1.0.0");
    team.run(&["tag", "mine", "best"], 0);
    let mount = ReadOnly::of(&team.prep.catalog());
    let traced = mount.folder().join("prep.json").exists() && has("strace");
    let readers: Vec<Child> = (0..64)
        .map(|reader| {
            let name = ["mine", "mine:1.0.0", "mine@best", "mine@log=0"][reader % 4];
            let arguments = match reader % 4 {
                0 => vec!["load", name, "--batch", "5", "--indices"],
                1 => vec!["cat", name, "--digest", "--json"],
                2 => vec!["show", name, "--json"],
                _ => vec!["verify", name, "--json"],
            };
            let mut command = team.prep.command(&arguments);
            command
                .env("PREP_CATALOG", mount.folder())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for reader in readers {
        let output = reader.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    if !traced {
        return;
    }
    let log = team.sources.path().join("trace");
    let command = team.prep.command(["load", "mine", "--batch", "5", "--indices"]);
    let mut tracer = std::process::Command::new("strace");
    tracer
        .args([
            "-f",
            "-qq",
            "-e",
            "trace=openat,open,creat,flock,fcntl,rename,renameat2,unlink,unlinkat,mkdir,mkdirat",
            "-o",
        ])
        .arg(&log)
        .arg(command.get_program())
        .args(command.get_args())
        .env("PREP_HOME", team.prep.home())
        .env("PREP_CATALOG", mount.folder())
        .stdout(Stdio::null());
    if tracer.status().is_ok_and(|status| status.success()) {
        let catalog = mount.folder().to_string_lossy().into_owned();
        for line in fs::read_to_string(&log).unwrap().lines() {
            let writes = ["O_WRONLY", "O_RDWR", "O_CREAT", "rename", "unlink", "mkdir"];
            assert!(!line.contains("flock(") && !line.contains("F_SETLK"), "{line}");
            assert!(
                !line.contains(&catalog) || writes.iter().all(|word| !line.contains(word)),
                "{line}"
            );
        }
    }
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A catalog that cannot be written: mounted so where that is allowed, else by its permissions.
struct ReadOnly {
    folder: PathBuf,
    is_mounted: bool,
    _place: TempDir,
}

impl ReadOnly {
    fn of(catalog: &Path) -> Self {
        let place = temp_dir();
        let folder = place.path().join("read only");
        fs::create_dir(&folder).unwrap();
        let mount = |arguments: &[&str], places: &[&Path]| {
            let mut command = std::process::Command::new("mount");
            command.args(arguments).args(places).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        if mount(&["--bind"], &[catalog, &folder]) {
            if mount(&["-o", "remount,ro,bind"], &[&folder]) {
                return Self {
                    folder,
                    is_mounted: true,
                    _place: place,
                };
            }
            unmount(&folder);
        }
        permit(catalog, false);
        Self {
            folder: catalog.to_owned(),
            is_mounted: false,
            _place: place,
        }
    }

    fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        if self.is_mounted {
            unmount(&self.folder);
        } else {
            permit(&self.folder, true);
        }
    }
}

fn unmount(folder: &Path) {
    let _ = std::process::Command::new("umount").arg(folder).status();
}

/// Allows or forbids writing to all below a folder.
fn permit(folder: &Path, writing: bool) {
    use std::os::unix::fs::PermissionsExt;

    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    if writing {
        set(folder, 0o755);
    }
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            permit(&path, writing);
        } else {
            set(&path, if writing { 0o644 } else { 0o444 });
        }
    }
    if !writing {
        set(folder, 0o555);
    }
}

/// B30: one answer from everywhere for `name/config`, or one error that names the place searched.
#[test]
fn a_config_in_another_catalog_resolves_the_same_from_everywhere() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..7, "x"));
    let second = team.sources.path().join("second root");
    let path = team.sources.path().join("mine.toml");
    let text = format!("format = 1\nname = \"movi_e\"\nconfig = \"256x256\"\n{RECIPE}");
    fs::write(&path, text).unwrap();
    let second_text = second.to_str().unwrap();
    team.run(&["register", path.to_str().unwrap(), "--catalog", second_text], 0);
    let catalog = Catalog::open(&Location::from_path(&second)).unwrap();
    for name in ["movi_e/256x256", "movi_e/256x256:1.0.0", "movi_e/256x256@log=0"] {
        let shown = team.json(&["show", name, "--catalog", second_text]).remove(0);
        let by_variable = {
            let mut command = team.prep.command(["show", name, "--json"]);
            let output = command.env("PREP_CATALOG", &second).output().unwrap();
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        };
        let resolved = catalog.resolve(&DatasetName::parse(name).unwrap()).unwrap();
        assert_eq!(shown["path"], resolved.folder.to_string());
        assert_eq!(shown, by_variable);
        assert_eq!(prep_loader::open(&catalog, name, "train").unwrap().len(), 7);
        team.run(&["load", name, "--catalog", second_text, "--batches", "1"], 0);
        // Not there: the same words from the command and the library, with the catalog searched.
        let missing = team.run(&["show", name], 1);
        let here = Catalog::open(&Location::from_path(team.prep.catalog())).unwrap();
        let error = here
            .resolve(&DatasetName::parse(name).unwrap())
            .unwrap_err()
            .to_string();
        assert!(missing.stderr.contains(&error) && error.contains(team.prep.catalog().to_str().unwrap()));
    }
    let short = team.run(&["show", "movi_e", "--catalog", second_text], 1);
    assert!(
        short.stderr.contains("has the configs `256x256`"),
        "{}",
        short.stderr
    );
    assert!(short.stderr.contains("movi_e/256x256"), "{}", short.stderr);
}

/// B34: names of classes and paths beyond ASCII, where the environment says ASCII.
#[test]
fn labels_and_paths_beyond_ascii_survive_an_ascii_locale() {
    let team = Team::new();
    let labels = ["café", "猫", "🙂"];
    let rows = labels
        .map(|label| format!("{{\"label\": \"{label}\"}}\n"))
        .concat();
    team.put("mit Leerzeichen é.jsonl", &rows);
    let catalog = team.sources.path().join("catalog mit 猫");
    let path = team.sources.path().join("mine.toml");
    fs::write(
        &path,
        format!("format = 1\nname = \"mine\"\n{RECIPE}[features.label]\nkind = \"class_label\"\n"),
    )
    .unwrap();
    let run = |arguments: &[&str]| -> Vec<Value> {
        let mut command = team.prep.command(arguments);
        command
            .env("LC_ALL", "C")
            .env("LANG", "C")
            .env("PYTHONUTF8", "0")
            .env("PREP_CATALOG", &catalog);
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    };
    run(&["register", path.to_str().unwrap(), "--json"]);
    let names = |shown: &Value| -> Vec<String> {
        serde_json::from_value(shown["features"]["label"]["names"].clone()).unwrap()
    };
    let mut wanted = labels.map(str::to_string).to_vec();
    wanted.sort();
    assert_eq!(names(&run(&["show", "mine", "--json"])[0]), wanted);
    let listed = run(&["list", "--json"]);
    assert!(listed[0]["path"].as_str().unwrap().contains("catalog mit 猫"));
    run(&["verify", "mine", "--json"]);
}

/// B35: what the stored schema cannot give is refused when it is asked for, before any data are read, naming what is missing.
#[test]
fn a_decode_that_the_schema_cannot_give_is_refused_before_data_are_read() {
    let prep = Prep::new();
    prep.build("mnist", &[]).expect(0);
    let shown = prep.run(["show", "mnist", "--json"]).expect(0).json().remove(0);
    let folder = PathBuf::from(shown["path"].as_str().unwrap());
    // The picture becomes raw bytes of two unknown sizes; and no shard can be read any more.
    let features = folder.join("features.json");
    let text = fs::read_to_string(&features).unwrap();
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    let image = &mut schema["featuresDict"]["features"]["image"];
    assert!(image.is_object(), "{text}");
    *image = json!({
        "pythonClassName": "tensorflow_datasets.core.features.tensor_feature.Tensor",
        "tensor": {"shape": {"dimensions": ["-1", "-1"]}, "dtype": "uint8", "encoding": "none"},
    });
    fs::write(&features, schema.to_string()).unwrap();
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.to_string_lossy().contains(".array_record-") {
            let length = fs::metadata(&path).unwrap().len();
            fs::write(&path, vec![0; length as usize]).unwrap();
        }
    }
    let refused = prep.run(["load", "mnist", "--batch", "4"]).expect(1);
    assert!(refused.stderr.contains("image"), "{}", refused.stderr);
    assert!(refused.stderr.contains("features.json"), "{}", refused.stderr);
    assert!(!refused.stderr.contains(".array_record-"), "{}", refused.stderr);
}

/// A catalog that is moved keeps its versions and their fingerprints.
#[test]
fn a_moved_catalog_keeps_its_fingerprints() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..5, "x"));
    let before = team.register("1.0.0");
    let elsewhere = team.sources.path().join("elsewhere");
    fs::rename(team.prep.catalog(), &elsewhere).unwrap();
    let catalog = elsewhere.to_str().unwrap();
    let shown = team.json(&["show", "mine", "--catalog", catalog]).remove(0);
    assert_eq!(shown["fingerprint"], before["fingerprint"]);
    assert!(shown["path"].as_str().unwrap().starts_with(catalog));
    team.run(&["verify", "mine", "--catalog", catalog], 0);
}

/// Sixteen processes commit at once to a folder; half of them are killed. What landed is whole, and nobody else is stopped.
#[test]
fn sixteen_processes_commit_at_once_and_killed_ones_stop_nobody() {
    let team = Team::new();
    team.put("a.jsonl", &rows(0..5, "x")).register("1.0.0");
    let start = |tag: String| {
        let mut command = team.prep.command(["tag", "mine:1.0.0", &tag, "--json"]);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let living: Vec<Child> = (0..16).map(|writer| start(format!("w{writer}"))).collect();
    let killed: Vec<Child> = (0..8).map(|writer| start(format!("k{writer}"))).collect();
    stop(killed);
    for writer in living {
        let output = writer.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let tags: Vec<String> = team.json(&["show", "mine"])[0]["tags"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tag| tag["name"].as_str().unwrap().to_string())
        .collect();
    let landed = |prefix: &str| tags.iter().filter(|tag| tag.starts_with(prefix)).count();
    assert_eq!(landed("w"), 16);
    let entries = fs::read_dir(team.prep.catalog().join("log/mine")).unwrap();
    let entries = entries
        .filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .path()
                .extension()
                .is_some_and(|kind| kind == "json")
        })
        .count();
    assert_eq!(entries, 1 + 16 + landed("k"));
}
