use std::io::Write;

use prep_formats::cifar::{Layout, Records};
use prep_formats::{idx, jpeg, png};

/// A picture whose checksums are right: 13 bytes of header, a byte that says how many bytes of palette follow, and rows to be compressed.
fn assembled(bytes: &[u8]) -> Option<Vec<u8>> {
    let (header, rest) = bytes.split_at_checked(13)?;
    let (&palette, rest) = rest.split_first()?;
    let (palette, rows) = rest.split_at_checked(usize::from(palette))?;
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(rows).ok()?;
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut put = |kind: &[u8; 4], data: &[u8]| {
        file.extend_from_slice(&(data.len() as u32).to_be_bytes());
        let mut crc = flate2::Crc::new();
        for piece in [kind, data] {
            crc.update(piece);
            file.extend_from_slice(piece);
        }
        file.extend_from_slice(&crc.sum().to_be_bytes());
    };
    put(b"IHDR", header);
    if !palette.is_empty() {
        put(b"PLTE", palette);
    }
    put(b"IDAT", &zlib.finish().ok()?);
    put(b"IEND", &[]);
    Some(file)
}

/// The first byte: channels and bits wanted, and whether the rest is a file or what to assemble one from. Decoded pixels are packed again
/// and must come back.
pub(crate) fn png(bytes: &[u8]) {
    let Some((&choice, file)) = bytes.split_first() else {
        return;
    };
    let built;
    let file = if choice & 16 == 16 {
        match assembled(file) {
            Some(file) => {
                built = file;
                &built
            }
            None => return,
        }
    } else {
        file
    };
    let channels = match choice & 7 {
        channels @ 1..=4 => Some(channels),
        _ => None,
    };
    let bits = if choice & 8 == 8 { 16 } else { 8 };
    let mut decoder = png::Decoder::new();
    let mut pixels = vec![1, 2, 3];
    let Ok(info) = decoder.decode_append(file, channels, bits, &mut pixels) else {
        assert_eq!(pixels, [1, 2, 3], "a picture that fails leaves nothing");
        return;
    };
    assert_eq!(Some(pixels.len() - 3), info.num_bytes());
    if pixels.len() > 1 << 20 {
        return;
    }
    let mut packed = Vec::new();
    if png::Encoder::new()
        .encode(&info, &pixels[3..], &mut packed)
        .is_err()
    {
        return;
    }
    let mut again = vec![0; pixels.len() - 3];
    decoder
        .decode(&packed, &info, &mut again)
        .expect("our own picture");
    assert!(again == pixels[3..], "pixels differ");
}

/// The first byte chooses IDX or a layout of CIFAR.
pub(crate) fn raw(bytes: &[u8]) {
    let Some((&choice, file)) = bytes.split_first() else {
        return;
    };
    match choice % 3 {
        0 => {
            let Ok(mut reader) = idx::Reader::new("fuzzed", file) else {
                return;
            };
            let mut item = Vec::new();
            let mut items = 0;
            while let Ok(true) = reader.read(&mut item) {
                items += 1;
                if items > 10_000 {
                    // Items of no bytes: any number of them fits.
                    break;
                }
            }
        }
        layout => {
            let layout = if layout == 1 {
                Layout::Cifar10
            } else {
                Layout::Cifar100
            };
            if let Ok(records) = Records::new("fuzzed", layout, 0, file) {
                for record in records.flatten() {
                    let mut pixels = Vec::new();
                    record.append_pixels(&mut pixels);
                    assert_eq!(pixels.len(), prep_formats::cifar::PIXEL_BYTES);
                }
            }
        }
    }
}

/// The first byte: scale and channels. A view of the picture must be what the whole has there.
pub(crate) fn jpeg(bytes: &[u8]) {
    let Some((&choice, file)) = bytes.split_first() else {
        return;
    };
    let scale = jpeg::Scale::ALL[usize::from(choice & 3)];
    let mut view = jpeg::View::whole().with_scale(scale);
    if choice & 4 != 0 {
        view = view.with_channels(3);
    }
    let mut decoder = jpeg::Decoder::new();
    let mut pixels = vec![1, 2, 3];
    let Ok([height, width, channels]) = decoder.decode_append(file, &view, &mut pixels) else {
        assert_eq!(pixels, [1, 2, 3], "a picture that fails leaves nothing");
        return;
    };
    let (x, y) = (width / 3, height / 3);
    let region = jpeg::Region {
        x: x as u32,
        y: y as u32,
        width: (width - x).div_ceil(2) as u32,
        height: (height - y).div_ceil(2) as u32,
    };
    let view = jpeg::View::of(region)
        .with_scale(scale)
        .with_channels(channels as u8);
    let mut part = Vec::new();
    let [rows, columns, _] = decoder
        .decode_append(file, &view, &mut part)
        .expect("a part of a picture that can be decoded");
    for row in 0..rows {
        let whole = &pixels[3 + ((y + row) * width + x) * channels..][..columns * channels];
        assert_eq!(
            &part[row * columns * channels..][..columns * channels],
            whole,
            "the pixels of a part"
        );
    }
}
