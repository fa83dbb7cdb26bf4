//! Values of the caller's, elements of which nothing is known, and work by the chunk.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use prep_formats::value::DType;

use crate::element::{Array, Element, ElementSpec, Foreign, Value};
use crate::transform::{Generator, Transform, function};
use crate::transforms::{Cast, Select};
use crate::{BatchOptions, Error, MapDataset, PipelineOptions, Predicate, Result, Source, stack_elements};

/// A text of the caller's, which may stand for a number.
struct Own(&'static str, Option<Array>);

impl Foreign for Own {
    fn describe(&self) -> String {
        format!("the text {}", self.0)
    }

    fn array(&self) -> Option<&Array> {
        self.1.as_ref()
    }
}

fn own(text: &'static str, number: Option<i64>) -> Value {
    Value::Foreign(Arc::new(Own(text, number.map(Array::scalar))))
}

/// Elements of a list, given many at once; counts the calls.
struct List {
    elements: Vec<Element>,
    calls: AtomicUsize,
}

impl Source for List {
    fn len(&self) -> u64 {
        self.elements.len() as u64
    }

    fn spec(&self) -> ElementSpec {
        ElementSpec::unknown()
    }

    fn identity(&self) -> String {
        "list".into()
    }

    fn get(&self, index: u64) -> Result<Element> {
        Ok(self.elements[index as usize].clone())
    }

    fn get_many(&self, indices: &[u64]) -> Vec<Result<Element>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        indices.iter().map(|&index| self.get(index)).collect()
    }
}

fn list(values: impl IntoIterator<Item = Value>) -> MapDataset {
    let elements = values.into_iter().map(|value| Element::from_iter([("x", value)]));
    MapDataset::custom(List {
        elements: elements.collect(),
        calls: AtomicUsize::new(0),
    })
    .unwrap()
}

#[test]
fn values_of_the_callers_are_moved_and_stand_for_arrays() {
    let same = own("a", None);
    assert_eq!(same, same.clone());
    assert_ne!(same, own("a", None), "another one");
    assert_eq!(own("a", Some(3)), own("b", Some(3)), "equal arrays");
    let mixed = list([same.clone(), own("b", Some(2))])
        .shuffle(1)
        .unwrap()
        .repeat(2)
        .unwrap();
    let values: Vec<Value> = mixed
        .iter()
        .map(|element| element.unwrap().remove("x").unwrap())
        .collect();
    assert_eq!(values.iter().filter(|&value| *value == same).count(), 2);
    let wrong = mixed
        .map(Cast {
            feature: "x".into(),
            dtype: DType::Float32,
        })
        .unwrap();
    let errors: Vec<String> = wrong
        .iter()
        .filter_map(Result::err)
        .map(|error| error.with_causes())
        .collect();
    assert_eq!(errors.len(), 2);
    assert!(
        errors[0].contains("`x` is the text a, wanted an array"),
        "{errors:?}"
    );
    // What stands for arrays is batched, and taken apart again.
    let numbers = list([own("a", Some(1)), own("b", Some(2))])
        .batch(BatchOptions::new(2))
        .unwrap();
    let batch = numbers.get(0).unwrap().unwrap();
    assert_eq!(batch.array("x").unwrap().to_vec::<i64>().unwrap(), [1, 2]);
    assert_eq!(stack_elements(&[]).unwrap(), Element::new());
    assert!(stack_elements(&[Element::new(), batch]).is_err());
}

#[test]
fn what_is_not_known_before_is_checked_with_each_element() {
    let unknown = list([own("a", Some(1))]);
    assert!(unknown.element_spec().is_unknown());
    let mapped = unknown
        .clone()
        .map(Select {
            features: vec!["y".into()],
        })
        .unwrap();
    assert!(mapped.element_spec().is_unknown());
    let text = mapped.get(0).unwrap_err().to_string() + &mapped.get(0).unwrap_err().with_causes();
    assert!(text.contains("`select`") && text.contains("`y`"), "{text}");
    let mut spec = ElementSpec::new();
    spec.set("x", DType::Int64, []);
    let known = unknown
        .clone()
        .map(function("known", Ok).spec(spec.clone()))
        .unwrap();
    assert_eq!(known.element_spec(), &spec);
    let both = MapDataset::concatenate([known.clone(), unknown.clone()]).unwrap();
    assert!(both.element_spec().is_unknown());
    let other = MapDataset::range(1).unwrap();
    assert!(MapDataset::concatenate([known, other.clone()]).is_err());
    assert!(
        MapDataset::zip([unknown.clone(), other])
            .unwrap()
            .element_spec()
            .is_unknown()
    );
    let error = unknown.to_iter().pack(crate::PackOptions::new(
        crate::Packing::ConcatThenSplit,
        [("x", 4)],
    ));
    assert!(error.unwrap_err().to_string().contains("not known"));
}

/// Notes how many elements it is given at once; fails at one, panics at another.
#[derive(Clone, Default)]
struct Chunked(Arc<Mutex<Vec<usize>>>);

impl Chunked {
    fn checked(number: i64) -> Result<i64> {
        match number {
            7 => Err(Error::User("seven".into())),
            number => Ok(number),
        }
    }
}

impl Transform for Chunked {
    fn name(&self) -> String {
        "chunked".into()
    }

    fn parameters(&self) -> String {
        String::new()
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        Ok(input.clone())
    }

    fn apply(&self, _: Element, _: &mut Generator) -> Result<Element> {
        unreachable!("elements come by the chunk")
    }

    fn apply_many(&self, elements: Vec<Element>, _: &mut [Generator]) -> Vec<Result<Element>> {
        self.0.lock().unwrap().push(elements.len());
        let checked = elements.into_iter().map(|element| {
            Self::checked(element.array("value")?.item().unwrap_or(0))?;
            Ok(element)
        });
        checked.collect()
    }
}

impl Predicate for Chunked {
    fn keeps(&self, element: &Element) -> Result<bool> {
        self.keeps_many(&[element]).remove(0)
    }

    fn keeps_many(&self, elements: &[&Element]) -> Vec<Result<bool>> {
        self.0.lock().unwrap().push(elements.len());
        let number = |element: &Element| Self::checked(element.array("value")?.item().unwrap_or(0));
        elements
            .iter()
            .map(|element| Ok(number(element)? % 2 == 0))
            .collect()
    }
}

#[test]
fn transforms_and_predicates_get_chunks_and_errors_their_places() {
    let (mapped, kept) = (Chunked::default(), Chunked::default());
    let dataset = MapDataset::range(20).unwrap().map(mapped.clone()).unwrap();
    let got = dataset
        .filter_shared("even", Arc::new(kept.clone()))
        .get_many(&[4, 7, 5, 6]);
    assert_eq!(
        (mapped.0.lock().unwrap().clone(), kept.0.lock().unwrap().clone()),
        (vec![4], vec![3])
    );
    assert!(matches!(
        (&got[0], &got[2], &got[3]),
        (Ok(Some(_)), Ok(None), Ok(Some(_)))
    ));
    let text = got[1].as_ref().unwrap_err().with_causes();
    assert_eq!(text, "stage `chunked` failed at sample position 7: seven");
    let batches = MapDataset::range(7)
        .unwrap()
        .map(mapped.clone())
        .unwrap()
        .batch(BatchOptions::new(7))
        .unwrap();
    assert_eq!(batches.load(PipelineOptions::new()).unwrap().count(), 1);
    assert_eq!(mapped.0.lock().unwrap().last(), Some(&7));
}

#[test]
fn a_panic_or_too_few_results_are_errors_of_the_chunk() {
    struct Few;
    impl Predicate for Few {
        fn keeps(&self, _: &Element) -> Result<bool> {
            Ok(true)
        }

        fn keeps_many(&self, elements: &[&Element]) -> Vec<Result<bool>> {
            elements.iter().skip(1).map(|_| Ok(true)).collect()
        }
    }
    let range = MapDataset::range(5).unwrap();
    let got = range
        .clone()
        .filter_shared("few", Arc::new(Few))
        .get_many(&[0, 1, 2]);
    assert!(got.iter().all(|item| {
        item.as_ref()
            .is_err_and(|error| error.with_causes().contains("2 results, wanted 3"))
    }));
    let panics = range.map(function("panics", |element: Element| {
        assert!(element.array("value")?.item::<i64>() != Some(1), "one");
        Ok(element)
    }));
    let got = panics.unwrap().get_many(&[0, 1, 2]);
    assert!(got[0].is_ok() && got[2].is_ok(), "each by itself");
    assert!(
        got[1]
            .as_ref()
            .unwrap_err()
            .with_causes()
            .contains("it panicked: one")
    );
}
