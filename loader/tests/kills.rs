//! A process that streams a pipeline into a file, killed a hundred times wherever it happens to be, and gone on with from the state that it wrote.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use prep_formats::value::DType;
use prep_loader::element::{Array, Element, ElementSpec, Value};
use prep_loader::transform::random_function;
use prep_loader::{
    BatchOptions, IterDataset, MapDataset, PackOptions, Packing, Pipeline, PipelineOptions, PipelineState,
    Stacking,
};
use prep_testing::Noise;
use prep_testing::process::wait_for;

const FOLDER: &str = "PREP_TEST_KILLS_FOLDER";
const THREADS: &str = "PREP_TEST_KILLS_THREADS";
const BYTES: &str = "PREP_TEST_KILLS_BYTES";

fn value(element: &Element) -> i64 {
    element.array("value").unwrap().item().unwrap()
}

/// Shuffled, drawn at random, filtered, mixed, packed and shuffled in windows; without end.
fn dataset() -> IterDataset {
    let tokens = random_function("tokens", |mut element, generator| {
        let tokens: Vec<i64> = (0..generator.below(9))
            .map(|_| generator.below(1_000) as i64)
            .collect();
        element.set("tokens", Array::of(&tokens)?);
        Ok(element)
    });
    let mut spec = ElementSpec::new();
    spec.set("value", DType::Int64, []);
    spec.set("tokens", DType::Int64, [None]);
    let source = |from: u64, seed| {
        let numbers = MapDataset::range(from + 500).unwrap().skip(from).unwrap();
        let shuffled = numbers.shuffle(seed).unwrap().repeat(None).unwrap();
        let shuffled = shuffled
            .random_map(tokens.clone().spec(spec.clone()), seed)
            .unwrap();
        shuffled.to_iter_over(6).unwrap()
    };
    let kept = source(0, 1).filter("most", |element| Ok(value(element) % 5 != 0));
    let mixed = IterDataset::mix([kept, source(1_000, 2)], prep_loader::Mixture::new([3.0, 1.0])).unwrap();
    let packing = PackOptions::new(Packing::BestFit { bins: 3 }, [("tokens", 16)]).meta_features(["value"]);
    mixed.pack(packing).unwrap().window_shuffle(60, 3).unwrap()
}

fn open(threads: usize, state: Option<PipelineState>) -> Pipeline {
    let batch = BatchOptions::new(4).stacking(Stacking::Ragged);
    let options = PipelineOptions::new().num_threads(threads).restore(state);
    dataset().batch(batch).unwrap().load(options).unwrap()
}

fn put(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Array(array) => out.extend_from_slice(array.bytes().unwrap()),
        Value::List(values) => values.iter().for_each(|value| put(value, out)),
        other => panic!("{other:?}"),
    }
}

/// All data of a batch, with its names.
fn bytes_of(batch: &Element) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in batch.iter() {
        out.extend_from_slice(name.as_bytes());
        put(value, &mut out);
    }
    out
}

fn paths(folder: &Path) -> [PathBuf; 3] {
    ["stream", "state", "state.new"].map(|name| folder.join(name))
}

/// Length of the file at the last state, and that state.
fn last_state(folder: &Path) -> (u64, Option<PipelineState>) {
    let [_, state, _] = paths(folder);
    let Ok(text) = fs::read_to_string(state) else {
        return (0, None);
    };
    let (length, state) = text.split_once('\n').unwrap();
    (
        length.parse().unwrap(),
        Some(PipelineState::from_json(state).unwrap()),
    )
}

/// The program: streams into the file from where the last state says. Not a test, unless it is started as that.
#[test]
fn the_program_that_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let [stream, state, new] = paths(Path::new(&folder));
    let (mut length, last) = last_state(Path::new(&folder));
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(stream);
    let mut file = file.unwrap();
    // What was written after that state comes again.
    file.set_len(length).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(length)).unwrap();
    let mut pipeline = open(number(THREADS) as usize, last);
    let most = number(BYTES);
    while length < most {
        let bytes = bytes_of(&pipeline.next_element().unwrap().unwrap());
        file.write_all(&bytes).unwrap();
        length += bytes.len() as u64;
        let text = format!("{length}\n{}", pipeline.state().to_json());
        File::create(&new).unwrap().write_all(text.as_bytes()).unwrap();
        fs::rename(&new, &state).unwrap();
    }
}

/// A hundred kills on the way: what is in the file is the undisturbed stream, byte for byte.
#[test]
fn a_hundred_kills_leave_the_stream_as_it_is() {
    let folder = prep_testing::temp_dir();
    let [stream, ..] = paths(folder.path());
    let mut noise = Noise(7);
    let mut kills = 0;
    while kills < 100 {
        let before = last_state(folder.path()).0;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_program_that_is_killed", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .env(THREADS, noise.below(4).to_string())
            .env(BYTES, u64::MAX.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // One in ten before it has come to write anything; the others somewhere behind that.
        if noise.below(10) > 0 {
            let wanted = before + noise.below(4_000);
            let length = || fs::metadata(&stream).map_or(0, |file| file.len());
            wait_for(
                || length() > wanted,
                || format!("it stays at {} of {wanted}", length()),
            );
            std::thread::sleep(Duration::from_micros(noise.below(500)));
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), None, "killed, and not ended: {status}");
        kills += 1;
    }
    let (length, _) = last_state(folder.path());
    let found = fs::read(&stream).unwrap();
    assert!(length > 50_000, "{length}");
    let mut wanted = Vec::new();
    let mut undisturbed = open(1, None);
    while wanted.len() < found.len() {
        wanted.extend(bytes_of(&undisturbed.next_element().unwrap().unwrap()));
    }
    // The last one may have been killed in the middle of a write.
    assert_eq!(found, wanted[..found.len()]);
}
