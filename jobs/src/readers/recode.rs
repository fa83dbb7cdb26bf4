//! Pictures that TFDS writes anew as JPEG, because of what their files are or how they are damaged.

use anyhow::{Context, Result, bail};
use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder, SamplingFactor};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Quality of TensorFlow's `encode_jpeg`.
const QUALITY: u8 = 95;
/// Largest side that is believed.
const MOST_SIDE: usize = 16_384;

/// The picture of a JPEG or PNG file as a new JPEG file: grey as it was, colour with half the resolution of colours, no alpha.
///
/// # Errors
/// The file is neither, or cannot be decoded.
pub(super) fn as_jpeg(file: &[u8]) -> Result<Vec<u8>> {
    let (width, height, colour, pixels) = decode(file)?;
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, QUALITY);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    // As libjpeg does it.
    encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
    encoder
        .encode(&pixels, u16::try_from(width)?, u16::try_from(height)?, colour)
        .context("could not write the picture as JPEG")?;
    Ok(out)
}

/// Width, height, and grey or colour pixels.
pub(super) type Pixels = (usize, usize, ColorType, Vec<u8>);

/// The pixels of a JPEG or PNG file: grey or RGB, without alpha.
///
/// # Errors
/// As [`as_jpeg`].
pub(super) fn decode(file: &[u8]) -> Result<Pixels> {
    if file.starts_with(b"\x89PNG") {
        from_png(file)
    } else if file.starts_with(b"\xff\xd8\xff") {
        from_jpeg(file)
    } else {
        bail!(
            "bytes that begin with `{}` are no JPEG or PNG file",
            file[..file.len().min(8)].escape_ascii()
        )
    }
}

/// Whether pixels have one channel.
pub(super) fn is_grey(colour: ColorType) -> bool {
    matches!(colour, ColorType::Luma)
}

/// Pixels as a JPEG file of this quality, colours at half their resolution.
///
/// # Errors
/// A side is longer than JPEG takes.
pub(super) fn encode_jpeg(
    pixels: &[u8],
    width: usize,
    height: usize,
    grey: bool,
    quality: u8,
) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, quality);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
    let colour = if grey { ColorType::Luma } else { ColorType::Rgb };
    encoder
        .encode(pixels, u16::try_from(width)?, u16::try_from(height)?, colour)
        .context("could not write the picture as JPEG")?;
    Ok(out)
}

fn from_jpeg(file: &[u8]) -> Result<Pixels> {
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(MOST_SIDE)
        .set_max_height(MOST_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    let context = "could not decode the JPEG";
    decoder.decode_headers().context(context)?;
    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (wanted, colour) = if grey {
        (ColorSpace::Luma, ColorType::Luma)
    } else {
        (ColorSpace::RGB, ColorType::Rgb)
    };
    decoder.set_options(options.jpeg_set_out_colorspace(wanted));
    let pixels = decoder.decode().context(context)?;
    let (width, height) = decoder.dimensions().context(context)?;
    Ok((width, height, colour, pixels))
}

fn from_png(file: &[u8]) -> Result<Pixels> {
    let info = prep_formats::png::info(file)?;
    if info.width as usize > MOST_SIDE || info.height as usize > MOST_SIDE {
        bail!("a PNG of {} by {} pixels is too large", info.width, info.height);
    }
    let mut pixels = Vec::new();
    // All channels of the file, then without the alpha.
    let info = prep_formats::png::Decoder::new().decode_append(file, None, 8, &mut pixels)?;
    let channels = usize::from(info.channels);
    let kept = if channels >= 3 { 3 } else { 1 };
    if kept < channels {
        pixels = pixels
            .chunks_exact(channels)
            .flat_map(|pixel| pixel[..kept].iter().copied())
            .collect();
    }
    let colour = if kept == 3 {
        ColorType::Rgb
    } else {
        ColorType::Luma
    };
    Ok((info.width as usize, info.height as usize, colour, pixels))
}
