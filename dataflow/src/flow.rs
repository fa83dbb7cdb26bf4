//! Which sources share a window of epochs, and which stages tell them that an epoch is done.
//!
//! Every source has a *flow*: its own epochs, let in by its own feedback edge, and acknowledged by whatever its items end in. Where two
//! collections meet (a union), their flows become one: from then on the epochs of both wait for each other. That must not happen
//! to two flows of which one starts when the other has ended (a sort, a table made from small items): the later one can't start before the
//! earlier one is through, which would have to wait for the later one. [`Flows`] keeps account of what waits for what, and refuses it.

use timely::dataflow::Scope;
use timely::dataflow::operators::feedback::Handle;
use timely::dataflow::operators::{Concatenate, ConnectLoop};

use crate::pipeline::{Acks, Epoch};

/// A flow of the graph. Names the same flow as another one once the two have met.
pub(crate) type FlowId = usize;

#[derive(Default)]
struct Flow<'scope> {
    /// The flow that this one is part of.
    joined: Option<FlowId>,
    /// The flows that end before this one begins.
    after: Vec<FlowId>,
    /// Feedback edges into the sources.
    loops: Vec<Handle<'scope, Epoch, Vec<()>>>,
    /// Where the epochs end.
    acks: Vec<Acks<'scope>>,
}

/// All flows of a graph under construction.
#[derive(Default)]
pub(crate) struct Flows<'scope>(Vec<Flow<'scope>>);

impl<'scope> Flows<'scope> {
    /// A new flow, with the feedback edge of its source where it has one.
    pub(crate) fn open(&mut self, feedback: Option<Handle<'scope, Epoch, Vec<()>>>) -> FlowId {
        self.0.push(Flow {
            loops: feedback.into_iter().collect(),
            ..Flow::default()
        });
        self.0.len() - 1
    }

    fn root(&self, mut flow: FlowId) -> FlowId {
        while let Some(whole) = self.0[flow].joined {
            flow = whole;
        }
        flow
    }

    /// Notes a stage at which the flow's epochs end.
    pub(crate) fn acknowledge(&mut self, flow: FlowId, acks: Acks<'scope>) {
        let root = self.root(flow);
        self.0[root].acks.push(acks);
    }

    /// Whether `flow`, directly or not, waits for the end of `other`.
    fn waits_for(&self, flow: FlowId, other: FlowId) -> bool {
        let other = self.root(other);
        let mut seen = vec![false; self.0.len()];
        let mut left = vec![self.root(flow)];
        while let Some(flow) = left.pop() {
            for before in &self.0[flow].after {
                let before = self.root(*before);
                if before == other {
                    return true;
                }
                if !std::mem::replace(&mut seen[before], true) {
                    left.push(before);
                }
            }
        }
        false
    }

    /// Notes that `flow` waits for the end of `before`. False: it can't, for they share epochs, or `before` waits for `flow`.
    pub(crate) fn wait(&mut self, flow: FlowId, before: FlowId) -> bool {
        let (flow, before) = (self.root(flow), self.root(before));
        if flow == before || self.waits_for(before, flow) {
            return false;
        }
        self.0[flow].after.push(before);
        true
    }

    /// Makes one flow of two. False: they can't share epochs, for one waits for the end of the other.
    pub(crate) fn join(&mut self, one: FlowId, other: FlowId) -> bool {
        let (one, other) = (self.root(one), self.root(other));
        if one == other {
            return true;
        }
        if self.waits_for(one, other) || self.waits_for(other, one) {
            return false;
        }
        let Flow {
            after, loops, acks, ..
        } = std::mem::take(&mut self.0[other]);
        self.0[other].joined = Some(one);
        let whole = &mut self.0[one];
        whole.after.extend(after);
        whole.loops.extend(loops);
        whole.acks.extend(acks);
        true
    }

    /// Leads the acknowledgements of each flow back to its sources, and gives a stream that ends when all flows have. Has to be called
    /// whatever happened to the graph: timely aborts the program over a feedback edge that isn't connected.
    pub(crate) fn connect(&mut self, scope: Scope<'scope, Epoch>) -> Acks<'scope> {
        let mut ends = Vec::new();
        for flow in std::mem::take(&mut self.0) {
            let done = scope.concatenate(flow.acks);
            for feedback in flow.loops {
                done.clone().connect_loop(feedback);
            }
            ends.push(done);
        }
        scope.concatenate(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_meet_unless_one_waits_for_the_other() {
        let mut flows = Flows::default();
        let [a, b, c, d] = [(); 4].map(|()| flows.open(None));
        assert!(flows.wait(b, a), "b starts after a");
        assert!(flows.wait(c, b), "c starts after b, and so after a");
        assert!(!flows.join(a, c) && !flows.join(c, a));
        assert!(!flows.wait(a, c), "that would be a circle");
        assert!(flows.join(c, d), "d is on its own");
        assert!(flows.join(d, c), "they are one already");
        assert!(
            !flows.join(d, a) && !flows.wait(a, d),
            "d now has what c waits for"
        );
        assert!(!flows.wait(c, d));
        let e = flows.open(None);
        assert!(flows.join(e, a));
        assert!(!flows.join(e, b) && flows.waits_for(d, e));
    }
}
