//! SHA-256 of several streams at once, on one thread.
//!
//! One SHA-256 is a chain of steps of which each waits for the last. Two chains next to each other keep the processor's SHA instructions busy; and
//! with AVX-512 eight or sixteen of them go in lanes of ordinary vectors, which takes half the time of the SHA instructions. So finished shards are
//! hashed several at a time.
//!
//! Milliseconds for 106 MB, in cache, on one core of a shared Xeon (Sapphire Rapids): one stream 75 (`sha2`, with SHA instructions), two 57, eight
//! lanes 44, sixteen lanes 34. Eight lanes of AVX2, without rotations, took 90, so that is not here.
//!
//! Source: FIPS 180-4, section 6.2.

#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod two;

use sha2::block_api::compress256;

/// Bytes that a step takes.
const BLOCK: usize = 64;
/// Source: FIPS 180-4, section 5.3.3.
const INITIAL: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// The hash of one stream of bytes, while it comes in.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    state: [u32; 8],
    /// Bytes so far; the last of them, `bytes % BLOCK`, wait.
    bytes: u64,
    waiting: [u8; BLOCK],
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            state: INITIAL,
            bytes: 0,
            waiting: [0; BLOCK],
        }
    }
}

impl Stream {
    /// Takes what makes a block of what waits. Gives the rest.
    fn complete_block<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let waiting = (self.bytes % BLOCK as u64) as usize;
        if waiting == 0 {
            return data;
        }
        let (now, later) = data.split_at(data.len().min(BLOCK - waiting));
        self.keep(now);
        if self.bytes.is_multiple_of(BLOCK as u64) {
            compress256(&mut self.state, &[self.waiting]);
        }
        later
    }

    /// Has bytes wait that fit into the block.
    fn keep(&mut self, data: &[u8]) {
        let waiting = (self.bytes % BLOCK as u64) as usize;
        self.waiting[waiting..waiting + data.len()].copy_from_slice(data);
        self.bytes += data.len() as u64;
    }

    /// The hash.
    pub(crate) fn finish(mut self) -> [u8; 32] {
        let bits = self.bytes.wrapping_mul(8);
        // 0x80, zeros up to 8 bytes before the end of a block, the number of bits.
        let waiting = (self.bytes % BLOCK as u64) as usize;
        let mut end = [0; 2 * BLOCK];
        end[0] = 0x80;
        let length = if waiting < BLOCK - 8 { BLOCK } else { 2 * BLOCK } - waiting;
        end[length - 8..length].copy_from_slice(&bits.to_be_bytes());
        let rest = self.complete_block(&end[..length]);
        compress256(&mut self.state, rest.as_chunks().0);
        let mut hash = [0; 32];
        for (bytes, word) in hash.chunks_exact_mut(4).zip(self.state) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        hash
    }
}

/// Appends bytes to streams: to the `n`th those of the `n`th piece. Pieces as long as one another, and of many blocks, are the fastest.
pub(crate) fn update(streams: &mut [Stream], pieces: &[&[u8]]) {
    let mut work: Vec<(&mut [u32; 8], &[[u8; BLOCK]])> = Vec::with_capacity(streams.len());
    for (stream, piece) in streams.iter_mut().zip(pieces) {
        let (blocks, rest) = stream.complete_block(piece).as_chunks();
        stream.bytes += (blocks.len() * BLOCK) as u64;
        stream.keep(rest);
        if !blocks.is_empty() {
            work.push((&mut stream.state, blocks));
        }
    }
    compress(&mut work, Kernel::choose);
}

/// How many streams one thread had best hash at once.
pub(crate) fn best_streams() -> usize {
    (1..=16)
        .rev()
        .find(|count| Kernel::choose(*count).lanes() >= *count)
        .unwrap_or(1)
}

/// Takes all blocks, with the kernels that `choose` gives for so many streams.
fn compress(work: &mut Vec<(&mut [u32; 8], &[[u8; BLOCK]])>, choose: impl Fn(usize) -> Kernel) {
    // Those with the most to do first: they are together the longest.
    work.sort_by_key(|(_, blocks)| std::cmp::Reverse(blocks.len()));
    while !work.is_empty() {
        let kernel = choose(work.len());
        let together = kernel.lanes().min(work.len());
        let count = work[..together]
            .iter()
            .map(|(_, blocks)| blocks.len())
            .min()
            .unwrap_or(0);
        kernel.compress(&mut work[..together], count);
        for (_, blocks) in &mut work[..together] {
            *blocks = &blocks[count..];
        }
        work.retain(|(_, blocks)| !blocks.is_empty());
    }
}

/// A way to take blocks of several streams at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// The `sha2` crate, which every processor has a way for.
    One,
    /// The processor's SHA instructions for two.
    #[cfg(target_arch = "x86_64")]
    Two,
    /// Lanes of AVX-512, in vectors of half and of full length.
    #[cfg(target_arch = "x86_64")]
    Eight,
    #[cfg(target_arch = "x86_64")]
    Sixteen,
}

impl Kernel {
    /// The one that takes the least time for each of so many streams, by the times above.
    #[cfg(target_arch = "x86_64")]
    fn choose(streams: usize) -> Self {
        let has_sha = two::is_there();
        let (eight, sixteen) = if has_sha { (7, 11) } else { (2, 9) };
        match streams {
            _ if streams >= sixteen && lanes::are_there() => Self::Sixteen,
            _ if streams >= eight && lanes::are_there() => Self::Eight,
            2.. if has_sha => Self::Two,
            _ => Self::One,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn choose(_streams: usize) -> Self {
        Self::One
    }

    /// How many streams it takes at once.
    fn lanes(self) -> usize {
        match self {
            Self::One => 1,
            #[cfg(target_arch = "x86_64")]
            Self::Two => 2,
            #[cfg(target_arch = "x86_64")]
            Self::Eight => 8,
            #[cfg(target_arch = "x86_64")]
            Self::Sixteen => 16,
        }
    }

    /// Takes the first `count` blocks of each.
    fn compress(self, work: &mut [(&mut [u32; 8], &[[u8; BLOCK]])], count: usize) {
        match (self, work) {
            #[cfg(target_arch = "x86_64")]
            (Self::Two, [(first, first_blocks), (second, second_blocks)]) => {
                two::compress([first, second], [&first_blocks[..count], &second_blocks[..count]]);
            }
            #[cfg(target_arch = "x86_64")]
            (Self::Eight, work) => compress_lanes(work, count, lanes::eight::compress),
            #[cfg(target_arch = "x86_64")]
            (Self::Sixteen, work) => compress_lanes(work, count, lanes::sixteen::compress),
            (_, work) => {
                for (state, blocks) in work {
                    compress256(state, &blocks[..count]);
                }
            }
        }
    }
}

/// States by word, then by lane; and the blocks of each lane.
#[cfg(target_arch = "x86_64")]
type Lanes<const LANES: usize> = [[u32; LANES]; 8];
#[cfg(target_arch = "x86_64")]
type LaneBlocks<'a, const LANES: usize> = [&'a [[u8; BLOCK]]; LANES];

/// Moves states into lanes and back. Lanes without a stream do the first one's work for nothing.
#[cfg(target_arch = "x86_64")]
fn compress_lanes<const LANES: usize>(
    work: &mut [(&mut [u32; 8], &[[u8; BLOCK]])],
    count: usize,
    kernel: fn(&mut Lanes<LANES>, &LaneBlocks<'_, LANES>),
) {
    let Some((_, first)) = work.first() else {
        return;
    };
    let mut lanes = [[0; LANES]; 8];
    let mut blocks = [&first[..count]; LANES];
    for (lane, (state, stream)) in work.iter().enumerate() {
        blocks[lane] = &stream[..count];
        for (word, lanes) in state.iter().zip(&mut lanes) {
            lanes[lane] = *word;
        }
    }
    kernel(&mut lanes, &blocks);
    for (lane, (state, _)) in work.iter_mut().enumerate() {
        for (word, lanes) in state.iter_mut().zip(&lanes) {
            *word = lanes[lane];
        }
    }
}

/// Source: FIPS 180-4, section 4.2.2.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ROUND_WORDS: [u32; 64] = [
    0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
    0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
    0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
    0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
    0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
    0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
    0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
    0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
];

#[cfg(test)]
mod tests {
    use super::*;

    use sha2::{Digest, Sha256};

    fn bytes(length: usize, seed: u32) -> Vec<u8> {
        (0..length as u32)
            .map(|i| ((i ^ seed.wrapping_mul(77)).wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect()
    }

    /// Source: FIPS 180-4's examples, published by NIST as `SHA256.pdf`, and its test of a million letters.
    #[test]
    fn the_standards_examples_hold() {
        let million = vec![b'a'; 1_000_000];
        let cases: [(&[u8], &str); 4] = [
            (
                b"",
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            ),
            (
                b"abc",
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ),
            (
                b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
            (
                &million,
                "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
            ),
        ];
        for count in [1, 2, 3, 8, 16, 17] {
            for (text, hash) in cases {
                let mut streams = vec![Stream::default(); count];
                update(&mut streams, &vec![text; count]);
                for stream in streams {
                    assert_eq!(hex::encode(stream.finish()), hash);
                }
            }
        }
    }

    #[test]
    fn every_length_about_a_block_has_the_hash_of_the_crate() {
        let data = bytes(300, 1);
        for length in 0..data.len() {
            let mut streams = [Stream::default()];
            update(&mut streams, &[&data[..length]]);
            let [stream] = streams;
            assert_eq!(stream.finish(), <[u8; 32]>::from(Sha256::digest(&data[..length])));
        }
    }

    #[test]
    fn any_number_of_streams_in_any_pieces_has_the_hashes_of_the_crate() {
        for count in 1..=19 {
            let whole: Vec<Vec<u8>> = (0..count)
                .map(|i| bytes(1000 + (i * 397) % 2900, i as u32))
                .collect();
            for step in [1, 63, 64, 65, 1000, 5000] {
                let mut streams = vec![Stream::default(); count];
                let mut at = 0;
                while whole.iter().any(|data| data.len() > at) {
                    // Pieces of unequal lengths, empty ones among them.
                    let pieces: Vec<&[u8]> = whole
                        .iter()
                        .map(|data| &data[at.min(data.len())..(at + step).min(data.len())])
                        .collect();
                    update(&mut streams, &pieces);
                    at += step;
                }
                for (data, stream) in whole.iter().zip(streams) {
                    assert_eq!(
                        stream.finish(),
                        <[u8; 32]>::from(Sha256::digest(data)),
                        "{count} by {step}"
                    );
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn each_kernel_that_the_processor_has_agrees_with_the_crate() {
        let mut kernels = vec![Kernel::One];
        kernels.extend(two::is_there().then_some(Kernel::Two));
        kernels.extend(
            lanes::are_there()
                .then_some([Kernel::Eight, Kernel::Sixteen])
                .into_iter()
                .flatten(),
        );
        for kernel in kernels {
            for count in 1..=16 {
                let whole: Vec<Vec<u8>> = (0..count).map(|i| bytes(64 * (5 + i % 3), i as u32)).collect();
                let mut found = vec![INITIAL; count];
                let mut wanted = found.clone();
                let mut work = Vec::new();
                for ((data, found), wanted) in whole.iter().zip(&mut found).zip(&mut wanted) {
                    let blocks = data.as_chunks().0;
                    compress256(wanted, blocks);
                    work.push((found, blocks));
                }
                compress(&mut work, |_| kernel);
                assert_eq!(found, wanted, "{kernel:?}, {count} streams");
            }
        }
        let best = best_streams();
        assert_eq!(Kernel::choose(best).lanes(), best);
        assert!(best == 16 || !lanes::are_there());
    }
}
