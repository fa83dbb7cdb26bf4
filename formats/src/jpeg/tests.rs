//! Against what Pillow decodes, against itself, and against damage.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::{Decoder, Info, Region, Scale, View};
use crate::Error;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/images")
}

fn golden() -> serde_json::Map<String, serde_json::Value> {
    let text = std::fs::read_to_string(folder().join("golden.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    all["jpeg"].as_object().unwrap().clone()
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(format!("{name}.jpg"))).unwrap()
}

fn decode(file: &[u8], view: &View) -> Result<([usize; 3], Vec<u8>), Error> {
    let mut pixels = Vec::new();
    let shape = Decoder::new().decode_append(file, view, &mut pixels)?;
    Ok((shape, pixels))
}

/// Every kind of file at every scale has the pixels that Pillow has, to the bit.
#[test]
fn pixels_are_those_of_pillow() {
    let mut compared = 0;
    // One decoder for all: tables and buffers of one file must not show in the next.
    let mut decoder = Decoder::new();
    for (name, by_divisor) in golden() {
        for scale in Scale::ALL {
            let Some(wanted) = by_divisor.get(scale.divisor().to_string()) else {
                continue;
            };
            let mut pixels = Vec::new();
            let view = View::whole().with_scale(scale);
            let [height, width, channels] = decoder.decode_append(&file(&name), &view, &mut pixels).unwrap();
            let shape = if channels == 1 {
                serde_json::json!([height, width])
            } else {
                serde_json::json!([height, width, channels])
            };
            assert_eq!(shape, wanted["shape"], "{name} at {scale:?}");
            let digest = hex::encode(Sha256::digest(&pixels));
            assert_eq!(digest, wanted["sha256"].as_str().unwrap(), "{name} at {scale:?}");
            compared += 1;
        }
    }
    assert_eq!(compared, 17 * 4 + 3);
}

/// The pixels of a rectangle in decoded rows of `width` pixels.
fn cut([_, width, channels]: [usize; 3], pixels: &[u8], region: &Region) -> Vec<u8> {
    let [x, y, w, h] = [region.x, region.y, region.width, region.height].map(|side| side as usize);
    (y..y + h)
        .flat_map(|row| pixels[(row * width + x) * channels..][..w * channels].to_vec())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// A view has the pixels that the whole picture has there.
    #[test]
    fn a_view_is_a_piece_of_the_picture(
        which in 0usize..20,
        scale in prop::sample::select(&Scale::ALL[..]),
        (x, y, width, height) in (0.0..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0),
    ) {
        let name = golden().keys().nth(which).unwrap().clone();
        let file = file(&name);
        let whole = View::whole().with_scale(scale);
        let (shape, pixels) = decode(&file, &whole).unwrap();
        let place = |at: f64, length: f64, all: usize| {
            let from = (at * all as f64) as u32;
            (from, 1 + (length * f64::from(all as u32 - from - 1)) as u32)
        };
        let ((x, width), (y, height)) = (place(x, width, shape[1]), place(y, height, shape[0]));
        let region = Region { x, y, width, height };
        let (part_shape, part) = decode(&file, &View::of(region).with_scale(scale)).unwrap();
        prop_assert_eq!(part_shape, [height as usize, width as usize, shape[2]]);
        prop_assert!(part == cut(shape, &pixels, &region), "{} {:?} {:?}", name, scale, region);
    }
}

/// Grey as three channels is grey three times; brightness alone of a picture in colour is what its grey picture would show.
#[test]
fn channels_can_be_chosen() {
    let (_, grey) = decode(&file("grey"), &View::whole()).unwrap();
    let (shape, repeated) = decode(&file("grey"), &View::whole().with_channels(3)).unwrap();
    assert_eq!(shape, [47, 61, 3]);
    assert!(
        repeated
            .as_chunks::<3>()
            .0
            .iter()
            .zip(&grey)
            .all(|(pixel, &grey)| *pixel == [grey; 3])
    );
    let (shape, brightness) = decode(&file("444_fine"), &View::whole().with_channels(1)).unwrap();
    let (_, colours) = decode(&file("444_fine"), &View::whole()).unwrap();
    assert_eq!(shape, [47, 61, 1]);
    for (&[r, g, b], &y) in colours.as_chunks::<3>().0.iter().zip(&brightness) {
        let wanted = 0.299 * f64::from(r) + 0.587 * f64::from(g) + 0.114 * f64::from(b);
        // Colours at the edge of what RGB holds are cut.
        assert!(
            [r, g, b].iter().any(|&value| matches!(value, 0 | 255)) || (wanted - f64::from(y)).abs() < 1.5
        );
    }
    for name in ["cmyk", "rgb"] {
        assert!(matches!(
            decode(&file(name), &View::whole().with_channels(1)),
            Err(Error::Unsupported { .. })
        ));
    }
    assert!(matches!(
        decode(&file("grey"), &View::whole().with_channels(2)),
        Err(Error::Invalid(_))
    ));
}

/// Views outside the picture and buffers of another size are refused.
#[test]
fn wrong_requests_are_refused() {
    let file = file("420");
    let region = |x, y, width, height| Region { x, y, width, height };
    for outside in [
        region(0, 0, 62, 1),
        region(61, 0, 1, 1),
        region(0, 0, 0, 1),
        region(0, 47, 1, 1),
        region(u32::MAX, 0, 2, 1),
    ] {
        assert!(
            matches!(decode(&file, &View::of(outside)), Err(Error::Invalid(_))),
            "{outside:?}"
        );
    }
    let half = View::of(region(0, 0, 61, 47)).with_scale(Scale::Half);
    assert!(matches!(decode(&file, &half), Err(Error::Invalid(_))));
    let mut short = vec![0; 61 * 47 * 3 - 1];
    assert!(matches!(
        Decoder::new().decode(&file, &View::whole(), &mut short),
        Err(Error::Invalid(_))
    ));
}

/// A file cut anywhere before its pixels are complete is an error, and leaves nothing; a view above the cut is still had.
#[test]
fn cut_files_are_refused() {
    for name in ["420", "420_progressive", "grey", "420_restarts", "cmyk"] {
        let file = file(name);
        let mut decoder = Decoder::new();
        for length in 0..file.len() - 2 {
            let mut pixels = vec![7];
            let result = decoder.decode_append(&file[..length], &View::whole(), &mut pixels);
            assert!(result.is_err(), "{name} cut at {length} of {}", file.len());
            assert_eq!(pixels, [7]);
        }
    }
    let file = file("420");
    let top = View::of(Region {
        x: 0,
        y: 0,
        width: 61,
        height: 8,
    });
    assert_eq!(
        decode(&file[..file.len() / 2], &top).unwrap(),
        decode(&file, &top).unwrap()
    );
}

/// Any byte may be any other: pixels or an error, and the next file is decoded as ever.
#[test]
fn flipped_bytes_do_no_harm() {
    let mut decoder = Decoder::new();
    let (_, wanted) = decode(&file("420"), &View::whole()).unwrap();
    for name in ["tiny_420", "422_progressive_restarts", "420_restarts", "ycck"] {
        let mut file = file(name);
        for at in 0..file.len() {
            for change in [0xff, 0x01] {
                file[at] ^= change;
                let mut pixels = Vec::new();
                for view in [
                    View::whole(),
                    View::whole().with_scale(Scale::Half).with_channels(3),
                ] {
                    // What a damaged header claims is bounded by the length of the file.
                    if let Ok(shape) = decoder.decode_append(&file, &view, &mut pixels) {
                        assert!(
                            shape.iter().product::<usize>()
                                <= file.len() * super::MOST_BLOCKS_A_BYTE * 64 * 3
                        );
                    }
                    pixels.clear();
                }
                file[at] ^= change;
            }
        }
    }
    let mut pixels = Vec::new();
    decoder
        .decode_append(&self::file("420"), &View::whole(), &mut pixels)
        .unwrap();
    assert!(pixels == wanted);
}

/// A header that claims a large picture is not believed.
#[test]
fn a_size_is_not_believed_without_bytes() {
    let mut file = file("420");
    let frame = file.windows(2).position(|bytes| bytes == [0xff, 0xc0]).unwrap();
    file[frame + 5..frame + 9].copy_from_slice(&[0xff; 4]);
    let error = Info::read(&file).unwrap_err().to_string();
    assert!(error.contains("JPEG of 65535 x 65535 pixels"), "{error}");
    assert!(decode(&file, &View::whole()).is_err());
}

/// What is not read says so.
#[test]
fn other_kinds_are_named() {
    let good = file("420");
    let frame = good.windows(2).position(|bytes| bytes == [0xff, 0xc0]).unwrap();
    for (code, wanted) in [(0xc3, "lossless"), (0xc9, "arithmetic"), (0xc5, "hierarchical")] {
        let mut file = good.clone();
        file[frame + 1] = code;
        let error = Info::read(&file).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }));
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let mut deep = good.clone();
    deep[frame + 4] = 12;
    assert!(Info::read(&deep).unwrap_err().to_string().contains("12 bits"));
    assert!(
        Info::read(b"\x89PNG\r\n\x1a\n")
            .unwrap_err()
            .to_string()
            .contains("not a JPEG file")
    );
}
