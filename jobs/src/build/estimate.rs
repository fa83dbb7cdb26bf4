//! How much a build will move, as far as that shows before it begins.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use prep_formats::features::{Feature, Features};
use prep_formats::value::DType;

/// The size of a file once it is unpacked: of a gzip, what its last four bytes say, which is right for one member of less than 4 GiB;
/// else the file's own. `None` where that cannot be.
pub(crate) fn unpacked_bytes(path: &Path) -> Option<u64> {
    let mut file = File::open(path).ok()?;
    let packed = file.metadata().ok()?.len();
    let mut magic = [0; 2];
    if packed < 18 || file.read_exact(&mut magic).is_err() || magic != [0x1f, 0x8b] {
        return Some(packed);
    }
    let mut size = [0; 4];
    file.seek(SeekFrom::End(-4)).ok()?;
    file.read_exact(&mut size).ok()?;
    let unpacked = u64::from(u32::from_le_bytes(size));
    (unpacked >= packed / 2).then_some(unpacked)
}

/// How many examples there are in so many unpacked bytes, where every example has the same size. Encoded pictures do not, and texts alone do not.
pub(crate) fn records(features: &Features, unpacked: Option<u64>) -> Option<u64> {
    let mut example: u64 = 0;
    let mut has_values = false;
    for (_, feature) in features.iter() {
        example += match feature {
            // A label is a byte in most raw formats, whatever its type is later.
            Feature::ClassLabel { .. } => 1,
            Feature::Image {
                encoding_format: Some(format),
                ..
            } if format == "jpeg" => return None,
            Feature::Tensor { .. } | Feature::Scalar { .. } | Feature::Image { .. } => {
                has_values = true;
                let shape = feature.shape()?;
                let values = shape
                    .iter()
                    .try_fold(1u64, |product, size| product.checked_mul((*size)?))?;
                values.checked_mul(value_bytes(feature.dtype()?)?)?
            }
            // Such as a file name, which the reader makes up.
            Feature::Text => 0,
            _ => return None,
        };
    }
    if !has_values {
        return None;
    }
    unpacked?.checked_div(example).filter(|count| *count > 0)
}

/// Bytes of a value, where all have as many.
fn value_bytes(dtype: DType) -> Option<u64> {
    let name = dtype.name();
    let bits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    match (name, bits.parse::<u64>()) {
        ("bool", _) => Some(1),
        (_, Ok(bits)) => Some(bits / 8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;

    #[test]
    fn a_gzip_says_how_large_it_is_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gz");
        let mut encoder =
            flate2::write::GzEncoder::new(File::create(&path).unwrap(), flate2::Compression::fast());
        encoder.write_all(&[7; 100_000]).unwrap();
        encoder.finish().unwrap();
        assert_eq!(unpacked_bytes(&path), Some(100_000));
        std::fs::write(&path, [1; 50]).unwrap();
        assert_eq!(unpacked_bytes(&path), Some(50));
        assert_eq!(unpacked_bytes(&folder.path().join("absent")), None);
    }

    #[test]
    fn records_of_one_size_can_be_counted_beforehand() {
        let image = |height| Feature::Image {
            shape: vec![height, Some(32), Some(3)],
            dtype: DType::UInt8,
            encoding_format: None,
        };
        let label = Feature::ClassLabel {
            num_classes: 2,
            names: Vec::new(),
        };
        let features = |height| {
            Features::new(vec![
                ("image".into(), image(height)),
                ("label".into(), label.clone()),
            ])
            .unwrap()
        };
        assert_eq!(records(&features(Some(32)), Some(3073 * 10)), Some(10));
        assert_eq!(records(&features(None), Some(3073 * 10)), None);
        assert_eq!(records(&features(Some(32)), None), None);
        // Less than one is as good as not known.
        assert_eq!(records(&features(Some(32)), Some(3000)), None);
    }

    #[test]
    fn texts_and_jpegs_are_of_no_size() {
        let label = Feature::ClassLabel {
            num_classes: 2,
            names: Vec::new(),
        };
        let jpeg = Feature::Image {
            shape: vec![Some(32), Some(32), Some(3)],
            dtype: DType::UInt8,
            encoding_format: Some("jpeg".to_owned()),
        };
        for content in [Feature::Text, jpeg] {
            let features = Features::new(vec![("content".into(), content), ("label".into(), label.clone())]);
            assert_eq!(records(&features.unwrap(), Some(1 << 20)), None);
        }
    }
}
