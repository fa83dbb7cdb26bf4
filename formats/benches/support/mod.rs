//! What the benchmarks share: their input, and the clock.
#![allow(dead_code, reason = "each benchmark uses some of it")]

/// A generator that is the same everywhere: xorshift64, by G. Marsaglia.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Texts of 500 to 1,500 bytes of words of two to nine letters, frequent words being frequent.
pub(crate) fn texts(count: usize) -> Vec<Vec<u8>> {
    let mut state = 42;
    let words: Vec<Vec<u8>> = (0..2000)
        .map(|_| {
            (0..2 + next(&mut state) % 8)
                .map(|_| b'a' + (next(&mut state) % 26) as u8)
                .collect()
        })
        .collect();
    (0..count)
        .map(|_| {
            let length = 500 + next(&mut state) as usize % 1000;
            let mut record = Vec::with_capacity(length + 10);
            while record.len() < length {
                let rank = (next(&mut state) % 2000 * (next(&mut state) % 2000) / 2000) as usize;
                record.extend_from_slice(&words[rank]);
                record.push(b' ');
            }
            record
        })
        .collect()
}

/// Nanoseconds of CPU that this process has taken so far, all threads: other programs on the machine do not count.
pub(crate) fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Median nanoseconds of CPU an item of `work` over seven passes of 50 ms or more.
pub(crate) fn time(items: usize, mut work: impl FnMut()) -> f64 {
    let mut passes: Vec<f64> = (0..7)
        .map(|_| {
            let before = cpu_time();
            let mut repeats = 0;
            loop {
                work();
                repeats += 1;
                let spent = cpu_time() - before;
                if spent >= 50_000_000 {
                    break spent as f64 / f64::from(repeats);
                }
            }
        })
        .collect();
    passes.sort_by(f64::total_cmp);
    passes[passes.len() / 2] / items as f64
}
