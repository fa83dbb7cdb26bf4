//! `prep.parse_example`: records that come from elsewhere.

use std::sync::{Mutex, PoisonError};

use prep_formats::columns::{BatchDecoder, Images};
use prep_formats::features::Features;
use prep_jobs::examples::Schema;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrays::Layout;
use crate::boundary::{OfProcess, guarded, outside};
use crate::dataset::Dataset;
use crate::error::{IntoPython, Kind};

/// Decodes records of one schema.
#[pyclass(frozen, module = "prep._core")]
#[derive(Debug)]
pub(crate) struct ExampleParser {
    features: Features,
    images: Images,
    layout: Layout,
    /// Decoders that nobody uses at the moment. Locked for an exchange only.
    decoders: OfProcess<Mutex<Vec<BatchDecoder>>>,
}

fn features_of(py: Python<'_>, schema: &Bound<'_, PyAny>) -> PyResult<Features> {
    if let Ok(dataset) = schema.cast::<Dataset>() {
        let handle = dataset.get().handle(py)?;
        let own = handle.get();
        let own = own.ok_or_else(|| Kind::Internal.error("a dataset of another process was used"))?;
        return Ok(own.features().clone());
    }
    let text: String = schema.extract()?;
    let wrong = |error: &dyn std::fmt::Display| Kind::Invalid.error(format!("`features`: {error}"));
    let declared = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    let schema = Schema::parse(&declared).map_err(|error| wrong(&format!("{error:#}")))?;
    schema.features().ok_or_else(|| {
        Kind::Invalid
            .error("`features` leave open what only the data tell, as the names of labels: say it all")
    })
}

#[pymethods]
impl ExampleParser {
    /// Of the schema of a dataset, or of one in the words of recipes as JSON.
    #[new]
    fn new(
        py: Python<'_>,
        schema: &Bound<'_, PyAny>,
        columns: Option<Vec<String>>,
        decode: bool,
    ) -> PyResult<Self> {
        guarded(|| {
            let features = features_of(py, schema)?;
            let features = match columns {
                Some(columns) => features.select(&columns).map_err(IntoPython::into_python)?,
                None => features,
            };
            let images = if decode { Images::Decoded } else { Images::Encoded };
            let decoder = BatchDecoder::new(&features, images).map_err(IntoPython::into_python)?;
            Ok(Self {
                layout: Layout::new(py, decoder.specs()),
                decoders: OfProcess::new(Mutex::new(vec![decoder])),
                features,
                images,
            })
        })
    }

    /// The element of a record: a serialized `tf.train.Example`.
    fn parse<'py>(&self, py: Python<'py>, record: &[u8]) -> PyResult<Bound<'py, PyDict>> {
        guarded(|| {
            let pool = self.decoders.get();
            let kept = pool.and_then(|pool| pool.lock().unwrap_or_else(PoisonError::into_inner).pop());
            let mut decoder = match kept {
                Some(decoder) => decoder,
                None => BatchDecoder::new(&self.features, self.images).map_err(IntoPython::into_python)?,
            };
            let (decoder, batch) = outside(py, move || {
                let mut batch = decoder.new_batch(1);
                decoder.push(record, &mut batch).map(|()| (decoder, batch))
            })?;
            if let Some(pool) = pool {
                pool.lock().unwrap_or_else(PoisonError::into_inner).push(decoder);
            }
            self.layout.element(py, Box::new(batch))
        })
    }
}
