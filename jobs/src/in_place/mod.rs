//! Registers record files where they lie: the catalog gets counts, checksums and indices, and the files stay the user's.
//!
//! ```text
//! recipe -> files -> [learn] -> read each once: checksums, hashes, features hold, index -> manifest -> publish -> commit
//! ```
//!
//! The version's folder has the manifest, the features, `dataset_info.json`, statistics, and `SPLIT-00000-of-00008.index` for each TFRecord file; none of the data.
//! What was read is noted in the staging folder, so that the same command goes on after a kill. Where features follow from the records, as neither the
//! recipe nor a folder of TFDS's says them, all of it is read once more before.
//!
//! Whether a version is "up to date" shows when all is read: the same recipe and the same files give the same manifest. A version that is replaced keeps
//! its folder until `prep gc`: the new one has the folder `VERSION-HASH`, so that a path from a folder to a file holds for both.

mod read;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use prep_catalog::manifest::{IN_PLACE_FORMAT, Manifest, ShardManifest, SourceManifest, SplitManifest};
use prep_formats::features::Features;
use prep_formats::statistics::Statistics;
use prep_formats::store::Location;
use sha2::{Digest, Sha256};

use crate::build::apart;
use crate::build::publish::{Registered, Registry};
use crate::build::staging::Staging;
use crate::build::statistics::{Finishing, part_path};
use crate::build::{self, BuildOutcome, BuildRequest, OnError, Status, info};
use crate::builder::{Builder, DatasetSpec};
use crate::error::{Hinted, Usage};
use crate::in_place::read::{Checker, Facts, Target, read_file, stamp_of};
use crate::infer;
use crate::journal::Journal;
use crate::monitor::Unit;
use crate::readers::RecipeBuilder;
use crate::readers::rows::stay::{StayingFile, Stays};

/// Name of the journal of files that were read, in the staging folder.
const JOURNAL_FILE: &str = "files.jsonl";

/// Registers the files of a recipe of rows where they lie. `builder` is that of the recipe; `request` says all the rest, and its own builder does not matter.
///
/// Blocks until all is done; prints nothing. `request.monitor` shows how far it is, and stops it.
///
/// # Errors
/// A recipe or request that asks for what files in place cannot give, each with the reason; files that are damaged, changed meanwhile, or not what the
/// features say; another dataset in this one's place; a place that cannot be written; a stop. What was read is kept, and the same request goes on.
pub fn register_in_place(request: &BuildRequest, builder: &RecipeBuilder) -> Result<BuildOutcome> {
    refuse(request)?;
    // As for a build, the recipe's words count, and not what its patterns stand for.
    let recipe_sha256 = build::identity(
        builder.spec(),
        &format!("in place: {}", builder.identity()),
        request.statistics,
    );
    let asked = &builder.spec().sources;
    let Some(builder) = builder.found(&request.from)? else {
        return Err(Hinted::new(
            "this cannot be registered in place: its reader makes records of its own",
            "leave `--in-place` out",
        )
        .into());
    };
    let stays = builder.stays()?;
    let spec = builder.spec().clone();
    let registry = Registry::open(&spec, request.catalog.as_deref(), request.data_dir.as_deref())?;
    apart::check(asked, &request.from, &spec.sources, &registry.written())?;
    let job = Job {
        recipe_sha256,
        request,
        builder,
        spec,
        stays,
        registry,
        started: Instant::now(),
    };
    job.run()
}

/// Refuses what the request asks for and files in place cannot give.
fn refuse(request: &BuildRequest) -> Result<()> {
    let refused = |flag: &str, reason: &str| {
        Err(Usage(format!("{flag} does not go with `--in-place`: {reason}")).into())
    };
    if request.shards.is_some() {
        return refused("`--shards`", "the files are the shards");
    }
    if request.on_error != OnError::Fail {
        return refused(
            "`--on-error skip`",
            "no record can be left out of files that stay as they are",
        );
    }
    if request.team.len() > 1 {
        return refused("a cluster", "one process reads the files, on many threads");
    }
    if request.explain {
        return refused("`--explain`", "there is no graph; `--dry-run` lists the files");
    }
    Ok(())
}

/// A registration on its way.
struct Job<'a> {
    request: &'a BuildRequest,
    builder: RecipeBuilder,
    spec: DatasetSpec,
    stays: Stays,
    registry: Registry,
    recipe_sha256: String,
    started: Instant,
}

impl Job<'_> {
    fn run(&self) -> Result<BuildOutcome> {
        let there = self.registry.registered()?;
        if let Registered::Version(found) = &there
            && found.manifest.recipe_sha256 != self.recipe_sha256
        {
            self.refuse_different(&format!(
                "{} is there already, and was made from another recipe, or not in place",
                found.folder
            ))?;
        }
        if self.request.dry_run {
            return Ok(self.plan());
        }
        self.registry.check_writable()?;
        let staging = Staging::enter(
            &self.registry.data_dir,
            &self.registry.relative(),
            &self.request.monitor,
        )
        .map_err(|error| build::unwritable(&self.registry.data_dir, error))?;
        let result = self.work(&staging);
        let is_empty =
            std::fs::metadata(staging.root().join(JOURNAL_FILE)).map_or(true, |file| file.len() == 0);
        if result.is_ok() || is_empty {
            let removed = staging.remove();
            if result.is_ok() {
                removed?;
            }
        }
        result
    }

    /// Refuses to replace what is there, unless that was asked for.
    fn refuse_different(&self, reason: &str) -> Result<()> {
        match self.request.overwrite {
            true => Ok(()),
            false => Err(Hinted::new(
                reason,
                "replace it with `--overwrite`, or give the recipe another version",
            )
            .into()),
        }
    }

    fn plan(&self) -> BuildOutcome {
        let mut outcome = self.outcome(Status::Planned, &self.registry.place());
        let files = self.stays.files.iter();
        outcome.plan = files
            .map(|file| {
                format!(
                    "read {} as split `{}`",
                    file.location, self.stays.splits[file.split]
                )
            })
            .collect();
        outcome.plan.push(format!(
            "register {} files in place in the catalog {}",
            self.stays.files.len(),
            self.registry.catalog().location()
        ));
        outcome
    }

    fn work(&self, staging: &Staging) -> Result<BuildOutcome> {
        let monitor = &self.request.monitor;
        let job = serde_json::json!({"format": 1, "in_place": true, "recipe_sha256": self.recipe_sha256});
        staging
            .prepare(&format!("{job:#}\n"))
            .map_err(|error| build::unwritable(&self.registry.data_dir, error))?;
        self.warn_of_places();
        let features = match &self.stays.features {
            Some(features) => features.clone(),
            None => self.learn()?,
        };
        let paths = self.paths()?;
        let facts = self.read(staging, &features, &paths)?;
        let mut manifest = self.manifest(&features, &facts, &paths)?;
        let out = staging.out();
        if self.request.statistics {
            let finishing = Finishing {
                features: &features,
                out: &out,
                place: &self.registry.place(),
                parts: &staging.statistics(),
                earlier: HashMap::new(),
                memory_bytes: self.request.memory_bytes,
                monitor,
            };
            manifest.files = finishing.write(&manifest)?;
        }
        monitor.check()?;
        if let Registered::Version(found) = self.registry.registered()? {
            if found.manifest == manifest {
                let mut outcome = self.outcome(Status::UpToDate, &found.folder);
                outcome.add(&manifest);
                return Ok(outcome);
            }
            self.refuse_different(&difference(&found.manifest, &manifest, &found.folder))?;
        }
        let mut spec = self.spec.clone();
        spec.features = features;
        info::write_descriptions(&spec, &manifest, &out)?;
        manifest.write(&Location::from_path(&out))?;
        let _span = monitor.span("publish", "publish");
        let (log, folder) =
            self.registry
                .publish(&out, &manifest, &[], &[], self.request.overwrite, monitor)?;
        let mut outcome = self.outcome(Status::Built, &folder);
        outcome.add(&manifest);
        outcome.log = Some(log);
        Ok(outcome)
    }

    /// Says once where the files cannot be read from everywhere that the catalog can.
    fn warn_of_places(&self) {
        let is_local = |file: &&StayingFile| file.location.as_path().is_some();
        if self.registry.is_shared()
            && let Some(file) = self.stays.files.iter().find(is_local)
        {
            self.request.monitor.warn(format!(
                "{} is a file of this machine, and others cannot read it through the catalog {}",
                file.location,
                self.registry.catalog().location()
            ));
        }
    }

    /// Takes the features from all records.
    fn learn(&self) -> Result<Features> {
        if let Some(file) = self
            .stays
            .files
            .iter()
            .find(|file| file.location.as_path().is_none())
        {
            return Err(Hinted::new(
                format!(
                    "the recipe says no features, and {} is not read for them",
                    file.location
                ),
                "say them: copy one of the files here, and `prep infer` writes them",
            )
            .into());
        }
        let monitor = &self.request.monitor;
        let sources = infer::sources_of(&self.builder, monitor)?;
        let learned = self.builder.learn(&sources, &[], self.request.workers)?;
        let knowing = self
            .builder
            .with_learned(&learned.context("the recipe's reader learns nothing")?)?;
        Ok(knowing.spec().features.clone())
    }

    /// How the manifest calls each file.
    fn paths(&self) -> Result<Vec<String>> {
        let (folder, data_dir) = (self.registry.place(), self.registry.data_place());
        let path = |file: &StayingFile| {
            let path = self
                .registry
                .catalog()
                .outside_path(&folder, &data_dir, &file.location);
            path.map_err(build::publish::hinted)
        };
        self.stays.files.iter().map(path).collect()
    }

    /// Reads all files that an earlier run has not read, on all workers.
    fn read(&self, staging: &Staging, features: &Features, paths: &[String]) -> Result<Vec<Facts>> {
        let monitor = &self.request.monitor;
        let files = &self.stays.files;
        let mut names = features.stored_names();
        names.sort_unstable();
        let names = (!self.stays.may_have_more).then_some(names.as_slice());
        // Refused before anything is read.
        Checker::new(features, names).context("the features cannot be read as the records store them")?;
        let (journal, known) = Journal::<(String, Facts)>::open(&staging.root().join(JOURNAL_FILE))?;
        // Other features would have been checked.
        let checked = hex::encode(Sha256::digest(features.canonical_json()));
        let known: HashMap<String, Facts> = known
            .into_iter()
            .filter(|(features, _)| *features == checked)
            .map(|(_, facts)| (facts.name.clone(), facts))
            .collect();
        let total = files.iter().map(local_size).sum::<Option<u64>>();
        let meter = monitor.stage("read", Unit::Bytes, total);
        let indices = index_names(&self.stays);
        let prototype = self.request.statistics.then(|| Statistics::new(features));
        let results: Vec<Mutex<Option<Result<Facts>>>> = files.iter().map(|_| Mutex::new(None)).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut checker = None;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = files.get(number) else { break };
                let index_path = staging.out().join(&indices[number]);
                let part = part_path(&staging.statistics(), &paths[number]);
                let result = (|| {
                    if let Some(facts) = known.get(&file.name)
                        && facts.stamp == stamp_of(file)?
                        && (prototype.is_none() || part.exists())
                        && facts.index.as_ref().is_none_or(|index| {
                            index.path == indices[number]
                                && std::fs::metadata(&index_path).is_ok_and(|file| file.len() == index.bytes)
                        })
                    {
                        meter.add(facts.bytes);
                        return Ok(facts.clone());
                    }
                    let checker = match &mut checker {
                        Some(checker) => checker,
                        None => checker.insert(Checker::new(features, names)?),
                    };
                    let _span = monitor.span("read", format!("read {}", file.location));
                    let target = Target {
                        index: &index_path,
                        path: &paths[number],
                        statistics: prototype.as_ref().map(|prototype| (part.as_path(), prototype)),
                    };
                    let facts = read_file(file, &target, checker, &meter, monitor)?;
                    journal.add(&(checked.clone(), facts.clone()))?;
                    Ok(facts)
                })();
                if result.is_err() {
                    // The others end with the file that they are at.
                    next.store(files.len(), Ordering::Relaxed);
                }
                *results[number].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.request.workers.min(files.len()) {
                scope.spawn(work);
            }
            work();
        });
        meter.finish();
        let mut facts = Vec::new();
        for result in results {
            match result.into_inner().unwrap_or_else(PoisonError::into_inner) {
                Some(result) => facts.push(result?),
                // Behind one that failed, which may come later in the list.
                None => continue,
            }
        }
        monitor.check()?;
        Ok(facts)
    }

    fn manifest(&self, features: &Features, facts: &[Facts], paths: &[String]) -> Result<Manifest> {
        let mut splits = Vec::new();
        for (number, name) in self.stays.splits.iter().enumerate() {
            let mut split = SplitManifest {
                name: name.clone(),
                records: 0,
                bytes: 0,
                options: String::new(),
                skipped: 0,
                shards: Vec::new(),
            };
            for ((file, facts), path) in self.stays.files.iter().zip(facts).zip(paths) {
                if file.split != number {
                    continue;
                }
                split.records += facts.records;
                split.bytes += facts.payload_bytes;
                split.shards.push(ShardManifest {
                    path: path.clone(),
                    records: facts.records,
                    bytes: facts.bytes,
                    sha256: facts.sha256.clone(),
                    sequence_hash: facts.sequence_hash.clone(),
                    index: facts.index.clone(),
                    ..ShardManifest::default()
                });
            }
            splits.push(split);
        }
        let sources = facts.iter().map(|facts| SourceManifest {
            name: facts.name.clone(),
            bytes: facts.bytes,
            sha256: facts.sha256.clone(),
            tar_headers_sha256: None,
        });
        let mut manifest = Manifest {
            format: IN_PLACE_FORMAT,
            name: self.spec.name.clone(),
            config: self.spec.config.clone(),
            version: self.spec.version.clone(),
            fingerprint: String::new(),
            recipe_sha256: self.recipe_sha256.clone(),
            layout: self.spec.layout.name().to_owned(),
            in_place: true,
            sources: sources.collect(),
            splits,
            files: Vec::new(),
        };
        manifest.fingerprint = info::fingerprint(&manifest, features)?;
        Ok(manifest)
    }

    fn outcome(&self, status: Status, place: &Location) -> BuildOutcome {
        let mut outcome = BuildOutcome::of(&self.spec, status, place, self.request);
        outcome.seconds = self.started.elapsed().as_secs_f64();
        outcome
    }
}

/// The names of the files' indices: the split, and which of its files it is.
fn index_names(stays: &Stays) -> Vec<String> {
    let mut counts = vec![0; stays.splits.len()];
    let numbers: Vec<usize> = stays
        .files
        .iter()
        .map(|file| {
            counts[file.split] += 1;
            counts[file.split] - 1
        })
        .collect();
    let files = stays.files.iter().zip(numbers);
    files
        .map(|(file, number)| {
            let (split, count) = (&stays.splits[file.split], counts[file.split]);
            format!("{split}-{number:05}-of-{count:05}.index")
        })
        .collect()
}

/// The size of a file, for the progress; `None` where a store would have to be asked for each.
fn local_size(file: &StayingFile) -> Option<u64> {
    let path = file.location.as_path()?;
    // What cannot be looked at shows when it is read.
    Some(std::fs::metadata(path).map_or(0, |file| file.len()))
}

/// The first thing in which what is there differs from what was found now.
fn difference(there: &Manifest, now: &Manifest, folder: &Location) -> String {
    let sources: HashMap<&str, &SourceManifest> = there
        .sources
        .iter()
        .map(|source| (source.name.as_str(), source))
        .collect();
    let changed = now
        .sources
        .iter()
        .find(|source| sources.get(source.name.as_str()) != Some(source));
    let what = match changed {
        Some(source) if sources.contains_key(source.name.as_str()) => {
            format!("{} has changed since", source.name)
        }
        Some(source) => format!("{} has come since", source.name),
        None if there.sources.len() != now.sources.len() => "some of its files are gone since".to_owned(),
        None => "its features, or the places of its files, were others".to_owned(),
    };
    format!("{folder} is there already, and {what}")
}
