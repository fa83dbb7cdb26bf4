//! What goes wrong in a catalog, where, and what to do about it.

/// The result of a fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong in a catalog, and where. [`Error::hint`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A location or a file could not be used.
    #[error(transparent)]
    Format(#[from] prep_formats::Error),
    /// The store refused.
    #[error("{path}: could not {action}")]
    Store {
        /// Path or URL acted on.
        path: String,
        /// A verb: `read`, `list`, `write`.
        action: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A dataset name, version or tag is not written as one.
    #[error("`{text}` is not a dataset name: {reason}", text = text.escape_debug())]
    Name {
        /// What was given.
        text: String,
        /// Which part is wrong, and what it may be.
        reason: String,
    },
    /// The catalog has no such dataset.
    #[error("no dataset `{dataset}` in catalog `{catalog}`")]
    UnknownDataset {
        /// What was asked for.
        dataset: String,
        /// The catalog searched.
        catalog: String,
        /// What may have been meant, nearest first.
        suggestions: Vec<String>,
        /// Whether there is a catalog at all.
        has_catalog: bool,
    },
    /// The dataset has configs, and none or an unknown one was asked for.
    #[error("dataset `{dataset}` of catalog `{catalog}` has the configs {known}")]
    UnknownConfig {
        /// What was asked for.
        dataset: String,
        /// The catalog searched.
        catalog: String,
        /// Those there are, quoted.
        known: String,
        /// One that could be asked for.
        example: String,
    },
    /// The dataset has no such version, tag or log entry.
    #[error("dataset `{dataset}` of catalog `{catalog}` has no {wanted}: it has {known}")]
    UnknownVersion {
        /// Dataset without selector.
        dataset: String,
        /// The catalog searched.
        catalog: String,
        /// What was asked for: ``version `1.0.0` ``.
        wanted: String,
        /// Those there are.
        known: String,
    },
    /// The store cannot put an object only where there is none, so commits could overwrite each other.
    #[error("catalog `{catalog}` cannot be written safely: {reason}")]
    NoConditionalPut {
        /// The catalog.
        catalog: String,
        /// What the store did.
        reason: String,
    },
    /// The store can only be read, or cannot be listed.
    #[error("catalog `{catalog}` {reason}")]
    WebOnly {
        /// The catalog.
        catalog: String,
        /// What cannot be done.
        reason: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// An entry of the log is damaged or missing.
    #[error("{path}: {reason}")]
    DamagedEntry {
        /// Path or URL of the entry.
        path: String,
        /// What was found and what was wanted.
        reason: String,
    },
    /// An entry or the catalog was written by a newer program, in a way that this one must not guess at.
    #[error("{path}: {reason}")]
    TooNew {
        /// Path or URL of the entry.
        path: String,
        /// What is not understood.
        reason: String,
    },
    /// A version is there already, with other content.
    #[error("`{version}` is in catalog `{catalog}` already, {difference}")]
    Conflict {
        /// Dataset and version.
        version: String,
        /// The catalog.
        catalog: String,
        /// What differs: recipe and options, or content.
        difference: String,
    },
    /// A manifest is damaged, or not what this program reads.
    #[error("{path}: {reason}")]
    Manifest {
        /// Path or URL of the manifest.
        path: String,
        /// What was found and what was wanted.
        reason: String,
    },
    /// The data of a version are not where the log says, or are not the ones it means.
    #[error("the data of `{version}` are not in `{folder}`: {reason}")]
    Data {
        /// Dataset and version.
        version: String,
        /// The folder.
        folder: String,
        /// What was found.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// The same commit lost the race against others too often.
    #[error("`{dataset}`: {attempts} other commits came first, one after another")]
    Contended {
        /// The dataset.
        dataset: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// The change does not fit the state of the dataset.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// What to do about it, where there is something to say.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::UnknownDataset {
                suggestions,
                has_catalog,
                dataset,
                ..
            } => {
                if suggestions.contains(dataset) {
                    format!("it can be built, and is not yet: `prep build {dataset}`")
                } else if !suggestions.is_empty() {
                    format!("did you mean {}?", quoted(suggestions))
                } else if *has_catalog {
                    format!(
                        "`prep list` shows what there is; `prep build {dataset}` builds a dataset that prep knows"
                    )
                } else {
                    "there is no catalog at this place: give another one with `--catalog` or `PREP_CATALOG`, or build a dataset"
                        .into()
                }
            }
            Self::UnknownConfig { example, .. } => format!("say which one: `{example}`"),
            Self::DamagedEntry { .. } => {
                "restore the file from a backup; versions asked for by number still resolve".into()
            }
            Self::TooNew { .. } => "use a newer version of prep".into(),
            Self::Conflict { .. } => "give another version, or replace it with `--overwrite`".into(),
            Self::Manifest { .. } => "restore the folder from a backup, or build the dataset again".into(),
            Self::Data { hint, .. } => hint.clone(),
            Self::Contended { .. } => "run the same command again".into(),
            Self::NoConditionalPut { .. } => "put the catalog where a put can be conditional (a local folder, Amazon S3, Google Cloud Storage, \
                Azure, recent MinIO or Ceph); the data may stay on this store, with `--data-dir`"
                .into(),
            Self::WebOnly { hint, .. } => (*hint).into(),
            Self::Store { source, .. } => return store_hint(source.as_ref()),
            _ => return None,
        };
        Some(hint)
    }
}

/// Advice for the faults of a local file system, found anywhere in the chain of causes.
fn store_hint(source: &(dyn std::error::Error + Send + Sync + 'static)) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(source);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<object_store::Error>() {
            use object_store::Error as Store;

            match error {
                Store::PermissionDenied { .. } | Store::Unauthenticated { .. } => {
                    return Some(
                        "the store refuses these credentials: look at the variables AWS_*, GOOGLE_* or AZURE_*, and at the rights they give"
                            .into(),
                    );
                }
                Store::Generic { store, .. } if *store != "LocalFileSystem" => {
                    let variables = match *store {
                        "GCS" => "GOOGLE_BASE_URL, and GOOGLE_ALLOW_HTTP=true for plain http",
                        "MicrosoftAzure" => "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ENDPOINT",
                        _ => "AWS_ENDPOINT_URL, AWS_REGION, and AWS_ALLOW_HTTP=true for plain http",
                    };
                    return Some(format!(
                        "is the store there, and its address right ({variables})?"
                    ));
                }
                _ => {}
            }
        }
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return match error.kind() {
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                    Some("give a folder that may be written, with `--catalog` and `--data-dir`".into())
                }
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                    Some("free some space, and run the same command again".into())
                }
                _ => None,
            };
        }
        cause = error.source();
    }
    None
}

/// Texts in backticks, with commas between them.
pub(crate) fn quoted<T: AsRef<str>>(texts: &[T]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| format!("`{}`", text.as_ref())).collect();
    quoted.join(", ")
}
