//! JSON as Python writes it: indented, keys sorted, everything but ASCII escaped.

use std::fmt::Write;

use serde_json::Value;

/// Writes `value` as Python's `json.dumps(value, indent=indent, sort_keys=True)` does; `indent: None` gives one line.
pub(crate) fn dump(value: &Value, indent: Option<usize>) -> String {
    let mut out = String::new();
    write_value(value, indent, 0, &mut out);
    out
}

fn write_value(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) {
    match value {
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            write_items(('[', ']'), items.iter(), indent, depth, out, |item, out| {
                write_value(item, indent, depth + 1, out);
            });
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            // Python compares code points, which is the order of UTF-8 bytes.
            entries.sort_unstable_by_key(|(key, _)| *key);
            let entries = entries.into_iter();
            write_items(('{', '}'), entries, indent, depth, out, |(key, item), out| {
                write_string(key, out);
                out.push_str(": ");
                write_value(item, indent, depth + 1, out);
            });
        }
        // Null, true, false and numbers look alike in both.
        other => out.push_str(&other.to_string()),
    }
}

fn write_items<T>(
    (open, close): (char, char),
    items: impl ExactSizeIterator<Item = T>,
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(T, &mut String),
) {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    let empty = items.len() == 0;
    for (number, item) in items.enumerate() {
        if number > 0 {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        line(depth + 1, out);
        write(item, out);
    }
    if !empty {
        line(depth, out);
    }
    out.push(close);
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(character),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The text is what Python 3.11 prints for the same value.
    #[test]
    fn looks_as_python_writes_it() {
        let value = json!({"b": [1, {}], "a": "é\u{1F600}\u{7f}\"\\\n\u{1}", "c": [], "B": null, "d": {"x": true, "é": 1.5}});
        let wanted = "{\n  \"B\": null,\n  \"a\": \"\\u00e9\\ud83d\\ude00\\u007f\\\"\\\\\\n\\u0001\",\n  \"b\": [\n    1,\n    {}\n  ],\n  \"c\": [],\n  \"d\": {\n    \"x\": true,\n    \"\\u00e9\": 1.5\n  }\n}";
        assert_eq!(dump(&value, Some(2)), wanted);
        assert_eq!(
            dump(&json!({"b": [1, 2], "a": {}}), None),
            "{\"a\": {}, \"b\": [1, 2]}"
        );
    }
}
