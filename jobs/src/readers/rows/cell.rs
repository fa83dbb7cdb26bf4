//! Values as sources have them, before they become those of features.

use std::fmt;

use bytes::Bytes;
use prep_formats::value::DType;

/// A value as a source has it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Cell {
    /// There is none.
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number beyond 64 bits with a sign.
    UInt(u64),
    /// A number that need not be whole.
    Float(f64),
    /// Text, UTF-8.
    Text(Bytes),
    /// Bytes that need not be text.
    Bytes(Bytes),
    /// Text of which the source does not say what it is: CSV.
    Loose(Bytes),
    /// What no feature is: a decimal, a time. With its type in the source's words, and as text.
    Foreign(String, String),
    /// Values in a row.
    List(Vec<Self>),
    /// The byte strings of a `tf.train.Example`: a list, or where there is one that value.
    Values(Vec<Self>),
    /// Values by name, each name once.
    Dict(Vec<(String, Self)>),
    /// Elements of one type, little-endian, in C order.
    Tensor(DType, Vec<usize>, Bytes),
}

/// The columns of a row by name, in the source's order.
pub type Row = Vec<(String, Cell)>;

impl Cell {
    /// In words, for messages.
    pub(crate) fn describe(&self) -> String {
        let shown = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let short: String = text.chars().take(40).collect();
            let more = if short.len() < text.len() { ".." } else { "" };
            format!("`{}{more}`", short.escape_debug())
        };
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Bool(value) => format!("the truth value {value}"),
            Self::Int(value) => format!("the integer {value}"),
            Self::UInt(value) => format!("the integer {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::Text(text) => format!("the text {}", shown(text)),
            Self::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Self::Loose(text) => shown(text),
            Self::Foreign(kind, text) => format!("{text}, a {kind}"),
            Self::List(values) => format!("a list of {}", values.len()),
            Self::Values(values) => match values.as_slice() {
                [value] => value.describe(),
                values => format!("a list of {}", values.len()),
            },
            Self::Dict(values) => format!("an object of {} values", values.len()),
            Self::Tensor(dtype, shape, _) => format!("a tensor of {dtype} {shape:?}"),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Cell {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

struct CellVisitor;

impl<'de> serde::de::Visitor<'de> for CellVisitor {
    type Value = Cell;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Cell, E> {
        Ok(Cell::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Cell, E> {
        Ok(Cell::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Cell, E> {
        Ok(i64::try_from(value).map_or(Cell::UInt(value), Cell::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Cell, E> {
        Ok(Cell::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Cell, E> {
        Ok(Cell::Text(Bytes::copy_from_slice(value.as_bytes())))
    }

    fn visit_string<E>(self, value: String) -> Result<Cell, E> {
        Ok(Cell::Text(value.into_bytes().into()))
    }

    fn visit_unit<E>(self) -> Result<Cell, E> {
        Ok(Cell::Null)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Cell, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Cell::List(list))
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut items: A) -> Result<Cell, A::Error> {
        let mut dict: Vec<(String, Cell)> = Vec::new();
        while let Some((name, value)) = items.next_entry::<String, Cell>()? {
            // Objects are small, mostly; a set pays only where they are not.
            if dict.len() < 64 && dict.iter().any(|(other, _)| *other == name) {
                return Err(serde::de::Error::custom(format!("`{name}` is there twice")));
            }
            dict.push((name, value));
        }
        if dict.len() >= 64 {
            let mut names: Vec<&String> = dict.iter().map(|(name, _)| name).collect();
            names.sort_unstable();
            if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(serde::de::Error::custom(format!("`{}` is there twice", pair[0])));
            }
        }
        Ok(Cell::Dict(dict))
    }
}

/// Appends a row in a form of our own, in which it goes from the thread that reads to those that encode: for sources whose rows are not
/// bytes. [`read_row`] takes it apart.
pub(crate) fn write_row(row: &[(impl AsRef<str>, Cell)], out: &mut Vec<u8>) {
    put_length(row.len(), out);
    for (name, cell) in row {
        put_bytes(name.as_ref().as_bytes(), out);
        write(cell, out);
    }
}

fn put_length(length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(length as u64).to_le_bytes());
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_length(bytes.len(), out);
    out.extend_from_slice(bytes);
}

fn write(cell: &Cell, out: &mut Vec<u8>) {
    match cell {
        Cell::Null => out.push(0),
        Cell::Bool(value) => out.extend_from_slice(&[1, u8::from(*value)]),
        Cell::Int(value) => {
            out.push(2);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Cell::UInt(value) => {
            out.push(3);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Cell::Float(value) => {
            out.push(4);
            out.extend_from_slice(&value.to_le_bytes());
        }
        Cell::Text(bytes) => {
            out.push(5);
            put_bytes(bytes, out);
        }
        Cell::Bytes(bytes) => {
            out.push(6);
            put_bytes(bytes, out);
        }
        Cell::Loose(bytes) => {
            out.push(7);
            put_bytes(bytes, out);
        }
        Cell::Foreign(kind, text) => {
            out.push(8);
            put_bytes(kind.as_bytes(), out);
            put_bytes(text.as_bytes(), out);
        }
        Cell::List(values) | Cell::Values(values) => {
            out.push(if matches!(cell, Cell::List(_)) { 9 } else { 12 });
            put_length(values.len(), out);
            for value in values {
                write(value, out);
            }
        }
        Cell::Dict(values) => {
            out.push(10);
            put_length(values.len(), out);
            for (name, value) in values {
                put_bytes(name.as_bytes(), out);
                write(value, out);
            }
        }
        Cell::Tensor(dtype, shape, data) => {
            out.push(11);
            put_bytes(dtype.name().as_bytes(), out);
            put_length(shape.len(), out);
            for size in shape {
                put_length(*size, out);
            }
            put_bytes(data, out);
        }
    }
}

/// Takes apart what [`write_row`] made, without copying bytes; `None` for anything else.
pub(crate) fn read_row(data: &Bytes) -> Option<Row> {
    let mut parser = Parser {
        data: data.clone(),
        depth: 0,
    };
    let count = parser.length()?;
    let mut row = Vec::new();
    for _ in 0..count {
        let name = parser.text()?;
        row.push((name, parser.cell()?));
    }
    parser.data.is_empty().then_some(row)
}

struct Parser {
    data: Bytes,
    depth: u32,
}

impl Parser {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let found = *self.data.first_chunk::<N>()?;
        self.data = self.data.slice(N..);
        Some(found)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.array()?)).ok()
    }

    fn bytes(&mut self) -> Option<Bytes> {
        let length = self.length()?;
        if length > self.data.len() {
            return None;
        }
        Some(self.data.split_to(length))
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn cell(&mut self) -> Option<Cell> {
        self.depth += 1;
        if self.depth > 256 {
            return None;
        }
        let [kind] = self.array()?;
        let cell = match kind {
            0 => Cell::Null,
            1 => Cell::Bool(self.array::<1>()? != [0]),
            2 => Cell::Int(i64::from_le_bytes(self.array()?)),
            3 => Cell::UInt(u64::from_le_bytes(self.array()?)),
            4 => Cell::Float(f64::from_le_bytes(self.array()?)),
            5 => Cell::Text(self.bytes()?),
            6 => Cell::Bytes(self.bytes()?),
            7 => Cell::Loose(self.bytes()?),
            8 => Cell::Foreign(self.text()?, self.text()?),
            9 | 12 => {
                let count = self.length()?;
                // Every value takes a byte at least.
                if count > self.data.len() {
                    return None;
                }
                let cells = (0..count).map(|_| self.cell()).collect::<Option<_>>()?;
                if kind == 9 {
                    Cell::List(cells)
                } else {
                    Cell::Values(cells)
                }
            }
            10 => {
                let count = self.length()?;
                if count > self.data.len() {
                    return None;
                }
                let mut field = || Some((self.text()?, self.cell()?));
                Cell::Dict((0..count).map(|_| field()).collect::<Option<_>>()?)
            }
            11 => {
                let dtype = DType::from_name(&self.text()?)?;
                let rank = self.length()?;
                if rank > 64 {
                    return None;
                }
                let shape = (0..rank).map(|_| self.length()).collect::<Option<_>>()?;
                Cell::Tensor(dtype, shape, self.bytes()?)
            }
            _ => return None,
        };
        self.depth -= 1;
        Some(cell)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cells() -> impl Strategy<Value = Cell> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..8).prop_map(Bytes::from);
        let leaf = prop_oneof![
            Just(Cell::Null),
            any::<bool>().prop_map(Cell::Bool),
            any::<i64>().prop_map(Cell::Int),
            any::<u64>().prop_map(Cell::UInt),
            (-1e9f64..1e9).prop_map(Cell::Float),
            "[a-z]{0,5}".prop_map(|text| Cell::Text(text.into_bytes().into())),
            bytes().prop_map(Cell::Bytes),
            bytes().prop_map(Cell::Loose),
            Just(Cell::Foreign("decimal".into(), "1.5".into())),
            bytes().prop_map(|data| Cell::Tensor(DType::UInt8, vec![data.len()], data)),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Cell::List),
                proptest::collection::vec(("[a-z]{1,3}", inner), 0..4).prop_map(Cell::Dict),
            ]
        })
    }

    proptest! {
        #[test]
        fn rows_come_back(cells in proptest::collection::vec(cells(), 0..4)) {
            let row: Vec<(&str, Cell)> = cells.iter().map(|cell| ("name", cell.clone())).collect();
            let mut out = Vec::new();
            write_row(&row, &mut out);
            let found = read_row(&out.clone().into()).unwrap();
            let wanted: Row = cells.into_iter().map(|cell| ("name".to_owned(), cell)).collect();
            prop_assert_eq!(found, wanted);
            for length in 0..out.len() {
                prop_assert!(read_row(&Bytes::copy_from_slice(&out[..length])).is_none());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            read_row(&bytes.into());
        }
    }

    #[test]
    fn json_becomes_cells() {
        let parse = |text: &str| serde_json::from_str::<Cell>(text);
        let cell =
            parse(r#"{"a": [1, -2, 1.5, true, null, "ä"], "b": {"c": 18446744073709551615}}"#).unwrap();
        let Cell::Dict(fields) = cell else { panic!() };
        assert_eq!(
            fields[0].1,
            Cell::List(vec![
                Cell::Int(1),
                Cell::Int(-2),
                Cell::Float(1.5),
                Cell::Bool(true),
                Cell::Null,
                Cell::Text("ä".into())
            ])
        );
        assert_eq!(
            fields[1].1,
            Cell::Dict(vec![("c".to_owned(), Cell::UInt(u64::MAX))])
        );
        assert!(
            parse(r#"{"a": 1, "a": 2}"#)
                .unwrap_err()
                .to_string()
                .contains("twice")
        );
        let many: Vec<String> = (0..100).map(|i| format!("\"k{}\": 1", i % 99)).collect();
        assert!(parse(&format!("{{{}}}", many.join(","))).is_err());
        assert!(parse(&"[".repeat(1000)).is_err());
    }
}
