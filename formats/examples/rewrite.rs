//! Writes the records of an ArrayRecord file to another one with other options:
//!
//! ```text
//! cargo run --release -p prep-formats --example rewrite -- IN OUT OPTIONS
//! cargo run --release -p prep-formats --example rewrite -- old.array_record new.array_record transpose,group_size:256,zstd:3
//! ```
//!
//! Further pairs of `OUT OPTIONS` make further files.

use std::env;
use std::fs::File;
use std::io::{Error as IoError, ErrorKind};
use std::path::Path;

use prep_formats::array_record::{Reader, Scratch, WriteOptions, Writer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Some((input, outputs)) = arguments.split_first() else {
        return Err(usage());
    };
    if outputs.is_empty() || outputs.len() % 2 != 0 {
        return Err(usage());
    }
    let reader = Reader::open(Path::new(input))?;
    for output in outputs.chunks_exact(2) {
        let mut writer = Writer::new(File::create(&output[0])?, WriteOptions::parse(&output[1])?)?;
        reader.for_each(0..reader.num_records(), &mut Scratch::default(), |_, record| {
            writer.write(record)
        })?;
        writer.finish()?.sync_all()?;
    }
    Ok(())
}

fn usage() -> Box<dyn std::error::Error> {
    IoError::new(
        ErrorKind::InvalidInput,
        "usage: rewrite IN OUT OPTIONS [OUT OPTIONS]...",
    )
    .into()
}
