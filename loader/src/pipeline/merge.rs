//! The round-robin merge of virtual streams: ORDER.md, section 10.

/// Where each output of the merged stream comes from. Round `j` has output `j` of each stream that has as many, in the order of streams.
///
/// Streams are taken to have no end until one is told. Finds a place in O(ends), holds O(streams) for each.
#[derive(Debug, Clone)]
pub(crate) struct Merge {
    streams: u64,
    ends: Vec<Option<u64>>,
    segments: Vec<Segment>,
}

/// Rounds with the same streams.
#[derive(Debug, Clone)]
struct Segment {
    round: u64,
    position: u64,
    alive: Vec<u64>,
}

impl Merge {
    pub(crate) fn new(streams: u64, ends: &[(u64, u64)]) -> Self {
        let mut merge = Self {
            streams,
            ends: vec![None; usize::try_from(streams).unwrap_or(usize::MAX)],
            segments: Vec::new(),
        };
        for &(stream, end) in ends {
            merge.ends[stream as usize] = Some(end);
        }
        merge.lay_out();
        merge
    }

    /// A stream has so many outputs.
    pub(crate) fn end(&mut self, stream: u64, outputs: u64) {
        self.ends[stream as usize] = Some(outputs);
        self.lay_out();
    }

    /// How many outputs a stream has, where it is known.
    pub(crate) fn known_end(&self, stream: u64) -> Option<u64> {
        self.ends[stream as usize]
    }

    fn lay_out(&mut self) {
        let mut rounds: Vec<u64> = self.ends.iter().filter_map(|end| *end).collect();
        rounds.push(0);
        rounds.sort_unstable();
        rounds.dedup();
        self.segments.clear();
        let mut position = 0;
        for (at, &round) in rounds.iter().enumerate() {
            let alive: Vec<u64> = (0..self.streams)
                .filter(|&stream| self.ends[stream as usize].is_none_or(|end| end > round))
                .collect();
            let length = rounds
                .get(at + 1)
                .map_or(0, |next| (next - round) * alive.len() as u64);
            self.segments.push(Segment {
                round,
                position,
                alive,
            });
            position += length;
        }
    }

    /// Stream and number of an output. `None`: all streams have ended before it.
    pub(crate) fn locate(&self, position: u64) -> Option<(u64, u64)> {
        let at = self
            .segments
            .partition_point(|segment| segment.position <= position)
            .checked_sub(1)?;
        let segment = &self.segments[at];
        let within = position - segment.position;
        let alive = segment.alive.len() as u64;
        (alive > 0).then(|| {
            (
                segment.alive[(within % alive) as usize],
                segment.round + within / alive,
            )
        })
    }

    /// How many outputs of a stream come before a position.
    pub(crate) fn given(&self, stream: u64, position: u64) -> u64 {
        let end = self.known_end(stream).unwrap_or(u64::MAX);
        match self.locate(position) {
            None => end,
            Some((next, round)) => end.min(round + u64::from(stream < next)),
        }
    }

    /// Outputs of all streams, where all ends are known.
    pub(crate) fn total(&self) -> Option<u64> {
        self.segments
            .last()
            .filter(|segment| segment.alive.is_empty())
            .map(|segment| segment.position)
    }

    /// Whether a stream has no output from a position on.
    pub(crate) fn is_over(&self, stream: u64, position: u64) -> bool {
        self.known_end(stream)
            .is_some_and(|end| match self.locate(position) {
                None => true,
                Some((next, number)) => (end, stream) < (number, next),
            })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn outputs_come_in_rounds(ends in prop::collection::vec(0u64..9, 1..7)) {
            let mut wanted = Vec::new();
            for round in 0..9 {
                wanted.extend((0..ends.len()).filter(|&at| ends[at] > round).map(|at| (at as u64, round)));
            }
            let known: Vec<(u64, u64)> = ends.iter().enumerate().map(|(at, &end)| (at as u64, end)).collect();
            let merge = Merge::new(ends.len() as u64, &known);
            let found: Vec<_> = (0..).map_while(|position| merge.locate(position)).collect();
            prop_assert_eq!(&found, &wanted);
            prop_assert_eq!(merge.total(), Some(wanted.len() as u64));
            for position in 0..=wanted.len() {
                for stream in 0..ends.len() as u64 {
                    let before = wanted[..position].iter().filter(|(own, _)| *own == stream).count() as u64;
                    prop_assert_eq!(merge.given(stream, position as u64), before);
                }
            }
            // Ends that are learned when they are met change nothing before them.
            let mut learning = Merge::new(ends.len() as u64, &[]);
            let mut found = Vec::new();
            while let Some((stream, number)) = learning.locate(found.len() as u64) {
                if number == ends[stream as usize] {
                    prop_assert!(!learning.is_over(stream, found.len() as u64));
                    learning.end(stream, number);
                    prop_assert!(learning.is_over(stream, found.len() as u64));
                } else {
                    found.push((stream, number));
                }
            }
            prop_assert_eq!(found, wanted);
        }
    }
}
