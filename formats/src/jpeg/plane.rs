//! A component's coefficients and samples, as far as a view wants them.

use std::ops::Range;

use super::header::{Component, Frame};
use super::idct::{self, Block};
use super::{Region, Scale, colour};

/// A component of the picture that is decoded. Keeps its buffers from one picture to the next.
#[derive(Default)]
pub(super) struct Plane {
    /// Whether the view wants anything of this component.
    pub(super) is_wanted: bool,
    /// Blocks in an MCU, across and down.
    pub(super) h: usize,
    pub(super) v: usize,
    /// Blocks across in whole MCUs.
    pub(super) padded_blocks: usize,
    /// Rows of MCUs.
    mcu_rows: usize,
    /// Blocks across and down that hold some of the picture: what a scan of this component alone has.
    pub(super) own_blocks: (usize, usize),
    /// The blocks wanted in a row of blocks.
    pub(super) columns: Range<usize>,
    /// Samples across and down that a block becomes: 8, 4, 2 or 1.
    size: usize,
    /// Samples of the scaled component.
    width: usize,
    height: usize,
    /// Pixels that a sample stands for.
    per_sample: (usize, usize),
    /// Whether samples are mixed with their neighbours' to make more of them, or just repeated.
    is_fancy: bool,
    /// The rows of samples wanted.
    rows: Range<usize>,
    pub(super) quant: Option<Block>,
    /// Coefficients: of a row of MCUs, the wanted columns; or of all, [`Plane::padded_blocks`] in a row.
    pub(super) blocks: Vec<Block>,
    /// Whether each block of a row of MCUs has no AC coefficients.
    pub(super) flats: Vec<bool>,
    /// Samples of two rows of MCUs; row `y` lies at `y` modulo their number.
    samples: Vec<u8>,
}

impl Plane {
    /// Plans for a picture and a view of it.
    pub(super) fn prepare(&mut self, frame: &Frame, component: &Component, scale: Scale, region: &Region) {
        let (most_h, most_v) = frame.most();
        let least = 8 / scale.divisor() as usize;
        // A component with fewer samples gets a larger transform rather than upsampling, while both sides allow it.
        let mut size = least;
        let goes_into = |most: usize, own: usize, size: usize| (most * least).is_multiple_of(own * size * 2);
        while size < 8 && goes_into(most_h, component.h, size) && goes_into(most_v, component.v, size) {
            size *= 2;
        }
        (self.h, self.v, self.size) = (component.h, component.v, size);
        let mcus = frame.width.div_ceil(8 * most_h);
        self.mcu_rows = frame.height.div_ceil(8 * most_v);
        self.padded_blocks = mcus * self.h;
        let blocks = |pixels: usize, own: usize, most: usize| (pixels * own).div_ceil(most).div_ceil(8);
        self.own_blocks = (
            blocks(frame.width, self.h, most_h),
            blocks(frame.height, self.v, most_v),
        );
        self.width = (frame.width * self.h * size).div_ceil(most_h * 8);
        self.height = (frame.height * self.v * size).div_ceil(most_v * 8);
        self.per_sample = (most_h * least / (self.h * size), most_v * least / (self.v * size));
        self.is_fancy = least > 1
            && match self.per_sample {
                (2, 1 | 2) => self.width > 2,
                (1, 2) => true,
                _ => false,
            };
        let wanted = |from: u32, length: u32, per_sample: usize, all: usize| {
            let (from, end) = (from as usize, (from + length) as usize);
            (from / per_sample).saturating_sub(1)..((end - 1) / per_sample + 2).min(all)
        };
        self.rows = wanted(region.y, region.height, self.per_sample.1, self.height);
        let columns = wanted(region.x, region.width, self.per_sample.0, self.width);
        self.columns = columns.start / size..columns.end.div_ceil(size);
        self.quant = None;
        let samples = 2 * self.v * size * self.stride();
        if self.samples.len() < samples {
            self.samples.resize(samples, 0);
        }
    }

    /// Bytes from one row of samples to the next.
    fn stride(&self) -> usize {
        self.columns.len() * self.size
    }

    /// The rows of MCUs with wanted samples.
    pub(super) fn wanted_mcu_rows(&self) -> Range<usize> {
        let rows = self.v * self.size;
        self.rows.start / rows..self.rows.end.div_ceil(rows)
    }

    /// Makes room for the wanted coefficients of a row of MCUs.
    pub(super) fn make_room_for_row(&mut self) {
        let blocks = self.v * self.columns.len();
        self.blocks.resize(blocks, [0; 64]);
        self.flats.resize(blocks, false);
    }

    /// Makes room for all coefficients, which begin as 0.
    pub(super) fn make_room_for_all(&mut self) {
        self.blocks.clear();
        self.blocks
            .resize(self.padded_blocks * self.v * self.mcu_rows, [0; 64]);
    }

    /// Makes the samples of MCU row `row`, whose coefficients are those of [`Plane::make_room_for_row`].
    pub(super) fn transform_row(&mut self, row: usize) {
        for (v, (blocks, flats)) in self
            .blocks
            .chunks_exact(self.columns.len())
            .zip(self.flats.chunks_exact(self.columns.len()))
            .enumerate()
        {
            let row = (row * self.v + v) * self.size;
            let stride = self.columns.len() * self.size;
            let (from, to) = (row % (2 * self.v * self.size) * stride, self.size * stride);
            if let Some(quant) = &self.quant {
                idct::row_of_blocks(
                    self.size,
                    blocks,
                    flats,
                    quant,
                    &mut self.samples[from..from + to],
                    stride,
                );
            }
        }
    }

    /// The same from the coefficients of [`Plane::make_room_for_all`].
    pub(super) fn transform_stored(&mut self, row: usize) {
        let wide = self.columns.len();
        let stride = self.stride();
        for v in 0..self.v {
            let block_row = row * self.v + v;
            let blocks = &self.blocks[block_row * self.padded_blocks..][self.columns.clone()];
            self.flats.clear();
            self.flats.extend(
                blocks
                    .iter()
                    .map(|block| block[1..].iter().all(|&value| value == 0)),
            );
            debug_assert_eq!(blocks.len(), wide);
            let from = block_row * self.size % (2 * self.v * self.size) * stride;
            if let Some(quant) = &self.quant {
                let out = &mut self.samples[from..from + self.size * stride];
                idct::row_of_blocks(self.size, blocks, &self.flats, quant, out, stride);
            }
        }
    }

    /// How many rows of pixels, from the top of the picture, have their samples once MCU row `row` has them.
    pub(super) fn ready_rows(&self, row: usize) -> usize {
        let rows = (row + 1) * self.v * self.size;
        if rows >= self.rows.end {
            return usize::MAX;
        }
        match self.per_sample.1 {
            // The lower pixel of two looks at the next row of samples.
            2 if self.is_fancy => 2 * rows - 1,
            per_sample => rows * per_sample,
        }
    }

    /// The row of samples `y`, from sample `from` on.
    fn row(&self, y: usize, from: usize) -> &[u8] {
        let (stride, rows) = (self.stride(), 2 * self.v * self.size);
        &self.samples[y % rows * stride..][..stride][from - self.columns.start * self.size..]
    }

    /// Row `y` of the picture, the pixels of `columns`, in the picture's size.
    pub(super) fn line<'a>(
        &'a self,
        y: usize,
        columns: Range<usize>,
        scratch: &'a mut Vec<u8>,
        sums: &mut Vec<u16>,
        padded: &mut Vec<u8>,
    ) -> &'a [u8] {
        let (across, down) = self.per_sample;
        let near = y / down;
        let wanted = columns.len();
        if (across, down) == (1, 1) {
            return &self.row(near, columns.start)[..wanted];
        }
        let first = columns.start / across;
        let count = (columns.end - 1) / across + 1 - first;
        if scratch.len() < count * across {
            scratch.resize(count * across, 0);
        }
        let out = &mut scratch[..count * across];
        if !self.is_fancy {
            colour::repeat(&self.row(near, first)[..count], across, out);
            return &out[columns.start - first * across..][..wanted];
        }
        // A row's neighbour above for the upper of two pixels, below for the lower; the picture's edge is its own neighbour.
        let far = match (down, y % 2) {
            (1, _) => near,
            (_, 0) => near.saturating_sub(1),
            _ => (near + 1).min(self.height - 1),
        };
        // With one sample more on both sides.
        let before = usize::from(first > 0);
        let after = usize::from(first + count < self.width);
        let [near_row, far_row] = [near, far].map(|y| &self.row(y, first - before)[..before + count + after]);
        match (across, down) {
            (2, 1) => {
                padded.clear();
                padded.extend(near_row.first().filter(|_| before == 0));
                padded.extend_from_slice(near_row);
                padded.extend(near_row.last().filter(|_| after == 0));
                colour::double(padded, out);
            }
            _ => {
                let edge = 1 - before;
                sums.resize(count + 2, 0);
                colour::weigh(near_row, far_row, &mut sums[edge..]);
                if before == 0 {
                    sums[0] = sums[1];
                }
                if after == 0 {
                    sums[count + 1] = sums[count];
                }
                if across == 2 {
                    colour::double_sums(sums, out);
                } else {
                    colour::quarter(&sums[1..], 1 + (y % 2) as u16, out);
                }
            }
        }
        &out[columns.start - first * across..][..wanted]
    }
}
