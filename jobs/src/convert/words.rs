//! The options of a conversion as people write them: on the command line, and in Python.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use prep_formats::array_record::WriteOptions;

use crate::convert::transform::{parse_rename, parse_select};
use crate::convert::{ConvertRequest, DEFAULT_NAME, Dedup, Order, Shards, filter};
use crate::error::Usage;
use crate::resources::parse_size;

/// What a conversion does with records and shards, in words.
#[derive(Debug, Clone, Args)]
pub struct ConvertWords {
    /// What the shards are called: NAME.array_record-00000-of-00008. In a catalog, the name of the dataset.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    pub name: String,
    /// Number of shards: a number, `same` (one for each input), or `auto` (64 MiB to 1 GiB each, as TFDS).
    ///
    /// Default: `auto`; for a TFDS folder `same`.
    #[arg(long, value_name = "N|auto|same")]
    pub shards: Option<String>,
    /// As many shards as keep each below this size of its records, on average.
    #[arg(long, value_name = "SIZE", conflicts_with = "shards")]
    pub max_shard_size: Option<String>,
    /// Order of the records: `source`, `shuffle:SEED`, or `key:FEATURE`.
    #[arg(long, value_name = "ORDER", default_value = "source")]
    pub order: String,
    /// Options of the shards, as the ArrayRecord writer takes them: `group_size:1,zstd:3`, `uncompressed`.
    #[arg(long, value_name = "STRING")]
    pub options: Option<String>,
    /// Keeps records for which this holds: "label in (1, 2) and not name == 'cat'".
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Keeps these features only.
    #[arg(long, value_name = "F,..")]
    pub select: Option<String>,
    /// Renames features.
    #[arg(long, value_name = "OLD=NEW,..")]
    pub rename: Option<String>,
    /// Writes at most so many records: the first ones of the order.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Leaves out records that came before: `exact` compares whole records, `exact:FEATURE` the values of a feature.
    #[arg(long, value_name = "exact[:FEATURE]")]
    pub dedup: Option<String>,
    /// Registers the output in this catalog, as dataset NAME.
    #[arg(long, value_name = "URL")]
    pub catalog: Option<String>,
}

impl ConvertWords {
    /// The request that these words make, with the defaults of all that is not about records.
    ///
    /// # Errors
    /// Words that mean nothing: the message names the flag.
    pub fn request(&self, inputs: Vec<OsString>, output: impl Into<PathBuf>) -> Result<ConvertRequest> {
        fn usage<T>(flag: &str, result: Result<T, String>) -> Result<T> {
            result.map_err(|reason| Usage(format!("`--{flag}`: {reason}")).into())
        }
        let mut request = ConvertRequest::new(inputs, output);
        request.name.clone_from(&self.name);
        request.shards = match (&self.max_shard_size, &self.shards) {
            (Some(size), _) => {
                let bytes = usage("max-shard-size", parse_size(size))?;
                if bytes == 0 {
                    return Err(Usage("`--max-shard-size` is 0".to_owned()).into());
                }
                Some(Shards::MaxBytes(bytes))
            }
            (None, Some(text)) => Some(usage("shards", Shards::parse(text))?),
            (None, None) => None,
        };
        request.order = usage("order", Order::parse(&self.order))?;
        if let Some(text) = &self.options {
            let parsed = WriteOptions::parse(text);
            usage("options", parsed.map(|_| ()).map_err(|error| error.to_string()))?;
        }
        request.options.clone_from(&self.options);
        if let Some(text) = &self.filter {
            let parsed = filter::parse(text);
            usage("filter", parsed.map(|_| ()).map_err(|fault| fault.show(text)))?;
        }
        request.filter.clone_from(&self.filter);
        request.select = usage("select", self.select.as_deref().map(parse_select).transpose())?;
        request.rename = usage(
            "rename",
            self.rename.as_deref().map_or(Ok(Vec::new()), parse_rename),
        )?;
        request.limit = self.limit;
        request.dedup = usage("dedup", self.dedup.as_deref().map(Dedup::parse).transpose())?;
        request.catalog.clone_from(&self.catalog);
        Ok(request)
    }
}
