//! Rows of NumPy's arrays: `.npz` archives, each of whose arrays is a column, and single `.npy` files.
//!
//! Along their first dimension arrays have rows. Those in C order are read side by side, a row of each at a time, packed or not; an array
//! in Fortran order of more than one dimension is turned around in memory.
//!
//! | bytes | of a `.npy` file |
//! |---|---|
//! | 6 | `\x93NUMPY` |
//! | 2 | version: 1, 2 or 3, and 0 |
//! | 2, or 4 since version 2 | length of the header, little-endian |
//! | | header: a literal of Python, `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }` |
//! | | elements |
//!
//! Source: `numpy/lib/format.py` of NumPy 2.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use prep_formats::features::Feature;
use prep_formats::value::DType;

use crate::archive::Zip;
use crate::error::Hinted;
use crate::readers::rows::cell::{Cell, Row, read_row, write_row};
use crate::readers::rows::file::RowFile;
use crate::readers::rows::survey::{Place, Survey, Told};
use crate::readers::rows::{RawRow, RowReader, Rows};

/// Longest header that is read.
const MOST_HEADER_BYTES: usize = 1 << 20;
/// Largest row, and largest array that is turned around in memory.
const MOST_BYTES: u64 = 1 << 30;
/// Arrays of an archive that are read side by side.
const MOST_ARRAYS: usize = 1024;
/// The column of a file that is one array.
const ALONE: &str = "data";

/// Reads NumPy's files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Npz;

/// The type of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Numbers; whether their bytes are to be swapped.
    Number(DType, bool),
    /// Texts of so many characters of 4 bytes; whether these are big-endian.
    Unicode(usize, bool),
    /// So many bytes, zeros at the end not counted.
    Bytes(usize),
    /// A time: 64-bit numbers.
    Time(bool),
}

/// The header of an array.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Header {
    kind: Kind,
    descr: String,
    is_fortran: bool,
    shape: Vec<u64>,
}

impl Header {
    fn item_bytes(&self) -> u64 {
        match self.kind {
            Kind::Number(dtype, _) => dtype.num_bytes() as u64,
            Kind::Unicode(length, _) => 4 * length as u64,
            Kind::Bytes(length) => length as u64,
            Kind::Time(_) => 8,
        }
    }

    fn row_items(&self) -> Option<u64> {
        let sizes = self.shape.get(1..).unwrap_or_default();
        sizes
            .iter()
            .try_fold(1u64, |product, size| product.checked_mul(*size))
    }

    /// Bytes of a row, where that is a number that is believed.
    fn row_bytes(&self) -> Option<u64> {
        self.row_items()?
            .checked_mul(self.item_bytes())
            .filter(|bytes| *bytes <= MOST_BYTES)
    }

    fn told(&self) -> Told {
        let inner: Vec<Option<u64>> = self.shape.iter().skip(1).map(|size| Some(*size)).collect();
        let feature = |dtype| match inner.as_slice() {
            [] => Feature::Scalar { dtype },
            _ => Feature::tensor(inner.clone(), dtype),
        };
        Told::Feature(match self.kind {
            Kind::Number(dtype, _) => feature(dtype),
            Kind::Unicode(..) if inner.is_empty() => Feature::Text,
            Kind::Unicode(..) | Kind::Bytes(_) => feature(DType::String),
            Kind::Time(_) => return Told::Foreign(format!("time of type {}", self.descr)),
        })
    }

    /// The value of a row that has these bytes, in C order.
    fn cell(&self, mut data: Vec<u8>) -> Cell {
        let is_single = self.shape.len() == 1;
        let width = self.item_bytes().max(1) as usize;
        match self.kind {
            Kind::Number(dtype, swapped) => {
                if swapped {
                    data.chunks_exact_mut(width).for_each(<[u8]>::reverse);
                }
                let shape = self.shape.iter().skip(1).map(|size| *size as usize).collect();
                Cell::Tensor(dtype, shape, data.into())
            }
            Kind::Time(swapped) => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(data.get(..8).unwrap_or(&[0; 8]));
                let value = match swapped {
                    true => i64::from_be_bytes(bytes),
                    false => i64::from_le_bytes(bytes),
                };
                Cell::Foreign(self.descr.clone(), value.to_string())
            }
            Kind::Unicode(..) | Kind::Bytes(_) => {
                let mut items: Vec<Cell> = data.chunks_exact(width).map(|item| self.string(item)).collect();
                if is_single {
                    return items.pop().unwrap_or(Cell::Text(Bytes::new()));
                }
                Cell::List(items)
            }
        }
    }

    fn string(&self, item: &[u8]) -> Cell {
        let Kind::Unicode(_, is_big) = self.kind else {
            let end = item.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            return Cell::Bytes(Bytes::copy_from_slice(&item[..end]));
        };
        let text: String = item
            .chunks_exact(4)
            .map(|bytes| {
                let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
                let code = if is_big {
                    u32::from_be_bytes(bytes)
                } else {
                    u32::from_le_bytes(bytes)
                };
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            })
            .collect();
        Cell::Text(text.trim_end_matches('\0').to_owned().into_bytes().into())
    }
}

/// Reads the header of an array; what follows are its elements.
fn read_header(name: &str, stream: &mut dyn Read) -> Result<Header> {
    let cut = || format!("{name}: the header is cut short");
    let mut start = [0; 8];
    stream.read_exact(&mut start).with_context(cut)?;
    if &start[..6] != b"\x93NUMPY" {
        bail!("{name}: it is not a NumPy array: it does not begin with its signature");
    }
    let length = match start[6] {
        1 => {
            let mut bytes = [0; 2];
            stream.read_exact(&mut bytes).with_context(cut)?;
            usize::from(u16::from_le_bytes(bytes))
        }
        2 | 3 => {
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).with_context(cut)?;
            u32::from_le_bytes(bytes) as usize
        }
        other => bail!("{name}: version {other} of the format is not known; there are 1, 2 and 3"),
    };
    if length > MOST_HEADER_BYTES {
        bail!("{name}: a header of {length} bytes is not believed");
    }
    let mut text = Vec::with_capacity(length.min(4096));
    stream
        .take(length as u64)
        .read_to_end(&mut text)
        .with_context(cut)?;
    if text.len() < length {
        bail!(cut());
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    parse_header(&text).map_err(|reason| anyhow::anyhow!("{name}: {reason}"))
}

/// The array of an `.npy` file as one value.
///
/// # Errors
/// It is damaged, or its elements are of a type that is not read.
pub(super) fn whole(data: &[u8]) -> Result<Cell> {
    let mut rest = data;
    let mut header = read_header("the array", &mut rest)?;
    // A file of one row.
    header.shape.insert(0, 1);
    if header.row_bytes() != Some(rest.len() as u64) {
        bail!(
            "the array has {} bytes of elements, and its shape {:?} wants others",
            rest.len(),
            &header.shape[1..]
        );
    }
    let data = match header.is_fortran {
        true => gather(&header, rest, 0),
        false => rest.to_vec(),
    };
    Ok(header.cell(data))
}

/// Parses the literal of a header.
fn parse_header(text: &str) -> Result<Header, String> {
    let mut literal = Literal { rest: text.trim() };
    let (mut descr, mut is_fortran, mut shape) = (None, None, None);
    literal.expect("{")?;
    while !literal.takes("}") {
        let name = literal.string()?;
        literal.expect(":")?;
        match name.as_str() {
            "descr" => {
                if literal.starts("[") {
                    return Err(
                        "its elements are records of several fields; save each field as an array of its own"
                            .to_owned(),
                    );
                }
                descr = Some(literal.string()?);
            }
            "fortran_order" => is_fortran = Some(literal.boolean()?),
            "shape" => shape = Some(literal.tuple()?),
            other => return Err(format!("its header has an unknown entry `{other}`")),
        }
        if !literal.takes(",") {
            literal.expect("}")?;
            break;
        }
    }
    let missing = |what: &str| format!("its header has no `{what}`");
    let descr = descr.ok_or_else(|| missing("descr"))?;
    Ok(Header {
        kind: kind_of(&descr)?,
        descr,
        is_fortran: is_fortran.ok_or_else(|| missing("fortran_order"))?,
        shape: shape.ok_or_else(|| missing("shape"))?,
    })
}

/// What remains of a literal of Python.
struct Literal<'a> {
    rest: &'a str,
}

impl Literal<'_> {
    fn starts(&mut self, token: &str) -> bool {
        self.rest = self.rest.trim_start();
        self.rest.starts_with(token)
    }

    fn takes(&mut self, token: &str) -> bool {
        let starts = self.starts(token);
        if starts {
            self.rest = &self.rest[token.len()..];
        }
        starts
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        match self.takes(token) {
            true => Ok(()),
            false => Err(format!("its header is malformed: wanted `{token}`")),
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let quote = ["'", "\""].into_iter().find(|quote| self.starts(quote));
        let quote = quote.ok_or("its header is malformed: wanted a string")?;
        let inside = &self.rest[1..];
        let end = inside
            .find(quote)
            .ok_or("its header is malformed: a string has no end")?;
        let text = inside[..end].to_owned();
        self.rest = &inside[end + 1..];
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        if self.takes("True") {
            return Ok(true);
        }
        self.expect("False")?;
        Ok(false)
    }

    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        self.expect("(")?;
        let mut numbers = Vec::new();
        while !self.takes(")") {
            self.rest = self.rest.trim_start();
            let end = self
                .rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(self.rest.len());
            let number = self.rest[..end].parse();
            numbers.push(number.map_err(|_| "its header is malformed: wanted a size".to_owned())?);
            // Python 2 wrote long integers so.
            self.rest = self.rest[end..].trim_start_matches('L');
            if numbers.len() > 32 {
                return Err("it has more than 32 dimensions".to_owned());
            }
            if !self.takes(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(numbers)
    }
}

fn kind_of(descr: &str) -> Result<Kind, String> {
    let unknown = || format!("elements of type `{descr}` are not known");
    let (order, rest) = match descr.as_bytes().first() {
        Some(order @ (b'<' | b'>' | b'|' | b'=')) => (*order, &descr[1..]),
        _ => (b'=', descr),
    };
    let is_big = order == b'>';
    let number = |dtype: DType| Ok(Kind::Number(dtype, is_big && dtype.num_bytes() > 1));
    let length = |text: &str| text.parse::<usize>().ok().filter(|length| *length <= 1 << 28);
    match rest {
        "b1" | "?" => number(DType::Bool),
        "u1" | "B" => number(DType::UInt8),
        "i1" | "b" => number(DType::Int8),
        "u2" => number(DType::UInt16),
        "i2" => number(DType::Int16),
        "u4" => number(DType::UInt32),
        "i4" => number(DType::Int32),
        "u8" => number(DType::UInt64),
        "i8" => number(DType::Int64),
        "f2" => number(DType::Float16),
        "f4" => number(DType::Float32),
        "f8" => number(DType::Float64),
        "O" => Err("it holds objects of Python, pickled, which are not read: they may run any code; save arrays of numbers or texts".to_owned()),
        other => match other.as_bytes().first() {
            Some(b'U') => length(&other[1..]).map(|length| Kind::Unicode(length, is_big)).ok_or_else(unknown),
            Some(b'S' | b'a') => length(&other[1..]).map(Kind::Bytes).ok_or_else(unknown),
            Some(b'M' | b'm') if other[1..].starts_with('8') => Ok(Kind::Time(is_big)),
            Some(b'c') => Err(format!("elements of type `{descr}` are complex numbers; save real and imaginary part as arrays of their own")),
            _ => Err(unknown()),
        },
    }
}

/// An array that is being read.
struct Column {
    name: String,
    header: Header,
    data: Elements,
}

enum Elements {
    /// Rows one after the other.
    Stream(Box<dyn Read>),
    /// All of an array in Fortran order.
    Whole(Vec<u8>),
}

impl std::fmt::Debug for Column {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Column")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Column {
    /// The next row, which is number `row`.
    fn next(&mut self, shown: &str, row: u64) -> Result<Cell> {
        let place = || format!("{shown}, array `{}`", self.name);
        let bytes = self.header.row_bytes().unwrap_or(0);
        let data = match &mut self.data {
            Elements::Stream(stream) => {
                let mut data = Vec::with_capacity(bytes.min(1 << 20) as usize);
                stream
                    .take(bytes)
                    .read_to_end(&mut data)
                    .with_context(|| format!("could not read {}", place()))?;
                if (data.len() as u64) < bytes {
                    bail!("{}: it is cut short: row {} is not all there", place(), row + 1);
                }
                data
            }
            Elements::Whole(all) => gather(&self.header, all, row as usize),
        };
        Ok(self.header.cell(data))
    }
}

/// A row of an array in Fortran order, where the first dimension moves fastest, in C order.
fn gather(header: &Header, all: &[u8], row: usize) -> Vec<u8> {
    let width = header.item_bytes() as usize;
    let sizes: Vec<usize> = header.shape.iter().map(|size| *size as usize).collect();
    let inner = &sizes[1..];
    let count: usize = inner.iter().product();
    let mut data = Vec::with_capacity(count * width);
    let mut index = vec![0; inner.len()];
    for _ in 0..count {
        let (mut at, mut stride) = (row, sizes[0]);
        for (position, size) in index.iter().zip(inner) {
            at += position * stride;
            stride *= size;
        }
        data.extend_from_slice(all.get(at * width..(at + 1) * width).unwrap_or_default());
        // The last dimension moves fastest.
        for (position, size) in index.iter_mut().zip(inner).rev() {
            *position += 1;
            if *position < *size {
                break;
            }
            *position = 0;
        }
    }
    data
}

/// The arrays of a file, by name.
fn columns_of(path: &Path, shown: &str) -> Result<Vec<Column>> {
    let open = || File::open(path).with_context(|| format!("could not open {shown}"));
    let mut start = Vec::new();
    open()?
        .take(4)
        .read_to_end(&mut start)
        .with_context(|| format!("could not read {shown}"))?;
    if !start.starts_with(b"PK") {
        let stream: Box<dyn Read> = Box::new(BufReader::with_capacity(256 << 10, open()?));
        return Ok(vec![column(ALONE.to_owned(), shown, stream)?]);
    }
    let bytes = open()?
        .metadata()
        .with_context(|| format!("could not read {shown}"))?
        .len();
    let archive = Zip::open(shown, BufReader::new(open()?), bytes)?;
    let count = archive.len();
    if count > MOST_ARRAYS {
        bail!("{shown}: it has {count} arrays, and at most {MOST_ARRAYS} are read side by side");
    }
    let mut columns = Vec::new();
    for index in 0..count {
        let member = archive.member(index)?;
        let Some(name) = member.path.strip_suffix(".npy") else {
            bail!("{shown}: its member {} is not an array of NumPy", member.path);
        };
        // Each array has a handle of its own, so that all are read side by side.
        let own = Zip::open(shown, BufReader::with_capacity(64 << 10, open()?), bytes)?;
        let stream: Box<dyn Read> = Box::new(own.into_read(index)?);
        columns.push(column(name.to_owned(), shown, stream)?);
    }
    if columns.is_empty() {
        bail!("{shown}: it has no arrays");
    }
    Ok(columns)
}

fn column(name: String, shown: &str, mut stream: Box<dyn Read>) -> Result<Column> {
    let place = format!("{shown}, array `{name}`");
    let header = read_header(&place, &mut stream)?;
    if header.shape.is_empty() {
        return Err(Hinted::new(
            format!("{place}: it is a single value, which has no rows"),
            "leave it out of the file: columns are arrays of the same first dimension",
        )
        .into());
    }
    if header.row_bytes().is_none() {
        bail!(
            "{place}: rows of shape {:?} are larger than {MOST_BYTES} bytes",
            &header.shape[1..]
        );
    }
    if !header.is_fortran || header.shape.len() == 1 {
        return Ok(Column {
            name,
            header,
            data: Elements::Stream(stream),
        });
    }
    let total = header
        .row_bytes()
        .and_then(|bytes| bytes.checked_mul(header.shape[0]))
        .filter(|total| *total <= MOST_BYTES);
    let Some(total) = total else {
        return Err(Hinted::new(
            format!("{place}: it is in Fortran order, and larger than {MOST_BYTES} bytes, which are turned around in memory"),
            "save it in C order: `numpy.ascontiguousarray(array)`",
        )
        .into());
    };
    let mut all = Vec::new();
    (&mut stream)
        .take(total)
        .read_to_end(&mut all)
        .with_context(|| format!("could not read {place}"))?;
    if (all.len() as u64) < total {
        bail!(
            "{place}: it is cut short: {} of {total} bytes are there",
            all.len()
        );
    }
    Ok(Column {
        name,
        header,
        data: Elements::Whole(all),
    })
}

/// How many rows all arrays have.
fn rows_of(columns: &[Column], shown: &str) -> Result<u64> {
    let Some(first) = columns.first() else {
        return Ok(0);
    };
    let rows = first.header.shape[0];
    if let Some(other) = columns.iter().find(|column| column.header.shape[0] != rows) {
        return Err(Hinted::new(
            format!(
                "{shown}: the array `{}` has {} rows, and `{}` has {rows}",
                other.name, other.header.shape[0], first.name
            ),
            "all arrays of a file are columns of the same rows: save others apart",
        )
        .into());
    }
    Ok(rows)
}

impl RowReader for Npz {
    fn endings(&self) -> &'static [&'static str] {
        &[".npz", ".npy"]
    }

    fn unit(&self) -> &'static str {
        "row"
    }

    fn columns(&self, file: &mut RowFile<'_>, source: u32, survey: &mut Survey) -> Result<bool> {
        let local = file.local()?;
        let columns = columns_of(local.path(), &file.shown)?;
        let rows = rows_of(&columns, &file.shown)?;
        let place = Place {
            source,
            file: file.index,
            row: 0,
            path: file.shown.as_str().into(),
            unit: "",
        };
        for column in &columns {
            survey.tell(&column.name, column.header.told(), rows, &place);
        }
        survey.rows += rows;
        Ok(true)
    }

    fn read(&self, file: &mut RowFile<'_>, _piece: u64, rows: &mut dyn Rows) -> Result<()> {
        let local = file.local()?;
        let mut columns = columns_of(local.path(), &file.shown)?;
        let count = rows_of(&columns, &file.shown)?;
        for row in 0..count {
            let mut cells = Vec::with_capacity(columns.len());
            for column in &mut columns {
                let value = column.next(&file.shown, row)?;
                cells.push((column.name.as_str(), value));
            }
            let mut data = Vec::new();
            write_row(&cells, &mut data);
            let next = RawRow {
                row,
                data: data.into(),
                tag: 0,
                way: (row, count),
            };
            if row % 256 == 0 {
                file.check()?;
            }
            if rows.put(next)?.is_break() {
                return Ok(());
            }
        }
        // The end is where CRCs are checked.
        for column in &mut columns {
            if let Elements::Stream(stream) = &mut column.data {
                let left = std::io::copy(stream, &mut std::io::sink())
                    .with_context(|| format!("could not read {}, array `{}`", file.shown, column.name))?;
                if left > 0 {
                    bail!(
                        "{}, array `{}`: {left} bytes follow its last row",
                        file.shown,
                        column.name
                    );
                }
            }
        }
        file.add_progress(file.bytes);
        Ok(())
    }

    fn cells(&self, data: &Bytes, _tag: u64) -> Result<Row> {
        read_row(data).context("a row came malformed out of the reader")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn cells(bytes: &[u8]) -> Result<Vec<Cell>> {
        let stream: Box<dyn Read> = Box::new(std::io::Cursor::new(bytes.to_vec()));
        let mut column = column("a".to_owned(), "a.npy", stream)?;
        let rows = column.header.shape[0];
        (0..rows).map(|row| column.next("a.npy", row)).collect()
    }

    #[test]
    fn both_orders_and_both_byte_orders_are_read() {
        let tensor = |row: [u8; 3]| Cell::Tensor(DType::UInt8, vec![3], Bytes::copy_from_slice(&row));
        let wanted = [tensor([1, 2, 3]), tensor([4, 5, 6])];
        let c = npy("|u1", "False", "(2, 3)", &[1, 2, 3, 4, 5, 6]);
        let fortran = npy("|u1", "True", "(2, 3)", &[1, 4, 2, 5, 3, 6]);
        assert_eq!(cells(&c).unwrap(), wanted);
        assert_eq!(cells(&fortran).unwrap(), wanted);
        // Three dimensions: element (i, j, k) is 100 i + 10 j + k.
        let mut data = Vec::new();
        for k in 0..2u8 {
            for j in 0..3u8 {
                for i in 0..2u8 {
                    data.push(100 * i + 10 * j + k);
                }
            }
        }
        let found = cells(&npy("|u1", "True", "(2, 3, 2)", &data)).unwrap();
        let Cell::Tensor(_, shape, row) = &found[1] else {
            panic!()
        };
        assert_eq!(
            (shape.as_slice(), &row[..]),
            (&[3, 2][..], &[100, 101, 110, 111, 120, 121][..])
        );
        let big = cells(&npy(">i2", "False", "(1,)", &[1, 2])).unwrap();
        assert_eq!(
            big,
            [Cell::Tensor(DType::Int16, vec![], Bytes::from_static(&[2, 1]))]
        );
    }

    #[test]
    fn texts_and_bytes_lose_their_padding() {
        let text: Vec<u8> = "äb\0".chars().flat_map(|c| (c as u32).to_le_bytes()).collect();
        assert_eq!(
            cells(&npy("<U3", "False", "(1,)", &text)).unwrap(),
            [Cell::Text("äb".into())]
        );
        assert_eq!(
            cells(&npy("|S3", "False", "(2,)", b"ab\0cde")).unwrap(),
            [Cell::Bytes("ab".into()), Cell::Bytes("cde".into())]
        );
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        for (bytes, said) in [
            (npy("|O", "False", "(1,)", &[]), "pickled"),
            (npy("<c8", "False", "(1,)", &[]), "complex"),
            (npy("<f4", "False", "()", &[0; 4]), "single value"),
            (npy("<f4", "False", "(2,)", &[0; 7]), "row 2 is not all there"),
            (
                npy("<f4", "False", "(1, 99999999999, 99999999999)", &[]),
                "larger than",
            ),
            (npy("<f4", "True", "(4, 4)", &[0; 7]), "cut short"),
            (npy("<f4", "Maybe", "(4, 4)", &[0; 7]), "malformed"),
            (b"nothing at all".to_vec(), "signature"),
            (b"\x93NUMPY\x09\x00\x00\x00".to_vec(), "version 9"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), "not believed"),
        ] {
            let error = cells(&bytes).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        let records = npy("<f4", "False", "(1,)", &[]);
        let text = String::from_utf8_lossy(&records[10..]).replace("'<f4'", "[('a', '<f4')]");
        assert!(parse_header(&text).unwrap_err().contains("several fields"));
    }

    proptest! {
        #[test]
        fn arbitrary_headers_never_panic(text in "[{}'a-z:(),0-9 <]{0,60}") {
            let _ = parse_header(&text);
        }
    }
}
