//! The bytes depend on the records alone.

use prep_dataflow::{Options, Progress, SortOptions};

use crate::support::{Memory, check, expected, write};

#[test]
fn workers_and_memory_do_not_change_a_byte() {
    let (sources, shards, longest) = ([4000, 1, 0, 9000, 2500], [7, 1, 3], 600);
    let expected = expected(&sources, 3, longest);
    for workers in [1, 2, 3, 5] {
        for (memory, runs) in [(256 << 20, 0..1), (6 << 20, 1..40), (0, 1..500)] {
            let (sink, progress) = (Memory::default(), Progress::new());
            let options = Options::default()
                .workers(workers)
                .memory_bytes(memory)
                .progress(progress.clone());
            let written = write(options, &sources, &shards, longest, SortOptions::new(3), &sink).unwrap();
            check(&sink.shards.lock().unwrap(), &expected, &shards);
            assert_eq!(written.len(), 11);
            let sizes: Vec<u64> = sink
                .shards
                .lock()
                .unwrap()
                .values()
                .map(|shard| shard.iter().map(|data| data.len() as u64).sum())
                .collect();
            assert_eq!(
                written.iter().map(|written| written.summary).collect::<Vec<_>>(),
                sizes
            );
            assert!(
                runs.contains(&progress.spilled_runs()),
                "{workers} workers, {memory}: {}",
                progress.spilled_runs()
            );
            assert_eq!(progress.held_bytes(), 0, "all that was held is given back");
            for stage in ["Read", "Make", "Order", "Write"] {
                assert_eq!(progress.stage(stage).unwrap().records, 15501, "{stage}");
            }
        }
    }
}
