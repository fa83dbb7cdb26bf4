//! Leaves out small pictures, scales the others to squares, and packs them in order: `resize_images SIDE FOLDER FILE...`
use std::io::Write;
use std::path::PathBuf;

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{PixelType, ResizeOptions, Resizer};
use jpeg_encoder::{ColorType, Encoder};
use prep_dataflow::*;
use prep_formats::array_record::{WriteOptions, Writer};
use prep_formats::store::{Existing, Location};
use zune_jpeg::zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};

/// A JPEG of `side` times `side` pixels; None where the picture is smaller than that.
pub(crate) fn resize(jpeg: &[u8], side: u16, resizer: &mut Resizer) -> Result<Option<Vec<u8>>, BoxError> {
    let rgb = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(jpeg), rgb);
    decoder.decode_headers()?;
    let info = decoder.info().ok_or("it has no header")?;
    if info.width.min(info.height) < side {
        return Ok(None);
    }
    let (pixels, rgb) = (decoder.decode()?, PixelType::U8x3);
    let image = ImageRef::new(info.width.into(), info.height.into(), &pixels, rgb)?;
    let (mut small, mut jpeg) = (Image::new(side.into(), side.into(), rgb), Vec::new());
    let square = ResizeOptions::new().fit_into_destination(None);
    resizer.resize(&image, &mut small, &square)?;
    Encoder::new(&mut jpeg, 90).encode(small.buffer(), side, side, ColorType::Rgb)?;
    Ok(Some(jpeg))
}

/// ArrayRecord files, each of which gets its name when it is complete.
fn array_records(to: PathBuf) -> impl ShardSink {
    sink(
        move |shard| {
            let (index, count) = (shard.index, shard.num_shards);
            let place = to.join(format!("images.array_record-{index:05}-of-{count:05}"));
            let (place, options) = (Location::from_path(place), WriteOptions::uncompressed());
            Ok(Writer::create(&place, options, Existing::Replace)?)
        },
        |writer, record| Ok(writer.write(&record.data)?),
        |writer| Ok(writer.publish()?),
    )
}

/// Gives the number of pictures that are written.
pub(crate) fn squares(side: u16, files: Vec<PathBuf>, to: PathBuf, options: Options) -> Result<u64, Error> {
    let named = |path: &PathBuf, error: String| format!("`{}`: {error}", path.display());
    let report = run(options, move |pipeline| {
        let (tasks, mut resizer) = ((0..).zip(files.clone()).collect(), Resizer::new());
        pipeline
            .source("Read", tasks, move |(number, path): (u32, PathBuf)| {
                let jpeg = std::fs::read(&path).map_err(|error| named(&path, error.to_string()));
                Ok::<_, Error>([jpeg.map(|jpeg| (number, path, jpeg))])
            })
            .rebalance()
            .try_flat_map("Resize", move |(number, path, jpeg)| {
                let small = resize(&jpeg, side, &mut resizer);
                let small = small.map_err(|error| named(&path, error.to_string()))?;
                Ok::<_, String>(small.map(|jpeg| Record::new(origin(number, 0), jpeg)))
            })
            .reshard("Order", 1, files.len() as u32)
            .write_shards("Write", SplitPlan::all_even(4), array_records(to.clone()))
            .collect(&Collected::new());
    })?;
    Ok(report.progress.stage("Write").map_or(0, |stage| stage.records))
}

fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [side, folder, files @ ..] = &arguments[..] else {
        return Err("how many pixels, to which folder, which files?".into());
    };
    let files = files.iter().map(PathBuf::from).collect();
    let options = Options::default().workers(2).cluster_from_env()?;
    let written = squares(side.parse()?, files, folder.into(), options)?;
    Ok(writeln!(std::io::stdout(), "{written} pictures")?)
}
