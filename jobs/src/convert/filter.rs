//! The language of `--filter`: which records stay, by the values of their features.
//!
//! ```text
//! expression   and, or, not, ( )
//! comparison   VALUE == VALUE   != < <= > >=      VALUE in (1, 2, 3)   VALUE not in ('a', 'b')
//! value        a feature: label, objects/label, `any name in backquotes`; a number: 3, -2.5, 1e-3; a text: 'cat', "cat"
//! function     has(x): whether there is a value; len(x): how many values
//! ```
//!
//! Of a feature with several values the first counts. A comparison with a feature that has no value is false, whatever the operator. Numbers
//! compare as numbers, where a float feature is stored with 32 bits and so is the number it is compared with; texts compare byte by byte. A text
//! against a number is an error, as it cannot be meant.

use std::cmp::Ordering;
use std::fmt;

use prep_formats::example::{ExampleView, FeatureView};

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expression {
    Or(Box<Self>, Box<Self>),
    And(Box<Self>, Box<Self>),
    Not(Box<Self>),
    Has(String),
    Compare(Operand, Operator, Operand),
    In(Operand, Vec<Operand>),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Feature(String),
    Length(String),
    Integer(i64),
    Number(f64),
    Text(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

impl Operator {
    fn holds(self, ordering: Option<Ordering>) -> bool {
        match self {
            Self::Equal => ordering == Some(Ordering::Equal),
            Self::NotEqual => ordering != Some(Ordering::Equal),
            Self::Less => ordering == Some(Ordering::Less),
            Self::AtMost => matches!(ordering, Some(Ordering::Less | Ordering::Equal)),
            Self::Greater => ordering == Some(Ordering::Greater),
            Self::AtLeast => matches!(ordering, Some(Ordering::Greater | Ordering::Equal)),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Greater => ">",
            Self::AtLeast => ">=",
        }
    }
}

/// What is wrong with an expression, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// In characters, from 1.
    pub(crate) column: usize,
    pub(crate) reason: String,
}

impl Fault {
    /// The expression with a mark under the place.
    pub(crate) fn show(&self, text: &str) -> String {
        let Self { column, reason } = self;
        let space = " ".repeat(column - 1);
        format!(
            "column {column}: {reason}\n  {}\n  {space}^",
            text.replace(['\n', '\t'], " ")
        )
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Open,
    Close,
    Comma,
    Operator(Operator),
    /// A word, which may be a keyword.
    Word(String),
    /// A name in backquotes, which is none.
    Name(String),
    Text(String),
    Integer(i64),
    Number(f64),
    End,
}

/// Nesting that is taken; real expressions have a handful.
const MOST_NESTED: usize = 100;

/// Parses an expression.
pub(crate) fn parse(text: &str) -> Result<Expression, Fault> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        at: 0,
        depth: 0,
    };
    let expression = parser.or()?;
    match parser.peek() {
        Token::End => Ok(expression),
        _ => Err(parser.fault("wanted `and`, `or` or the end here")),
    }
}

fn tokens(text: &str) -> Result<Vec<(usize, Token)>, Fault> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    let fault = |at: usize, reason: String| Fault {
        column: at + 1,
        reason,
    };
    while at < chars.len() {
        let start = at;
        let c = chars[at];
        let next = chars.get(at + 1).copied();
        let token = match c {
            c if c.is_whitespace() => {
                at += 1;
                continue;
            }
            '(' => Token::Open,
            ')' => Token::Close,
            ',' => Token::Comma,
            '=' | '!' if next == Some('=') => {
                at += 1;
                Token::Operator(if c == '=' {
                    Operator::Equal
                } else {
                    Operator::NotEqual
                })
            }
            '=' => return Err(fault(at, "to compare, write `==`".into())),
            '<' | '>' => {
                let or_equal = next == Some('=');
                at += usize::from(or_equal);
                Token::Operator(match (c, or_equal) {
                    ('<', false) => Operator::Less,
                    ('<', true) => Operator::AtMost,
                    (_, false) => Operator::Greater,
                    (_, true) => Operator::AtLeast,
                })
            }
            '\'' | '"' | '`' => {
                let mut inside = String::new();
                at += 1;
                loop {
                    match chars.get(at) {
                        None => {
                            return Err(fault(start, format!("the text that begins with {c} has no end")));
                        }
                        Some(end) if *end == c => break,
                        Some('\\') if c != '`' => {
                            at += 1;
                            match chars.get(at) {
                                Some('n') => inside.push('\n'),
                                Some('t') => inside.push('\t'),
                                Some(other @ ('\\' | '\'' | '"')) => inside.push(*other),
                                _ => {
                                    return Err(fault(
                                        at - 1,
                                        "unknown escape; there are \\\\, \\', \\\", \\n and \\t".into(),
                                    ));
                                }
                            }
                        }
                        Some(other) => inside.push(*other),
                    }
                    at += 1;
                }
                if c == '`' {
                    Token::Name(inside)
                } else {
                    Token::Text(inside)
                }
            }
            c if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') => {
                let is_part = |at: usize| {
                    let c = chars[at];
                    c.is_ascii_alphanumeric()
                        || c == '.'
                        || matches!(c, '-' | '+') && matches!(chars[at - 1], 'e' | 'E')
                };
                at += 1;
                while at < chars.len() && is_part(at) {
                    at += 1;
                }
                let word: String = chars[start..at].iter().collect();
                at -= 1;
                match (word.parse::<i64>(), word.parse::<f64>()) {
                    (Ok(integer), _) => Token::Integer(integer),
                    (Err(_), Ok(number)) if word.contains(['.', 'e', 'E']) && number.is_finite() => {
                        Token::Number(number)
                    }
                    (Err(_), Ok(_)) => {
                        return Err(fault(start, format!("the number {word} is out of range")));
                    }
                    _ => return Err(fault(start, format!("`{word}` is not a number"))),
                }
            }
            c if c.is_alphabetic() || c == '_' => {
                while at < chars.len() && (chars[at].is_alphanumeric() || "_/.-".contains(chars[at])) {
                    at += 1;
                }
                at -= 1;
                Token::Word(chars[start..=at].iter().collect())
            }
            other => return Err(fault(at, format!("`{other}` has no meaning here"))),
        };
        at += 1;
        found.push((start + 1, token));
    }
    found.push((chars.len() + 1, Token::End));
    Ok(found)
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        // The last one is the end, and is never passed.
        &self.tokens[self.at.min(self.tokens.len() - 1)].1
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn fault(&self, reason: impl Into<String>) -> Fault {
        Fault {
            column: self.tokens[self.at.min(self.tokens.len() - 1)].0,
            reason: reason.into(),
        }
    }

    fn keyword(&mut self, word: &str) -> bool {
        let is = matches!(self.peek(), Token::Word(found) if found == word);
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, token: &Token, shown: &str) -> Result<(), Fault> {
        if self.peek() == token {
            self.at += 1;
            return Ok(());
        }
        Err(self.fault(format!("wanted `{shown}` here")))
    }

    fn or(&mut self) -> Result<Expression, Fault> {
        let mut left = self.and()?;
        while self.keyword("or") {
            left = Expression::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expression, Fault> {
        let mut left = self.not()?;
        while self.keyword("and") {
            left = Expression::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expression, Fault> {
        self.depth += 1;
        if self.depth > MOST_NESTED {
            return Err(self.fault(format!("it is nested more than {MOST_NESTED} deep")));
        }
        let result = if self.keyword("not") {
            self.not().map(|inner| Expression::Not(Box::new(inner)))
        } else {
            self.comparison()
        };
        self.depth -= 1;
        result
    }

    fn comparison(&mut self) -> Result<Expression, Fault> {
        if *self.peek() == Token::Open {
            self.next();
            let inner = self.or()?;
            self.expect(&Token::Close, ")")?;
            return Ok(inner);
        }
        if matches!(self.peek(), Token::Word(word) if word == "has")
            && self.tokens[self.at + 1].1 == Token::Open
        {
            self.next();
            return Ok(Expression::Has(self.argument()?));
        }
        let left = self.operand()?;
        if self.keyword("in") {
            return Ok(Expression::In(left, self.list()?));
        }
        if self.keyword("not") {
            if !self.keyword("in") {
                return Err(self.fault("wanted `in` here"));
            }
            let found = Expression::In(left, self.list()?);
            return Ok(Expression::Not(Box::new(found)));
        }
        let Token::Operator(operator) = *self.peek() else {
            return Err(self.fault("wanted a comparison here: ==, !=, <, <=, >, >=, `in` or `not in`"));
        };
        self.next();
        Ok(Expression::Compare(left, operator, self.operand()?))
    }

    /// `(NAME)`.
    fn argument(&mut self) -> Result<String, Fault> {
        self.expect(&Token::Open, "(")?;
        let name = match self.next() {
            Token::Word(name) | Token::Name(name) => name,
            _ => {
                self.at -= 1;
                return Err(self.fault("wanted the name of a feature here"));
            }
        };
        self.expect(&Token::Close, ")")?;
        Ok(name)
    }

    fn list(&mut self) -> Result<Vec<Operand>, Fault> {
        self.expect(&Token::Open, "(")?;
        let mut found = Vec::new();
        loop {
            if *self.peek() == Token::Close && !found.is_empty() {
                break;
            }
            match self.operand()? {
                Operand::Feature(_) | Operand::Length(_) => {
                    self.at -= 1;
                    return Err(self.fault("wanted a number or a text here; texts have quotes: 'cat'"));
                }
                value => found.push(value),
            }
            if *self.peek() != Token::Comma {
                break;
            }
            self.next();
        }
        self.expect(&Token::Close, ")")?;
        Ok(found)
    }

    fn operand(&mut self) -> Result<Operand, Fault> {
        let is_call = matches!(self.peek(), Token::Word(word) if word == "len")
            && self.tokens[self.at + 1].1 == Token::Open;
        if is_call {
            self.next();
            return Ok(Operand::Length(self.argument()?));
        }
        Ok(match self.next() {
            Token::Word(word) if ["and", "or", "not", "in"].contains(&word.as_str()) => {
                self.at -= 1;
                return Err(self.fault(format!(
                    "wanted a feature, a number or a text here; for a feature of that name write `{word}` in backquotes"
                )));
            }
            Token::Word(name) | Token::Name(name) => Operand::Feature(name),
            Token::Integer(integer) => Operand::Integer(integer),
            Token::Number(number) => Operand::Number(number),
            Token::Text(text) => Operand::Text(text),
            _ => {
                self.at -= 1;
                return Err(self.fault("wanted a feature, a number or a text here"));
            }
        })
    }
}

enum Value<'a> {
    Integer(i64),
    Float(f32),
    Number(f64),
    Bytes(&'a [u8]),
}

impl Value<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "a text",
            _ => "a number",
        }
    }
}

/// The order of two numbers, without loss where one is whole.
fn compare_mixed(integer: i64, number: f64) -> Option<Ordering> {
    if number.is_nan() {
        return None;
    }
    // All of them are in the range of i128, or beyond any i64.
    let floor = number.floor();
    let order = i128::from(integer).cmp(&(floor as i128));
    Some(match order {
        Ordering::Equal if number > floor => Ordering::Less,
        other => other,
    })
}

fn compare(left: &Value<'_>, right: &Value<'_>) -> Result<Option<Ordering>, ()> {
    use Value::{Bytes, Float, Integer, Number};

    Ok(match (left, right) {
        (Bytes(a), Bytes(b)) => Some(a.cmp(b)),
        (Bytes(_), _) | (_, Bytes(_)) => return Err(()),
        (Integer(a), Integer(b)) => Some(a.cmp(b)),
        (Integer(a), Number(b)) => compare_mixed(*a, *b),
        (Integer(a), Float(b)) => compare_mixed(*a, f64::from(*b)),
        (Number(a), Integer(b)) => compare_mixed(*b, *a).map(Ordering::reverse),
        (Float(a), Integer(b)) => compare_mixed(*b, f64::from(*a)).map(Ordering::reverse),
        (Float(a), Float(b)) => a.partial_cmp(b),
        (Float(a), Number(b)) => a.partial_cmp(&(*b as f32)),
        (Number(a), Float(b)) => (*a as f32).partial_cmp(b),
        (Number(a), Number(b)) => a.partial_cmp(b),
    })
}

impl Expression {
    /// Whether a record stays.
    ///
    /// # Errors
    /// A text is compared with a number.
    pub(crate) fn holds(&self, example: &ExampleView<'_>) -> Result<bool, String> {
        Ok(match self {
            Self::Or(a, b) => a.holds(example)? || b.holds(example)?,
            Self::And(a, b) => a.holds(example)? && b.holds(example)?,
            Self::Not(inner) => !inner.holds(example)?,
            Self::Has(name) => example.get(name).is_some_and(|feature| !feature.is_empty()),
            Self::Compare(left, operator, right) => {
                let (Some(a), Some(b)) = (left.value(example), right.value(example)) else {
                    return Ok(false);
                };
                let order = compare(&a, &b).map_err(|()| {
                    format!(
                        "the filter compares {left}, which is {}, with {right}, which is {}",
                        a.kind(),
                        b.kind()
                    )
                })?;
                operator.holds(order)
            }
            Self::In(left, list) => {
                let Some(a) = left.value(example) else {
                    return Ok(false);
                };
                for right in list {
                    let Some(b) = right.value(example) else {
                        continue;
                    };
                    let order = compare(&a, &b).map_err(|()| {
                        format!(
                            "the filter compares {left}, which is {}, with {right}, which is {}",
                            a.kind(),
                            b.kind()
                        )
                    })?;
                    if order == Some(Ordering::Equal) {
                        return Ok(true);
                    }
                }
                false
            }
        })
    }

    /// Adds the names of all features in it.
    pub(crate) fn features(&self, names: &mut Vec<String>) {
        let mut operand = |operand: &Operand| match operand {
            Operand::Feature(name) | Operand::Length(name) => names.push(name.clone()),
            _ => {}
        };
        match self {
            Self::Or(a, b) | Self::And(a, b) => {
                a.features(names);
                b.features(names);
            }
            Self::Not(inner) => inner.features(names),
            Self::Has(name) => names.push(name.clone()),
            Self::Compare(left, _, right) => {
                operand(left);
                operand(right);
            }
            Self::In(left, _) => operand(left),
        }
    }
}

impl Operand {
    fn value<'a>(&'a self, example: &ExampleView<'a>) -> Option<Value<'a>> {
        match self {
            Self::Feature(name) => match example.get(name)? {
                FeatureView::Bytes(list) => list.first().map(Value::Bytes),
                FeatureView::Int64(list) => list.iter().next().map(Value::Integer),
                FeatureView::Float(list) => list.iter().next().map(Value::Float),
                _ => None,
            },
            Self::Length(name) => Some(Value::Integer(
                example.get(name).map_or(0, |feature| feature.len() as i64),
            )),
            Self::Integer(integer) => Some(Value::Integer(*integer)),
            Self::Number(number) => Some(Value::Number(*number)),
            Self::Text(text) => Some(Value::Bytes(text.as_bytes())),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Feature(name) => write!(f, "`{name}`"),
            Self::Length(name) => write!(f, "len(`{name}`)"),
            Self::Integer(integer) => write!(f, "{integer}"),
            Self::Number(number) => write!(f, "{number:?}"),
            Self::Text(text) => {
                let text = text
                    .replace('\\', "\\\\")
                    .replace('\'', "\\'")
                    .replace('\n', "\\n");
                write!(f, "'{}'", text.replace('\t', "\\t"))
            }
        }
    }
}

/// Canonical: the same meaning gives the same text, however it was written.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Or(a, b) => write!(f, "({a} or {b})"),
            Self::And(a, b) => write!(f, "({a} and {b})"),
            Self::Not(inner) => write!(f, "not {inner}"),
            Self::Has(name) => write!(f, "has(`{name}`)"),
            Self::Compare(left, operator, right) => write!(f, "{left} {} {right}", operator.word()),
            Self::In(left, list) => {
                let list: Vec<String> = list.iter().map(Operand::to_string).collect();
                write!(f, "{left} in ({})", list.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use prep_formats::example::{Example, FeatureList};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn faults_point_at_their_column() {
        for (text, column, words) in [
            ("", 1, "wanted a feature"),
            ("label = 3", 7, "write `==`"),
            ("label", 6, "wanted a comparison"),
            ("label == ", 10, "wanted a feature"),
            ("label == 3 label", 12, "`and`, `or`"),
            ("(a == 1", 8, "`)`"),
            ("a in ()", 7, "wanted a feature"),
            ("a in (b)", 7, "texts have quotes"),
            ("a == 'x", 6, "has no end"),
            ("a == 'x\\q'", 8, "unknown escape"),
            ("ä == 99999999999999999999", 6, "out of range"),
            ("a == 3x", 6, "not a number"),
            ("a ? 1", 3, "no meaning"),
            ("has(3)", 5, "name of a feature"),
            ("a not 3", 7, "wanted `in`"),
            ("and == 3", 1, "backquotes"),
        ] {
            let fault = parse(text).unwrap_err();
            assert!(
                fault.column == column && fault.reason.contains(words),
                "{text}: {fault:?}"
            );
        }
        assert!(parse(&"(".repeat(1000)).unwrap_err().reason.contains("nested"));
        assert!(parse(&"not ".repeat(1000)).is_err());
        let fault = parse("label = 3").unwrap_err();
        assert_eq!(
            fault.show("label = 3"),
            "column 7: to compare, write `==`\n  label = 3\n        ^"
        );
    }

    fn record() -> Vec<u8> {
        let mut example = Example::default();
        example
            .features
            .insert("label".into(), FeatureList::Int64(vec![3, 9]));
        example
            .features
            .insert("score".into(), FeatureList::Float(vec![0.1]));
        example
            .features
            .insert("name".into(), FeatureList::Bytes(vec![b"cat".to_vec()]));
        example.features.insert("none".into(), FeatureList::Int64(vec![]));
        example
            .features
            .insert("odd name".into(), FeatureList::Int64(vec![-1]));
        example.encode()
    }

    #[test]
    fn expressions_mean_what_they_say() {
        let record = record();
        let example = ExampleView::parse(&record).unwrap();
        for (text, wanted) in [
            ("label == 3", true),
            ("3==label", true),
            ("label != 3", false),
            ("label in (1, 3)", true),
            ("label not in (1, 3,)", false),
            ("label < 3.5 and label > 2.5", true),
            ("label <= 3 and label >= 3", true),
            ("score == 0.1", true),
            ("score < label", true),
            ("name == 'cat' and name < \"dog\"", true),
            ("name in ('dog', 'cow') or not has(absent)", true),
            ("has(none)", false),
            ("len(label) == 2 and len(absent) == 0", true),
            ("absent == 1 or absent != 1", false),
            ("not absent == 1", true),
            ("`odd name` == -1", true),
            ("label == 1 or label == 3 and name == 'x'", false),
            ("(label == 1 or label == 3) and name == 'cat'", true),
            ("label < 9223372036854775807 and label > -1e300", true),
        ] {
            assert_eq!(parse(text).unwrap().holds(&example), Ok(wanted), "{text}");
        }
        let error = parse("label == 'x'").unwrap().holds(&example).unwrap_err();
        assert!(error.contains("a number") && error.contains("a text"), "{error}");
        let mut names = Vec::new();
        parse("a == 1 and (has(b) or len(c) > 2) or d in (1)")
            .unwrap()
            .features(&mut names);
        assert_eq!(names, ["a", "b", "c", "d"]);
    }

    #[test]
    fn whole_numbers_compare_without_loss() {
        for (integer, number, wanted) in [
            (i64::MAX, 9.223_372_036_854_776e18, Ordering::Less),
            (i64::MIN, -9.223_372_036_854_776e18, Ordering::Equal),
            (3, 3.5, Ordering::Less),
            (-3, -3.5, Ordering::Greater),
            (0, f64::NEG_INFINITY, Ordering::Greater),
        ] {
            assert_eq!(compare_mixed(integer, number), Some(wanted), "{integer} {number}");
        }
        assert_eq!(compare_mixed(1, f64::NAN), None);
    }

    fn operand() -> impl Strategy<Value = Operand> {
        prop_oneof![
            "[a-z`/ ]{1,6}"
                .prop_filter("backquotes end names", |name| !name.contains('`'))
                .prop_map(Operand::Feature),
            any::<i64>().prop_map(Operand::Integer),
            any::<f64>()
                .prop_filter("finite", |n| n.is_finite())
                .prop_map(Operand::Number),
            ".{0,6}".prop_map(Operand::Text),
        ]
    }

    fn constant() -> impl Strategy<Value = Operand> {
        prop_oneof![
            any::<i64>().prop_map(Operand::Integer),
            ".{0,6}".prop_map(Operand::Text)
        ]
    }

    fn expression() -> impl Strategy<Value = Expression> {
        let operator = prop::sample::select(vec![
            Operator::Equal,
            Operator::NotEqual,
            Operator::Less,
            Operator::AtLeast,
        ]);
        let leaf = prop_oneof![
            "[a-z]{1,4}".prop_map(Expression::Has),
            (operand(), operator, operand()).prop_map(|(a, o, b)| Expression::Compare(a, o, b)),
            (operand(), prop::collection::vec(constant(), 1..4))
                .prop_map(|(a, list)| Expression::In(a, list)),
        ];
        leaf.prop_recursive(4, 16, 2, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| Expression::Or(a.into(), b.into())),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| Expression::And(a.into(), b.into())),
                inner.prop_map(|a| Expression::Not(a.into())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_shown_parses_as_itself(expression in expression()) {
            prop_assert_eq!(parse(&expression.to_string()), Ok(expression));
        }

        #[test]
        fn no_text_is_too_much(text in ".{0,60}", words in prop::collection::vec(prop::sample::select(vec!["a", "(", ")", "not", "in", "==", "'", "3", ",", "len", "has", "or"]), 0..20)) {
            for text in [text, words.join(" ")] {
                if let Err(fault) = parse(&text) {
                    prop_assert!(fault.column >= 1 && fault.column <= text.chars().count() + 1);
                    fault.show(&text);
                }
            }
        }
    }
}
