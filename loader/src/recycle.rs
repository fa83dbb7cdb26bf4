//! Buffers that are used again. Fresh memory costs the system more than what is written into it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, TryLockError};

use crate::error::{Error, Result};

/// Room for an array whose size is the caller's: one that there is no memory for is an error, where `Vec::with_capacity` ends the process.
pub(crate) fn reserved<T>(shape: &[usize]) -> Result<Vec<T>> {
    let mut room = Vec::new();
    let elements = shape
        .iter()
        .try_fold(1usize, |elements, &size| elements.checked_mul(size));
    if elements.is_some_and(|elements| room.try_reserve_exact(elements).is_ok()) {
        return Ok(room);
    }
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    Err(Error::Element(format!(
        "there is no memory for {} x {} bytes",
        sizes.join(" x "),
        size_of::<T>()
    )))
}

/// An array of a shape with `value` everywhere: see [`reserved`].
pub(crate) fn filled(value: &[u8], shape: &[usize]) -> Result<Vec<u8>> {
    let mut data = reserved(&[shape, &[value.len()]].concat())?;
    let elements = shape.iter().product();
    match value {
        [first, rest @ ..] if rest.iter().all(|byte| byte == first) => {
            data.resize(elements * value.len(), *first)
        }
        _ => (0..elements).for_each(|_| data.extend_from_slice(value)),
    }
    Ok(data)
}

/// Buffers at rest. Nobody waits for it: who finds it in use, as all do in a child of a fork that happened meanwhile, takes fresh memory.
#[derive(Debug)]
pub(crate) struct Recycler {
    at_rest: Mutex<AtRest>,
    most_bytes: usize,
}

#[derive(Debug, Default)]
struct AtRest {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Recycler {
    /// Keeps buffers of up to so many bytes.
    pub(crate) fn new(most_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            at_rest: Mutex::default(),
            most_bytes,
        })
    }

    fn with<T>(&self, work: impl FnOnce(&mut AtRest) -> T) -> Option<T> {
        match self.at_rest.try_lock() {
            Ok(mut at_rest) => Some(work(&mut at_rest)),
            Err(TryLockError::Poisoned(poisoned)) => Some(work(&mut poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A buffer of `length` bytes, of which nothing is known.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn take(self: &Arc<Self>, length: usize) -> Result<Memory> {
        let fits = |buffer: &Vec<u8>| (length..=length.saturating_mul(2)).contains(&buffer.capacity());
        let found = self.with(|at_rest| {
            // The last one is the likeliest to be in a cache. Where none fits, the oldest makes way for those that will.
            let fitting = at_rest.buffers.iter().rposition(fits);
            let at = fitting.or_else(|| (!at_rest.buffers.is_empty()).then_some(0))?;
            let buffer = at_rest.buffers.remove(at);
            at_rest.bytes -= buffer.capacity();
            Some(buffer)
        });
        let buffer = match found.flatten() {
            Some(mut buffer) if fits(&buffer) => {
                buffer.resize(length, 0);
                buffer
            }
            _ => filled(&[0], &[length])?,
        };
        Ok(Memory {
            buffer,
            home: Some(Arc::clone(self)),
        })
    }
}

/// Bytes that nothing else sees. Those of a pipeline's batches are used for a later batch when this is dropped, by any thread.
#[derive(Debug)]
pub struct Memory {
    buffer: Vec<u8>,
    /// Where it comes to rest.
    home: Option<Arc<Recycler>>,
}

impl From<Vec<u8>> for Memory {
    fn from(buffer: Vec<u8>) -> Self {
        Self { buffer, home: None }
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(home) = &self.home else {
            return;
        };
        let buffer = std::mem::take(&mut self.buffer);
        let bytes = buffer.capacity();
        home.with(|at_rest| {
            if at_rest.bytes + bytes <= home.most_bytes {
                at_rest.bytes += bytes;
                at_rest.buffers.push(buffer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_and_others_make_way() {
        let home = Recycler::new(1 << 20);
        let mut memory = home.take(1000).unwrap();
        assert_eq!(*memory, [0; 1000]);
        memory.fill(7);
        let place = memory.as_ptr();
        drop(memory);
        // A shorter one fits into it, one of half its size or less does not.
        let again = home.take(600).unwrap();
        assert_eq!((again.as_ptr(), &*again), (place, &[7; 600][..]));
        let other = home.take(600).unwrap();
        assert_ne!(other.as_ptr(), place);
        drop((other, again));
        assert_eq!(*home.take(100).unwrap(), [0; 100]);
        assert_eq!(home.with(|at_rest| at_rest.buffers.len()), Some(2));
    }

    #[test]
    fn no_more_is_kept_than_was_said() {
        let home = Recycler::new(2500);
        let buffers: Vec<Memory> = (0..4).map(|_| home.take(1000).unwrap()).collect();
        drop(buffers);
        let kept = || home.with(|at_rest| (at_rest.buffers.len(), at_rest.bytes));
        assert_eq!(kept(), Some((2, 2000)));
        // What is in use elsewhere is not waited for.
        let held = home.at_rest.lock().unwrap();
        let memory = home.take(1000).unwrap();
        assert_eq!(*memory, [0; 1000]);
        drop(memory);
        drop(held);
        assert_eq!(kept(), Some((2, 2000)));
    }

    #[test]
    fn what_no_memory_holds_is_an_error() {
        let error = reserved::<f32>(&[1 << 40, 1 << 10]).unwrap_err().to_string();
        assert_eq!(error, "there is no memory for 1099511627776 x 1024 x 4 bytes");
        assert!(filled(&[1, 2], &[usize::MAX, 2]).is_err());
        assert!(Recycler::new(0).take(usize::MAX).is_err());
        assert_eq!(filled(&[1, 2], &[1, 2]).unwrap(), [1, 2, 1, 2]);
        assert_eq!(filled(&[7, 7], &[3]).unwrap(), [7; 6]);
    }
}
