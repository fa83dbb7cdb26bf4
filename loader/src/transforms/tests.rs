//! Against Pillow and OpenCV, against each other, and against what does not fit.

use std::path::{Path, PathBuf};

use prep_formats::png;
use prep_formats::value::DType;
use proptest::prelude::*;

use super::colour::{Change, hue_shift};
use super::*;
use crate::element::{Array, Element, ElementSpec};
use crate::error::Error;
use crate::stages::caught;
use crate::transform::{Generator, Transform};
use crate::{MapDataset, Source};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/images")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

/// The pixels of a PNG file: `uint8[height, width, 3]`.
fn picture(name: &str) -> Array {
    let mut pixels = Vec::new();
    let info = png::Decoder::new()
        .decode_append(&file(name), Some(3), 8, &mut pixels)
        .unwrap();
    Array::new(
        DType::UInt8,
        [info.height as usize, info.width as usize, 3],
        pixels,
    )
    .unwrap()
}

/// The golden pictures whose names begin with `prefix`: the parts of the name after it, and the pixels.
fn golden(prefix: &str) -> Vec<(Vec<String>, Array)> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    let parts = |name: &str| {
        name[prefix.len()..name.len() - 4]
            .splitn(3, '-')
            .map(str::to_string)
            .collect()
    };
    names.iter().map(|name| (parts(name), picture(name))).collect()
}

fn element(array: Array) -> Element {
    let mut element = Element::new();
    element.set("image", array);
    element
}

fn generator(position: u64) -> Generator {
    Generator::new(1, "test", position)
}

/// What a transform makes of a picture; its spec has to say the same.
fn run(transform: &dyn Transform, array: &Array) -> Result<Array, Error> {
    let mut spec = ElementSpec::new();
    let shape: Vec<_> = array.shape().iter().map(|&size| Some(size as u64)).collect();
    spec.set("image", array.dtype(), shape);
    let spec = transform.spec(&spec);
    let made = transform.apply(element(array.clone()), &mut generator(0));
    if let (Ok(spec), Ok(made)) = (spec, &made) {
        let (said, made) = (spec.get("image").unwrap(), made.array("image").unwrap());
        assert_eq!(said.dtype, made.dtype(), "{}", transform.name());
        let fits = said
            .shape
            .iter()
            .zip(made.shape())
            .all(|(said, &made)| said.is_none_or(|said| said == made as u64));
        assert!(
            fits && said.shape.len() == made.shape().len(),
            "{}: {spec} {:?}",
            transform.name(),
            made.shape()
        );
    }
    Ok(made?.array("image")?.clone())
}

fn bytes(array: &Array) -> &[u8] {
    array.bytes().unwrap()
}

fn largest_difference(a: &Array, b: &Array) -> u8 {
    assert_eq!(a.shape(), b.shape());
    bytes(a)
        .iter()
        .zip(bytes(b))
        .map(|(a, b)| a.abs_diff(*b))
        .max()
        .unwrap()
}

/// Every method and size, both libraries.
#[test]
fn resizing_is_that_of_pillow_and_opencv() {
    let source = picture("picture.png");
    let all = golden("resize-");
    assert_eq!(all.len(), 4 * 6 - 1);
    for (name, wanted) in all {
        let (method, antialias, tolerance) = match (&*name[0], &*name[1]) {
            ("pillow", "nearest") => (Method::Nearest, true, 0),
            ("pillow", "bilinear") => (Method::Bilinear, true, 1),
            ("pillow", "bicubic") => (Method::Bicubic, true, 1),
            ("opencv", "linear") => (Method::Bilinear, false, 1),
            ("opencv", "cubic") => (Method::Bicubic, false, 1),
            ("opencv", "area") => (Method::Area, true, 1),
            _ => panic!("{name:?}"),
        };
        let size = [wanted.shape()[0], wanted.shape()[1]];
        let resize = Resize {
            feature: "image".into(),
            size,
            method,
            antialias,
        };
        let made = run(&resize, &source).unwrap();
        let difference = largest_difference(&made, &wanted);
        assert!(difference <= tolerance, "{name:?}: {difference}");
        // The same in floats, which are not rounded, and in 16 bits.
        let cast = |dtype| {
            run(
                &Cast {
                    feature: "image".into(),
                    dtype,
                },
                &source,
            )
            .unwrap()
        };
        let floats = run(&resize, &cast(DType::Float32))
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        for (&float, &byte) in floats.iter().zip(bytes(&made)) {
            // What overshoots is cut between columns and rows of bytes only, as Pillow does it.
            let is_near = (float.clamp(0.0, 255.0) - f32::from(byte)).abs() <= 1.0;
            assert!(is_near || name[..2] == ["pillow", "bicubic"], "{name:?}");
        }
        let wide = run(&resize, &cast(DType::UInt16))
            .unwrap()
            .to_vec::<u16>()
            .unwrap();
        assert!(
            wide.iter()
                .zip(&floats)
                .all(|(&wide, &float)| (f32::from(wide) - float.max(0.0)).abs() <= 0.5),
            "{name:?}"
        );
    }
}

/// Colours change as Pillow changes them.
#[test]
fn colours_are_those_of_pillow() {
    let source = picture("picture.png");
    let all = golden("colour-");
    assert_eq!(all.len(), 9);
    for (name, wanted) in all {
        let factor: f64 = name[1..].join("-").parse().unwrap();
        let change = match &*name[0] {
            "brightness" => Change::Brightness(factor as f32),
            "contrast" => Change::Contrast(factor as f32),
            "saturation" => Change::Saturation(factor as f32),
            _ => Change::Hue(hue_shift(factor)),
        };
        let mut pixels = bytes(&source).to_vec();
        change.apply(pixels.as_chunks_mut::<3>().0);
        assert!(pixels == bytes(&wanted), "{name:?}");
    }
}

/// The pixels of the fused transform are those of its three parts with the same random numbers; what it does not decode plays no part.
#[test]
fn decoding_a_crop_is_decoding_and_cropping() {
    for name in [
        "420.jpg",
        "444_fine.jpg",
        "422_progressive_restarts.jpg",
        "grey.jpg",
        "cmyk.jpg",
        "picture.png",
    ] {
        for position in 0..40 {
            for antialias in [false, true] {
                let mut fused = DecodeRandomResizedCrop::to("image", [20, 24]);
                fused.crop.antialias = antialias;
                let encoded = element(Array::string(file(name)));
                let made = fused.apply(encoded.clone(), &mut generator(position)).unwrap();
                let mut generator = generator(position);
                let parts: [&dyn Transform; 3] =
                    [&DecodeImage::rgb("image"), &fused.crop, &Flip::random("image")];
                let mut wanted = encoded;
                for part in parts {
                    wanted = part.apply(wanted, &mut generator).unwrap();
                }
                assert!(made == wanted, "{name} at {position}");
            }
        }
    }
}

/// Decoding at a smaller scale changes pixels a little, and the place not at all.
#[test]
fn scaled_decoding_is_nearly_the_same() {
    let mut plain = DecodeRandomResizedCrop::to("image", [6, 6]);
    plain.crop.scale = [0.3, 1.0];
    let mut scaled = plain.clone();
    scaled.dct_scaling = true;
    let (mut sum, mut count) = (0u64, 0u64);
    for position in 0..50 {
        let encoded = element(Array::string(file("444.jpg")));
        let [a, b] = [&plain, &scaled].map(|transform| {
            transform
                .apply(encoded.clone(), &mut generator(position))
                .unwrap()
        });
        let [a, b] = [&a, &b].map(|element| element.array("image").unwrap());
        for (a, b) in bytes(a).iter().zip(bytes(b)) {
            sum += u64::from(a.abs_diff(*b));
            count += 1;
        }
    }
    // A shift by half a pixel would give more than 12.
    assert!(
        sum > 0 && sum < 5 * count,
        "mean difference {}",
        sum as f64 / count as f64
    );
}

/// The part lies inside and is as torchvision would take it; ten tries in vain give the middle.
#[test]
fn random_parts_are_inside() {
    let crop = RandomResizedCrop::to("image", [8, 8]);
    let mut areas = 0.0;
    for position in 0..3000 {
        let part = crop.draw(300, 400, &mut generator(position));
        assert!(
            part.height > 0 && part.y + part.height <= 300 && part.width > 0 && part.x + part.width <= 400
        );
        let ratio = part.width as f64 / part.height as f64;
        assert!((0.73..1.37).contains(&ratio), "{part:?}");
        areas += (part.width * part.height) as f64 / 120_000.0;
    }
    // 0.431 by torchvision's own rule, as most of the large parts do not fit and are drawn again.
    assert!((0.41..0.45).contains(&(areas / 3000.0)), "{}", areas / 3000.0);
    let mut impossible = crop;
    impossible.scale = [1.0, 1.0];
    let part = impossible.draw(100, 1000, &mut generator(0));
    assert_eq!((part.y, part.x, part.height, part.width), (0, 433, 100, 133));
    let part = impossible.draw(1000, 100, &mut generator(0));
    assert_eq!((part.y, part.x, part.height, part.width), (433, 0, 133, 100));
}

/// All transforms of pictures, for pictures of 12 by 10 pixels at least.
fn all(seed: usize) -> Vec<Box<dyn Transform>> {
    let feature = || "image".to_string();
    let size = [1 + seed % 10, 1 + seed % 7];
    vec![
        Box::new(Resize::to("image", size)),
        Box::new(RandomResizedCrop::to("image", size)),
        Box::new(RandomCrop {
            feature: feature(),
            size,
        }),
        Box::new(CenterCrop {
            feature: feature(),
            size,
        }),
        Box::new(Crop {
            feature: feature(),
            top: 1,
            left: 0,
            size,
        }),
        Box::new(Pad {
            feature: feature(),
            border: [1, 2, 3, seed % 4],
            value: 7.0,
        }),
        Box::new(Flip::random("image")),
        Box::new(Flip {
            feature: feature(),
            direction: Direction::Vertical,
            probability: 0.5,
        }),
        Box::new(ColorJitter {
            feature: feature(),
            brightness: 0.4,
            contrast: 0.3,
            saturation: 0.2,
            hue: 0.1,
        }),
        Box::new(Normalize::imagenet("image")),
        Box::new(Cast {
            feature: feature(),
            dtype: DType::Int32,
        }),
        Box::new(PadOrTruncate {
            feature: feature(),
            shape: vec![5, 30, 2],
            value: 9.0,
        }),
    ]
}

fn noise(height: usize, width: usize, seed: u64) -> Array {
    let mut numbers = Generator::new(seed, "noise", 0);
    let data: Vec<u8> = (0..height * width * 3)
        .map(|_| numbers.next_u64() as u8)
        .collect();
    Array::new(DType::UInt8, [height, width, 3], data).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// The same generator gives the same element, the spec says what comes, and random ones differ between samples.
    #[test]
    fn results_are_a_function_of_the_generator(height in 12usize..40, width in 10usize..40, seed in 0usize..1000) {
        let source = noise(height, width, seed as u64);
        for transform in all(seed) {
            let first = run(&*transform, &source).unwrap();
            prop_assert!(first == run(&*transform, &source).unwrap(), "{}", transform.name());
            if transform.is_random() {
                let differs = (1..40).any(|position| {
                    let other = transform.apply(element(source.clone()), &mut generator(position)).unwrap();
                    other.array("image").unwrap() != &first
                });
                prop_assert!(differs, "{}", transform.name());
            }
        }
    }

    /// Transforms that change nothing change nothing, and those that undo each other leave nothing.
    #[test]
    fn what_should_change_nothing_does_not(height in 1usize..30, width in 1usize..30, seed in any::<u64>()) {
        let source = noise(height, width, seed);
        let feature = || "image".to_string();
        for method in [Method::Nearest, Method::Bilinear, Method::Bicubic, Method::Area] {
            let resize = |size| Resize { feature: feature(), size, method, antialias: seed % 2 == 0 };
            let same = run(&resize([height, width]), &source).unwrap();
            prop_assert!(same == source);
            // A plain surface stays plain.
            let plain = Array::new(DType::UInt8, [height, width, 3], vec![201; height * width * 3]).unwrap();
            let resized = run(&resize([7, 40]), &plain).unwrap();
            prop_assert!(bytes(&resized).iter().all(|&value| value == 201));
        }
        for direction in [Direction::Horizontal, Direction::Vertical] {
            let flip = Flip { feature: feature(), direction, probability: 1.0 };
            let twice = run(&flip, &run(&flip, &source).unwrap()).unwrap();
            prop_assert!(twice == source);
        }
        let pad = Pad { feature: feature(), border: [1, 2, 3, 4], value: 0.0 };
        let crop = Crop { feature: feature(), top: 1, left: 4, size: [height, width] };
        prop_assert!(run(&crop, &run(&pad, &source).unwrap()).unwrap() == source);
        let still = ColorJitter { feature: feature(), brightness: 0.0, contrast: 0.0, saturation: 0.0, hue: 0.0 };
        prop_assert!(run(&still, &source).unwrap() == source);
        for dtype in [DType::Int16, DType::UInt64, DType::Float32, DType::Float64] {
            let there = run(&Cast { feature: feature(), dtype }, &source).unwrap();
            let back = run(&Cast { feature: feature(), dtype: DType::UInt8 }, &there).unwrap();
            prop_assert!(back == source);
        }
    }
}

/// Flipping is mirroring, pixel by pixel, whatever a pixel's size.
#[test]
fn flips_mirror() {
    for (dtype, channels) in [
        (DType::UInt8, 1),
        (DType::UInt8, 3),
        (DType::UInt16, 3),
        (DType::Float32, 2),
    ] {
        let pixel = channels * dtype.num_bytes();
        let data: Vec<u8> = (0..3 * 5 * pixel).map(|byte| byte as u8).collect();
        let source = Array::new(dtype, [3, 5, channels], data.clone()).unwrap();
        let flip = |direction| Flip {
            feature: "image".into(),
            direction,
            probability: 1.0,
        };
        let across = run(&flip(Direction::Horizontal), &source).unwrap();
        let down = run(&flip(Direction::Vertical), &source).unwrap();
        let at = |y: usize, x: usize| &data[(y * 5 + x) * pixel..][..pixel];
        for (y, x) in (0..3).flat_map(|y| (0..5).map(move |x| (y, x))) {
            assert_eq!(&bytes(&across)[(y * 5 + x) * pixel..][..pixel], at(y, 4 - x));
            assert_eq!(&bytes(&down)[(y * 5 + x) * pixel..][..pixel], at(2 - y, x));
        }
    }
}

/// torchvision's arithmetic and both layouts.
#[test]
fn normalised_values_are_those_of_the_formula() {
    let source = noise(4, 5, 3);
    let mut normalize = Normalize::imagenet("image");
    let last = run(&normalize, &source).unwrap().to_vec::<f32>().unwrap();
    normalize.layout = Layout::ChannelsFirst;
    let made = run(&normalize, &source).unwrap();
    assert_eq!(made.shape(), [3, 4, 5]);
    let first = made.to_vec::<f32>().unwrap();
    let floats = run(
        &normalize,
        &run(
            &Cast {
                feature: "image".into(),
                dtype: DType::Float32,
            },
            &source,
        )
        .unwrap(),
    )
    .unwrap();
    let wide = run(
        &normalize,
        &run(
            &Cast {
                feature: "image".into(),
                dtype: DType::UInt16,
            },
            &source,
        )
        .unwrap(),
    )
    .unwrap();
    assert!(made == floats && made == wide);
    for (place, &sample) in bytes(&source).iter().enumerate() {
        let channel = place % 3;
        let wanted = (f32::from(sample) / 255.0 - normalize.mean[channel]) / normalize.std[channel];
        assert_eq!(last[place], wanted);
        assert_eq!(first[channel * 20 + place / 3], wanted);
    }
}

/// Labels, shapes and names.
#[test]
fn arrays_take_their_form() {
    let one_hot = |dtype| OneHot {
        feature: "image".into(),
        depth: 4,
        dtype,
    };
    let made = run(&one_hot(DType::Float32), &Array::of(&[2i64, 0]).unwrap()).unwrap();
    assert_eq!(
        (made.shape(), made.to_vec::<f32>().unwrap()),
        (&[2, 4][..], vec![0., 0., 1., 0., 1., 0., 0., 0.])
    );
    assert_eq!(
        run(&one_hot(DType::UInt8), &Array::scalar(3u16)).unwrap().shape(),
        [4]
    );
    for label in [-1i64, 4] {
        let error = run(&one_hot(DType::UInt8), &Array::scalar(label))
            .unwrap_err()
            .to_string();
        assert_eq!(error, format!("`image` has the label {label}, wanted 0 to 3"));
    }
    let fit = |shape: &[usize]| PadOrTruncate {
        feature: "image".into(),
        shape: shape.to_vec(),
        value: -1.0,
    };
    let source = Array::of(&[1i32, 2, 3, 4, 5, 6]).unwrap();
    let numbers = |array: Array| array.to_vec::<i32>().unwrap();
    assert_eq!(numbers(run(&fit(&[4]), &source).unwrap()), [1, 2, 3, 4]);
    assert_eq!(
        numbers(run(&fit(&[8]), &source).unwrap()),
        [1, 2, 3, 4, 5, 6, -1, -1]
    );
    let square = source.clone().reshape([2, 3]).unwrap();
    assert_eq!(
        numbers(run(&fit(&[3, 2]), &square).unwrap()),
        [1, 2, 4, 5, -1, -1]
    );
    assert_eq!(numbers(run(&fit(&[1, 4]), &square).unwrap()), [1, 2, 3, -1]);
    assert_eq!(
        numbers(run(&fit(&[2]), &Array::of::<i32>(&[]).unwrap()).unwrap()),
        [-1, -1]
    );
    assert!(run(&fit(&[2]), &square).is_err());

    let mut element = Element::new();
    for (name, value) in [("a", 1i64), ("b", 2), ("c", 3)] {
        element.set(name, Array::scalar(value));
    }
    let names = |transform: &dyn Transform| {
        let made = transform.apply(element.clone(), &mut generator(0));
        made.map(|made| {
            made.iter()
                .map(|(name, value)| format!("{name}{}", value.as_array().unwrap().item::<i64>().unwrap()))
                .collect::<String>()
        })
    };
    let list = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    let pairs = |names: &[(&str, &str)]| {
        names
            .iter()
            .map(|(from, to)| (from.to_string(), to.to_string()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(&Select {
            features: list(&["c", "a"])
        })
        .unwrap(),
        "c3a1"
    );
    assert_eq!(
        names(&Drop {
            features: list(&["b"])
        })
        .unwrap(),
        "a1c3"
    );
    assert_eq!(
        names(&Rename {
            names: pairs(&[("a", "b"), ("b", "a")])
        })
        .unwrap(),
        "c3b1a2"
    );
    assert!(
        names(&Rename {
            names: pairs(&[("a", "c")])
        })
        .unwrap_err()
        .to_string()
        .contains("there is one of that name")
    );
    for wrong in [
        &Select {
            features: list(&["x"]),
        } as &dyn Transform,
        &Drop {
            features: list(&["x"]),
        },
    ] {
        assert!(
            names(wrong)
                .unwrap_err()
                .to_string()
                .contains("there is no value `x`; the element has `a`, `b`, `c`")
        );
    }
}

/// What a type cannot hold is an error that names the number.
#[test]
fn casts_do_not_wrap() {
    let cast = |dtype| Cast {
        feature: "image".into(),
        dtype,
    };
    for (dtype, value) in [
        (DType::UInt8, 256.0),
        (DType::UInt8, -1.0),
        (DType::Int64, 1e19),
        (DType::Int32, f64::NAN),
    ] {
        let error = run(&cast(dtype), &Array::scalar(value)).unwrap_err().to_string();
        assert!(
            error.contains(&value.to_string()) && error.contains(dtype.name()),
            "{error}"
        );
    }
    assert_eq!(
        run(&cast(DType::UInt8), &Array::scalar(-0.9f64))
            .unwrap()
            .item::<u8>(),
        Some(0)
    );
    for (value, wanted) in [(1.5f64, 1i8), (-1.5, -1), (127.9, 127), (-128.9, -128)] {
        let made = run(&cast(DType::Int8), &Array::scalar(value)).unwrap();
        assert_eq!(made.item::<i8>(), Some(wanted), "{value}");
    }
    assert_eq!(
        run(&cast(DType::Bool), &Array::scalar(0.5f64))
            .unwrap()
            .item::<bool>(),
        Some(true)
    );
    assert_eq!(
        run(&cast(DType::UInt64), &Array::scalar(u64::MAX))
            .unwrap()
            .item::<u64>(),
        Some(u64::MAX)
    );
    assert!(run(&cast(DType::UInt8), &Array::string("1")).is_err());
}

/// Inputs that do not fit are errors that name the value, from the spec on where it can be known.
#[test]
fn what_does_not_fit_is_named() {
    let source = noise(4, 4, 0);
    let large = |transform: &dyn Transform, wanted: &str| {
        let mut spec = ElementSpec::new();
        spec.set("image", DType::UInt8, [Some(4), Some(4), Some(3)]);
        let error = transform.spec(&spec).unwrap_err().to_string();
        assert!(error.contains("`image`") && error.contains(wanted), "{error}");
        assert!(
            transform
                .apply(element(source.clone()), &mut generator(0))
                .is_err()
        );
    };
    large(
        &RandomCrop {
            feature: "image".into(),
            size: [5, 4],
        },
        "too small",
    );
    large(
        &CenterCrop {
            feature: "image".into(),
            size: [4, 5],
        },
        "too small",
    );
    large(
        &Crop {
            feature: "image".into(),
            top: 1,
            left: 0,
            size: [4, 1],
        },
        "too small",
    );
    large(
        &Pad {
            feature: "image".into(),
            border: [0; 4],
            value: 256.0,
        },
        "cannot hold",
    );
    large(&DecodeImage::rgb("image"), "wanted one byte string");
    large(
        &DecodeRandomResizedCrop::to("image", [2, 2]),
        "wanted one byte string",
    );
    let flat = Array::of(&[1u8, 2]).unwrap();
    for transform in all(0) {
        if !matches!(&*transform.name(), "cast") {
            assert!(run(&*transform, &flat).is_err(), "{}", transform.name());
        }
        assert!(transform.apply(Element::new(), &mut generator(0)).is_err());
    }
    let decode = |bytes: &[u8]| {
        DecodeImage::rgb("image")
            .apply(element(Array::string(bytes.to_vec())), &mut generator(0))
            .unwrap_err()
            .to_string()
    };
    assert!(decode(b"GIF89a").contains("neither a JPEG nor a PNG file: it begins with `GIF89a`"));
    assert!(decode(b"").contains("is empty"));
    assert!(decode(&file("420.jpg")[..500]).contains("could not decode `image`"));
    let empty = Array::new(DType::UInt8, [0, 4, 3], vec![]).unwrap();
    assert!(
        run(&Resize::to("image", [2, 2]), &empty)
            .unwrap_err()
            .to_string()
            .contains("without pixels")
    );
}

/// 16-bit PNG files keep their bits.
#[test]
fn deep_pictures_are_decoded() {
    let samples: Vec<u16> = (0..6).map(|at| at * 10_000).collect();
    let little: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    let info = png::Info {
        width: 3,
        height: 2,
        channels: 1,
        bits: 16,
    };
    let mut encoded = Vec::new();
    png::Encoder::new().encode(&info, &little, &mut encoded).unwrap();
    let decode = DecodeImage {
        feature: "image".into(),
        channels: None,
        dtype: DType::UInt16,
    };
    let made = decode
        .apply(element(Array::string(encoded)), &mut generator(0))
        .unwrap();
    let made = made.array("image").unwrap();
    assert_eq!(
        (made.shape(), made.to_vec::<u16>().unwrap()),
        (&[2, 3, 1][..], samples)
    );
    let jpeg = decode.apply(element(Array::string(file("420.jpg"))), &mut generator(0));
    assert!(jpeg.unwrap_err().to_string().contains("holds uint8"));
}

/// Parameters that fit no input are refused when the pipeline is made, also where nothing is known of its elements; and they never panic.
#[test]
fn wrong_parameters_are_refused_where_the_pipeline_is_made() {
    let feature = || "image".to_string();
    let crop = |scale, ratio| RandomResizedCrop {
        scale,
        ratio,
        ..RandomResizedCrop::to("image", [2, 2])
    };
    let flip = |probability| Flip {
        probability,
        ..Flip::random("image")
    };
    let jitter = |brightness, hue| ColorJitter {
        feature: feature(),
        brightness,
        contrast: 0.0,
        saturation: 0.0,
        hue,
    };
    let one_hot = |depth, dtype| OneHot {
        feature: feature(),
        depth,
        dtype,
    };
    let cast = |dtype| Cast {
        feature: feature(),
        dtype,
    };
    let normalize = |std: f32| Normalize {
        std: vec![std],
        ..Normalize::imagenet("image")
    };
    let (good, size) = ([0.5, 1.0], "1 to 1048576");
    let wrong: Vec<(Box<dyn Transform>, &str)> = vec![
        (Box::new(Resize::to("image", [0, 3])), size),
        (Box::new(Resize::to("image", [usize::MAX, 3])), size),
        (Box::new(RandomResizedCrop::to("image", [0, 0])), size),
        (Box::new(DecodeRandomResizedCrop::to("image", [0, 3])), size),
        (Box::new(crop([1.0, 0.5], good)), "lower one first"),
        (Box::new(crop([-0.5, 1.0], good)), "above 0"),
        (Box::new(crop([f64::NAN, 1.0], good)), "above 0"),
        (Box::new(crop(good, [2.0, 1.0])), "lower one first"),
        (Box::new(crop(good, [1.0, f64::NAN])), "above 0"),
        (Box::new(flip(1.5)), "a probability of 1.5: wanted 0 to 1"),
        (Box::new(flip(-0.5)), "wanted 0 to 1"),
        (Box::new(flip(f64::NAN)), "wanted 0 to 1"),
        (Box::new(jitter(-1.0, 0.0)), "0 to 1000"),
        (Box::new(jitter(f64::NAN, 0.0)), "0 to 1000"),
        (Box::new(jitter(0.0, 0.9)), "a hue of 0 to 0.5"),
        (Box::new(normalize(0.0)), "deviations of [0.0]"),
        (
            Box::new(one_hot(0, DType::UInt8)),
            "a depth of 0: wanted 1 to 2147483647",
        ),
        (Box::new(one_hot(1 << 33, DType::UInt8)), "wanted 1 to 2147483647"),
        (
            Box::new(one_hot(3, DType::Float16)),
            "`image` cannot become float16",
        ),
        (
            Box::new(cast(DType::Float16)),
            "`image` cannot become float16, which is not supported",
        ),
        (
            Box::new(CenterCrop {
                feature: feature(),
                size: [0, 1],
            }),
            "1 or more",
        ),
        (
            Box::new(Pad {
                feature: feature(),
                border: [usize::MAX, 0, 0, 0],
                value: 0.0,
            }),
            "at most 1048576",
        ),
        (
            Box::new(PadOrTruncate {
                feature: feature(),
                shape: vec![usize::MAX, 2],
                value: 0.0,
            }),
            "larger than any memory",
        ),
    ];
    let anything = || MapDataset::custom(Anything).unwrap();
    for (transform, wanted) in wrong {
        let name = transform.name();
        for made in [noise(4, 4, 0), Array::of(&[1i64]).unwrap()] {
            let _ = caught(|| transform.apply(element(made), &mut generator(0))).map_err(|error| {
                assert!(!error.to_string().contains("panicked"), "{name}: {error}");
            });
        }
        let error = anything().map_shared(transform.into(), Some(1)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Options(_)), "{name}: {text}");
        assert!(
            text.contains(&format!("`{name}`")) && text.contains(wanted),
            "{text}"
        );
    }
}

/// Elements of which nothing is known.
struct Anything;

impl Source for Anything {
    fn len(&self) -> u64 {
        1
    }

    fn spec(&self) -> ElementSpec {
        ElementSpec::unknown()
    }

    fn identity(&self) -> String {
        "anything".into()
    }

    fn get(&self, _: u64) -> Result<Element, Error> {
        Ok(Element::new())
    }
}

/// Results larger than the address space of a process are errors.
#[test]
fn results_that_no_memory_holds_are_errors() {
    let most = [1 << 20, 1 << 20];
    let resize = |method| Resize {
        method,
        ..Resize::to("image", most)
    };
    let pad = Pad {
        feature: "image".into(),
        border: [1 << 20; 4],
        value: 0.0,
    };
    // Resizing plans rows and columns before it knows; bytes are the kind that does not.
    let bytes = Array::new(DType::UInt8, [1, 1, 1 << 12], vec![0; 1 << 12]).unwrap();
    let labels = Array::new(DType::UInt8, [1 << 17], vec![0; 1 << 17]).unwrap();
    let one_hot = OneHot {
        feature: "image".into(),
        depth: i32::MAX as usize,
        dtype: DType::Float64,
    };
    let fixed = PadOrTruncate {
        feature: "image".into(),
        shape: vec![1 << 25, 1 << 25],
        value: 0.0,
    };
    let row = bytes.clone().reshape([1, 1 << 12]).unwrap();
    let cases: [(&dyn Transform, &Array); 5] = [
        (&resize(Method::Bilinear), &bytes),
        (&resize(Method::Nearest), &bytes),
        (&pad, &bytes),
        (&one_hot, &labels),
        (&fixed, &row),
    ];
    for (transform, array) in cases {
        let error = run(transform, array).unwrap_err().to_string();
        assert!(error.contains("there is no memory for"), "{error}");
    }
}

/// Shapes are printed without Rust's words.
#[test]
fn shapes_that_vary_are_printed_with_question_marks() {
    let mut spec = ElementSpec::new();
    spec.set("image", DType::UInt8, [None, Some(32), Some(32), Some(3)]);
    let error = Resize::to("image", [2, 2]).spec(&spec).unwrap_err().to_string();
    assert!(
        error.starts_with("`image` is uint8 [?, 32, 32, 3], wanted a picture"),
        "{error}"
    );
    let error = DecodeImage::rgb("image").spec(&spec).unwrap_err().to_string();
    assert!(
        error.starts_with("`image` is uint8 [?, 32, 32, 3], wanted one byte string"),
        "{error}"
    );
    spec.set("image", DType::UInt8, [None, Some(3), Some(3)]);
    let wide = CenterCrop {
        feature: "image".into(),
        size: [4, 4],
    };
    let error = wide.spec(&spec).unwrap_err().to_string();
    assert!(
        error.contains("a picture of [?, 3] (height, width), too small"),
        "{error}"
    );
}
