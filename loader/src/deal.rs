//! Deals the positions of the stream to steps and hosts: ORDER.md, sections 5 and 6.

use std::ops::Range;

use crate::error::{Error, Result};

/// Positions above this are refused, so that no sum of a position and a batch overflows.
pub(crate) const MAX_POSITION: u64 = 1 << 63;

/// What the dealing of a stream depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dealing {
    /// Records of an epoch.
    pub records: u64,
    /// Rows of a batch on one host.
    pub batch_size: u64,
    /// This host, 0-based.
    pub shard_index: u64,
    /// Number of hosts.
    pub shard_count: u64,
    /// Leaves out global batches that are not full.
    pub drop_remainder: bool,
    /// Where the stream ends, counted from its start; `None`: it is endless.
    pub num_epochs: Option<u64>,
}

/// One step of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Epoch that all its rows belong to, 0-based.
    pub epoch: u64,
    /// Positions of the global batch; a consumer stands at its end afterwards.
    pub global: Range<u64>,
    /// Positions of this host's rows; empty where a short global batch has none for it.
    pub rows: Range<u64>,
}

impl Dealing {
    /// Checks that the numbers make sense together.
    ///
    /// # Errors
    /// A batch of no rows, a shard index that is not below the count, a global batch or a stream beyond 2^63, or an endless stream
    /// that would never give a batch.
    pub fn check(&self) -> Result<()> {
        let refuse = |text: String| Err(Error::Options(text));
        if self.batch_size == 0 {
            return refuse("the batch size is 0, wanted at least 1".to_string());
        }
        if self.shard_count == 0 {
            return refuse("the shard count is 0, wanted at least 1".to_string());
        }
        if self.shard_index >= self.shard_count {
            return refuse(format!(
                "shard {}/{} is out of range: with {} shards the first number is 0 to {}",
                self.shard_index,
                self.shard_count,
                self.shard_count,
                self.shard_count - 1
            ));
        }
        match self.batch_size.checked_mul(self.shard_count) {
            Some(global) if global <= MAX_POSITION => {}
            _ => {
                return refuse(format!(
                    "{} shards of {} rows are more than 2^63",
                    self.shard_count, self.batch_size
                ));
            }
        }
        match self.num_epochs {
            Some(epochs) if u128::from(epochs) * u128::from(self.records) > u128::from(MAX_POSITION) => refuse(
                format!(
                    "{epochs} epochs of {} records are more than 2^63 samples",
                    self.records
                ),
            ),
            None if self.records == 0 => {
                refuse("the split has no records, so an endless stream of it gives no batch; set the number of epochs".into())
            }
            None if self.steps_per_epoch() == 0 => refuse(format!(
                "with drop_remainder no batch ever comes: a global batch has {} rows ({} shards of {}), an epoch {}",
                self.global_batch_size(),
                self.shard_count,
                self.batch_size,
                self.records
            )),
            _ => Ok(()),
        }
    }

    /// Rows of a full batch over all hosts.
    pub fn global_batch_size(&self) -> u64 {
        self.batch_size * self.shard_count
    }

    /// Steps of a whole epoch: the same on all hosts.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps(self.records)
    }

    /// Steps of the stream from a position to its end; `None`: it is endless.
    pub fn steps_from(&self, position: u64) -> Option<u64> {
        let end = self.num_epochs? * self.records;
        if position >= end {
            return Some(0);
        }
        // A position inside an epoch: its rest is cut into batches of its own.
        let rest = self.records - position % self.records;
        let later = (end - position - rest) / self.records;
        Some(self.steps(rest) + later * self.steps_per_epoch())
    }

    /// The position after some more steps, or the end. O(1).
    pub fn skip(&self, position: u64, steps: u64) -> u64 {
        let Some(before) = steps.checked_sub(1).filter(|_| self.records > 0) else {
            return position;
        };
        let end = self.num_epochs.map_or(MAX_POSITION, |epochs| {
            epochs.saturating_mul(self.records).min(MAX_POSITION)
        });
        // Where the last of them begins: in this epoch, or after its rest and some whole epochs.
        let rest = self.records - position % self.records;
        let own = self.steps(rest);
        let start = match before.checked_sub(own) {
            None => u128::from(position) + u128::from(before) * u128::from(self.global_batch_size()),
            Some(later) => {
                let each = self.steps_per_epoch().max(1);
                let epochs = u128::from(later / each) * u128::from(self.records);
                let within = u128::from(later % each) * u128::from(self.global_batch_size());
                u128::from(position + rest) + epochs + within
            }
        };
        let start = u64::try_from(start).unwrap_or(u64::MAX).min(end);
        self.step(start).map_or(start, |step| step.global.end)
    }

    fn steps(&self, records: u64) -> u64 {
        if self.drop_remainder {
            records / self.global_batch_size()
        } else {
            records.div_ceil(self.global_batch_size())
        }
    }

    /// The step that begins at `position`, or the next one there is. `None`: the stream has ended.
    pub fn step(&self, mut position: u64) -> Option<Step> {
        if self.records == 0 {
            return None;
        }
        loop {
            let epoch = position / self.records;
            if self.num_epochs.is_some_and(|epochs| epoch >= epochs) || position > MAX_POSITION {
                return None;
            }
            let epoch_end = (epoch + 1).checked_mul(self.records)?;
            let global = position..epoch_end.min(position + self.global_batch_size());
            if self.drop_remainder && global.end - global.start < self.global_batch_size() {
                if self.steps_per_epoch() == 0 {
                    return None;
                }
                position = epoch_end;
                continue;
            }
            return Some(Step {
                epoch,
                rows: self.share(&global),
                global,
            });
        }
    }

    /// This host's run in a global batch.
    fn share(&self, global: &Range<u64>) -> Range<u64> {
        let rows = global.end - global.start;
        let (each, more) = (rows / self.shard_count, rows % self.shard_count);
        let start = global.start + self.shard_index * each + self.shard_index.min(more);
        start..start + each + u64::from(self.shard_index < more)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::order::{Order, Sequence};

    fn steps(dealing: &Dealing, mut position: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(step) = dealing.step(position) {
            position = step.global.end;
            steps.push(step);
        }
        steps
    }

    #[test]
    fn equals_the_reference() {
        let vectors: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/golden/order/vectors.json")).unwrap();
        let mut compared = 0;
        for row in ["dealt", "resumed"]
            .iter()
            .flat_map(|part| vectors[*part].as_array().unwrap())
        {
            let number = |field: &str| row[field].as_u64().unwrap();
            for host in 0..number("hosts") {
                let dealing = Dealing {
                    records: number("n"),
                    batch_size: number("batch"),
                    shard_index: host,
                    shard_count: number("hosts"),
                    drop_remainder: row["drop_remainder"].as_bool().unwrap(),
                    num_epochs: Some(number("epochs")),
                };
                dealing.check().unwrap();
                let sequence = Sequence::new(Order::Prep, number("seed"), number("n")).unwrap();
                let position = row["position"].as_u64().unwrap_or(0);
                let batches: Vec<Vec<u64>> = steps(&dealing, position)
                    .into_iter()
                    .map(|step| {
                        let mut indices = Vec::new();
                        sequence.indices(step.rows, &mut None, &mut indices);
                        indices
                    })
                    .collect();
                assert_eq!(serde_json::json!(batches), row["batches"][host as usize], "{row}");
                assert_eq!(dealing.steps_from(position), Some(batches.len() as u64), "{row}");
                compared += batches.len();
            }
        }
        assert!(compared > 100, "{compared}");
    }

    #[test]
    fn all_hosts_take_equal_steps_whatever_the_remainder() {
        for records in [0, 1, 99, 100, 103] {
            for shard_count in 1..=4 {
                for drop_remainder in [false, true] {
                    let dealt: Vec<Vec<Step>> = (0..shard_count)
                        .map(|shard_index| {
                            let dealing = Dealing {
                                records,
                                batch_size: 4,
                                shard_index,
                                shard_count,
                                drop_remainder,
                                num_epochs: Some(2),
                            };
                            let steps = steps(&dealing, 0);
                            assert_eq!(dealing.steps_from(0), Some(steps.len() as u64));
                            assert_eq!(steps.len() as u64, 2 * dealing.steps_per_epoch());
                            steps
                        })
                        .collect();
                    for step in 0..dealt[0].len() {
                        let sizes: Vec<u64> = dealt
                            .iter()
                            .map(|host| host[step].rows.end - host[step].rows.start)
                            .collect();
                        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
                        assert!(most - least <= 1 && *most <= 4);
                        assert!(!drop_remainder || *least == 4);
                        let last = (step + 1) % (dealt[0].len() / 2) == 0;
                        assert!(last || *least == 4, "only the last one is short");
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Together the hosts see each position of the stream once, in order, and what is dropped is the tail of an epoch.
        #[test]
        fn hosts_partition_the_stream(
            records in 0u64..500, batch_size in 1u64..40, shard_count in 1u64..12, drop_remainder: bool, start in 0u64..1_500,
        ) {
            let dealing = |shard_index| Dealing {
                records, batch_size, shard_index, shard_count, drop_remainder, num_epochs: Some(3),
            };
            let hosts: Vec<Vec<Step>> = (0..shard_count).map(|host| steps(&dealing(host), start)).collect();
            let seen: Vec<u64> = (0..hosts[0].len())
                .flat_map(|step| hosts.iter().flat_map(move |host| host[step].rows.clone()))
                .collect();
            let end = 3 * records;
            let expected: Vec<u64> = (start.min(end)..end)
                .filter(|position| {
                    let epoch_start = (position / records * records).max(start);
                    let rest = (position / records + 1) * records - epoch_start;
                    let full = rest - rest % (batch_size * shard_count);
                    !drop_remainder || position - epoch_start < full
                })
                .collect();
            prop_assert_eq!(seen, expected);
            prop_assert!(hosts.iter().all(|host| host.len() == hosts[0].len()));
            prop_assert_eq!(dealing(0).steps_from(start), Some(hosts[0].len() as u64));
        }

        /// Going past steps at once is as going past them one by one.
        #[test]
        fn skipping_is_stepping(
            records in 0u64..60, batch_size in 1u64..9, shard_count in 1u64..4, drop_remainder: bool, start in 0u64..200, count in 0u64..60,
        ) {
            let dealing = Dealing {
                records, batch_size, shard_index: 0, shard_count, drop_remainder, num_epochs: Some(3),
            };
            let all = steps(&dealing, start);
            let wanted = match count {
                0 => start,
                count if count <= all.len() as u64 => all[count as usize - 1].global.end,
                _ => dealing.skip(start, count),
            };
            prop_assert_eq!(dealing.skip(start, count), wanted);
            if count > all.len() as u64 {
                prop_assert_eq!(dealing.step(wanted), None);
            }
        }

        /// Global batches depend on the product of hosts and rows only.
        #[test]
        fn equal_global_batches_for_any_host_count(records in 1u64..2_000, factor in 1u64..6, start in 0u64..2_000) {
            let globals = |shard_count: u64| {
                let dealing = Dealing {
                    records, batch_size: 12 * factor / shard_count, shard_index: shard_count - 1, shard_count,
                    drop_remainder: false, num_epochs: Some(2),
                };
                steps(&dealing, start).into_iter().map(|step| step.global).collect::<Vec<_>>()
            };
            for shard_count in [2, 3, 4, 6, 12] {
                prop_assert_eq!(globals(1), globals(shard_count));
            }
        }
    }

    #[test]
    fn endless_streams_that_give_nothing_are_refused() {
        let dealing = Dealing {
            records: 10,
            batch_size: 8,
            shard_index: 0,
            shard_count: 2,
            drop_remainder: true,
            num_epochs: None,
        };
        let text = dealing.check().unwrap_err().to_string();
        assert!(text.contains("16 rows"), "{text}");
        assert_eq!(dealing.step(0), None);
        let empty = Dealing {
            records: 0,
            drop_remainder: false,
            ..dealing
        };
        assert!(empty.check().unwrap_err().to_string().contains("no records"));
        assert!(
            Dealing {
                num_epochs: Some(3),
                ..empty
            }
            .check()
            .is_ok()
        );
    }

    #[test]
    fn wrong_numbers_are_named() {
        let good = Dealing {
            records: 10,
            batch_size: 1,
            shard_index: 0,
            shard_count: 1,
            drop_remainder: false,
            num_epochs: Some(1),
        };
        let text = |dealing: Dealing| dealing.check().unwrap_err().to_string();
        assert_eq!(
            text(Dealing {
                shard_index: 8,
                shard_count: 8,
                ..good
            }),
            "shard 8/8 is out of range: with 8 shards the first number is 0 to 7"
        );
        assert!(
            text(Dealing {
                batch_size: 0,
                ..good
            })
            .contains("batch size is 0")
        );
        assert!(
            text(Dealing {
                shard_count: 0,
                ..good
            })
            .contains("shard count is 0")
        );
        assert!(
            text(Dealing {
                batch_size: u64::MAX,
                ..good
            })
            .contains("2^63")
        );
        assert!(
            text(Dealing {
                num_epochs: Some(u64::MAX),
                ..good
            })
            .contains("epochs")
        );
    }

    #[test]
    fn far_positions_end_without_overflow() {
        let dealing = Dealing {
            records: 3,
            batch_size: 1 << 40,
            shard_index: 0,
            shard_count: 1,
            drop_remainder: false,
            num_epochs: None,
        };
        assert!(dealing.step(MAX_POSITION).is_some());
        assert_eq!(dealing.step(u64::MAX), None);
        assert_eq!(dealing.steps_from(7), None);
    }
}
