//! A queue between a thread that may block and a worker that may not, bounded in bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use timely::scheduling::SyncActivator;

use crate::job::lock;

#[derive(Debug)]
struct State<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    sender_gone: bool,
    receiver_gone: bool,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    space: Condvar,
    limit_bytes: usize,
}

/// The blocking end, for a thread of its own.
pub(crate) struct Sender<T> {
    shared: Arc<Shared<T>>,
    wake: SyncActivator,
}

/// The end on a worker, which never blocks.
pub(crate) struct Receiver<T>(Arc<Shared<T>>);

/// What the worker found in the queue.
pub(crate) enum Next<T> {
    Item(T),
    /// Nothing now; the operator will be activated.
    Later,
    /// Nothing any more.
    End,
}

/// A queue that holds `limit_bytes`, or one item if that is larger. `wake` activates the operator that receives.
pub(crate) fn queue<T>(limit_bytes: usize, wake: SyncActivator) -> (Sender<T>, Receiver<T>) {
    let state = State {
        items: VecDeque::new(),
        bytes: 0,
        sender_gone: false,
        receiver_gone: false,
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(state),
        space: Condvar::new(),
        limit_bytes,
    });
    (
        Sender {
            shared: shared.clone(),
            wake,
        },
        Receiver(shared),
    )
}

impl<T> Sender<T> {
    /// Waits for space and puts an item in. False: the worker has gone, give up.
    pub(crate) fn send(&self, item: T, bytes: usize) -> bool {
        let mut state = lock(&self.shared.state);
        while !state.receiver_gone && state.bytes > 0 && state.bytes + bytes > self.shared.limit_bytes {
            state = self
                .shared
                .space
                .wait(state)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if state.receiver_gone {
            return false;
        }
        let was_empty = state.items.is_empty();
        state.items.push_back((item, bytes));
        state.bytes += bytes;
        drop(state);
        if was_empty {
            // The worker may have gone; then there is nobody to wake.
            let _ = self.wake.activate();
        }
        true
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        lock(&self.shared.state).sender_gone = true;
        let _ = self.wake.activate();
    }
}

impl<T> Receiver<T> {
    pub(crate) fn next(&self) -> Next<T> {
        let mut state = lock(&self.0.state);
        match state.items.pop_front() {
            Some((item, bytes)) => {
                state.bytes -= bytes;
                drop(state);
                self.0.space.notify_one();
                Next::Item(item)
            }
            None if state.sender_gone => Next::End,
            None => Next::Later,
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.receiver_gone = true;
        let items = std::mem::take(&mut state.items);
        drop(state);
        self.0.space.notify_all();
        drop(items);
    }
}
