//! The example programs do what they say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use prep_dataflow::{Cluster, ClusterSpec, Options};

#[path = "../../examples/dedup_text.rs"]
#[expect(dead_code, reason = "the program's `main` is not called")]
mod dedup_text;
#[path = "../../examples/resize_images.rs"]
#[expect(dead_code, reason = "the program's `main` is not called")]
mod resize_images;

/// The files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                std::fs::read(&path).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}

/// What a job writes with any workers, which must be the same.
fn same(home: &Path, job: impl Fn(PathBuf, Options)) -> Vec<(String, Vec<u8>)> {
    let mut outputs = Vec::new();
    for (workers, memory) in [(1, 256 << 20), (2, 0), (5, 64 << 20)] {
        let folder = home.join(format!("out-{workers}"));
        std::fs::create_dir(&folder).unwrap();
        job(
            folder.clone(),
            Options::default().workers(workers).memory_bytes(memory),
        );
        outputs.push(files(&folder));
    }
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]));
    outputs.remove(0)
}

#[test]
fn texts_are_written_once_in_their_order_whatever_the_workers() {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let numbers: String = (0..30_000)
        .map(|number| format!("line {}\n", number % 20_000))
        .collect();
    let texts = ["one\ntwo\none\n", &numbers, "", "two\nthree", &numbers];
    let paths: Vec<PathBuf> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| file(&format!("in-{index}"), text))
        .collect();
    let output = same(home.path(), |folder, options| {
        let counts = dedup_text::dedup(b'\n', paths.clone(), folder, options).unwrap();
        assert_eq!(counts, (60_005, 20_003));
    });
    let names: Vec<&str> = output.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[0], "text-00000-of-00004.txt");
    assert_eq!(names.len(), 4);
    let written: Vec<u8> = output.into_iter().flat_map(|(_, text)| text).collect();
    let mut seen = BTreeSet::new();
    let expected: String = texts
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| seen.insert(*line))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(written == expected.into_bytes());

    let whole = home.path().join("whole");
    std::fs::create_dir(&whole).unwrap();
    assert_eq!(
        dedup_text::dedup(0, paths, whole, Options::default()).unwrap(),
        (4, 3),
        "the empty file has no text"
    );

    let missing = vec![home.path().join("missing")];
    let error = dedup_text::dedup(b'\n', missing, home.path().to_owned(), Options::default()).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        cause.starts_with("could not read `") && cause.contains("missing"),
        "{cause}"
    );
}

/// The same program as two processes of a cluster, which here are two threads.
#[test]
fn a_cluster_writes_the_same_and_counts_for_all() {
    let home = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..5)
        .map(|file| {
            let path = home.path().join(format!("in-{file}"));
            let lines = (0..3000).map(|line| format!("line {}\n", line * (file + 1) % 4000));
            std::fs::write(&path, lines.collect::<String>()).unwrap();
            path
        })
        .collect();
    let folders = ["alone", "together"].map(|name| home.path().join(name));
    folders
        .iter()
        .for_each(|folder| std::fs::create_dir(folder).unwrap());
    let alone = dedup_text::dedup(b'\n', paths.clone(), folders[0].clone(), Options::default()).unwrap();
    let hosts: Vec<String> = {
        let free = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        free.iter()
            .map(|listener| listener.local_addr().unwrap().to_string())
            .collect()
    };
    let processes: Vec<_> = (0..2)
        .map(|process| {
            let spec = ClusterSpec::new(hosts.clone(), process, "secret");
            let (paths, folder) = (paths.clone(), folders[1].clone());
            std::thread::spawn(move || {
                let options = Options::default()
                    .workers(2)
                    .cluster(Cluster::connect(spec).unwrap());
                dedup_text::dedup(b'\n', paths, folder, options).unwrap()
            })
        })
        .collect();
    for process in processes {
        assert_eq!(process.join().unwrap(), alone);
    }
    assert_eq!(alone.0, 15_000);
    assert!(files(&folders[0]) == files(&folders[1]));
}

/// A picture whose bytes follow from its number.
fn picture(number: usize, width: u16, height: u16) -> Vec<u8> {
    let pixels: Vec<u8> = (0..usize::from(width) * usize::from(height) * 3)
        .map(|at| ((at / 3 % usize::from(width)) * (number % 7 + 1) + at / 200) as u8)
        .collect();
    let mut jpeg = Vec::new();
    jpeg_encoder::Encoder::new(&mut jpeg, 80)
        .encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    jpeg
}

#[test]
fn pictures_are_resized_in_the_order_of_their_names_whatever_the_workers() {
    let home = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..60)
        .map(|number: u16| {
            let path = home.path().join(format!("{number:03}.jpg"));
            // Every fifth is too low.
            let height = if number % 5 == 2 { 20 } else { 50 };
            std::fs::write(&path, picture(number.into(), 40 + number % 3 * 17, height)).unwrap();
            path
        })
        .collect();
    let output = same(home.path(), |folder, options| {
        let written = resize_images::squares(32, paths.clone(), folder, options);
        assert_eq!(written.unwrap(), 48);
    });
    assert_eq!(output[3].0, "images.array_record-00003-of-00004");
    let mut pictures = Vec::new();
    for (name, _) in &output {
        let reader = prep_formats::array_record::Reader::open(home.path().join("out-1").join(name)).unwrap();
        assert_eq!(reader.num_records(), 12);
        pictures.extend((0..12).map(|index| {
            reader
                .record(index, &mut prep_formats::array_record::Scratch::default())
                .unwrap()
                .to_vec()
        }));
    }
    let mut resizer = fast_image_resize::Resizer::new();
    let expected = paths
        .iter()
        .filter_map(|path| resize_images::resize(&std::fs::read(path).unwrap(), 32, &mut resizer).unwrap());
    assert!(pictures.iter().eq(expected.collect::<Vec<_>>().iter()));
    let mut decoder =
        zune_jpeg::JpegDecoder::new(zune_jpeg::zune_core::bytestream::ZCursor::new(&pictures[0]));
    decoder.decode_headers().unwrap();
    let info = decoder.info().unwrap();
    assert_eq!((info.width, info.height), (32, 32));

    std::fs::write(&paths[31], &picture(31, 60, 60)[..200]).unwrap();
    let folder = home.path().join("out-1");
    let error = resize_images::squares(32, paths, folder, Options::default().workers(2)).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("031.jpg"), "{cause}");
}
