//! What the benchmarks share.
#![allow(dead_code, reason = "each uses a part")]

use std::path::Path;

use prep_formats::features::Features;
use prep_loader::transform::Generator;

/// Writes a dataset folder whose shards are all the same bytes.
pub(crate) fn publish(folder: &Path, features: &Features, shard: &[u8], records: u64, num_shards: u64) {
    std::fs::create_dir_all(folder).unwrap();
    for (name, text) in features.to_files() {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let zeros = |digits: usize| "0".repeat(digits);
    let shards: Vec<serde_json::Value> = (0..num_shards)
        .map(|number| {
            let path = format!("b-train.array_record-{number:05}-of-{num_shards:05}");
            std::fs::write(folder.join(&path), shard).unwrap();
            serde_json::json!({"path": path, "records": records, "bytes": shard.len(), "sha256": zeros(64),
                "sequence_hash": zeros(32), "min_key": null, "max_key": null})
        })
        .collect();
    let manifest = serde_json::json!({
        "format": 1, "name": "b", "config": null, "version": "1.0.0", "fingerprint": zeros(64), "recipe_sha256": zeros(64),
        "layout": "by-source", "sources": [], "splits": [{"name": "train", "records": records * num_shards,
            "bytes": shard.len() as u64 * num_shards, "options": "uncompressed", "skipped": 0, "shards": shards}],
    });
    std::fs::write(folder.join("prep_manifest.json"), format!("{manifest:#}\n")).unwrap();
}

/// User and system time of this process.
pub(crate) fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    ticks as f64 / 100.0
}

/// Waves and noise: `u8[height, width, 3]`.
pub(crate) fn picture(width: usize, height: usize, noise: f64, seed: u64) -> Vec<u8> {
    let mut numbers = Generator::new(seed, "picture", 0);
    let phase = seed as f64;
    let mut out = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            for (across, down) in [(41.0, 97.0), (113.0, 23.0), (29.0, 61.0)] {
                let wave = 127.0 + 80.0 * (x as f64 / across + y as f64 / down + phase).sin();
                out.push((wave + noise * (numbers.unit() + numbers.unit() - 1.0)) as u8);
            }
        }
    }
    out
}

/// The same as a JPEG file, 4:2:0.
pub(crate) fn jpeg(width: usize, height: usize, noise: f64, quality: u8, seed: u64) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut file, quality);
    encoder.set_sampling_factor(jpeg_encoder::SamplingFactor::F_2_2);
    let pixels = picture(width, height, noise, seed);
    encoder
        .encode(&pixels, width as u16, height as u16, jpeg_encoder::ColorType::Rgb)
        .unwrap();
    file
}
