//! One Parquet file of examples.
//!
//! Row groups end where the values in them are about 16 MiB, which is what a worker holds of them; nothing else decides, so files do not depend on
//! the memory budget. Columns are compressed by zstd, those of pictures and sounds not at all.

use std::io::Write;
use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::schema::types::ColumnPath;
use anyhow::{Context, Result};
use prep_formats::columns::{Batch, BatchDecoder, Images};
use prep_formats::features::Features;

use crate::export::table::Table;

/// Bytes of values, decoded, that end a row group.
const GROUP_BYTES: usize = 16 << 20;
/// Bytes of values that are turned into columns at a time.
const BATCH_BYTES: usize = 1 << 20;
/// And rows, at most.
const BATCH_ROWS: usize = 1024;

/// Writes examples into a file.
pub(crate) struct ParquetWriter<'a, W: Write + Send> {
    table: &'a Table,
    decoder: BatchDecoder,
    batch: Batch,
    writer: ArrowWriter<Lent<W>>,
    group_bytes: usize,
}

impl<'a, W: Write + Send> ParquetWriter<'a, W> {
    pub(crate) fn new(sink: W, features: &Features, table: &'a Table) -> Result<Self> {
        let decoder = BatchDecoder::new(features, Images::Encoded)?;
        let mut properties = WriterProperties::builder()
            .set_created_by("prep".to_owned())
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_statistics_enabled(EnabledStatistics::Chunk);
        for path in &table.media {
            let path = ColumnPath::new(path.clone());
            properties = properties
                .set_column_compression(path.clone(), Compression::UNCOMPRESSED)
                .set_column_dictionary_enabled(path, false);
        }
        Ok(Self {
            batch: decoder.new_batch(0),
            decoder,
            writer: ArrowWriter::try_new(
                Lent(Some(sink)),
                Arc::clone(&table.schema),
                Some(properties.build()),
            )
            .map_err(own_cause)?,
            table,
            group_bytes: 0,
        })
    }

    /// Adds an example.
    ///
    /// # Errors
    /// A record that the features do not fit; [`NotText`](crate::export::table::NotText); the file's.
    pub(crate) fn write(&mut self, record: &[u8]) -> Result<()> {
        self.decoder.push(record, &mut self.batch)?;
        if self.batch.rows >= BATCH_ROWS || self.held() >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn held(&self) -> usize {
        self.batch.columns.iter().map(|column| column.num_bytes()).sum()
    }

    fn flush(&mut self) -> Result<()> {
        if self.batch.rows == 0 {
            return Ok(());
        }
        self.group_bytes += self.held();
        let rows = self.table.rows(&self.batch);
        let rows = rows.with_context(|| format!("among the last {} examples", self.batch.rows))?;
        self.writer.write(&rows).map_err(own_cause)?;
        self.decoder.clear(&mut self.batch);
        if self.group_bytes >= GROUP_BYTES {
            self.writer.flush().map_err(own_cause)?;
            self.group_bytes = 0;
        }
        Ok(())
    }

    /// Ends the file, and gives back what it was written to.
    pub(crate) fn finish(mut self) -> Result<W> {
        self.flush()?;
        // What takes the sink out of the crate's buffers would make a text of its error.
        self.writer.finish().map_err(own_cause)?;
        self.writer
            .inner_mut()
            .0
            .take()
            .context("the file has ended before")
    }
}

/// What is written to, until it is taken back.
struct Lent<W>(Option<W>);

impl<W: Write> Write for Lent<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.0 {
            Some(sink) => sink.write(bytes),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// The system's error where the crate has only wrapped one.
fn own_cause(error: ParquetError) -> anyhow::Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<std::io::Error>() {
            Ok(cause) => (*cause).into(),
            Err(cause) => ParquetError::External(cause).into(),
        },
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use prep_formats::features::Feature;

    struct Full;

    impl Write for Full {
        fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_told_in_the_words_of_the_system() {
        let features = Features::new(vec![("text".into(), Feature::Text)]).unwrap();
        let table = Table::new(&features, &std::collections::BTreeSet::new()).unwrap();
        let written = ParquetWriter::new(Full, &features, &table).and_then(ParquetWriter::finish);
        let error = written.err().unwrap();
        let cause: &std::io::Error = error.downcast_ref().unwrap();
        assert_eq!(cause.kind(), std::io::ErrorKind::StorageFull);
        assert!(!format!("{error:#}").contains("External"), "{error:#}");
    }
}
