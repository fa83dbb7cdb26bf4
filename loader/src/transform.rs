//! What a stage does to one element, and where it gets its random numbers from.

use std::fmt;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

use crate::element::{Element, ElementSpec};
use crate::error::Result;
use crate::stages::caught;

/// One element to one element: the work of a `map` or `random_map` stage.
///
/// It has to be a pure function of the element, its own parameters and the generator: nothing else is saved in a state. It is called by
/// several threads at the same time.
pub trait Transform: Send + Sync {
    /// What it is called in the pipeline's text, in errors and in profiles: `resize`. A random one draws other numbers under another name.
    fn name(&self) -> String;

    /// All that its result depends on, for the pipeline's text: `size=[224, 224], method=bilinear`. Two transforms of the same name and
    /// parameters are taken to be the same.
    fn parameters(&self) -> String;

    /// Whether it draws from the generator. One that says no and draws nevertheless has the numbers of a random one.
    fn is_random(&self) -> bool {
        false
    }

    /// Looks at its parameters, when it is put into a pipeline: [`spec`](Self::spec) cannot where nothing is known of the input.
    ///
    /// # Errors
    /// Parameters that fit no input: [`Error::Element`](crate::Error::Element), naming what was found and wanted.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// What comes out, before there are data.
    ///
    /// # Errors
    /// An input that it cannot work on: [`Error::Element`](crate::Error::Element), naming what was found and wanted.
    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec>;

    /// Does it.
    ///
    /// # Errors
    /// [`Error::Element`](crate::Error::Element) or [`Error::User`](crate::Error::User); stage, sample position and record are added by the
    /// pipeline.
    fn apply(&self, element: Element, generator: &mut Generator) -> Result<Element>;

    /// Does it for several elements, each with its generator: for work that costs less by the dozen. One result for each element.
    fn apply_many(&self, elements: Vec<Element>, generators: &mut [Generator]) -> Vec<Result<Element>> {
        let pairs = elements.into_iter().zip(generators);
        pairs
            .map(|(element, generator)| caught(|| self.apply(element, generator)))
            .collect()
    }
}

/// A function of the caller's as a transform: see [`function`] and [`random_function`].
#[derive(Clone)]
pub struct Function<F> {
    name: String,
    parameters: String,
    is_random: bool,
    spec: Option<ElementSpec>,
    apply: F,
}

/// Makes a transform of a function. `name` stands for it in states, with [`Function::parameters`].
///
/// # Examples
/// ```
/// use prep_loader::MapDataset;
/// use prep_loader::element::Array;
/// use prep_loader::transform::function;
///
/// let doubled = MapDataset::range(3)?.map(function("double", |mut element| {
///     let value: i64 = element.array("value")?.item().unwrap_or(0);
///     element.set("value", Array::scalar(2 * value));
///     Ok(element)
/// }))?;
/// assert_eq!(doubled.get(2)?.unwrap().array("value")?.item::<i64>(), Some(4));
/// # Ok::<(), prep_loader::Error>(())
/// ```
pub fn function(
    name: &str,
    apply: impl Fn(Element) -> Result<Element> + Send + Sync,
) -> Function<impl Fn(Element, &mut Generator) -> Result<Element> + Send + Sync> {
    Function {
        name: name.to_string(),
        parameters: String::new(),
        is_random: false,
        spec: None,
        apply: move |element, _: &mut Generator| apply(element),
    }
}

/// Makes a transform of a function that draws random numbers.
pub fn random_function<F>(name: &str, apply: F) -> Function<F>
where
    F: Fn(Element, &mut Generator) -> Result<Element> + Send + Sync,
{
    Function {
        name: name.to_string(),
        parameters: String::new(),
        is_random: true,
        spec: None,
        apply,
    }
}

impl<F> Function<F> {
    /// What the function's result depends on beside the element, for the pipeline's text. Default: nothing.
    #[must_use]
    pub fn parameters(mut self, parameters: impl Into<String>) -> Self {
        self.parameters = parameters.into();
        self
    }

    /// What it makes. Default: what it is given.
    #[must_use]
    pub fn spec(mut self, spec: ElementSpec) -> Self {
        self.spec = Some(spec);
        self
    }
}

impl<F> Transform for Function<F>
where
    F: Fn(Element, &mut Generator) -> Result<Element> + Send + Sync,
{
    fn name(&self) -> String {
        self.name.clone()
    }

    fn parameters(&self) -> String {
        self.parameters.clone()
    }

    fn is_random(&self) -> bool {
        self.is_random
    }

    fn spec(&self, input: &ElementSpec) -> Result<ElementSpec> {
        Ok(self.spec.clone().unwrap_or_else(|| input.clone()))
    }

    fn apply(&self, element: Element, generator: &mut Generator) -> Result<Element> {
        (self.apply)(element, generator)
    }
}

impl<F> fmt::Debug for Function<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.name)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

/// Random numbers keyed by seed, stage and sample position, and by nothing else: ORDER.md, section 9. Costs nothing until it is asked.
///
/// # Examples
/// ```
/// use prep_loader::transform::Generator;
///
/// let mut generator = Generator::new(42, "flip", 1000);
/// let (first, chance) = (generator.next_u64(), generator.unit());
/// assert!((0.0..1.0).contains(&chance));
/// assert_eq!(Generator::new(42, "flip", 1000).next_u64(), first);
/// assert_ne!(Generator::new(42, "flip", 1001).next_u64(), first);
/// ```
#[derive(Clone)]
pub struct Generator {
    key: [u8; 32],
    stream: Option<ChaCha20Rng>,
}

impl Generator {
    /// The numbers of one stage for one sample.
    pub fn new(seed: u64, stage: &str, position: u64) -> Self {
        Self::keyed(seed, stage_key(stage), position)
    }

    /// The same of a stage whose name is already hashed.
    pub(crate) fn keyed(seed: u64, stage_key: [u8; 8], position: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&position.to_le_bytes());
        key[16..24].copy_from_slice(&stage_key);
        key[24..].copy_from_slice(b"random\0\0");
        Self { key, stream: None }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let key = self.key;
        self.stream
            .get_or_insert_with(|| ChaCha20Rng::from_seed(key))
            .next_u64()
    }

    /// A number in `0..limit`, one draw: the upper half of a 128-bit product. 0 for a limit of 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in `0.0..1.0`, one draw: 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// A number in `low..high`, one draw.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with a probability, one draw.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator").finish_non_exhaustive()
    }
}

/// The first 8 bytes of SHA-256 over a stage's name.
pub(crate) fn stage_key(stage: &str) -> [u8; 8] {
    let mut key = [0; 8];
    key.copy_from_slice(&Sha256::digest(stage.as_bytes())[..8]);
    key
}
