//! Makes RGB JPEGs of the files that are CMYK or PNG, as TFDS does: decode, and encode at quality 100 with half the resolution of colours.
//!
//! TFDS's bytes are those of TensorFlow's libjpeg; ours decode to nearly the same pixels.
//!
//! Source: TFDS 4.9, `core/utils/image_utils.py` (`jpeg_cmyk_to_rgb`, `png_to_jpeg`); TensorFlow 2.21, `core/lib/jpeg/jpeg_mem.cc`.

use anyhow::{Context, Result, anyhow, bail};
use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder, SamplingFactor};
use prep_formats::png;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

const QUALITY: u8 = 100;
/// Largest side that is decoded; pictures of ImageNet have up to 9331.
const MOST_SIDE: usize = 16 << 10;
/// Most pixels that are decoded: 200 MB of them.
const MOST_PIXELS: usize = 64 << 20;

/// Decodes a JPEG or PNG, and encodes it as an RGB JPEG.
///
/// # Errors
/// The file is damaged, too large, or neither of the two.
pub(super) fn to_rgb_jpeg(file: &[u8]) -> Result<Vec<u8>> {
    let (width, height, pixels) = if file.starts_with(b"\xff\xd8\xff") {
        decode_jpeg(file).context("could not decode the JPEG")?
    } else {
        decode_png(file).context("could not decode the PNG")?
    };
    let mut output = Vec::new();
    let mut encoder = Encoder::new(&mut output, QUALITY);
    encoder.set_sampling_factor(SamplingFactor::R_4_2_0);
    // As libjpeg does.
    encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
    let side = |side: usize| u16::try_from(side).context("a side has more than 65535 pixels");
    encoder
        .encode(&pixels, side(width)?, side(height)?, ColorType::Rgb)
        .context("could not encode the picture as JPEG")?;
    Ok(output)
}

fn check_size(width: usize, height: usize) -> Result<()> {
    let fits = width <= MOST_SIDE && height <= MOST_SIDE && width * height <= MOST_PIXELS;
    if width == 0 || height == 0 || !fits {
        bail!("it claims to have {width} x {height} pixels");
    }
    Ok(())
}

fn decode_png(file: &[u8]) -> Result<(usize, usize, Vec<u8>)> {
    let info = png::info(file)?;
    let (width, height) = (info.width as usize, info.height as usize);
    check_size(width, height)?;
    let mut pixels = Vec::new();
    png::Decoder::new().decode_append(file, Some(3), 8, &mut pixels)?;
    Ok((width, height, pixels))
}

fn decode_jpeg(file: &[u8]) -> Result<(usize, usize, Vec<u8>)> {
    let options = DecoderOptions::default()
        .set_max_width(MOST_SIDE)
        .set_max_height(MOST_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let fault = |error: zune_jpeg::errors::DecodeErrors| anyhow!("{error:?}");
    decoder.decode_headers().map_err(fault)?;
    let (width, height) = decoder.dimensions().context("it has no dimensions")?;
    check_size(width, height)?;
    let space = decoder.input_colorspace().context("it has no colours")?;
    let inks = matches!(space, ColorSpace::CMYK | ColorSpace::YCCK);
    // The four planes come as they are stored then.
    let wanted = if inks { space } else { ColorSpace::RGB };
    decoder.set_options(options.jpeg_set_out_colorspace(wanted));
    let mut pixels = decoder.decode().map_err(fault)?;
    if inks {
        pixels = rgb_of_inks(&pixels, space == ColorSpace::YCCK, has_adobe_marker(file));
    }
    if pixels.len() != width * height * 3 {
        bail!("{} bytes came out of {width} x {height} pixels", pixels.len());
    }
    Ok((width, height, pixels))
}

/// The colours of cyan, magenta, yellow and black. Adobe's programs store the inks inverted, and say that they wrote the file.
fn rgb_of_inks(pixels: &[u8], is_ycck: bool, is_inverted: bool) -> Vec<u8> {
    let mut rgb = Vec::with_capacity(pixels.len() / 4 * 3);
    for pixel in pixels.as_chunks::<4>().0 {
        let [mut inks @ .., black] = *pixel;
        if is_ycck {
            inks = inks_of_ycc(inks);
        }
        for ink in inks {
            let (ink, black) = (u32::from(ink), u32::from(black));
            let light = if is_inverted {
                ink * black / 255
            } else {
                (255 - ink) * (255 - black) / 255
            };
            rgb.push(light as u8);
        }
    }
    rgb
}

/// Source: `ycck_cmyk_convert` of libjpeg, `jdcolor.c`: inks are what is missing of the colours.
fn inks_of_ycc([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let (y, cb, cr) = (f32::from(y), f32::from(cb) - 128.0, f32::from(cr) - 128.0);
    let colours = [
        y + 1.402 * cr,
        y - 0.344_136_3 * cb - 0.714_136_3 * cr,
        y + 1.772 * cb,
    ];
    colours.map(|colour| 255 - colour.round().clamp(0.0, 255.0) as u8)
}

/// Whether Adobe's segment comes before the picture.
fn has_adobe_marker(file: &[u8]) -> bool {
    let mut rest = file.get(2..).unwrap_or_default();
    while let [0xff, marker, tail @ ..] = rest {
        match marker {
            // Padding.
            0xff => rest = &rest[1..],
            // No length follows.
            0x01 | 0xd0..=0xd8 => rest = tail,
            // The picture begins.
            0xd9 | 0xda => return false,
            _ => {
                let Some((length, _)) = tail.split_first_chunk() else {
                    return false;
                };
                let Some(segment) = tail.get(2..usize::from(u16::from_be_bytes(*length))) else {
                    return false;
                };
                if *marker == 0xee && segment.len() >= 12 && segment.starts_with(b"Adobe") {
                    return true;
                }
                rest = &tail[2 + segment.len()..];
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn encoded(colour: ColorType, pixels: &[u8], side: u16) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, 100);
        encoder.set_sampling_factor(SamplingFactor::R_4_4_4);
        encoder.encode(pixels, side, side, colour).unwrap();
        file
    }

    fn decoded(file: &[u8]) -> (usize, usize, Vec<u8>) {
        decode_jpeg(file).unwrap()
    }

    #[test]
    fn inks_become_the_colours_they_print() {
        // Inks as Adobe stores them: 255 is none.
        let cases = [
            ([255, 255, 255, 255], [255, 255, 255]),
            ([255, 255, 255, 0], [0, 0, 0]),
            ([0, 255, 255, 255], [0, 255, 255]),
            ([100, 200, 50, 128], [50, 100, 25]),
        ];
        for (inks, colour) in cases {
            assert_eq!(rgb_of_inks(&inks, false, true), colour);
            let plain = inks.map(|ink: u8| 255 - ink);
            assert_eq!(rgb_of_inks(&plain, false, false), colour);
        }
        // Grey: what YCC gives as 55 is 200 of each ink, as libjpeg counts.
        assert_eq!(rgb_of_inks(&[55, 128, 128, 255], true, true), [200, 200, 200]);
    }

    #[test]
    fn a_file_of_either_kind_becomes_rgb_of_about_the_same_colours() {
        // The encoder writes Adobe's marker, and inks inverted, for both.
        for (colour, wanted) in [
            (ColorType::Cmyk, [50, 100, 25]),
            (ColorType::CmykAsYcck, [50, 100, 25]),
        ] {
            let inks = [155u8, 55, 205, 127].repeat(16 * 16);
            let file = encoded(colour, &inks, 16);
            assert!(has_adobe_marker(&file));
            let made = to_rgb_jpeg(&file).unwrap();
            assert!(!has_adobe_marker(&made));
            let (width, height, pixels) = decoded(&made);
            assert_eq!((width, height), (16, 16));
            for (found, wanted) in pixels.iter().zip(wanted.repeat(256)) {
                assert!(
                    i16::from(*found).abs_diff(wanted) <= 3,
                    "{colour:?}: {found} {wanted}"
                );
            }
        }
        let mut png = Vec::new();
        let info = png::Info {
            width: 5,
            height: 3,
            channels: 3,
            bits: 8,
        };
        png::Encoder::new()
            .encode(&info, &[10, 200, 90].repeat(15), &mut png)
            .unwrap();
        let (width, height, pixels) = decoded(&to_rgb_jpeg(&png).unwrap());
        assert_eq!((width, height), (5, 3));
        for (found, wanted) in pixels.iter().zip([10i16, 200, 90].repeat(15)) {
            assert!(i16::from(*found).abs_diff(wanted) <= 3, "{found} {wanted}");
        }
    }

    #[test]
    fn cut_files_are_errors_or_pictures() {
        let file = encoded(ColorType::Cmyk, &[9; 4 * 64], 8);
        for length in 0..file.len() {
            let _ = to_rgb_jpeg(&file[..length]);
        }
        assert!(to_rgb_jpeg(b"").is_err());
        assert!(to_rgb_jpeg(&file[..100]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let file = [&b"\xff\xd8\xff\xee"[..], &bytes].concat();
            has_adobe_marker(&file);
            let _ = to_rgb_jpeg(&file);
        }
    }
}
