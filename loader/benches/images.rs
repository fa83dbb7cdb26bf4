//! What pictures cost: CPU milliseconds per 1,000, one thread.
//!
//! `cargo bench -p prep-loader --bench images [-- --jpegs FILE]`. JPEGs are made here (500x375, 4:2:0, about 106 KB; and 2000x1500), or come from
//! FILE: each after its length, 4 bytes, little-endian. CPU is that of the thread; the least of the rounds.
//! What is fused is checked against its parts before it is timed.

use std::hint::black_box;
use std::io::Write;

use prep_formats::jpeg::{self, Region, View};
use prep_formats::png;
use prep_loader::element::{Array, Element};
use prep_loader::transform::{Generator, Transform};
use prep_loader::transforms::{ColorJitter, DecodeImage, DecodeRandomResizedCrop, Flip, Normalize};

mod common;

use common::{jpeg as encoded, picture};

/// Seconds of CPU that this thread has used.
fn cpu() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The files of a dump.
fn dumped(path: &str) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let (mut files, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (file, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        files.push(file.to_vec());
        rest = after;
    }
    files
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --benches` only wants to see it run.
    let rounds = if arguments.iter().any(|argument| argument == "--bench") {
        7
    } else {
        1
    };
    let count = if rounds == 1 { 3 } else { 60 };
    let dump = arguments
        .windows(2)
        .find(|pair| pair[0] == "--jpegs")
        .map(|pair| dumped(&pair[1]));
    let mut out = std::io::stdout().lock();
    let mut time = |name: &str, files: &[Vec<u8>], work: &mut dyn FnMut(&[u8], u64)| {
        let mut best = f64::MAX;
        for round in 0..rounds {
            let start = cpu();
            for (at, file) in files.iter().enumerate() {
                work(file, round * files.len() as u64 + at as u64);
            }
            best = best.min(cpu() - start);
        }
        writeln!(
            out,
            "{:8.1} ms per 1,000  {name}",
            best / files.len() as f64 * 1e6
        )
        .unwrap();
    };
    let small = dump.unwrap_or_else(|| (0..count).map(|seed| encoded(500, 375, 44.0, 93, seed)).collect());
    let large: Vec<Vec<u8>> = (0..count.div_ceil(8))
        .map(|seed| encoded(2000, 1500, 16.0, 90, seed))
        .collect();
    for (kind, files) in [("106 KB", &small), ("2000x1500", &large)] {
        let bytes: usize = files.iter().map(Vec::len).sum();
        let kind = format!("{kind} JPEG ({} KB)", bytes / files.len() / 1000);
        let mut decoder = jpeg::Decoder::new();
        let mut pixels = Vec::new();
        time(&format!("{kind}: whole"), files, &mut |file, _| {
            pixels.clear();
            black_box(
                decoder
                    .decode_append(file, &View::whole().with_channels(3), &mut pixels)
                    .unwrap(),
            );
        });
        let mut fused = DecodeRandomResizedCrop::to("image", [224, 224]);
        time(
            &format!("{kind}: the crop alone"),
            files,
            &mut |file, position| {
                let info = jpeg::Info::read(file).unwrap();
                let mut numbers = Generator::new(1, "crop", position);
                // The sizes of a random resized crop, by its expected share.
                let share = numbers.uniform(0.08, 1.0).sqrt();
                let [width, height] =
                    [info.width, info.height].map(|side| ((f64::from(side) * share) as u32).max(1));
                let x = numbers.below(u64::from(info.width - width) + 1) as u32;
                let y = numbers.below(u64::from(info.height - height) + 1) as u32;
                pixels.clear();
                let view = View::of(Region { x, y, width, height }).with_channels(3);
                black_box(decoder.decode_append(file, &view, &mut pixels).unwrap());
            },
        );
        let element = |file: &[u8]| {
            let mut element = Element::new();
            element.set("image", Array::string(file.to_vec()));
            element
        };
        check(&fused, &element(&files[0]));
        for (antialias, dct_scaling) in [(false, false), (true, false), (false, true), (true, true)] {
            fused.crop.antialias = antialias;
            fused.dct_scaling = dct_scaling;
            let name = format!(
                "{kind}: crop, resize to 224, flip; antialias={antialias}, dct_scaling={dct_scaling}"
            );
            time(&name, files, &mut |file, position| {
                black_box(
                    fused
                        .apply(element(file), &mut Generator::new(1, "fused", position))
                        .unwrap(),
                );
            });
        }
    }
    let files: Vec<Vec<u8>> = (0..count as u64 * 20)
        .map(|seed| {
            let mut file = Vec::new();
            let info = png::Info {
                width: 32,
                height: 32,
                channels: 3,
                bits: 8,
            };
            png::Encoder::new()
                .encode(&info, &picture(32, 32, 9.0, seed), &mut file)
                .unwrap();
            file
        })
        .collect();
    let one = |file: &[u8]| {
        let mut element = Element::new();
        element.set("image", Array::string(file.to_vec()));
        element
    };
    let decode = DecodeImage::rgb("image");
    let bytes: usize = files.iter().map(Vec::len).sum();
    time(
        &format!("32x32x3 PNG ({} B): decode", bytes / files.len()),
        &files,
        &mut |file, _| {
            black_box(
                decode
                    .apply(one(file), &mut Generator::new(1, "decode", 0))
                    .unwrap(),
            );
        },
    );
    let element = DecodeRandomResizedCrop::to("image", [224, 224])
        .apply(one(&small[0]), &mut Generator::new(1, "fused", 0))
        .unwrap();
    let jitter = ColorJitter {
        feature: "image".into(),
        brightness: 0.4,
        contrast: 0.4,
        saturation: 0.4,
        hue: 0.1,
    };
    let others: [(&str, &dyn Transform); 3] = [
        ("normalise", &Normalize::imagenet("image")),
        ("flip", &Flip::random("image")),
        ("colour jitter", &jitter),
    ];
    for (name, transform) in others {
        time(&format!("224x224x3: {name}"), &small, &mut |_, position| {
            black_box(
                transform
                    .apply(element.clone(), &mut Generator::new(1, name, position))
                    .unwrap(),
            );
        });
    }
}

/// The fused transform and its parts have to agree.
fn check(fused: &DecodeRandomResizedCrop, encoded: &Element) {
    let mut numbers = Generator::new(1, "check", 0);
    let parts: [&dyn Transform; 3] = [&DecodeImage::rgb("image"), &fused.crop, &Flip::random("image")];
    let wanted = parts.iter().fold(encoded.clone(), |element, part| {
        part.apply(element, &mut numbers).unwrap()
    });
    let made = fused
        .apply(encoded.clone(), &mut Generator::new(1, "check", 0))
        .unwrap();
    assert!(
        made == wanted,
        "the fused transform gives other pixels than its parts"
    );
}
