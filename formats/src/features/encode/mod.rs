//! Typed values to `tf.train.Example` bytes.

mod leaf;
#[cfg(test)]
mod tests;

use crate::example::in_feature;
use crate::example::wire::{self, Kind};
use crate::features::feature::{Feature, join};
use crate::features::stored::{self, Leaf};
use crate::features::{Features, encode::leaf::LeafEncoder};
use crate::png;
use crate::value::Value;
use crate::{Error, Result};

/// Encodes typed values as `tf.train.Example` bytes under a schema, features in sorted order.
///
/// Equal values give equal bytes. Buffers and the PNG encoder are kept: one per thread. Costs one copy of what is stored, and nothing is
/// allocated per example once the buffers have grown.
///
/// # Examples
/// ```
/// use prep_formats::features::{Feature, Features};
/// use prep_formats::value::Value;
///
/// let label = Feature::ClassLabel { num_classes: 2, names: vec!["cat".into(), "dog".into()] };
/// let features = Features::new(vec![("text".into(), Feature::Text), ("label".into(), label)])?;
/// let mut record = Vec::new();
/// let values = [("text", Value::Bytes("woof".into())), ("label", Value::Bytes("dog".into()))];
/// features.encoder().encode(&values, &mut record)?;
/// assert_eq!(record, b"\x0a\x22\x0a\x0e\x0a\x05label\x12\x05\x1a\x03\x0a\x01\x01\x0a\x10\x0a\x04text\x12\x08\x0a\x06\x0a\x04woof");
/// # Ok::<(), prep_formats::Error>(())
/// ```
#[derive(Debug)]
pub struct ExampleEncoder {
    fields: Vec<(String, Node)>,
    /// For each field, which of the values it is.
    given: Vec<usize>,
    output: Output,
}

/// How a feature is encoded: a tree as the schema is.
#[derive(Debug)]
enum Node {
    Leaf(Box<LeafEncoder>),
    Optional(Box<LeafEncoder>),
    Dict {
        path: String,
        fields: Vec<(String, Node)>,
    },
    Sequence(Sequence),
    /// Texts by language, as the sequences `language` and `translation`.
    Languages {
        path: String,
        languages: Vec<String>,
        sequence: Sequence,
    },
}

#[derive(Debug)]
struct Sequence {
    path: String,
    element: Box<Node>,
    length: Option<u64>,
    /// Lists that take the length of each sequence of this level; of none if it is the outermost.
    lengths: Vec<usize>,
}

/// The lists of the example, sorted by name, and what makes their values.
#[derive(Debug, Default)]
struct Output {
    lists: Vec<List>,
    /// The list whose one string is left out.
    hole: Option<usize>,
    /// Whether pixels are only looked at, and not compressed.
    is_check: bool,
    png: png::Encoder,
    scratch: Vec<u8>,
    deflate: Option<Deflate>,
}

/// A compressor, which has no `Debug` of its own.
struct Deflate(libdeflater::Compressor);

impl std::fmt::Debug for Deflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Deflate")
    }
}

/// One list of the example: the body of its message, or for numbers of the packed field in it.
#[derive(Debug)]
struct List {
    name: String,
    kind: Kind,
    /// Whether every example has it.
    always: bool,
    present: bool,
    body: Vec<u8>,
}

/// No value for this field yet.
const MISSING: usize = usize::MAX;

impl ExampleEncoder {
    pub(super) fn new(features: &Features) -> Self {
        let mut lists = Vec::new();
        for leaf in features.leaves() {
            let mut add = |name: String, kind| {
                lists.push(List {
                    name,
                    kind,
                    always: !leaf.optional,
                    present: false,
                    body: Vec::new(),
                });
            };
            for (number, names) in std::iter::once(leaf.values()).chain(leaf.shapes()).enumerate() {
                add(
                    names.values,
                    if number == 0 {
                        leaf::kind(&leaf.feature)
                    } else {
                        Kind::Int64
                    },
                );
                for name in names.lengths {
                    add(name, Kind::Int64);
                }
            }
        }
        lists.sort_by(|a, b| a.name.cmp(&b.name));
        let compiler = Compiler { lists: &lists };
        let fields = features
            .iter()
            .map(|(name, feature)| {
                let node = compiler.node(feature, &mut vec![name.to_string()], &mut Vec::new());
                (name.to_string(), node)
            })
            .collect();
        Self {
            fields,
            given: Vec::new(),
            output: Output {
                lists,
                ..Output::default()
            },
        }
    }

    /// Appends the encoded example to `out`. `values` may come in any order, each feature once.
    ///
    /// | feature | value |
    /// |---|---|
    /// | image | pixels, which are encoded as PNG, or a file's bytes, which are taken as they are |
    /// | label | a number, -1 for none, or a name |
    /// | numbers | a tensor of the declared type, or numbers in lists: into a feature of any type that holds them |
    /// | box | four numbers: `ymin`, `xmin`, `ymax`, `xmax` |
    /// | sequence, dataset, video | a list, or a tensor, whose first dimension is cut up; of nested features a list of dicts, or a dict of lists |
    /// | nested features, translation | a dict with each of them |
    /// | translation of variable languages | a dict from language to a text or a list of texts |
    /// | optional | as without, or `Null` |
    ///
    /// # Errors
    /// A missing or unknown feature, a wrong type or shape, a label out of range: named with the path of the feature, found and wanted.
    /// `out` is then as it was before.
    pub fn encode(&mut self, values: &[(&str, Value)], out: &mut Vec<u8>) -> Result<()> {
        self.output.begin();
        let result = encode_fields(
            "",
            &self.fields,
            &mut self.given,
            values.iter().map(|(name, value)| (*name, value)),
            &mut self.output,
        );
        if result.is_ok() {
            let start = out.len();
            self.output.write(out);
            wire::close_example(start, out);
        }
        result
    }

    /// Looks whether values can be encoded, without the work of compressing pixels.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn check(&mut self, values: &[(&str, Value)]) -> Result<()> {
        self.output.begin();
        self.output.is_check = true;
        let values = values.iter().map(|(name, value)| (*name, value));
        let result = encode_fields("", &self.fields, &mut self.given, values, &mut self.output);
        self.output.is_check = false;
        result
    }

    /// Appends the encoded example but for the `length` bytes of one feature's byte string, which `values` give as empty bytes. Gives
    /// how many of the appended bytes come before them: the example is these, the string, then the rest. So large contents need not
    /// be in memory, nor be copied into the example. Whether they are an image, where one is wanted, is for the caller to check.
    ///
    /// # Errors
    /// As [`encode`](Self::encode); and where `feature` is no feature of one byte string, or not given as an empty one.
    ///
    /// # Examples
    /// ```
    /// use prep_formats::features::{Feature, Features};
    /// use prep_formats::value::Value;
    ///
    /// let features = Features::new(vec![("a".into(), Feature::Text), ("b".into(), Feature::Text)])?;
    /// let (mut whole, mut rest) = (Vec::new(), Vec::new());
    /// features.encoder().encode(&[("a", Value::Bytes("woof".into())), ("b", Value::Bytes("x".into()))], &mut whole)?;
    /// let values = [("a", Value::Bytes("".into())), ("b", Value::Bytes("x".into()))];
    /// let before = features.encoder().encode_around(&values, "a", 4, &mut rest)?;
    /// assert_eq!([&rest[..before], b"woof", &rest[before..]].concat(), whole);
    /// # Ok::<(), prep_formats::Error>(())
    /// ```
    pub fn encode_around(
        &mut self,
        values: &[(&str, Value)],
        feature: &str,
        length: u64,
        out: &mut Vec<u8>,
    ) -> Result<usize> {
        self.output.begin();
        let lists = &self.output.lists;
        let hole = lists.binary_search_by(|list| list.name.as_str().cmp(feature));
        self.output.hole = hole.ok();
        let result = encode_fields(
            "",
            &self.fields,
            &mut self.given,
            values.iter().map(|(name, value)| (*name, value)),
            &mut self.output,
        );
        self.output.hole = None;
        result?;
        let lists = &self.output.lists;
        // One string of no bytes: its tag, and its length.
        let hole = hole.ok().filter(|hole| {
            lists[*hole].kind == Kind::Bytes && lists[*hole].present && lists[*hole].body == [0x0a, 0]
        });
        let Some(hole) = hole else {
            let reason = "its bytes cannot be left out: it is not one empty byte string".to_owned();
            return Err(in_feature(feature, Error::Invalid(reason)));
        };
        let too_long = || in_feature(feature, Error::Invalid(format!("{length} bytes are too many")));
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= isize::MAX as usize / 2)
            .ok_or_else(too_long)?;
        let start = out.len();
        self.output.write_lists(0..hole, out);
        let listed = 1 + wire::varint_length(length as u64) + length;
        wire::put_entry_header(feature, wire::feature_length(Some(Kind::Bytes), listed), out);
        out.push(0x0a);
        wire::put_varint(listed as u64, out);
        out.push(0x0a);
        wire::put_varint(length as u64, out);
        let middle = out.len();
        self.output.write_lists(hole + 1..lists.len(), out);
        let mut header = vec![0x0a];
        wire::put_varint((out.len() - start + length) as u64, &mut header);
        out.splice(start..start, header.iter().copied());
        Ok(middle - start + header.len())
    }
}

/// Encodes the values of a dict, each field once.
fn encode_fields<'a>(
    path: &str,
    fields: &[(String, Node)],
    given: &mut Vec<usize>,
    values: impl Iterator<Item = (&'a str, &'a Value)> + Clone,
    output: &mut Output,
) -> Result<()> {
    given.clear();
    given.resize(fields.len(), MISSING);
    let name_of = |name: &str| join(path, name);
    for (index, (name, _)) in values.clone().enumerate() {
        // Values often come in the order of the schema.
        let field = match fields.get(index) {
            Some((field, _)) if field == name => Ok(index),
            _ => fields.binary_search_by(|(field, _)| field.as_str().cmp(name)),
        };
        let Ok(field) = field else {
            return Err(Error::Invalid(format!(
                "feature `{}` is not in the schema, which has {}",
                name_of(name),
                names(fields)
            )));
        };
        if given[field] != MISSING {
            return Err(Error::Invalid(format!(
                "feature `{}` is given twice",
                name_of(name)
            )));
        }
        given[field] = index;
    }
    if let Some(missing) = given.iter().position(|&index| index == MISSING) {
        return Err(Error::Invalid(format!(
            "feature `{}` has no value",
            name_of(&fields[missing].0)
        )));
    }
    // The order does not matter: lists are written sorted.
    for (index, (name, value)) in values.enumerate() {
        let field = match given.get(index) {
            Some(&same) if same == index => index,
            _ => match fields.binary_search_by(|(field, _)| field.as_str().cmp(name)) {
                Ok(field) => field,
                Err(_) => continue,
            },
        };
        fields[field].1.encode(value, output)?;
    }
    Ok(())
}

fn names(fields: &[(String, Node)]) -> String {
    let names: Vec<String> = fields.iter().map(|(name, _)| format!("`{name}`")).collect();
    names.join(", ")
}

/// Makes nodes of features.
struct Compiler<'a> {
    lists: &'a [List],
}

impl Compiler<'_> {
    fn list(&self, name: &str) -> usize {
        match self.lists.binary_search_by(|list| list.name.as_str().cmp(name)) {
            Ok(index) => index,
            Err(_) => unreachable!("a list was made for each name of a leaf"),
        }
    }

    fn node(&self, feature: &Feature, path: &mut Vec<String>, levels: &mut Vec<Option<u64>>) -> Node {
        match feature {
            Feature::Dict(features) => self.dict(
                features.iter().map(|(name, feature)| (name.as_str(), feature)),
                path,
                levels,
            ),
            Feature::Translation { languages } => {
                let texts = languages.iter().map(|name| (name.as_str(), &Feature::Text));
                self.dict(texts, path, levels)
            }
            Feature::TranslationVariableLanguages { languages } => {
                levels.push(None);
                let pair = [("language", &Feature::Text), ("translation", &Feature::Text)];
                let element = self.dict(pair.into_iter(), path, levels);
                levels.pop();
                let name = path.join("/");
                Node::Languages {
                    languages: languages.clone(),
                    sequence: self.sequence(&name, element, None, levels.len()),
                    path: name,
                }
            }
            Feature::Sequence { feature, length } | Feature::Dataset { feature, length } => {
                levels.push(*length);
                let element = self.node(feature, path, levels);
                levels.pop();
                Node::Sequence(self.sequence(&path.join("/"), element, *length, levels.len()))
            }
            Feature::Video { .. } => {
                let (length, frame) = stored::frames(feature);
                levels.push(length);
                let element = self.node(&frame, path, levels);
                levels.pop();
                Node::Sequence(self.sequence(&path.join("/"), element, length, levels.len()))
            }
            Feature::Optional(inner) => {
                let leaf = self.leaf(inner, path, levels);
                if levels.is_empty() {
                    Node::Optional(leaf)
                } else {
                    Node::Leaf(leaf)
                }
            }
            leaf => Node::Leaf(self.leaf(leaf, path, levels)),
        }
    }

    fn dict<'a>(
        &self,
        features: impl Iterator<Item = (&'a str, &'a Feature)>,
        path: &mut Vec<String>,
        levels: &mut Vec<Option<u64>>,
    ) -> Node {
        let mut fields = Vec::new();
        for (name, feature) in features {
            path.push(name.to_string());
            fields.push((name.to_string(), self.node(feature, path, levels)));
            path.pop();
        }
        Node::Dict {
            path: path.join("/"),
            fields,
        }
    }

    fn leaf(&self, feature: &Feature, path: &[String], levels: &[Option<u64>]) -> Box<LeafEncoder> {
        let leaf = Leaf {
            path: path.to_vec(),
            feature: feature.clone(),
            optional: false,
            levels: levels.to_vec(),
        };
        let values = leaf.values();
        let shapes = leaf.shapes();
        let lengths = |names: &stored::StoredNames| -> Vec<usize> {
            names.lengths.iter().map(|name| self.list(name)).collect()
        };
        let mut all_lengths = vec![lengths(&values)];
        all_lengths.extend(shapes.as_ref().map(lengths));
        Box::new(LeafEncoder::new(
            leaf.name(),
            feature.clone(),
            self.list(&values.values),
            shapes.map(|names| self.list(&names.values)),
            all_lengths,
            !levels.is_empty(),
        ))
    }

    /// A sequence inside `depth` others.
    fn sequence(&self, path: &str, element: Node, length: Option<u64>, depth: usize) -> Sequence {
        let mut lengths = Vec::new();
        if let Some(level) = depth.checked_sub(1) {
            element.each_leaf(&mut |leaf| {
                lengths.extend(leaf.lengths().iter().filter_map(|lists| lists.get(level)));
            });
        }
        Sequence {
            path: path.to_string(),
            element: Box::new(element),
            length,
            lengths,
        }
    }
}

impl Node {
    fn each_leaf(&self, visit: &mut impl FnMut(&LeafEncoder)) {
        match self {
            Self::Leaf(leaf) | Self::Optional(leaf) => visit(leaf),
            Self::Dict { fields, .. } => {
                for (_, node) in fields {
                    node.each_leaf(visit);
                }
            }
            Self::Sequence(sequence) | Self::Languages { sequence, .. } => sequence.element.each_leaf(visit),
        }
    }

    fn encode(&self, value: &Value, output: &mut Output) -> Result<()> {
        match self {
            Self::Leaf(leaf) => leaf
                .encode(value, output)
                .map_err(|error| in_feature(leaf.path(), error)),
            Self::Optional(_) if *value == Value::Null => Ok(()),
            Self::Optional(leaf) => {
                leaf.each_list(|list| output.lists[list].present = true);
                leaf.encode(value, output)
                    .map_err(|error| in_feature(leaf.path(), error))
            }
            Self::Dict { path, fields } => match value {
                Value::Dict(values) => encode_fields(
                    path,
                    fields,
                    &mut Vec::new(),
                    values.iter().map(|(name, value)| (name.as_str(), value)),
                    output,
                ),
                other => {
                    let wanted = format!("a dict with {}", names(fields));
                    Err(in_feature(path, leaf::wrong(other, &wanted)))
                }
            },
            Self::Sequence(sequence) => sequence.encode(value, output),
            Self::Languages {
                path,
                languages,
                sequence,
            } => match value {
                Value::Dict(texts) => {
                    let pairs = pairs(texts, languages).map_err(|error| in_feature(path, error))?;
                    sequence.encode(&pairs, output)
                }
                Value::List(_) => sequence.encode(value, output),
                other => {
                    let wanted = "a dict from languages to texts";
                    Err(in_feature(path, leaf::wrong(other, wanted)))
                }
            },
        }
    }
}

/// Texts by language as pairs, sorted by language and text.
fn pairs(texts: &[(String, Value)], languages: &[String]) -> Result<Value> {
    let mut pairs: Vec<(&str, &bytes::Bytes)> = Vec::new();
    for (language, value) in texts {
        if !languages.is_empty() && languages.binary_search(language).is_err() {
            return Err(Error::Invalid(format!(
                "language `{language}` is none of {}",
                languages.join(", ")
            )));
        }
        let several = match value {
            Value::List(texts) => texts.as_slice(),
            single => std::slice::from_ref(single),
        };
        for text in several {
            match text {
                Value::Bytes(text) => pairs.push((language, text)),
                other => return Err(leaf::wrong(other, &format!("text in the language `{language}`"))),
            }
        }
    }
    pairs.sort_unstable();
    let list = |of: fn(&(&str, &bytes::Bytes)) -> bytes::Bytes| {
        Value::List(pairs.iter().map(|pair| Value::Bytes(of(pair))).collect())
    };
    Ok(Value::Dict(vec![
        (
            "language".to_string(),
            list(|(language, _)| bytes::Bytes::copy_from_slice(language.as_bytes())),
        ),
        ("translation".to_string(), list(|(_, text)| (*text).clone())),
    ]))
}

impl Sequence {
    fn encode(&self, value: &Value, output: &mut Output) -> Result<()> {
        match value {
            Value::List(elements) => {
                self.begin(elements.len(), output)?;
                elements
                    .iter()
                    .try_for_each(|element| self.element.encode(element, output))
            }
            Value::Tensor { shape, data, dtype } if !shape.is_empty() => {
                let length = shape[0];
                self.begin(length, output)?;
                if let Node::Leaf(leaf) = &*self.element
                    && leaf.encode_all(value, output)?
                {
                    return Ok(());
                }
                if data.len().checked_rem(length).unwrap_or(data.len()) != 0 {
                    return Err(in_feature(
                        &self.path,
                        Error::Invalid(format!("tensor of {dtype} {shape:?} has {} bytes", data.len())),
                    ));
                }
                (0..length).try_for_each(|index| self.element.encode(&element_of(value, index), output))
            }
            Value::Dict(columns) => match &*self.element {
                Node::Dict { .. } => {
                    let mut length = None;
                    check_lengths(columns, &mut length).map_err(|error| in_feature(&self.path, error))?;
                    let length = length.unwrap_or(0);
                    self.check_length(length)?;
                    self.encode_columns(&self.element, value, length, output)
                }
                // A dict of lists of sequences: each of them is a dict of lists.
                Node::Sequence(inner) if inner.holds_dicts() => {
                    let mut length = None;
                    check_lengths(columns, &mut length).map_err(|error| in_feature(&self.path, error))?;
                    let length = length.unwrap_or(0);
                    self.begin(length, output)?;
                    (0..length).try_for_each(|index| self.element.encode(&element_of(value, index), output))
                }
                _ => Err(in_feature(&self.path, leaf::wrong(value, "a list"))),
            },
            other => Err(in_feature(&self.path, leaf::wrong(other, "a list"))),
        }
    }

    /// Encodes a dict of lists: the elements of each list belong together, but are stored apart.
    fn encode_columns(&self, node: &Node, value: &Value, length: usize, output: &mut Output) -> Result<()> {
        match (node, value) {
            (Node::Dict { path, fields }, Value::Dict(values)) => {
                for (name, _) in fields {
                    if !values.iter().any(|(other, _)| other == name) {
                        return Err(Error::Invalid(format!(
                            "feature `{}` has no value",
                            join(path, name)
                        )));
                    }
                }
                for (index, (name, value)) in values.iter().enumerate() {
                    let Some((_, node)) = fields.iter().find(|(other, _)| other == name) else {
                        return Err(Error::Invalid(format!(
                            "feature `{}` is not in the schema, which has {}",
                            join(path, name),
                            names(fields)
                        )));
                    };
                    if values[..index].iter().any(|(other, _)| other == name) {
                        return Err(Error::Invalid(format!(
                            "feature `{}` is given twice",
                            join(path, name)
                        )));
                    }
                    self.encode_columns(node, value, length, output)?;
                }
                Ok(())
            }
            (node, Value::List(elements)) => {
                self.begin_column(node, length, output);
                elements
                    .iter()
                    .try_for_each(|element| node.encode(element, output))
            }
            (node, Value::Tensor { .. }) => {
                self.begin_column(node, length, output);
                (0..length).try_for_each(|index| node.encode(&element_of(value, index), output))
            }
            (_, other) => Err(in_feature(&self.path, leaf::wrong(other, "a list in each field"))),
        }
    }

    /// Whether its elements, or those of the sequences in it, are nested features.
    fn holds_dicts(&self) -> bool {
        match &*self.element {
            Node::Dict { .. } => true,
            Node::Sequence(inner) => inner.holds_dicts(),
            _ => false,
        }
    }

    fn check_length(&self, found: usize) -> Result<()> {
        match self.length {
            Some(length) if length != found as u64 => Err(in_feature(
                &self.path,
                Error::Invalid(format!("a sequence of {found} elements, wanted {length}")),
            )),
            _ => Ok(()),
        }
    }

    /// Notes the length of a sequence that begins here.
    fn begin(&self, length: usize, output: &mut Output) -> Result<()> {
        self.check_length(length)?;
        for &list in &self.lengths {
            wire::put_varint(length as u64, &mut output.lists[list].body);
        }
        Ok(())
    }

    /// The same for the part of a dict of lists below `node`.
    fn begin_column(&self, node: &Node, length: usize, output: &mut Output) {
        if self.lengths.is_empty() {
            return;
        }
        node.each_leaf(&mut |leaf| {
            for lists in leaf.lengths() {
                for &list in lists.iter().filter(|list| self.lengths.contains(list)) {
                    wire::put_varint(length as u64, &mut output.lists[list].body);
                }
            }
        });
    }
}

/// One element of each list in a dict; lists of the same length.
fn element_of(value: &Value, index: usize) -> Value {
    match value {
        Value::Dict(columns) => Value::Dict(
            columns
                .iter()
                .map(|(name, column)| (name.clone(), element_of(column, index)))
                .collect(),
        ),
        Value::List(values) => values.get(index).cloned().unwrap_or(Value::Null),
        Value::Tensor { shape, data, dtype } if !shape.is_empty() => {
            let size = data.len().checked_div(shape[0]).unwrap_or(0);
            Value::Tensor {
                dtype: *dtype,
                shape: shape[1..].to_vec(),
                data: data.slice(index * size..(index + 1) * size),
            }
        }
        other => other.clone(),
    }
}

/// Makes sure that the lists in a dict are equally long.
fn check_lengths(columns: &[(String, Value)], length: &mut Option<usize>) -> Result<()> {
    for (name, value) in columns {
        let found = match value {
            Value::List(values) => values.len(),
            Value::Tensor { shape, data, .. } if !shape.is_empty() => {
                if data.len().checked_rem(shape[0]).unwrap_or(data.len()) != 0 {
                    return Err(Error::Invalid(format!(
                        "`{name}` is a tensor of {shape:?} with {} bytes",
                        data.len()
                    )));
                }
                shape[0]
            }
            Value::Dict(inner) => {
                check_lengths(inner, length)?;
                continue;
            }
            other => return Err(leaf::wrong(other, &format!("a list in `{name}`"))),
        };
        if *length.get_or_insert(found) != found {
            return Err(Error::Invalid(format!(
                "`{name}` has {found} elements, the field before it {}",
                length.unwrap_or(0)
            )));
        }
    }
    Ok(())
}

impl Output {
    fn begin(&mut self) {
        for list in &mut self.lists {
            list.body.clear();
            list.present = list.always;
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.write_lists(0..self.lists.len(), out);
    }

    fn write_lists(&self, range: std::ops::Range<usize>, out: &mut Vec<u8>) {
        for list in self.lists[range].iter().filter(|list| list.present) {
            let body = &list.body;
            let length = match list.kind {
                Kind::Bytes => body.len(),
                Kind::Float | Kind::Int64 => wire::packed_length(body.len()),
            };
            wire::put_entry(&list.name, Some(list.kind), length, out, |out| {
                if list.kind != Kind::Bytes {
                    wire::put_packed_header(body.len(), out);
                }
                out.extend_from_slice(body);
            });
        }
    }
}
