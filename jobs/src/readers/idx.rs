//! Pairs of IDX files: images and their labels.
//!
//! A record's key is its position. The two files are read side by side.

use std::io::Read;

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use prep_formats::features::Feature;
use prep_formats::idx::Header;
use prep_formats::value::{DType, Value};

use crate::archive::Stream;
use crate::builder::{Input, Output, Raw, Source};
use crate::recipe::{ReaderSpec, Recipe};

/// Bytes of images read at a time; records are slices of such blocks.
const BLOCK_BYTES: usize = 512 << 10;
/// Largest item that is believed, in bytes.
const MOST_ITEM_BYTES: usize = 256 << 20;

/// Reads pairs of IDX files as a recipe says.
#[derive(Debug)]
pub(super) struct Idx {
    image: String,
    label: String,
    /// Height, width and channels.
    shape: Vec<u64>,
    /// For each split the sources of images and labels.
    sources: Vec<Vec<usize>>,
}

impl Idx {
    pub(super) fn new(recipe: &Recipe) -> Self {
        let ReaderSpec::Idx { image, label } = &recipe.reader else {
            unreachable!("the reader was chosen by its kind")
        };
        let shape = recipe
            .spec
            .features
            .iter()
            .find_map(|(name, feature)| match feature {
                Feature::Image { shape, .. } if name == image => {
                    Some(shape.iter().map(|n| n.unwrap_or(0)).collect())
                }
                _ => None,
            });
        let source = |file: &String| recipe.spec.sources.iter().position(|source| source.name == *file);
        Self {
            image: image.clone(),
            label: label.clone(),
            shape: shape.unwrap_or_default(),
            sources: recipe
                .files
                .iter()
                .map(|split| split.files.iter().filter_map(source).collect())
                .collect(),
        }
    }

    /// One input a split.
    pub(super) fn inputs(&self) -> Vec<Vec<usize>> {
        self.sources.clone()
    }

    pub(super) fn read(&self, input: &Input<'_>, output: &mut Output<'_>) -> Result<()> {
        let [images, labels] = input.sources[..] else {
            bail!("an IDX input has two files, images and labels");
        };
        let (mut image_stream, dimensions) = open(images)?;
        let (count, height, width, channels) = match dimensions[..] {
            [count, height, width] => (count, height, width, 1),
            [count, height, width, channels] => (count, height, width, channels),
            ref other => bail!("{}: {} dimensions; images have 3 or 4", images.name, other.len()),
        };
        let found = [height, width, channels].map(u64::from);
        if self.shape != found {
            bail!(
                "{}: images of shape {found:?}; the recipe says {:?}",
                images.name,
                self.shape
            );
        }
        let (mut label_stream, dimensions) = open(labels)?;
        match dimensions[..] {
            [labels] if labels == count => {}
            [other] => bail!(
                "{} has {count} images, but {} has {other} labels",
                images.name,
                labels.name
            ),
            ref other => bail!("{}: {} dimensions; labels have 1", labels.name, other.len()),
        }
        // Cannot overflow: four numbers below 2^32, of which the product of three was bounded when the file was opened.
        let pixel_bytes = height as usize * width as usize * channels as usize;
        let part = output.part(&images.name);
        let record_bytes = 1 + pixel_bytes;
        let block_records = (BLOCK_BYTES / record_bytes).max(1) as u64;
        let mut record = 0;
        let mut label_bytes = Vec::new();
        while record < u64::from(count) {
            let records = block_records.min(u64::from(count) - record) as usize;
            label_bytes.resize(records, 0);
            read_exact(&mut label_stream, &mut label_bytes, record, count)?;
            let mut block = BytesMut::zeroed(records * record_bytes);
            for (index, slot) in block.chunks_exact_mut(record_bytes).enumerate() {
                slot[0] = label_bytes[index];
                read_exact(&mut image_stream, &mut slot[1..], record + index as u64, count)?;
            }
            let mut block = block.freeze();
            for _ in 0..records {
                let data = block.split_to(record_bytes);
                output.emit(Raw::new(input.index, record, part, data))?;
                record += 1;
            }
        }
        for stream in [&mut image_stream, &mut label_stream] {
            let extra = stream.drain()?;
            if extra > 0 {
                bail!(
                    "{}: {extra} bytes follow the {count} items that its header announces",
                    stream.name()
                );
            }
        }
        Ok(())
    }

    pub(super) fn decode<'a>(&'a self, raw: &Raw, values: &mut Vec<(&'a str, Value)>) {
        values.push((&self.label, Value::Int(i64::from(raw.data[0]))));
        values.push((
            &self.image,
            Value::Tensor {
                dtype: DType::UInt8,
                shape: self.shape.iter().map(|n| *n as usize).collect(),
                data: raw.data.slice(1..),
            },
        ));
    }
}

/// Opens a file and reads its header: the dimensions.
fn open(source: &Source) -> Result<(Stream, Vec<u32>)> {
    let name = &source.name;
    let fault = || format!("could not read the header of {name}");
    let mut stream = source.open()?;
    let mut bytes = vec![0; 4];
    stream.read_exact(&mut bytes).with_context(fault)?;
    // The fourth byte is the number of dimensions; a wrong one is refused below.
    let sizes = 4 * usize::from(bytes[3]);
    (&mut stream)
        .take(sizes as u64)
        .read_to_end(&mut bytes)
        .with_context(fault)?;
    let (header, _) = Header::parse(&bytes).with_context(fault)?;
    if header.item_bytes() > MOST_ITEM_BYTES {
        bail!("{name} claims items of shape {:?}", header.item_shape());
    }
    Ok((stream, header.dimensions))
}

fn read_exact(stream: &mut Stream, buffer: &mut [u8], record: u64, count: u32) -> Result<()> {
    match stream.read_exact(buffer) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            let name = stream.name().to_owned();
            Err(anyhow::Error::new(error).context(format!(
                "{name} is cut short: record {record} of {count} is not whole"
            )))
        }
        other => Ok(other?),
    }
}
