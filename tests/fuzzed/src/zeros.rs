//! Files of mostly zeros as short inputs.

/// Bytes that [`unpack`] gives at most.
const MOST: usize = 1 << 20;

/// Replaces each run of zeros by a zero and two bytes of its length less one, little-endian.
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        packed.push(first);
        rest = tail;
        if first == 0 {
            let more = rest.iter().take(0xffff).take_while(|&&byte| byte == 0).count();
            packed.extend_from_slice(&(more as u16).to_le_bytes());
            rest = &rest[more..];
        }
    }
    packed
}

/// Undoes [`pack`]; takes any bytes, gives at most 1 MiB.
pub fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = packed.iter().copied();
    while let Some(byte) = rest.next() {
        let run = if byte == 0 {
            let length = [rest.next().unwrap_or(0), rest.next().unwrap_or(0)];
            1 + usize::from(u16::from_le_bytes(length))
        } else {
            1
        };
        if bytes.len() + run > MOST {
            break;
        }
        bytes.resize(bytes.len() + run, byte);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        for bytes in [
            vec![],
            vec![0],
            vec![0; 65_536],
            vec![0; 200_001],
            vec![1, 0, 0, 2, 0],
        ] {
            assert!(unpack(&pack(&bytes)) == bytes);
        }
        assert_eq!(pack(&vec![0; 131_072]).len(), 6);
    }
}
