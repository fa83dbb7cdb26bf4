//! Lays out the state machine of a transposed chunk: which node follows which, so that most steps cost nothing or one byte.
//!
//! The walk over a chunk's fields is a row of tags, read from its end. A node with one successor needs no transition. From any other a
//! transition reaches one of the [`MAX_TRANSITION`] + 1 nodes from its *base* on. Frequent successors, and those that only one tag leads to, have
//! nodes in a list of that tag's own; the others share a public list. A list of more nodes than one transition reaches is cut into blocks,
//! each reached through a no-op node in the block before: a Huffman tree with 64 branches.
//!
//! Which of many possible machines is chosen is free, but the same choice gives the same bytes as Google's writer, so it is made as there:
//! rarest first, ties by the higher number, filled from the back.
//!
//! Source: `TransposeEncoder` in `riegeli/chunk_encoding/transpose_encoder.cc`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::fold::FoldState;

/// Farthest node from a base that one transition reaches. Source: `kMaxTransition` in `transpose_encoder.cc`.
const MAX_TRANSITION: u32 = 63;
/// Nodes of a block.
const BLOCK_NODES: u32 = MAX_TRANSITION + 1;
/// Transitions from one tag to another that are worth a node in the first one's own list. Source: `kMinCountForState`, there.
const MIN_COUNT_FOR_NODE: u64 = 10;
/// Successors that are found by looking at each; from more on through a map.
const FEW: usize = 8;

/// No node, no tag.
pub(super) const NONE: u32 = u32::MAX;

/// A node of the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    /// Number of its tag; [`NONE`] for a no-op.
    pub(super) tag: u32,
    /// What the header says about where to go on: the base, plus the number of nodes where no transition is needed.
    pub(super) next: u32,
}

/// A state machine and the walk through it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) nodes: Vec<Node>,
    /// Where the walk begins.
    pub(super) first: u32,
    pub(super) transitions: Vec<u8>,
}

/// A node while it is laid out.
#[derive(Debug, Clone, Copy)]
struct State {
    tag: u32,
    base: u32,
    /// The no-op node that leads to its block.
    source: u32,
}

const BLANK: State = State {
    tag: NONE,
    base: NONE,
    source: NONE,
};

/// A tag that follows another.
#[derive(Debug)]
struct Successor {
    tag: u32,
    count: u64,
    /// Frequent enough for a node in the list of the tag before it.
    listed: bool,
    /// That node.
    position: u32,
}

#[derive(Debug)]
struct Tag {
    successors: Vec<Successor>,
    /// The successor looked up last: often the next one.
    latest: u32,
    /// Transitions to this tag that no private list serves.
    incoming: u64,
    /// Its node in the public list.
    position: u32,
    /// The no-op in its own list that leads to the public one.
    to_public: u32,
    base: u32,
}

impl Plan {
    /// Plans for a walk over tags numbered from 0 to `num_tags`, read from the end of `walk`. Linear in its length, and in
    /// memory 4 bytes a step beside what the distinct pairs of tags take.
    ///
    /// Gives the reason where the walk is longer than numbers of 32 bits allow.
    pub(super) fn new(walk: &[u32], num_tags: usize) -> Result<Self, String> {
        if walk.len() > (NONE / 4) as usize {
            return Err(format!(
                "{} fields are too many for one transposed chunk",
                walk.len()
            ));
        }
        let (Some(&start), Some(&end)) = (walk.last(), walk.first()) else {
            return Ok(Self {
                nodes: vec![Node { tag: NONE, next: 0 }],
                ..Self::default()
            });
        };
        let mut layout = Layout::new(num_tags);
        let steps = layout.count(walk);
        layout.private_lists();
        let public_base = layout.public_list();
        layout.set_bases(public_base);

        let size = layout.states.len() as u32;
        let nodes = layout
            .states
            .iter()
            .map(|state| match layout.tags.get(state.tag as usize) {
                None => Node {
                    tag: NONE,
                    next: state.base,
                },
                Some(tag) if tag.base == NONE => Node {
                    tag: state.tag,
                    next: 0,
                },
                Some(tag) => Node {
                    tag: state.tag,
                    next: tag.base
                        + if layout.is_implicit(state.tag, end) {
                            size
                        } else {
                            0
                        },
                },
            })
            .collect();
        let first = layout.states.iter().position(|state| state.tag == start);
        Ok(Self {
            nodes,
            first: first.unwrap_or_default() as u32,
            transitions: layout.transitions(walk, &steps, end),
        })
    }
}

struct Layout {
    tags: Vec<Tag>,
    states: Vec<State>,
    /// Tag, and its no-op to the public list.
    to_public: Vec<(u32, u32)>,
    heap: BinaryHeap<(Reverse<u64>, u32)>,
    /// Where a tag is among the successors of a tag that has more than [`FEW`].
    map: HashMap<(u32, u32), u32, FoldState>,
}

impl Layout {
    fn new(num_tags: usize) -> Self {
        let tag = |_| Tag {
            successors: Vec::new(),
            latest: 0,
            incoming: 0,
            position: NONE,
            to_public: NONE,
            base: NONE,
        };
        Self {
            tags: (0..num_tags).map(tag).collect(),
            states: Vec::new(),
            to_public: Vec::new(),
            heap: BinaryHeap::new(),
            map: HashMap::default(),
        }
    }

    /// Counts transitions. Gives for each step, by its place in `walk`, which successor of the tag before it follows.
    fn count(&mut self, walk: &[u32]) -> Vec<u32> {
        let mut steps = vec![0; walk.len()];
        for i in (1..walk.len()).rev() {
            let (from, to) = (walk[i], walk[i - 1]);
            let index = self.successor(from, to).unwrap_or_else(|| self.add(from, to));
            let tag = &mut self.tags[from as usize];
            tag.successors[index].count += 1;
            tag.latest = index as u32;
            steps[i - 1] = index as u32;
            self.tags[to as usize].incoming += 1;
        }
        // So that the first tag has a node even if nothing leads to it.
        if let Some(start) = walk.last() {
            let incoming = &mut self.tags[*start as usize].incoming;
            *incoming = (*incoming).max(1);
        }
        steps
    }

    /// Where `to` is among the successors of `from`.
    fn successor(&self, from: u32, to: u32) -> Option<usize> {
        let Tag {
            successors, latest, ..
        } = &self.tags[from as usize];
        let latest = *latest as usize;
        if successors
            .get(latest)
            .is_some_and(|successor| successor.tag == to)
        {
            Some(latest)
        } else if successors.len() <= FEW {
            successors.iter().position(|successor| successor.tag == to)
        } else {
            self.map.get(&(from, to)).map(|index| *index as usize)
        }
    }

    fn add(&mut self, from: u32, to: u32) -> usize {
        let successors = &mut self.tags[from as usize].successors;
        successors.push(Successor {
            tag: to,
            count: 0,
            listed: false,
            position: NONE,
        });
        let last = successors.len() - 1;
        if last >= FEW {
            let new = if last == FEW { 0 } else { last };
            for (index, successor) in successors.iter().enumerate().skip(new) {
                self.map.insert((from, successor.tag), index as u32);
            }
        }
        last
    }

    /// Gives tags their own lists, and `base` to those that have one.
    fn private_lists(&mut self) {
        for from in 0..self.tags.len() {
            for index in 0..self.tags[from].successors.len() {
                let successor = &mut self.tags[from].successors[index];
                if successor.count >= MIN_COUNT_FOR_NODE {
                    successor.listed = true;
                    let (tag, count) = (successor.tag, successor.count);
                    self.tags[tag as usize].incoming -= count;
                }
            }
        }
        for from in 0..self.tags.len() {
            let size = self.tags[from].successors.len();
            let (mut excluded, mut excluded_count) = (None, 0);
            for index in 0..size {
                let successor = &self.tags[from].successors[index];
                let (tag, count, listed) = (successor.tag, successor.count, successor.listed);
                let incoming = &mut self.tags[tag as usize].incoming;
                if listed || count == *incoming {
                    if !listed {
                        *incoming -= count;
                    }
                    self.heap.push((Reverse(count), tag));
                } else {
                    excluded_count += count;
                    excluded = Some((Reverse(count), tag));
                }
            }
            if self.heap.is_empty() {
                continue;
            }
            if self.heap.len() + 1 == size
                && let Some(one) = excluded
            {
                // A no-op would take its place.
                self.heap.push(one);
                self.tags[one.1 as usize].incoming -= one.0.0;
            }
            if self.heap.len() != size {
                self.heap.push((Reverse(excluded_count), NONE));
            }
            self.tags[from].base = self.states.len() as u32;
            for (tag, position) in self.place() {
                if tag == NONE {
                    self.tags[from].to_public = position;
                    self.to_public.push((from as u32, position));
                } else if let Some(index) = self.successor(from as u32, tag) {
                    self.tags[from].successors[index].position = position;
                }
            }
        }
    }

    /// Makes the list of the remaining tags; gives its base.
    fn public_list(&mut self) -> u32 {
        let base = self.states.len() as u32;
        for (number, tag) in self.tags.iter().enumerate() {
            if tag.incoming != 0 {
                self.heap.push((Reverse(tag.incoming), number as u32));
            }
        }
        if !self.heap.is_empty() {
            for (tag, position) in self.place() {
                self.tags[tag as usize].position = position;
            }
        }
        base
    }

    /// Appends a list of what is in the heap, rarest last. Gives each tag's node; [`NONE`] stands for the no-op to the public list.
    fn place(&mut self) -> Vec<(u32, u32)> {
        let num_tags = self.tags.len();
        let mut count = self.heap.len() as u32;
        let mut placed = Vec::with_capacity(count as usize);
        if count > BLOCK_NODES {
            count += (count - 2) / MAX_TRANSITION;
        }
        let mut position = self.states.len() + count as usize;
        self.states.resize(position, BLANK);
        // All blocks are full but the last one, which is filled first.
        let mut block = (count - 1) % BLOCK_NODES + 1;
        let mut bases: Vec<u32> = Vec::new();
        loop {
            let mut weight = 0;
            for _ in 0..block {
                let Some((Reverse(count), entry)) = self.heap.pop() else {
                    break;
                };
                weight += count;
                position -= 1;
                // Entries beyond the tags are no-ops to blocks of this list.
                if let Some(&base) = (entry as usize)
                    .checked_sub(num_tags)
                    .and_then(|no_op| bases.get(no_op))
                {
                    self.states[position].base = base;
                    for state in self.states[base as usize..].iter_mut().take(BLOCK_NODES as usize) {
                        state.source = position as u32;
                    }
                } else {
                    self.states[position].tag = entry;
                    placed.push((entry, position as u32));
                }
            }
            if self.heap.is_empty() {
                return placed;
            }
            self.heap.push((Reverse(weight), (num_tags + bases.len()) as u32));
            bases.push(position as u32);
            block = BLOCK_NODES;
        }
    }

    /// Sets what is still open: the bases of tags without a list, and of no-ops to the public list.
    fn set_bases(&mut self, public_base: u32) {
        for &(tag, no_op) in &self.to_public {
            let base = self.base_of(tag, public_base);
            self.states[no_op as usize].base = base;
        }
        for tag in 0..self.tags.len() {
            if self.tags[tag].base == NONE {
                self.tags[tag].base = self.base_of(tag as u32, public_base);
            }
        }
    }

    /// The first node of the public list that a tag steps to, or of a block that all its steps can be made from; [`NONE`] if it has no
    /// steps to there.
    fn base_of(&self, tag: u32, public_base: u32) -> u32 {
        let (mut base, mut lowest) = (NONE, NONE);
        for successor in &self.tags[tag as usize].successors {
            if successor.position != NONE {
                continue;
            }
            let mut position = self.tags[successor.tag as usize].position;
            while base > position || position - base > MAX_TRANSITION {
                if base > position {
                    // To the block that leads to this one, or to the block of the first successor.
                    let source = if base == NONE {
                        self.states[position as usize].source
                    } else {
                        let leading = self.states[base as usize].source;
                        lowest = lowest.min(leading);
                        self.states[leading as usize].source
                    };
                    base = match source {
                        NONE => public_base,
                        source => self.states[source as usize].base,
                    };
                } else {
                    position = self.states[position as usize].source;
                }
            }
            lowest = lowest.min(position);
        }
        lowest
    }

    /// Whether a tag's only successor follows without a transition. Never after the last one, where bytes left over tell whether
    /// the walk goes on.
    fn is_implicit(&self, tag: u32, end: u32) -> bool {
        tag != end && self.tags[tag as usize].successors.len() == 1
    }

    fn transitions(&self, walk: &[u32], steps: &[u32], end: u32) -> Vec<u8> {
        let mut transitions = Vec::new();
        let mut path = Vec::new();
        for i in (1..walk.len()).rev() {
            let (from, to) = (walk[i], walk[i - 1]);
            if self.is_implicit(from, end) {
                continue;
            }
            let tag = &self.tags[from as usize];
            let mut base = tag.base;
            let mut position = tag.successors[steps[i - 1] as usize].position;
            if position == NONE {
                if tag.to_public != NONE {
                    self.go(base, tag.to_public, &mut path, &mut transitions);
                    base = self.states[tag.to_public as usize].base;
                }
                position = self.tags[to as usize].position;
            }
            self.go(base, position, &mut path, &mut transitions);
        }
        transitions
    }

    /// Appends the transitions from a base to a node; steps of 0 are counted in the byte before where there is room.
    fn go(&self, base: u32, mut position: u32, path: &mut Vec<u8>, transitions: &mut Vec<u8>) {
        path.clear();
        while base > position || position - base > MAX_TRANSITION {
            let source = self.states[position as usize].source;
            path.push((position - self.states[source as usize].base) as u8);
            position = source;
        }
        path.push((position - base) as u8);
        for &step in path.iter().rev() {
            match transitions.last_mut() {
                Some(last) if step == 0 && *last & 3 < 3 => *last += 1,
                _ => transitions.push(step << 2),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows a plan as a decoder does; gives the tags.
    fn follow(plan: &Plan) -> Vec<u32> {
        let size = plan.nodes.len() as u32;
        let mut tags = Vec::new();
        let (mut node, mut bytes, mut zeros) = (plan.first, plan.transitions.iter(), 0);
        loop {
            let Node { tag, next } = plan.nodes[node as usize];
            if tag != NONE {
                tags.push(tag);
            }
            if next >= size {
                node = next - size;
            } else if zeros > 0 {
                zeros -= 1;
                node = next;
            } else if let Some(byte) = bytes.next() {
                node = next + u32::from(byte >> 2);
                zeros = byte & 3;
            } else {
                return tags;
            }
        }
    }

    fn check(mut walk: Vec<u32>) -> Plan {
        let num_tags = walk.iter().max().map_or(0, |tag| tag + 1);
        let plan = Plan::new(&walk, num_tags as usize).unwrap();
        walk.reverse();
        assert!(follow(&plan) == walk);
        plan
    }

    #[test]
    fn every_walk_is_followed() {
        check(vec![0]);
        check(vec![0, 0]);
        check(vec![0; 1000]);
        check((0..1000).collect());
        check((0..1000).rev().chain(0..1000).collect());
        for (modulus, factor) in [
            (5, 2),
            (64, 7),
            (65, 3),
            (129, 31),
            (1000, 331),
            (5000, 77),
            (9000, 4001),
        ] {
            let mut state = 1u64;
            let walk = (0..30_000)
                .map(|i| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(i * factor);
                    // Low numbers more often.
                    ((state >> 33) % modulus * ((state >> 20) % modulus) / modulus) as u32
                })
                .collect();
            check(walk);
        }
    }

    #[test]
    fn a_row_that_repeats_costs_next_to_nothing() {
        let walk: Vec<u32> = (0..100).cycle().take(100_000).collect();
        let plan = check(walk);
        assert_eq!(plan.nodes.len(), 100);
        // One step of a hundred needs a transition, at the walk's end.
        assert!(plan.transitions.len() <= 1000, "{}", plan.transitions.len());
    }

    #[test]
    fn no_records_are_one_node() {
        let plan = Plan::new(&[], 0).unwrap();
        assert_eq!(
            (plan.nodes, plan.first, plan.transitions),
            (vec![Node { tag: NONE, next: 0 }], 0, vec![])
        );
    }
}
