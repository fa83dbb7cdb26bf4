//! Patterns of members' paths, and texts that are made of what they caught.
//!
//! | in a pattern | stands for |
//! |---|---|
//! | `*` | any text without `/` |
//! | `**` | any text; `**/` also for no folder at all |
//! | `{name}` | any text without `/`, at least one character, which templates then call `{name}` |
//! | `{name=a\|b}` | `a` or `b` |
//! | anything else | itself, upper and lower case apart |
//!
//! A wildcard stands for as little as it can. A pattern covers the whole path.

use std::collections::HashSet;
use std::fmt::Write;

/// Longest path that is compared with patterns: the cost grows with the square of its length.
const MOST_PATH_BYTES: usize = 1024;
/// Names that every path gives.
pub(crate) const PATH_NAMES: [&str; 4] = ["path", "file", "folder", "stem"];

/// A pattern of members' paths, in which `{name}` captures, `*` stands for part of a name and `**` for any folders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Literal(String),
    /// `*`
    Any,
    /// `**`
    Anything,
    /// `**/`
    Folders,
    Name(String),
    OneOf(String, Vec<String>),
}

/// What a pattern caught of a path: (name, text).
pub(crate) type Caught<'a> = Vec<(&'a str, &'a str)>;

impl Pattern {
    /// Parses a pattern; the error says what is wrong with it.
    ///
    /// # Errors
    /// A brace without its other half, a name twice, or the syntax of regular expressions.
    pub fn parse(text: &str) -> Result<Self, String> {
        const SYNTAX: &str = "patterns are those of files: `*` is any text without `/`, `**` any text, `{name}` a text that is kept";
        // `name.*` is a file with any ending; `name-.*` is meant as something else.
        let regular = text.match_indices(".*").any(|(at, _)| {
            !text[..at].ends_with(|before: char| before.is_alphanumeric() || "*}_".contains(before))
        });
        if regular || text.contains(['^', '$', '\\']) || text.contains("(?") {
            return Err(format!("`{text}` looks like a regular expression; {SYNTAX}"));
        }
        let mut tokens = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (token, length) = match first {
                '*' if rest.starts_with("**/") => (Token::Folders, 3),
                '*' if rest.starts_with("**") => (Token::Anything, 2),
                '*' => (Token::Any, 1),
                '{' => {
                    let end = rest.find('}').ok_or_else(|| unpaired(text))?;
                    (name_token(text, &rest[1..end])?, end + 1)
                }
                '}' => return Err(unpaired(text)),
                other => {
                    literal.push(other);
                    rest = &rest[other.len_utf8()..];
                    continue;
                }
            };
            if !literal.is_empty() {
                tokens.push(Token::Literal(std::mem::take(&mut literal)));
            }
            tokens.push(token);
            rest = &rest[length..];
        }
        if !literal.is_empty() {
            tokens.push(Token::Literal(literal));
        }
        if tokens.is_empty() {
            return Err(format!("the pattern is empty; {SYNTAX}"));
        }
        if text.starts_with('/') || text.split('/').any(|part| part == "..") {
            return Err(format!(
                "`{text}`: paths in archives begin with a name and never lead out"
            ));
        }
        let pattern = Self {
            text: text.to_owned(),
            tokens,
        };
        let mut seen = HashSet::new();
        if let Some(twice) = pattern.names().find(|name| !seen.insert(*name)) {
            return Err(format!("`{text}` has `{{{twice}}}` twice"));
        }
        Ok(pattern)
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names that it catches.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tokens.iter().filter_map(|token| match token {
            Token::Name(name) | Token::OneOf(name, _) => Some(name.as_str()),
            _ => None,
        })
    }

    /// What it catches of a path, or `None` where it does not fit. Costs at most (tokens x length^2) steps.
    pub(crate) fn matches<'a>(&'a self, path: &'a str) -> Option<Caught<'a>> {
        if path.len() > MOST_PATH_BYTES {
            return None;
        }
        let mut attempt = Attempt {
            tokens: &self.tokens,
            path,
            failed: vec![false; (self.tokens.len() + 1) * (path.len() + 1)],
            caught: Vec::new(),
        };
        attempt.fits(0, 0).then(|| {
            attempt.caught.reverse();
            attempt.caught
        })
    }
}

fn unpaired(text: &str) -> String {
    format!("`{text}` has a brace without its other half")
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn name_token(text: &str, inside: &str) -> Result<Token, String> {
    let (name, choices) = match inside.split_once('=') {
        Some((name, choices)) => (name, Some(choices)),
        None => (inside, None),
    };
    if !is_name(name) {
        return Err(format!("`{text}`: `{{{inside}}}` is not a name in braces"));
    }
    if PATH_NAMES.contains(&name) || name == "split" || name == "index" {
        return Err(format!("`{text}`: the name `{name}` is taken"));
    }
    Ok(match choices {
        None => Token::Name(name.to_owned()),
        Some(choices) => {
            let choices: Vec<String> = choices.split('|').map(str::to_owned).collect();
            if choices.iter().any(String::is_empty) {
                return Err(format!("`{text}`: an empty choice in `{{{inside}}}`"));
            }
            Token::OneOf(name.to_owned(), choices)
        }
    })
}

/// One comparison. Remembers what led nowhere, so that no way is gone twice.
struct Attempt<'a> {
    tokens: &'a [Token],
    path: &'a str,
    failed: Vec<bool>,
    /// From the last to the first.
    caught: Caught<'a>,
}

impl<'a> Attempt<'a> {
    fn fits(&mut self, token: usize, from: usize) -> bool {
        let slot = token * (self.path.len() + 1) + from;
        if self.failed[slot] {
            return false;
        }
        let found = self.tries(token, from);
        self.failed[slot] = !found;
        found
    }

    fn tries(&mut self, token: usize, from: usize) -> bool {
        let (tokens, path) = (self.tokens, self.path);
        let rest = &path[from..];
        let Some(what) = tokens.get(token) else {
            return rest.is_empty();
        };
        match what {
            Token::Literal(literal) => {
                rest.starts_with(literal.as_str()) && self.fits(token + 1, from + literal.len())
            }
            Token::OneOf(name, choices) => choices.iter().any(|choice| {
                let fits = rest.starts_with(choice.as_str()) && self.fits(token + 1, from + choice.len());
                if fits {
                    self.caught.push((name, &rest[..choice.len()]));
                }
                fits
            }),
            Token::Folders => {
                let ends = std::iter::once(0).chain(rest.match_indices('/').map(|(at, _)| at + 1));
                ends.into_iter().any(|end| self.fits(token + 1, from + end))
            }
            Token::Any | Token::Anything | Token::Name(_) => {
                let limit = match what {
                    Token::Anything => rest.len(),
                    _ => rest.find('/').unwrap_or(rest.len()),
                };
                let least = usize::from(matches!(what, Token::Name(_)));
                let ends = rest[..limit].char_indices().map(|(at, _)| at).chain([limit]);
                for end in ends.skip(least) {
                    if self.fits(token + 1, from + end) {
                        if let Token::Name(name) = what {
                            self.caught.push((name, &rest[..end]));
                        }
                        return true;
                    }
                }
                false
            }
        }
    }
}

/// What a template may name.
pub(crate) struct Names<'a> {
    /// Name of the split.
    pub(crate) split: &'a str,
    /// Position in the split, where it has one.
    pub(crate) index: u64,
    /// Path of the member; empty where there is none.
    pub(crate) path: &'a str,
    /// What a pattern caught of it.
    pub(crate) caught: &'a [(&'a str, &'a str)],
}

impl<'a> Names<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        let (folders, file) = self.path.rsplit_once('/').unwrap_or(("", self.path));
        match name {
            "path" => Some(self.path),
            "file" => Some(file),
            "folder" => Some(folders.rsplit('/').next().unwrap_or("")),
            "stem" => Some(file.rsplit_once('.').map_or(file, |(stem, _)| stem)),
            name => self
                .caught
                .iter()
                .find(|(other, _)| *other == name)
                .map(|(_, text)| *text),
        }
    }
}

/// A text with places for names: `{split}_{index:05}`, `{folder:lower}`, `{file:before=_}` (up to the first `_`, or all).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Split,
    Index { width: usize },
    Name { name: String, change: Change },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    None,
    Lower,
    Before(String),
}

impl Template {
    /// Parses a template of `{split}`, `{index}` and `{index:05}`; the error says what is wrong with it.
    ///
    /// # Errors
    /// A brace without its other half, or another name.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::parse_with(text, &[])
    }

    /// Parses a template that may also name these, each changed by `:lower` or `:before=TEXT`. `index` is then not among them.
    ///
    /// # Errors
    /// A brace without its other half, or a name that is not there.
    pub fn parse_with(text: &str, names: &[&str]) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find(['{', '}']) {
            if start > 0 {
                pieces.push(Piece::Literal(rest[..start].to_owned()));
            }
            let inside = &rest[start..];
            let end = inside.find('}').filter(|_| inside.starts_with('{'));
            let Some(end) = end else {
                return Err(unpaired(text));
            };
            pieces.push(piece(&inside[1..end], names)?);
            rest = &inside[end + 1..];
        }
        if !rest.is_empty() {
            pieces.push(Piece::Literal(rest.to_owned()));
        }
        Ok(Self { pieces })
    }

    /// The text for this split and index.
    pub fn render(&self, split: &str, index: u64) -> String {
        self.render_with(&Names {
            split,
            index,
            path: "",
            caught: &[],
        })
    }

    /// The text for these names.
    pub(crate) fn render_with(&self, names: &Names<'_>) -> String {
        let mut text = String::with_capacity(24);
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text.push_str(literal),
                Piece::Split => text.push_str(names.split),
                Piece::Index { width } => {
                    let (index, width) = (names.index, *width);
                    let _ = write!(text, "{index:0width$}");
                }
                Piece::Name { name, change } => {
                    let value = names.get(name).unwrap_or("");
                    match change {
                        Change::None => text.push_str(value),
                        Change::Lower => text.push_str(&value.to_lowercase()),
                        Change::Before(mark) => {
                            text.push_str(value.split(mark.as_str()).next().unwrap_or(""))
                        }
                    }
                }
            }
        }
        text
    }
}

fn piece(inside: &str, names: &[&str]) -> Result<Piece, String> {
    let (name, change) = match inside.split_once(':') {
        Some((name, change)) => (name, Some(change)),
        None => (inside, None),
    };
    if names.contains(&name) {
        let change = match change {
            None => Change::None,
            Some("lower") => Change::Lower,
            Some(other) => match other.strip_prefix("before=") {
                Some(mark) if !mark.is_empty() => Change::Before(mark.to_owned()),
                _ => return Err(format!("`{{{inside}}}`: there are `:lower` and `:before=TEXT`")),
            },
        };
        let name = name.to_owned();
        return Ok(Piece::Name { name, change });
    }
    if names.is_empty() {
        match (name, change.map(|width| width.strip_prefix('0').map(str::parse))) {
            ("split", None) => return Ok(Piece::Split),
            ("index", None) => return Ok(Piece::Index { width: 0 }),
            ("index", Some(Some(Ok(width @ 0..=40)))) => return Ok(Piece::Index { width }),
            _ => {}
        }
        return Err(format!(
            "`{{{inside}}}` is not known; there are `{{split}}`, `{{index}}` and `{{index:05}}`"
        ));
    }
    if (name, change) == ("split", None) {
        return Ok(Piece::Split);
    }
    let mut known: Vec<String> = names.iter().map(|name| format!("`{{{name}}}`")).collect();
    known.push("`{split}`".to_owned());
    Err(format!(
        "`{{{inside}}}` is not known; there are {}",
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caught<'a>(pattern: &'a Pattern, path: &'a str) -> Option<String> {
        let caught = pattern.matches(path)?;
        Some(
            caught
                .iter()
                .map(|(name, text)| format!("{name}={text}"))
                .collect::<Vec<_>>()
                .join(" "),
        )
    }

    #[test]
    fn patterns_catch_parts_of_paths() {
        for (pattern, path, wanted) in [
            (
                "*/train/{label}/*.JPEG",
                "base/train/n01/n01_1.JPEG",
                Some("label=n01"),
            ),
            ("*/train/{label}/*.JPEG", "base/x/train/n01/n01_1.JPEG", None),
            ("*/train/{label}/*.JPEG", "base/train/n01/n01_1.jpeg", None),
            ("**/{label}/*.jpg", "healthy/a.jpg", Some("label=healthy")),
            ("**/{label}/*.jpg", "a/b/c/d.jpg", Some("label=c")),
            ("**/*.jpg", "d.jpg", Some("")),
            ("**/{label}/*.jpg", "d.jpg", None),
            ("a/{label=neg|pos}/**", "a/pos/x/y", Some("label=pos")),
            ("a/{label=neg|pos}/**", "a/unsup/x", None),
            ("{a}_{b}", "x_y_z", Some("a=x b=y_z")),
            ("{a}{b}", "xy", Some("a=x b=y")),
            ("{a}", "", None),
            ("{a}*", "caf\u{e9}", Some("a=c")),
            ("a", "ab", None),
        ] {
            let parsed = Pattern::parse(pattern).unwrap();
            assert_eq!(caught(&parsed, path).as_deref(), wanted, "{pattern} on {path}");
        }
    }

    #[test]
    fn a_pattern_that_fits_nowhere_is_given_up_in_time() {
        let pattern = Pattern::parse("**/*a*a*a*a*a*a*a*a*a*a*a*b").unwrap();
        assert_eq!(pattern.matches(&"a/".repeat(500)), None);
        assert_eq!(pattern.matches(&"a".repeat(1000)), None);
    }

    #[test]
    fn patterns_with_faults_are_refused_in_words() {
        for (bad, said) in [
            ("train-.*", "regular expression"),
            ("^train", "regular expression"),
            ("train/\\d+", "regular expression"),
            ("{a", "brace"),
            ("a}", "brace"),
            ("{a}/{a}", "twice"),
            ("{}", "not a name"),
            ("{a b}", "not a name"),
            ("{file}", "taken"),
            ("{a=x|}", "empty choice"),
            ("", "empty"),
            ("/a", "never lead out"),
            ("a/../b", "never lead out"),
        ] {
            let error = Pattern::parse(bad).unwrap_err();
            assert!(error.contains(said), "{bad}: {error}");
        }
        assert!(Pattern::parse("**/*.*").is_ok());
    }

    #[test]
    fn templates_render_split_and_index() {
        let template = Template::parse("{split}_{index:05}").unwrap();
        assert_eq!(template.render("train", 39), "train_00039");
        assert_eq!(template.render("test", 1_234_567), "test_1234567");
        assert_eq!(Template::parse("n{index}.png").unwrap().render("x", 7), "n7.png");
        assert_eq!(Template::parse("").unwrap().render("x", 7), "");
    }

    #[test]
    fn templates_render_what_was_caught() {
        let names = Names {
            split: "train",
            index: 0,
            path: "a/Roses/b_c.tar.jpg",
            caught: &[("label", "L")],
        };
        let known = ["label", "path", "file", "folder", "stem"];
        for (template, wanted) in [
            ("{path}", "a/Roses/b_c.tar.jpg"),
            ("{folder:lower}/{file}", "roses/b_c.tar.jpg"),
            ("{file:before=_}|{file:before=x}", "b|b_c.tar.jpg"),
            ("{stem}-{split}-{label}", "b_c.tar-train-L"),
        ] {
            assert_eq!(
                Template::parse_with(template, &known)
                    .unwrap()
                    .render_with(&names),
                wanted
            );
        }
        for bad in [
            "{index}",
            "{name}",
            "{file:upper}",
            "{file:before=}",
            "{split:lower}",
        ] {
            assert!(Template::parse_with(bad, &known).is_err(), "{bad}");
        }
    }

    #[test]
    fn templates_with_faults_are_refused() {
        for bad in [
            "{",
            "}",
            "a{split",
            "{}",
            "{key}",
            "{index:5}",
            "{index:099}",
            "}{",
        ] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
