//! The commit protocol, model-checked: all ways in which three writers can interleave, with crashes, lost requests and lost replies.
//!
//! The writers run the real code, against a store that answers from a script. To find out what a writer does next, its code is run from the start with the
//! replies that it has had so far, until it asks for something more: its whole state is those replies. So the state of the world is what is in the store, and
//! the replies of each writer; all states that can be reached are visited, each once.
//!
//! | a step of a writer | what happens |
//! |---|---|
//! | goes well | the store does it and replies |
//! | is lost | the store does not do it, and the writer gets an error |
//! | loses its reply | the store does it, and the writer gets an error |
//! | is tried again inside the client | the store does it; the second try finds the first, and the writer hears "there is one" |
//! | is late | the writer gets an error, and the store does it at any later time, or never |
//! | is the last | the writer has crashed before it; what it had under way may be done at any later time, or never |
//!
//! A put that was done and whose reply is lost, and a checkpoint that could not be written, are no excuse: the writer must end as if nothing had happened.
//!
//! An entry of the log that is there never changes, so to read one commutes with whatever the others do: such steps are taken at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

use futures_core::stream::BoxStream;
use futures_util::StreamExt;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use prep_formats::store::block_on;

use super::*;
use crate::entry::tests::FIXED_ID;
use crate::manifest::tests::example;

/// What a writer asks of the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Request {
    Get(String),
    List(String),
    Put {
        path: String,
        bytes: Vec<u8>,
        create: bool,
    },
}

/// What it hears.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reply {
    Object(Option<Vec<u8>>),
    Listed(Vec<String>),
    Done,
    Exists,
    Failed,
}

/// A store that answers from a script, and notes the first thing that is asked beyond it.
#[derive(Debug)]
struct Script {
    replies: Mutex<std::vec::IntoIter<Reply>>,
    next: Mutex<Option<Request>>,
}

fn failed() -> object_store::Error {
    object_store::Error::Generic {
        store: "model",
        source: "no reply".into(),
    }
}

impl Script {
    fn ask(&self, request: Request) -> Option<Reply> {
        let reply = self.replies.lock().unwrap().next();
        if reply.is_none() {
            self.next.lock().unwrap().get_or_insert(request);
        }
        reply
    }
}

impl std::fmt::Display for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("script")
    }
}

type StoreResult<T> = object_store::Result<T>;

#[async_trait::async_trait]
impl ObjectStore for Script {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        let request = Request::Put {
            path: path.to_string(),
            bytes: bytes::Bytes::from(payload).to_vec(),
            create: options.mode == PutMode::Create,
        };
        match self.ask(request) {
            Some(Reply::Done) => InMemory::new().put(path, PutPayload::new()).await,
            Some(Reply::Exists) => Err(object_store::Error::AlreadyExists {
                path: path.to_string(),
                source: "there is one".into(),
            }),
            _ => Err(failed()),
        }
    }
    async fn put_multipart_opts(
        &self,
        _: &ObjectPath,
        _: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        Err(failed())
    }
    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> StoreResult<GetResult> {
        let one = InMemory::new();
        match self.ask(Request::Get(path.to_string())) {
            Some(Reply::Object(Some(bytes))) => {
                one.put(path, bytes.into()).await?;
            }
            Some(Reply::Object(None)) => {}
            _ => return Err(failed()),
        }
        one.get_opts(path, options).await
    }
    fn delete_stream(
        &self,
        _: BoxStream<'static, StoreResult<ObjectPath>>,
    ) -> BoxStream<'static, StoreResult<ObjectPath>> {
        futures_util::stream::iter([Err(failed())]).boxed()
    }
    fn list(&self, _: Option<&ObjectPath>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        futures_util::stream::iter([Err(failed())]).boxed()
    }
    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> StoreResult<ListResult> {
        let folder = prefix.map(ToString::to_string).unwrap_or_default();
        let Some(Reply::Listed(names)) = self.ask(Request::List(folder)) else {
            return Err(failed());
        };
        let all = InMemory::new();
        for name in names {
            all.put(&ObjectPath::from(name), PutPayload::new()).await?;
        }
        all.list_with_delimiter(prefix).await
    }
    async fn copy_opts(&self, _: &ObjectPath, _: &ObjectPath, _: CopyOptions) -> StoreResult<()> {
        Err(failed())
    }
}

/// What a writer does next.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Ask(Request),
    /// The number of its entry, if it wrote one; or whether it was refused by the rules, and in which words.
    Ends(std::result::Result<Option<u64>, (bool, String)>),
}

/// Looks at a log when all is over, and at how the writers ended: whether something went wrong for each, and its last step.
type Ends = dyn Fn(&[Entry], &[(bool, Step)]);

type Work = Box<dyn Fn(&Catalog) -> Result<Option<u64>>>;

/// The replies that a writer has had: a node in a tree of them.
type History = usize;

/// Three writers, and what they want.
struct Model {
    url: &'static str,
    work: Vec<Work>,
    /// (parent, reply) of each history; the first few are the writers' empty ones.
    histories: Vec<Option<(History, Reply)>>,
    children: HashMap<(History, Reply), History>,
    steps: HashMap<History, Step>,
    owner: Vec<usize>,
    /// What can be in the store, each once.
    contents: Vec<Objects>,
    numbers: HashMap<Objects, usize>,
    logs: HashMap<usize, Vec<Entry>>,
}

type Objects = BTreeMap<String, Vec<u8>>;

/// A state of the world.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    /// Number of what is in the store.
    objects: usize,
    writers: Vec<Writer>,
    faults_left: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Writer {
    history: History,
    crashed: bool,
    /// Whether something has gone wrong that it may fail of.
    faulty: bool,
    /// A put that may be done later.
    late: Option<Request>,
}

impl Model {
    fn new(url: &'static str, work: Vec<Work>) -> Self {
        let count = work.len();
        Self {
            url,
            work,
            histories: vec![None; count],
            children: HashMap::new(),
            steps: HashMap::new(),
            owner: (0..count).collect(),
            contents: Vec::new(),
            numbers: HashMap::new(),
            logs: HashMap::new(),
        }
    }

    /// The number of these objects.
    fn number(&mut self, objects: Objects) -> usize {
        let next = self.contents.len();
        *self.numbers.entry(objects).or_insert_with_key(|objects| {
            self.contents.push(objects.clone());
            next
        })
    }

    /// Does what is asked in a world.
    fn apply(&mut self, world: &mut World, request: &Request) -> Reply {
        let objects = &self.contents[world.objects];
        if !matches!(request, Request::Put { .. }) {
            return apply(&mut objects.clone(), request);
        }
        let mut changed = objects.clone();
        let reply = apply(&mut changed, request);
        world.objects = self.number(changed);
        reply
    }

    fn catalog(&self, objects: Arc<dyn ObjectStore>) -> Result<Catalog> {
        let store = Store::new(Location::parse(self.url).unwrap(), objects, ObjectPath::from("c"));
        let catalog = Catalog::with_store(store)?;
        catalog.tried.store(true, Ordering::Relaxed);
        Ok(catalog)
    }

    /// Runs a writer's code on the replies it has had.
    fn step(&mut self, history: History) -> Step {
        if let Some(step) = self.steps.get(&history) {
            return step.clone();
        }
        let mut replies = Vec::new();
        let mut at = history;
        while let Some((parent, reply)) = &self.histories[at] {
            replies.push(reply.clone());
            at = *parent;
        }
        replies.reverse();
        let writer = self.owner[history];
        let script = Arc::new(Script {
            replies: Mutex::new(replies.into_iter()),
            next: Mutex::new(None),
        });
        FIXED_ID.set(Some((format!("w{writer}"), 0)));
        let objects: Arc<dyn ObjectStore> = Arc::<Script>::clone(&script);
        let ended = self
            .catalog(objects)
            .and_then(|catalog| (self.work[writer])(&catalog));
        FIXED_ID.set(None);
        let next = script.next.lock().unwrap().take();
        let step = match next {
            Some(request) => Step::Ask(request),
            None => Step::Ends(ended.map_err(|error| {
                let by_the_rules = matches!(
                    error,
                    Error::Conflict { .. }
                        | Error::Data { .. }
                        | Error::Refused(_)
                        | Error::UnknownVersion { .. }
                );
                (by_the_rules, error.to_string())
            })),
        };
        self.steps.insert(history, step.clone());
        step
    }

    fn after(&mut self, history: History, reply: Reply) -> History {
        let next = self.histories.len();
        let owner = self.owner[history];
        let found = *self.children.entry((history, reply.clone())).or_insert(next);
        if found == next {
            self.histories.push(Some((history, reply)));
            self.owner.push(owner);
        }
        found
    }

    /// All states that can follow.
    fn successors(&mut self, world: &World) -> Vec<World> {
        let mut all = Vec::new();
        for index in 0..world.writers.len() {
            let writer = &world.writers[index];
            if let Some(request) = &writer.late {
                let mut landed = world.clone();
                self.apply(&mut landed, request);
                landed.writers[index].late = None;
                all.push(landed);
            }
            let Step::Ask(request) = self.step(writer.history) else {
                continue;
            };
            if writer.crashed {
                continue;
            }
            let mut well = world.clone();
            let reply = self.apply(&mut well, &request);
            well.writers[index].history = self.after(writer.history, reply.clone());
            if is_settled(&request, &reply) {
                all.clear();
            }
            all.push(well.clone());
            let is_checkpoint =
                matches!(&request, Request::Put { path, .. } if path.starts_with("c/checkpoints/"));
            let fault = |mut world: World, history: History, is_excuse: bool| {
                world.faults_left -= 1;
                world.writers[index].history = history;
                world.writers[index].faulty |= is_excuse && !is_checkpoint;
                world
            };
            let gone = self.after(writer.history, Reply::Failed);
            if world.faults_left > 0 {
                all.push(fault(world.clone(), gone, true));
            }
            if is_settled(&request, &reply) {
                return all;
            }
            if world.faults_left == 0 {
                continue;
            }
            let mut crashed = fault(world.clone(), writer.history, true);
            crashed.writers[index].crashed = true;
            all.push(crashed.clone());
            if let Request::Put { path, create, .. } = &request {
                // To find out that an entry is its own, a writer reads it.
                let is_found_out = path.contains("/log/") && reply == Reply::Done;
                all.push(fault(well.clone(), gone, !is_found_out));
                if *create && reply == Reply::Done {
                    let met_itself = self.after(writer.history, Reply::Exists);
                    all.push(fault(well.clone(), met_itself, false));
                }
                if writer.late.is_none() {
                    let mut late = fault(world.clone(), gone, true);
                    late.writers[index].late = Some(request.clone());
                    all.push(late);
                    crashed.writers[index].late = Some(request.clone());
                    all.push(crashed);
                }
            }
        }
        all
    }

    /// Visits every state that can be reached from these objects. `ends` sees the log of each state in which nothing more has to happen, and how the
    /// writers ended. Gives the number of states.
    fn check(&mut self, objects: Objects, faults: u8, ends: &Ends) -> usize {
        let writers = (0..self.work.len()).map(|history| Writer {
            history,
            crashed: false,
            faulty: false,
            late: None,
        });
        let first = World {
            objects: self.number(objects),
            writers: writers.collect(),
            faults_left: faults,
        };
        let mut seen = HashSet::from([first.clone()]);
        let mut waiting = vec![first];
        while let Some(world) = waiting.pop() {
            if !self.logs.contains_key(&world.objects) {
                let log = self.check_objects(&self.contents[world.objects]);
                self.logs.insert(world.objects, log);
            }
            let steps: Vec<(bool, Step)> = world
                .writers
                .iter()
                .map(|writer| (writer.faulty, self.step(writer.history)))
                .collect();
            let is_over = world
                .writers
                .iter()
                .zip(&steps)
                .all(|(writer, (_, step))| writer.crashed || matches!(step, Step::Ends(_)));
            let log = &self.logs[&world.objects];
            check_writers(log, &steps);
            if is_over {
                ends(log, &steps);
            }
            for next in self.successors(&world) {
                if seen.insert(next.clone()) {
                    waiting.push(next);
                }
            }
        }
        seen.len()
    }

    /// What holds in every state: a reader finds a log without gaps, each entry whole, and both ways of reading it agree.
    fn check_objects(&self, objects: &Objects) -> Vec<Entry> {
        let store = Arc::new(InMemory::new());
        for (path, bytes) in objects {
            block_on(store.put(&ObjectPath::from(path.as_str()), bytes.clone().into())).unwrap();
        }
        let catalog = self.catalog(store).unwrap();
        let dataset = DatasetName::parse("a").unwrap();
        let mut log = Vec::new();
        let mut state = State::default();
        while let Some(entry) = catalog.entry(&dataset, log.len() as u64).unwrap() {
            state.check(&entry.change).unwrap();
            state.apply(log.len() as u64, &entry).unwrap();
            log.push(entry);
        }
        let entries = objects.keys().filter(|path| path.starts_with("c/log/a/"));
        assert_eq!(entries.count(), log.len(), "the log has a gap");
        assert!(log.is_empty() || objects.contains_key("c/prep.json"));
        assert_eq!(catalog.state(&dataset).unwrap(), state);
        assert_eq!(catalog.read_quickly(&dataset).unwrap().state, state);
        log
    }
}

/// Does what is asked, as a store does.
fn apply(objects: &mut Objects, request: &Request) -> Reply {
    match request {
        Request::Get(path) => Reply::Object(objects.get(path).cloned()),
        Request::List(folder) => {
            let inside = format!("{folder}/");
            let names = objects.keys().filter(|path| path.starts_with(&inside));
            Reply::Listed(names.cloned().collect())
        }
        Request::Put {
            path, create: true, ..
        } if objects.contains_key(path) => Reply::Exists,
        Request::Put { path, bytes, create } => {
            assert!(
                *create || !path.contains("/log/"),
                "an entry is overwritten: {path}"
            );
            objects.insert(path.clone(), bytes.clone());
            Reply::Done
        }
    }
}

/// Whether no step of another writer could change the reply.
fn is_settled(request: &Request, reply: &Reply) -> bool {
    let Request::Get(path) = request else {
        return false;
    };
    let is_constant = path.contains("/log/") || path.ends_with("/prep.json");
    is_constant && matches!(reply, Reply::Object(Some(_)))
}

fn entries_of(log: &[Entry], writer: usize) -> Vec<u64> {
    let prefix = format!("w{writer}-");
    let numbered = log.iter().enumerate();
    numbered
        .filter(|(_, entry)| entry.commit_id.starts_with(&prefix))
        .map(|(number, _)| number as u64)
        .collect()
}

/// What holds of writers in every state: none has two entries; who says that it wrote one did; and nobody fails to whom nothing has happened, but by
/// the rules.
fn check_writers(log: &[Entry], steps: &[(bool, Step)]) {
    for (writer, (faulty, step)) in steps.iter().enumerate() {
        let entries = entries_of(log, writer);
        assert!(entries.len() <= 1, "writer {writer} has the entries {entries:?}");
        match step {
            Step::Ends(Ok(Some(number))) => assert_eq!(entries, [*number]),
            Step::Ends(Ok(None)) => assert!(entries.is_empty(), "writer {writer} does not know of its entry"),
            Step::Ends(Err((by_the_rules, error))) => {
                assert!(*faulty || *by_the_rules, "writer {writer}: {error}");
                assert!(!*by_the_rules || entries.is_empty(), "writer {writer}: {error}");
            }
            Step::Ask(_) => {}
        }
    }
}

/// Objects of a catalog with these changes.
fn objects(changes: &[Change]) -> Objects {
    let mut objects = BTreeMap::new();
    for (number, change) in changes.iter().enumerate() {
        FIXED_ID.set(Some((format!("before{number}"), 0)));
        let entry = Entry::new(change.clone()).unwrap();
        FIXED_ID.set(None);
        let path = entry_path(&DatasetName::parse("a").unwrap(), number as u64);
        objects.insert(format!("c/{path}"), entry.to_json());
        objects.insert("c/prep.json".to_string(), b"{\"format\": 1}\n".to_vec());
    }
    objects
}

fn version(version: &str, seed: u8) -> (Manifest, String) {
    let manifest = example("a", None, version, seed);
    (manifest, format!("data/a/{version}"))
}

fn build(number: &str, seed: u8) -> Change {
    let (manifest, path) = version(number, seed);
    Change::Build(VersionRecord::of_manifest(&manifest, path))
}

fn commit_build(number: &'static str, seed: u8) -> Work {
    Box::new(move |catalog| {
        let (manifest, _) = version(number, seed);
        let folder = catalog.data_dir().join(&format!("a/{number}"));
        let committed = catalog.commit_build(&Build::new(&manifest, folder))?;
        Ok(committed.is_new.then_some(committed.log_number))
    })
}

fn tag(tag: &'static str) -> Work {
    Box::new(move |catalog| catalog.tag(&DatasetName::parse("a:1.0.0").unwrap(), tag))
}

/// Faults in one history. Two, in `make soak`, take six times as long.
const FAULTS: u8 = 1;

fn three_new_versions(faults: u8) -> usize {
    let work = vec![
        commit_build("1.0.0", 1),
        commit_build("2.0.0", 2),
        commit_build("3.0.0", 3),
    ];
    let ends = |log: &[Entry], steps: &[(bool, Step)]| {
        for (writer, (faulty, step)) in steps.iter().enumerate() {
            if !faulty {
                assert!(matches!(step, Step::Ends(Ok(Some(_)))), "{step:?}");
                assert_eq!(entries_of(log, writer).len(), 1);
            }
        }
    };
    Model::new("s3://bucket/c", work).check(objects(&[]), faults, &ends)
}

fn three_builds_of_one_version(faults: u8) -> usize {
    // Two are the same.
    let work = vec![
        commit_build("1.0.0", 1),
        commit_build("1.0.0", 1),
        commit_build("1.0.0", 2),
    ];
    let ends = |log: &[Entry], steps: &[(bool, Step)]| {
        assert!(log.len() <= 1, "one version has {} entries", log.len());
        let won_by_others = !entries_of(log, 2).is_empty();
        for (faulty, step) in &steps[..2] {
            if !faulty {
                assert_eq!(
                    matches!(step, Step::Ends(Err((true, _)))),
                    won_by_others,
                    "{step:?}"
                );
            }
        }
        if !steps[2].0 {
            assert_eq!(matches!(steps[2].1, Step::Ends(Err((true, _)))), !won_by_others);
        }
    };
    Model::new("s3://bucket/c", work).check(objects(&[]), faults, &ends)
}

fn three_tags_around_a_checkpoint(faults: u8) -> usize {
    let mut before = vec![build("1.0.0", 1)];
    for number in 0..CHECKPOINT_EVERY - 3 {
        before.push(Change::Tag(TagRecord {
            tag: format!("t{number}"),
            version: "1.0.0".into(),
            other: Map::new(),
        }));
    }
    let ends = |log: &[Entry], steps: &[(bool, Step)]| {
        let quiet = steps.iter().filter(|(faulty, _)| !faulty).count();
        assert!(log.len() as u64 >= CHECKPOINT_EVERY - 2 + quiet as u64);
    };
    let work = vec![tag("one"), tag("two"), tag("three")];
    Model::new("s3://bucket/c", work).check(objects(&before), faults, &ends)
}

fn a_collection_against_a_build(faults: u8) -> usize {
    let before = [
        build("1.0.0", 1),
        build("2.0.0", 2),
        Change::Remove(RemoveRecord {
            version: "2.0.0".into(),
            other: Map::new(),
        }),
    ];
    let path = "data/a/2.0.0";
    let collect: Work = Box::new(move |catalog| {
        let taken = catalog.collect(&DatasetName::parse("a").unwrap(), &[path.to_string()])?;
        // Its number is not told; what was taken is.
        assert!(taken.is_empty() || taken == [path]);
        let state = catalog.state(&DatasetName::parse("a").unwrap())?;
        Ok(if taken.is_empty() {
            None
        } else {
            state.collected().next().map(|(_, number)| number)
        })
    });
    let ends = move |log: &[Entry], _: &[(bool, Step)]| {
        let mut collected = false;
        for entry in log {
            match &entry.change {
                Change::Gc(_) => collected = true,
                Change::Build(record) if record.path == path => {
                    assert!(!collected, "a build has the folder that is being deleted");
                }
                _ => {}
            }
        }
    };
    let work = vec![collect, commit_build("2.0.0", 2), tag("x")];
    Model::new("s3://bucket/c", work).check(objects(&before), faults, &ends)
}

fn a_tag_against_removals(faults: u8) -> usize {
    let remove = || -> Work { Box::new(|catalog| catalog.remove(&DatasetName::parse("a:1.0.0").unwrap())) };
    let ends = |log: &[Entry], steps: &[(bool, Step)]| {
        let removals = log
            .iter()
            .filter(|entry| matches!(entry.change, Change::Remove(_)));
        let is_quiet = !steps[0].0 || !steps[2].0;
        assert!((usize::from(is_quiet)..=1).contains(&removals.count()));
    };
    let work = vec![remove(), tag("one"), remove()];
    let before = [build("1.0.0", 1), build("2.0.0", 2)];
    Model::new("s3://bucket/c", work).check(objects(&before), faults, &ends)
}

/// The number of states says that the model has not become empty.
#[test]
fn three_writers_in_every_order_with_one_fault() {
    let counts = [
        three_new_versions(FAULTS),
        three_builds_of_one_version(FAULTS),
        three_tags_around_a_checkpoint(FAULTS),
        a_collection_against_a_build(FAULTS),
        a_tag_against_removals(FAULTS),
    ];
    assert!(counts.iter().all(|count| *count > 1_000), "{counts:?}");
}

#[test]
#[ignore = "half a minute: `make soak`"]
fn three_writers_in_every_order_with_two_faults() {
    let counts = [
        three_new_versions(2),
        three_builds_of_one_version(2),
        three_tags_around_a_checkpoint(2),
        a_collection_against_a_build(2),
        a_tag_against_removals(2),
    ];
    assert!(counts.iter().all(|count| *count > 10_000), "{counts:?}");
}
